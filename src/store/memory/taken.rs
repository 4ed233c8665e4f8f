//! Hashing what needs none: names that are keyed hashes already are taken for their own hash, and numbers
//! of our own are only spread. Nobody who does not know the secret that names are made with can aim them at
//! a place in a table.

use std::hash::{BuildHasher, Hash, Hasher};

use crate::idempotency::{ClientHash, RecordId, ScopeHash};
use crate::throttle::BucketKey;

/// Takes a name for its own hash.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct TakenAsHash;

#[derive(Default)]
pub(in crate::store) struct Taken(u64);

impl BuildHasher for TakenAsHash {
    type Hasher = Taken;

    fn build_hasher(&self) -> Taken {
        Taken::default()
    }
}

impl Hasher for Taken {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("these names hash as one u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Spreads numbers that are counted up, by one multiplication. Nobody outside has a say in them, so no
/// secret is needed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread;

#[derive(Default)]
pub(super) struct Spreading(u64);

impl BuildHasher for Spread {
    type Hasher = Spreading;

    fn build_hasher(&self) -> Spreading {
        Spreading::default()
    }
}

impl Hasher for Spreading {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a number hashes as one u64");
    }

    fn write_u64(&mut self, number: u64) {
        // 2⁶⁴ divided by the golden ratio.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hash for BucketKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.high);
    }
}

impl Hash for ScopeHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(first_half(&self.0));
    }
}

impl Hash for ClientHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
    }
}

impl Hash for RecordId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Both, as there may be many keys in one scope, and one key in many scopes.
        state.write_u64(first_half(&self.key.0) ^ first_half(&self.scope.0));
    }
}

fn first_half(hash: &[u8; 16]) -> u64 {
    hash.first_chunk()
        .map_or(0, |half| u64::from_le_bytes(*half))
}
