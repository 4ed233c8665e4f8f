//! State of the scenarios of a gateway: runs, the positions of their clients, and the traces of their requests.
//!
//! A run is the group of requests that one trace contains. Its id is the id of the test (`by = "test"`), or else the
//! address of the client. All workers share this state. Only routes with a scenario use it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use siphasher::sip::SipHasher13;

use super::position::Position;
use super::runs::{AttemptId, MAX_BYTES, MAX_POSITIONS, Run, Runs, ScenarioTotals, attempt_bytes};
use super::step::Step;
use super::trace::{Attempt, Trace};
use super::traced_attempt::TracedAttempt;
use super::{CountBy, Scenario};
use crate::clock::{Clock, Moment};
use crate::request::test_id::TestId;

#[derive(Clone, Debug, Default)]
pub(crate) struct Scenarios {
    states: Arc<[Arc<ScenarioState>]>,
    shared: Arc<ScenarioTotals>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScenarioUse {
    pub(crate) runs: usize,
    pub(crate) positions: usize,
    pub(crate) trace_bytes: usize,
    pub(crate) untraced: u64,
    pub(crate) removed_runs: u64,
}

pub(crate) struct ScenarioState {
    pub(crate) scenario: Arc<Scenario>,
    clock: Clock,
    origin: Moment,
    started: SystemTime,
    runs: Mutex<Runs>,
    in_flight: AtomicUsize,
    shared: Arc<ScenarioTotals>,
    refusal: OnceLock<RefusalHook>,
}

struct RefusalHook {
    refuse: RefuseConnections,
    /// Time since which the listener refuses connections, because the first step is `refuse`.
    since: Option<Moment>,
}

type RefuseConnections = Box<dyn Fn(Duration) + Send + Sync>;

#[derive(Clone, Debug)]
pub(crate) struct RunInfo {
    pub(crate) scenario: Arc<str>,
    pub(crate) id: Arc<str>,
    pub(crate) created: SystemTime,
    pub(crate) requests: u64,
}

impl Scenarios {
    /// A scenario that has not changed keeps its runs.
    pub(crate) fn renewed(&self, scenarios: &[Arc<Scenario>], clock: &Clock) -> Self {
        let state = |scenario: &Arc<Scenario>| match self.get(&scenario.name) {
            Some(known) if known.scenario == *scenario => Arc::clone(known),
            _ => Arc::new(ScenarioState::new(scenario, clock, &self.shared)),
        };
        Self {
            states: scenarios.iter().map(state).collect(),
            shared: Arc::clone(&self.shared),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<ScenarioState>> {
        self.states
            .iter()
            .find(|state| &*state.scenario.name == name)
    }

    /// In the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<ScenarioState>> {
        self.states.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(crate) fn measure_timers(&self) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.shared.timer_delay).measure()
    }

    pub(crate) fn include_bodies(&self) {
        self.shared.includes_bodies.store(true, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> ScenarioUse {
        ScenarioUse {
            runs: self.states.iter().map(|state| state.run_count()).sum(),
            positions: self.shared.positions.load(Ordering::Relaxed),
            trace_bytes: self.shared.bytes.load(Ordering::Relaxed),
            untraced: self.shared.untraced.load(Ordering::Relaxed),
            removed_runs: self.shared.removed_runs.load(Ordering::Relaxed),
        }
    }
}

impl Drop for ScenarioState {
    fn drop(&mut self) {
        self.runs.get_mut().clear(&self.shared);
    }
}

impl ScenarioState {
    fn new(scenario: &Arc<Scenario>, clock: &Clock, shared: &Arc<ScenarioTotals>) -> Self {
        Self {
            scenario: Arc::clone(scenario),
            origin: clock.now(),
            started: clock.wall(),
            clock: clock.clone(),
            runs: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            shared: Arc::clone(shared),
            refusal: OnceLock::new(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.now().since(self.origin)
    }

    /// If the first step is `refuse`, the listener refuses connections from now on. The first call counts.
    pub(crate) fn set_refusal(&self, refuse: impl Fn(Duration) + Send + Sync + 'static) {
        let now = self.clock.now();
        let time = Position::new(0, None).refuses_next(&self.scenario, now);
        if let Some(time) = time {
            refuse(time);
        }
        let refusal = RefusalHook {
            refuse: Box::new(refuse),
            since: time.map(|_| now),
        };
        let _already_set = self.refusal.set(refusal);
    }

    pub(crate) fn includes_bodies(&self) -> bool {
        self.shared.includes_bodies.load(Ordering::Relaxed)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Ends a request that [`begin`](Self::begin) has started.
    pub(super) fn leave(&self, id: Option<&AttemptId>) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut runs = self.runs.lock();
        if let Some(run) = id.and_then(|id| runs.find(id)) {
            run.in_flight -= 1;
        }
    }

    pub(crate) fn run_id(
        &self,
        client: crate::request::client::ClientId,
        test: Option<&TestId>,
    ) -> Arc<str> {
        match test.filter(|_| self.scenario.by == CountBy::Test) {
            Some(id) => Arc::clone(id.text()),
            None => client.to_string().into(),
        }
    }

    pub(crate) fn begin(self: &Arc<Self>, run: &Arc<str>, attempt: Attempt) -> TracedAttempt {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let bytes = attempt_bytes(&attempt);
        let mut runs = self.runs.lock();
        if self.shared.bytes.load(Ordering::Relaxed) + bytes > MAX_BYTES {
            runs.remove_unused(run, &self.shared);
        }
        let is_full = self.shared.bytes.load(Ordering::Relaxed) + bytes > MAX_BYTES;
        let found = runs.get_or_start(run, self.elapsed(), &self.shared);
        let id = if is_full {
            self.shared.untraced.fetch_add(1, Ordering::Relaxed);
            found.untraced += 1;
            None
        } else {
            self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            found.bytes += bytes;
            found.in_flight += 1;
            found.attempts.push(Arc::new(attempt));
            Some(AttemptId {
                run: Arc::clone(run),
                number: found.number,
                index: found.attempts.len() - 1,
            })
        };
        drop(runs);
        TracedAttempt::new(Arc::clone(self), id)
    }

    /// `None` if the request passes.
    pub(crate) fn next_step(&self, run: &Arc<str>, key: Option<&str>) -> Option<Arc<Step>> {
        let now = self.clock.now();
        let scenario = &*self.scenario;
        let key = key.filter(|_| scenario.by == CountBy::Key);
        let key = key.map_or(0, hash);
        let seed = scenario.seed ^ hash(run) ^ key;
        let refusal = self.refusal.get();
        let positions = &self.shared.positions;
        let mut runs = self.runs.lock();
        if positions.load(Ordering::Relaxed) >= MAX_POSITIONS {
            runs.remove_unused(run, &self.shared);
        }
        let run = runs.get_or_start(run, self.elapsed(), &self.shared);
        if positions.load(Ordering::Relaxed) >= MAX_POSITIONS {
            positions.fetch_sub(run.positions.len(), Ordering::Relaxed);
            run.positions.clear();
        }
        let position = run.positions.entry(key).or_insert_with(|| {
            positions.fetch_add(1, Ordering::Relaxed);
            Position::new(seed, refusal.and_then(|refusal| refusal.since))
        });
        let step = position.next(scenario, now);
        let refused = position.refuses_next(scenario, now);
        drop(runs);
        if let (Some(time), Some(refusal)) = (refused, refusal) {
            (refusal.refuse)(time);
        }
        step
    }

    /// A run that already has this id ends, and its clients start with the first step.
    pub(crate) fn start_run(&self, id: &str) -> RunInfo {
        let id: Arc<str> = id.into();
        let mut runs = self.runs.lock();
        runs.remove(&id, &self.shared);
        let run = runs.get_or_start(&id, self.elapsed(), &self.shared);
        self.info(&id, run)
    }

    pub(crate) fn is_in_flight(&self, id: &str) -> bool {
        let runs = self.runs.lock();
        runs.by_id.get(id).is_some_and(|run| run.in_flight > 0)
    }

    pub(crate) fn has_run(&self, id: &str) -> bool {
        self.runs.lock().by_id.contains_key(id)
    }

    pub(crate) fn remove_run(&self, id: &str) -> bool {
        self.runs.lock().remove(id, &self.shared)
    }

    /// Oldest first.
    pub(crate) fn runs(&self) -> Vec<RunInfo> {
        let runs = self.runs.lock();
        let mut infos: Vec<_> = runs
            .by_id
            .iter()
            .map(|(id, run)| self.info(id, run))
            .collect();
        infos.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        infos
    }

    fn info(&self, id: &Arc<str>, run: &Run) -> RunInfo {
        RunInfo {
            scenario: Arc::clone(&self.scenario.name),
            id: Arc::clone(id),
            created: self.started + run.created,
            requests: run.attempts.len() as u64 + run.untraced,
        }
    }

    /// Times count since the start of the run. The flag says whether one of its requests is in flight.
    pub(crate) fn run_trace(&self, id: &str) -> Option<(Trace, bool)> {
        let runs = self.runs.lock();
        let run = runs.by_id.get(id)?;
        let (created, untraced) = (run.created, run.untraced);
        let (attempts, in_flight) = (run.attempts.clone(), run.in_flight > 0);
        // The attempts are copied without the lock, which requests need.
        drop(runs);
        let mut trace = self.trace_of(attempts, untraced);
        trace.started += created;
        for attempt in &mut trace.attempts {
            attempt.arrived = attempt.arrived.saturating_sub(created);
            if let Some(response) = &mut attempt.response {
                response.started = response.started.saturating_sub(created);
                response.ended = response.ended.saturating_sub(created);
            }
        }
        Some((trace, in_flight))
    }

    /// Times count since the scenario was loaded.
    pub(crate) fn trace(&self) -> Trace {
        let runs = self.runs.lock();
        let attempts = runs.by_id.values().flat_map(|run| &run.attempts);
        let attempts = attempts.cloned().collect();
        let untraced = runs.by_id.values().map(|run| run.untraced).sum();
        drop(runs);
        self.trace_of(attempts, untraced)
    }

    /// A request is added after its body has been read, so the order of the trace can differ from that of the arrivals.
    fn trace_of(&self, mut attempts: Vec<Arc<Attempt>>, untraced: u64) -> Trace {
        attempts.sort_by_key(|attempt| attempt.arrived);
        Trace {
            started: self.started,
            attempts: attempts.into_iter().map(Arc::unwrap_or_clone).collect(),
            untraced,
            timer_delay: self.shared.timer_delay.percentile_99(),
        }
    }

    /// Does nothing if the run has ended.
    pub(super) fn update(&self, id: &AttemptId, change: impl FnOnce(&mut Attempt)) {
        let mut runs = self.runs.lock();
        let Some(run) = runs.find(id) else {
            return;
        };
        // An attempt is copied if a request for a verdict reads it at the same time.
        let attempt = Arc::make_mut(&mut run.attempts[id.index]);
        let before = attempt_bytes(attempt);
        change(attempt);
        let added = attempt_bytes(attempt).saturating_sub(before);
        run.bytes += added;
        self.shared.bytes.fetch_add(added, Ordering::Relaxed);
    }

    fn run_count(&self) -> usize {
        self.runs.lock().by_id.len()
    }
}

fn hash(text: &str) -> u64 {
    SipHasher13::new().hash(text.as_bytes())
}

impl fmt::Debug for ScenarioState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScenarioState")
            .field("scenario", &self.scenario.name)
            .field("runs", &self.run_count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
