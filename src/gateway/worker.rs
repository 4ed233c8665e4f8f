//! One worker: a thread, a runtime, its listeners and their connections.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::Stop;
use super::connection::{self, Terms};
use super::drain::Drain;
use crate::pipeline::Pipeline;

/// How long a worker that cannot accept waits before it tries again: out of file descriptors, mostly,
/// and only closing connections helps against that.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often a worker wakes for nothing: seldom enough to cost nothing, and sooner than requests time out.
const TICK: Duration = Duration::from_millis(500);

pub(super) struct Worker {
    pub(super) pipeline: Pipeline,
    pub(super) sockets: Vec<TcpListener>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stop: Stop,
    /// Connections open at once.
    pub(super) connections: usize,
}

impl Worker {
    pub(super) fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime needs only file descriptors, and there were enough to listen");
        runtime.block_on(self.work());
    }

    async fn work(self) {
        let settings = self.pipeline.settings();
        let (grace, deadlines, caps) = (settings.shutdown_grace, settings.deadlines, settings.caps);
        let tasks = TaskTracker::new();
        let drain = Drain::default();
        let room = Arc::new(Semaphore::new(self.connections));
        let terms = Arc::new(Terms {
            pipeline: self.pipeline,
            tls: self.tls,
            deadlines,
            caps,
            drain: drain.clone(),
            tasks: tasks.clone(),
        });
        tokio::spawn(tick());
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
                while let Ok(Ok((stream, peer))) =
                    tokio::time::timeout(Duration::ZERO, listener.accept()).await
                {
                    take_up(stream, peer, &terms, None);
                }
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

fn take_up(
    stream: TcpStream,
    peer: SocketAddr,
    terms: &Arc<Terms>,
    permit: Option<OwnedSemaphorePermit>,
) {
    let serving = connection::serve(stream, peer.ip(), Arc::clone(terms));
    terms.tasks.spawn(async move {
        serving.await;
        drop(permit);
    });
}
