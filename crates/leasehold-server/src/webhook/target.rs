//! Where a webhook may go. The operator chose the URL, and what its name resolves to is somebody else's choice: no link-local address,
//! where machines keep their credentials, no multicast, and in plain text only to this machine.

use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Never a target.
fn is_refused(address: IpAddr) -> bool {
    let v4_refused = |v4: Ipv4Addr| v4.is_link_local() || v4.is_multicast() || v4.is_unspecified() || v4.is_broadcast();
    match address {
        IpAddr::V4(v4) => v4_refused(v4),
        IpAddr::V6(v6) => {
            let parts = v6.segments();
            // The same IPv4 address behind a translator.
            let translated = (parts[..6] == [0x64, 0xff9b, 0, 0, 0, 0]).then(|| {
                let [.., a, b, c, d] = v6.octets();
                Ipv4Addr::new(a, b, c, d)
            });
            let inner = v6.to_ipv4_mapped().or(translated);
            v6.is_unicast_link_local() || v6.is_multicast() || v6.is_unspecified() || inner.is_some_and(v4_refused)
        }
    }
}

/// The address that stands in a URL.
fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

/// In plain text it goes to this machine only.
fn only_loopback(url: &Url, insecure_http: bool) -> bool {
    url.scheme() == "http" && !insecure_http
}

/// What is wrong with a URL, without repeating it: it may hold a secret.
pub(crate) fn check_url(text: &str, insecure_http: bool) -> Result<Url, (&'static str, &'static str)> {
    let form = "write: url = \"https://hooks.example.com/leasehold\"";
    let url = Url::parse(text).map_err(|_| ("this is not a URL", form))?;
    if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
        return Err(("this is not an http or https URL", form));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(("a webhook's URL has no user and no password", "the receiver knows us by the signature"));
    }
    let address = literal(&url);
    if address.is_some_and(is_refused) {
        let what = "link-local, multicast and unspecified addresses are refused";
        return Err((what, "name a receiver that is not on one"));
    }
    let is_local = address.map_or_else(|| url.host_str() == Some("localhost"), |address| address.is_loopback());
    if only_loopback(&url, insecure_http) && !is_local {
        let what = "in plain text (http) a webhook goes to this machine only";
        return Err((what, "use https; or, where the network is trusted, add: insecure_http = true"));
    }
    Ok(url)
}

/// Resolves names to where a webhook may go, each time anew.
#[derive(Debug)]
pub(super) struct Resolver {
    only_loopback: bool,
}

impl Resolver {
    pub(super) fn new(url: &Url, insecure_http: bool) -> Self {
        Self { only_loopback: only_loopback(url, insecure_http) }
    }

    /// All of them or none: a name that also leads elsewhere is not trusted.
    fn allowed(&self, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, &'static str> {
        if found.iter().any(|address| is_refused(address.ip())) {
            return Err("its name resolves to a link-local, multicast or unspecified address, which is refused");
        }
        if self.only_loopback && !found.iter().all(|address| address.ip().is_loopback()) {
            return Err("its name does not resolve to this machine, and in plain text it goes nowhere else");
        }
        if found.is_empty() { Err("its name resolves to no address") } else { Ok(found) }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let only_loopback = self.only_loopback;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let addresses: Addrs = Box::new(Self { only_loopback }.allowed(found)?.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_leads_to_a_receiver_that_may_be_told() {
        for (url, insecure) in [
            ("https://hooks.example.com/x", false),
            ("https://10.0.0.7:8443/x", false),
            ("http://127.0.0.1:9000/x", false),
            ("http://[::1]:9000/x", false),
            ("http://localhost:9000/x", false),
            ("http://hooks.example.com/x", true),
        ] {
            check_url(url, insecure).unwrap();
        }
        for url in [
            "hooks.example.com/secret",
            "ftp://hooks.example.com/secret",
            "https://me:secret@hooks.example.com/",
            "http://hooks.example.com/secret",
            "http://localhost.example.com/secret",
            "http://10.0.0.7/secret",
            "https://169.254.169.254/secret",
            "https://2852039166/secret",
            "https://0xa9.254.0251.254/secret",
            "https://[fe80::1]/secret",
            "https://[::ffff:169.254.169.254]/secret",
            "https://[64:ff9b::a9fe:a9fe]/secret",
            "https://0.0.0.0/secret",
            "https://[::]/secret",
            "https://224.0.0.1/secret",
            "https://[ff02::1]/secret",
        ] {
            let (what, mend) = check_url(url, false).unwrap_err();
            assert!(!what.contains("secret") && !mend.contains("secret"), "{url}");
        }
        // Plain text to everywhere is not everything.
        assert!(check_url("http://169.254.169.254/", true).is_err());
    }

    #[test]
    fn a_name_that_leads_to_where_it_may_not_is_refused_each_time_it_is_resolved() {
        let at = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect()
        };
        let open = Resolver { only_loopback: false };
        assert_eq!(open.allowed(at(&["192.0.2.7", "2001:db8::1"])).unwrap().len(), 2);
        for found in [&["169.254.169.254"][..], &["192.0.2.7", "fe80::1"], &["::ffff:169.254.1.1"], &["0.0.0.0"], &[]] {
            assert!(open.allowed(at(found)).is_err(), "{found:?}");
        }
        let local = Resolver { only_loopback: true };
        assert!(local.allowed(at(&["127.0.0.1", "::1"])).is_ok());
        assert!(local.allowed(at(&["127.0.0.1", "192.0.2.7"])).is_err());
    }

    #[tokio::test]
    async fn a_client_with_it_does_not_connect_to_another_machine_in_plain_text() {
        let url = check_url("http://localhost:1/", false).unwrap();
        let resolved = Resolver::new(&url, false).resolve("localhost".parse().unwrap()).await.unwrap();
        assert!(resolved.into_iter().all(|address| address.ip().is_loopback()));
    }
}
