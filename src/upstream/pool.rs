//! A server's connections, kept alive between requests.
//!
//! One pool a server and worker: connections never cross threads, so the lock is never waited for. The
//! newest idle connection is taken first and the oldest fall away, so a pool shrinks to what its traffic
//! needs. A connection comes back only from an exchange that both sides finished.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;

use super::connect::{ConnectError, Connector, Link};
use super::upload::{Progress, Stage, Upload};

/// Idle connections a pool keeps.
const MAX_IDLE: usize = 256;

/// How long one is kept unused: less than servers usually wait before they hang up.
const MAX_IDLE_TIME: Duration = Duration::from_secs(30);

/// How long a finished exchange may take to be wound up.
const WIND_UP: Duration = Duration::from_millis(100);

/// The connections of one worker to one server.
#[derive(Debug)]
pub struct Pool {
    connector: Connector,
    idle: Mutex<VecDeque<Idle>>,
}

#[derive(Debug)]
struct Idle {
    link: Link,
    since: Instant,
}

/// A connection in use, which finds its way back.
#[derive(Debug)]
pub struct Lease {
    link: Link,
    pool: Arc<Pool>,
    upload: Option<Arc<Progress>>,
    /// Whether it carried an exchange before: its server may have hung up meanwhile.
    pub reused: bool,
}

impl Pool {
    /// No connections yet.
    pub fn new(connector: Connector) -> Arc<Self> {
        Arc::new(Self {
            connector,
            idle: Mutex::default(),
        })
    }

    /// How its server is reached.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// An idle connection, or a fresh one.
    pub async fn lease(self: &Arc<Self>) -> Result<Lease, ConnectError> {
        while let Some(mut link) = self.take_idle() {
            if is_ready(link.sender()).await {
                return Ok(self.lend(link, true));
            }
        }
        self.lease_fresh().await
    }

    /// A fresh connection, whatever is idle.
    pub async fn lease_fresh(self: &Arc<Self>) -> Result<Lease, ConnectError> {
        // Boxed, because it is rare and large: every request's future would be as large otherwise.
        let link = Box::pin(self.connector.connect()).await?;
        Ok(self.lend(link, false))
    }

    fn lend(self: &Arc<Self>, link: Link, reused: bool) -> Lease {
        Lease {
            link,
            pool: Arc::clone(self),
            upload: None,
            reused,
        }
    }

    fn take_idle(&self) -> Option<Link> {
        let mut idle = self.idle.lock();
        while let Some(Idle { link, since }) = idle.pop_back() {
            if since.elapsed() > MAX_IDLE_TIME {
                // The rest have been idle for longer still.
                idle.clear();
                return None;
            }
            if !link.is_closed() {
                return Some(link);
            }
        }
        None
    }

    fn put_back(&self, link: Link) {
        if link.is_closed() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() == MAX_IDLE {
            idle.pop_front();
        }
        idle.push_back(Idle {
            link,
            since: Instant::now(),
        });
    }
}

/// Whether a connection takes another request. One whose exchange just finished has to be wound up by its
/// own task first; one that cannot be, because its server left part of a request unread, is no use.
async fn is_ready(sender: &mut SendRequest<Upload>) -> bool {
    if sender.is_ready() {
        return true;
    }
    let wound_up = tokio::time::timeout(WIND_UP, sender.ready()).await;
    matches!(wound_up, Ok(Ok(())))
}

impl Lease {
    /// The connection, to send on.
    pub fn sender(&mut self) -> &mut SendRequest<Upload> {
        self.link.sender()
    }

    /// Notes the upload that has to be through before the connection can serve again.
    pub fn carries(&mut self, upload: Option<Arc<Progress>>) {
        self.upload = upload;
    }

    /// The answer was read to its end: the connection serves again, if the request got through whole.
    pub fn finish(self) {
        let sent = |upload: &Arc<Progress>| upload.stage() == Stage::Sent;
        if self.upload.as_ref().is_none_or(sent) {
            self.pool.put_back(self.link);
        }
    }
}
