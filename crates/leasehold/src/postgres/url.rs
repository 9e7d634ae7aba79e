//! What a URL says: `postgres://user:password@host1:5432,host2:5432/database?sslmode=verify-full`. The parameters are those
//! of `libpq` as far as the driver knows them, and these:
//!
//! - `sslmode`: `disable`, `prefer` (TLS where the server has it, nothing verified), `require` (TLS, nothing verified; with a root
//!   certificate as `verify-ca`), `verify-ca` (the chain), `verify-full` (chain and host name). **Without it: `prefer` where every
//!   host is this machine, otherwise `verify-full`.**
//! - `sslrootcert`: a PEM file of the authorities that are trusted; without it the system's.
//! - `passfile`: a file as `libpq` knows it. The password is looked for in the URL, in `PGPASSWORD`, then there.
//! - `target_session_attrs`: `read-write` unless said otherwise, so that several hosts mean: the one that takes writes.
//! - `statement_cache`: `off` for a transaction pooler that does not know prepared statements (PgBouncer before 1.21).
//!
//! A pooler in between must pass on the startup parameter `options`, or be told to ignore it; who needs them checks what is in force.
//!
//! No password is in any error or in what is said of a target.

use super::TargetError;
use percent_encoding::percent_decode_str;
use std::{path::PathBuf, str::FromStr as _, time::Duration};
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};

/// Beyond it a host counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Unacknowledged for longer: the connection is dead.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// How the server proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Not at all.
    Nothing,
    /// By a chain to a trusted authority.
    Chain,
    /// By that, for this host name.
    Full,
}

/// A URL, read.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) config: Config,
    /// The same for each of its hosts alone, in their order.
    pub(crate) hosts: Vec<Config>,
    pub(crate) verify: Verify,
    pub(crate) root_certificates: Option<PathBuf>,
    /// The server may be asked to keep statements.
    pub(crate) prepared: bool,
    /// `postgres://user@host:port/database`: for messages.
    pub(crate) place: String,
}

impl Target {
    /// Reads a URL; `env` is the environment, `session` the options that every session must have.
    pub(crate) fn parse(url: &str, env: impl Fn(&str) -> Option<String>, session: &str) -> Result<Self, TargetError> {
        let wrong = |why: String| TargetError::Url { why };
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(wrong("it does not begin with `postgres://`".into()));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        // Read as a URL, a password with a bare `@` would end there, and the rest of it would be a host that messages name.
        if base.matches('@').count() > 1 {
            return Err(wrong("it has more than one `@`; in a password or a name write `@` as `%40`, and `/` as `%2F`".into()));
        }
        let mut kept = String::new();
        let (mut mode, mut root_certificates, mut passfile, mut prepared) = (None, None, None, true);
        let (mut attrs_given, mut options) = (false, String::new());
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            let (name, raw) = pair.split_once('=').ok_or_else(|| wrong(format!("the parameter `{pair}` has no value")))?;
            let value = percent_decode_str(raw)
                .decode_utf8()
                .map_err(|_| wrong(format!("the value of `{name}` is not UTF-8")))?
                .into_owned();
            match name {
                "sslmode" => mode = Some(value),
                "sslrootcert" => root_certificates = Some(PathBuf::from(value)),
                "passfile" => passfile = Some(PathBuf::from(value)),
                "options" => options = value,
                "statement_cache" => {
                    prepared = match value.as_str() {
                        "on" => true,
                        "off" => false,
                        _ => return Err(wrong("`statement_cache` is `on` or `off`".into())),
                    }
                }
                _ => {
                    attrs_given |= name == "target_session_attrs";
                    kept.push(if kept.is_empty() { '?' } else { '&' });
                    kept.push_str(pair);
                }
            }
        }
        // The driver's own words name the parameter, never a value.
        let mut config = Config::from_str(&format!("{base}{kept}")).map_err(|e| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| format!("{e}: {s}"));
            wrong(why)
        })?;
        if config.get_hosts().is_empty() {
            return Err(wrong("it names no host".into()));
        }
        if config.get_dbname().is_none() {
            return Err(wrong("it names no database".into()));
        }
        if config.get_user().is_none() {
            return Err(wrong("it names no user".into()));
        }
        let local = config.get_hosts().iter().all(is_local) && config.get_hostaddrs().iter().all(|a| a.is_loopback());
        let (ssl, verify) = match (mode.as_deref(), root_certificates.is_some()) {
            (Some("disable"), _) => (SslMode::Disable, Verify::Nothing),
            (Some("prefer"), _) => (SslMode::Prefer, Verify::Nothing),
            (Some("require"), false) => (SslMode::Require, Verify::Nothing),
            (Some("require" | "verify-ca"), _) => (SslMode::Require, Verify::Chain),
            (Some("verify-full"), _) => (SslMode::Require, Verify::Full),
            (None, false) if local => (SslMode::Prefer, Verify::Nothing),
            (None, _) => (SslMode::Require, Verify::Full),
            (Some(_), _) => {
                return Err(wrong("`sslmode` is one of disable, prefer, require, verify-ca, verify-full".into()));
            }
        };
        config.ssl_mode(ssl);
        if !attrs_given {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_password().is_none() {
            let file = passfile.or_else(|| env("PGPASSFILE").map(PathBuf::from));
            let password = env("PGPASSWORD").or_else(|| {
                let lines = std::fs::read_to_string(file?).ok()?;
                from_passfile(&lines, &config)
            });
            if let Some(password) = password {
                config.password(password);
            }
        }
        if config.get_application_name().is_none() {
            config.application_name("leasehold");
        }
        // The operator's own options come before these and so cannot weaken them.
        config.options(format!("{options} {session}").trim_start());
        config
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(TCP_USER_TIMEOUT)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(10))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3);
        let place = place(&config);
        let hosts = (0..config.get_hosts().len()).map(|at| of_host(&config, at)).collect();
        Ok(Self { config, hosts, verify, root_certificates, prepared, place })
    }
}

/// Everything of a configuration, for one of its hosts: the driver bounds the way to a host and not its answer, so whoever wants to go
/// on to the next host asks each by itself.
fn of_host(all: &Config, at: usize) -> Config {
    let mut one = Config::new();
    match all.get_hosts().get(at) {
        Some(Host::Tcp(name)) => one.host(name),
        Some(Host::Unix(path)) => one.host_path(path),
        None => &mut one,
    };
    if let Some(address) = all.get_hostaddrs().get(at) {
        one.hostaddr(*address);
    }
    one.port(port(all, at));
    all.get_user().map(|user| one.user(user));
    all.get_password().map(|password| one.password(password));
    all.get_dbname().map(|name| one.dbname(name));
    all.get_options().map(|options| one.options(options));
    all.get_application_name().map(|name| one.application_name(name));
    all.get_connect_timeout().map(|timeout| one.connect_timeout(*timeout));
    all.get_tcp_user_timeout().map(|timeout| one.tcp_user_timeout(*timeout));
    all.get_keepalives_interval().map(|interval| one.keepalives_interval(interval));
    all.get_keepalives_retries().map(|retries| one.keepalives_retries(retries));
    one.keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .channel_binding(all.get_channel_binding())
        .target_session_attrs(all.get_target_session_attrs())
        .load_balance_hosts(all.get_load_balance_hosts());
    one
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|a| a.is_loopback()),
        Host::Unix(_) => true,
    }
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]"),
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    }
}

fn port(config: &Config, at: usize) -> u16 {
    config.get_ports().get(at).or(config.get_ports().first()).copied().unwrap_or(5432)
}

fn place(config: &Config) -> String {
    let hosts: Vec<String> =
        config.get_hosts().iter().enumerate().map(|(at, host)| format!("{}:{}", host_name(host), port(config, at))).collect();
    let (user, database) = (config.get_user().unwrap_or_default(), config.get_dbname().unwrap_or_default());
    format!("postgres://{user}@{}/{database}", hosts.join(","))
}

/// The password of the first line `host:port:database:user:password` that fits one of the hosts.
fn from_passfile(lines: &str, config: &Config) -> Option<String> {
    let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| (host_name(host), port(config, at).to_string()));
    let hosts: Vec<(String, String)> = hosts.collect();
    lines.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = fields(line);
        let [host, port, database, user, password] = fields.as_slice() else { return None };
        let here = hosts.iter().any(|(h, p)| fits(host, h) && fits(port, p));
        let ours = fits(database, config.get_dbname()?) && fits(user, config.get_user()?);
        (here && ours).then(|| password.clone())
    })
}

/// Splits at colons; a backslash takes the next character as it is.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, fields.last_mut()) {
            (':', _) => fields.push(String::new()),
            ('\\', Some(last)) => last.extend(chars.next()),
            (other, Some(last)) => last.push(other),
            (_, None) => {}
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &str = "-c synchronous_commit=on";

    fn read(url: &str) -> Result<Target, TargetError> {
        Target::parse(url, |_| None, SESSION)
    }

    fn ssl(url: &str) -> (SslMode, Verify) {
        let target = read(url).unwrap();
        (target.config.get_ssl_mode(), target.verify)
    }

    #[test]
    fn another_machine_is_verified_unless_the_url_says_otherwise() {
        for local in ["localhost", "127.0.0.1", "[::1]", "%2Frun%2Fpostgresql"] {
            assert_eq!(ssl(&format!("postgres://u@{local}/d")), (SslMode::Prefer, Verify::Nothing), "{local}");
        }
        assert_eq!(ssl("postgres://u@db/d"), (SslMode::Require, Verify::Full));
        assert_eq!(ssl("postgres://u@localhost,db/d"), (SslMode::Require, Verify::Full));
        assert_eq!(ssl("postgres://u@localhost/d?sslrootcert=ca.pem"), (SslMode::Require, Verify::Full));
        assert_eq!(ssl("postgres://u@db/d?sslmode=disable"), (SslMode::Disable, Verify::Nothing));
        assert_eq!(ssl("postgres://u@db/d?sslmode=require"), (SslMode::Require, Verify::Nothing));
        assert_eq!(ssl("postgres://u@db/d?sslmode=require&sslrootcert=ca.pem"), (SslMode::Require, Verify::Chain));
        assert_eq!(ssl("postgres://u@db/d?sslmode=verify-ca"), (SslMode::Require, Verify::Chain));
        assert!(read("postgres://u@db/d?sslmode=allow").is_err());
    }

    #[test]
    fn the_place_names_every_host_and_no_password() {
        let target = read("postgresql://ada:hunter2@one:1,[::1]:2/runs?application_name=x").unwrap();
        assert_eq!(target.place, "postgres://ada@one:1,[::1]:2/runs");
        assert_eq!(target.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn each_host_alone_has_everything_that_the_url_says() {
        let url = |host: &str| {
            format!(
                "postgres://ada:hunter2@{host}/runs?application_name=x&channel_binding=require&load_balance_hosts=random&\
                 keepalives=0&sslnegotiation=direct&target_session_attrs=any"
            )
        };
        let both = read(&url("one:1,two:2")).unwrap();
        assert_eq!(both.hosts, [read(&url("one:1")).unwrap().config, read(&url("two:2")).unwrap().config]);
    }

    #[test]
    fn no_error_repeats_the_password() {
        for url in [
            "postgres://ada:hunter2@host:port/d",
            "postgres://ada:hunter2@host/d?sslmode=hunter2",
            "postgres://ada:hunter2@host/d?nonsense=hunter2",
            "postgres://ada:hunter2@host",
            "postgres://ada:hunter2@/d",
            "mysql://ada:hunter2@host/d",
            "postgres://ada:hunter2%zz@ho%ff/d",
            "postgres://ada:x@hunter2@host/d",
            "postgres://ada:x@y/hunter2@host/d",
        ] {
            let Err(error) = read(url) else { continue };
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_password_comes_from_the_url_then_the_environment_then_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# comment\nother:*:*:*:no\ndb:5432:d:u:a\\:b\\\\\n").unwrap();
        let url = format!("postgres://u@db/d?passfile={}", file.path().display());
        let env = |name: &str| (name == "PGPASSWORD").then(|| "env".to_owned());
        let password = |t: Target| t.config.get_password().map(<[u8]>::to_vec);
        assert_eq!(password(read(&url).unwrap()).unwrap(), b"a:b\\");
        assert_eq!(password(Target::parse(&url, env, SESSION).unwrap()).unwrap(), b"env");
        assert_eq!(password(Target::parse(&url.replace("u@", "u:url@"), env, SESSION).unwrap()).unwrap(), b"url");
    }

    #[test]
    fn options_of_the_operator_cannot_weaken_those_of_the_session() {
        let target = read("postgres://u@db/d?options=-c%20synchronous_commit%3Doff").unwrap();
        let options = target.config.get_options().unwrap().to_owned();
        assert!(options.rfind("synchronous_commit=on") > options.rfind("synchronous_commit=off"), "{options}");
    }
}
