//! The store's own time, in which records are stamped.
//!
//! The store's time advances with the boot clock, also while no process uses the store: a step of the wall clock
//! within one boot neither shortens nor prolongs the life of a record. Each batch stores a reading of all clocks,
//! from which the next process resumes. After a reboot only the wall clock shows how much time has passed. If it
//! is behind the last reading, no time has passed. If it was set ahead after the last batch, records expire
//! early by that step.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::clock::{BootId, Clock};

/// A point in the store's own time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(pub(super) u64);

/// The clocks at one point in time, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClockReading {
    /// The store's own time.
    stamp: u64,
    /// Wall clock, since 1970.
    wall: u64,
    /// Time since boot, suspended time included.
    since_boot: u64,
    /// The boot that `since_boot` counts from, if the system identifies it.
    boot_id: Option<BootId>,
}

/// The source of the store's own time.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) clock: Clock,
    /// The store's time minus the time since boot, in milliseconds, modulo 2^64. It is constant within one boot,
    /// so restarts accumulate no rounding errors.
    offset: AtomicU64,
}

impl Timeline {
    /// Starts the time of a new store at the time of the wall clock.
    pub(super) fn new(clock: Clock) -> Self {
        let timeline = Self {
            clock,
            offset: AtomicU64::new(0),
        };
        let now = timeline.read();
        timeline.set(now.wall, now.since_boot);
        timeline
    }

    /// Resumes the time of a store whose last batch was written at `last`.
    pub(super) fn resume(&self, last: &ClockReading) {
        let now = self.read();
        let is_same_boot = now.boot_id.is_some() && now.boot_id == last.boot_id;
        let elapsed = if is_same_boot {
            now.since_boot.saturating_sub(last.since_boot)
        } else {
            now.wall.saturating_sub(last.wall)
        };
        self.set(last.stamp.saturating_add(elapsed), now.since_boot);
    }

    /// Sets the store's time at `since_boot` to `stamp`.
    fn set(&self, stamp: u64, since_boot: u64) {
        let offset = stamp.wrapping_sub(since_boot);
        self.offset.store(offset, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> Stamp {
        self.at(millis(self.clock.since_boot()))
    }

    fn at(&self, since_boot: u64) -> Stamp {
        Stamp(since_boot.wrapping_add(self.offset.load(Ordering::Relaxed)))
    }

    /// Reads the store's time, the wall clock and the boot clock at once.
    pub(super) fn read(&self) -> ClockReading {
        let since_boot = millis(self.clock.since_boot());
        let since_1970 = self.clock.wall().duration_since(SystemTime::UNIX_EPOCH);
        ClockReading {
            stamp: self.at(since_boot).0,
            wall: millis(since_1970.unwrap_or_default()),
            since_boot,
            boot_id: self.clock.boot_id(),
        }
    }
}

impl Stamp {
    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(millis(time)))
    }

    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tempfile::TempDir;

    use super::*;
    use crate::clock::Moment;
    use crate::idempotency::{
        Claim, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, KeyHash, OnUnknown,
        RecordId, RecordSettings, Records, ScopeHash,
    };
    use crate::store::StoreCapacity;
    use crate::store::disk::DiskRecords;

    const HOUR: Duration = Duration::from_hours(1);

    /// A machine that boots now.
    fn machine() -> Clock {
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

    fn open(home: &TempDir, clock: &Clock) -> DiskRecords {
        DiskRecords::open(home.path(), StoreCapacity::default(), clock.clone()).unwrap()
    }

    async fn lose_a_key(records: &DiskRecords) {
        match records.claim(&request()).await.unwrap() {
            Claim::Won(permit) => records
                .end(permit, ExecutionOutcome::Unknown)
                .await
                .unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn is_known(records: &DiskRecords) -> bool {
        match records.claim(&request()).await.unwrap() {
            Claim::Unknown => true,
            Claim::Won(_) => false,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the key that is lost in a first process is known in a second one.
    async fn is_known_after(between: impl FnOnce(Clock) -> Clock) -> bool {
        let home = TempDir::new().unwrap();
        let clock = machine();
        lose_a_key(&open(&home, &clock)).await;
        is_known(&open(&home, &between(clock))).await
    }

    #[tokio::test]
    async fn a_key_lives_for_its_ttl_over_a_restart_and_over_a_reboot() {
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
    async fn a_wall_step_after_the_last_write_does_not_expire_a_key_over_a_restart() {
        let known = is_known_after(|clock| {
            clock.step_wall(HOUR * 24 * 365);
            clock.restart_process()
        });
        assert!(known.await);
    }

    #[tokio::test]
    async fn a_wall_step_back_does_not_prolong_a_key_over_a_restart() {
        let known = is_known_after(|clock| {
            clock.step_wall_back(HOUR * 1_000);
            clock.advance(HOUR * 24);
            clock.restart_process()
        });
        assert!(!known.await);
    }

    #[tokio::test]
    async fn suspended_time_counts() {
        let home = TempDir::new().unwrap();
        let clock = machine();
        let records = open(&home, &clock);
        lose_a_key(&records).await;
        clock.suspend(HOUR * 23);
        assert!(is_known(&records).await);
        clock.suspend(HOUR);
        assert!(!is_known(&records).await);
    }

    // The wall clock is all that is known across a reboot. These tests state what a step of it does there.

    #[tokio::test]
    async fn a_wall_clock_that_is_behind_after_a_reboot_prolongs_a_key_by_the_unseen_time() {
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
        // The second process sees no time pass before its first reading, which is still behind the last one.
        assert!(is_known_after(and_a_day_later).await);
        let home = TempDir::new().unwrap();
        let clock = machine();
        lose_a_key(&open(&home, &clock)).await;
        let clock = back(clock);
        let records = open(&home, &clock);
        clock.advance(HOUR * 23);
        assert!(is_known(&records).await);
        clock.advance(HOUR);
        assert!(!is_known(&records).await);
    }

    #[tokio::test]
    async fn a_wall_step_ahead_expires_a_key_early_over_a_reboot_unless_the_store_wrote_after_it() {
        let unwritten = is_known_after(|clock| {
            clock.step_wall(HOUR * 24);
            clock.reboot()
        });
        assert!(!unwritten.await);
        let home = TempDir::new().unwrap();
        let clock = machine();
        let records = open(&home, &clock);
        clock.step_wall(HOUR * 24);
        lose_a_key(&records).await;
        drop(records);
        assert!(is_known(&open(&home, &clock.reboot())).await);
    }

    #[test]
    fn the_time_does_not_drift_over_restarts_within_one_boot() {
        let clock = machine();
        let first = Timeline::new(clock.clone());
        let mut last = first.read();
        for _ in 0..100 {
            clock.advance(Duration::from_micros(1_700));
            let next = Timeline::new(clock.restart_process());
            // The engine takes its time to open.
            clock.advance(Duration::from_micros(2_600));
            next.resume(&last);
            assert_eq!(next.now(), first.now());
            last = next.read();
        }
    }

    #[test]
    fn a_boot_clock_that_is_behind_within_one_boot_means_that_no_time_has_passed() {
        let clock = machine();
        let timeline = Timeline::new(clock);
        let last = ClockReading {
            stamp: 1_000,
            since_boot: 5_000,
            ..timeline.read()
        };
        timeline.resume(&last);
        assert_eq!(timeline.now(), Stamp(1_000));
    }

    #[test]
    fn without_a_boot_id_the_wall_clock_counts() {
        let clock = machine();
        let timeline = Timeline::new(clock.clone());
        let last = ClockReading {
            stamp: 1_000,
            boot_id: None,
            ..timeline.read()
        };
        clock.step_wall(HOUR);
        timeline.resume(&last);
        assert_eq!(timeline.now(), Stamp(1_000).after(HOUR));
    }
}
