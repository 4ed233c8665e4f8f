//! The configuration in force, and its replacement while the gateway runs.
//!
//! A reload prepares the new state and the stages of each worker, and then replaces them. None of this can fail,
//! because the policy was checked completely. A request keeps the stages that it started with, and a connection its
//! timeouts and its certificate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::config::Policy;
use crate::pipeline::{GatewayState, Pipeline};
use crate::upstream::UpstreamState;
use crate::upstream::health::HealthChecks;

#[derive(Debug)]
pub(crate) struct Live {
    state: ArcSwap<GatewayState>,
    workers: Vec<LiveWorker>,
    /// Locked during a reload, so that reloads do not overlap.
    upstream_tasks: Mutex<Vec<UpstreamTasks>>,
    /// The workers measure the delay of their timers, which scenarios need.
    measures_timers: AtomicBool,
}

#[derive(Debug)]
pub(super) struct LiveWorker {
    pub(super) pipeline: Arc<ArcSwap<Pipeline>>,
    pub(super) runtime: Handle,
}

/// Health checks and lookups of host names, which the first worker runs for all workers.
#[derive(Debug)]
struct UpstreamTasks {
    state: Arc<UpstreamState>,
    _running: Vec<AbortOnDropHandle<()>>,
}

impl Live {
    pub(super) fn new(state: GatewayState, workers: Vec<LiveWorker>) -> Self {
        let live = Self {
            state: ArcSwap::from_pointee(state),
            workers,
            upstream_tasks: Mutex::default(),
            measures_timers: AtomicBool::new(false),
        };
        live.start_tasks(&mut live.upstream_tasks.lock());
        live
    }

    pub(crate) fn state(&self) -> Arc<GatewayState> {
        self.state.load_full()
    }

    /// Waits until each worker has handled an event.
    pub(crate) async fn await_workers(&self) {
        for worker in &self.workers {
            // An error means that the worker has stopped, as after a drain.
            let _ = worker.runtime.spawn(std::future::ready(())).await;
        }
    }

    /// Returns the configuration keys whose new values need a restart.
    pub(crate) fn apply(&self, mut policy: Policy) -> Vec<&'static str> {
        let mut tasks = self.upstream_tasks.lock();
        let before = self.state();
        let pending = policy.keep_until_restart(&before.policy);
        let state = before.renewed(Arc::new(policy));
        let workers = self.workers.iter().enumerate();
        let pipelines =
            workers.map(|(number, worker)| worker.pipeline.load().renewed(&state, number));
        let pipelines: Vec<_> = pipelines.map(Arc::new).collect();
        state.take_effect(&before);
        for (worker, pipeline) in self.workers.iter().zip(pipelines) {
            worker.pipeline.store(pipeline);
        }
        self.state.store(Arc::new(state));
        self.start_tasks(&mut tasks);
        pending
    }

    /// Also ends the tasks of upstreams that have changed or are gone.
    fn start_tasks(&self, tasks: &mut Vec<UpstreamTasks>) {
        let state = self.state();
        let first = self.workers.first().expect("there is at least one worker");
        let states = &state.upstream_states;
        tasks.retain(|it| states.iter().any(|state| Arc::ptr_eq(&it.state, state)));
        for upstream in &**states {
            if !tasks.iter().any(|it| Arc::ptr_eq(&it.state, upstream)) {
                tasks.push(UpstreamTasks::start(upstream, &state.clock, &first.runtime));
            }
        }
        if !state.scenarios.is_empty() && !self.measures_timers.swap(true, Ordering::Relaxed) {
            for worker in &self.workers {
                worker.runtime.spawn(state.scenarios.measure_timers());
            }
        }
    }
}

impl UpstreamTasks {
    fn start(state: &Arc<UpstreamState>, clock: &Clock, runtime: &Handle) -> Self {
        let checks = HealthChecks::of(state, clock);
        let checks = checks.map(|checks| runtime.spawn(checks.run()));
        let servers = state.servers.iter();
        let lookups = servers.map(|server| runtime.spawn(Arc::clone(&server.addresses).refresh()));
        let running = checks.into_iter().chain(lookups);
        Self {
            _running: running.map(AbortOnDropHandle::new).collect(),
            state: Arc::clone(state),
        }
    }
}
