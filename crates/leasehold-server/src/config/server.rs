//! `[server]` beyond where it listens: what is in front of it, and whether it may be reached without TLS.

use super::{
    diagnostic::ConfigError,
    effective::{Reader, Setting, any, plain},
    file,
};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};
use toml::Spanned;

/// How others reach the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicUrl(reqwest::Url);

impl PublicUrl {
    /// As it is shown.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str().trim_end_matches('/')
    }
    /// Its scheme, host and port, as a browser sends them.
    pub(crate) fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }
    /// Its host, without the port.
    pub(crate) fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default()
    }
    /// Over TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }
}

fn public_url(text: &str) -> Result<PublicUrl, String> {
    let wrong = || format!("`{text}` is not an http or https URL of a host alone, such as https://agents.example.org");
    let url = reqwest::Url::parse(text.trim()).map_err(|_| wrong())?;
    let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if ["http", "https"].contains(&url.scheme()) && url.has_host() && url.password().is_none() && plain {
        Ok(PublicUrl(url))
    } else {
        Err(wrong())
    }
}

/// One address, or a network of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// The address is one of it.
    pub(crate) fn contains(&self, peer: IpAddr) -> bool {
        let shifted = |bytes: u128, width: u8| bytes.checked_shr(u32::from(width - self.bits)).unwrap_or(0);
        match (self.address, peer.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => shifted(a.to_bits().into(), 32) == shifted(b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => shifted(a.to_bits(), 128) == shifted(b.to_bits(), 128),
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

fn network(text: &str) -> Result<Network, String> {
    let wrong = || format!("`{text}` is neither an address nor a network, such as 10.0.0.7 or 10.1.0.0/16");
    let (address, bits) = match text.trim().split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text.trim(), None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(width), |bits| bits.parse().ok().filter(|bits| *bits <= width).ok_or_else(wrong))?;
    Ok(Network { address, bits })
}

/// What is in effect.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) public_url: Setting<Option<PublicUrl>>,
    pub(crate) trusted_proxies: Setting<Vec<Network>>,
    pub(crate) insecure_http: Setting<bool>,
}

/// A value of the file, read.
fn in_file<T, U>(
    reader: &Reader<'_>,
    value: Option<&Spanned<T>>,
    parse: impl Fn(&T) -> Result<U, String>,
) -> Result<Option<Spanned<U>>, ConfigError> {
    let Some(spanned) = value else { return Ok(None) };
    let parsed = parse(spanned.get_ref()).map_err(|what| match reader.source {
        Some(source) => source.error(&spanned.span(), what),
        None => ConfigError::new("configuration", what),
    })?;
    Ok(Some(Spanned::new(spanned.span(), parsed)))
}

impl Server {
    pub(crate) fn read(reader: &Reader<'_>, server: &file::Server) -> Result<Self, ConfigError> {
        let url = in_file(reader, server.public_url.as_ref(), |text: &String| public_url(text).map(Some))?;
        let proxies = in_file(reader, server.trusted_proxies.as_ref(), |list: &Vec<String>| {
            list.iter().map(|text| network(text)).collect::<Result<Vec<_>, _>>()
        })?;
        let networks = |text: &str| text.split(',').filter(|part| !part.trim().is_empty()).map(network).collect();
        Ok(Self {
            public_url: reader.setting(
                "LEASEHOLD_SERVER_PUBLIC_URL",
                |text| public_url(text).map(Some),
                any,
                url.as_ref(),
                None,
            )?,
            trusted_proxies: reader.setting("LEASEHOLD_SERVER_TRUSTED_PROXIES", networks, any, proxies.as_ref(), Vec::new())?,
            insecure_http: reader.setting(
                "LEASEHOLD_SERVER_INSECURE_HTTP",
                plain("true or false"),
                any,
                server.insecure_http.as_ref(),
                false,
            )?,
        })
    }

    /// Where people reach a server that listens there.
    pub(crate) fn address(&self, listen: SocketAddr) -> String {
        self.public_url.value.as_ref().map_or_else(|| format!("http://{listen}"), |url| url.as_str().to_owned())
    }

    /// Refuses to be reached from elsewhere in the clear.
    ///
    /// # Errors
    /// It would be, and nobody said that this is meant.
    pub(crate) fn may_listen(&self, listen: &Setting<SocketAddr>) -> Result<(), ConfigError> {
        let https = self.public_url.value.as_ref().is_some_and(PublicUrl::is_https);
        let in_front = https && !self.trusted_proxies.value.is_empty();
        if listen.value.ip().is_loopback() || self.insecure_http.value || in_front {
            return Ok(());
        }
        let what = format!(
            "[server] listen = \"{}\" is reached from other machines, and nothing in front of it has TLS",
            listen.value
        );
        Err(ConfigError::new(listen.origin.to_string(), what).mend(
            "listen on 127.0.0.1, or name what ends TLS in front (public_url = \"https://..\" and trusted_proxies), or say \
             insecure_http = true",
        ))
    }

    /// Whether a peer may speak to a server that listens there.
    pub(crate) fn lets_in(&self, listen: SocketAddr, peer: IpAddr) -> bool {
        let everybody = listen.ip().is_loopback() || self.insecure_http.value;
        everybody || peer.to_canonical().is_loopback() || self.trusted_proxies.value.iter().any(|of| of.contains(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;

    fn server(url: Option<&str>, proxies: &[&str], insecure: bool) -> Server {
        let origin = Origin::Default;
        Server {
            public_url: Setting { value: url.map(|url| public_url(url).unwrap()), origin: origin.clone() },
            trusted_proxies: Setting { value: proxies.iter().map(|p| network(p).unwrap()).collect(), origin: origin.clone() },
            insecure_http: Setting { value: insecure, origin },
        }
    }

    fn listen(at: &str) -> Setting<SocketAddr> {
        Setting { value: at.parse().unwrap(), origin: Origin::Default }
    }

    #[test]
    fn elsewhere_than_on_loopback_it_needs_tls_in_front_or_a_plain_word() {
        for at in ["127.0.0.1:0", "127.8.0.1:80", "[::1]:80"] {
            assert!(server(None, &[], false).may_listen(&listen(at)).is_ok(), "{at}");
        }
        let out = listen("0.0.0.0:7878");
        assert!(server(None, &[], false).may_listen(&out).unwrap_err().to_string().contains("insecure_http = true"));
        assert!(server(Some("https://a.example"), &[], false).may_listen(&out).is_err());
        assert!(server(Some("http://a.example"), &["10.0.0.1"], false).may_listen(&out).is_err());
        assert!(server(Some("https://a.example"), &["10.0.0.1"], false).may_listen(&out).is_ok());
        assert!(server(None, &[], true).may_listen(&out).is_ok());
    }

    #[test]
    fn only_what_ends_tls_is_let_in_from_elsewhere() {
        let server = server(Some("https://a.example"), &["10.1.0.0/16", "fd00::7"], false);
        let out = listen("0.0.0.0:7878").value;
        for (peer, let_in) in [
            ("127.0.0.1", true),
            ("10.1.255.1", true),
            ("::ffff:10.1.0.1", true),
            ("fd00::7", true),
            ("10.2.0.1", false),
            ("fd00::8", false),
        ] {
            assert_eq!(server.lets_in(out, peer.parse().unwrap()), let_in, "{peer}");
        }
        assert!(network("0.0.0.0/0").unwrap().contains("9.9.9.9".parse().unwrap()));
        for wrong in ["10.0.0.0/33", "a", "10.0.0.1/x", ""] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_public_url_is_a_host_and_nothing_more() {
        let url = public_url("https://Agents.example.org:8443/").unwrap();
        assert_eq!((url.host(), url.origin().as_str()), ("agents.example.org", "https://agents.example.org:8443"));
        for wrong in ["agents.example.org", "ftp://a", "https://a/b", "https://u@a", "https://a?x"] {
            assert!(public_url(wrong).is_err(), "{wrong}");
        }
    }
}
