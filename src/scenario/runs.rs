//! Runs of a scenario with their traces, and the bounds on their memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::position::Position;
use super::timer_delay::TimerDelay;
use super::trace::Attempt;

/// Maximum number of runs of a scenario. Above it, the quarter of the runs that were unused for the longest time is
/// removed.
pub(super) const MAX_RUNS: usize = 8_192;

/// Maximum number of positions of all runs of a gateway. With `by = "key"`, each idempotency key has one. Above it,
/// runs are removed, and then the positions of the run start again.
pub(super) const MAX_POSITIONS: usize = 262_144;

/// Maximum size of all traces of a gateway in memory. Above it, runs that were unused for the longest time are removed.
/// If this is not enough, requests are not traced.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// Estimated size of an attempt in memory without its texts, in bytes.
const ATTEMPT_BYTES: usize = 1_024;

/// Estimated size of a header line in memory without its texts, in bytes.
const HEADER_BYTES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct ScenarioTotals {
    /// Estimated, in bytes.
    pub(super) bytes: AtomicUsize,
    pub(super) untraced: AtomicU64,
    pub(super) removed_runs: AtomicU64,
    pub(super) positions: AtomicUsize,
    pub(super) includes_bodies: AtomicBool,
    pub(super) timer_delay: Arc<TimerDelay>,
}

#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) by_id: HashMap<Arc<str>, Run>,
    pub(super) started: u64,
}

#[derive(Debug)]
pub(super) struct Run {
    /// Distinguishes runs that have the same id one after the other.
    pub(super) number: u64,
    pub(super) created: Duration,
    pub(super) used: Duration,
    /// Positions by the hash of the idempotency key, or by 0 if the scenario does not count by key.
    pub(super) positions: HashMap<u64, Position>,
    pub(super) attempts: Vec<Arc<Attempt>>,
    pub(super) bytes: usize,
    pub(super) untraced: u64,
    pub(super) in_flight: usize,
}

#[derive(Clone, Debug)]
pub(super) struct AttemptId {
    pub(super) run: Arc<str>,
    pub(super) number: u64,
    pub(super) index: usize,
}

impl Runs {
    pub(super) fn get_or_start(
        &mut self,
        id: &Arc<str>,
        now: Duration,
        shared: &ScenarioTotals,
    ) -> &mut Run {
        if self.by_id.len() >= MAX_RUNS && !self.by_id.contains_key(id) {
            self.remove_unused(id, shared);
        }
        self.started += 1;
        let number = self.started;
        let run = self.by_id.entry(Arc::clone(id)).or_insert_with(|| Run {
            number,
            created: now,
            used: now,
            positions: HashMap::new(),
            attempts: Vec::new(),
            bytes: 0,
            untraced: 0,
            in_flight: 0,
        });
        run.used = now;
        run
    }

    /// `None` if the run was removed.
    pub(super) fn find(&mut self, id: &AttemptId) -> Option<&mut Run> {
        let run = self.by_id.get_mut(&id.run);
        run.filter(|run| run.number == id.number)
    }

    /// Removes the quarter of the runs that were unused for the longest time, at least one, but not the run `except`.
    pub(super) fn remove_unused(&mut self, except: &str, shared: &ScenarioTotals) {
        let others = || self.by_id.iter().filter(|(id, _)| ***id != *except);
        let mut used: Vec<_> = others().map(|(_, run)| run.used).collect();
        if used.is_empty() {
            return;
        }
        let at = used.len() / 4;
        let (_, limit, _) = used.select_nth_unstable(at);
        let limit = *limit;
        let unused = others().filter(|(_, run)| run.used <= limit);
        let unused: Vec<_> = unused.map(|(id, _)| Arc::clone(id)).collect();
        for id in unused {
            shared.removed_runs.fetch_add(1, Ordering::Relaxed);
            self.remove(&id, shared);
        }
    }

    pub(super) fn clear(&mut self, shared: &ScenarioTotals) {
        while let Some(id) = self.by_id.keys().next().cloned() {
            self.remove(&id, shared);
        }
    }

    pub(super) fn remove(&mut self, id: &str, shared: &ScenarioTotals) -> bool {
        let removed = self.by_id.remove(id);
        if let Some(run) = &removed {
            shared.bytes.fetch_sub(run.bytes, Ordering::Relaxed);
            let positions = run.positions.len();
            shared.positions.fetch_sub(positions, Ordering::Relaxed);
        }
        removed.is_some()
    }
}

pub(super) fn attempt_bytes(attempt: &Attempt) -> usize {
    let lines = attempt.headers.iter();
    let response = attempt.response.iter();
    let lines = lines.chain(response.flat_map(|response| &response.headers));
    let headers: usize = lines
        .map(|(name, value)| HEADER_BYTES + name.as_str().len() + value.len())
        .sum();
    let content = attempt.body.content.as_ref().map_or(0, bytes::Bytes::len);
    let key = attempt.key.as_ref().map_or(0, String::len);
    let test = attempt.test.as_ref().map_or(0, |test| test.text().len());
    ATTEMPT_BYTES + attempt.target.len() + key + test + content + headers
}
