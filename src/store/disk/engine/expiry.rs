//! The expiry index: an entry for each idempotency record, in the order of expiry.

use serde::{Deserialize, Serialize};

use super::{EngineResult, id};
use crate::idempotency::{Fingerprint, RecordId, RecordState, StoreError};
use crate::store::disk::Timestamp;
use crate::store::disk::record::state_code;
use crate::store::ended_queues::EndedQueues;

/// Entry of the expiry index. The store counts and evicts records without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct ExpiryEntry {
    #[serde(with = "state_code")]
    pub(in super::super) state: RecordState,
    pub(in super::super) fingerprint: [u8; 32],
    /// Hash of the client.
    pub(in super::super) client: u64,
    /// In milliseconds of the store clock (see [`Timestamp`]).
    pub(in super::super) since: u64,
    /// Size of the encoded record, in bytes.
    pub(in super::super) weight: u64,
}

/// The expiry index in memory. The index on disk is never scanned for old records, because a scan would read the
/// removed entries that fjall has not compacted yet.
pub(in super::super) type EndedRecords = EndedQueues<Timestamp, ExpiryKey>;

/// The encoded keys sort by `expires`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct ExpiryKey {
    pub(in super::super) expires: Timestamp,
    pub(in super::super) id: RecordId,
}

impl ExpiryKey {
    pub(super) fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.expires.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.id.to_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> EngineResult<Self> {
        let Some((expires, name)) = bytes.split_first_chunk::<8>() else {
            return Err(StoreError::new(
                "an entry of the expiry index is damaged: its engine key has fewer than 8 bytes",
            ));
        };
        Ok(Self {
            expires: Timestamp(u64::from_be_bytes(*expires)),
            id: id(name)?,
        })
    }
}

impl ExpiryEntry {
    pub(in super::super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::from_bytes(&self.fingerprint)
    }
}

pub(super) fn decode_expiry(bytes: &[u8]) -> EngineResult<ExpiryEntry> {
    postcard::from_bytes(bytes).map_err(|error| {
        StoreError::new(format_args!(
            "an entry of the expiry index is damaged: {error}"
        ))
    })
}
