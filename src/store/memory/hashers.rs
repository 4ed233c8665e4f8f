//! Hash values of hash map keys that are keyed hashes or consecutive numbers.
//!
//! A keyed hash is its own hash value. Consecutive numbers are spread by one multiplication.

use std::hash::{BuildHasher, Hash, Hasher};

use crate::idempotency::{ClientHash, RecordId, ScopeHash};
use crate::throttle::BucketKey;

/// Builds hashers that spread consecutive numbers by Fibonacci hashing. Clients cannot choose these numbers, so the
/// hash needs no secret key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BuildFibonacciHasher;

#[derive(Default)]
pub(super) struct FibonacciHasher(u64);

impl BuildHasher for BuildFibonacciHasher {
    type Hasher = FibonacciHasher;

    fn build_hasher(&self) -> FibonacciHasher {
        FibonacciHasher::default()
    }
}

impl Hasher for FibonacciHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a number hashes as one u64");
    }

    fn write_u64(&mut self, number: u64) {
        // The multiplier is 2⁶⁴ divided by the golden ratio.
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
        // The hash uses both parts of the id, because one scope can have many idempotency keys, and one key can be in
        // many scopes.
        state.write_u64(first_half(&self.key.0) ^ first_half(&self.scope.0));
    }
}

fn first_half(hash: &[u8; 16]) -> u64 {
    hash.first_chunk()
        .map_or(0, |half| u64::from_le_bytes(*half))
}
