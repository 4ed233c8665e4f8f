//! Listeners that refuse connections for a time, as if the gateway were not running.
//!
//! A listener stops with `shutdown(SHUT_RD)`: the kernel responds to new connections with a TCP reset, so clients get
//! `ECONNREFUSED`, and the port stays bound. `listen` starts it again. HAProxy pauses its listeners in the same way.
//! Closing the socket would be simpler, but another process could then bind the port.

use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use socket2::SockRef;
use tokio::sync::watch;
use tokio::time::Instant;

use super::drain::DrainSignal;
use super::listen::BACKLOG;

/// Handle that makes all listeners of a gateway refuse connections. It is cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// Time until which the listeners refuse connections.
    until: watch::Sender<Instant>,
    /// Number of sockets that listen.
    listening: watch::Sender<usize>,
}

/// Part of a [`Refusal`] for one listener.
#[derive(Debug)]
pub(super) struct RefusalWatch {
    until: watch::Receiver<Instant>,
    listening: Listening,
}

/// Counts one socket that listens, until it is dropped.
#[derive(Debug)]
struct Listening(watch::Sender<usize>);

impl Refusal {
    pub(super) fn new() -> Self {
        Self {
            until: watch::Sender::new(Instant::now()),
            listening: watch::Sender::new(0),
        }
    }

    /// Makes the listeners refuse connections for `duration`, and returns when all have stopped listening. The kernel
    /// resets connections that wait in an accept queue. Accepted connections stay open.
    pub(crate) async fn refuse_for(&self, duration: Duration) {
        let end = Instant::now() + duration;
        self.until.send_modify(|until| *until = end.max(*until));
        let mut listening = self.listening.subscribe();
        let stopped = listening.wait_for(|number| *number == 0).await;
        stopped.expect("`self` holds the sender");
    }

    /// Returns the part for a socket that listens.
    pub(super) fn watch(&self) -> RefusalWatch {
        RefusalWatch {
            until: self.until.subscribe(),
            listening: Listening::start(self.listening.clone()),
        }
    }
}

impl RefusalWatch {
    /// Waits until the listener must refuse connections.
    pub(super) async fn requested(&mut self) {
        if self.until.changed().await.is_err() {
            // All handles are dropped, so no request can follow.
            std::future::pending().await
        }
    }

    /// Refuses connections until the requested time. Returns `None` if the drain starts before. Fails if a system call
    /// fails.
    ///
    /// The socket leaves the event loop during this time. The runtime stores that its reading side was shut down, and
    /// never clears this state.
    pub(super) async fn refuse(
        self,
        listener: tokio::net::TcpListener,
        drain: &DrainSignal,
    ) -> std::io::Result<Option<(tokio::net::TcpListener, Self)>> {
        let Self {
            mut until,
            listening,
        } = self;
        let listener: TcpListener = listener.into_std()?;
        SockRef::from(&listener).shutdown(Shutdown::Read)?;
        let count = listening.0.clone();
        drop(listening);
        loop {
            let end = *until.borrow_and_update();
            if Instant::now() >= end {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep_until(end) => {}
                () = drain.watch() => return Ok(None),
            }
        }
        SockRef::from(&listener).listen(BACKLOG)?;
        let resumed = Self {
            until,
            listening: Listening::start(count),
        };
        Ok(Some((
            tokio::net::TcpListener::from_std(listener)?,
            resumed,
        )))
    }
}

impl Listening {
    fn start(count: watch::Sender<usize>) -> Self {
        count.send_modify(|number| *number += 1);
        Self(count)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.send_modify(|number| *number -= 1);
    }
}
