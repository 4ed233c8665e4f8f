//! The maximum number of idempotency keys in a store in memory or on disk, and the share of it for one client.
//!
//! A store that can accept no further key forgets its oldest completed record or tombstone instead, if that is older
//! than `min_ttl`: one record per new key. This also holds for a client that exceeds its share. The record can belong
//! to another client: an order of age for each client would cost an index of its own.
//!
//! A maximum per scope does not stop a caller that invents credentials, because each credential has its own scope. The
//! share is therefore computed per client, which is an IPv4 address or IPv6 network. It applies only while the store is
//! nearly full, so a single client can use most of the store. In Redis, `maxmemory` and `max_keys_per_client` apply.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use crate::idempotency::ClientHash;
use crate::request::hash_keys::BuildIdentityHasher;

/// Maximum size of an idempotency store in memory or on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreCapacity {
    /// Maximum number of idempotency keys in the store.
    pub max_keys: usize,
    /// Maximum size of all stored responses, in bytes.
    pub max_bytes: u64,
    /// How long the key of a completed execution is stored at least. At `max_keys`, the store forgets older ones.
    pub min_ttl: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The share of the client, in keys.
    Client(u64),
    Store,
}

/// A client without keys has no entry.
#[derive(Debug, Default)]
pub(super) struct ClientCounts(HashMap<ClientHash, u64, BuildIdentityHasher>);

impl StoreCapacity {
    /// `keys` is the number of keys of all clients, and `held` that of this client. The share is 10 % of `max_keys`,
    /// and at least one key. It applies above 80 % of `max_keys`.
    pub(super) fn admit(&self, keys: u64, held: u64) -> Result<(), Full> {
        let max_keys = self.max_keys as u64;
        let share = (max_keys / 10).max(1);
        if keys > max_keys - max_keys.div_ceil(5) && held > share {
            return Err(Full::Client(share));
        }
        if keys >= max_keys {
            return Err(Full::Store);
        }
        Ok(())
    }
}

impl Default for StoreCapacity {
    fn default() -> Self {
        Self {
            max_keys: 1_000_000,
            max_bytes: 256 << 20,
            min_ttl: Duration::from_hours(1),
        }
    }
}

impl ClientCounts {
    pub(super) fn held(&self, client: ClientHash) -> u64 {
        self.0.get(&client).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, client: ClientHash) {
        *self.0.entry(client).or_default() += 1;
    }

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

    fn capacity(max_keys: usize) -> StoreCapacity {
        StoreCapacity {
            max_keys,
            ..StoreCapacity::default()
        }
    }

    #[test]
    fn the_share_applies_above_80_percent_to_clients_above_10_percent() {
        let capacity = capacity(400);
        assert_eq!(capacity.admit(320, 320), Ok(()));
        assert_eq!(capacity.admit(321, 40), Ok(()));
        assert_eq!(capacity.admit(321, 41), Err(Full::Client(40)));
        assert_eq!(capacity.admit(399, 40), Ok(()));
        assert_eq!(capacity.admit(400, 40), Err(Full::Store));
        assert_eq!(capacity.admit(400, 41), Err(Full::Client(40)));
    }

    #[test]
    fn a_small_store_has_a_share_of_one_key() {
        for (max_keys, threshold) in [(1, 0), (3, 2), (5, 4), (9, 7)] {
            let capacity = capacity(max_keys);
            let share = Err(Full::Client(1));
            assert_eq!(
                capacity.admit(threshold, 2).is_ok(),
                threshold < max_keys as u64
            );
            assert_eq!(capacity.admit(threshold + 1, 2), share, "{max_keys}");
        }
        // The threshold of 80 % is computed without an overflow, even for the largest `max_keys`.
        assert_eq!(
            capacity(usize::MAX).admit(u64::MAX / 5 * 4 - 5, u64::MAX),
            Ok(())
        );
    }

    #[test]
    fn a_client_without_keys_has_no_entry() {
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
