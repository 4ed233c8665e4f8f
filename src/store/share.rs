//! The share of the key store that one client may hold.
//!
//! A scope is no bound for a caller that invents credentials: each of them is a scope of its own. A client, by
//! contrast, is the address that limits count, and cannot be invented. The share applies only while the store is nearly
//! full, so that a client that is alone can use most of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::memory::BuildIdentityHasher;
use crate::idempotency::ClientHash;

/// The share of one client in a store of `max_keys` keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The share applies while the store holds more keys than this: 80 % of `max_keys`.
    threshold: u64,
    /// A client that holds more keys than this claims no new key: 10 % of `max_keys`, and at least 1.
    pub(super) limit: u64,
}

/// The number of keys that each client holds. A client without keys takes no memory.
#[derive(Debug, Default)]
pub(super) struct ClientCounts(HashMap<ClientHash, u64, BuildIdentityHasher>);

impl Share {
    /// Returns the share in a store of `max_keys` keys.
    pub(super) fn of(max_keys: usize) -> Self {
        let max_keys = max_keys as u64;
        Self {
            threshold: max_keys - max_keys.div_ceil(5),
            limit: (max_keys / 10).max(1),
        }
    }

    /// Whether a client that holds `held` of the `keys` in the store may claim no new key.
    pub(super) fn is_exceeded(&self, keys: u64, held: u64) -> bool {
        keys > self.threshold && held > self.limit
    }
}

impl ClientCounts {
    /// Returns how many keys a client holds.
    pub(super) fn held(&self, client: ClientHash) -> u64 {
        self.0.get(&client).copied().unwrap_or(0)
    }

    /// Counts one more key of a client.
    pub(super) fn add(&mut self, client: ClientHash) {
        *self.0.entry(client).or_default() += 1;
    }

    /// Counts one key of a client less.
    pub(super) fn remove(&mut self, client: ClientHash) {
        if let Entry::Occupied(mut held) = self.0.entry(client) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_applies_above_80_percent_to_clients_above_10_percent() {
        let share = Share::of(400);
        assert_eq!(share.limit, 40);
        assert!(!share.is_exceeded(320, 320));
        assert!(!share.is_exceeded(321, 40));
        assert!(share.is_exceeded(321, 41));
    }

    #[test]
    fn a_small_store_has_a_share_of_one_key() {
        for (max_keys, threshold) in [(1, 0), (3, 2), (5, 4), (9, 7)] {
            let share = Share::of(max_keys);
            assert_eq!((share.limit, share.threshold), (1, threshold), "{max_keys}");
        }
        // No overflow.
        assert!(Share::of(usize::MAX).threshold > u64::MAX / 5 * 4 - 5);
    }

    #[test]
    fn a_client_without_keys_takes_no_memory() {
        let (one, other) = (ClientHash(1), ClientHash(2));
        let mut counts = ClientCounts::default();
        for client in [one, one, other] {
            counts.add(client);
        }
        counts.remove(one);
        counts.remove(other);
        assert_eq!((counts.held(one), counts.held(other)), (1, 0));
        assert_eq!(counts.0.len(), 1);
        counts.remove(other);
        assert_eq!(counts.held(other), 0);
    }
}
