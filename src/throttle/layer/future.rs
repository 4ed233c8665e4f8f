//! The answer to a request, on whichever way it comes through the throttle.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, Response};
use pin_project_lite::pin_project;

use super::super::Verdict;
use super::Rules;

/// The answer to a request that has to wait.
pub(super) type Answering<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

pin_project! {
    /// The answer to a request. It is small: whoever awaits it has room for it more than once, and moves it.
    #[must_use = "futures do nothing unless polled"]
    pub struct ThrottleFuture<F, B, E> {
        #[pin]
        way: Way<F, B, E>,
    }
}

pin_project! {
    #[project = WayProjected]
    pub(super) enum Way<F, B, E> {
        Passing { #[pin] inner: F, statement: Option<Box<Statement>> },
        Waiting { answering: Answering<B, E> },
        // Boxed: it would make the way of every other request as large as a response.
        Refused { response: Option<Box<Response<B>>> },
    }
}

/// The decision on an admitted request, which its response shows in `RateLimit` headers.
pub(super) struct Statement {
    pub(super) rules: Arc<Rules>,
    pub(super) verdict: Verdict,
}

impl Statement {
    /// Writes the `RateLimit` headers of a response.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        self.rules.write(headers, &self.verdict);
    }
}

impl<F, B, E> From<Way<F, B, E>> for ThrottleFuture<F, B, E> {
    fn from(way: Way<F, B, E>) -> Self {
        Self { way }
    }
}

impl<F, B, E> Future for ThrottleFuture<F, B, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().way.project() {
            WayProjected::Passing { inner, statement } => {
                let mut response = ready!(inner.poll(cx))?;
                if let Some(statement) = statement {
                    statement.write(response.headers_mut());
                }
                Poll::Ready(Ok(response))
            }
            WayProjected::Waiting { answering } => answering.as_mut().poll(cx),
            WayProjected::Refused { response } => {
                Poll::Ready(Ok(*response.take().expect("polled once to its end")))
            }
        }
    }
}
