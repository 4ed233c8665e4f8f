//! Test of the store clock with random histories within one boot, compared with a model of the idempotency keys.
//!
//! The model uses only the boot clock: a key can be claimed again exactly when its TTL has passed since its execution
//! ended. A process ends by a drain or by a kill. After a kill, the history continues with a copy of the store
//! directory that was made while the store was open. The copy represents the page cache, which survives a killed
//! process.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use http::{HeaderMap, StatusCode};
use tempfile::TempDir;

use crate::clock::{Clock, Moment};
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, KeyHash,
    OnUnknown, Permit, RecordId, RecordSettings, Records, ScopeHash, StoredResponse,
};
use crate::store::StoreCapacity;
use crate::store::disk::DiskRecords;

const TTL: Duration = Duration::from_mins(1);
const KEYS: usize = 4;
const HISTORIES: u64 = 12;
const STEPS: usize = 120;

/// State of an idempotency key in the model.
#[derive(Debug, Default)]
enum ModelKey {
    #[default]
    Unused,
    InFlight(Permit),
    /// The execution ended at this time since boot. Its outcome can be unknown.
    Ended(Duration),
}

/// Number of times that each case occurred in all histories together.
#[derive(Debug, Default)]
struct CaseCounts {
    replayed: usize,
    unknown: usize,
    executed_again_after_ttl: usize,
    drains: usize,
    kills: usize,
    wall_steps_before_a_restart: usize,
}

struct StoreHistory {
    seed: u64,
    random: Rng,
    clock: Clock,
    dir: TempDir,
    /// The open store. `None` while no process runs.
    records: Option<DiskRecords>,
    keys: [ModelKey; KEYS],
    events: Vec<String>,
    /// Whether the wall clock was stepped since the last restart.
    has_stepped: bool,
}

impl StoreHistory {
    fn begin(seed: u64) -> Self {
        let start = SystemTime::UNIX_EPOCH + Duration::from_hours(400_000);
        let clock = Clock::virtual_from(start);
        clock.advance(Duration::from_secs(20));
        let dir = TempDir::new().unwrap();
        Self {
            seed,
            random: Rng::with_seed(seed),
            records: Some(open(dir.path(), &clock)),
            clock,
            dir,
            keys: Default::default(),
            events: Vec::new(),
            has_stepped: false,
        }
    }

    async fn step(&mut self, cases: &mut CaseCounts) {
        match self.random.u8(..20) {
            0..8 => self.claim(cases).await,
            8..12 => self.complete().await,
            12..16 => self.pass_time(),
            16..18 => self.step_wall(),
            18 => self.drain(cases).await,
            _ => self.kill(cases),
        }
    }

    async fn claim(&mut self, cases: &mut CaseCounts) {
        let index = self.random.usize(..KEYS);
        let now = self.clock.since_boot();
        let claim = self.records().claim(&request(index)).await.unwrap();
        self.log(&format!("claim of key {index}: {}", name(&claim)));
        let is_within_ttl = match &self.keys[index] {
            ModelKey::Unused => false,
            ModelKey::InFlight(_) => {
                assert!(matches!(claim, Claim::InFlight(_)), "{}", self.event_log());
                return;
            }
            ModelKey::Ended(at) => now < *at + TTL,
        };
        match claim {
            Claim::Won(permit) => {
                let event_log = || format!("key {index} executed twice\n{}", self.event_log());
                assert!(!is_within_ttl, "{}", event_log());
                let last = std::mem::replace(&mut self.keys[index], ModelKey::InFlight(permit));
                cases.executed_again_after_ttl += usize::from(matches!(last, ModelKey::Ended(_)));
            }
            Claim::Replay(_) | Claim::Rejected(ClaimRejection::OutcomeUnknown) => {
                let event_log = || format!("key {index} outlives its TTL\n{}", self.event_log());
                assert!(is_within_ttl, "{}", event_log());
                if matches!(claim, Claim::Rejected(ClaimRejection::OutcomeUnknown)) {
                    cases.unknown += 1;
                } else {
                    cases.replayed += 1;
                }
            }
            other => panic!("{other:?}\n{}", self.event_log()),
        }
    }

    /// Completes one execution in flight, if there is any.
    async fn complete(&mut self) {
        let in_flight = |key: &&mut ModelKey| matches!(key, ModelKey::InFlight(_));
        let Some(key) = self.keys.iter_mut().find(in_flight) else {
            return;
        };
        let ended = ModelKey::Ended(self.clock.since_boot());
        if let ModelKey::InFlight(permit) = std::mem::replace(key, ended) {
            let response = StoredResponse::new(StatusCode::CREATED, &HeaderMap::new(), b"made");
            let outcome = ExecutionOutcome::Completed(response.into());
            self.records().end(permit, outcome).await.unwrap();
            self.log("completion");
        }
    }

    fn pass_time(&mut self) {
        let time = Duration::from_millis(self.random.u64(1..30_000));
        if self.random.bool() {
            self.clock.advance(time);
            self.log(&format!("{time:?} pass"));
        } else {
            self.clock.suspend(time);
            self.log(&format!("{time:?} pass suspended"));
        }
    }

    fn step_wall(&mut self) {
        let step = Duration::from_secs(self.random.u64(1..100_000_000));
        if self.random.bool() {
            self.clock.step_wall(step);
            self.log(&format!("wall clock {step:?} ahead"));
        } else {
            self.clock.step_wall_back(step);
            self.log(&format!("wall clock {step:?} back"));
        }
        self.has_stepped = true;
    }

    async fn drain(&mut self, cases: &mut CaseCounts) {
        while self
            .keys
            .iter()
            .any(|key| matches!(key, ModelKey::InFlight(_)))
        {
            self.complete().await;
        }
        self.log("drain and restart");
        cases.drains += 1;
        self.records = None;
        self.restart(cases);
    }

    fn kill(&mut self, cases: &mut CaseCounts) {
        let copy = TempDir::new().unwrap();
        copy_dir(self.dir.path(), copy.path());
        self.log("kill and restart");
        cases.kills += 1;
        let killed = std::mem::replace(&mut self.dir, copy);
        self.records = None;
        self.restart(cases);
        for key in &mut self.keys {
            if matches!(key, ModelKey::InFlight(_)) {
                // The restart has recorded the outcome as unknown. The dropped permit writes to the old directory and
                // has no effect.
                *key = ModelKey::Ended(self.clock.since_boot());
            }
        }
        drop(killed);
    }

    fn restart(&mut self, cases: &mut CaseCounts) {
        if self.random.bool() {
            self.pass_time();
        }
        if self.random.u8(..4) == 0 {
            self.step_wall();
        }
        cases.wall_steps_before_a_restart += usize::from(self.has_stepped);
        self.has_stepped = false;
        self.clock = self.clock.restart_process();
        self.records = Some(open(self.dir.path(), &self.clock));
    }

    fn records(&self) -> &DiskRecords {
        self.records.as_ref().unwrap()
    }

    fn log(&mut self, event: &str) {
        let at = self.clock.since_boot();
        self.events.push(format!("{at:?}: {event}"));
    }

    fn event_log(&self) -> String {
        format!("seed {}:\n{}", self.seed, self.events.join("\n"))
    }
}

fn open(dir: &Path, clock: &Clock) -> DiskRecords {
    DiskRecords::open(dir, StoreCapacity::default(), clock.clone()).unwrap()
}

fn request(index: usize) -> ClaimRequest {
    let byte = u8::try_from(index).unwrap();
    ClaimRequest {
        at: Moment::default(),
        id: RecordId {
            key: KeyHash([byte; 16]),
            scope: ScopeHash([1; 16]),
        },
        client: ClientHash(1),
        fingerprint: Fingerprint::from_bytes(&[byte; 32]),
        settings: RecordSettings {
            ttl: TTL,
            on_unknown: OnUnknown::Hold,
            max_keys_per_scope: NonZeroU32::MAX,
        },
    }
}

fn name(claim: &Claim) -> &'static str {
    match claim {
        Claim::Won(_) => "executed",
        Claim::Replay(_) => "replayed",
        Claim::InFlight(_) => "in flight",
        Claim::Rejected(ClaimRejection::OutcomeUnknown) => "outcome unknown",
        Claim::Rejected(_) => "other",
    }
}

/// Copies the directory of an open store. The file `acknowledged` is copied before the engine, because the store writes
/// further batches during the copy. In the opposite order, the copied file could state a larger number of batches than
/// the copied engine has. The store would then report lost batches.
fn copy_dir(from: &Path, to: &Path) {
    let mut entries: Vec<_> = fs::read_dir(from).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(|entry| entry.file_name() != "acknowledged");
    for entry in entries {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy_dir(&entry.path(), &to);
        } else if entry.file_name() != "reserve" {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test]
async fn wall_clock_steps_within_one_boot_neither_shorten_nor_prolong_the_ttl_of_a_key() {
    let mut cases = CaseCounts::default();
    for seed in 0..HISTORIES {
        let mut history = StoreHistory::begin(seed);
        for _ in 0..STEPS {
            history.step(&mut cases).await;
        }
    }
    let CaseCounts {
        replayed,
        unknown,
        executed_again_after_ttl,
        drains,
        kills,
        wall_steps_before_a_restart,
    } = cases;
    for count in [
        replayed,
        unknown,
        executed_again_after_ttl,
        drains,
        kills,
        wall_steps_before_a_restart,
    ] {
        assert!(
            count >= 10,
            "a case occurred fewer than 10 times: {cases:?}"
        );
    }
}
