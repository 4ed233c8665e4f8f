//! Groups the requests of a trace into operations.
//!
//! Requests with an idempotency key belong together if client and key are equal. A request without a key continues the
//! operation of an identical request that failed before.
//!
//! Concurrent identical requests, such as those of several threads, make this ambiguous. If two operations match, no
//! rule uses the request and both operations. Connections also show concurrency: all identical requests are
//! unattributed if connections alternate and a request on another connection is early. Without an early request, a
//! client with a connection pool can alternate too.
//!
//! A client that gives up and later sends an identical request without a key looks like a client that retries, unless
//! it has waited before its retries and sends this request immediately.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use http::Method;

use super::outcome::Outcome;
use super::stated::{StatedTimes, has_time};
use crate::request::client::ClientId;
use crate::request::test_id::X_TIDEGATE_TEST;
use crate::scenario::trace::{Attempt, ObservedBody, ResponseEnd};

/// Least time after which a client stops waiting for a response. Identical requests within a shorter time are
/// concurrent.
const MIN_TIMEOUT: Duration = Duration::from_millis(20);

/// Maximum delay of a request that follows immediately.
const IMMEDIATE: Duration = Duration::from_millis(5);

/// Least delay before a retry that shows that a client does not retry immediately.
const MIN_BACKOFF: Duration = Duration::from_millis(100);

/// A first request and its retries.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) client: ClientId,
    /// Indices of the attempts in the trace, in the order of their arrival.
    pub(crate) attempts: Vec<usize>,
}

impl Operation {
    pub(crate) fn last(&self) -> usize {
        *self.attempts.last().expect("an operation has an attempt")
    }
}

/// Operations never extend over several senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sender<'a> {
    pub(super) client: ClientId,
    test: Option<&'a [u8]>,
}

/// What a request asks for, without its idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Content<'a> {
    pub(super) method: &'a Method,
    pub(super) target: &'a str,
    length: u64,
    hash: [u8; 32],
}

pub(super) struct Grouping {
    pub(super) operations: Vec<Operation>,
    /// In ascending order.
    pub(super) unattributed: Vec<usize>,
}

impl<'a> Sender<'a> {
    pub(super) fn of(attempt: &'a Attempt) -> Self {
        Self {
            client: attempt.client,
            test: match &attempt.test {
                Some(test) => Some(test.text().as_bytes()),
                None => attempt.headers.get(&X_TIDEGATE_TEST).map(AsRef::as_ref),
            },
        }
    }
}

impl<'a> Content<'a> {
    pub(super) fn of(attempt: &'a Attempt) -> Self {
        let ObservedBody { length, hash, .. } = attempt.body;
        Self {
            method: &attempt.method,
            target: &attempt.target,
            length,
            hash,
        }
    }
}

/// Groups attempts, which are in the order of their arrival. `trace_started` is the system time at the start of the
/// trace.
pub(super) fn group(attempts: &[Attempt], trace_started: SystemTime) -> Grouping {
    let mut builder = Builder {
        attempts,
        trace_started,
        operations: Vec::new(),
        ambiguous: HashSet::new(),
        immediate: Vec::new(),
        unattributed: Vec::new(),
    };
    let mut keyed = HashMap::new();
    let mut keyless: HashMap<_, Identical> = HashMap::new();
    for (index, attempt) in attempts.iter().enumerate() {
        let sender = Sender::of(attempt);
        if let Some(key) = &attempt.key {
            let last = keyed.get(&(sender, key)).copied();
            keyed.insert((sender, key), builder.add_keyed(index, last));
        } else {
            let identical = keyless.entry((sender, Content::of(attempt))).or_default();
            builder.add_keyless(index, identical);
        }
    }
    let concurrent = keyless
        .values()
        .filter(|identical| identical.is_concurrent());
    let concurrent = concurrent.flat_map(|identical| &identical.operations);
    builder.ambiguous.extend(concurrent);
    builder.finish()
}

/// Identical requests of a sender without a key.
#[derive(Default)]
struct Identical {
    /// Operations of these requests.
    operations: Vec<usize>,
    /// Those whose last attempt fails.
    failed: Vec<usize>,
    connections: HashSet<u64>,
    connection: Option<u64>,
    /// Whether a connection was used again after another one.
    is_interleaved: bool,
    /// Whether a request continues an operation early on another connection.
    is_early: bool,
}

impl Identical {
    /// A client with a connection pool can return to an earlier connection, and a client that reconnects can retry
    /// early. A client that does both more likely sends several requests at a time.
    fn is_concurrent(&self) -> bool {
        self.is_interleaved && self.is_early
    }

    fn add_connection(&mut self, connection: u64) {
        let is_known = !self.connections.insert(connection);
        self.is_interleaved |= is_known && self.connection != Some(connection);
        self.connection = Some(connection);
    }
}

struct Builder<'a> {
    attempts: &'a [Attempt],
    trace_started: SystemTime,
    operations: Vec<Operation>,
    /// Operations that can have further attempts among the unattributed ones.
    ambiguous: HashSet<usize>,
    /// Pairs of operations: the second starts immediately after a failure of the first, on another connection.
    immediate: Vec<[usize; 2]>,
    unattributed: Vec<usize>,
}

impl<'a> Builder<'a> {
    /// `last` is the last operation with this key.
    fn add_keyed(&mut self, index: usize, last: Option<usize>) -> usize {
        let arrived = self.attempts[index].arrived;
        let has_failed =
            |operation: &usize| Outcome::at(self.last_attempt(*operation), arrived).is_failure();
        match last.filter(has_failed) {
            Some(operation) => {
                self.operations[operation].attempts.push(index);
                operation
            }
            None => self.begin(index),
        }
    }

    fn add_keyless(&mut self, index: usize, identical: &mut Identical) {
        let attempt = &self.attempts[index];
        identical.add_connection(attempt.connection);
        let failed = &mut identical.failed;
        let mut open = (0..failed.len()).filter(|position| {
            can_be_retried(self.last_attempt(failed[*position]), attempt.arrived)
        });
        let operation = match (open.next(), open.next()) {
            (None, _) => self.begin(index),
            (Some(position), None) if self.has_given_up(failed[position], attempt) => {
                failed.swap_remove(position);
                self.begin(index)
            }
            (Some(position), None) if self.is_immediate(failed[position], attempt) => {
                let operation = self.begin(index);
                self.immediate.push([failed[position], operation]);
                operation
            }
            (Some(position), None) => {
                let operation = failed.swap_remove(position);
                identical.is_early |= self.is_early(operation, attempt);
                self.operations[operation].attempts.push(index);
                operation
            }
            (Some(first), Some(second)) => {
                self.unattributed.push(index);
                // Without this check, many identical requests would cost quadratic time.
                let is_known = [first, second]
                    .iter()
                    .all(|i| self.ambiguous.contains(&failed[*i]));
                if !is_known {
                    self.ambiguous.extend(failed.iter());
                }
                return;
            }
        };
        if Outcome::of(attempt).is_failure() {
            failed.push(operation);
        }
        if self.operations[operation].attempts.len() == 1 {
            identical.operations.push(operation);
        }
    }

    /// A new process or a delay takes longer than [`IMMEDIATE`].
    fn is_immediate(&self, operation: usize, next: &Attempt) -> bool {
        let failed = self.last_attempt(operation);
        has_switched(failed, next) && gap(failed, next).is_some_and(|gap| gap < IMMEDIATE)
    }

    /// Early: before the time that the response states, or sooner than most clients retry.
    fn is_early(&self, operation: usize, next: &Attempt) -> bool {
        let failed = self.last_attempt(operation);
        let Some(response) = failed
            .response
            .as_ref()
            .filter(|_| has_switched(failed, next))
        else {
            return false;
        };
        let times = StatedTimes::of(response, self.trace_started);
        let waited = next.arrived.saturating_sub(response.started);
        match times.shortest() {
            Some(stated) => waited < stated.wait && !times.explains(waited),
            None => waited < MIN_BACKOFF,
        }
    }

    /// Whether the client had waited before its last retry, and sends this request immediately. A response that states
    /// a time is excluded, because an immediate request after it is too early in either case.
    fn has_given_up(&self, operation: usize, next: &Attempt) -> bool {
        let [.., before, last] = self.operations[operation].attempts[..] else {
            return false;
        };
        let (before, last) = (&self.attempts[before], &self.attempts[last]);
        let response = last.response.as_ref();
        let states_time = response.is_some_and(|response| has_time(&response.headers));
        !states_time
            && gap(before, last).is_some_and(|gap| gap >= MIN_BACKOFF)
            && gap(last, next).is_some_and(|gap| gap < IMMEDIATE)
    }

    fn begin(&mut self, index: usize) -> usize {
        self.operations.push(Operation {
            client: self.attempts[index].client,
            attempts: vec![index],
        });
        self.operations.len() - 1
    }

    fn last_attempt(&self, operation: usize) -> &'a Attempt {
        &self.attempts[self.operations[operation].last()]
    }

    fn finish(mut self) -> Grouping {
        for pair in &self.immediate {
            // The first operation has no later attempt, so the second can be its retry.
            let [first, second] = pair.map(|operation| &self.operations[operation]);
            if first.last() < second.attempts[0] {
                self.ambiguous.extend(pair);
            }
        }
        let mut operations = Vec::with_capacity(self.operations.len());
        for (index, operation) in self.operations.into_iter().enumerate() {
            if self.ambiguous.contains(&index) {
                self.unattributed.extend(operation.attempts);
            } else {
                operations.push(operation);
            }
        }
        self.unattributed.sort_unstable();
        Grouping {
            operations,
            unattributed: self.unattributed,
        }
    }
}

/// A client that lost its connection needs another one, so this is no switch.
fn has_switched(failed: &Attempt, next: &Attempt) -> bool {
    failed.connection != next.connection && Outcome::of(failed) != Outcome::Lost
}

fn gap(failed: &Attempt, next: &Attempt) -> Option<Duration> {
    let ended = failed.response.as_ref()?.ended;
    Some(next.arrived.saturating_sub(ended))
}

/// Whether a request that arrives at `time` can be a retry of the attempt.
///
/// The trace does not show when a client stopped waiting. So an attempt without response can be retried after the
/// shortest timeout, even if the gateway notices the end of the connection later.
pub(super) fn can_be_retried(attempt: &Attempt, time: Duration) -> bool {
    match &attempt.response {
        Some(response) if response.end != ResponseEnd::ClientClosed => {
            response.started <= time && Outcome::of(attempt).is_failure()
        }
        _ => attempt.arrived + MIN_TIMEOUT <= time,
    }
}

#[cfg(test)]
mod tests;
