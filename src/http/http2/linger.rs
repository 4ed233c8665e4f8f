//! Lingering streams: the response is complete, but the client is still sending the request body.
//!
//! RFC 9113, section 8.1, allows the gateway to end such a stream with `RST_STREAM(NO_ERROR)`, and `h2` does so when
//! the last handle of the stream is dropped. curl 7.88 loses the response if it reads the response and the reset
//! together. So the gateway keeps the stream open, and reads and discards the request body. It resets the stream after
//! 1 MiB, after 5 s, or when more than 16 streams of the connection linger.
//!
//! The window of a stream is smaller than 1 MiB. So a client that sends 1 MiB after the end of the response has read
//! window updates that follow the response, and with them the response. The reset then does no harm.

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

/// From the end of the response to the reset of the stream.
const TIME: Duration = Duration::from_secs(5);

/// After a drain has started. A client can read a response that was just sent.
const DRAIN_TIME: Duration = Duration::from_millis(250);

/// Maximum number of discarded bytes per stream.
const BYTES: usize = 1 << 20;

/// Per connection. A further stream ends the lingering of the oldest.
const STREAMS: usize = 16;

#[derive(Debug)]
pub(super) struct Unread {
    state: UnreadState,
    remaining: usize,
}

#[derive(Debug)]
enum UnreadState {
    /// Gets the stream if the service drops the body before its end.
    InUse(oneshot::Receiver<RecvStream>),
    /// The rest of this stream must be discarded.
    Dropped(RecvStream),
    /// The client has ended the request, reset the stream or disconnected.
    Ended,
    TooLong,
}

#[derive(Debug)]
pub(super) struct LingeringStreams {
    /// Oldest first. Dropping a sender ends the lingering of its stream.
    streams: Mutex<VecDeque<oneshot::Sender<Infallible>>>,
    drain: CancellationToken,
    metrics: Arc<Http2Metrics>,
}

impl Unread {
    pub(super) const fn nothing() -> Self {
        Self {
            state: UnreadState::Ended,
            remaining: BYTES,
        }
    }

    /// `returned` receives the stream when the service drops the body.
    pub(super) const fn of(returned: oneshot::Receiver<RecvStream>) -> Self {
        Self {
            state: UnreadState::InUse(returned),
            remaining: BYTES,
        }
    }

    /// Discards the unread request body while the response is sent. Otherwise, while a client reads the response
    /// slowly, that body would occupy the flow-control window of the connection.
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

    /// Returns `None` at the end of the body, or the reason why the stream must be reset.
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
                        // On an error, the stream is closed, and the next read reports this.
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

    /// From now on, streams linger for at most [`DRAIN_TIME`].
    pub(super) fn drain(&self) {
        self.drain.cancel();
    }

    /// Afterwards the caller drops the last handle of the stream, and `h2` resets the stream if the client has not
    /// ended the request.
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

    /// The caller removes its stream by dropping the receiver.
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
