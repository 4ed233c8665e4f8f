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
use tokio::time::timeout;

use super::connection::Connection;
use super::core::Core;
use crate::store::Part;

/// A connection, or what it takes to make one.
#[derive(Debug)]
pub(super) struct Way {
    core: Arc<Core>,
    connection: Mutex<Option<Established>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    /// How often that was tried.
    attempts: AtomicU64,
    /// Why the last attempt failed, if it did.
    failure: Mutex<Option<RedisError>>,
}

/// A connection that was made.
#[derive(Clone, Debug)]
pub(super) struct Established {
    pub(super) connection: Connection,
    /// Tells it from the one before; never 0.
    pub(super) number: u64,
    /// The time of Redis it is of.
    epoch: u64,
}

impl Way {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            connection: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            attempts: AtomicU64::new(0),
            failure: Mutex::new(None),
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
        let before = self.attempts.load(Ordering::Acquire);
        let _connecting = self.connecting.lock().await;
        if let Some(established) = self.current() {
            return Ok(established);
        }
        // Whoever waited for an attempt that failed does not make another: its request is long gone.
        if self.attempts.load(Ordering::Acquire) != before
            && let Some(failure) = self.failure.lock().clone()
        {
            return Err(failure);
        }
        let attempt = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let made = self.make(attempt).await;
        *self.failure.lock() = made.as_ref().err().cloned();
        *self.connection.lock() = made.as_ref().ok().cloned();
        made
    }

    /// Makes a connection to the Redis that the monitor has seen: one that knows another secret of the fleet,
    /// or none, is not to be asked before the monitor has.
    async fn make(&self, number: u64) -> Result<Established, RedisError> {
        let epoch = self.core.epoch.load(Ordering::Acquire);
        let mut connection = self.core.connect().await?;
        let mut asked = redis::cmd("GET");
        asked.arg(self.core.secret_name());
        let asking = asked.query_async(&mut connection);
        let within = self.core.patience(Part::Records);
        let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
        let secret: Option<Vec<u8>> = timeout(within, asking).await.unwrap_or_else(late)?;
        if secret.as_deref() != Some(self.core.secret().as_bytes()) {
            self.core.sound_alarm();
            return Err(io::Error::other("it is another Redis than before").into());
        }
        Ok(Established {
            connection,
            number,
            epoch,
        })
    }

    fn current(&self) -> Option<Established> {
        let epoch = self.core.epoch.load(Ordering::Acquire);
        let current = self.connection.lock();
        current.as_ref().filter(|it| it.epoch == epoch).cloned()
    }

    /// Gives a connection up; not one that somebody has made since.
    pub(super) fn forget(&self, number: u64) {
        let mut current = self.connection.lock();
        if current.as_ref().is_some_and(|it| it.number == number) {
            *current = None;
        }
    }
}
