//! A set of IP networks. The gateway looks up the address of every request in such sets.
//!
//! The set is stored as sorted, disjoint ranges, so a lookup is one binary search. Cloud providers publish lists of up
//! to three thousand networks. At this size a prefix trie would not be faster, and would need far more code.
//!
//! `::ffff:0:0/96` and its subnets are treated as IPv4 networks. A shorter IPv6 prefix, such as `::/0`, contains no
//! IPv4 addresses.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

const MAPPED_PREFIX: u8 = 96;

#[derive(Clone, Debug, Default)]
pub(super) struct Networks {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

impl Networks {
    /// An IPv4-mapped IPv6 address must be converted to IPv4 first.
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.contains(address.to_bits()),
            IpAddr::V6(address) => self.v6.contains(address.to_bits()),
        }
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        let mut v4 = Vec::new();
        let mut v6 = Vec::new();
        for network in networks {
            match canonical(network) {
                IpNet::V4(net) => v4.push((net.network().to_bits(), net.broadcast().to_bits())),
                IpNet::V6(net) => v6.push((net.network().to_bits(), net.broadcast().to_bits())),
            }
        }
        Self {
            v4: Ranges::merge(v4),
            v6: Ranges::merge(v6),
        }
    }
}

/// "IPv4" if `networks` contain all IPv4 addresses, and "IPv6" if they contain all public IPv6 addresses.
pub(crate) fn families_covered(networks: impl Iterator<Item = IpNet>) -> Vec<&'static str> {
    let all_v4 = IpNet::from(Ipv4Net::default());
    // All public IPv6 addresses are in `2000::/3` (global unicast, RFC 4291, section 2.4).
    let public_v6 = Ipv6Net::new_assert([0x2000, 0, 0, 0, 0, 0, 0, 0].into(), 3).into();
    let merged = IpNet::aggregate(&networks.map(canonical).collect());
    [("IPv4", all_v4), ("IPv6", public_v6)]
        .into_iter()
        .filter(|(_, whole)| merged.iter().any(|network| network.contains(whole)))
        .map(|(family, _)| family)
        .collect()
}

fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(v6) = network else {
        return network;
    };
    let Some(prefix) = v6.prefix_len().checked_sub(MAPPED_PREFIX) else {
        return network;
    };
    match v6.addr().to_ipv4_mapped() {
        Some(address) => Ipv4Net::new(address, prefix)
            .expect("an IPv6 prefix exceeds 96 bits by at most 32")
            .into(),
        None => network,
    }
}

/// Disjoint, in ascending order. A range includes its first and its last address.
#[derive(Clone, Debug)]
struct Ranges<T>(Box<[(T, T)]>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<T: Copy + Ord> Ranges<T> {
    fn merge(mut ranges: Vec<(T, T)>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|next, previous| {
            let overlap = next.0 <= previous.1;
            if overlap {
                previous.1 = previous.1.max(next.1);
            }
            overlap
        });
        Self(ranges.into_boxed_slice())
    }

    fn contains(&self, value: T) -> bool {
        let following = self.0.partition_point(|&(first, _)| first <= value);
        following > 0 && value <= self.0[following - 1].1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn networks(list: &[&str]) -> Networks {
        list.iter()
            .map(|net| net.parse::<IpNet>().unwrap())
            .collect()
    }

    #[track_caller]
    fn check(networks: &Networks, address: &str, expected: bool) {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(networks.contains(address), expected, "{address}");
    }

    #[test]
    fn a_network_contains_its_first_and_last_address() {
        let set = networks(&["10.1.0.0/16", "2001:db8::/32"]);
        check(&set, "10.0.255.255", false);
        check(&set, "10.1.0.0", true);
        check(&set, "10.1.255.255", true);
        check(&set, "10.2.0.0", false);
        check(&set, "2001:db7:ffff::", false);
        check(&set, "2001:db8::", true);
        check(&set, "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", true);
        check(&set, "2001:db9::", false);
    }

    #[test]
    fn a_network_inside_another_does_not_reduce_it() {
        let set = networks(&["10.0.0.0/8", "10.0.0.0/24", "10.9.9.9/32"]);
        check(&set, "10.200.0.1", true);
    }

    #[test]
    fn host_bits_in_a_network_are_ignored() {
        check(&networks(&["10.1.2.3/8"]), "10.9.9.9", true);
    }

    #[test]
    fn a_mapped_network_is_an_ipv4_network() {
        let set = networks(&["::ffff:10.0.0.0/104", "::ffff:c000:201/128"]);
        check(&set, "10.255.0.1", true);
        check(&set, "192.0.2.1", true);
        check(&set, "192.0.2.2", false);
    }

    #[test]
    fn a_network_of_one_family_contains_no_address_of_the_other() {
        let set = networks(&["::/0"]);
        check(&set, "192.0.2.1", false);
        check(&set, "2001:db8::1", true);
        check(&networks(&["0.0.0.0/0"]), "2001:db8::1", false);
    }

    #[test]
    fn a_family_is_covered_by_one_network_or_by_several() {
        for (list, expected) in [
            (&["0.0.0.0/0"][..], &["IPv4"][..]),
            (&["0.0.0.0/1", "128.0.0.0/1"], &["IPv4"]),
            (&["128.0.0.0/1", "0.0.0.0/2", "64.0.0.0/2"], &["IPv4"]),
            (&["0.0.0.0/1", "128.0.0.0/2", "10.0.0.0/8"], &[]),
            (&["::ffff:0:0/96"], &["IPv4"]),
            (&["::/0"], &["IPv6"]),
            (&["8000::/1", "::/1"], &["IPv6"]),
            (&["2000::/3"], &["IPv6"]),
            (&["2000::/4"], &[]),
            (&["::/0", "0.0.0.0/0"], &["IPv4", "IPv6"]),
            (&[], &[]),
        ] {
            let networks = list.iter().map(|network| network.parse().unwrap());
            assert_eq!(families_covered(networks), expected, "{list:?}");
        }
    }

    #[test]
    fn the_empty_set_contains_no_address() {
        check(&Networks::default(), "127.0.0.1", false);
    }

    proptest! {
        #[test]
        fn a_lookup_equals_a_search_of_all_networks(
            list in prop::collection::vec((any::<[u8; 4]>(), 0_u8..=32), 0..200),
            near in prop::collection::vec((any::<prop::sample::Index>(), -2_i64..=2), 1..50),
        ) {
            let list: Vec<IpNet> = list
                .into_iter()
                .map(|(address, prefix)| Ipv4Net::new(address.into(), prefix).unwrap().into())
                .collect();
            let set: Networks = list.iter().copied().collect();
            for (index, offset) in near {
                let edge = list.get(index.index(list.len().max(1))).map_or(0, |net| match net {
                    IpNet::V4(net) => net.broadcast().to_bits(),
                    IpNet::V6(_) => unreachable!("only IPv4 is generated"),
                });
                let address = IpAddr::from(u32::try_from((i64::from(edge) + offset).rem_euclid(1 << 32))
                    .unwrap()
                    .to_be_bytes());
                prop_assert_eq!(set.contains(address), list.iter().any(|net| net.contains(&address)));
            }
        }
    }
}
