//! The configuration in force, and its replacement while the gateway runs.
//!
//! A reload prepares the new state and the stages of each worker. Then it replaces them, which cannot fail. A request
//! keeps the stages that it started with. A connection keeps its timeouts and its certificate.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::clock::Clock;
use crate::config::Policy;
use crate::pipeline::{GatewayState, Pipeline};
use crate::upstream::UpstreamState;
use crate::upstream::connect::ConnectorError;
use crate::upstream::health::HealthChecks;

/// State of a running gateway, which a reload replaces.
#[derive(Debug)]
pub(crate) struct Live {
    state: ArcSwap<GatewayState>,
    workers: Vec<LiveWorker>,
    /// Locked during a reload, so that reloads do not overlap.
    upstream_tasks: Mutex<Vec<UpstreamTasks>>,
}

/// What a reload changes in a worker.
#[derive(Debug)]
pub(super) struct LiveWorker {
    pub(super) pipeline: Arc<ArcSwap<Pipeline>>,
    pub(super) runtime: Handle,
}

/// Tasks of an upstream, which the first worker runs for all workers: health checks and lookups of host names.
#[derive(Debug)]
struct UpstreamTasks {
    state: Arc<UpstreamState>,
    running: Vec<AbortHandle>,
}

impl Live {
    pub(super) fn new(
        state: GatewayState,
        workers: Vec<LiveWorker>,
    ) -> Result<Self, ConnectorError> {
        let live = Self {
            state: ArcSwap::from_pointee(state),
            workers,
            upstream_tasks: Mutex::default(),
        };
        live.start_tasks(&live.state(), &mut live.upstream_tasks.lock())?;
        live.measure_timers();
        Ok(live)
    }

    /// Returns the state under the configuration in force.
    pub(crate) fn state(&self) -> Arc<GatewayState> {
        self.state.load_full()
    }

    /// Waits until each worker has handled an event.
    pub(crate) async fn await_workers(&self) {
        for worker in &self.workers {
            // An error means that the worker has stopped, as it does after a drain.
            let _ = worker.runtime.spawn(std::future::ready(())).await;
        }
    }

    /// Puts a policy in force. Returns the configuration keys whose new values need a restart.
    pub(crate) fn apply(&self, mut policy: Policy) -> Result<Vec<&'static str>, ConnectorError> {
        let mut tasks = self.upstream_tasks.lock();
        let before = self.state();
        let pending = policy.keep_until_restart(&before.policy);
        let state = before.renewed(Arc::new(policy));
        let pipelines = self.workers.iter().enumerate().map(|(number, worker)| {
            let renewed = worker.pipeline.load().renewed(&state, number)?;
            Ok(Arc::new(renewed))
        });
        let pipelines: Vec<_> = pipelines.collect::<Result<_, ConnectorError>>()?;
        self.start_tasks(&state, &mut tasks)?;
        for (worker, pipeline) in self.workers.iter().zip(pipelines) {
            worker.pipeline.store(pipeline);
        }
        let measures_timers = before.scenarios.iter().next().is_some();
        self.state.store(Arc::new(state));
        if !measures_timers {
            self.measure_timers();
        }
        Ok(pending)
    }

    /// Starts the tasks of upstreams that are new or have changed. If none fails, ends those of other upstreams.
    fn start_tasks(
        &self,
        state: &GatewayState,
        tasks: &mut Vec<UpstreamTasks>,
    ) -> Result<(), ConnectorError> {
        let runtime = &self
            .workers
            .first()
            .expect("there is at least one worker")
            .runtime;
        let is_running =
            |state: &Arc<UpstreamState>| tasks.iter().any(|it| Arc::ptr_eq(&it.state, state));
        let states = state.upstream_states.iter();
        let started = states
            .filter(|state| !is_running(state))
            .map(|upstream| UpstreamTasks::start(upstream, &state.clock, runtime));
        let started: Vec<_> = started.collect::<Result<_, _>>()?;
        tasks.retain(|it| {
            let mut states = state.upstream_states.iter();
            states.any(|state| Arc::ptr_eq(&it.state, state))
        });
        tasks.extend(started);
        Ok(())
    }

    fn measure_timers(&self) {
        for worker in &self.workers {
            if let Some(measuring) = self.state().scenarios.measure_timers() {
                worker.runtime.spawn(measuring);
            }
        }
    }
}

impl UpstreamTasks {
    fn start(
        state: &Arc<UpstreamState>,
        clock: &Clock,
        runtime: &Handle,
    ) -> Result<Self, ConnectorError> {
        let checks = HealthChecks::of(state, clock)?;
        let checks = checks.map(|checks| runtime.spawn(checks.run()));
        let servers = state.servers.iter();
        let lookups = servers.map(|server| runtime.spawn(Arc::clone(&server.addresses).refresh()));
        let running = checks.into_iter().chain(lookups);
        Ok(Self {
            running: running.map(|task| task.abort_handle()).collect(),
            state: Arc::clone(state),
        })
    }
}

impl Drop for UpstreamTasks {
    fn drop(&mut self) {
        for task in &self.running {
            task.abort();
        }
    }
}
