//! An upstream for one worker: the state that all workers share, and the worker's own connections.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};

use super::Upstream;
use super::balance::{Among, Choice, NoServer};
use super::breaker::{Change, Failure, Ticket};
use super::concurrency::{Entry, Outcome};
use super::connect::{self, Connector, ConnectorError};
use super::error::ForwardError;
use super::pool::Pool;
use super::state::{ServerState, UpstreamState};
use crate::clock::{Clock, Moment};
use crate::metrics::UpstreamMetrics;
use crate::retry::Policy;

/// An upstream for one worker: its shared state, and the worker's own connections.
#[derive(Debug)]
pub(crate) struct Target {
    pub(super) state: Arc<UpstreamState>,
    /// What comes after an attempt that failed, where anything does.
    pub(super) retry: Option<Policy>,
    /// The worker's number.
    pub(super) worker: usize,
    pub(super) clock: Clock,
    /// Counters of the upstream, for this worker.
    pub(super) metrics: Arc<UpstreamMetrics>,
    servers: Vec<Arc<ServerTarget>>,
}

/// A server as one worker sees it.
#[derive(Debug)]
pub(super) struct ServerTarget {
    pub(super) pool: Arc<Pool>,
    /// The `Host` that is its own.
    pub(super) host: HeaderValue,
    state: Arc<UpstreamState>,
    place: usize,
    worker: usize,
    clock: Clock,
}

/// One attempt at a server. It reports the result to the circuit breaker and the concurrency limit. If it is dropped
/// without a result, nothing is reported.
#[derive(Debug)]
pub(super) struct AttemptGuard {
    server: Arc<ServerTarget>,
    ticket: Option<Ticket>,
    began: Moment,
    /// Its place among the requests underway, where these are bounded.
    entry: Option<Entry>,
}

/// What an attempt says about the upstream's load.
#[derive(Clone, Copy, Debug)]
enum Load {
    Bearable,
    TooMuch,
}

/// Why there is no server to attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// Every circuit is open.
    NoServer(NoServer),
    /// The upstream has all the requests underway that it can take.
    Overloaded,
}

impl Target {
    /// Creates the connections of a worker to the servers of an upstream. `metrics` are the worker's counters of it.
    pub(crate) fn new(
        state: &Arc<UpstreamState>,
        worker: usize,
        metrics: Arc<UpstreamMetrics>,
        clock: &Clock,
    ) -> Result<Self, ConnectorError> {
        let connectors = connectors(&state.upstream)?;
        let servers = connectors.into_iter().enumerate();
        let servers = servers.map(|(place, connector)| {
            let host = HeaderValue::from_str(state.servers[place].name())
                .expect("an authority is visible ASCII");
            Arc::new(ServerTarget {
                pool: Pool::new(connector),
                host,
                state: Arc::clone(state),
                place,
                worker,
                clock: clock.clone(),
            })
        });
        Ok(Self {
            state: Arc::clone(state),
            retry: policy(state),
            worker,
            clock: clock.clone(),
            metrics,
            servers: servers.collect(),
        })
    }

    /// Begins an attempt at one of the servers.
    pub(super) fn begin_attempt(
        &self,
        tried: &[usize],
        among: Among,
    ) -> Result<AttemptGuard, Unavailable> {
        let now = self.clock.now();
        let choice = self
            .state
            .choose(tried, among, now, &mut fastrand::Rng::new());
        let Choice { place, ticket } = choice.map_err(Unavailable::NoServer)?;
        let entry = match &self.state.concurrency {
            None => None,
            Some(concurrency) => Some(concurrency.enter().ok_or(Unavailable::Overloaded)?),
        };
        Ok(AttemptGuard::begin(
            Arc::clone(&self.servers[place]),
            ticket,
            now,
            entry,
        ))
    }
}

/// How each server of an upstream is reached.
pub(super) fn connectors(upstream: &Upstream) -> Result<Vec<Connector>, ConnectorError> {
    let speaks_tls = upstream.servers.iter().any(|server| server.tls);
    let tls = speaks_tls
        .then(|| connect::tls_config(upstream))
        .transpose()?;
    let servers = upstream.servers.iter();
    servers
        .map(|server| Connector::new(server, tls.as_ref(), upstream.timeouts.connect))
        .collect()
}

/// What comes after an attempt that failed: as the configuration has it, within the time there is for all.
fn policy(state: &UpstreamState) -> Option<Policy> {
    let retry = state.upstream.retry?.policy;
    let total = state.upstream.timeouts.total;
    (retry.attempts > NonZeroU32::MIN).then_some(Policy {
        deadline: retry.deadline.into_iter().chain(total).min(),
        ..retry
    })
}

impl AttemptGuard {
    fn begin(
        server: Arc<ServerTarget>,
        ticket: Ticket,
        began: Moment,
        entry: Option<Entry>,
    ) -> Self {
        let guard = Self {
            server,
            ticket: Some(ticket),
            began,
            entry,
        };
        guard.state().enter(guard.server.worker);
        if guard.is_probe() {
            tracing::info!(
                upstream = guard.upstream(),
                server = guard.name(),
                "circuit breaker half-open, sending probe"
            );
        }
        guard
    }

    pub(super) fn server(&self) -> &ServerTarget {
        &self.server
    }

    pub(super) fn place(&self) -> usize {
        self.server.place
    }

    /// Whether the attempt is a probe of the circuit breaker.
    pub(super) fn is_probe(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_probe)
    }

    /// Whether the attempt is a probe that needs a new connection, and no more, to succeed.
    pub(super) fn probes_connection(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::probes_connection)
    }

    /// Reports an established connection.
    pub(super) fn connected(&mut self) {
        if self.probes_connection() {
            self.succeeded();
        }
    }

    /// Reports the head of a response. A status that is a failure is the result of the attempt. Otherwise the
    /// body may still fail, except that a probe succeeds with the head: a body can take arbitrarily long.
    pub(super) fn responded(&mut self, status: StatusCode) {
        self.leave(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Some(Load::TooMuch),
            // Other 5xx statuses do not indicate overload.
            _ if status.is_server_error() => None,
            _ => Some(Load::Bearable),
        });
        let failures = &self.server.state.upstream.breaker.failures;
        if status.is_server_error() && failures.contains(status) {
            self.failed(Failure::Response);
        } else if self.is_probe() {
            self.succeeded();
        }
    }

    /// Gives up its place among the requests underway: with the head of an answer, which is what is measured, or
    /// streams that nobody ends would take up all places there are.
    fn leave(&mut self, load: Option<Load>) {
        let concurrency = self.server.state.concurrency.as_ref();
        if let (Some(entry), Some(concurrency)) = (self.entry.take(), concurrency) {
            let now = self.server.clock.now();
            let outcome = load.map(|load| match load {
                Load::Bearable => Outcome::Responded {
                    latency: now.since(self.began),
                },
                Load::TooMuch => Outcome::Dropped,
            });
            concurrency.left(entry, outcome, now);
        }
    }

    /// Reports to the circuit breaker that the server did not fail.
    pub(super) fn succeeded(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let now = self.server.clock.now();
        let changed = self
            .state()
            .breaker
            .succeeded(ticket, self.server.worker, now);
        if changed.is_some() {
            tracing::info!(
                upstream = self.upstream(),
                server = self.name(),
                "circuit breaker closed"
            );
        }
    }

    /// Reports an attempt without a response.
    pub(super) fn failed_with(&mut self, error: &ForwardError) {
        self.leave(error.timeout().map(|_| Load::TooMuch));
        if let Some(failure) = error.server_failure() {
            self.failed(failure);
        }
    }

    /// Reports a failure of the server to the circuit breaker.
    pub(super) fn failed(&mut self, failure: Failure) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let now = self.server.clock.now();
        let place = self.server.place;
        let servers = self.server.state.servers.iter().enumerate();
        let others = servers.filter(|(other, _)| *other != place);
        let changed = self.state().breaker.failed(
            ticket,
            failure,
            (self.server.worker, now),
            &mut fastrand::Rng::new(),
            others.map(|(_, other)| &other.breaker),
        );
        if let Some(Change::Opened { for_, why }) = changed {
            tracing::warn!(
                upstream = self.upstream(),
                server = self.name(),
                open_ms = u64::try_from(for_.as_millis()).unwrap_or(u64::MAX),
                why = why.name(),
                "circuit breaker opened"
            );
        }
    }

    fn state(&self) -> &ServerState {
        &self.server.state.servers[self.server.place]
    }

    fn upstream(&self) -> &str {
        &self.server.state.upstream.name
    }

    /// What the server is called.
    pub(super) fn name(&self) -> &str {
        self.state().name()
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.leave(None);
        self.state().leave(self.server.worker);
    }
}
