//! Listeners that refuse connections for a time, as if the gateway were not running.
//!
//! A listener stops with `shutdown(SHUT_RD)`: the kernel responds to new connections with a TCP reset, so clients get
//! `ECONNREFUSED`, and the port stays bound. `listen` starts it again. HAProxy pauses its listeners in the same way.
//! Closing the socket would be simpler, but another process could then bind the port.
//!
//! A [`Refusal`] has its own handles of the sockets, so that it takes effect before its caller continues. An ordinary
//! gateway has none: the handles would keep the port bound during a drain.

use std::io;
use std::net::{Shutdown, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::sync::watch;
use tokio::time::Instant;

use super::drain::DrainSignal;
use super::listen::{BACKLOG, Sockets};

/// The clock cannot represent every time that a configuration can contain.
const MAX_REFUSAL: Duration = Duration::from_hours(365 * 24);

/// Makes all listeners of a gateway refuse connections.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    until: watch::Sender<Instant>,
    sockets: Arc<[TcpListener]>,
}

#[derive(Clone, Debug)]
pub(super) struct RefusalWatch(watch::Receiver<Instant>);

impl Refusal {
    pub(super) fn new(sockets: &Sockets) -> io::Result<Self> {
        let sockets = sockets.per_worker.iter().flatten();
        Ok(Self {
            until: watch::Sender::new(Instant::now()),
            sockets: sockets
                .map(|own| own.socket.try_clone())
                .collect::<io::Result<_>>()?,
        })
    }

    /// The kernel resets connections that wait in an accept queue. Accepted connections stay open.
    pub(crate) fn refuse_for(&self, duration: Duration) {
        for socket in &*self.sockets {
            if let Err(error) = stop_listening(socket) {
                tracing::error!(%error, "cannot stop listener, it still accepts connections");
            }
        }
        // The workers are notified last, so that no worker stops a socket at the same time (`stop_listening`).
        let end = Instant::now() + duration.min(MAX_REFUSAL);
        self.until.send_modify(|until| *until = end.max(*until));
    }

    pub(super) fn watch(&self) -> RefusalWatch {
        RefusalWatch(self.until.subscribe())
    }
}

impl RefusalWatch {
    /// The listener always accepts connections.
    pub(super) fn never() -> Self {
        Self(watch::channel(Instant::now()).1)
    }

    pub(super) async fn requested(&mut self) {
        if self.0.changed().await.is_err() {
            // The `Refusal` and its clones are dropped, so no request can follow.
            std::future::pending::<()>().await;
        }
    }

    /// Returns the listener after the requested time, or `None` if the drain starts.
    ///
    /// The socket leaves the event loop during this time. The runtime stores that its reading side was shut down, and
    /// never clears this state.
    pub(super) async fn refuse(
        &mut self,
        listener: tokio::net::TcpListener,
        drain: &DrainSignal,
    ) -> io::Result<Option<tokio::net::TcpListener>> {
        let listener = listener.into_std()?;
        // A second refusal can start just before the end of the first one, so that the socket listens at this point.
        stop_listening(&listener)?;
        loop {
            let end = *self.0.borrow_and_update();
            if Instant::now() >= end {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep_until(end) => {}
                () = drain.watch() => return Ok(None),
            }
        }
        SockRef::from(&listener).listen(BACKLOG)?;
        tokio::net::TcpListener::from_std(listener).map(Some)
    }
}

/// A socket that does not listen is left alone: a second shutdown would stay in effect after `listen`, and the
/// connections that it accepts would not be readable.
pub(super) fn stop_listening(socket: &TcpListener) -> io::Result<()> {
    if rustix::net::sockopt::socket_acceptconn(socket)? {
        SockRef::from(socket).shutdown(Shutdown::Read)?;
    }
    Ok(())
}
