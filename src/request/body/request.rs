//! Body of a request. Its start can be buffered before the rest is forwarded.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;

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
    Stream(Box<RequestStream<Source>>),
}

/// What the client sends, without its trailers.
type Source = dyn Body<Data = Bytes, Error = RequestBodyError> + Send + Unpin;

struct RequestStream<S: ?Sized> {
    /// Read by [`RequestBody::buffer`].
    buffered: HeldParts,
    /// Maximum length, in bytes. A longer body ends with `TooLarge`.
    limit: u64,
    /// `limit` minus the bytes received.
    allowance: u64,
    /// Counts the received bytes. `None` if the request is not logged.
    notes: Option<Arc<AccessLogNotes>>,
    source: S,
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
            Err(body) => Self::of_client(body, limit, metrics),
        }
    }

    /// Counts the body in `metrics` if it is slower than `min_rate` allows.
    #[cfg(feature = "gateway")]
    pub(crate) fn of_client<B>(body: B, limit: u64, metrics: &Arc<Totals>) -> Self
    where
        B: Body<Data = Bytes, Error = IncompleteBody> + Send + Unpin + 'static,
    {
        if body.is_end_stream() {
            return Self::empty();
        }
        let metrics = Arc::clone(metrics);
        let source = body.map_err(move |error| {
            if error == IncompleteBody::Invalid(Violation::BodyTooSlow) {
                metrics.slow_bodies.inc();
            }
            error.into()
        });
        Self::streaming(source, limit)
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
        let failed = |error: B::Error| {
            let error: BoxError = error.into();
            RequestBodyError::Application(error.into())
        };
        Self::streaming(Box::pin(body.map_err(failed)), u64::MAX)
    }

    fn streaming<S>(source: S, limit: u64) -> Self
    where
        S: Body<Data = Bytes, Error = RequestBodyError> + Send + Unpin + 'static,
    {
        Self(RequestBodySource::Stream(Box::new(RequestStream {
            buffered: HeldParts::default(),
            limit,
            allowance: limit,
            notes: None,
            source,
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

impl RequestStream<Source> {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        if let Some(part) = self.buffered.take() {
            return Poll::Ready(Some(Ok(part)));
        }
        let data = loop {
            match ready!(Pin::new(&mut self.source).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => break data,
                    Err(_trailers) => {}
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
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
}

impl fmt::Debug for RequestStream<Source> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestStream")
            .field("allowance", &self.allowance)
            .finish_non_exhaustive()
    }
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
            RequestBodySource::Stream(streaming) => {
                streaming.buffered.is_empty() && streaming.source.is_end_stream()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            RequestBodySource::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBodySource::Stream(streaming) => {
                streaming.buffered.size_with(&streaming.source.size_hint())
            }
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
