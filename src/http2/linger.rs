//! Request bodies whose response is complete before the client has ended its side of the stream.
//!
//! The gateway may end such a stream with `RST_STREAM(NO_ERROR)` (RFC 9113, section 8.1), and `h2` does so as soon as
//! the last handle of the stream is dropped. curl 7.88 then loses the response if it reads both at once. So the
//! stream stays open: the gateway reads and discards what arrives, which keeps the windows of stream and connection
//! free. The reset follows after 1 MiB, after 5 s, or when more than 16 streams of the connection linger, and not at
//! all if the client ends its side. A client has to read the response before it can send 1 MiB, because the window of
//! a stream is smaller.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::RecvStream;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::metrics::{EarlyReset, Http2Metrics};

/// Time from the end of the response to the reset.
const TIME: Duration = Duration::from_secs(5);

/// Time from the start of a drain to the reset: enough for a client to read a response that was just sent.
const DRAIN_TIME: Duration = Duration::from_millis(250);

/// Bytes that are discarded per stream.
const BYTES: usize = 1 << 20;

/// Streams that linger at the same time on a connection.
const STREAMS: usize = 16;

/// The part of a request body that the service does not read.
#[derive(Debug)]
pub(super) struct Unread {
    state: State,
    /// Bytes that may still be discarded.
    left: usize,
}

#[derive(Debug)]
enum State {
    /// The service has the body. It returns the stream if it drops the body before its end.
    Lent(oneshot::Receiver<RecvStream>),
    /// The service has dropped the body.
    Returned(RecvStream),
    /// The client has ended its side, has reset the stream or has disconnected.
    Ended,
    /// The client has sent more than [`BYTES`].
    TooLong,
}

/// The lingering streams of a connection.
#[derive(Debug)]
pub(super) struct Lingering {
    /// A sender per stream, oldest first. Dropping it ends the lingering of its stream.
    streams: Mutex<VecDeque<oneshot::Sender<Infallible>>>,
    drain: CancellationToken,
    metrics: Arc<Http2Metrics>,
}

impl Unread {
    /// Nothing: the request has no body.
    pub(super) const fn nothing() -> Self {
        Self {
            state: State::Ended,
            left: BYTES,
        }
    }

    /// What is left of a body when its stream is sent to `returned`.
    pub(super) const fn of(returned: oneshot::Receiver<RecvStream>) -> Self {
        Self {
            state: State::Lent(returned),
            left: BYTES,
        }
    }

    /// Runs `sending` and discards what arrives meanwhile, so that a client that is slow to take the response does not
    /// hold the window of the connection.
    pub(super) async fn discard_during<T>(
        &mut self,
        mut sending: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        poll_fn(|cx| {
            let sent = sending.as_mut().poll(cx);
            if sent.is_pending() {
                let _ = self.poll_discard(cx);
            }
            sent
        })
        .await
    }

    /// Discards what arrives. Ready when there is nothing more to read, with the reason if the stream is to be reset.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<Option<EarlyReset>> {
        loop {
            self.state = match &mut self.state {
                State::Lent(returned) => match ready!(Pin::new(returned).poll(cx)) {
                    Ok(stream) => State::Returned(stream),
                    Err(_read_to_its_end) => State::Ended,
                },
                State::Returned(stream) => match ready!(stream.poll_data(cx)) {
                    Some(Ok(part)) if part.len() > self.left => State::TooLong,
                    Some(Ok(part)) => {
                        self.left -= part.len();
                        // An error means that the stream is closed, which the next read reports.
                        let _ = stream.flow_control().release_capacity(part.len());
                        continue;
                    }
                    Some(Err(_)) | None => State::Ended,
                },
                State::Ended => return Poll::Ready(None),
                State::TooLong => return Poll::Ready(Some(EarlyReset::Bytes)),
            };
        }
    }
}

impl Lingering {
    pub(super) fn new(metrics: Arc<Http2Metrics>) -> Self {
        Self {
            streams: Mutex::default(),
            drain: CancellationToken::new(),
            metrics,
        }
    }

    /// Ends lingering soon, for the streams that linger now and for later ones.
    pub(super) fn drain(&self) {
        self.drain.cancel();
    }

    /// Discards the rest of a request body after its response. The caller holds the last handle of the stream and
    /// drops it afterwards: `h2` then resets the stream, unless the client has ended its side.
    pub(super) async fn linger(&self, mut unread: Unread) {
        let end = match poll_fn(|cx| Poll::Ready(unread.poll_discard(cx))).await {
            Poll::Ready(end) => end,
            Poll::Pending => self.wait(&mut unread).await,
        };
        if let Some(reason) = end {
            self.metrics.reset_early(reason);
        }
    }

    async fn wait(&self, unread: &mut Unread) -> Option<EarlyReset> {
        let _counted = self.metrics.lingering();
        let evicted = self.enter();
        let expired = async {
            if timeout(TIME, self.drain.cancelled()).await.is_ok() {
                sleep(DRAIN_TIME).await;
            }
        };
        tokio::select! {
            biased;
            end = poll_fn(|cx| unread.poll_discard(cx)) => end,
            _ = evicted => Some(EarlyReset::Streams),
            () = expired => Some(EarlyReset::Time),
        }
    }

    /// Adds a stream and ends the lingering of the oldest if there are too many. The stream is removed when the result
    /// is dropped.
    fn enter(&self) -> oneshot::Receiver<Infallible> {
        let (sender, evicted) = oneshot::channel();
        let mut streams = self.streams.lock();
        streams.retain(|stream| !stream.is_closed());
        streams.push_back(sender);
        if streams.len() > STREAMS {
            streams.pop_front();
        }
        evicted
    }
}
