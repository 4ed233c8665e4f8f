//! Upgrade of a client connection to another protocol, such as WebSocket.
//!
//! The server adds an [`Upgrade`] to the extensions of a request with an `Upgrade` header. A service that responds with
//! 101 takes it out and awaits it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

pub(crate) type Tunnel = Box<dyn Duplex>;

pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Duplex for IO {}

/// Returns the connection after `101 Switching Protocols` is sent, or an error after another response.
pub(crate) struct Upgrade(oneshot::Receiver<Tunnel>);

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "the client connection was not upgraded, because it was closed or the response was not 101"
)]
pub(crate) struct NotUpgraded;

/// An extension must be `Clone`, so all clones share one [`Upgrade`].
#[derive(Clone)]
struct UpgradeSlot(Arc<Mutex<Option<Upgrade>>>);

pub(super) type UpgradeSender = oneshot::Sender<Tunnel>;

/// The returned sender passes the connection to the [`Upgrade`].
pub(super) fn offer<B>(request: &mut Request<B>) -> UpgradeSender {
    let (sender, upgrade) = oneshot::channel();
    let slot = UpgradeSlot(Arc::new(Mutex::new(Some(Upgrade(upgrade)))));
    request.extensions_mut().insert(slot);
    sender
}

/// Returns `None` if the request has no `Upgrade` header, or if the [`Upgrade`] was already taken.
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
