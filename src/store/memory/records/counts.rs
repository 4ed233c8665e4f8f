//! Number of idempotency keys in the memory store, in total and per client.
//!
//! The keys of a client can be in any record shard, so they are counted in shards of their own. The lock of such a
//! shard is always taken after that of a record shard, and held for a few instructions. A replay does not take it.

use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::SHARDS;
use crate::idempotency::ClientHash;
use crate::request::hash_keys::BuildIdentityHasher;
use crate::store::capacity::{ClientCounts, Full, StoreCapacity};

pub(super) struct KeyCounts {
    capacity: StoreCapacity,
    keys: AtomicUsize,
    clients: Box<[Mutex<ClientCounts>]>,
}

impl KeyCounts {
    pub(super) fn new(capacity: StoreCapacity) -> Self {
        Self {
            capacity,
            keys: AtomicUsize::new(0),
            clients: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn capacity(&self) -> &StoreCapacity {
        &self.capacity
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed) as u64
    }

    fn of(&self, client: ClientHash) -> MutexGuard<'_, ClientCounts> {
        // The hash maps in the shards use the lower bits.
        let hash = BuildIdentityHasher.hash_one(client) >> 32;
        let index =
            usize::try_from(hash % SHARDS as u64).expect("the index of a shard fits into a usize");
        self.clients[index].lock()
    }

    /// Fails if the store has `max_keys` keys, or if it is nearly full and the client exceeds its share.
    pub(super) fn add(&self, client: ClientHash) -> Result<(), Full> {
        let mut clients = self.of(client);
        let held = clients.held(client);
        let admit = |keys: usize| self.capacity.admit(keys as u64, held);
        let added = self
            .keys
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |keys| {
                admit(keys).is_ok().then_some(keys + 1)
            });
        if let Err(keys) = added {
            return admit(keys);
        }
        clients.add(client);
        Ok(())
    }

    /// A client can be in the list several times.
    pub(super) fn remove(&self, clients: &[ClientHash]) {
        if clients.is_empty() {
            // Frequent. A write of the unchanged total would cause contention between worker threads.
            return;
        }
        self.keys.fetch_sub(clients.len(), Ordering::Relaxed);
        for &client in clients {
            self.of(client).remove(client);
        }
    }

    pub(super) fn transfer(&self, from: ClientHash, to: ClientHash) {
        self.of(from).remove(from);
        self.of(to).add(to);
    }
}

impl fmt::Debug for KeyCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyCounts")
            .field("keys", &self.keys)
            .field("max_keys", &self.capacity.max_keys)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(max_keys: usize) -> KeyCounts {
        KeyCounts::new(StoreCapacity {
            max_keys,
            ..StoreCapacity::default()
        })
    }

    #[test]
    fn concurrent_claims_do_not_exceed_the_share_of_a_client() {
        let counts = counts(100);
        for other in 0..81 {
            counts.add(ClientHash(1_000 + other)).unwrap();
        }
        let client = ClientHash(1);
        let added: usize = std::thread::scope(|scope| {
            let add = || (0..50).filter(|_| counts.add(client).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).sum()
        });
        assert_eq!(added, 11);
        assert_eq!(counts.add(client), Err(Full::Client(10)));
        counts.remove(&[client]);
        counts.add(client).unwrap();
        // One idempotency key of `client` moves to another client, so `client` can add a new key.
        counts.transfer(client, ClientHash(2));
        counts.add(client).unwrap();
        assert!(counts.add(client).is_err());
    }

    #[test]
    fn a_full_store_rejects_keys_of_all_clients() {
        let counts = counts(3);
        for client in 0..3 {
            counts.add(ClientHash(client)).unwrap();
        }
        assert_eq!(counts.add(ClientHash(3)), Err(Full::Store));
        counts.remove(&[ClientHash(0), ClientHash(1)]);
        counts.add(ClientHash(3)).unwrap();
    }
}
