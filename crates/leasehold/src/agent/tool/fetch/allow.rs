//! Where a fetch may go, as the operator writes it: `docs.example.com`, `*.example.com`, `example.com:8443/manual`,
//! `http://intranet.example`. A URL is compared as it will be requested, after it was read: in small letters, with its dots resolved.

use reqwest::Url;
use std::fmt;

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    scheme: &'static str,
    host: Host,
    port: u16,
    /// Without the slash at its end; empty: every path.
    path: String,
    written: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Exactly(String),
    /// Any name that ends in this, which begins with a dot.
    Under(String),
}

/// The list.
#[derive(Clone, Debug)]
pub(super) struct Allowed(Vec<Entry>);

impl Allowed {
    pub(super) fn parse(texts: &[String]) -> Result<Self, String> {
        if texts.is_empty() {
            return Err("it names nobody, so nothing could be fetched; name hosts, or remove the section".into());
        }
        texts.iter().map(|text| entry(text)).collect::<Result<_, _>>().map(Self)
    }

    /// Whether a URL may be fetched, its address aside.
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("`{}` URLs are not fetched: https alone, and http where the operator allows it", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("a URL with a user or a password is not fetched".into());
        }
        match self.0.iter().any(|entry| entry.fits(url)) {
            true => Ok(()),
            false => Err(format!("`{}` is not among what may be fetched: {self}", shown(url))),
        }
    }
}

/// Without what a far side might have hidden in it.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    crate::agent::gate::excerpt(url.as_str(), 300)
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(|entry| entry.written.as_str()).collect::<Vec<_>>().join(", "))
    }
}

fn entry(text: &str) -> Result<Entry, String> {
    let wrong = |why: &str| format!("`{text}` {why}; write for example \"docs.example.com\" or \"*.example.com:8443/manual\"");
    let (scheme, rest) = match text.split_once("://") {
        Some(("https", rest)) => ("https", rest),
        Some(("http", rest)) => ("http", rest),
        Some(_) => return Err(wrong("is neither https nor http")),
        None => ("https", text),
    };
    let (is_under, rest) = rest.strip_prefix("*.").map_or((false, rest), |rest| (true, rest));
    let url = Url::parse(&format!("{scheme}://{rest}")).map_err(|e| wrong(&format!("is not a host ({e})")))?;
    let host = url.host_str().unwrap_or_default();
    if host.contains('*') {
        return Err(wrong("has a `*` elsewhere than before the first dot of a name"));
    }
    if is_under && url.domain().is_none() {
        return Err(wrong("has a `*` before an address"));
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("is more than a host, a port and the beginning of a path"));
    }
    Ok(Entry {
        scheme,
        host: if is_under { Host::Under(format!(".{host}")) } else { Host::Exactly(host.to_owned()) },
        // Both schemes have one.
        port: url.port_or_known_default().unwrap_or_default(),
        path: url.path().trim_end_matches('/').to_owned(),
        written: text.to_owned(),
    })
}

impl Entry {
    fn fits(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let is_host = match &self.host {
            Host::Exactly(name) => host == name,
            Host::Under(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
        };
        is_host && url.scheme() == self.scheme && url.port_or_known_default() == Some(self.port) && self.has(url.path())
    }

    /// The path is this one or lies under it, for whoever reads it: no server may find a way out in it.
    fn has(&self, path: &str) -> bool {
        if self.path.is_empty() {
            return true;
        }
        let lower = path.to_ascii_lowercase();
        let leads_out = lower.contains("%2f")
            || lower.contains("%5c")
            || lower.contains("%25")
            || lower.split('/').any(|name| name.replace("%2e", ".").starts_with(".."));
        let rest = path.strip_prefix(self.path.as_str());
        !leads_out && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Result<Allowed, String> {
        Allowed::parse(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn an_entry_means_exactly_its_scheme_host_port_and_path() {
        let allowed = list(&["docs.example.com", "*.Example.org", "example.net:8443/manual/", "http://intra.example"]).unwrap();
        for fits in [
            "https://docs.example.com",
            "https://DOCS.example.com:443/a/b?c=d#e",
            "https://a.example.org/",
            "https://a.b.example.org/",
            "https://example.net:8443/manual",
            "https://example.net:8443/manual/a",
            "https://example.net:8443/other/../manual/a",
            "http://intra.example/",
        ] {
            assert_eq!(allowed.check(&Url::parse(fits).unwrap()), Ok(()), "{fits}");
        }
        for other in [
            "http://docs.example.com/",
            "https://docs.example.com:8443/",
            "https://example.com/",
            "https://docs.example.com.evil.test/",
            "https://docs.example.com./",
            "https://evil.test/docs.example.com",
            "https://evil.test/?https://docs.example.com/",
            "https://evil.test/#docs.example.com",
            "https://evil.test\\@docs.example.com/",
            "https://example.org/",
            "https://evilexample.org/",
            "https://.example.org/",
            "https://example.net/manual",
            "https://example.net:8443/",
            "https://example.net:8443/manuals",
            "https://example.net:8443/manual/../secret",
            "https://example.net:8443/manual/%2e%2e/secret",
            "https://example.net:8443/manual/..%2fsecret",
            "https://example.net:8443/manual/..%5csecret",
            "https://example.net:8443/manual/%252e%252e/secret",
            "https://example.net:8443/manual/..;/secret",
            "https://intra.example/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "ftp://docs.example.com/",
            "file:///etc/passwd",
            "data:text/plain,x",
            "javascript:1",
        ] {
            assert!(allowed.check(&Url::parse(other).unwrap()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_user_or_a_password_is_refused_where_the_host_is_allowed() {
        let allowed = list(&["docs.example.com"]).unwrap();
        for url in ["https://a@docs.example.com/", "https://a:b@docs.example.com/", "https://:b@docs.example.com/"] {
            assert!(allowed.check(&Url::parse(url).unwrap()).unwrap_err().contains("a user or a password"), "{url}");
        }
    }

    #[test]
    fn what_is_no_entry_is_refused_with_the_mend() {
        for text in [
            "",
            "*",
            "*.",
            "a.*.example",
            "*example.com",
            "*.127.0.0.1",
            "ftp://a.example",
            "https://u@a.example",
            "a.example?q",
            "a.example#f",
            "a.example:99999",
            "*.*.example",
        ] {
            let why = list(&[text]).unwrap_err();
            assert!(why.contains("docs.example.com"), "{text}: {why}");
        }
        assert!(list(&[]).unwrap_err().contains("names nobody"));
    }

    #[test]
    fn an_address_in_another_spelling_is_the_same_host() {
        let allowed = list(&["127.0.0.1:8080", "[::1]"]).unwrap();
        for url in ["https://2130706433:8080/", "https://0x7f.1:8080/", "https://017700000001:8080/", "https://[0:0::1]/"] {
            assert_eq!(allowed.check(&Url::parse(url).unwrap()), Ok(()), "{url}");
        }
    }
}
