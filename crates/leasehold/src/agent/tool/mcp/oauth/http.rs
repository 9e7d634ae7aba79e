//! The client for requests to an authorization server. Which server that is, others say: it reaches no address that they could not
//! reach themselves, unless the operator's own words name such a place.

use super::super::super::fetch::address::Networks;
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use std::net::{IpAddr, SocketAddr};

const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];
const PRIVATE: [&str; 5] = ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];

fn networks(of: &[&str]) -> Networks {
    // Networks, each of which parses; a test sees that they are all there.
    Networks::parse(&of.iter().map(|&network| network.to_owned()).collect::<Vec<_>>()).unwrap_or_default()
}

fn literal(url: &Url) -> Option<IpAddr> {
    url.host_str().and_then(|host| host.trim_start_matches('[').trim_end_matches(']').parse().ok())
}

/// What may be reached: public addresses, and the networks beside them.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    base: Option<IpAddr>,
    networks: Networks,
}

impl Reach {
    /// From the server's URL, which the operator wrote.
    pub(super) fn of(url: &Url, private_addresses: bool) -> Self {
        let base = literal(url);
        let is_in = |those: &[&str]| {
            base.is_some_and(|base| Networks::default().check(base).is_err() && networks(those).check(base).is_ok())
        };
        let is_localhost = url.host_str().is_some_and(|host| host == "localhost" || host.ends_with(".localhost"));
        let mut beside = Vec::new();
        if is_localhost || is_in(&LOOPBACK) {
            beside.extend(LOOPBACK);
        }
        if private_addresses || is_in(&PRIVATE) {
            beside.extend(PRIVATE);
        }
        Self { base, networks: networks(&beside) }
    }

    /// Of a URL whose host is an address, which nobody resolves.
    pub(super) fn takes_url(&self, url: &Url) -> bool {
        literal(url).is_none_or(|address| self.base == Some(address) || self.networks.check(address).is_ok())
    }

    /// No redirect is followed, and no proxy of the environment sees a token.
    pub(super) fn client(self) -> Result<reqwest::Client, reqwest::Error> {
        reqwest::Client::builder()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .dns_resolver(self)
            .timeout(crate::limits::MCP_REFRESH_MAX)
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .build()
    }
}

impl Resolve for Reach {
    fn resolve(&self, name: Name) -> Resolving {
        let networks = self.networks.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found.into_iter().filter(|address| networks.check(address.ip()).is_ok()).collect();
            if allowed.is_empty() {
                let why = "the name resolves to private or link-local addresses only: see `private_addresses` of [mcp.oauth]";
                return Err(why.into());
            }
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_operators_words_name_is_reached_beside_public_addresses() {
        let takes = |base: &str, private: bool, host: &str| {
            Reach::of(&base.parse().unwrap(), private).takes_url(&format!("https://{host}/token").parse().unwrap())
        };
        for host in ["127.0.0.1", "10.0.0.9", "192.168.1.1", "100.64.0.1", "[fd00::1]", "[::1]", "[::ffff:10.0.0.9]"] {
            assert!(!takes("https://mcp.example/mcp", false, host), "{host}");
        }
        for host in
            ["169.254.169.254", "0.0.0.0", "224.0.0.1", "[fe80::1]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[::]"]
        {
            assert!(!takes("http://127.0.0.1/mcp", true, host), "{host}");
        }
        assert!(
            takes("https://mcp.example/mcp", false, "93.184.216.34")
                && takes("https://mcp.example/mcp", false, "[2606:4700::1]")
        );
        assert!(takes("https://mcp.example/mcp", true, "10.0.0.9") && !takes("https://mcp.example/mcp", true, "127.0.0.1"));
        assert!(takes("http://10.0.0.5/mcp", false, "10.0.0.9") && takes("http://localhost/mcp", false, "127.0.0.1"));
    }

    #[tokio::test]
    async fn a_name_of_this_machine_is_not_reached_from_elsewhere() {
        let there = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/", there.local_addr().unwrap().port());
        let client = Reach::of(&"https://mcp.example/mcp".parse().unwrap(), true).client().unwrap();
        assert!(client.get(url).send().await.is_err());
        assert!(tokio::time::timeout(std::time::Duration::ZERO, there.accept()).await.is_err(), "nobody came");
    }
}
