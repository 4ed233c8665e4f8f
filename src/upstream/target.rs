//! An upstream as one worker uses it: the state shared by all workers, and the connections of this worker.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::balance::{Candidates, ChosenServer, ServerIndexes};
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

#[derive(Debug)]
pub(crate) struct Target {
    pub(super) state: Arc<UpstreamState>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<UpstreamMetrics>,
    servers: Vec<Arc<ServerTarget>>,
}

#[derive(Debug)]
pub(crate) struct RouteTarget {
    pub(super) target: Arc<Target>,
    pub(super) timeouts: Timeouts,
    /// `None` also if only one attempt is allowed.
    pub(super) retry: Option<RetryPolicy>,
}

#[derive(Debug)]
pub(super) struct ServerTarget {
    pub(super) pool: Arc<Pool>,
    pub(super) host: HeaderValue,
    state: Arc<UpstreamState>,
    index: usize,
    worker: usize,
    clock: Clock,
}

/// Counts the attempt as in flight. Dropped without a result, it reports nothing to circuit breaker and concurrency
/// limit.
#[derive(Debug)]
pub(super) struct AttemptGuard {
    server: Arc<ServerTarget>,
    permit: Option<BreakerPermit>,
    began: Moment,
    /// `None` if no limit is configured or the slot was released.
    slot: Option<ConcurrencySlot>,
}

#[derive(Clone, Copy, Debug)]
enum LoadSignal {
    Normal,
    Overload,
}

impl RouteTarget {
    /// The deadline of retries is no later than the total timeout.
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
    /// A server of `previous`, the target before a reload, keeps its connections unless their settings have changed.
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

    pub(super) fn begin_attempt(
        &self,
        tried: &[usize],
        candidates: Candidates,
    ) -> Result<AttemptGuard, ForwardError> {
        let now = self.clock.now();
        let choice = self
            .state
            .choose(tried, candidates, now, &mut fastrand::Rng::new());
        let ChosenServer { index, permit } =
            choice.map_err(|it| ForwardError::CircuitOpen { wait: it.wait })?;
        let slot = match &self.state.concurrency {
            None => None,
            Some(concurrency) => Some(concurrency.acquire().ok_or(ForwardError::Overloaded)?),
        };
        Ok(AttemptGuard::begin(
            Arc::clone(&self.servers[index]),
            permit,
            now,
            slot,
        ))
    }

    pub(super) fn begin_attempt_at(&self, server: usize) -> Result<AttemptGuard, ForwardError> {
        let others: ServerIndexes = (0..self.servers.len())
            .filter(|&other| other != server)
            .collect();
        self.begin_attempt(&others, Candidates::Untried)
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> + Clone {
        self.servers.iter().map(|server| &server.pool)
    }

    pub(super) fn pool(&self, server: usize) -> &Arc<Pool> {
        &self.servers[server].pool
    }
}

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
        // There is one probe of the connection each second until the server returns.
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

    pub(super) fn is_probe(&self) -> bool {
        self.permit.as_ref().is_some_and(BreakerPermit::is_probe)
    }

    pub(super) fn probes_connection(&self) -> bool {
        self.permit
            .as_ref()
            .is_some_and(BreakerPermit::probes_connection)
    }

    /// Without this bound, the client of a connection probe would wait for `connect_timeout` although another server is
    /// there.
    pub(super) fn probe_bound(&self) -> Option<Duration> {
        (self.server.state.servers.len() > 1).then_some(CONNECT_OPEN)
    }

    pub(super) fn connected(&mut self) {
        if self.probes_connection() {
            self.succeeded();
        }
    }

    /// Without a failure status the attempt has no result yet, because the body can fail. A probe, however, succeeds
    /// with the head of the response, because a body can take arbitrarily long.
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

    /// `load` is `None` if the result shows nothing about the load. Called when the head of the response arrives,
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

    /// Has no effect if a result was already reported.
    pub(super) fn succeeded(&mut self) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let now = self.server.clock.now();
        let changed = self.state().breaker.succeeded(permit, now);
        if changed.is_some() {
            tracing::info!(
                upstream = self.upstream(),
                server = self.name(),
                "circuit breaker closed after successful probe"
            );
        }
    }

    pub(super) fn failed_with(&mut self, error: &ForwardError) {
        self.release_slot(error.timeout().map(|_| LoadSignal::Overload));
        if let Some(failure) = error.server_failure() {
            self.failed(failure);
        }
    }

    /// Has no effect if a result was already reported.
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
            now,
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
