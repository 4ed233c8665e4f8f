use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const PROXY: &str = "10.0.0.1";

fn nets(list: &[&str]) -> Vec<IpNet> {
    list.iter().map(|net| net.parse().unwrap()).collect()
}

fn trusting(list: &[&str]) -> Trust {
    Trust::new(nets(list), Vec::new(), 64)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn forwarded(lines: &[&str]) -> HeaderMap {
    lines
        .iter()
        .map(|line| (X_FORWARDED_FOR, HeaderValue::from_str(line).unwrap()))
        .collect()
}

/// Returns the caller that the gateway determines for a request with these `X-Forwarded-For` lines from a trusted
/// proxy.
fn behind_proxy(lines: &[&str]) -> Caller {
    trusting(&["10.0.0.0/8"])
        .identify(ip(PROXY), &forwarded(lines))
        .unwrap()
}

#[test]
fn an_untrusted_peer_is_the_client_regardless_of_its_header() {
    let caller = trusting(&["10.0.0.0/8"])
        .identify(ip("203.0.113.9"), &forwarded(&["198.51.100.1"]))
        .unwrap();
    assert_eq!(caller.address(), ip("203.0.113.9"));
    assert_eq!(caller.forwarded_for(), "203.0.113.9");
    assert!(!caller.peer_trusted());
}

#[test]
fn by_default_no_peer_is_trusted() {
    let caller = Trust::default()
        .identify(ip("127.0.0.1"), &forwarded(&["198.51.100.1"]))
        .unwrap();
    assert_eq!(caller.address(), ip("127.0.0.1"));
}

#[test]
fn a_trusted_peer_without_hops_in_its_header_is_the_client() {
    for lines in [&[][..], &[""], &[" , ,"]] {
        let caller = behind_proxy(lines);
        assert_eq!(caller.address(), ip(PROXY));
        assert_eq!(caller.forwarded_for(), PROXY);
        assert!(caller.peer_trusted());
    }
}

#[test]
fn the_first_untrusted_address_from_the_right_is_the_client() {
    let caller = behind_proxy(&["198.51.100.66, 203.0.113.9, 10.0.0.7"]);
    assert_eq!(caller.address(), ip("203.0.113.9"));
}

#[test]
fn only_trusted_hops_are_forwarded_upstream() {
    let caller = behind_proxy(&["198.51.100.66, 203.0.113.9, 10.0.0.7"]);
    assert_eq!(caller.forwarded_for(), "203.0.113.9, 10.0.0.7, 10.0.0.1");
    let chain: Vec<_> = caller.chain().collect();
    assert_eq!(chain, [ip("203.0.113.9"), ip("10.0.0.7"), ip(PROXY)]);
}

#[test]
fn if_all_hops_are_trusted_the_leftmost_is_the_client() {
    assert_eq!(
        behind_proxy(&["10.0.0.9, 10.0.0.8"]).address(),
        ip("10.0.0.9")
    );
}

#[test]
fn several_lines_are_joined_in_order() {
    let caller = behind_proxy(&["198.51.100.66", "203.0.113.9,10.0.0.8", "10.0.0.7"]);
    assert_eq!(
        caller.forwarded_for(),
        "203.0.113.9, 10.0.0.8, 10.0.0.7, 10.0.0.1"
    );
}

#[test]
fn an_invalid_hop_makes_the_last_valid_hop_the_client() {
    for invalid in [
        "unknown",
        "_hidden",
        "fe80::1%eth0",
        "!",
        "10.0.0.300",
        "\"",
    ] {
        let caller = behind_proxy(&[&format!("203.0.113.9, {invalid}, 10.0.0.7")]);
        assert_eq!(caller.address(), ip("10.0.0.7"), "{invalid}");
        assert_eq!(caller.forwarded_for(), "10.0.0.7, 10.0.0.1", "{invalid}");
        assert_eq!(behind_proxy(&[invalid]).address(), ip(PROXY), "{invalid}");
    }
}

#[test]
fn an_invalid_hop_left_of_the_client_has_no_effect() {
    let caller = behind_proxy(&["<script>, unknown, 203.0.113.9"]);
    assert_eq!(caller.forwarded_for(), "203.0.113.9, 10.0.0.1");
}

#[test]
fn ports_brackets_and_empty_elements_are_ignored() {
    assert_eq!(
        behind_proxy(&["203.0.113.9:5, ,\t10.0.0.7:80 ,"]).address(),
        ip("203.0.113.9")
    );
    assert_eq!(
        behind_proxy(&["[2001:db8::9]:443"]).address(),
        ip("2001:db8::9")
    );
}

#[test]
fn an_ipv4_address_is_one_client_in_every_spelling() {
    let ids: HashSet<_> = ["::ffff:1.2.3.4", "::ffff:102:304", "1.2.3.4"]
        .map(|spelling| behind_proxy(&[spelling]).id())
        .into();
    assert_eq!(ids, HashSet::from([ClientId::of(ip("1.2.3.4"), 64)]));
}

#[test]
fn a_mapped_peer_is_its_ipv4_address() {
    let caller = trusting(&["10.0.0.0/8"])
        .identify(ip("::ffff:10.0.0.1"), &forwarded(&["203.0.113.9"]))
        .unwrap();
    assert_eq!(caller.forwarded_for(), "203.0.113.9, 10.0.0.1");
}

#[test]
fn a_mapped_network_trusts_ipv4_peers() {
    let caller = trusting(&["::ffff:10.0.0.0/104"])
        .identify(ip(PROXY), &forwarded(&["203.0.113.9"]))
        .unwrap();
    assert_eq!(caller.address(), ip("203.0.113.9"));
}

#[test]
fn all_addresses_of_an_ipv6_network_are_one_client() {
    let first = behind_proxy(&["2001:db8:1:2::1"]);
    let second = behind_proxy(&["2001:db8:1:2:ffff:ffff:ffff:ffff"]);
    let neighbour = behind_proxy(&["2001:db8:1:3::1"]);
    assert_eq!(first.id(), second.id());
    assert_ne!(first.id(), neighbour.id());
    assert_eq!(first.id().to_string(), "2001:db8:1:2::");
    assert_eq!(second.address(), ip("2001:db8:1:2:ffff:ffff:ffff:ffff"));
}

#[test]
fn a_client_id_is_masked_to_the_ipv6_prefix() {
    let address = ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    assert_eq!(ClientId::of(address, 0).ip(), ip("::"));
    assert_eq!(ClientId::of(address, 1).ip(), ip("8000::"));
    assert_eq!(ClientId::of(address, 128).ip(), address);
    assert_eq!(ClientId::of(address, u8::MAX).ip(), address);
    assert_eq!(ClientId::of(ip("192.0.2.1"), 0).ip(), ip("192.0.2.1"));
}

#[test]
fn exemption_is_decided_by_the_full_address() {
    let trust = Trust::new(nets(&["10.0.0.0/8"]), nets(&["2001:db8::7/128"]), 64);
    let exempt = |client| {
        trust
            .identify(ip(PROXY), &forwarded(&[client]))
            .unwrap()
            .exempt()
    };
    assert!(exempt("2001:db8::7"));
    assert!(!exempt("2001:db8::8"));
}

#[test]
fn a_trusted_proxy_is_not_exempt() {
    assert!(!behind_proxy(&[]).exempt());
}

#[test]
fn more_than_256_hops_are_rejected_wherever_the_client_is() {
    let trust = trusting(&["10.0.0.0/8"]);
    let hops = |count: usize| forwarded(&[&vec!["10.0.0.7"; count].join(",")]);
    assert_eq!(
        trust
            .identify(ip(PROXY), &hops(MAX_HOPS))
            .unwrap()
            .chain()
            .len(),
        MAX_HOPS + 1
    );
    assert_eq!(
        trust.identify(ip(PROXY), &hops(MAX_HOPS + 1)).unwrap_err(),
        TooManyHops
    );
    assert_eq!(
        trust.identify(ip(PROXY), &hops(10_000)).unwrap_err(),
        TooManyHops
    );

    let lines = vec!["198.51.100.1"; MAX_HOPS + 1];
    assert_eq!(
        trust.identify(ip(PROXY), &forwarded(&lines)).unwrap_err(),
        TooManyHops
    );
}

#[test]
fn the_hops_of_an_untrusted_peer_are_not_limited() {
    let header = forwarded(&[&vec!["invalid"; 10_000].join(",")]);
    let caller = trusting(&["10.0.0.0/8"])
        .identify(ip("203.0.113.9"), &header)
        .unwrap();
    assert_eq!(caller.forwarded_for(), "203.0.113.9");
    assert!(!caller.hops.spilled());
}

#[test]
fn a_header_spelled_with_underscores_is_another_header() {
    let mut headers = HeaderMap::new();
    headers.insert("x_forwarded_for", HeaderValue::from_static("198.51.100.1"));
    let caller = trusting(&["10.0.0.0/8"])
        .identify(ip(PROXY), &headers)
        .unwrap();
    assert_eq!(caller.address(), ip(PROXY));
}

/// Generates addresses that are often in [`some_networks`]. No address is an IPv4-mapped IPv6 address.
fn some_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0_u8..4, any::<u8>()).prop_map(|(net, host)| IpAddr::from([10, net, 0, host])),
        any::<[u8; 4]>().prop_map(IpAddr::from),
        (0_u16..4, any::<u16>())
            .prop_map(|(net, host)| IpAddr::from([0x2001, 0xdb8, net, 0, 0, 0, 0, host])),
    ]
}

fn some_networks() -> impl Strategy<Value = Vec<IpNet>> {
    prop::collection::vec(
        (some_address(), 0_u8..=16).prop_map(|(address, host_bits)| {
            let width = if address.is_ipv4() { 32 } else { 128 };
            IpNet::new(address, width - host_bits).unwrap()
        }),
        0..8,
    )
}

proptest! {
    /// The crate `real_ip` supports only headers with a single line and without IPv4-mapped addresses, so the test
    /// generates only such headers. The gateway and `real_ip` must find the same client for them.
    #[test]
    fn the_client_of_a_plain_chain_is_the_one_that_real_ip_finds(
        networks in some_networks(),
        peer in some_address(),
        hops in prop::collection::vec((some_address(), any::<bool>()), 0..12),
    ) {
        let mut line = String::new();
        let mut lines = Vec::new();
        for (hop, breaks) in &hops {
            line.push_str(&hop.to_string());
            if *breaks {
                lines.push(std::mem::take(&mut line));
            } else {
                line.push_str(", ");
            }
        }
        lines.push(line);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let joined: Vec<String> = hops.iter().map(|(hop, _)| hop.to_string()).collect();
        let oracle_headers = if joined.is_empty() { HeaderMap::new() } else { forwarded(&[&joined.join(", ")]) };

        let caller = Trust::new(networks.clone(), Vec::new(), 64)
            .identify(peer, &forwarded(&lines))
            .unwrap();
        prop_assert_eq!(Some(caller.address()), real_ip::real_ip(&oracle_headers, peer, &networks));
        prop_assert_eq!(caller.chain().next(), Some(caller.address()));
        prop_assert_eq!(caller.chain().next_back(), Some(peer));
    }

    #[test]
    fn arbitrary_header_bytes_never_panic_and_the_chain_parses_again(
        lines in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(prop_oneof![Just(b'\t'), 0x20_u8..=0x7e, 0x80_u8..=0xff], 0..80),
                "[0-9a-f.:,\\[\\]% ]{0,60}".prop_map(String::into_bytes),
            ],
            0..6,
        ),
    ) {
        let headers: HeaderMap = lines
            .iter()
            .map(|line| (X_FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap()))
            .collect();
        if let Ok(caller) = trusting(&["0.0.0.0/0", "::/0"]).identify(ip(PROXY), &headers) {
            let again = forwarded(&[caller.forwarded_for().to_str().unwrap()]);
            let chain: Vec<_> = again.get(X_FORWARDED_FOR).unwrap().to_str().unwrap().split(", ").map(ip).collect();
            prop_assert_eq!(chain, caller.chain().collect::<Vec<_>>());
        }
    }
}

#[test]
fn connections_are_counted_by_the_client_and_not_for_trusted_proxies() {
    let trust = Trust::new(vec!["198.51.100.0/24".parse().unwrap()], Vec::new(), 64);
    let counted = |peer: &str| trust.connection_owner(peer.parse().unwrap());
    for (peer, client) in [
        ("192.0.2.1", Some("192.0.2.1")),
        ("::ffff:192.0.2.1", Some("192.0.2.1")),
        ("2001:db8:0:1::2", Some("2001:db8:0:1::")),
        ("198.51.100.1", None),
    ] {
        assert_eq!(
            counted(peer),
            client.map(|client| client.parse().unwrap()),
            "{peer}"
        );
    }
}
