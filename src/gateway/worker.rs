//! One worker: a thread, a runtime, its listeners and their connections.

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
use super::connection::{self, Terms};
use super::drain::Drain;
use crate::context::ConnectionPermit;
use crate::http1::FlushBatch;
use crate::pipeline::Pipeline;
use crate::upstream::health::Checks;

/// How long a worker that cannot accept waits before it tries again: out of file descriptors, mostly,
/// and only closing connections helps against that.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often a worker wakes for nothing: seldom enough to cost nothing, and sooner than requests time out.
const TICK: Duration = Duration::from_millis(500);

pub(super) struct Worker {
    pub(super) pipeline: Pipeline,
    /// Keeps account of its connections, and of what outlives them.
    pub(super) tasks: TaskTracker,
    pub(super) sockets: Vec<TcpListener>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stop: Stop,
    /// Checks it makes for all workers.
    pub(super) checks: Vec<Checks>,
    /// Connections open at once.
    pub(super) connections: usize,
}

impl Worker {
    /// Starts it on a thread of its own.
    pub(super) fn start(self, number: usize) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name(format!("tidegate-{number}"))
            .spawn(move || {
                runtime.block_on(self.work());
                // A name that is still being looked up is not waited for.
                runtime.shutdown_background();
            })
    }

    async fn work(self) {
        let settings = self.pipeline.settings();
        let (grace, deadlines, caps) = (settings.shutdown_grace, settings.deadlines, settings.caps);
        let tasks = self.tasks;
        let drain = Drain::default();
        // A listener holds a place while it waits for whom to give it to.
        let places = self.connections + self.sockets.len() - 1;
        let room = Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS)));
        let terms = Arc::new(Terms {
            pipeline: Arc::new(self.pipeline),
            tls: self.tls,
            deadlines,
            caps,
            drain: drain.clone(),
            flush_batch: FlushBatch::default(),
            tasks: tasks.clone(),
        });
        tokio::spawn(tick());
        for checks in self.checks {
            tokio::spawn(checks.run());
        }
        for socket in self.sockets {
            tasks.spawn(accept(socket, Arc::clone(&terms), Arc::clone(&room)));
        }
        drop(terms);
        self.stop.drain.cancelled().await;
        drain.give();
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = tokio::time::sleep(grace) => {
                tracing::warn!(cut_off = tasks.len(), "the grace is over; what is left is cut off");
            }
            () = self.stop.halt.cancelled() => {}
        }
    }
}

/// Keeps a timer armed that is due sooner than any request's. The runtime writes to a file descriptor to
/// wake itself whenever a timer becomes the next one due, which every request's would be in turn.
async fn tick() {
    loop {
        tokio::time::sleep(TICK).await;
    }
}

/// Accepts until told to drain; what the kernel has accepted by then is still served.
async fn accept(socket: TcpListener, terms: Arc<Terms>, room: Arc<Semaphore>) {
    let listener = match tokio::net::TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "a listener cannot be used");
            return;
        }
    };
    loop {
        // Room first: what cannot be served waits in the kernel, where it costs next to nothing.
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit.expect("never closed"),
            () = terms.drain.watch() => return,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = terms.drain.watch() => {
                take_up_queue(listener, &terms);
                return;
            }
        };
        match accepted {
            Ok((stream, peer)) => take_up(stream, peer, &terms, Some(permit)),
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Takes up the connections the kernel has accepted and nobody has asked it for yet.
fn take_up_queue(listener: tokio::net::TcpListener, terms: &Arc<Terms>) {
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            take_up(stream, peer, terms, None);
        }
    }
}

fn take_up(
    stream: TcpStream,
    peer: SocketAddr,
    terms: &Arc<Terms>,
    permit: Option<OwnedSemaphorePermit>,
) {
    let counted = terms.pipeline.metrics().connected();
    let permit = Arc::new(ConnectionPermit::new(counted, permit));
    let serving = connection::serve(stream, peer.ip(), permit, Arc::clone(terms));
    terms.tasks.spawn(serving);
}
