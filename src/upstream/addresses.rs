//! IP addresses of a server that is given by name. All workers share them.
//!
//! One task per server resolves the name every [`REFRESH`], because `getaddrinfo` reports no TTL. A request waits for a
//! lookup in two cases only: no lookup has succeeded yet, or no known address accepts a connection. Requests share such
//! lookups, at most one per [`SPACING`], because no circuit opens for a sole server that refuses connections. If a
//! lookup fails, the last known addresses stay in use.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::uri::Authority;
use parking_lot::Mutex;
use tokio::net::lookup_host;
use tokio::time::Instant;

use super::Server;
use crate::metrics::Count;

/// Counts from the end of a lookup.
const REFRESH: Duration = Duration::from_secs(5);

/// Between two lookups that requests wait for.
const SPACING: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Addresses {
    name: Authority,
    /// Without brackets.
    host: String,
    port: u16,
    known: Mutex<Known>,
    /// When a request last started or ended a lookup. Locked during the lookup.
    looked_up: tokio::sync::Mutex<Option<Instant>>,
    /// Number of changes of the known addresses. A request whose connection was checked in this version takes no lock.
    version: AtomicU64,
    failures: Count,
}

#[derive(Debug, Default)]
struct Known {
    /// In the order of the resolver. Empty before the first successful lookup.
    addresses: Arc<[SocketAddr]>,
    is_failing: bool,
}

impl Addresses {
    pub(crate) fn of(server: &Server) -> Self {
        let name = server.authority.clone();
        let host = name.host().trim_matches(['[', ']']).to_owned();
        let default_port = if server.tls { 443 } else { 80 };
        let port = name.port_u16().unwrap_or(default_port);
        let literal = host.parse().ok();
        let literal = literal.map(|address: IpAddr| SocketAddr::new(address, port));
        let known = Known {
            addresses: literal.into_iter().collect(),
            is_failing: false,
        };
        Self {
            name,
            host,
            port,
            known: Mutex::new(known),
            looked_up: tokio::sync::Mutex::default(),
            version: AtomicU64::new(0),
            failures: Count::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.get()
    }

    pub(super) async fn get(&self) -> io::Result<Arc<[SocketAddr]>> {
        let known = Arc::clone(&self.known.lock().addresses);
        if known.is_empty() {
            self.resolve().await
        } else {
            Ok(known)
        }
    }

    pub(super) async fn get_new(&self, tried: &[SocketAddr]) -> Option<Arc<[SocketAddr]>> {
        if self.is_literal() {
            return None;
        }
        let found = self.resolve().await.ok()?;
        (!is_same_set(&found, tried)).then_some(found)
    }

    /// Returns only if the server is given by IP address.
    pub(crate) async fn refresh(self: Arc<Self>) {
        if !self.is_literal() {
            self.refresh_with(|| self.lookup()).await;
        }
    }

    async fn refresh_with<F>(&self, lookup: impl Fn() -> F)
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>>,
    {
        loop {
            // The error is logged in `update`.
            let _failed = self.update(lookup().await);
            tokio::time::sleep(REFRESH).await;
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// `checked` is the version in which `address` was last one of the known addresses, and is updated.
    pub(super) fn is_current(&self, address: IpAddr, checked: &mut u64) -> bool {
        let version = self.version();
        if *checked == version {
            return true;
        }
        *checked = version;
        let known = self.known.lock();
        known.addresses.iter().any(|known| known.ip() == address)
    }

    fn is_literal(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }

    async fn resolve(&self) -> io::Result<Arc<[SocketAddr]>> {
        self.resolve_with(|| self.lookup()).await
    }

    async fn resolve_with<F>(&self, lookup: impl Fn() -> F) -> io::Result<Arc<[SocketAddr]>>
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>>,
    {
        let mut looked_up = self.looked_up.lock().await;
        if looked_up.is_some_and(|time| time.elapsed() < SPACING) {
            let known = Arc::clone(&self.known.lock().addresses);
            return match known[..] {
                [] => Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "last lookup of the host name failed",
                )),
                _ => Ok(known),
            };
        }
        // The start is also recorded, because the request, and with it the lookup, can be dropped.
        *looked_up = Some(Instant::now());
        let found = self.update(lookup().await);
        *looked_up = Some(Instant::now());
        found
    }

    async fn lookup(&self) -> io::Result<Vec<SocketAddr>> {
        Ok(lookup_host((&*self.host, self.port)).await?.collect())
    }

    pub(super) fn update(
        &self,
        found: io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Arc<[SocketAddr]>> {
        let found = found.and_then(|found| match found[..] {
            [] => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "host name resolves to no IP address",
            )),
            _ => Ok(found),
        });
        let server = self.name();
        let mut known = self.known.lock();
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.failures.inc();
                if !std::mem::replace(&mut known.is_failing, true) {
                    tracing::warn!(
                        server,
                        %error,
                        known = ?known.addresses,
                        "cannot resolve upstream server, known addresses stay in use"
                    );
                }
                return Err(error);
            }
        };
        if std::mem::replace(&mut known.is_failing, false) {
            tracing::info!(server, "upstream server resolved again");
        }
        if !is_same_set(&found, &known.addresses) {
            if !known.addresses.is_empty() {
                tracing::info!(server, addresses = ?found, "addresses of upstream server changed");
            }
            self.version.fetch_add(1, Ordering::Release);
        }
        known.addresses = found.into();
        Ok(Arc::clone(&known.addresses))
    }
}

/// The order differs from lookup to lookup.
fn is_same_set(one: &[SocketAddr], other: &[SocketAddr]) -> bool {
    let contains_all = |one: &[SocketAddr], other: &[SocketAddr]| {
        other.iter().all(|address| one.contains(address))
    };
    contains_all(one, other) && contains_all(other, one)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn addresses_of(authority: &'static str) -> Addresses {
        Addresses::of(&Server {
            tls: false,
            authority: Authority::from_static(authority),
            weight: NonZeroU32::MIN,
        })
    }

    fn parse(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn failed() -> io::Result<Vec<SocketAddr>> {
        Err(io::Error::other("no such host"))
    }

    #[tokio::test]
    async fn an_ip_address_needs_no_lookup() {
        for (authority, expected) in [
            ("10.0.0.1", "10.0.0.1:80"),
            ("10.0.0.1:8080", "10.0.0.1:8080"),
            ("[::1]:8080", "[::1]:8080"),
        ] {
            let addresses = addresses_of(authority);
            let known = addresses.get().await.unwrap();
            assert_eq!(&known[..], parse(&[expected]));
            assert_eq!(addresses.get_new(&known).await, None);
        }
    }

    #[tokio::test]
    async fn failed_and_empty_lookups_keep_the_last_known_addresses() {
        let addresses = addresses_of("api.test:80");
        addresses.update(Ok(parse(&["10.0.0.1:80"]))).unwrap();
        let mut checked = addresses.version();
        for failure in [failed(), Ok(parse(&[]))] {
            addresses.update(failure).unwrap_err();
        }
        assert_eq!(&addresses.get().await.unwrap()[..], parse(&["10.0.0.1:80"]));
        assert!(addresses.is_current([10, 0, 0, 1].into(), &mut checked));
        assert_eq!(addresses.failures(), 2);
    }

    #[test]
    fn an_address_is_current_until_a_lookup_no_longer_returns_it() {
        let addresses = addresses_of("api.test:80");
        addresses
            .update(Ok(parse(&["10.0.0.1:80", "10.0.0.2:80"])))
            .unwrap();
        let (mut one, mut two) = (addresses.version(), addresses.version());
        let before = addresses.version();
        addresses
            .update(Ok(parse(&["10.0.0.2:80", "10.0.0.1:80"])))
            .unwrap();
        assert_eq!(addresses.version(), before, "only the order differs");
        addresses
            .update(Ok(parse(&["10.0.0.3:80", "10.0.0.2:80"])))
            .unwrap();
        assert!(!addresses.is_current([10, 0, 0, 1].into(), &mut one));
        assert!(addresses.is_current([10, 0, 0, 2].into(), &mut two));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_a_lookup_and_start_at_most_one_per_100_ms() {
        let addresses = addresses_of("api.test:80");
        let lookups = AtomicUsize::new(0);
        let resolve = || {
            addresses.resolve_with(|| async {
                tokio::time::sleep(Duration::from_millis(30)).await;
                match lookups.fetch_add(1, Ordering::Relaxed) {
                    0 => failed(),
                    _ => Ok(parse(&["10.0.0.1:80"])),
                }
            })
        };
        let together = futures_util::future::join_all((0..100).map(|_| resolve())).await;
        assert!(together.iter().all(Result::is_err));
        tokio::time::advance(Duration::from_millis(99)).await;
        resolve().await.unwrap_err();
        assert_eq!(lookups.load(Ordering::Relaxed), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(resolve().await.unwrap()[..], parse(&["10.0.0.1:80"]));
        assert_eq!(resolve().await.unwrap().len(), 1);
        assert_eq!(lookups.load(Ordering::Relaxed), 2);
        // A dropped lookup counts as well.
        tokio::time::advance(SPACING).await;
        let dropped = tokio::time::timeout(Duration::from_millis(10), resolve()).await;
        assert!(dropped.is_err());
        resolve().await.unwrap();
        assert_eq!(lookups.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_name_is_resolved_every_five_seconds_also_after_failures() {
        let addresses = addresses_of("api.test:80");
        let lookups = AtomicUsize::new(0);
        let refreshing = addresses.refresh_with(|| {
            std::future::ready(match lookups.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => failed(),
                _ => Ok(parse(&["10.0.0.1:80"])),
            })
        });
        let ended = tokio::time::timeout(Duration::from_secs(29), refreshing).await;
        assert!(ended.is_err());
        assert_eq!(lookups.into_inner(), 6);
        assert_eq!(addresses.failures(), 2);
        assert_eq!(addresses.get().await.unwrap().len(), 1);
    }
}
