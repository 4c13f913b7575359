//! Which addresses an allow-list lets through. Pure.

use espalier_core::sandbox::{Peer, Rule, SpecError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The rules of one sandbox.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    rules: Vec<Rule>,
}

/// What is to be done with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Connect.
    Allowed,
    /// No rule speaks of it.
    NotListed,
    /// A name leads to an address that is not the world's: a private range, this machine, the metadata service.
    Inner,
}

impl Allowed {
    /// Reads `HOST:PORT` rules, see [`Rule::parse`].
    pub fn parse(rules: &[String]) -> Result<Allowed, SpecError> {
        Ok(Allowed { rules: rules.iter().map(|rule| Rule::parse(rule)).collect::<Result<_, _>>()? })
    }

    /// Whether the name server may be asked: a name that no rule allows is not even looked up.
    pub fn may_look_up(&self, name: &str, port: u16) -> bool {
        self.rules.iter().any(|rule| rule.port == port && names(&rule.peer, name))
    }

    /// Of an address, and the name that led to it. A rule for addresses lets exactly those through, whoever asks by whatever
    /// name; a rule for names lets the world's addresses through.
    pub fn judge(&self, name: Option<&str>, address: SocketAddr) -> Verdict {
        let ip = plain(address.ip());
        let rules = || self.rules.iter().filter(|rule| rule.port == address.port());
        let by_address = rules().any(|rule| match rule.peer {
            Peer::Addresses(base, bits) => lies_in(ip, base, bits),
            _ => false,
        });
        let by_name = name.is_some_and(|name| rules().any(|rule| names(&rule.peer, name)));
        match (by_address, by_name) {
            (true, _) => Verdict::Allowed,
            (false, true) if is_of_the_world(ip) => Verdict::Allowed,
            (false, true) => Verdict::Inner,
            (false, false) => Verdict::NotListed,
        }
    }
}

fn names(peer: &Peer, name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    match peer {
        Peer::Name(allowed) => *allowed == name,
        Peer::Below(domain) => {
            name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        }
        Peer::Addresses(..) => false,
    }
}

/// IPv4 in IPv6's clothes is IPv4.
fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        ip => ip,
    }
}

fn lies_in(ip: IpAddr, base: IpAddr, bits: u8) -> bool {
    let (ip, base, size) = match (ip, plain(base)) {
        (IpAddr::V4(ip), IpAddr::V4(base)) => (u128::from(u32::from(ip)), u128::from(u32::from(base)), 32),
        (IpAddr::V6(ip), IpAddr::V6(base)) => (u128::from(ip), u128::from(base), 128),
        _ => return false,
    };
    let shift = size - u32::from(bits).min(size);
    ip.checked_shr(shift).unwrap_or(0) == base.checked_shr(shift).unwrap_or(0)
}

/// Whether an address is anybody's to reach: none of this machine, of private networks, of links, or of no one.
fn is_of_the_world(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_of_the_world_v4(ip),
        IpAddr::V6(ip) => is_of_the_world_v6(ip),
    }
}

fn is_of_the_world_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let inner = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_broadcast()
        || ip.is_documentation()
        || a == 0
        || a >= 240
        // Shared by carriers, protocol assignments, benchmarks, the old way from 6 to 4.
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b))
        || (a == 192 && b == 88 && c == 99)
        // A metadata service that has a public address.
        || ip == Ipv4Addr::new(168, 63, 129, 16);
    !inner
}

fn is_of_the_world_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    // Of what is given out, without documentation and what wraps IPv4 addresses.
    (a & 0xe000) == 0x2000 && !(a == 0x2001 && (b == 0xdb8 || b < 0x200)) && a != 0x2002 && a != 0x3fff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(rules: &[&str], name: Option<&str>, address: &str) -> Verdict {
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        Allowed::parse(&rules).unwrap().judge(name, address.parse().unwrap())
    }

    #[test]
    fn rules_let_through_what_they_name() {
        use Verdict::{Allowed, Inner, NotListed};
        let world = "93.184.216.34:443";
        for (rules, name, address, expect) in [
            (&["a.org:443"][..], Some("a.org"), world, Allowed),
            (&["a.org:443"], Some("A.ORG."), world, Allowed),
            (&["a.org:443"], Some("b.org"), world, NotListed),
            (&["a.org:443"], Some("a.org"), "93.184.216.34:80", NotListed),
            (&["a.org:443"], None, world, NotListed),
            (&["*.a.org:443"], Some("x.a.org"), world, Allowed),
            (&["*.a.org:443"], Some("a.org"), world, NotListed),
            (&["*.a.org:443"], Some("xa.org"), world, NotListed),
            (&["a.org:443"], Some("a.org"), "10.0.0.1:443", Inner),
            (&["a.org:443"], Some("a.org"), "[::ffff:10.0.0.1]:443", Inner),
            (&["a.org:443", "10.0.0.1:443"], Some("a.org"), "10.0.0.1:443", Allowed),
            (&["10.0.0.0/8:80"], None, "10.9.8.7:80", Allowed),
            (&["10.0.0.0/8:80"], None, "11.9.8.7:80", NotListed),
            (&["10.0.0.0/8:80"], None, "[::ffff:10.9.8.7]:80", Allowed),
            (&["0.0.0.0/0:80"], None, "169.254.169.254:80", Allowed),
            (&["[fd00::]/8:80"], None, "[fd00::1]:80", Allowed),
        ] {
            assert_eq!(judge(rules, name, address), expect, "{rules:?} {name:?} {address}");
        }
    }

    #[test]
    fn names_never_lead_inside() {
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.192",
            "198.18.0.1",
            "168.63.129.16",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::a00:1",
            "2001:db8::1",
            "2002:a00:1::",
            "2001::1",
        ] {
            let ip: IpAddr = address.parse().unwrap();
            assert!(!is_of_the_world(plain(ip)), "{address}");
        }
        for address in
            ["93.184.216.34", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001:80b::200e"]
        {
            assert!(is_of_the_world(address.parse().unwrap()), "{address}");
        }
    }
}
