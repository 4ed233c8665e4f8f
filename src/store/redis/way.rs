//! A connection that is made when it is needed, and made anew when it is of no use any more.
//!
//! Making one takes several round trips, and more with TLS: longer than the decision on a limit may take. So
//! it is made by a task of its own, which goes on when a request has run out of time; another request finds
//! it made. Everybody who comes meanwhile waits for that one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use redis::RedisError;

use super::connection::Connection;
use super::core::Core;

/// A connection, or what it takes to make one.
#[derive(Debug)]
pub(super) struct Way {
    core: Arc<Core>,
    connection: Mutex<Option<Established>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    /// How many there have been.
    number: AtomicU64,
}

/// A connection that was made.
#[derive(Clone, Debug)]
pub(super) struct Established {
    pub(super) connection: Connection,
    /// Tells it from the one before.
    number: u64,
    /// The time of Redis it is of.
    epoch: u64,
}

impl Way {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            connection: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            number: AtomicU64::new(0),
        }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The connection, made if there is none.
    pub(super) async fn establish(self: &Arc<Self>) -> Result<Established, RedisError> {
        if let Some(established) = self.current() {
            return Ok(established);
        }
        let way = Arc::clone(self);
        let connecting = tokio::spawn(async move { way.connect().await });
        // Only a runtime that goes down ends it before its end.
        connecting
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error).into()))
    }

    async fn connect(&self) -> Result<Established, RedisError> {
        let _connecting = self.connecting.lock().await;
        if let Some(established) = self.current() {
            return Ok(established);
        }
        let epoch = self.core.epoch.load(Ordering::Acquire);
        let established = Established {
            connection: self.core.connect().await?,
            number: self.number.fetch_add(1, Ordering::Relaxed),
            epoch,
        };
        *self.connection.lock() = Some(established.clone());
        Ok(established)
    }

    fn current(&self) -> Option<Established> {
        let epoch = self.core.epoch.load(Ordering::Acquire);
        let current = self.connection.lock();
        current.as_ref().filter(|it| it.epoch == epoch).cloned()
    }

    /// Gives a connection up; not one that somebody has made since.
    pub(super) fn forget(&self, established: &Established) {
        let mut current = self.connection.lock();
        let number = established.number;
        if current.as_ref().is_some_and(|it| it.number == number) {
            *current = None;
        }
    }
}
