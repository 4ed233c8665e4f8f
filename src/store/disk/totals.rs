//! Totals of the disk store, and the number of acknowledged batches.
//!
//! The totals are part of every batch, so they match the records. The number of acknowledged batches is in a separate
//! file, which is written only after a sync. If the engine opens with fewer batches than this file states, acknowledged
//! records are lost, and the store directory is rejected.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use super::store_clock::{ClockReading, millis};
use crate::idempotency::{RecordCounts, RecordState};

/// Stored in the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoreTotals {
    /// Synced batches since the store was created.
    pub(super) batches: u64,
    /// Includes keys in flight.
    pub(super) keys: u64,
    pub(super) completed: u64,
    pub(super) unknown: u64,
    pub(super) tombstones: u64,
    /// Of the completed records, in bytes. Others have no response to evict.
    pub(super) bytes: u64,
    /// At the last commit.
    pub(super) clocks: Option<ClockReading>,
}

/// Offset of the resync flag, after the number of batches (8 bytes) and its complement (8 bytes).
const NEEDS_RESYNC_AT: u64 = 16;

/// Copy for the metrics, which other threads read without the writer thread.
#[derive(Debug, Default)]
pub(super) struct StoreStats {
    completed: AtomicU64,
    unknown: AtomicU64,
    tombstones: AtomicU64,
    bytes: AtomicU64,
    evictions: AtomicU64,
    keys: AtomicU64,
    /// In milliseconds.
    longest_ttl: AtomicU64,
    /// In milliseconds of the store clock; 0 for none.
    oldest_unknown: AtomicU64,
}

/// The file `acknowledged`.
#[derive(Debug)]
pub(super) struct AcknowledgedBatches(File);

impl StoreTotals {
    /// Encoded size in bytes.
    pub(super) fn add(&mut self, state: RecordState, weight: u64) {
        if let Some(count) = self.of(state) {
            *count += 1;
        }
        if state == RecordState::Completed {
            self.bytes += weight;
        }
    }

    /// Encoded size in bytes.
    pub(super) fn remove(&mut self, state: RecordState, weight: u64) {
        if let Some(count) = self.of(state) {
            *count = count.saturating_sub(1);
        }
        if state == RecordState::Completed {
            self.bytes = self.bytes.saturating_sub(weight);
        }
    }

    /// `None` for `InProgress`: executions in flight have a claim and no record.
    fn of(&mut self, state: RecordState) -> Option<&mut u64> {
        match state {
            RecordState::Completed => Some(&mut self.completed),
            RecordState::Unknown => Some(&mut self.unknown),
            RecordState::Tombstone => Some(&mut self.tombstones),
            RecordState::InProgress => None,
        }
    }
}

impl StoreStats {
    pub(super) fn publish(
        &self,
        totals: &StoreTotals,
        longest_ttl: Option<Duration>,
        oldest_unknown: Option<Timestamp>,
    ) {
        self.keys.store(totals.keys, Ordering::Relaxed);
        let longest_ttl = longest_ttl.map_or(0, millis);
        self.longest_ttl.store(longest_ttl, Ordering::Relaxed);
        let oldest_unknown = oldest_unknown.map_or(0, |since| since.0);
        self.oldest_unknown.store(oldest_unknown, Ordering::Relaxed);
        self.completed.store(totals.completed, Ordering::Relaxed);
        self.unknown.store(totals.unknown, Ordering::Relaxed);
        self.tombstones.store(totals.tombstones, Ordering::Relaxed);
        self.bytes.store(totals.bytes, Ordering::Relaxed);
    }

    /// Returns the total since the store was opened.
    pub(super) fn evicted(&self, responses: u64) -> u64 {
        self.evictions.fetch_add(responses, Ordering::Relaxed) + responses
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    pub(super) fn longest_ttl(&self) -> Option<Duration> {
        let longest_ttl = Duration::from_millis(self.longest_ttl.load(Ordering::Relaxed));
        (!longest_ttl.is_zero()).then_some(longest_ttl)
    }

    pub(super) fn oldest_unknown(&self) -> Option<Timestamp> {
        let since = self.oldest_unknown.load(Ordering::Relaxed);
        (since > 0).then_some(Timestamp(since))
    }

    pub(super) fn counts(&self, in_progress: u64) -> RecordCounts {
        RecordCounts {
            in_progress,
            completed: self.completed.load(Ordering::Relaxed),
            unknown: self.unknown.load(Ordering::Relaxed),
            tombstones: self.tombstones.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            ..RecordCounts::default()
        }
    }
}

impl AcknowledgedBatches {
    /// A missing or damaged number counts as 0, because the file is not synced and a power failure can damage it.
    pub(super) fn open(dir: &Path) -> io::Result<(Self, u64)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(dir.join("acknowledged"))?;
        let mut bytes = [0; 16];
        let count = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => read(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) => return Err(error),
        };
        Ok((Self(file), count))
    }

    /// Whether the engine failed in an earlier process and was not resynced since.
    pub(super) fn needs_resync(&self) -> io::Result<bool> {
        let mut flag = [0];
        match self.0.read_exact_at(&mut flag, NEEDS_RESYNC_AT) {
            Ok(()) => Ok(flag != [0]),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Not synced: the flag is needed only until a reboot, because a resync rewrites pages of the page cache, which a
    /// reboot empties.
    pub(super) fn set_needs_resync(&self, needs_resync: bool) -> io::Result<()> {
        self.0
            .write_all_at(&[u8::from(needs_resync)], NEEDS_RESYNC_AT)
    }

    /// Without a sync.
    pub(super) fn write(&self, batches: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&batches.to_le_bytes());
        bytes[8..].copy_from_slice(&(!batches).to_le_bytes());
        self.0.write_all_at(&bytes, 0)
    }
}

/// A number that is followed by its complement. 0 if they do not match.
fn read(bytes: [u8; 16]) -> u64 {
    let (count, complement) = bytes.split_at(8);
    let number = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
    let (count, complement) = (number(count), number(complement));
    if count == !complement { count } else { 0 }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_number_of_acknowledged_batches_is_0_if_its_complement_does_not_match() {
        let dir = TempDir::new().unwrap();
        let (file, count) = AcknowledgedBatches::open(dir.path()).unwrap();
        assert_eq!(count, 0);
        file.write(17).unwrap();
        assert_eq!(AcknowledgedBatches::open(dir.path()).unwrap().1, 17);
        file.0.write_all_at(&99_u64.to_le_bytes(), 0).unwrap();
        assert_eq!(AcknowledgedBatches::open(dir.path()).unwrap().1, 0);
    }

    #[test]
    fn the_resync_flag_and_the_number_of_batches_are_stored_independently() {
        let dir = TempDir::new().unwrap();
        let (file, _) = AcknowledgedBatches::open(dir.path()).unwrap();
        assert!(!file.needs_resync().unwrap());
        file.set_needs_resync(true).unwrap();
        file.write(3).unwrap();
        let (file, count) = AcknowledgedBatches::open(dir.path()).unwrap();
        assert_eq!((file.needs_resync().unwrap(), count), (true, 3));
        file.set_needs_resync(false).unwrap();
        assert!(!file.needs_resync().unwrap());
    }
}
