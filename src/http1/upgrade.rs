//! Upgrade of a client connection to another protocol.
//!
//! A request that asks for an upgrade has a receiver in its extensions. A service that responds with 101 takes it and
//! receives the connection after the response is sent. Any other response drops the sender.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// A connection after its upgrade.
pub(crate) type Tunnel = Box<dyn Duplex>;

/// A stream that can be read and written.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Duplex for IO {}

/// A future of the client's connection, which completes when `101 Switching Protocols` is sent.
pub(crate) struct Upgrade(oneshot::Receiver<Tunnel>);

/// The client received another response, or closed the connection.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the client's connection was not upgraded")]
pub(crate) struct NotUpgraded;

/// The extension of a request that holds its upgrade. Extensions are `Clone`, so the upgrade is shared.
#[derive(Clone)]
struct UpgradeSlot(Arc<Mutex<Option<Upgrade>>>);

/// Sends the connection to the [`Upgrade`] of its request.
pub(super) type UpgradeSender = oneshot::Sender<Tunnel>;

/// Adds an upgrade to a request that asks for one.
pub(super) fn offer<B>(request: &mut Request<B>) -> UpgradeSender {
    let (sender, upgrade) = oneshot::channel();
    let slot = UpgradeSlot(Arc::new(Mutex::new(Some(Upgrade(upgrade)))));
    request.extensions_mut().insert(slot);
    sender
}

/// Takes the upgrade of a request, for a service that responds with `101 Switching Protocols`. Returns `None` if the
/// request does not ask for an upgrade, or the upgrade was taken.
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
