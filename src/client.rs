//! Identifies the client of a request.
//!
//! The first stage, run before any header is removed. [`Trust`] has its settings. The TCP peer is the client
//! unless it is a trusted proxy; then `X-Forwarded-For` is walked from the right, the end our own
//! proxies wrote, and the first address not trusted is the client. What stands further left was
//! written by that client or by strangers, and is neither believed nor passed on.
//!
//! An entry that does not parse ends the walk at the last good hop. The alternative, ignoring the
//! whole header, would let a client choose the proxy's bucket over its own by sending junk; skipping
//! the entry would let it choose an address. A bucket is counted by [`ClientId`], in which an IPv6
//! client is its network, because one subscriber holds 2⁶⁴ addresses; whether a client is exempt is
//! asked of its full address.
//!
//! `Forwarded` and `X-Real-IP` are not read: two headers that can disagree are a way to lie.

mod hop;
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

/// The most hops a trusted peer may name in `X-Forwarded-For`.
pub(crate) const MAX_HOPS: usize = 256;

/// The addresses that a request passed, as proxies append them.
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Whose word is taken on who is calling: `[client]` of the configuration.
///
/// By default nobody is believed, nobody is exempt, and an IPv6 client is its /64.
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
    /// Believes `X-Forwarded-For` from `trusted` peers, never throttles `exempt` clients, and takes an
    /// IPv6 client for its network of `ipv6_prefix` bits.
    pub fn new(trusted: Vec<IpNet>, exempt: Vec<IpNet>, ipv6_prefix: u8) -> Self {
        Self {
            trusted: trusted.into_iter().collect(),
            exempt: exempt.into_iter().collect(),
            ipv6_prefix,
        }
    }

    /// Tells who is calling through `peer`.
    ///
    /// The header is looked at only if the peer is trusted, and never for more than 256 hops.
    pub fn identify(&self, peer: IpAddr, headers: &HeaderMap) -> Result<Caller, TooManyHops> {
        let peer = peer.to_canonical();
        let peer_trusted = self.trusted.contains(peer);
        let mut address = peer;
        let mut walked: Hops = smallvec![peer];
        if peer_trusted {
            if elements_from_the_right(headers).nth(MAX_HOPS).is_some() {
                return Err(TooManyHops);
            }
            for hop in elements_from_the_right(headers).map_while(hop::parse) {
                address = hop;
                walked.push(hop);
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
            walked,
        })
    }
}

/// The elements of all `X-Forwarded-For` lines, last first, without white space and empty ones.
fn elements_from_the_right(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(X_FORWARDED_FOR)
        .into_iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// A trusted peer names more than 256 hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("x-forwarded-for names more than {MAX_HOPS} hops")]
pub struct TooManyHops;

/// Room for a client behind two proxies before anything is allocated.
type Hops = SmallVec<[IpAddr; 4]>;

/// Who is calling, and through whom.
#[derive(Clone, Debug)]
pub struct Caller {
    id: ClientId,
    address: IpAddr,
    exempt: bool,
    peer_trusted: bool,
    /// The peer first, the client last: the order of the walk.
    walked: Hops,
}

impl Caller {
    /// What the client's buckets are counted by.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The client's full address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the client is never throttled.
    pub fn exempt(&self) -> bool {
        self.exempt
    }

    /// Whether the peer's word on the request's origin is taken.
    pub fn peer_trusted(&self) -> bool {
        self.peer_trusted
    }

    /// The client, the hops that were believed, and the peer, in that order.
    ///
    /// Where the peer is the client it is the only one.
    pub fn chain(&self) -> impl DoubleEndedIterator<Item = IpAddr> + ExactSizeIterator {
        self.walked.iter().rev().copied()
    }

    /// The [chain](Self::chain) as the `X-Forwarded-For` sent upstream.
    pub fn forwarded_for(&self) -> HeaderValue {
        let mut line = Line::default();
        for (place, hop) in self.chain().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(line, "{separator}{hop}").expect("writing to memory does not fail");
        }
        HeaderValue::from_bytes(&line.0).expect("addresses are visible ASCII")
    }
}

/// A header line being written, on the stack while it is of usual length.
#[derive(Default)]
struct Line(SmallVec<[u8; 128]>);

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// A client as buckets know it: an IPv4 address, or the network an IPv6 address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(IpAddr);

impl ClientId {
    /// The client at `address`, where IPv6 networks have `ipv6_prefix` bits.
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

    /// The address, or the first one of the network.
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
