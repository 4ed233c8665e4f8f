//! Snapshots of the buckets of all rate limits, so that a restart does not refill them.
//!
//! A thread writes all buckets that are not full to a file every 10 s and at shutdown, so a crash loses the charges of
//! the last 10 s. The file has the wall clock, and for each bucket how long it needs to refill, now and when it is
//! empty. If the clock was set back before a restart, no client waits longer than at the snapshot. If it was set ahead,
//! a client gets at most one extra burst.
//!
//! Overflow buckets are not saved. If a snapshot cannot be read, a warning is logged and all buckets start full: unlike
//! that of a record, its loss breaks no guarantee.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use thiserror::Error;

use super::store_dir::replace;
use super::{DiskOpenError, DiskRecords};
use crate::clock::{Clock, Moment};
use crate::store::memory::MemoryBuckets;
use crate::throttle::{BucketKey, BucketState};

const INTERVAL: Duration = Duration::from_secs(10);

const VERSION: u8 = 2;

/// Version and time, in bytes.
const HEAD: usize = 9;

/// Hash, time until the bucket is full, refill time, in bytes.
const ENTRY: usize = 32;

/// BLAKE3, in bytes.
const CHECKSUM: usize = 32;

/// Closing or dropping the value writes a last snapshot and stops the thread.
#[derive(Debug)]
pub(crate) struct BucketSnapshots {
    stop: Mutex<Option<mpsc::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Error)]
enum SnapshotError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "the snapshot has format {0}, but this version of Tidegate reads only format {VERSION}"
    )]
    Format(u8),
    #[error("the snapshot is damaged: its checksum does not match")]
    Checksum,
}

struct BucketSnapshot {
    /// Wall clock in milliseconds since 1970, read after all buckets.
    taken: u64,
    /// `full_at` is the time until the bucket is full.
    buckets: Vec<(BucketKey, BucketState)>,
}

impl BucketSnapshots {
    /// Restores `buckets` from the last snapshot.
    pub(crate) fn start(
        records: &DiskRecords,
        buckets: Arc<MemoryBuckets>,
        clock: Clock,
    ) -> Result<Self, DiskOpenError> {
        let file = records.path().join("buckets");
        restore(&file, &buckets, &clock);
        let (stop, stopped) = mpsc::channel();
        // Keeps the store directory locked until the last snapshot is written.
        let directory_lock = records.clone();
        let thread = thread::Builder::new()
            .name("tidegate-buckets".into())
            .spawn(move || {
                let mut failing = false;
                loop {
                    let last = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                    let saved = save(&file, &buckets, &clock);
                    // A failure is logged when it begins and when it ends, not for each snapshot.
                    match &saved {
                        Err(error) if !failing => {
                            tracing::warn!(
                                %error,
                                file = %file.display(),
                                "cannot write snapshot of rate limit buckets, a restart would not count requests \
                                 since the last snapshot"
                            );
                        }
                        Ok(()) if failing => tracing::info!("snapshot of rate limit buckets written after earlier failures"),
                        _ => {}
                    }
                    failing = saved.is_err();
                    if last {
                        break;
                    }
                }
                drop(directory_lock);
            })
            .map_err(DiskOpenError::Thread)?;
        Ok(Self {
            stop: Mutex::new(Some(stop)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Blocks until the last snapshot is written.
    pub(crate) fn close(&self) {
        drop(self.stop.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(
                "snapshot thread of rate limit buckets panicked, a restart does not count requests since the last \
                 snapshot"
            );
        }
    }
}

impl Drop for BucketSnapshots {
    fn drop(&mut self) {
        self.close();
    }
}

fn save(file: &Path, buckets: &MemoryBuckets, clock: &Clock) -> io::Result<()> {
    let snapshot = BucketSnapshot::take(clock, || {
        let mut drained = buckets.drained();
        let now = clock.now().as_nanos();
        for (_, state) in &mut drained {
            state.full_at = Moment::from_nanos(state.full_at.as_nanos().saturating_sub(now));
        }
        drained
    });
    replace(file, &snapshot.encode())
}

fn restore(file: &Path, buckets: &MemoryBuckets, clock: &Clock) {
    let snapshot = match read(file) {
        Ok(Some(snapshot)) => snapshot,
        Ok(None) => return,
        Err(error) => {
            let file = file.display();
            tracing::warn!(%error, %file, "cannot read snapshot of rate limit buckets, all buckets start full");
            return;
        }
    };
    let elapsed = since_1970(clock).saturating_sub(Duration::from_millis(snapshot.taken));
    let elapsed = Moment::default().after(elapsed);
    let now = clock.now();
    let drained = snapshot.buckets.into_iter();
    let drained = drained.filter(|(_, state)| state.full_at > elapsed);
    buckets.restore(drained.map(|(bucket, state)| {
        let full_at = now.after(state.full_at.since(elapsed));
        (bucket, BucketState { full_at, ..state })
    }));
}

fn read(file: &Path) -> Result<Option<BucketSnapshot>, SnapshotError> {
    match std::fs::read(file) {
        Ok(bytes) => BucketSnapshot::decode(&bytes).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn since_1970(clock: &Clock) -> Duration {
    let since = clock.wall().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

impl BucketSnapshot {
    /// The time is read after the buckets and rounded up. If it were too early, [`restore`] would refill too many
    /// tokens.
    fn take(clock: &Clock, read: impl FnOnce() -> Vec<(BucketKey, BucketState)>) -> Self {
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
        for (bucket, state) in &self.buckets {
            let left = state.full_at.as_nanos();
            for number in [bucket.high, bucket.low, left, state.refill] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        match bytes.first() {
            Some(&version) if version != VERSION => return Err(SnapshotError::Format(version)),
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
            let state = BucketState {
                full_at: Moment::from_nanos(number(&entry[16..24])),
                refill: number(&entry[24..]),
            };
            (bucket, state)
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
        Charge, ChargeOutcome, Decision, Exceed, KeyPart, Limit, Mode, OnStoreError, Quota,
        QuotaSince, RetryAfterForm,
    };

    const HOUR: Duration = Duration::from_hours(1);

    fn clock_at(hours: u32) -> Clock {
        Clock::virtual_from(SystemTime::UNIX_EPOCH + HOUR * (400_000 + hours))
    }

    /// Returns a rate limit of one request per hour with a burst of 3. A full bucket has 4 tokens.
    fn limit() -> Limit {
        limit_with(Quota::new(NonZeroU32::MIN, HOUR, 3).unwrap())
    }

    fn limit_with(quota: Quota) -> Limit {
        Limit {
            name: "device".into(),
            quota,
            quota_since: QuotaSince::default(),
            key: [KeyPart::Client].into(),
            exceed: Exceed::Reject,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
            log_key: false,
        }
    }

    /// Sends ten requests of `client` and returns how many are admitted.
    fn admitted(buckets: &MemoryBuckets, client: u64) -> usize {
        (0..10)
            .filter(|_| charge(buckets, &limit(), client).is_admitted())
            .count()
    }

    /// Charges one request of `client` to the rate limit `limit`.
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

    /// Restores buckets from the snapshot in `dir` at hour `hours`, runs `test` with them, and writes a snapshot to
    /// `dir`.
    fn with_buckets(dir: &TempDir, hours: u32, test: impl FnOnce(&MemoryBuckets, &Clock)) {
        let clock = clock_at(hours);
        let records =
            DiskRecords::open(dir.path(), StoreCapacity::default(), clock.clone()).unwrap();
        let buckets = Arc::new(MemoryBuckets::new(1_000, clock.clone()));
        let snapshots =
            BucketSnapshots::start(&records, Arc::clone(&buckets), clock.clone()).unwrap();
        test(&buckets, &clock);
        drop(snapshots);
    }

    #[test]
    fn a_restart_does_not_refill_buckets() {
        let dir = TempDir::new().unwrap();
        with_buckets(&dir, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
        with_buckets(&dir, 0, |buckets, _| {
            assert_eq!(admitted(buckets, 1), 0);
            assert_eq!(admitted(buckets, 2), 4);
        });
        with_buckets(&dir, 2, |buckets, _| assert_eq!(admitted(buckets, 1), 2));
    }

    #[test]
    fn a_quota_raised_between_two_runs_keeps_the_filled_fraction_of_a_bucket() {
        const DAY: Duration = Duration::from_hours(24);
        const MINUTE: Duration = Duration::from_mins(1);
        let thousand = NonZeroU32::new(1_000).unwrap();
        let per_day = limit_with(Quota::new(thousand, DAY, 999).unwrap());
        let per_minute = limit_with(Quota::new(thousand, MINUTE, 999).unwrap());
        let dir = TempDir::new().unwrap();
        with_buckets(&dir, 0, |buckets, _| {
            for _ in 0..1_000 {
                assert!(charge(buckets, &per_day, 1).is_admitted());
            }
        });
        with_buckets(&dir, 0, |buckets, clock| {
            let token = per_minute.quota.interval();
            let rejected = charge(buckets, &per_minute, 1);
            let (wait, by) = (token, 0);
            assert_eq!(rejected.outcome, ChargeOutcome::Rejected { wait, by });
            assert_eq!(rejected.readings[0].next, token);
            clock.advance(MINUTE / 2);
            assert_eq!(charge(buckets, &per_minute, 1).readings[0].remaining, 499);
            clock.advance(MINUTE);
            let full = charge(buckets, &per_minute, 1);
            assert_eq!(full.readings[0].remaining, 999);
        });
    }

    #[test]
    fn the_time_of_a_snapshot_is_read_after_its_buckets() {
        let clock = clock_at(0);
        let snapshot = BucketSnapshot::take(&clock, || {
            clock.advance(HOUR);
            Vec::new()
        });
        assert!(Duration::from_millis(snapshot.taken) >= since_1970(&clock));
    }

    #[test]
    fn a_clock_set_back_does_not_delay_the_refill() {
        let dir = TempDir::new().unwrap();
        with_buckets(&dir, 5_000, |buckets, _| {
            assert_eq!(admitted(buckets, 1), 4);
        });
        with_buckets(&dir, 0, |buckets, clock| {
            assert_eq!(admitted(buckets, 1), 0);
            clock.advance(HOUR * 2);
            assert_eq!(admitted(buckets, 1), 2);
        });
    }

    #[test]
    fn a_clock_set_ahead_gives_one_extra_burst() {
        let dir = TempDir::new().unwrap();
        with_buckets(&dir, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
        with_buckets(&dir, 9_000, |buckets, clock| {
            assert_eq!(admitted(buckets, 1), 4);
            clock.advance(HOUR);
            assert_eq!(admitted(buckets, 1), 1);
        });
    }

    #[test]
    fn a_damaged_snapshot_is_ignored() {
        let dir = TempDir::new().unwrap();
        with_buckets(&dir, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
        let file = dir.path().join("buckets");
        let bytes = std::fs::read(&file).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(BucketSnapshot::decode(&damaged).is_err(), "byte {at}");
            assert!(BucketSnapshot::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        std::fs::write(&file, b"not a snapshot").unwrap();
        with_buckets(&dir, 0, |buckets, _| assert_eq!(admitted(buckets, 1), 4));
    }
}
