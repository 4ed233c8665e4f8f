//! Open connections of the admin listener, and the bounds on them.
//!
//! At most [`MAX_CONNECTIONS`] are open. A new connection then replaces the one on which no request is being handled for
//! the longest time. So clients that hold connections cannot keep probes out. If new connections waited instead, a
//! probe would be delayed until a timeout of another client expires. A connection whose request is being handled is
//! never replaced. The handler has a timeout.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::http1::TrackDelivery;
use crate::metrics::AdminMetrics;

/// Maximum number of open connections.
pub(super) const MAX_CONNECTIONS: usize = 256;

/// Maximum time from the end of a request head to the last byte of the response.
pub(super) const EXCHANGE_TIMEOUT: Duration = Duration::from_mins(1);

/// All open connections of the admin listener.
pub(super) struct Connections {
    open: Mutex<Vec<Arc<AdminConnectionState>>>,
    /// Notified when a connection ends or becomes quiet, so that another one can be accepted.
    changed: Notify,
    metrics: Arc<AdminMetrics>,
}

/// An open connection. It leaves the list of open connections when it is dropped.
pub(super) struct AdminConnection {
    connections: Arc<Connections>,
    state: Arc<AdminConnectionState>,
}

struct AdminConnectionState {
    /// Since when no request is being handled. `None` while a request is being handled.
    replaceable_since: Mutex<Option<Instant>>,
    /// When the response to the current request must be sent completely. `None` if there is no request.
    exchange_deadline: watch::Sender<Option<Instant>>,
    /// Cancelled when another connection replaces this one.
    replaced: CancellationToken,
}

/// Guard of a request from its head to the end of its response.
pub(super) struct AdminExchange {
    connections: Arc<Connections>,
    state: Arc<AdminConnectionState>,
}

/// Body of a response of the admin listener, with the guard of its exchange.
pub(super) struct AdminBody {
    body: Full<Bytes>,
    _exchange: AdminExchange,
}

impl Connections {
    pub(super) fn new(metrics: Arc<AdminMetrics>) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            changed: Notify::new(),
            metrics,
        })
    }

    /// Adds a connection. If the maximum is reached, replaces the connection that has been replaceable for the longest
    /// time. Waits while the maximum is reached and a request is being handled on every connection.
    pub(super) async fn add(self: &Arc<Self>) -> AdminConnection {
        loop {
            if let Some(connection) = self.try_add() {
                return connection;
            }
            self.changed.notified().await;
        }
    }

    fn try_add(self: &Arc<Self>) -> Option<AdminConnection> {
        let mut open = self.open.lock();
        if open.len() >= MAX_CONNECTIONS {
            let replaceable = |(index, connection): (usize, &Arc<AdminConnectionState>)| {
                Some(((*connection.replaceable_since.lock())?, index))
            };
            let (_, index) = open.iter().enumerate().filter_map(replaceable).min()?;
            open.swap_remove(index).replaced.cancel();
            self.metrics.connections.add(-1);
            self.metrics.replaced.inc();
        }
        let state = Arc::new(AdminConnectionState {
            replaceable_since: Mutex::new(Some(Instant::now())),
            exchange_deadline: watch::Sender::new(None),
            replaced: CancellationToken::new(),
        });
        open.push(Arc::clone(&state));
        self.metrics.connections.add(1);
        Some(AdminConnection {
            connections: Arc::clone(self),
            state,
        })
    }
}

impl AdminConnection {
    /// Marks the start of a request. The request is being handled until [`AdminExchange::respond`] is called.
    pub(super) fn begin(&self) -> AdminExchange {
        *self.state.replaceable_since.lock() = None;
        let deadline = Instant::now() + EXCHANGE_TIMEOUT;
        self.state.exchange_deadline.send_replace(Some(deadline));
        AdminExchange {
            connections: Arc::clone(&self.connections),
            state: Arc::clone(&self.state),
        }
    }

    /// Waits until the connection must close: another connection replaces it, or an exchange takes longer than
    /// [`EXCHANGE_TIMEOUT`]. Returns the reason.
    pub(super) async fn must_close(&self) -> &'static str {
        tokio::select! {
            () = self.state.replaced.cancelled() => "replaced by a new connection",
            () = self.exchange_timed_out() => "exchange timed out",
        }
    }

    async fn exchange_timed_out(&self) {
        let mut deadlines = self.state.exchange_deadline.subscribe();
        loop {
            let deadline = *deadlines.borrow_and_update();
            let changed = deadlines.changed();
            let changed = match deadline {
                None => changed.await,
                Some(deadline) => match timeout_at(deadline, changed).await {
                    Ok(changed) => changed,
                    Err(_elapsed) => return,
                },
            };
            if changed.is_err() {
                return pending().await;
            }
        }
    }
}

impl Drop for AdminConnection {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        // A connection that was replaced is no longer in the list.
        if let Some(index) = (open.iter()).position(|other| Arc::ptr_eq(other, &self.state)) {
            open.swap_remove(index);
            self.connections.metrics.connections.add(-1);
        }
        drop(open);
        self.connections.changed.notify_one();
    }
}

impl AdminExchange {
    /// Marks the request as handled and returns the body of its response.
    pub(super) fn respond(self, body: Bytes) -> AdminBody {
        *self.state.replaceable_since.lock() = Some(Instant::now());
        self.connections.changed.notify_one();
        AdminBody {
            body: Full::new(body),
            _exchange: self,
        }
    }
}

impl Drop for AdminExchange {
    fn drop(&mut self) {
        *self.state.replaceable_since.lock() = Some(Instant::now());
        self.state.exchange_deadline.send_replace(None);
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl TrackDelivery for AdminBody {
    fn delivered(self: Pin<&mut Self>) {}
}
