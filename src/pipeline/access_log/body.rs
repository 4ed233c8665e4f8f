//! Body of a response, which ends the access log line when it is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::{AccessLog, AccessLogLine};
use crate::clock::Moment;
use crate::http::http1;
use crate::pipeline::rule::RouteRule;
use crate::request::body::{BodyError, ResponseBody};
use crate::scenario::trace::ResponseEnd;

/// If it is dropped before its last byte is sent, the response is logged as truncated.
#[derive(Debug)]
pub(crate) struct LoggedBody {
    pub(super) body: ResponseBody,
    pub(super) log: Arc<AccessLog>,
    /// Route and time of arrival; `None` if the duration is not counted.
    pub(super) timed: Option<(Arc<RouteRule>, Moment)>,
    /// Written when the body ends. Boxed to keep the response small, because it is moved often.
    pub(super) line: Option<Box<AccessLogLine>>,
    pub(super) bytes: u64,
    pub(super) end: BodyEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// If the body is dropped in this state, the client has disconnected.
    Unfinished,
    Delivered,
    /// `resets` means that the server resets the connection.
    Failed {
        resets: bool,
    },
}

impl http_body::Body for LoggedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            Poll::Ready(Some(Err(error))) => {
                let resets = matches!(error, BodyError::Scenario { resets: true });
                self.end = BodyEnd::Failed { resets };
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl http1::TrackDelivery for LoggedBody {
    fn delivered(mut self: Pin<&mut Self>) {
        self.end = BodyEnd::Delivered;
    }

    fn is_reset(&self) -> bool {
        self.end == BodyEnd::Failed { resets: true }
    }
}

impl Drop for LoggedBody {
    fn drop(&mut self) {
        let is_truncated = self.end != BodyEnd::Delivered;
        if is_truncated {
            self.log.metrics.totals.truncated.inc();
        }
        if let Some((route, started)) = self.timed.take() {
            let duration = self.log.clock.now().since(started);
            route.metrics.duration.record(duration);
        }
        if let Some(mut line) = self.line.take() {
            if let Some(traced) = &mut line.traced {
                let end = match self.end {
                    BodyEnd::Delivered => ResponseEnd::Complete,
                    BodyEnd::Failed { .. } => ResponseEnd::Aborted,
                    BodyEnd::Unfinished => ResponseEnd::ClientClosed,
                };
                traced.ended(end);
            }
            let AccessLogLine { facts, status, .. } = &*line;
            self.log.write(facts, *status, self.bytes, is_truncated);
        }
    }
}
