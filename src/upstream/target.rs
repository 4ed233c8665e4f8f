//! An upstream as one worker uses it: the state shared by all workers, and the connections of this worker.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::balance::{Candidates, ChosenServer, NoServer, ServerIndexes};
use super::breaker::{BreakerPermit, CONNECT_OPEN, PhaseChange, ServerFailure};
use super::concurrency::{ConcurrencySlot, LoadSample};
use super::connect::{self, Connector};
use super::error::ForwardError;
use super::pool::Pool;
use super::shared_state::{ServerState, UpstreamState};
use super::{Timeouts, Upstream};
use crate::clock::{Clock, Moment};
use crate::metrics::UpstreamMetrics;
use crate::retry::RetryPolicy;

/// An upstream as one worker uses it: the state shared by all workers, and the connections of this worker.
#[derive(Debug)]
pub(crate) struct Target {
    pub(super) state: Arc<UpstreamState>,
    /// Index of the worker that owns this target.
    pub(super) worker: usize,
    pub(super) clock: Clock,
    /// Counters of the upstream, for this worker.
    pub(super) metrics: Arc<UpstreamMetrics>,
    servers: Vec<Arc<ServerTarget>>,
}

/// The upstream of a route, with the settings that the route can change.
#[derive(Debug)]
pub(crate) struct RouteTarget {
    pub(super) target: Arc<Target>,
    /// Timeouts of the route, or of the upstream where the route sets none.
    pub(super) timeouts: Timeouts,
    /// Retry policy. `None` if retries are not configured or only one attempt is allowed.
    pub(super) retry: Option<RetryPolicy>,
}

/// A server as one worker uses it: its connection pool, and the shared state of its upstream.
#[derive(Debug)]
pub(super) struct ServerTarget {
    pub(super) pool: Arc<Pool>,
    /// Host and port of the server, as the value of a `Host` header.
    pub(super) host: HeaderValue,
    state: Arc<UpstreamState>,
    index: usize,
    worker: usize,
    clock: Clock,
}

/// Guard of one attempt to send a request to a server. It counts the attempt as in flight, and reports its result to
/// the circuit breaker and the concurrency limit. A guard that is dropped without a result reports nothing.
#[derive(Debug)]
pub(super) struct AttemptGuard {
    server: Arc<ServerTarget>,
    permit: Option<BreakerPermit>,
    began: Moment,
    /// Slot of the concurrency limit. `None` if no limit is configured or the slot was released.
    slot: Option<ConcurrencySlot>,
}

/// What the result of an attempt shows about the load of the upstream.
#[derive(Clone, Copy, Debug)]
enum LoadSignal {
    Normal,
    Overload,
}

/// Why no attempt to send a request can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// Each server either has a circuit breaker that admits no attempt, or was already tried before a failover.
    NoServer(NoServer),
    /// The upstream is at its concurrency limit.
    Overloaded,
}

impl RouteTarget {
    /// Creates the target of a route with these timeouts. The deadline of retries is no later than the total timeout.
    pub(crate) fn new(target: &Arc<Target>, timeouts: Timeouts) -> Self {
        let retry = target.state.upstream.retry.map(|retry| retry.policy);
        let retry = retry.filter(|retry| retry.attempts > NonZeroU32::MIN);
        Self {
            target: Arc::clone(target),
            timeouts,
            retry: retry.map(|retry| RetryPolicy {
                deadline: retry.deadline.into_iter().chain(timeouts.total).min(),
                ..retry
            }),
        }
    }
}

impl Target {
    /// Creates the target of one worker. `metrics` are the counters of this worker for the upstream. A server of
    /// `previous`, the target before a reload, keeps its connections unless their settings have changed.
    pub(crate) fn new(
        state: &Arc<UpstreamState>,
        worker: usize,
        metrics: Arc<UpstreamMetrics>,
        clock: &Clock,
        previous: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        let previous = match previous {
            Some(previous) if Arc::ptr_eq(&previous.state, state) => {
                return Arc::clone(previous);
            }
            previous => previous.filter(|it| it.has_equal_connections(&state.upstream)),
        };
        let servers = connectors(state).into_iter().enumerate();
        let servers = servers.map(|(index, connector)| {
            let host = HeaderValue::from_str(state.servers[index].name())
                .expect("an authority is visible ASCII");
            let known = previous.and_then(|previous| {
                let addresses = &state.servers[index].addresses;
                let is_same = |it: &&Arc<ServerTarget>| {
                    Arc::ptr_eq(&previous.state.servers[it.index].addresses, addresses)
                };
                previous.servers.iter().find(is_same)
            });
            Arc::new(ServerTarget {
                pool: known.map_or_else(
                    || Pool::new(connector, state.upstream.keep_alive),
                    |known| Arc::clone(&known.pool),
                ),
                host,
                state: Arc::clone(state),
                index,
                worker,
                clock: clock.clone(),
            })
        });
        Arc::new(Self {
            state: Arc::clone(state),
            worker,
            clock: clock.clone(),
            metrics,
            servers: servers.collect(),
        })
    }

    fn has_equal_connections(&self, upstream: &Upstream) -> bool {
        let settings = |it: &Upstream| (it.keep_alive, it.timeouts.connect);
        let known = &self.state.upstream;
        settings(known) == settings(upstream) && known.ca == upstream.ca
    }

    /// Chooses a server and begins an attempt. `tried` are the indexes of the servers of earlier attempts.
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

    /// Begins an attempt at the server with this index.
    pub(super) fn begin_attempt_at(&self, server: usize) -> Result<AttemptGuard, Unavailable> {
        let others: ServerIndexes = (0..self.servers.len())
            .filter(|&other| other != server)
            .collect();
        self.begin_attempt(&others, Candidates::Untried)
    }

    /// The pools of all servers, by index.
    pub(super) fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> + Clone {
        self.servers.iter().map(|server| &server.pool)
    }

    pub(super) fn pool(&self, server: usize) -> &Arc<Pool> {
        &self.servers[server].pool
    }
}

/// Creates a connector for each server of an upstream, in the order of the configuration.
pub(super) fn connectors(state: &UpstreamState) -> Vec<Connector> {
    let upstream = &state.upstream;
    let speaks_tls = upstream.servers.iter().any(|server| server.tls);
    let tls = speaks_tls.then(|| connect::tls_config(upstream));
    let servers = state.servers.iter();
    servers
        .map(|server| {
            let addresses = Arc::clone(&server.addresses);
            let tls = tls.as_ref().filter(|_| server.server.tls);
            Connector::new(addresses, tls, upstream.timeouts.connect)
        })
        .collect()
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
        // Probes of the connection are not logged, because there is one each second until the server returns.
        if guard.is_probe() && !guard.probes_connection() {
            tracing::info!(
                upstream = guard.upstream(),
                server = guard.name(),
                "circuit breaker is half-open, sending request as probe to upstream server"
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

    /// Bound on the time of a probe of the connection if another server can serve the request. Without the bound, the
    /// client would wait for `connect_timeout`.
    pub(super) fn probe_bound(&self) -> Option<Duration> {
        (self.server.state.servers.len() > 1).then_some(CONNECT_OPEN)
    }

    /// Reports that a connection was established. A probe that tests only the connection succeeds with this report.
    pub(super) fn connected(&mut self) {
        if self.probes_connection() {
            self.succeeded();
        }
    }

    /// Reports the status of a response. A failure status ends the attempt as failed. After any other status the
    /// attempt has no result yet, because the body can fail. A probe, however, succeeds with the head of the response,
    /// because a body can take arbitrarily long.
    pub(super) fn responded(&mut self, status: StatusCode) {
        self.release_slot(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Some(LoadSignal::Overload),
            // Other 5xx statuses say nothing about the load of the upstream.
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

    /// Frees the slot of the concurrency limit and reports what the result of the attempt shows about the load. `load`
    /// is `None` if the result shows nothing about the load. The slot is freed when the head of the response arrives,
    /// because endless streams would otherwise occupy all slots.
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

    /// Reports a success to the circuit breaker. Has no effect if a result was already reported.
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
                "circuit breaker closed after successful probe"
            );
        }
    }

    /// Tells the circuit breaker and the concurrency limit that the attempt ended without a response.
    pub(super) fn failed_with(&mut self, error: &ForwardError) {
        self.release_slot(error.timeout().map(|_| LoadSignal::Overload));
        if let Some(failure) = error.server_failure() {
            self.failed(failure);
        }
    }

    /// Reports a failure of the server to the circuit breaker. Has no effect if a result was already reported.
    pub(super) fn failed(&mut self, failure: ServerFailure) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let is_repeated = permit.probes_connection();
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
        match changed {
            None => {}
            Some(PhaseChange::Opened { .. }) if is_repeated => {}
            Some(PhaseChange::Opened { open_time, why }) => tracing::warn!(
                upstream = self.upstream(),
                server = self.name(),
                open_ms = u64::try_from(open_time.as_millis()).unwrap_or(u64::MAX),
                reason = why.name(),
                "circuit breaker opened, upstream server receives no requests"
            ),
            Some(PhaseChange::Closed) => tracing::info!(
                upstream = self.upstream(),
                server = self.name(),
                "circuit breaker closed, connections no longer time out"
            ),
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
