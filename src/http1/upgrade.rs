//! A client's connection, handed over to whoever agreed to leave HTTP on it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

/// A connection that is no longer HTTP.
pub type Tunnel = Box<dyn Duplex>;

/// What can be read from and written to.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Send + Unpin> Duplex for IO {}

/// The client's connection, once it was told that the protocol is switched.
pub struct Upgrade(oneshot::Receiver<Tunnel>);

/// The client was answered otherwise, or is gone.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the client's connection did not leave HTTP")]
pub struct NotUpgraded;

/// The place in a request where whoever agrees to its upgrade finds the connection.
#[derive(Clone)]
struct Offer(Arc<Mutex<Option<Upgrade>>>);

/// Where the connection is handed over.
pub(super) type Handover = oneshot::Sender<Tunnel>;

/// Puts into `request`, which asks for an upgrade, what it takes to agree to it.
pub(super) fn offer<B>(request: &mut Request<B>) -> Handover {
    let (handover, upgrade) = oneshot::channel();
    let offer = Offer(Arc::new(Mutex::new(Some(Upgrade(upgrade)))));
    request.extensions_mut().insert(offer);
    handover
}

/// The connection that `request` came by, for whoever answers it with `101 Switching Protocols`; to be had
/// once, and only of a request that asks for an upgrade.
pub fn on<B>(request: &mut Request<B>) -> Option<Upgrade> {
    let Offer(upgrade) = request.extensions_mut().remove()?;
    upgrade.lock().take()
}

impl Future for Upgrade {
    type Output = Result<Tunnel, NotUpgraded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let handed_over = Pin::new(&mut self.0).poll(cx);
        handed_over.map(|tunnel| tunnel.map_err(|_| NotUpgraded))
    }
}

impl fmt::Debug for Upgrade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Upgrade")
    }
}
