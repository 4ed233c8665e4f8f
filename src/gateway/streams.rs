//! Whether an HTTP/2 connection is being used, and read.
//!
//! hyper pings a silent client to see whether it is there; one that only answers pings would stay for
//! ever, and one that opens streams and grants them no window would hold their upstream connections as
//! long. HTTP/1 has its deadlines from the wire; here each stream says when it last had something for the
//! client that was not asked for since.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use slab::Slab;
use tokio::time::{Instant, sleep};

/// The streams of one connection. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Streams begun so far.
    begun: u64,
    /// Those open now, each with the moment it handed over a part, if no more was asked for since.
    open: Slab<Option<Instant>>,
}

/// A stream that is open, until dropped.
#[derive(Debug)]
pub(super) struct Stream {
    streams: Streams,
    place: usize,
}

impl Streams {
    /// Counts a stream in.
    pub(super) fn begin(&self) -> Stream {
        let mut state = self.0.lock();
        state.begun += 1;
        let place = state.open.insert(None);
        Stream {
            streams: self.clone(),
            place,
        }
    }

    /// Waits until no stream was open for `idle`, and at most twice that.
    pub(super) async fn at_rest(&self, idle: Duration) {
        loop {
            let begun = self.0.lock().begun;
            let resting = self.0.lock().open.is_empty();
            sleep(idle).await;
            if resting && begun == self.0.lock().begun {
                return;
            }
        }
    }

    /// Waits until the client left part of an answer unread for `write`, and at most twice that.
    pub(super) async fn stalled(&self, write: Duration) {
        loop {
            sleep(write).await;
            let since = |handed: &Option<Instant>| handed.is_some_and(|at| at.elapsed() >= write);
            if self.0.lock().open.iter().any(|(_, handed)| since(handed)) {
                return;
            }
        }
    }
}

impl Stream {
    /// The body; the stream is open for as long as it is.
    pub(super) fn until_end_of<B>(self, body: B) -> Streamed<B> {
        Streamed { body, stream: self }
    }

    fn note(&self, handed: Option<Instant>) {
        self.streams.0.lock().open[self.place] = handed;
    }
}

pin_project! {
    /// A response's body and its stream.
    #[derive(Debug)]
    pub(super) struct Streamed<B> {
        #[pin]
        body: B,
        stream: Stream,
    }
}

impl<B: Body> Body for Streamed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(cx);
        // Asked again, it is upstream that is waited for, unless there is something to hand over.
        this.stream.note(frame.is_ready().then(Instant::now));
        frame
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
        self.streams.0.lock().open.remove(self.place);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};

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

    #[tokio::test(start_paused = true)]
    async fn an_answer_left_unread_stalls_its_connection_and_one_awaited_does_not() {
        let streams = Streams::default();
        let awaited = streams.begin();
        let stalled = tokio::time::timeout(10 * IDLE, streams.stalled(IDLE));
        assert!(stalled.await.is_err());
        drop(awaited);
        let mut unread = streams
            .begin()
            .until_end_of(Full::new(Bytes::from_static(b"x")));
        unread.frame().await.unwrap().unwrap();
        let started = Instant::now();
        streams.stalled(IDLE).await;
        assert!(started.elapsed() <= 2 * IDLE);
    }
}
