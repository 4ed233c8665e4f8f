//! Can all listeners be bound at once?
//!
//! IPv4 and IPv6 are kept apart, also for their wildcards: `0.0.0.0` and `[::]` on one port are the
//! usual way to listen on both.

use std::net::SocketAddr;

use super::super::file::File;
use super::super::problem::Findings;
use super::super::source::Span;

/// Reports listeners that cannot be bound beside an earlier one.
pub(super) fn check(file: &File, findings: &mut Findings) {
    let mut listeners: Vec<(SocketAddr, &Span)> = Vec::new();
    for listen in file.server.listen.iter().flat_map(|listen| &listen.0) {
        listeners.push((listen.value.0, &listen.span));
    }
    if let Some(listen) = &file.admin.listen {
        listeners.push((listen.value.0, &listen.span));
    }
    for (at, (address, span)) in listeners.iter().enumerate() {
        let earlier = listeners[..at]
            .iter()
            .find(|(earlier, _)| collide(*earlier, *address));
        if let Some((taken, earlier)) = earlier {
            findings
                .error(
                    span,
                    format!("`{address}` collides with `{taken}`"),
                    "give each listener a port or an address of its own",
                )
                .note(earlier, "taken here");
        }
    }
}

/// Whether binding one keeps the other from being bound. A port of 0 is any free one.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let same_address = a.ip() == b.ip();
    let one_is_all = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port()
        && a.port() != 0
        && a.is_ipv4() == b.is_ipv4()
        && (same_address || one_is_all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_takes_the_port_of_every_address_of_its_family() {
        let collide = |a: &str, b: &str| {
            let address = |text: &str| text.parse().expect("an address");
            collide(address(a), address(b))
        };
        assert!(collide("127.0.0.1:80", "127.0.0.1:80"));
        assert!(collide("0.0.0.0:80", "127.0.0.1:80"));
        assert!(collide("[::1]:80", "[::]:80"));
        assert!(!collide("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!collide("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!collide("127.0.0.1:0", "127.0.0.1:0"));
        assert!(!collide("0.0.0.0:80", "[::]:80"));
    }
}
