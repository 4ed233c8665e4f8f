//! Buckets that outlive a restart: a snapshot of those that are not full, every few seconds.
//!
//! Buckets stay in memory, where deciding is quick; what is lost in a crash is what was charged since the
//! last snapshot, and a gateway that is told to stop takes one more. A bucket is written down as the time
//! it still takes to fill, beside the time of the snapshot: if the wall clock was set back meanwhile,
//! nobody waits longer than before, and if it was set ahead, somebody has one burst more than was due.
//!
//! Shared overflow buckets are not written down. A snapshot that cannot be read is left aside, with a
//! warning: limits begin anew then, which is no promise broken as a forgotten key would be.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use thiserror::Error;

use super::store_dir::replace;
use super::{DiskRecords, OpenError};
use crate::clock::Clock;
use crate::store::memory::MemoryBuckets;
use crate::throttle::BucketKey;

/// How often a snapshot is taken.
const EVERY: Duration = Duration::from_secs(10);

const VERSION: u8 = 1;

/// Bytes of a snapshot before its buckets: the version and its time.
const HEAD: usize = 9;

/// Bytes of a bucket.
const ENTRY: usize = 24;

const CHECKSUM: usize = 32;

/// Takes snapshots until dropped, and a last one then.
#[derive(Debug)]
pub(crate) struct Snapshots {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Why a snapshot cannot be read.
#[derive(Debug, Error)]
enum SnapshotError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it was written by a newer version (format {0})")]
    Newer(u8),
    #[error("its checksum is wrong")]
    Checksum,
}

/// Buckets on their way from or to a file.
struct Snapshot {
    /// Time of the snapshot in milliseconds since 1970, no earlier than any bucket was read.
    taken: u64,
    /// Each with the nanoseconds it takes to fill.
    buckets: Vec<(BucketKey, u64)>,
}

impl Snapshots {
    /// Fills `buckets` from the last snapshot beside `records`, and takes new ones from then on.
    pub(crate) fn start(
        records: &DiskRecords,
        buckets: Arc<MemoryBuckets>,
        clock: Clock,
    ) -> Result<Self, OpenError> {
        let file = records.path().join("buckets");
        restore(&file, &buckets, &clock);
        let (stop, stopped) = mpsc::channel();
        // The directory stays ours until the last snapshot is written.
        let held = records.clone();
        let thread = thread::Builder::new()
            .name("tidegate-buckets".into())
            .spawn(move || {
                let mut failing = false;
                loop {
                    let last = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
                    let saved = save(&file, &buckets, &clock);
                    // A failure is logged when it begins and when it ends, not for each snapshot.
                    match &saved {
                        Err(error) if !failing => {
                            tracing::warn!(%error, "snapshot of limits not written");
                        }
                        Ok(()) if failing => tracing::info!("snapshot of limits written again"),
                        _ => {}
                    }
                    failing = saved.is_err();
                    if last {
                        break;
                    }
                }
                drop(held);
            })
            .map_err(OpenError::Thread)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "the state of the limits was not written to disk: its thread has crashed"
            );
        }
    }
}

fn save(file: &Path, buckets: &MemoryBuckets, clock: &Clock) -> io::Result<()> {
    let snapshot = Snapshot::take(clock, || buckets.drained());
    replace(file, &snapshot.encode())
}

fn restore(file: &Path, buckets: &MemoryBuckets, clock: &Clock) {
    let snapshot = match read(file) {
        Ok(Some(snapshot)) => snapshot,
        Ok(None) => return,
        Err(error) => {
            let file = file.display();
            tracing::warn!(%error, %file, "the state of the limits cannot be read: they begin anew");
            return;
        }
    };
    let elapsed = since_1970(clock).saturating_sub(Duration::from_millis(snapshot.taken));
    let elapsed = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    let drained = snapshot.buckets.into_iter();
    buckets.restore(drained.map(|(bucket, left)| {
        let left = Duration::from_nanos(left.saturating_sub(elapsed));
        (bucket, left)
    }));
}

fn read(file: &Path) -> Result<Option<Snapshot>, SnapshotError> {
    match std::fs::read(file) {
        Ok(bytes) => Snapshot::decode(&bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn since_1970(clock: &Clock) -> Duration {
    let since = clock.wall().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

impl Snapshot {
    /// Reads the buckets, and then the time, rounded up to a millisecond. A restore subtracts the time since
    /// then from every debt, so an earlier time would give tokens back that have not been refilled.
    fn take(clock: &Clock, read: impl FnOnce() -> Vec<(BucketKey, u64)>) -> Self {
        let buckets = read();
        Self {
            taken: since_1970(clock)
                .as_nanos()
                .div_ceil(1_000_000)
                .try_into()
                .unwrap_or(u64::MAX),
            buckets,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.buckets.len() * ENTRY + CHECKSUM);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.taken.to_le_bytes());
        for (bucket, left) in &self.buckets {
            for number in [bucket.high, bucket.low, *left] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        match bytes.first() {
            Some(&version) if version > VERSION => return Err(SnapshotError::Newer(version)),
            _ => {}
        }
        let (content, checksum) = bytes
            .split_last_chunk::<CHECKSUM>()
            .ok_or(SnapshotError::Checksum)?;
        let Some((head, entries)) = content.split_at_checked(HEAD) else {
            return Err(SnapshotError::Checksum);
        };
        if blake3::hash(content) != *checksum || entries.len() % ENTRY != 0 {
            return Err(SnapshotError::Checksum);
        }
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let buckets = entries.chunks_exact(ENTRY).map(|entry| {
            let bucket = BucketKey {
                high: number(&entry[..8]),
                low: number(&entry[8..16]),
            };
            (bucket, number(&entry[16..]))
        });
        Ok(Self {
            taken: number(&head[1..]),
            buckets: buckets.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tempfile::TempDir;

    use super::*;
    use crate::store::StoreCapacity;
    use crate::throttle::{
        Charge, ChargeOutcome, Decision, Exceed, KeyPart, Limit, LimitId, Mode, OnStoreError,
        Quota, RetryAfterForm,
    };

    const HOUR: Duration = Duration::from_hours(1);

    fn clock_at(hours: u32) -> Clock {
        Clock::virtual_from(SystemTime::UNIX_EPOCH + HOUR * (400_000 + hours))
    }

    /// One request an hour, and a burst of 3.
    fn limit() -> Limit {
        limit_with(Quota::new(NonZeroU32::MIN, HOUR, 3).unwrap())
    }

    fn limit_with(quota: Quota) -> Limit {
        Limit {
            id: LimitId(0),
            name: "device".into(),
            quota,
            key: [KeyPart::Client].into(),
            exceed: Exceed::Reject,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
        }
    }

    /// How many of ten requests are admitted.
    fn admitted(buckets: &MemoryBuckets, client: u64) -> usize {
        (0..10)
            .filter(|_| charge(buckets, &limit(), client).is_admitted())
            .count()
    }

    /// Charges one request of `client` to `limit`.
    fn charge(buckets: &MemoryBuckets, limit: &Limit, client: u64) -> Decision {
        buckets.charge_now(&[Charge {
            limit,
            bucket: BucketKey {
                high: client,
                low: client,
            },
            cost: NonZeroU32::MIN,
        }])
    }

    /// A gateway's life in `home`, beginning at `hours`.
    fn life(home: &TempDir, hours: u32, lived: impl FnOnce(&MemoryBuckets, &Clock)) {
        let clock = clock_at(hours);
        let records =
            DiskRecords::open(home.path(), StoreCapacity::default(), clock.clone()).unwrap();
        let buckets = Arc::new(MemoryBuckets::new(1_000, clock.clone()));
        let snapshots = Snapshots::start(&records, Arc::clone(&buckets), clock.clone()).unwrap();
        lived(&buckets, &clock);
        drop(snapshots);
    }

    #[test]
    fn a_restart_hands_out_no_fresh_burst() {
        let home = TempDir::new().unwrap();
        life(&home, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
        life(&home, 0, |buckets, _| {
            assert_eq!(admitted(buckets, 1), 0);
            assert_eq!(admitted(buckets, 2), 4);
        });
        life(&home, 2, |buckets, _| assert_eq!(admitted(buckets, 1), 2));
    }

    #[test]
    fn a_limit_that_is_loosened_between_two_runs_rejects_nobody_for_the_old_period() {
        const DAY: Duration = Duration::from_hours(24);
        const MINUTE: Duration = Duration::from_mins(1);
        let thousand = NonZeroU32::new(1_000).unwrap();
        let per_day = limit_with(Quota::new(thousand, DAY, 999).unwrap());
        let per_minute = limit_with(Quota::new(thousand, MINUTE, 999).unwrap());
        let home = TempDir::new().unwrap();
        life(&home, 0, |buckets, _| {
            for _ in 0..50 {
                assert!(charge(buckets, &per_day, 1).is_admitted());
            }
        });
        life(&home, 0, |buckets, clock| {
            // The debt of 50 tokens a day is more than a whole bucket of the new quota, so it is empty.
            let token = per_minute.quota.interval();
            let rejected = charge(buckets, &per_minute, 1);
            let (wait, by) = (token, 0);
            assert_eq!(rejected.outcome, ChargeOutcome::Rejected { wait, by });
            assert_eq!(rejected.readings[0].next, token);
            clock.advance(token);
            assert!(charge(buckets, &per_minute, 1).is_admitted());
            assert!(!charge(buckets, &per_minute, 1).is_admitted());
            clock.advance(MINUTE);
            let full = charge(buckets, &per_minute, 1);
            assert_eq!(full.readings[0].remaining, 999);
        });
    }

    #[test]
    fn the_time_of_a_snapshot_is_taken_after_its_buckets_were_read() {
        let clock = clock_at(0);
        let snapshot = Snapshot::take(&clock, || {
            clock.advance(HOUR);
            Vec::new()
        });
        assert!(Duration::from_millis(snapshot.taken) >= since_1970(&clock));
    }

    #[test]
    fn a_clock_set_back_keeps_nobody_waiting_longer() {
        let home = TempDir::new().unwrap();
        life(&home, 5_000, |buckets, _| {
            assert_eq!(admitted(buckets, 1), 4);
        });
        life(&home, 0, |buckets, clock| {
            assert_eq!(admitted(buckets, 1), 0);
            clock.advance(HOUR * 2);
            assert_eq!(admitted(buckets, 1), 2);
        });
    }

    #[test]
    fn a_clock_set_ahead_is_worth_one_burst() {
        let home = TempDir::new().unwrap();
        life(&home, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
        life(&home, 9_000, |buckets, clock| {
            assert_eq!(admitted(buckets, 1), 4);
            clock.advance(HOUR);
            assert_eq!(admitted(buckets, 1), 1);
        });
    }

    #[test]
    fn a_damaged_snapshot_is_left_aside() {
        let home = TempDir::new().unwrap();
        life(&home, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
        let file = home.path().join("buckets");
        let bytes = std::fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Snapshot::decode(&damaged).is_err(), "byte {at}");
            assert!(Snapshot::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        std::fs::write(&file, b"not a snapshot").unwrap();
        life(&home, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
    }
}
