//! A worker: one thread with its own async runtime, listeners and client connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_util::task::TaskTracker;

use super::Stop;
use super::connection::{self, WorkerContext};
use super::drain::DrainSignal;
use super::listen::WorkerSocket;
use super::refusal::{RefusalWatch, stop_listening};
use crate::http::connections::{ConnectionPermit, Connections};
use crate::http::http1::FlushBatch;
use crate::pipeline::Pipeline;

/// Delay after a failed accept, usually because the limit `RLIMIT_NOFILE` is reached. Without it, the accept loop would
/// use all CPU time of the worker until a connection closes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Long enough to cost almost nothing, and shorter than the usual timeouts of requests.
const TICK: Duration = Duration::from_millis(500);

pub(super) struct Worker {
    pub(super) pipeline: Arc<ArcSwap<Pipeline>>,
    /// Connections, and request tasks that can outlive their connection. A drain waits for them.
    pub(super) tasks: TaskTracker,
    pub(super) sockets: Vec<WorkerSocket>,
    pub(super) stop: Stop,
    pub(super) refusal: RefusalWatch,
    /// Connections of all workers.
    pub(super) connections: Arc<Connections>,
}

pub(super) fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

impl Worker {
    pub(super) fn start(self, number: usize, runtime: Runtime) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name(format!("tidegate-{number}"))
            .spawn(move || {
                runtime.block_on(self.run());
                // A running DNS lookup blocks a thread of the runtime and cannot be cancelled.
                runtime.shutdown_background();
            })
    }

    async fn run(self) {
        let tasks = self.tasks;
        let drain = DrainSignal::default();
        let context = Arc::new(WorkerContext {
            pipeline: Arc::clone(&self.pipeline),
            drain: drain.clone(),
            flush_batch: FlushBatch::default(),
            tasks: tasks.clone(),
        });
        tokio::spawn(keep_timer_armed());
        for socket in self.sockets {
            let (context, connections) = (Arc::clone(&context), Arc::clone(&self.connections));
            tasks.spawn(accept(socket, context, connections, self.refusal.clone()));
        }
        drop(context);
        self.stop.drain.cancelled().await;
        let pipeline = self.pipeline.load_full();
        let settings = pipeline.settings();
        let (delay, grace) = (settings.drain_delay, settings.shutdown_grace);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = self.stop.halt.cancelled() => {}
        }
        drain.send();
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = tokio::time::sleep(grace) => {
                tracing::warn!(
                    remaining = tasks.len(),
                    "shutdown_grace expired, aborting client connections and requests in flight"
                );
            }
            () = self.stop.halt.cancelled() => {}
        }
    }
}

/// Keeps one short timer running, so that the timer of a request is almost never the next to expire. Otherwise the
/// runtime would wake itself through a file descriptor for almost every request, which costs a system call.
async fn keep_timer_armed() {
    loop {
        tokio::time::sleep(TICK).await;
    }
}

/// Until the drain starts. Then serves the connections that wait in the kernel's accept queue, and closes the listener.
async fn accept(
    own: WorkerSocket,
    context: Arc<WorkerContext>,
    connections: Arc<Connections>,
    mut refusal: RefusalWatch,
) {
    let mut listener = match tokio::net::TcpListener::from_std(own.socket) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(
                %error,
                "cannot register listener with the event loop, worker accepts no connections on this listener"
            );
            return;
        }
    };
    // Not yet admitted. Further connections wait in the kernel's accept queue, where they cost the gateway nothing.
    let mut accepted: Option<(TcpStream, SocketAddr)> = None;
    loop {
        let next = async {
            let (_, peer) = match &mut accepted {
                Some(waiting) => waiting,
                none => {
                    let (stream, mut peer) = listener.accept().await?;
                    // A socket for both families, which only a supervisor passes, maps IPv4 addresses to IPv6.
                    peer.set_ip(peer.ip().to_canonical());
                    none.insert((stream, peer))
                }
            };
            io::Result::Ok(connections.admit(context.connection_owner(*peer)).await)
        };
        let admitted = tokio::select! {
            biased;
            () = refusal.requested() => None,
            () = context.drain.watch() => break,
            admitted = next => Some(admitted),
        };
        match admitted {
            Some(Ok(permit)) => {
                let accepted = accepted.take();
                if let (Some((stream, peer)), Some(permit)) = (accepted, permit) {
                    spawn(stream, peer, permit, &context);
                }
            }
            Some(Err(error)) => {
                // EINVAL means that the socket does not listen, because a refusal starts.
                if error.kind() != io::ErrorKind::InvalidInput {
                    tracing::warn!(
                        %error,
                        "cannot accept client connection, retrying; if too many files are open, raise RLIMIT_NOFILE"
                    );
                }
                let errno = error.raw_os_error().map(Errno::from_raw_os_error);
                if let Some(Errno::MFILE | Errno::NFILE) = errno {
                    connections.close_idle();
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            None => match refusal.refuse(listener, &context.drain).await {
                Ok(Some(resumed)) => listener = resumed,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot listen again, worker accepts no connections on this listener");
                    return;
                }
            },
        }
    }
    if let Some((stream, peer)) = accepted {
        spawn(
            stream,
            peer,
            connections.add(context.connection_owner(peer)),
            &context,
        );
    }
    if !own.is_inherited {
        serve_queued(listener, &connections, &context);
    }
}

/// After the drain has started. The bounds do not apply: the number of connections is at most the length of the queue,
/// and no further ones follow.
fn serve_queued(
    listener: tokio::net::TcpListener,
    connections: &Arc<Connections>,
    context: &Arc<WorkerContext>,
) {
    let Ok(listener) = listener.into_std() else {
        return;
    };
    while let Ok((stream, peer)) = listener.accept() {
        let stream = stream
            .set_nonblocking(true)
            .and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            spawn(
                stream,
                peer,
                connections.add(context.connection_owner(peer)),
                context,
            );
        }
    }
    // A `Refusal` has another handle of the socket, so closing this handle is not enough. On an error, the socket of an
    // ordinary gateway is closed in any case.
    let _ = stop_listening(&listener);
}

fn spawn(
    stream: TcpStream,
    peer: SocketAddr,
    permit: Arc<ConnectionPermit>,
    context: &Arc<WorkerContext>,
) {
    let serving = connection::serve(stream, peer.ip(), permit, Arc::clone(context));
    context.tasks.spawn(serving);
}
