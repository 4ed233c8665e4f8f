//! Parser of one element of `X-Forwarded-For`: an address, optionally with brackets and a port.
//!
//! `X-Forwarded-For` has no standard, so the parser accepts only the forms that proxies write. It rejects `unknown`,
//! `_hidden`, host names, quotes and IPv6 zone ids. A zone id names a network interface of the machine that wrote the
//! header. If it were ignored, two clients with the same address would be one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `element` must have no surrounding white space. An IPv4-mapped IPv6 address becomes IPv4.
pub(super) fn parse(element: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(element).ok()?;
    let address = match text.strip_prefix('[') {
        Some(bracketed) => parse_bracketed(bracketed)?,
        None => text.parse().ok().or_else(|| parse_with_port(text))?,
    };
    Some(address.to_canonical())
}

fn parse_bracketed(text: &str) -> Option<IpAddr> {
    let (host, after) = text.split_once(']')?;
    let port_is_fine = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
    let address: Ipv6Addr = host.parse().ok()?;
    port_is_fine.then_some(IpAddr::V6(address))
}

/// Only IPv4. An IPv6 address with a port needs brackets, because `::1:80` is an address without a port.
fn parse_with_port(text: &str) -> Option<IpAddr> {
    let (host, port) = text.split_once(':')?;
    let address: Ipv4Addr = host.parse().ok()?;
    is_port(port).then_some(IpAddr::V4(address))
}

fn is_port(text: &str) -> bool {
    // `parse` would also accept `+80`.
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn parses_as(element: &str, address: &str) {
        assert_eq!(parse(element.as_bytes()), Some(address.parse().unwrap()));
    }

    #[test]
    fn ports_and_brackets_are_stripped() {
        parses_as("192.0.2.1", "192.0.2.1");
        parses_as("192.0.2.1:8080", "192.0.2.1");
        parses_as("2001:db8::1", "2001:db8::1");
        parses_as("[2001:db8::1]", "2001:db8::1");
        parses_as("[2001:db8::1]:65535", "2001:db8::1");
    }

    #[test]
    fn an_ipv4_mapped_ipv6_address_parses_as_ipv4() {
        for spelling in [
            "::ffff:1.2.3.4",
            "::ffff:102:304",
            "::FFFF:0102:0304",
            "0:0:0:0:0:ffff:102:304",
            "[::ffff:1.2.3.4]",
            "[::ffff:102:304]:443",
        ] {
            parses_as(spelling, "1.2.3.4");
        }
    }

    #[test]
    fn an_element_that_is_not_an_address_does_not_parse() {
        for element in [
            "unknown",
            "_hidden",
            "localhost",
            "fe80::1%eth0",
            "[fe80::1%1]:80",
            "\"192.0.2.1\"",
            "192.0.2.1:",
            "192.0.2.1:+80",
            "192.0.2.1:65536",
            "192.0.2.1:80:80",
            "192.0.2.01",
            "192.0.2",
            "[192.0.2.1]",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]80",
            "[2001:db8::1]:",
            "[]",
            "[",
            ":80",
            "192.0.2.1 192.0.2.2",
        ] {
            assert_eq!(parse(element.as_bytes()), None, "{element}");
        }
        assert_eq!(parse(b"192.0.2.1\xff"), None);
    }
}
