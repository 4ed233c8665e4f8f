//! Upgrade of a client connection to another protocol.
//!
//! A request that asks for an upgrade has an [`Upgrade`] in its extensions. A service that responds with 101 takes it
//! and receives the connection after the response is sent. After any other response, the `Upgrade` fails.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// An upgraded connection.
pub(crate) type Tunnel = Box<dyn Duplex>;

/// A stream that can be read and written.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Duplex for IO {}

/// Future of the upgraded connection. It is ready after `101 Switching Protocols` is sent.
pub(crate) struct Upgrade(oneshot::Receiver<Tunnel>);

/// Error of an [`Upgrade`]: the client received another response, or the connection was closed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the client's connection was not upgraded")]
pub(crate) struct NotUpgraded;

/// Request extension that contains the upgrade. Extensions must be `Clone`, so clones share the upgrade.
#[derive(Clone)]
struct UpgradeSlot(Arc<Mutex<Option<Upgrade>>>);

/// Sender of the connection to the [`Upgrade`] of its request.
pub(super) type UpgradeSender = oneshot::Sender<Tunnel>;

/// Adds an [`Upgrade`] to the extensions of a request and returns its sender.
pub(super) fn offer<B>(request: &mut Request<B>) -> UpgradeSender {
    let (sender, upgrade) = oneshot::channel();
    let slot = UpgradeSlot(Arc::new(Mutex::new(Some(Upgrade(upgrade)))));
    request.extensions_mut().insert(slot);
    sender
}

/// Takes the upgrade of a request, for a service that responds with `101 Switching Protocols`. Returns `None` if the
/// request does not ask for an upgrade, or the upgrade was already taken.
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
