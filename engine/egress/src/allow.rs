//! Which addresses an allow-list lets through. Pure.

use espalier_core::sandbox::{Peer, Rule, SpecError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The rules of one sandbox, or of whoever else connects for strangers.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    rules: Vec<Rule>,
    others: Others,
}

/// What no rule speaks of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Others {
    /// Is not let through.
    #[default]
    None,
    /// Public addresses are.
    Public,
    /// All are.
    Any,
}

/// What is to be done with an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Connect.
    Allowed,
    /// No rule speaks of it.
    NotListed,
    /// A name leads to an address that is not public: a private range, this machine, the metadata service.
    Private,
}

impl Allowed {
    /// Reads `HOST:PORT` rules, see [`Rule::parse`].
    pub fn parse(rules: &[String]) -> Result<Allowed, SpecError> {
        let rules = rules.iter().map(|rule| Rule::parse(rule)).collect::<Result<_, _>>()?;
        Ok(Allowed { rules, others: Others::None })
    }

    /// The world's addresses by whatever name, and of inner ones those that a rule speaks of: a name that a rule has is wherever it
    /// is found, but for metadata services.
    pub fn world_and(rules: Vec<Rule>) -> Allowed {
        Allowed { rules, others: Others::Public }
    }

    /// Everything.
    pub fn any() -> Allowed {
        Allowed { rules: Vec::new(), others: Others::Any }
    }

    /// Why an inner address is not reached, in words.
    pub(super) fn inner(&self, host: &str, address: SocketAddr) -> String {
        let port = address.port();
        match self.others {
            // Strangers are not told where a name leads.
            Others::Public => format!("{host}:{port} is a private or local address, which was not opened"),
            _ => format!(
                "{host}:{port} is {}, a private or local address: those are reached only where the allow-list names them as addresses",
                address.ip()
            ),
        }
    }

    /// Whether the name server may be asked: a name that no rule allows is not even looked up.
    pub fn may_look_up(&self, name: &str, port: u16) -> bool {
        self.others != Others::None
            || self
                .rules
                .iter()
                .any(|rule| rule.port == port && (rule.peer == Peer::Public || rule.peer.is_name(name)))
    }

    /// Whether a service of the engine was granted; no rule for names does that.
    pub(super) fn grants(&self, service: &str) -> bool {
        self.rules.iter().any(|rule| matches!(&rule.peer, Peer::Service(name) if name == service))
    }

    /// Decides on an address, and the name that led to it, if one did. A rule for addresses lets those through, whoever asks by whatever
    /// name: of inner ones it has to be the address itself, or a range that lies wholly in one inner network; metadata services
    /// have to be the address itself. A rule for names allows public addresses only.
    pub fn judge(&self, name: Option<&str>, address: SocketAddr) -> Verdict {
        let ip = plain(address.ip());
        let rules = || self.rules.iter().filter(|rule| rule.port == address.port());
        let ranges = || {
            rules().filter_map(|rule| match rule.peer {
                Peer::Addresses(base, bits) => Some(Range::of(base, bits)).filter(|range| range.holds(ip)),
                _ => None,
            })
        };
        let by_name = name.is_some_and(|name| rules().any(|rule| rule.peer.is_name(name)));
        let public = rules().any(|rule| rule.peer == Peer::Public);
        match () {
            () if self.others == Others::Any => Verdict::Allowed,
            () if ip.is_unspecified() => Verdict::Private,
            () if self.others == Others::Public => match () {
                () if is_global(ip) || ranges().any(|range| range.names_inner(ip)) => Verdict::Allowed,
                () if by_name && !METADATA.contains(&ip) && !ip.is_multicast() => Verdict::Allowed,
                () => Verdict::Private,
            },
            () if ranges().any(|range| is_global(ip) || range.names_inner(ip)) => Verdict::Allowed,
            () if by_name && is_global(ip) => Verdict::Allowed,
            () if public && is_global(ip) => Verdict::Allowed,
            () if public || by_name || ranges().next().is_some() => Verdict::Private,
            () => Verdict::NotListed,
        }
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug)]
struct Range {
    base: IpAddr,
    bits: u32,
}

/// Inner networks that a range may name.
const INNER: [(IpAddr, u32); 18] = [
    (v4(10, 0, 0, 0), 8),
    (v4(100, 64, 0, 0), 10),
    (v4(127, 0, 0, 0), 8),
    (v4(169, 254, 0, 0), 16),
    (v4(172, 16, 0, 0), 12),
    (v4(192, 0, 0, 0), 24),
    (v4(192, 0, 2, 0), 24),
    (v4(192, 88, 99, 0), 24),
    (v4(192, 168, 0, 0), 16),
    (v4(198, 18, 0, 0), 15),
    (v4(198, 51, 100, 0), 24),
    (v4(203, 0, 113, 0), 24),
    (v6(0xfc00, 0), 7),
    (v6(0xfe80, 0), 10),
    (v6(0x64, 0xff9b), 96),
    (v6(0x2001, 0xdb8), 32),
    (v6(0x2001, 0), 23),
    (v6(0x2002, 0), 16),
];

/// What answers there knows secrets of the machine.
const METADATA: [IpAddr; 5] = [
    v4(169, 254, 169, 254),
    v4(100, 100, 100, 200),
    v4(168, 63, 129, 16),
    v4(192, 0, 0, 192),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(a: u16, b: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0))
}

impl Range {
    fn of(base: IpAddr, bits: u8) -> Range {
        let plain = plain(base);
        // A range of IPv4-mapped IPv6 addresses begins with their 96 bits; a shorter one is not a range of IPv4.
        let bits = match (base, plain) {
            (IpAddr::V6(_), IpAddr::V4(_)) if bits >= 96 => u32::from(bits) - 96,
            (IpAddr::V6(_), IpAddr::V4(_)) => return Range { base, bits: u32::from(bits) },
            _ => u32::from(bits),
        };
        Range { base: plain, bits }
    }

    fn holds(self, ip: IpAddr) -> bool {
        let (ip, base, size) = match (ip, self.base) {
            (IpAddr::V4(ip), IpAddr::V4(base)) => {
                (u128::from(u32::from(ip)), u128::from(u32::from(base)), 32)
            }
            (IpAddr::V6(ip), IpAddr::V6(base)) => (u128::from(ip), u128::from(base), 128),
            _ => return false,
        };
        let shift = size - self.bits.min(size);
        ip.checked_shr(shift).unwrap_or(0) == base.checked_shr(shift).unwrap_or(0)
    }

    /// Whether it means this inner address that it holds, rather than holding it among others.
    fn names_inner(self, ip: IpAddr) -> bool {
        let exact = self.bits == if self.base.is_ipv4() { 32 } else { 128 };
        let within = |(base, bits): &(IpAddr, u32)| {
            self.bits >= *bits && Range { base: *base, bits: *bits }.holds(self.base)
        };
        exact || (!METADATA.contains(&ip) && INNER.iter().any(within))
    }
}

/// Unwraps IPv4-mapped IPv6 addresses.
fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
        ip => ip,
    }
}

/// Whether an address is globally routable: not of this machine, a private network, a link, or a reserved range.
fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_global_v4(ip),
        IpAddr::V6(ip) => is_global_v6(ip),
    }
}

fn is_global_v4(ip: Ipv4Addr) -> bool {
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

fn is_global_v6(ip: Ipv6Addr) -> bool {
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
        use Verdict::{Allowed, NotListed, Private};
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
            (&["a.org:443"], Some("a.org"), "10.0.0.1:443", Private),
            (&["a.org:443"], Some("a.org"), "[::ffff:10.0.0.1]:443", Private),
            (&["a.org:443", "10.0.0.1:443"], Some("a.org"), "10.0.0.1:443", Allowed),
            (&["10.0.0.0/8:80"], None, "10.9.8.7:80", Allowed),
            (&["10.0.0.0/8:80"], None, "11.9.8.7:80", NotListed),
            (&["10.0.0.0/8:80"], None, "[::ffff:10.9.8.7]:80", Allowed),
            (&["[fd00::]/8:80"], None, "[fd00::1]:80", Allowed),
            // The world, and nothing inner.
            (&["*:443"], Some("a.org"), world, Allowed),
            (&["*:443"], None, world, Allowed),
            (&["*:443"], None, "93.184.216.34:80", NotListed),
            (&["*:443"], Some("a.org"), "10.0.0.1:443", Private),
            (&["*:443"], None, "127.0.0.1:443", Private),
            (&["*:80"], Some("a.org"), "169.254.169.254:80", Private),
            (&["*:443", "10.0.0.1:443"], Some("a.org"), "10.0.0.1:443", Allowed),
            // A range that holds the world, too, names no inner address.
            (&["0.0.0.0/0:443"], None, world, Allowed),
            (&["0.0.0.0/0:443"], Some("a.org"), world, Allowed),
            (&["0.0.0.0/0:80"], None, "127.0.0.1:80", Private),
            (&["0.0.0.0/0:80"], None, "169.254.169.254:80", Private),
            (&["0.0.0.0/0:80"], None, "10.0.0.1:80", Private),
            (&["0.0.0.0/0:80"], None, "[::ffff:127.0.0.1]:80", Private),
            (&["8.0.0.0/5:80"], None, "10.0.0.1:80", Private),
            (&["[::]/0:80"], None, "[::1]:80", Private),
            (&["[::]/0:80"], None, "[fd00::1]:80", Private),
            (&["[::ffff:0:0]/96:80"], None, "127.0.0.1:80", Private),
            (&["[::ffff:10.0.0.0]/104:80"], None, "10.9.8.7:80", Allowed),
            (&["127.0.0.0/8:80"], None, "127.0.0.5:80", Allowed),
            // Nobody's address, and those of metadata unless they are named themselves.
            (&["0.0.0.0/0:80"], None, "0.0.0.0:80", Private),
            (&["0.0.0.0/32:80"], None, "0.0.0.0:80", Private),
            (&["169.254.0.0/16:80"], None, "169.254.169.254:80", Private),
            (&["169.254.0.0/16:80"], None, "169.254.1.1:80", Allowed),
            (&["169.254.169.254:80"], None, "169.254.169.254:80", Allowed),
            (&["[fd00:ec2::254]:80"], None, "[fd00:ec2::254]:80", Allowed),
        ] {
            assert_eq!(judge(rules, name, address), expect, "{rules:?} {name:?} {address}");
        }
    }

    #[test]
    fn pulls_reach_the_world_and_what_was_opened() {
        use Verdict::{Allowed, Private};
        for (rules, name, address, expect) in [
            (&[][..], Some("a.org"), "93.184.216.34:443", Allowed),
            (&[], None, "93.184.216.34:5000", Allowed),
            (&[], Some("a.org"), "127.0.0.1:443", Private),
            (&[], Some("a.org"), "[::ffff:127.0.0.1]:443", Private),
            (&[], Some("a.org"), "169.254.169.254:80", Private),
            (&[], None, "10.0.0.1:443", Private),
            (&[], None, "0.0.0.0:5000", Private),
            (&["r.lan:5000"], Some("r.lan"), "10.0.0.1:5000", Allowed),
            (&["r.lan:5000"], Some("R.LAN."), "127.0.0.1:5000", Allowed),
            (&["r.lan:5000"], Some("r.lan"), "10.0.0.1:5001", Private),
            (&["r.lan:5000"], Some("x.lan"), "10.0.0.1:5000", Private),
            (&["r.lan:5000"], None, "10.0.0.1:5000", Private),
            (&["r.lan:80"], Some("r.lan"), "169.254.169.254:80", Private),
            (&["r.lan:80"], Some("r.lan"), "0.0.0.0:80", Private),
            (&["127.0.0.1:5000"], None, "127.0.0.1:5000", Allowed),
            (&["127.0.0.1:5000"], Some("a.org"), "127.0.0.1:5000", Allowed),
            (&["127.0.0.1:5000"], None, "127.0.0.1:5001", Private),
            (&["0.0.0.0/0:80"], None, "10.0.0.1:80", Private),
            (&["*:5000"], Some("a.org"), "10.0.0.1:5000", Private),
        ] {
            let rules: Vec<Rule> = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
            let verdict = super::Allowed::world_and(rules.clone()).judge(name, address.parse().unwrap());
            assert_eq!(verdict, expect, "{rules:?} {name:?} {address}");
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
            assert!(!is_global(plain(ip)), "{address}");
        }
        for address in
            ["93.184.216.34", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001:80b::200e"]
        {
            assert!(is_global(address.parse().unwrap()), "{address}");
        }
    }
}
