//! Secret keys of the hashes that identify idempotency records, buckets of rate limits, and clients.
//!
//! Records and buckets are stored under keyed hashes, so the store contains no credentials, and a client can choose
//! neither a value with the hash of another client's bucket nor values whose buckets are all in one shard of the store.
//! A memory store or disk store has one secret for its lifetime. All gateways of a fleet share the secret in Redis. A
//! gateway reads it when it first connects, and again if Redis was emptied and another gateway has written a new
//! secret.
//!
//! The input of a hash is a list of parts, each preceded by its length, so two different lists never result in the same
//! input.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;
use siphasher::sip128::{Hash128, SipHasher13};

use super::client::ClientId;

/// Key of the BLAKE3 hashes that identify idempotency records.
#[derive(Clone, Copy)]
pub struct Secret([u8; 32]);

/// Key of the `SipHash` hashes that identify buckets and clients, derived from the secret. `SipHash` is faster than
/// BLAKE3.
#[derive(Clone, Copy)]
pub struct Seed(u64, u64);

/// Hash of a client. A store uses it to count the idempotency keys of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientHash(pub u64);

#[derive(Clone, Copy, Debug)]
pub(crate) struct HashKeys {
    pub secret: Secret,
    pub seed: Seed,
}

#[derive(Clone, Debug)]
pub(crate) enum HashKeySource {
    /// Keys of a memory store or disk store. They do not change while the store is open.
    Fixed(HashKeys),
    /// Keys of a Redis store. All gateways of a fleet share them, and they change if Redis is emptied.
    Shared(Arc<RwLock<HashKeys>>),
}

/// The number of the variant is the first byte of the hash input, so hashes of different subjects never have the same
/// input.
#[derive(Clone, Copy)]
pub(crate) enum Subject {
    Key = 1,
    Scope = 2,
    Fingerprint = 3,
    Seed = 4,
    Credentials = 5,
}

/// They precede the parts of a scope or limit key.
#[derive(Clone, Copy)]
pub(crate) enum Tag {
    /// Whoever sends the requests.
    All = 0,
    Client = 1,
    Header = 2,
    /// The client and the identity in an `Authorization` header that is signed separately for each request.
    Signed = 3,
    Cookie = 4,
    /// A caller that an embedding application has named.
    Named = 5,
}

impl Secret {
    /// Creates a random secret.
    ///
    /// # Panics
    ///
    /// Panics if the operating system provides no random numbers.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
        Self(bytes)
    }

    /// Creates a secret from its stored bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the secret, for the store.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives the key of the `SipHash` hashes from the secret.
    pub fn seed(&self) -> Seed {
        let all = u128::from_le_bytes(self.hash(Subject::Seed, |_| {}));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "only the lower 64 bits are wanted"
        )]
        Seed::from_halves((all >> 64) as u64, all as u64)
    }

    /// Hashes the parts that `fill` adds. Among a billion hashes, the probability of any collision is below 10⁻²⁰.
    pub(crate) fn hash(&self, subject: Subject, fill: impl FnOnce(&mut HashInput)) -> [u8; 16] {
        let hash = self.hash_if(subject, |parts| {
            fill(parts);
            true
        });
        hash.unwrap_or_default()
    }

    /// Returns `None` if `fill` returns `false`.
    pub(crate) fn hash_if(
        &self,
        subject: Subject,
        fill: impl FnOnce(&mut HashInput) -> bool,
    ) -> Option<[u8; 16]> {
        let mut parts = HashInput::default();
        parts.tag(subject as u8);
        if !fill(&mut parts) {
            return None;
        }
        // Faster than an incremental hasher, which has 2 KiB of state. Most inputs have about 100 bytes.
        let hash = blake3::keyed_hash(&self.0, parts.all());
        let mut short = [0; 16];
        short.copy_from_slice(&hash.as_bytes()[..16]);
        Some(short)
    }
}

impl Seed {
    /// Creates a random seed, from the random keys of the standard library's hash maps.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self(
            RandomState::new().hash_one(0_u8),
            RandomState::new().hash_one(1_u8),
        )
    }

    /// Creates a seed from its upper and its lower 64 bits.
    pub const fn from_halves(high: u64, low: u64) -> Self {
        Self(high, low)
    }

    /// Hashes the parts that `fill` adds.
    pub(crate) fn hash(self, fill: impl FnOnce(&mut HashInput)) -> Hash128 {
        let mut parts = HashInput::default();
        fill(&mut parts);
        SipHasher13::new_with_keys(self.0, self.1).hash(parts.all())
    }

    /// Returns the hash that identifies a client.
    pub fn client(self, client: ClientId) -> ClientHash {
        ClientHash(self.hash(|parts| parts.client(client)).h1)
    }
}

/// A list of tags, and of parts, each preceded by its length. Lengths have 8 bytes in little-endian order, so that
/// gateways of all architectures compute the same hash.
pub(crate) struct HashInput {
    /// The input while it has at most [`SHORT`] bytes.
    short: [u8; SHORT],
    filled: usize,
    /// The complete input if it has more than [`SHORT`] bytes. Otherwise empty.
    long: Vec<u8>,
}

/// Maximum size of an input that needs no allocation, in bytes.
const SHORT: usize = 256;

impl Default for HashInput {
    fn default() -> Self {
        Self {
            short: [0; SHORT],
            filled: 0,
            long: Vec::new(),
        }
    }
}

impl HashInput {
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

    // Most callers pass a constant length. The copy is then a single store instruction.
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        match self.short.get_mut(self.filled..end) {
            Some(free) => {
                free.copy_from_slice(bytes);
                self.filled = end;
            }
            None => self.put_long(bytes),
        }
    }

    #[cold]
    fn put_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.filled]);
            // Marked as full, so that `put` adds later parts to `long`.
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
        self.tag(Tag::Client as u8);
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
    pub(crate) fn random() -> Self {
        Secret::random().into()
    }

    /// In a Redis store, they can differ from those of an earlier call.
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

/// Hashes map keys that are already keyed hashes, which clients cannot choose. A hasher returns the one `u64` that is
/// written to it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BuildIdentityHasher;

#[derive(Default)]
pub(crate) struct IdentityHasher(u64);

impl BuildHasher for BuildIdentityHasher {
    type Hasher = IdentityHasher;

    fn build_hasher(&self) -> IdentityHasher {
        IdentityHasher::default()
    }
}

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys of these maps hash as one u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
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
    use super::*;

    #[test]
    fn parts_are_collected_in_order_with_and_without_an_allocation() {
        for lengths in [
            [1, 20, 3],
            [250, 6, 1],
            [256, 0, 300],
            [300, 1, 0],
            [9, 600, 9],
        ] {
            let (mut parts, mut plain) = (HashInput::default(), Vec::new());
            for (octet, length) in (1..).zip(lengths) {
                let part = vec![octet; length];
                parts.put(&part);
                plain.extend(part);
            }
            assert_eq!(parts.all(), plain, "{lengths:?}");
        }
    }
}
