//! Names that are keyed hashes already, taken for their own hash: hashing them again would buy nothing.
//! Nobody who does not know the secret they are made with can aim them at a place in a table.

use std::hash::{BuildHasher, Hash, Hasher};

use crate::idempotency::{RecordId, ScopeHash};
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
