//! The answer to a request, on whichever way it comes.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use pin_project_lite::pin_project;

use super::super::Told;

/// The answer to a request with a key.
type Answering<B, E> = Pin<Box<dyn Future<Output = Result<Response<Told<B>>, E>> + Send>>;

pin_project! {
    /// The answer to a request. One that passes costs no more than it would without the layer.
    #[must_use = "futures do nothing unless polled"]
    pub struct AnswerFuture<F, B, E> {
        #[pin]
        pub(super) way: Way<F, B, E>,
    }
}

pin_project! {
    #[project = WayProjected]
    pub(super) enum Way<F, B, E> {
        Passing { #[pin] inner: F },
        Keyed { answering: Answering<B, E> },
        // Boxed: it is rare, and would make the way of every other request as large as a response.
        Refused { refusal: Option<Box<Response<Told<B>>>> },
    }
}

impl<F, B, E> Future for AnswerFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<Told<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().way.project() {
            WayProjected::Passing { inner } => inner
                .poll(cx)
                .map_ok(|response| response.map(Told::passing)),
            WayProjected::Keyed { answering } => answering.as_mut().poll(cx),
            WayProjected::Refused { refusal } => {
                Poll::Ready(Ok(*refusal.take().expect("polled once to its end")))
            }
        }
    }
}
