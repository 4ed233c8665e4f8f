//! Determines the address of the client that sent a request.
//!
//! This stage runs before any header is removed. The client is the TCP peer, unless the peer is a trusted proxy. If the
//! peer is trusted, the gateway reads `X-Forwarded-For` from right to left, because proxies append on the right. The
//! first untrusted address is the client. Addresses further left come from that client or from unknown proxies, so they
//! are neither trusted nor forwarded.
//!
//! An element that is not an address ends the search. The client is then the address that was read just before that
//! element, or the TCP peer if there is none. The two alternatives are unsafe. If the gateway ignored the header, a
//! client that sends an invalid element would be treated as the proxy. If the gateway skipped the element, a client
//! could choose its address.
//!
//! Rate limits count requests by [`ClientId`]. An IPv6 client is identified by its network, because one subscriber has
//! 2⁶⁴ addresses. Whether a client is exempt from rate limits depends on its full address.
//!
//! `Forwarded` and `X-Real-IP` are not read, because a client could send a value that contradicts `X-Forwarded-For`.

mod forwarded_address;
mod networks;
pub(crate) mod unlisted_proxy;

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr};

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use smallvec::{SmallVec, smallvec};
use thiserror::Error;

use networks::Networks;
pub(crate) use networks::families_covered;

/// From a trusted peer. The gateway rejects a request with more addresses.
pub(crate) const MAX_HOPS: usize = 256;

/// The addresses of the client and of the proxies that the request passed, client first.
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Which peers may report the client address in `X-Forwarded-For`, which clients have no limits, and how many bits of
/// an IPv6 address identify a client: section `[client]` of the configuration, or `Embedded::trust` of the module
/// `embed`.
///
/// By default no proxy is trusted, no client is exempt from rate limits, and IPv6 clients are identified by their /64
/// network.
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
    /// Creates settings that trust `X-Forwarded-For` from `trusted` peers, never apply rate limits to `exempt` clients,
    /// and identify an IPv6 client by its first `ipv6_prefix` bits.
    pub fn new(trusted: Vec<IpNet>, exempt: Vec<IpNet>, ipv6_prefix: u8) -> Self {
        Self {
            trusted: trusted.into_iter().collect(),
            exempt: exempt.into_iter().collect(),
            ipv6_prefix,
        }
    }

    pub(crate) fn client_id(&self, address: IpAddr) -> ClientId {
        ClientId::of(address, self.ipv6_prefix)
    }

    /// The address by which `max_connections_per_client` counts the connections of a peer. `None` for a trusted proxy,
    /// whose connections belong to many clients.
    pub(crate) fn connection_owner(&self, peer: IpAddr) -> Option<IpAddr> {
        let is_proxy = self.trusted.contains(peer.to_canonical());
        (!is_proxy).then(|| self.client_id(peer).ip())
    }

    /// Determines the client of a request that arrived from `peer`, and the proxies that the request passed.
    ///
    /// `X-Forwarded-For` is read only if the peer is trusted. The header must have at most 256 addresses.
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

/// From right to left, without surrounding white space and empty elements.
fn elements_from_the_right(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(X_FORWARDED_FOR)
        .into_iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// Error: `X-Forwarded-For` from a trusted peer has more than 256 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the X-Forwarded-For header has more than {MAX_HOPS} addresses")]
pub struct TooManyHops;

type Hops = SmallVec<[IpAddr; 4]>;

/// The client of a request, and the proxies that the request passed.
#[derive(Clone, Debug)]
pub struct Caller {
    id: ClientId,
    address: IpAddr,
    exempt: bool,
    peer_trusted: bool,
    /// The TCP peer, the trusted proxies, and the client, in this order.
    hops: Hops,
}

impl Caller {
    /// Returns the identity by which rate limits count the requests of this client.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Returns the complete address of the client. An IPv6 address is not reduced to its network.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether rate limits do not apply to the client.
    pub fn exempt(&self) -> bool {
        self.exempt
    }

    /// Whether the TCP peer is a trusted proxy.
    pub fn peer_trusted(&self) -> bool {
        self.peer_trusted
    }

    /// Returns the addresses of the client, the trusted proxies, and the TCP peer, in this order.
    ///
    /// If the peer is the client, the list has only this one address.
    pub fn chain(&self) -> impl DoubleEndedIterator<Item = IpAddr> + ExactSizeIterator {
        self.hops.iter().rev().copied()
    }

    /// Formats the [chain](Self::chain) as the value of `X-Forwarded-For` in the request to the upstream.
    pub fn forwarded_for(&self) -> HeaderValue {
        let mut line = String::new();
        for (index, hop) in self.chain().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(line, "{separator}{hop}").expect("writing to memory does not fail");
        }
        HeaderValue::try_from(line).expect("addresses are visible ASCII")
    }
}

/// Identity of a client for rate limits: an IPv4 address, or the network of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(IpAddr);

impl ClientId {
    /// Returns the identity of the client at `address`. An IPv6 address is reduced to its first `ipv6_prefix` bits.
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

    /// Returns the address of an IPv4 client, or the first address of the network of an IPv6 client.
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
