//! Opening the store a policy asks for.
//!
//! Memory is always there; anything else can fail, and then the gateway does not start: to go on without
//! the store that was asked for would forget promises that somebody relies on.

use std::io::ErrorKind;
use std::sync::Arc;

use super::Shared;
use crate::clock::Clock;
use crate::config::{Backend, Policy};
use crate::store::RecordStore;
use crate::store::disk::buckets::Snapshots;
use crate::store::disk::{DiskRecords, OpenError};

impl Shared {
    /// Everything a policy needs to be put to work, kept where it says.
    pub fn open(policy: Arc<Policy>, clock: Clock) -> Result<Self, OpenError> {
        let path = match &policy.store.backend {
            Backend::Memory => return Ok(Self::new(policy, clock)),
            Backend::Disk { path } => path,
            Backend::Redis(_) => return Err(OpenError::Thread(ErrorKind::Unsupported.into())),
        };
        let records = DiskRecords::open(path, policy.store.room, clock.clone())?;
        let memory = Self::new(Arc::clone(&policy), clock.clone());
        let snapshots = Snapshots::start(&records, Arc::clone(&memory.buckets), clock)?;
        Ok(Self {
            naming: records.secret().into(),
            records: RecordStore::Disk(records),
            snapshots: Some(Arc::new(snapshots)),
            ..memory
        })
    }
}
