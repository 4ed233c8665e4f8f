//! Keys of the hashes that name records, buckets and clients.
//!
//! All names are keyed hashes with a secret of the store: what is stored reveals no credential, and a caller cannot choose
//! the shard or bucket it falls on. A store in memory or on disk has one secret for its lifetime. A store that a fleet
//! shares contains the secret itself, so that all gateways use the same names. A gateway reads it when it first reaches
//! the store, and again if the store comes back empty and another gateway has written a new one.
//!
//! Every hashed part carries its length, so that two different lists of parts never have the same bytes.

use std::fmt;
use std::hash::Hasher as _;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;
use siphasher::sip128::SipHasher13;

use crate::client::ClientId;

/// The secret of a store. It keys the hashes of records.
#[derive(Clone, Copy)]
pub struct Secret([u8; 32]);

/// Keys the hashes of buckets and clients. Derived from the secret, for a faster hash.
#[derive(Clone, Copy)]
pub struct Seed(u64, u64);

/// The hash of a client. Counts of keys per client use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientHash(pub u64);

/// The hash keys of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashKeys {
    /// Keys the hashes of records.
    pub secret: Secret,
    /// Keys the hashes of buckets and clients.
    pub seed: Seed,
}

/// Provides the present hash keys of a store.
#[derive(Clone, Debug)]
pub(crate) enum HashKeySource {
    /// The store has the same keys for its lifetime.
    Fixed(HashKeys),
    /// The fleet shares the keys, and they can change.
    Shared(Arc<RwLock<HashKeys>>),
}

/// What a hash is of. Part of the hashed bytes, so that hashes of different subjects never collide.
#[derive(Clone, Copy)]
pub(crate) enum Subject {
    Key = 1,
    Scope = 2,
    Fingerprint = 3,
    Seed = 4,
    Credentials = 5,
}

impl Secret {
    /// Creates an unpredictable secret.
    ///
    /// # Panics
    ///
    /// If the system provides no random numbers.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the system provides random numbers");
        Self(bytes)
    }

    /// Restores a secret from its stored bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to store.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives the seed.
    pub fn seed(&self) -> Seed {
        let all = u128::from_le_bytes(self.hash(Subject::Seed, |_| {}));
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        Seed::from_halves((all >> 64) as u64, all as u64)
    }

    /// Hashes what `fill` adds. Two of a billion hashes of 128 bits collide with a probability of 10⁻²⁰.
    pub(crate) fn hash(&self, subject: Subject, fill: impl FnOnce(&mut Parts)) -> [u8; 16] {
        let hash = self.hash_if(subject, |parts| {
            fill(parts);
            true
        });
        hash.unwrap_or_default()
    }

    /// Hashes what `fill` adds, unless it returns `false`.
    pub(crate) fn hash_if(
        &self,
        subject: Subject,
        fill: impl FnOnce(&mut Parts) -> bool,
    ) -> Option<[u8; 16]> {
        let mut parts = Parts::default();
        parts.tag(subject as u8);
        if !fill(&mut parts) {
            return None;
        }
        // In one call: blake3's incremental state takes 2 KiB, and most inputs are about 100 bytes.
        let hash = blake3::keyed_hash(&self.0, parts.all());
        let mut short = [0; 16];
        short.copy_from_slice(&hash.as_bytes()[..16]);
        Some(short)
    }
}

impl Seed {
    /// Creates an unpredictable seed.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self(
            RandomState::new().hash_one(0_u8),
            RandomState::new().hash_one(1_u8),
        )
    }

    /// Restores a seed from its two halves.
    pub const fn from_halves(high: u64, low: u64) -> Self {
        Self(high, low)
    }

    /// Returns a hasher that is keyed with the seed.
    pub(crate) fn hasher(self) -> NameHasher {
        NameHasher(SipHasher13::new_with_keys(self.0, self.1))
    }

    /// Returns the hash of a client, by which its idempotency keys are counted.
    pub fn client(self, client: ClientId) -> ClientHash {
        let mut hasher = self.hasher();
        hasher.client(client);
        ClientHash(hasher.0.finish())
    }
}

/// The hash of a name made of parts, each with its tag and length.
pub(crate) struct NameHasher(pub(crate) SipHasher13);

impl NameHasher {
    pub(crate) fn tag(&mut self, tag: u8) {
        self.0.write_u8(tag);
    }

    /// Writes a length in 8 bytes, little-endian, so that gateways of all architectures name a bucket alike.
    pub(crate) fn length(&mut self, length: usize) {
        self.0.write(&(length as u64).to_le_bytes());
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.write(bytes);
    }

    /// Adds a header of one line. Names written by earlier versions have the number of lines, too.
    pub(crate) fn header(&mut self, value: &[u8]) {
        self.tag(4);
        self.length(1);
        self.part(value);
    }

    pub(crate) fn client(&mut self, client: ClientId) {
        self.tag(3);
        match client.ip() {
            IpAddr::V4(address) => self.part(&address.octets()),
            IpAddr::V6(address) => self.part(&address.octets()),
        }
    }
}

/// Bytes to be hashed with a [`Secret`], in parts that each carry their length.
pub(crate) struct Parts {
    /// Holds most inputs.
    short: [u8; SHORT],
    /// Bytes of `short` in use.
    filled: usize,
    /// All bytes, if they are longer than `short`.
    long: Vec<u8>,
}

/// Tag of a client in a scope.
const CLIENT: u8 = 1;

/// Bytes that are collected without an allocation.
const SHORT: usize = 256;

impl Default for Parts {
    fn default() -> Self {
        Self {
            short: [0; SHORT],
            filled: 0,
            long: Vec::new(),
        }
    }
}

impl Parts {
    fn all(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.filled]
        } else {
            &self.long
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.long.is_empty() {
            &mut self.short[..self.filled]
        } else {
            &mut self.long
        }
    }

    /// Inlined, because most lengths are constants at the call: then this is one store.
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        match self.short.get_mut(self.filled..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.filled = end;
            }
            None => self.put_long(bytes),
        }
    }

    #[cold]
    fn put_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.filled]);
            // Further parts do not fit into `short`.
            self.filled = SHORT;
        }
        self.long.extend_from_slice(bytes);
    }

    pub(crate) fn tag(&mut self, tag: u8) {
        self.put(&[tag]);
    }

    pub(crate) fn add(&mut self, part: &[u8]) {
        self.number(part.len());
        self.put(part);
    }

    pub(crate) fn add_lower_case(&mut self, part: &[u8]) {
        self.add(part);
        let put = self.bytes_mut();
        let begins = put.len() - part.len();
        put[begins..].make_ascii_lowercase();
    }

    pub(crate) fn number(&mut self, number: usize) {
        self.put(&(number as u64).to_le_bytes());
    }

    pub(crate) fn client(&mut self, client: ClientId) {
        self.tag(CLIENT);
        match client.ip() {
            IpAddr::V4(address) => self.add(&address.octets()),
            IpAddr::V6(address) => self.add(&address.octets()),
        }
    }
}

impl From<Secret> for HashKeys {
    fn from(secret: Secret) -> Self {
        Self {
            secret,
            seed: secret.seed(),
        }
    }
}

impl HashKeySource {
    /// Creates unpredictable keys that do not change.
    pub(crate) fn random() -> Self {
        Secret::random().into()
    }

    /// Returns the present keys.
    pub(crate) fn keys(&self) -> HashKeys {
        match self {
            Self::Fixed(keys) => *keys,
            Self::Shared(keys) => *keys.read(),
        }
    }
}

impl From<Secret> for HashKeySource {
    fn from(secret: Secret) -> Self {
        Self::Fixed(secret.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[cfg(test)]
mod tests {
    use siphasher::sip128::{Hash128, Hasher128 as _};

    use super::*;

    #[test]
    fn a_name_depends_on_its_bytes_and_not_on_how_they_are_split() {
        let mut split = Seed::from_halves(1, 2).hasher();
        split.part(b"device");
        let mut whole = SipHasher13::new_with_keys(1, 2);
        let mut bytes = vec![6, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(b"device");
        whole.write(&bytes);
        let Hash128 { h1, h2 } = whole.finish128();
        let named = split.0.finish128();
        assert_eq!((named.h1, named.h2), (h1, h2));
    }

    #[test]
    fn parts_of_all_lengths_are_collected_in_order() {
        for lengths in [
            [1, 20, 3],
            [250, 6, 1],
            [256, 0, 300],
            [300, 1, 0],
            [9, 600, 9],
        ] {
            let (mut parts, mut plain) = (Parts::default(), Vec::new());
            for (octet, length) in (1..).zip(lengths) {
                let part = vec![octet; length];
                parts.put(&part);
                plain.extend(part);
            }
            assert_eq!(parts.all(), plain, "{lengths:?}");
        }
    }
}
