//! Upgrade of a client connection to another protocol, such as WebSocket.
//!
//! The server adds an [`Upgrade`] to the extensions of a request with an `Upgrade` header. A service that responds with
//! 101 takes the [`Upgrade`], which is a future, and awaits it. The future returns the connection after the response
//! is sent. If the response has another status than 101, the future returns an error.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// An upgraded client connection, which carries bytes of another protocol.
pub(crate) type Tunnel = Box<dyn Duplex>;

/// A stream that can be read and written.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Duplex for IO {}

/// Future that returns the upgraded connection after `101 Switching Protocols` is sent.
pub(crate) struct Upgrade(oneshot::Receiver<Tunnel>);

/// Error of an [`Upgrade`]: the response had another status than 101, or the connection was closed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "the client connection was not upgraded, because it was closed or the response was not 101"
)]
pub(crate) struct NotUpgraded;

/// Request extension that contains the [`Upgrade`]. An extension must be `Clone`, but an [`Upgrade`] cannot be cloned.
/// So all clones of the extension share one [`Upgrade`].
#[derive(Clone)]
struct UpgradeSlot(Arc<Mutex<Option<Upgrade>>>);

/// Sender with which the server passes the connection to the [`Upgrade`] of a request.
pub(super) type UpgradeSender = oneshot::Sender<Tunnel>;

/// Adds an [`Upgrade`] to the extensions of a request. Returns the sender that later passes the connection to this
/// [`Upgrade`].
pub(super) fn offer<B>(request: &mut Request<B>) -> UpgradeSender {
    let (sender, upgrade) = oneshot::channel();
    let slot = UpgradeSlot(Arc::new(Mutex::new(Some(Upgrade(upgrade)))));
    request.extensions_mut().insert(slot);
    sender
}

/// Takes the [`Upgrade`] out of a request, for a service that responds with `101 Switching Protocols`. Returns `None`
/// if the request has no `Upgrade` header, or if the [`Upgrade`] was already taken.
pub(crate) fn on<B>(request: &mut Request<B>) -> Option<Upgrade> {
    let UpgradeSlot(upgrade) = request.extensions_mut().remove()?;
    upgrade.lock().take()
}

impl Future for Upgrade {
    type Output = Result<Tunnel, NotUpgraded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let received = Pin::new(&mut self.0).poll(cx);
        received.map(|tunnel| tunnel.map_err(|_| NotUpgraded))
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Upgrade")
    }
}
