//! Where the names of records and buckets come from.
//!
//! A store in memory or on disk has one secret for life. A store that a fleet shares keeps the secret
//! itself, so that all gateways give one thing one name; a gateway learns it when it first reaches the
//! store, and learns another if the store comes back empty and somebody else was there first.

use std::sync::Arc;

use parking_lot::RwLock;

use super::{ClientHash, Secret};
use crate::client::ClientId;
use crate::throttle::Seed;

/// What names are made with: a store's secret, and the seed that belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// For records.
    pub secret: Secret,
    /// For buckets.
    pub seed: Seed,
}

/// Where the names come from.
#[derive(Clone, Debug)]
pub enum Naming {
    /// From a secret that stays.
    Fixed(Names),
    /// From a secret that a fleet shares.
    Shared(Arc<RwLock<Names>>),
}

impl From<Secret> for Names {
    fn from(secret: Secret) -> Self {
        Self {
            secret,
            seed: secret.seed(),
        }
    }
}

impl Names {
    /// Returns the hash of a client, by which its keys are counted.
    pub fn client(&self, client: ClientId) -> ClientHash {
        ClientHash(self.seed.client(client))
    }
}

impl Naming {
    /// From a secret of one's own, which nobody can guess.
    pub fn random() -> Self {
        Secret::random().into()
    }

    /// What names are made with now.
    pub fn names(&self) -> Names {
        match self {
            Self::Fixed(names) => *names,
            Self::Shared(names) => *names.read(),
        }
    }
}

impl From<Secret> for Naming {
    fn from(secret: Secret) -> Self {
        Self::Fixed(secret.into())
    }
}
