//! An upstream as one worker uses it: the state shared by all workers, and the connections of this worker.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::{HeaderValue, StatusCode};

use super::Upstream;
use super::balance::{Candidates, ChosenServer, NoServer};
use super::breaker::{BreakerPermit, PhaseChange, ServerFailure};
use super::concurrency::{ConcurrencySlot, LoadSample};
use super::connect::{self, Connector, ConnectorError};
use super::error::ForwardError;
use super::pool::Pool;
use super::shared_state::{ServerState, UpstreamState};
use crate::clock::{Clock, Moment};
use crate::metrics::UpstreamMetrics;
use crate::retry::RetryPolicy;

/// An upstream as one worker uses it: the state shared by all workers, and the connections of this worker.
#[derive(Debug)]
pub(crate) struct Target {
    pub(super) state: Arc<UpstreamState>,
    /// Retry policy; `None` if the upstream has no retries.
    pub(super) retry: Option<RetryPolicy>,
    /// Index of the worker.
    pub(super) worker: usize,
    pub(super) clock: Clock,
    /// Counters of the upstream, for this worker.
    pub(super) metrics: Arc<UpstreamMetrics>,
    servers: Vec<Arc<ServerTarget>>,
}

/// A server as one worker uses it.
#[derive(Debug)]
pub(super) struct ServerTarget {
    pub(super) pool: Arc<Pool>,
    /// The authority of the server, as a `Host` header.
    pub(super) host: HeaderValue,
    state: Arc<UpstreamState>,
    index: usize,
    worker: usize,
    clock: Clock,
}

/// Guard of one attempt at a server. It reports the result to the circuit breaker and the concurrency limit. A guard
/// that is dropped without a result reports nothing and frees its slots.
#[derive(Debug)]
pub(super) struct AttemptGuard {
    server: Arc<ServerTarget>,
    permit: Option<BreakerPermit>,
    began: Moment,
    /// Slot of the concurrency limit, if the upstream has one.
    slot: Option<ConcurrencySlot>,
}

/// What the result of an attempt indicates about the load of the upstream.
#[derive(Clone, Copy, Debug)]
enum LoadSignal {
    Normal,
    Overload,
}

/// Why no attempt can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// The circuit breakers of all servers are open.
    NoServer(NoServer),
    /// The upstream is at its concurrency limit.
    Overloaded,
}

impl Target {
    /// Creates the empty connection pools of a worker. `metrics` are the counters of this worker for the upstream.
    pub(crate) fn new(
        state: &Arc<UpstreamState>,
        worker: usize,
        metrics: Arc<UpstreamMetrics>,
        clock: &Clock,
    ) -> Result<Self, ConnectorError> {
        let connectors = connectors(&state.upstream)?;
        let servers = connectors.into_iter().enumerate();
        let servers = servers.map(|(index, connector)| {
            let host = HeaderValue::from_str(state.servers[index].name())
                .expect("an authority is visible ASCII");
            Arc::new(ServerTarget {
                pool: Pool::new(connector),
                host,
                state: Arc::clone(state),
                index,
                worker,
                clock: clock.clone(),
            })
        });
        Ok(Self {
            state: Arc::clone(state),
            retry: retry_policy(state),
            worker,
            clock: clock.clone(),
            metrics,
            servers: servers.collect(),
        })
    }

    /// Chooses a server and begins an attempt. `tried` are the indexes of servers used before.
    pub(super) fn begin_attempt(
        &self,
        tried: &[usize],
        candidates: Candidates,
    ) -> Result<AttemptGuard, Unavailable> {
        let now = self.clock.now();
        let choice = self
            .state
            .choose(tried, candidates, now, &mut fastrand::Rng::new());
        let ChosenServer { index, permit } = choice.map_err(Unavailable::NoServer)?;
        let slot = match &self.state.concurrency {
            None => None,
            Some(concurrency) => Some(concurrency.acquire().ok_or(Unavailable::Overloaded)?),
        };
        Ok(AttemptGuard::begin(
            Arc::clone(&self.servers[index]),
            permit,
            now,
            slot,
        ))
    }
}

/// Creates a connector for each server of an upstream.
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

/// Returns the configured retry policy with a deadline no later than the total timeout. `None` if one attempt is
/// allowed.
fn retry_policy(state: &UpstreamState) -> Option<RetryPolicy> {
    let retry = state.upstream.retry?.policy;
    let total = state.upstream.timeouts.total;
    (retry.attempts > NonZeroU32::MIN).then_some(RetryPolicy {
        deadline: retry.deadline.into_iter().chain(total).min(),
        ..retry
    })
}

impl AttemptGuard {
    fn begin(
        server: Arc<ServerTarget>,
        permit: BreakerPermit,
        began: Moment,
        slot: Option<ConcurrencySlot>,
    ) -> Self {
        let guard = Self {
            server,
            permit: Some(permit),
            began,
            slot,
        };
        guard.state().begin_request(guard.server.worker);
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

    pub(super) fn index(&self) -> usize {
        self.server.index
    }

    /// Whether the attempt is a probe of the circuit breaker.
    pub(super) fn is_probe(&self) -> bool {
        self.permit.as_ref().is_some_and(BreakerPermit::is_probe)
    }

    /// Whether the attempt is a probe that succeeds as soon as a new connection is established.
    pub(super) fn probes_connection(&self) -> bool {
        self.permit
            .as_ref()
            .is_some_and(BreakerPermit::probes_connection)
    }

    /// Reports an established connection. It is the result of a probe that tests only the connection.
    pub(super) fn connected(&mut self) {
        if self.probes_connection() {
            self.succeeded();
        }
    }

    /// Reports the head of a response. A failure status is the result of the attempt. After any other status the body
    /// can still fail. A probe, however, succeeds with the head, because a body can take arbitrarily long.
    pub(super) fn responded(&mut self, status: StatusCode) {
        self.release_slot(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Some(LoadSignal::Overload),
            // Other 5xx statuses do not indicate overload.
            _ if status.is_server_error() => None,
            _ => Some(LoadSignal::Normal),
        });
        let failures = &self.server.state.upstream.breaker.failures;
        if status.is_server_error() && failures.contains(status) {
            self.failed(ServerFailure::Response);
        } else if self.is_probe() {
            self.succeeded();
        }
    }

    /// Frees the slot of the concurrency limit. This happens with the head of the response, where latency is measured.
    /// Otherwise endless streams would occupy all slots.
    fn release_slot(&mut self, load: Option<LoadSignal>) {
        let concurrency = self.server.state.concurrency.as_ref();
        if let (Some(slot), Some(concurrency)) = (self.slot.take(), concurrency) {
            let now = self.server.clock.now();
            let sample = load.map(|load| match load {
                LoadSignal::Normal => LoadSample::Responded {
                    latency: now.since(self.began),
                },
                LoadSignal::Overload => LoadSample::Dropped,
            });
            concurrency.release(slot, sample, now);
        }
    }

    /// Reports to the circuit breaker that the server did not fail.
    pub(super) fn succeeded(&mut self) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let now = self.server.clock.now();
        let changed = self
            .state()
            .breaker
            .succeeded(permit, self.server.worker, now);
        if changed.is_some() {
            tracing::info!(
                upstream = self.upstream(),
                server = self.name(),
                "circuit breaker closed"
            );
        }
    }

    /// Reports an attempt that ended without a response.
    pub(super) fn failed_with(&mut self, error: &ForwardError) {
        self.release_slot(error.timeout().map(|_| LoadSignal::Overload));
        if let Some(failure) = error.server_failure() {
            self.failed(failure);
        }
    }

    /// Reports a failure of the server to the circuit breaker.
    pub(super) fn failed(&mut self, failure: ServerFailure) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let now = self.server.clock.now();
        let index = self.server.index;
        let servers = self.server.state.servers.iter().enumerate();
        let others = servers.filter(|(other, _)| *other != index);
        let changed = self.state().breaker.failed(
            permit,
            failure,
            (self.server.worker, now),
            &mut fastrand::Rng::new(),
            others.map(|(_, other)| &other.breaker),
        );
        if let Some(PhaseChange::Opened { open_time, why }) = changed {
            tracing::warn!(
                upstream = self.upstream(),
                server = self.name(),
                open_ms = u64::try_from(open_time.as_millis()).unwrap_or(u64::MAX),
                why = why.name(),
                "circuit breaker opened"
            );
        }
    }

    fn state(&self) -> &ServerState {
        &self.server.state.servers[self.server.index]
    }

    fn upstream(&self) -> &str {
        &self.server.state.upstream.name
    }

    /// Returns the name of the server in logs, metrics and the admin API.
    pub(super) fn name(&self) -> &str {
        self.state().name()
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.release_slot(None);
        self.state().end_request(self.server.worker);
    }
}
