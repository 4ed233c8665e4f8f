//! Lingering streams: the response is complete, and the client is still sending the request body.
//!
//! RFC 9113, section 8.1, allows the gateway to end such a stream with `RST_STREAM(NO_ERROR)`. `h2` does so as soon as
//! the last handle of the stream is dropped. curl 7.88 loses the response if the reset arrives in the same read. So the
//! gateway keeps the stream open, and reads and discards the request body, which keeps the windows of stream and
//! connection open. The reset follows after 1 MiB, after 5 s, or when more than 16 streams of the connection linger. If
//! the client ends its side first, there is no reset. The window of a stream is smaller than 1 MiB, so a client that
//! has sent 1 MiB has also read the response.

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

/// Longest time from the end of the response to the reset.
const TIME: Duration = Duration::from_secs(5);

/// Time from the start of a drain to the reset. It gives a client time to read a response that was just sent.
const DRAIN_TIME: Duration = Duration::from_millis(250);

/// Limit of the discarded bytes, per stream.
const BYTES: usize = 1 << 20;

/// Limit of the lingering streams, per connection.
const STREAMS: usize = 16;

/// The part of a request body that the service has not read.
#[derive(Debug)]
pub(super) struct Unread {
    state: UnreadState,
    /// Number of bytes that may still be discarded.
    remaining: usize,
}

#[derive(Debug)]
enum UnreadState {
    /// The service owns the body. The stream is sent here if the service drops the body before its end.
    InUse(oneshot::Receiver<RecvStream>),
    /// The service has dropped the body.
    Dropped(RecvStream),
    /// The client has ended its side, reset the stream or disconnected.
    Ended,
    /// The client has sent more than [`BYTES`].
    TooLong,
}

/// The lingering streams of a connection.
#[derive(Debug)]
pub(super) struct LingeringStreams {
    /// One sender per stream, oldest first. Dropping the sender ends the lingering of its stream.
    streams: Mutex<VecDeque<oneshot::Sender<Infallible>>>,
    drain: CancellationToken,
    metrics: Arc<Http2Metrics>,
}

impl Unread {
    /// Returns the state of a request without a body.
    pub(super) const fn nothing() -> Self {
        Self {
            state: UnreadState::Ended,
            remaining: BYTES,
        }
    }

    /// Returns the state of a body whose stream is sent to `returned` when the service drops the body.
    pub(super) const fn of(returned: oneshot::Receiver<RecvStream>) -> Self {
        Self {
            state: UnreadState::InUse(returned),
            remaining: BYTES,
        }
    }

    /// Runs `sending` and meanwhile discards the unread body. Otherwise the unread body of a client that reads its
    /// response slowly would occupy the connection's window.
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

    /// Discards the body as it arrives. Is ready at its end, or with the reason to reset the stream.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<Option<EarlyReset>> {
        loop {
            self.state = match &mut self.state {
                UnreadState::InUse(returned) => match ready!(Pin::new(returned).poll(cx)) {
                    Ok(stream) => UnreadState::Dropped(stream),
                    Err(_read_to_its_end) => UnreadState::Ended,
                },
                UnreadState::Dropped(stream) => match ready!(stream.poll_data(cx)) {
                    Some(Ok(part)) if part.len() > self.remaining => UnreadState::TooLong,
                    Some(Ok(part)) => {
                        self.remaining -= part.len();
                        // An error means that the stream is closed, which the next read reports.
                        let _ = stream.flow_control().release_capacity(part.len());
                        continue;
                    }
                    Some(Err(_)) | None => UnreadState::Ended,
                },
                UnreadState::Ended => return Poll::Ready(None),
                UnreadState::TooLong => return Poll::Ready(Some(EarlyReset::Bytes)),
            };
        }
    }
}

impl LingeringStreams {
    pub(super) fn new(metrics: Arc<Http2Metrics>) -> Self {
        Self {
            streams: Mutex::default(),
            drain: CancellationToken::new(),
            metrics,
        }
    }

    /// Limits the lingering of current and later streams to [`DRAIN_TIME`].
    pub(super) fn drain(&self) {
        self.drain.cancel();
    }

    /// Discards the rest of a request body after its response. The caller holds the last handle of the stream and drops
    /// it afterwards. `h2` then resets the stream, unless the client has ended its side.
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
        let evicted = self.add();
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

    /// Adds a stream, and ends the lingering of the oldest stream if there are too many. Dropping the returned receiver
    /// removes the stream.
    fn add(&self) -> oneshot::Receiver<Infallible> {
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
