//! Hash values of the keyed hashes that are keys of hash maps: a keyed hash is its own hash value.

use std::hash::{Hash, Hasher};

use crate::idempotency::{ClientHash, RecordId, ScopeHash};
use crate::throttle::BucketKey;

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
        // One scope can have many keys, and one key can be in many scopes.
        state.write_u64(first_half(&self.key.0) ^ first_half(&self.scope.0));
    }
}

fn first_half(hash: &[u8; 16]) -> u64 {
    hash.first_chunk()
        .map_or(0, |half| u64::from_le_bytes(*half))
}
