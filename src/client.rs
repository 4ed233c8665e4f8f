//! Identifies the client of a request.
//!
//! This stage runs before any header is removed. The client is the TCP peer, unless the peer is a trusted proxy. Then
//! the gateway reads `X-Forwarded-For` from right to left, because trusted proxies append on the right. The first
//! untrusted address is the client. Addresses further left come from that client or from unknown proxies, so they are
//! neither trusted nor forwarded.
//!
//! An entry that is not an address ends the search, and the last valid hop is the client. The alternatives are unsafe:
//! if the whole header were ignored, a client could use the bucket of the proxy by sending an invalid entry. If the
//! entry were skipped, a client could choose its address. Buckets are counted by [`ClientId`]. An IPv6 client is
//! identified by its network, because one subscriber has 2⁶⁴ addresses. Exemption is decided by the full address.
//!
//! `Forwarded` and `X-Real-IP` are not read: a client could send one that contradicts `X-Forwarded-For`.

mod forwarded_address;
mod networks;

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr};

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use smallvec::{SmallVec, smallvec};
use thiserror::Error;

use networks::Networks;
pub(crate) use networks::families_covered;

/// Limit of the hops in `X-Forwarded-For` from a trusted peer.
pub(crate) const MAX_HOPS: usize = 256;

/// Addresses of the client and of the proxies that a request passed.
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Section `[client]` of the configuration: trusted proxies, exempt clients, IPv6 prefix.
///
/// By default no proxy is trusted, no client is exempt, and an IPv6 client is its /64.
#[derive(Clone, Debug)]
pub struct Trust {
    trusted: Networks,
    exempt: Networks,
    ipv6_prefix: u8,
}

impl Default for Trust {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new(), 64)
    }
}

impl Trust {
    /// Creates settings that trust `X-Forwarded-For` from `trusted` peers, never throttle `exempt` clients, and
    /// identify an IPv6 client by its first `ipv6_prefix` bits.
    pub fn new(trusted: Vec<IpNet>, exempt: Vec<IpNet>, ipv6_prefix: u8) -> Self {
        Self {
            trusted: trusted.into_iter().collect(),
            exempt: exempt.into_iter().collect(),
            ipv6_prefix,
        }
    }

    /// Returns the caller of a request that arrived from `peer`.
    ///
    /// `X-Forwarded-For` is read only if the peer is trusted. It may have at most 256 hops.
    pub fn identify(&self, peer: IpAddr, headers: &HeaderMap) -> Result<Caller, TooManyHops> {
        let peer = peer.to_canonical();
        let peer_trusted = self.trusted.contains(peer);
        let mut address = peer;
        let mut hops: Hops = smallvec![peer];
        if peer_trusted {
            if elements_from_the_right(headers).nth(MAX_HOPS).is_some() {
                return Err(TooManyHops);
            }
            for hop in elements_from_the_right(headers).map_while(forwarded_address::parse) {
                address = hop;
                hops.push(hop);
                if !self.trusted.contains(hop) {
                    break;
                }
            }
        }
        Ok(Caller {
            id: ClientId::of(address, self.ipv6_prefix),
            address,
            exempt: self.exempt.contains(address),
            peer_trusted,
            hops,
        })
    }
}

/// Returns the elements of all `X-Forwarded-For` lines, last first, trimmed. Empty elements are skipped.
fn elements_from_the_right(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(X_FORWARDED_FOR)
        .into_iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// `X-Forwarded-For` from a trusted peer has more than 256 hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("x-forwarded-for has more than {MAX_HOPS} hops")]
pub struct TooManyHops;

/// List of hops. Up to four addresses need no heap allocation.
type Hops = SmallVec<[IpAddr; 4]>;

/// The client of a request, and the proxies that the request passed.
#[derive(Clone, Debug)]
pub struct Caller {
    id: ClientId,
    address: IpAddr,
    exempt: bool,
    peer_trusted: bool,
    /// The peer, the trusted proxies, and the client, in this order.
    hops: Hops,
}

impl Caller {
    /// Returns the identity that the client's buckets are counted by.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Returns the full address of the client.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the client is never throttled.
    pub fn exempt(&self) -> bool {
        self.exempt
    }

    /// Whether the peer is a trusted proxy.
    pub fn peer_trusted(&self) -> bool {
        self.peer_trusted
    }

    /// Returns the client, the trusted proxies, and the peer, in this order.
    ///
    /// If the peer is the client, it is the only element.
    pub fn chain(&self) -> impl DoubleEndedIterator<Item = IpAddr> + ExactSizeIterator {
        self.hops.iter().rev().copied()
    }

    /// Returns the [chain](Self::chain) as the value of `X-Forwarded-For` for upstream.
    pub fn forwarded_for(&self) -> HeaderValue {
        let mut line = HeaderLineBuffer::default();
        for (index, hop) in self.chain().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(line, "{separator}{hop}").expect("writing to memory does not fail");
        }
        HeaderValue::from_bytes(&line.0).expect("addresses are visible ASCII")
    }
}

/// Buffer for a header value. It is on the stack up to 128 bytes.
#[derive(Default)]
struct HeaderLineBuffer(SmallVec<[u8; 128]>);

impl fmt::Write for HeaderLineBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Identity of a client for buckets: an IPv4 address, or the network of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(IpAddr);

impl ClientId {
    /// Returns the identity of the client at `address`, where an IPv6 network has `ipv6_prefix` bits.
    pub fn of(address: IpAddr, ipv6_prefix: u8) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let host_bits = 128_u32.saturating_sub(u32::from(ipv6_prefix));
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }

    /// Returns the IPv4 address, or the first address of the IPv6 network.
    pub fn ip(self) -> IpAddr {
        self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests;
