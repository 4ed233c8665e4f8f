//! How much there is, and how much was acknowledged.
//!
//! The tally is part of every batch, so it is right whatever happens. Beside the engine, in a file of its
//! own, stands the number of batches that were acknowledged; it is written after each sync and never
//! ahead of it. An engine that opens with fewer has lost some, and must not be used as if it had not.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::timeline::ClockReading;
use crate::idempotency::{RecordCounts, RecordState};

/// How much there is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Batches that were committed and synced.
    pub(super) batches: u64,
    /// Keys, those in progress included.
    pub(super) keys: u64,
    pub(super) completed: u64,
    pub(super) unknown: u64,
    pub(super) tombstones: u64,
    /// What records with a response take, in bytes. Promises are not counted: they are kept anyway.
    pub(super) bytes: u64,
    /// The clocks when it was written; `None` if it never was.
    pub(super) clocks: Option<ClockReading>,
}

/// Where in its file it says whether the engine has to be resynced, behind the number and its complement.
const SUSPECT_AT: u64 = 16;

/// The counts of the tally and of evictions, readable without the writer.
#[derive(Debug, Default)]
pub(super) struct StoreStats {
    completed: AtomicU64,
    unknown: AtomicU64,
    tombstones: AtomicU64,
    bytes: AtomicU64,
    evictions: AtomicU64,
}

/// The number of acknowledged batches, in a file.
#[derive(Debug)]
pub(super) struct Acknowledged(File);

impl Tally {
    /// Counts a record in.
    pub(super) fn add(&mut self, state: RecordState, weight: u64) {
        if let Some(count) = self.of(state) {
            *count += 1;
        }
        if state == RecordState::Completed {
            self.bytes += weight;
        }
    }

    /// Counts a record out.
    pub(super) fn remove(&mut self, state: RecordState, weight: u64) {
        if let Some(count) = self.of(state) {
            *count = count.saturating_sub(1);
        }
        if state == RecordState::Completed {
            self.bytes = self.bytes.saturating_sub(weight);
        }
    }

    /// Returns the count of records in a state; claims in progress are not records.
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
    pub(super) fn publish(&self, tally: &Tally) {
        self.completed.store(tally.completed, Ordering::Relaxed);
        self.unknown.store(tally.unknown, Ordering::Relaxed);
        self.tombstones.store(tally.tombstones, Ordering::Relaxed);
        self.bytes.store(tally.bytes, Ordering::Relaxed);
    }

    /// Counts evicted responses. Returns the number since the store was opened.
    pub(super) fn evicted(&self, responses: u64) -> u64 {
        self.evictions.fetch_add(responses, Ordering::Relaxed) + responses
    }

    pub(super) fn counts(&self, in_progress: u64) -> RecordCounts {
        RecordCounts {
            in_progress,
            completed: self.completed.load(Ordering::Relaxed),
            unknown: self.unknown.load(Ordering::Relaxed),
            tombstones: self.tombstones.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }
}

impl Acknowledged {
    /// The number in the directory `home`, and the file to write it to. A file that says nothing is taken
    /// for zero: it is not synced, and after a power cut may be behind.
    pub(super) fn open(home: &Path) -> io::Result<(Self, u64)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(home.join("acknowledged"))?;
        let mut bytes = [0; 16];
        let count = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => read(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) => return Err(error),
        };
        Ok((Self(file), count))
    }

    /// Whether the last process that wrote to the engine saw it fail, and did not resync it.
    pub(super) fn is_suspect(&self) -> io::Result<bool> {
        let mut flag = [0];
        match self.0.read_exact_at(&mut flag, SUSPECT_AT) {
            Ok(()) => Ok(flag != [0]),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Notes whether the engine failed and has to be resynced. Not synced itself: a reboot empties the page
    /// cache, and with it the reason to resync.
    pub(super) fn set_suspect(&self, suspect: bool) -> io::Result<()> {
        self.0.write_all_at(&[u8::from(suspect)], SUSPECT_AT)
    }

    /// Writes the number of batches.
    pub(super) fn write(&self, batches: u64) -> io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&batches.to_le_bytes());
        bytes[8..].copy_from_slice(&(!batches).to_le_bytes());
        self.0.write_all_at(&bytes, 0)
    }
}

/// The number and its complement, or zero if they are not each other's.
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
    fn the_number_of_acknowledged_batches_is_read_back_and_half_a_number_is_none() {
        let dir = TempDir::new().unwrap();
        let (file, count) = Acknowledged::open(dir.path()).unwrap();
        assert_eq!(count, 0);
        file.write(17).unwrap();
        assert_eq!(Acknowledged::open(dir.path()).unwrap().1, 17);
        file.0.write_all_at(&99_u64.to_le_bytes(), 0).unwrap();
        assert_eq!(Acknowledged::open(dir.path()).unwrap().1, 0);
    }

    #[test]
    fn a_failed_engine_is_noted_beside_the_number() {
        let dir = TempDir::new().unwrap();
        let (file, _) = Acknowledged::open(dir.path()).unwrap();
        assert!(!file.is_suspect().unwrap());
        file.set_suspect(true).unwrap();
        file.write(3).unwrap();
        let (file, count) = Acknowledged::open(dir.path()).unwrap();
        assert_eq!((file.is_suspect().unwrap(), count), (true, 3));
        file.set_suspect(false).unwrap();
        assert!(!file.is_suspect().unwrap());
    }
}
