//! Which bucket a request draws from.
//!
//! A bucket is known by a 128-bit keyed hash of its limit's name and what the limit is counted by, and
//! not by those themselves: every bucket then takes the same few bytes however long the headers a
//! caller makes up, and a caller who does not know the seed can neither aim at another's bucket nor
//! pile its own onto one shard. The limit's name and not its position takes part, so buckets outlive a
//! reordered configuration.

use std::hash::Hasher as _;
use std::net::IpAddr;

use http::HeaderMap;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::{KeyPart, Limit};
use crate::client::ClientId;

/// The name of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketKey {
    /// Picks the bucket's place in a table.
    pub high: u64,
    /// Tells it from others that fell on that place.
    pub low: u64,
}

/// The secret that keys bucket names.
#[derive(Clone, Copy)]
pub struct Seed(u64, u64);

/// Which of a limit's two buckets for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one requests draw from.
    Main,
    /// Its twin of the same quota, for the CORS preflights a browser sends ahead of them.
    Preflight,
}

impl Seed {
    /// A seed nobody can guess.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self(RandomState::new().hash_one(0_u8), RandomState::new().hash_one(1_u8))
    }

    /// The bucket of `limit` that a request of `client` with these headers draws from.
    pub fn bucket(
        self,
        limit: &Limit,
        side: Side,
        client: ClientId,
        headers: &HeaderMap,
    ) -> BucketKey {
        let mut name = Name(SipHasher13::new_with_keys(self.0, self.1));
        name.part(limit.name.as_bytes());
        name.tag(match side {
            Side::Main => 0,
            Side::Preflight => 1,
        });
        for part in &limit.key {
            match part {
                KeyPart::Global => name.tag(2),
                KeyPart::Client => name.client(client),
                KeyPart::Header(header) => {
                    let mut lines = headers.get_all(header).iter().peekable();
                    if lines.peek().is_none() {
                        // Without its header a request is counted by its client: one bucket shared by
                        // all who leave it out would let any of them starve the others.
                        name.client(client);
                    }
                    for line in lines {
                        name.tag(4);
                        name.part(line.as_bytes());
                    }
                }
            }
        }
        let hash = name.0.finish128();
        BucketKey { high: hash.h1, low: hash.h2 }
    }
}

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// A bucket's name in the making. Every part carries its tag and length, so no two lists of parts spell
/// the same bytes.
struct Name(SipHasher13);

impl Name {
    fn tag(&mut self, tag: u8) {
        self.0.write_u8(tag);
    }

    fn part(&mut self, bytes: &[u8]) {
        self.0.write_usize(bytes.len());
        self.0.write(bytes);
    }

    fn client(&mut self, client: ClientId) {
        self.tag(3);
        match client.ip() {
            IpAddr::V4(address) => self.part(&address.octets()),
            IpAddr::V6(address) => self.part(&address.octets()),
        }
    }
}
