//! Detects a proxy that is missing in `trusted_proxies`. Without this entry, all clients of the proxy count as one.
//!
//! A client that is no proxy sends no `X-Forwarded-For`, or always the same. So a peer that is not trusted and sends many
//! different values is reported, once per process.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::SystemTime;

use http::HeaderMap;
use parking_lot::Mutex;

use super::{Caller, X_FORWARDED_FOR};

/// Reading a header takes time, so only one of this many requests of peers that are not trusted is observed.
pub(crate) const INTERVAL: u64 = 16;

/// From so many different values of `X-Forwarded-For`, a peer is reported.
const MANY: usize = 4;

const MAX_PEERS: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct UnlistedProxy {
    /// Each with hashes of its values of the header.
    seen: Mutex<Vec<(IpAddr, HashSet<u64>)>>,
    found: OnceLock<(IpAddr, SystemTime)>,
}

impl UnlistedProxy {
    pub(crate) fn found(&self) -> Option<(IpAddr, SystemTime)> {
        self.found.get().copied()
    }

    /// The peer of the request is not trusted.
    pub(crate) fn observe(&self, caller: &Caller, headers: &HeaderMap) {
        let Some(value) = headers.get(X_FORWARDED_FOR) else {
            return;
        };
        if self.found.get().is_some() {
            return;
        }
        let mut hasher = DefaultHasher::new();
        value.as_bytes().hash(&mut hasher);
        let peer = caller.address();
        let mut seen = self.seen.lock();
        let index = seen.iter().position(|(known, _)| *known == peer);
        let index = index.unwrap_or_else(|| {
            if seen.len() == MAX_PEERS {
                seen.clear();
            }
            seen.push((peer, HashSet::new()));
            seen.len() - 1
        });
        let values = &mut seen[index].1;
        values.insert(hasher.finish());
        if values.len() < MANY {
            return;
        }
        seen.clear();
        if self.found.set((peer, SystemTime::now())).is_ok() {
            tracing::warn!(
                %peer,
                "peer sends many different X-Forwarded-For values but is not in `trusted_proxies` of [client], all its \
                 clients count as one"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::client::Trust;

    fn observe(proxy: &UnlistedProxy, peer: IpAddr, value: &str) {
        let mut headers = HeaderMap::new();
        headers.insert(X_FORWARDED_FOR, value.parse().unwrap());
        let caller = Trust::default().identify(peer, &headers).unwrap();
        proxy.observe(&caller, &headers);
    }

    #[test]
    fn a_peer_with_many_values_is_found_among_others_with_one() {
        let proxy = UnlistedProxy::default();
        let peer = |last: u8| IpAddr::from([192, 0, 2, last]);
        for round in 0..MANY {
            assert_eq!(proxy.found(), None);
            observe(&proxy, peer(1), &format!("198.51.100.{round}"));
            for other in 2..=10 {
                observe(&proxy, peer(other), "203.0.113.9");
            }
        }
        assert_eq!(proxy.found().unwrap().0, peer(1));
    }

    #[test]
    fn the_number_of_observed_peers_is_bounded() {
        let proxy = UnlistedProxy::default();
        for last in 0..=255 {
            observe(&proxy, IpAddr::from([192, 0, 2, last]), "203.0.113.9");
            assert!(proxy.seen.lock().len() <= MAX_PEERS);
        }
        assert_eq!(proxy.found(), None);
    }
}
