//! Which addresses a fetch may go to: those of the public internet, and networks that the operator named. A network of nobody in
//! particular, of this machine or of this house is refused in every spelling.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Networks of IANA's special-purpose address registry that are not globally reachable, with multicast and what is reserved:
/// <https://www.iana.org/assignments/iana-ipv4-special-registry>.
const SPECIAL_V4: [(Ipv4Net, &str); 17] = [
    (v4([0, 0, 0, 0], 8), "this network"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "shared by a carrier"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([169, 254, 0, 0], 16), "link-local, where clouds keep their credentials"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "of protocols"),
    (v4([192, 0, 2, 0], 24), "documentation"),
    (v4([192, 88, 99, 0], 24), "a 6to4 relay"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "benchmark"),
    (v4([198, 51, 100, 0], 24), "documentation"),
    (v4([203, 0, 113, 0], 24), "documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([255, 255, 255, 255], 32), "broadcast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
    // In no registry: the agent of one cloud answers there, on every machine of it.
    (v4([168, 63, 129, 16], 32), "a cloud's own service"),
];

/// The same of <https://www.iana.org/assignments/iana-ipv6-special-registry>. The last one is all that is not global unicast.
const SPECIAL_V6: [(Ipv6Net, &str); 17] = [
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "IPv4-compatible"),
    (v6([0, 0, 0, 0, 0xffff, 0, 0, 0], 96), "IPv4-translated"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "local translation to IPv4"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discarded"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32), "Teredo"),
    (v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48), "benchmark"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "of protocols"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "documentation"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "6to4"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "documentation"),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "of segment routing"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "unique local"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "site-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
];

/// The only IPv6 addresses that are anybody's on the internet.
const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// Behind it stands an IPv4 address, which is what is reached: <https://www.rfc-editor.org/rfc/rfc6052>.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);

const fn v4(octets: [u8; 4], length: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::from_octets(octets), length)
}

const fn v6(segments: [u16; 8], length: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::from_segments(segments), length)
}

/// An address that is not gone to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address {address} is refused ({what}); the operator can allow its network: allow_networks in [tool.fetch]")]
pub(in super::super) struct Refused {
    address: IpAddr,
    what: &'static str,
}

/// The networks that the operator allows beyond the public internet.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Networks(Vec<IpNet>);

impl Networks {
    pub(in super::super) fn parse(texts: &[String]) -> Result<Self, String> {
        let one = |text: &String| {
            let wrong = |why: &str| format!("`{text}` {why}; write a network such as \"10.1.0.0/16\" or \"fd00:1::/48\"");
            let network = match text.parse::<IpAddr>() {
                Ok(address) => IpNet::from(address),
                Err(_) => text.parse::<IpNet>().map_err(|_| wrong("is not a network"))?,
            };
            match network == network.trunc() {
                true => Ok(network),
                false => Err(wrong(&format!("is an address in the network {}", network.trunc()))),
            }
        };
        texts.iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    /// Whether it may be gone to.
    pub(in super::super) fn check(&self, address: IpAddr) -> Result<(), Refused> {
        let reached = reached(address);
        if self.0.iter().any(|network| network.contains(&reached) || network.contains(&address)) {
            return Ok(());
        }
        let refused = |what| Err(Refused { address, what });
        match reached {
            IpAddr::V4(v4) => match SPECIAL_V4.iter().find(|(network, _)| network.contains(&v4)) {
                Some((_, what)) => refused(what),
                None => Ok(()),
            },
            IpAddr::V6(v6) => match SPECIAL_V6.iter().find(|(network, _)| network.contains(&v6)) {
                Some((_, what)) => refused(what),
                None if !GLOBAL_UNICAST.contains(&v6) => refused("not of the public internet"),
                None => Ok(()),
            },
        }
    }
}

/// The address behind its spelling.
pub(in super::super) fn reached(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if NAT64.contains(&v6) => {
            let [.., a, b, c, d] = v6.octets();
            Ipv4Addr::from([a, b, c, d]).into()
        }
        plain => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(networks: &Networks, text: &str) -> Option<&'static str> {
        networks.check(text.parse().unwrap()).err().map(|refused| refused.what)
    }

    fn allowed(networks: &[&str]) -> Networks {
        Networks::parse(&networks.iter().map(|&n| n.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn both_ends_of_every_special_network_are_refused() {
        let none = Networks::default();
        let v4 = SPECIAL_V4.iter().map(|(network, _)| IpNet::V4(*network));
        let v6 = SPECIAL_V6.iter().map(|(network, _)| IpNet::V6(*network));
        for network in v4.chain(v6) {
            for address in [network.network(), network.broadcast()] {
                assert!(none.check(address).is_err(), "{address} of {network}");
            }
        }
    }

    #[test]
    fn each_kind_of_address_is_refused_by_its_name_in_every_spelling() {
        let none = Networks::default();
        for (text, what) in [
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("0.0.0.0", "this network"),
            ("10.1.2.3", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("169.254.169.254", "link-local, where clouds keep their credentials"),
            ("100.64.0.1", "shared by a carrier"),
            ("100.127.255.255", "shared by a carrier"),
            ("192.0.0.170", "of protocols"),
            ("192.0.2.1", "documentation"),
            ("198.51.100.7", "documentation"),
            ("203.0.113.7", "documentation"),
            ("198.19.255.255", "benchmark"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.250", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "broadcast"),
            ("192.88.99.1", "a 6to4 relay"),
            ("168.63.129.16", "a cloud's own service"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:10.0.0.1", "private"),
            ("::ffff:169.254.169.254", "link-local, where clouds keep their credentials"),
            ("::127.0.0.1", "IPv4-compatible"),
            ("::ffff:0:127.0.0.1", "IPv4-translated"),
            ("64:ff9b::7f00:1", "loopback"),
            ("64:ff9b::a9fe:a9fe", "link-local, where clouds keep their credentials"),
            ("64:ff9b:1::a00:1", "local translation to IPv4"),
            ("2002:7f00:1::", "6to4"),
            ("2002:808:808::1", "6to4"),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
            ("2001:2::1", "benchmark"),
            ("2001:10::1", "of protocols"),
            ("2001:db8::1", "documentation"),
            ("3fff::1", "documentation"),
            ("100::1", "discarded"),
            ("5f00::1", "of segment routing"),
            ("fc00::1", "unique local"),
            ("fd00:ec2::254", "unique local"),
            ("fe80::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("4000::1", "not of the public internet"),
            ("1::1", "not of the public internet"),
        ] {
            assert_eq!(refused(&none, text), Some(what), "{text}");
        }
    }

    #[test]
    fn the_neighbours_of_special_networks_are_public() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2001:200::1",
            "2606:4700:4700::1111",
            "2a00::1",
        ] {
            assert_eq!(refused(&Networks::default(), text), None, "{text}");
        }
    }

    #[test]
    fn a_network_that_the_operator_allows_is_no_other() {
        let networks = allowed(&["10.1.0.0/16", "::1"]);
        for text in ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "::1"] {
            assert_eq!(refused(&networks, text), None, "{text}");
        }
        for text in ["10.2.0.1", "127.0.0.1", "::ffff:10.2.0.1", "::", "2002:a01:203::"] {
            assert!(refused(&networks, text).is_some(), "{text}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused_with_the_mend() {
        for text in ["10.1.0.0/33", "intranet", "", "10.1.2.3/16", "*"] {
            let why = Networks::parse(&[text.to_owned()]).unwrap_err();
            assert!(why.contains("10.1.0.0/16"), "{why}");
        }
    }
}
