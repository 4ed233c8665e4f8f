//! A worker: one thread with its runtime, listeners and client connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::Stop;
use super::connection::{self, WorkerContext};
use super::drain::DrainSignal;
use crate::context::ConnectionPermit;
use crate::http1::FlushBatch;
use crate::pipeline::Pipeline;
use crate::upstream::health::HealthChecks;

/// Delay after a failed accept. The usual cause is that the process has no file descriptors left until connections
/// close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Period of [`keep_timer_armed`]: long enough to cost almost nothing, and shorter than the timeouts of requests.
const TICK: Duration = Duration::from_millis(500);

pub(super) struct Worker {
    pub(super) pipeline: Pipeline,
    /// Tasks of the connections, and tasks that outlive their connection.
    pub(super) tasks: TaskTracker,
    pub(super) sockets: Vec<TcpListener>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stop: Stop,
    /// Health checks that this worker runs for all workers.
    pub(super) checks: Vec<HealthChecks>,
    /// Limit of the open connections of this worker.
    pub(super) connections: usize,
}

impl Worker {
    /// Starts the worker on its own thread.
    pub(super) fn start(self, number: usize) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name(format!("tidegate-{number}"))
            .spawn(move || {
                runtime.block_on(self.run());
                // Does not wait for DNS lookups, which block a thread of the runtime.
                runtime.shutdown_background();
            })
    }

    async fn run(self) {
        let settings = self.pipeline.settings();
        let (grace, timeouts, limits) =
            (settings.shutdown_grace, settings.timeouts, settings.limits);
        let tasks = self.tasks;
        let drain = DrainSignal::default();
        // A listener holds a permit while it waits for a connection. The permits of all listeners but one are added, so
        // that waiting listeners do not reduce the number of connections.
        let permits = self.connections + self.sockets.len() - 1;
        let permits = Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let context = Arc::new(WorkerContext {
            pipeline: Arc::new(self.pipeline),
            tls: self.tls,
            timeouts,
            limits,
            drain: drain.clone(),
            flush_batch: FlushBatch::default(),
            tasks: tasks.clone(),
        });
        tokio::spawn(keep_timer_armed());
        for checks in self.checks {
            tokio::spawn(checks.run());
        }
        for socket in self.sockets {
            tasks.spawn(accept(socket, Arc::clone(&context), Arc::clone(&permits)));
        }
        drop(context);
        self.stop.drain.cancelled().await;
        drain.send();
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = tokio::time::sleep(grace) => {
                tracing::warn!(remaining = tasks.len(), "shutdown grace period expired, aborting remaining tasks");
            }
            () = self.stop.halt.cancelled() => {}
        }
    }
}

/// Keeps a timer armed that expires before the timers of requests. The runtime wakes itself through a file descriptor
/// when a new timer becomes the next to expire. Without this timer, that would happen for every request.
async fn keep_timer_armed() {
    loop {
        tokio::time::sleep(TICK).await;
    }
}

/// Accepts connections until the drain starts, then serves the connections that the kernel has queued.
async fn accept(socket: TcpListener, context: Arc<WorkerContext>, permits: Arc<Semaphore>) {
    let listener = match tokio::net::TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "registering listener failed, address not served");
            return;
        }
    };
    loop {
        // The permit comes first, so connections above the limit wait in the kernel's queue, at little cost.
        let permit = tokio::select! {
            permit = Arc::clone(&permits).acquire_owned() => permit.expect("the semaphore is never closed"),
            () = context.drain.watch() => return,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = context.drain.watch() => {
                serve_queued(listener, &context);
                return;
            }
        };
        match accepted {
            Ok((stream, peer)) => spawn(stream, peer, &context, Some(permit)),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the connections in the kernel's accept queue. They do not need a permit.
fn serve_queued(listener: tokio::net::TcpListener, context: &Arc<WorkerContext>) {
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            spawn(stream, peer, context, None);
        }
    }
}

/// Serves a connection in a new task.
fn spawn(
    stream: TcpStream,
    peer: SocketAddr,
    context: &Arc<WorkerContext>,
    permit: Option<OwnedSemaphorePermit>,
) {
    let counted = context.pipeline.metrics().connected();
    let permit = Arc::new(ConnectionPermit::new(counted, permit));
    let serving = connection::serve(stream, peer.ip(), permit, Arc::clone(context));
    context.tasks.spawn(serving);
}
