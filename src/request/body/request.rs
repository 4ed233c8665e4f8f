//! Body of a request. Its start can be buffered before the rest is forwarded.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

use super::BoxError;
use super::error::RequestBodyError;
use super::held::HeldParts;
use super::read::{ReadBody, read_start};
use crate::request::buffers::BufferCharge;
use crate::request::log_fields::AccessLogNotes;
#[cfg(feature = "gateway")]
use {
    crate::http::IncompleteBody,
    crate::http::http1::{Http1Body, Violation},
    crate::http::http2::Http2Body,
    crate::metrics::Totals,
};

/// Trailers are dropped, because no stage checks them, and a server could treat a trailer field like a checked header
/// field.
#[derive(Debug)]
pub(crate) struct RequestBody(RequestBodySource);

#[derive(Debug)]
enum RequestBodySource {
    Whole(Bytes),
    /// Boxed, because most requests have no body and each stage moves the request.
    Stream(Box<RequestStream>),
}

#[derive(Debug)]
struct RequestStream {
    /// Read by [`RequestBody::buffer`].
    buffered: HeldParts,
    source: StreamSource,
    /// Maximum length, in bytes. A longer body ends with `TooLarge`.
    limit: u64,
    /// `limit` minus the bytes received.
    allowance: u64,
    /// Counts the received bytes. `None` if the request is not logged.
    notes: Option<Arc<AccessLogNotes>>,
}

/// A client connection of the gateway, with the metrics that count a body below `min_rate`, or the HTTP server of an
/// embedding application.
#[derive(Debug)]
enum StreamSource {
    #[cfg(feature = "gateway")]
    Http1(Http1Body, Arc<Totals>),
    #[cfg(feature = "gateway")]
    Http2(Http2Body, Arc<Totals>),
    Application(UnsyncBoxBody<Bytes, BoxError>),
}

impl RequestBody {
    pub(crate) const fn empty() -> Self {
        Self(RequestBodySource::Whole(Bytes::new()))
    }

    /// The length of a body that has arrived completely is not checked, because the check of the head rejects a
    /// `Content-Length` above the maximum.
    #[cfg(feature = "gateway")]
    pub(crate) fn http1(body: Http1Body, limit: u64, metrics: &Arc<Totals>) -> Self {
        match body.into_complete() {
            Ok(bytes) => bytes.into(),
            Err(body) => Self::streaming(StreamSource::Http1(body, Arc::clone(metrics)), limit),
        }
    }

    #[cfg(feature = "gateway")]
    pub(crate) fn http2(body: Http2Body, limit: u64, metrics: &Arc<Totals>) -> Self {
        if body.is_end_stream() {
            Self::empty()
        } else {
            Self::streaming(StreamSource::Http2(body, Arc::clone(metrics)), limit)
        }
    }

    /// Now if the body is complete, or during reading if it is a stream.
    pub(crate) fn count_bytes(&mut self, notes: &Arc<AccessLogNotes>) {
        match &mut self.0 {
            RequestBodySource::Whole(bytes) => notes.add_bytes_in(bytes.len()),
            RequestBodySource::Stream(streaming) => streaming.notes = Some(Arc::clone(notes)),
        }
    }

    /// The length is not bounded here.
    pub(crate) fn application<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let body = body.map_err(Into::into).boxed_unsync();
        Self::streaming(StreamSource::Application(body), u64::MAX)
    }

    fn streaming(source: StreamSource, limit: u64) -> Self {
        Self(RequestBodySource::Stream(Box::new(RequestStream {
            buffered: HeldParts::default(),
            source,
            limit,
            allowance: limit,
            notes: None,
        })))
    }

    /// Reads up to `cap` bytes of the body into memory, or less if `charge` cannot grow. A later call has no effect.
    pub(crate) async fn buffer(
        &mut self,
        cap: usize,
        mut charge: BufferCharge,
    ) -> Result<(), RequestBodyError> {
        if !self.start().next().is_none_or(<[u8]>::is_empty) {
            return Ok(());
        }
        match read_start(self, cap, &mut charge).await? {
            ReadBody::Whole(body) => *self = charge.hold(body).into(),
            ReadBody::Partial { held, next, .. } => {
                if let RequestBodySource::Stream(stream) = &mut self.0 {
                    stream.buffered = HeldParts::new(charge.hold(held), next);
                }
            }
        }
        Ok(())
    }

    /// The parts that are in memory, in order.
    pub(crate) fn start(&self) -> impl Iterator<Item = &[u8]> {
        let parts = match &self.0 {
            RequestBodySource::Whole(bytes) => [&bytes[..], &[]],
            RequestBodySource::Stream(stream) => stream.buffered.parts(),
        };
        parts.into_iter()
    }

    /// `None` if the body is a stream.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        match &self.0 {
            RequestBodySource::Whole(bytes) => Some(bytes),
            RequestBodySource::Stream(_) => None,
        }
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self(RequestBodySource::Whole(bytes))
    }
}

impl RequestStream {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        if let Some(part) = self.buffered.take() {
            return Poll::Ready(Some(Ok(part)));
        }
        let data = match ready!(self.source.poll_data(cx)) {
            Some(Ok(data)) => data,
            other => return Poll::Ready(other),
        };
        if let Some(notes) = &self.notes {
            notes.add_bytes_in(data.len());
        }
        let Some(left) = self.allowance.checked_sub(data.len() as u64) else {
            return Poll::Ready(Some(Err(RequestBodyError::TooLarge(self.limit))));
        };
        self.allowance = left;
        Poll::Ready(Some(Ok(data)))
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.buffered.size_with(&self.source.size_hint())
    }
}

impl StreamSource {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        let body = match self {
            #[cfg(feature = "gateway")]
            Self::Http1(body, metrics) => return count_slow(body.poll_part(cx), metrics),
            #[cfg(feature = "gateway")]
            Self::Http2(body, metrics) => return count_slow(body.poll_part(cx), metrics),
            Self::Application(body) => body,
        };
        loop {
            let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => {
                    let error = RequestBodyError::Application(error.into());
                    return Poll::Ready(Some(Err(error)));
                }
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                Some(Ok(Err(_trailers))) => {}
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            #[cfg(feature = "gateway")]
            Self::Http1(body, _) => body.is_end_stream(),
            #[cfg(feature = "gateway")]
            Self::Http2(body, _) => body.is_end_stream(),
            Self::Application(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            #[cfg(feature = "gateway")]
            Self::Http1(body, _) => body.size_hint(),
            #[cfg(feature = "gateway")]
            Self::Http2(body, _) => body.size_hint(),
            Self::Application(body) => body.size_hint(),
        }
    }
}

#[cfg(feature = "gateway")]
fn count_slow(
    part: Poll<Option<Result<Bytes, IncompleteBody>>>,
    metrics: &Totals,
) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
    let part = ready!(part);
    if let Some(Err(IncompleteBody::Invalid(Violation::BodyTooSlow))) = part {
        metrics.slow_bodies.inc();
    }
    Poll::Ready(part.map(|part| part.map_err(RequestBodyError::Incomplete)))
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match &mut self.0 {
            RequestBodySource::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            RequestBodySource::Whole(bytes) => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            RequestBodySource::Stream(streaming) => streaming
                .poll_data(cx)
                .map(|data| data.map(|data| data.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            RequestBodySource::Whole(bytes) => bytes.is_empty(),
            RequestBodySource::Stream(streaming) => streaming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            RequestBodySource::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBodySource::Stream(streaming) => streaming.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;
    use crate::request::buffers::{BufferBounds, Buffered, Buffers};
    use crate::request::client::ClientId;

    /// Returns a streamed body with these parts.
    fn streamed(parts: &[&'static str]) -> RequestBody {
        let frames: Vec<_> = parts
            .iter()
            .map(|part| Ok::<_, Infallible>(Frame::data(Bytes::from_static(part.as_bytes()))))
            .collect();
        RequestBody::application(StreamBody::new(stream::iter(frames)))
    }

    fn buffers(total: usize) -> Arc<Buffers> {
        Arc::new(Buffers::new(BufferBounds {
            total,
            per_client: total,
        }))
    }

    fn charge(buffers: &Arc<Buffers>) -> BufferCharge {
        buffers.charge(ClientId::of([127, 0, 0, 1].into(), 64), Buffered::Upload)
    }

    #[tokio::test]
    async fn a_body_that_fits_into_the_buffer_becomes_complete() {
        let mut body = streamed(&["ab", "cd"]);
        let buffers = buffers(100);
        body.buffer(4, charge(&buffers)).await.unwrap();
        assert_eq!(body.whole(), Some(&"abcd".into()));
        assert_eq!(buffers.in_use(), 4);
        drop(body);
        assert_eq!(buffers.in_use(), 0);
    }

    #[tokio::test]
    async fn a_longer_body_is_complete_and_in_order_after_its_start_was_buffered() {
        let parts = ["ab", "cd", "ef", "gh"];
        for (cap, total) in [(0, 100), (1, 100), (3, 100), (4, 100), (7, 100), (100, 3)] {
            let mut body = streamed(&parts);
            let buffers = buffers(total);
            body.buffer(cap, charge(&buffers)).await.unwrap();
            assert!(body.whole().is_none() && !body.is_end_stream(), "{cap}");
            assert!(body.size_hint().lower() >= 2, "{:?}", body.size_hint());
            assert_eq!(body.collect().await.unwrap().to_bytes(), parts.concat());
            assert_eq!(buffers.in_use(), 0, "{cap}");
        }
    }

    #[tokio::test]
    async fn an_error_of_the_body_ends_buffering() {
        let failing = stream::iter([
            Ok(Frame::data(Bytes::from_static(b"ab"))),
            Err("the client disconnected"),
        ]);
        let mut body = RequestBody::application(StreamBody::new(failing));
        let buffers = buffers(100);
        let failed = body.buffer(10, charge(&buffers)).await;
        assert!(matches!(failed, Err(RequestBodyError::Application(_))));
        assert_eq!(buffers.in_use(), 0);
    }
}
