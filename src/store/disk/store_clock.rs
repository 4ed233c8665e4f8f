//! The clock of the disk store. All times in records are times of this clock.
//!
//! It advances with the boot clock (`CLOCK_BOOTTIME`), even while no process uses the store, so within one boot a step
//! of the wall clock changes no expiry. Each batch stores a reading of all clocks, from which the next process
//! continues. After a reboot, only the wall clock shows how much time has passed. If it is behind the reading, the
//! store clock does not advance. If it was set ahead after the last batch, records expire too early by this step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::clock::{BootId, Clock};
use crate::store::ended_queues::StoreTime;

/// In milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timestamp(pub(super) u64);

/// Simultaneous reading of the clocks, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClockReading {
    store_time: u64,
    /// Since 1970.
    wall: u64,
    /// Includes the time in which the system was suspended.
    since_boot: u64,
    /// `None` if the operating system provides no id.
    boot_id: Option<BootId>,
}

#[derive(Debug)]
pub(super) struct StoreClock {
    pub(super) clock: Clock,
    /// Store clock minus boot clock, in milliseconds, modulo 2^64. Constant within one boot, so restarts do not
    /// accumulate rounding errors.
    offset: AtomicU64,
}

impl StoreClock {
    /// Starts with the wall clock.
    pub(super) fn new(clock: Clock) -> Self {
        let store_clock = Self {
            clock,
            offset: AtomicU64::new(0),
        };
        let now = store_clock.read();
        store_clock.set(now.wall, now.since_boot);
        store_clock
    }

    /// Continues from the reading in the last batch.
    pub(super) fn resume(&self, last: &ClockReading) {
        let now = self.read();
        let is_same_boot = now.boot_id.is_some() && now.boot_id == last.boot_id;
        let elapsed = if is_same_boot {
            now.since_boot.saturating_sub(last.since_boot)
        } else {
            now.wall.saturating_sub(last.wall)
        };
        self.set(last.store_time.saturating_add(elapsed), now.since_boot);
    }

    /// The clock shows `store_time` when the boot clock shows `since_boot`.
    fn set(&self, store_time: u64, since_boot: u64) {
        let offset = store_time.wrapping_sub(since_boot);
        self.offset.store(offset, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> Timestamp {
        self.at(millis(self.clock.since_boot()))
    }

    fn at(&self, since_boot: u64) -> Timestamp {
        Timestamp(since_boot.wrapping_add(self.offset.load(Ordering::Relaxed)))
    }

    pub(super) fn read(&self) -> ClockReading {
        let since_boot = millis(self.clock.since_boot());
        let since_1970 = self.clock.wall().duration_since(SystemTime::UNIX_EPOCH);
        ClockReading {
            store_time: self.at(since_boot).0,
            wall: millis(since_1970.unwrap_or_default()),
            since_boot,
            boot_id: self.clock.boot_id(),
        }
    }
}

impl Timestamp {
    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(millis(time)))
    }

    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl StoreTime for Timestamp {
    fn after(self, time: Duration) -> Self {
        Self::after(self, time)
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tempfile::TempDir;

    use super::*;
    use crate::clock::Moment;
    use crate::idempotency::{
        Claim, ClaimRejection, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, KeyHash,
        OnUnknown, RecordId, RecordSettings, Records, ScopeHash,
    };
    use crate::store::StoreCapacity;
    use crate::store::disk::DiskRecords;

    const HOUR: Duration = Duration::from_hours(1);

    /// Returns the clock of a machine that has just booted.
    fn booted_machine() -> Clock {
        Clock::virtual_from(SystemTime::UNIX_EPOCH + HOUR * 400_000)
    }

    fn request() -> ClaimRequest {
        ClaimRequest {
            at: Moment::default(),
            id: RecordId {
                key: KeyHash([1; 16]),
                scope: ScopeHash([1; 16]),
            },
            client: ClientHash(1),
            fingerprint: Fingerprint::from_bytes(&[1; 32]),
            settings: RecordSettings {
                ttl: HOUR * 24,
                on_unknown: OnUnknown::Hold,
                max_keys_per_scope: NonZeroU32::MAX,
            },
        }
    }

    fn open(dir: &TempDir, clock: &Clock) -> DiskRecords {
        DiskRecords::open(dir.path(), StoreCapacity::default(), clock.clone()).unwrap()
    }

    /// Claims an idempotency key and ends its execution with an unknown outcome.
    async fn record_unknown(records: &DiskRecords) {
        match records.claim(&request()).await.unwrap() {
            Claim::Won(permit) => records
                .end(permit, ExecutionOutcome::Unknown)
                .await
                .unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns whether the idempotency key still has a record. If it has none, this call claims the key.
    async fn is_known(records: &DiskRecords) -> bool {
        match records.claim(&request()).await.unwrap() {
            Claim::Rejected(ClaimRejection::OutcomeUnknown) => true,
            Claim::Won(_) => false,
            other => panic!("{other:?}"),
        }
    }

    /// Records an unknown outcome in a first process and lets `between` change the clock. Returns whether a second
    /// process still has the record.
    async fn is_known_after(between: impl FnOnce(Clock) -> Clock) -> bool {
        let dir = TempDir::new().unwrap();
        let clock = booted_machine();
        record_unknown(&open(&dir, &clock)).await;
        is_known(&open(&dir, &between(clock))).await
    }

    #[tokio::test]
    async fn a_key_expires_after_its_ttl_across_a_restart_and_a_reboot() {
        for (hours, known) in [(23, true), (24, false)] {
            let restarted = is_known_after(|clock| {
                clock.advance(HOUR * hours);
                clock.restart_process()
            });
            assert_eq!(restarted.await, known, "restart after {hours} h");
            let rebooted = is_known_after(|clock| {
                clock.advance(HOUR * hours);
                clock.reboot()
            });
            assert_eq!(rebooted.await, known, "reboot after {hours} h");
        }
    }

    #[tokio::test]
    async fn a_wall_clock_step_ahead_does_not_expire_a_key_across_a_restart() {
        let known = is_known_after(|clock| {
            clock.step_wall(HOUR * 24 * 365);
            clock.restart_process()
        });
        assert!(known.await);
    }

    #[tokio::test]
    async fn a_wall_clock_step_back_does_not_prolong_a_key_across_a_restart() {
        let known = is_known_after(|clock| {
            clock.step_wall_back(HOUR * 1_000);
            clock.advance(HOUR * 24);
            clock.restart_process()
        });
        assert!(!known.await);
    }

    #[tokio::test]
    async fn suspended_time_counts_towards_the_ttl() {
        let dir = TempDir::new().unwrap();
        let clock = booted_machine();
        let records = open(&dir, &clock);
        record_unknown(&records).await;
        clock.suspend(HOUR * 23);
        assert!(is_known(&records).await);
        clock.suspend(HOUR);
        assert!(!is_known(&records).await);
    }

    // Across a reboot, elapsed time is measured with the wall clock. The next two tests document the effect of wall
    // clock steps.

    #[tokio::test]
    async fn a_wall_clock_set_back_before_a_reboot_prolongs_a_key_by_the_time_until_the_restart() {
        let back = |clock: Clock| {
            clock.step_wall_back(HOUR * 1_000);
            clock.reboot()
        };
        assert!(is_known_after(back).await);
        let and_a_day_later = |clock| {
            let rebooted = back(clock);
            rebooted.advance(HOUR * 24);
            rebooted
        };
        // A day after the reboot, the wall clock is still behind the time in the last batch. So the store clock has not
        // advanced.
        assert!(is_known_after(and_a_day_later).await);
        let dir = TempDir::new().unwrap();
        let clock = booted_machine();
        record_unknown(&open(&dir, &clock)).await;
        let clock = back(clock);
        let records = open(&dir, &clock);
        clock.advance(HOUR * 23);
        assert!(is_known(&records).await);
        clock.advance(HOUR);
        assert!(!is_known(&records).await);
    }

    #[tokio::test]
    async fn a_wall_clock_step_ahead_expires_a_key_early_across_a_reboot_unless_a_batch_followed_it()
     {
        let unwritten = is_known_after(|clock| {
            clock.step_wall(HOUR * 24);
            clock.reboot()
        });
        assert!(!unwritten.await);
        let dir = TempDir::new().unwrap();
        let clock = booted_machine();
        let records = open(&dir, &clock);
        clock.step_wall(HOUR * 24);
        record_unknown(&records).await;
        drop(records);
        assert!(is_known(&open(&dir, &clock.reboot())).await);
    }

    #[test]
    fn the_store_clock_does_not_drift_across_restarts_within_one_boot() {
        let clock = booted_machine();
        let first = StoreClock::new(clock.clone());
        let mut last = first.read();
        for _ in 0..100 {
            clock.advance(Duration::from_micros(1_700));
            let next = StoreClock::new(clock.restart_process());
            // Simulates the time that the engine takes to open.
            clock.advance(Duration::from_micros(2_600));
            next.resume(&last);
            assert_eq!(next.now(), first.now());
            last = next.read();
        }
    }

    #[test]
    fn a_boot_clock_behind_the_last_reading_counts_as_no_elapsed_time() {
        let clock = booted_machine();
        let store_clock = StoreClock::new(clock);
        let last = ClockReading {
            store_time: 1_000,
            since_boot: 5_000,
            ..store_clock.read()
        };
        store_clock.resume(&last);
        assert_eq!(store_clock.now(), Timestamp(1_000));
    }

    #[test]
    fn without_a_boot_id_elapsed_time_is_measured_with_the_wall_clock() {
        let clock = booted_machine();
        let store_clock = StoreClock::new(clock.clone());
        let last = ClockReading {
            store_time: 1_000,
            boot_id: None,
            ..store_clock.read()
        };
        clock.step_wall(HOUR);
        store_clock.resume(&last);
        assert_eq!(store_clock.now(), Timestamp(1_000).after(HOUR));
    }
}
