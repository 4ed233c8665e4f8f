//! Opening the store a policy asks for.
//!
//! Memory is always there; anything else can fail, and then the gateway does not start: to go on without
//! the store that was asked for would forget promises that somebody relies on.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use super::Shared;
use crate::clock::Clock;
use crate::config::{Backend, Policy};

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum StoreOpenError {
    /// This build of the gateway cannot keep anything on disk.
    #[error(
        "cannot keep records in {}: this build has no store on disk; set `backend = \"memory\"` in [store]",
        path.display()
    )]
    NoDisk {
        /// Where they were to be kept.
        path: PathBuf,
    },
}

impl Shared {
    /// Everything a policy needs to be put to work, kept where it says.
    pub fn open(policy: Arc<Policy>, clock: Clock) -> Result<Self, StoreOpenError> {
        match &policy.store.backend {
            Backend::Memory => Ok(Self::new(policy, clock)),
            // The one place where the store on disk is opened.
            Backend::Disk { path } => Err(StoreOpenError::NoDisk { path: path.clone() }),
        }
    }
}
