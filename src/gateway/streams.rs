//! Whether an HTTP/2 connection is being used.
//!
//! hyper pings a silent client to see whether it is there; one that only answers pings would stay for
//! ever. HTTP/1 has its idle deadline from the wire, which sees each request begin and end; here the
//! streams are counted instead.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// The streams of one connection. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A stream that is open, until dropped.
#[derive(Debug)]
pub(super) struct Stream(Arc<Counts>);

impl Streams {
    /// Counts a stream in.
    pub(super) fn begin(&self) -> Stream {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        Stream(Arc::clone(&self.0))
    }

    /// Waits until no stream was open for `idle`, and at most twice that.
    pub(super) async fn at_rest(&self, idle: Duration) {
        loop {
            let begun = self.0.begun.load(Ordering::Relaxed);
            let resting = begun == self.0.ended.load(Ordering::Relaxed);
            tokio::time::sleep(idle).await;
            if resting && begun == self.0.begun.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

impl Stream {
    /// The body; the stream is open for as long as it is.
    pub(super) fn until_end_of<B>(self, body: B) -> Streamed<B> {
        Streamed {
            body,
            _stream: self,
        }
    }
}

pin_project! {
    /// A response's body and its stream.
    #[derive(Debug)]
    pub(super) struct Streamed<B> {
        #[pin]
        body: B,
        _stream: Stream,
    }
}

impl<B: Body> Body for Streamed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const IDLE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_streams_is_at_rest() {
        let started = Instant::now();
        Streams::default().at_rest(IDLE).await;
        assert_eq!(started.elapsed(), IDLE);
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_stream_keeps_its_connection_however_long_it_takes() {
        let streams = Streams::default();
        let stream = streams.begin();
        let resting = tokio::time::timeout(100 * IDLE, streams.at_rest(IDLE));
        assert!(resting.await.is_err());
        drop(stream);
        let started = Instant::now();
        streams.at_rest(IDLE).await;
        assert!(started.elapsed() <= 2 * IDLE);
    }
}
