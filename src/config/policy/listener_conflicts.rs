//! Checks that the addresses of all listeners can be bound at the same time.
//!
//! IPv4 and IPv6 addresses never conflict: even `0.0.0.0` and `[::]` can be bound on the same port.

use std::net::SocketAddr;

use super::super::file::File;
use super::super::problem::Findings;
use super::super::source::{NOT_CONFIGURED, Span};

pub(super) fn check(file: &File, findings: &mut Findings) {
    let mut listeners: Vec<(SocketAddr, &Span)> = Vec::new();
    for listen in &file.server.listen.0 {
        listeners.push((listen.value.0, &listen.span));
    }
    if let Some(listen) = &file.admin.listen {
        listeners.push((listen.value.0, &listen.span));
    }
    for (at, (address, span)) in listeners.iter().enumerate() {
        let earlier = listeners[..at]
            .iter()
            .find(|(earlier, _)| conflict(*earlier, *address));
        if let Some((taken, earlier)) = earlier {
            // The default address has no effect if an invalid address was removed.
            if **earlier == NOT_CONFIGURED && findings.was_removed("server.listen") {
                continue;
            }
            let problem = findings.error(
                span,
                format!("two listeners cannot use the same address: `{address}` conflicts with `{taken}`"),
                "use a different port or address for each listener",
            );
            if **earlier != NOT_CONFIGURED {
                problem.note(earlier, "the other listener");
            }
        }
    }
}

/// Port 0 never conflicts, because the system chooses a free port.
fn conflict(a: SocketAddr, b: SocketAddr) -> bool {
    let same_address = a.ip() == b.ip();
    let has_wildcard = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port()
        && a.port() != 0
        && a.is_ipv4() == b.is_ipv4()
        && (same_address || has_wildcard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_conflicts_with_every_address_of_its_family_on_the_same_port() {
        let conflict = |a: &str, b: &str| {
            let address = |text: &str| text.parse().expect("an address");
            conflict(address(a), address(b))
        };
        assert!(conflict("127.0.0.1:80", "127.0.0.1:80"));
        assert!(conflict("0.0.0.0:80", "127.0.0.1:80"));
        assert!(conflict("[::1]:80", "[::]:80"));
        assert!(!conflict("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!conflict("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!conflict("127.0.0.1:0", "127.0.0.1:0"));
        assert!(!conflict("0.0.0.0:80", "[::]:80"));
    }
}
