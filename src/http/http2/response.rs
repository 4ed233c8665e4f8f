//! Sends a response on an HTTP/2 stream.
//!
//! A part of the body is passed to `h2` only when the client's flow-control windows permit it. A stream without send
//! capacity has one of three reasons (see [`FlowControl`]):
//!
//! - The client grants no window. After `write_timeout`, the gateway resets this stream. Other streams continue.
//! - Other streams are served first.
//! - A blocked socket holds back queued data of the stream.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
    UPGRADE,
};
use http::response::Parts;
use http::{Response, StatusCode};
use http_body::Body;
use thiserror::Error;
use tokio::time::{Instant, timeout};

use super::flow::FlowControl;
use super::write_tracking::{TrackedPart, UnwrittenBytes};
use crate::http::http1::date_header;

/// Maximum send capacity that a stream requests at a time, in bytes. It is small so that the streams of a connection
/// alternate.
const MAX_REQUESTED: usize = 16 * 1024;

/// Maximum time that a stream without unwritten data waits while other streams are served first or the socket is
/// blocked, as a multiple of `write_timeout`.
const MAX_ROUNDS: usize = 4;

/// Why an HTTP/2 response was not sent completely.
#[derive(Debug, Error)]
pub(super) enum SendError {
    #[error("the client accepted no data of the response for {0:?} (`write_timeout`)")]
    Stalled(Duration),
    #[error("the client reset the HTTP/2 stream or disconnected before the response was complete")]
    Cancelled,
    #[error(
        "the response body failed before it was complete, so the gateway reset the HTTP/2 stream"
    )]
    Truncated,
    #[error("the final response has the informational status {0}, which HTTP/2 does not allow")]
    Informational(StatusCode),
    #[error(transparent)]
    Stream(#[from] h2::Error),
}

/// Sends a response, without a body if `is_head` is true. Returns the stream when `h2` has queued all frames of the
/// response.
pub(super) async fn send<B>(
    respond: &mut SendResponse<TrackedPart>,
    mut parts: Parts,
    is_head: bool,
    body: Pin<&mut B>,
    write_timeout: Duration,
    flow: &FlowControl,
) -> Result<SendStream<TrackedPart>, SendError>
where
    B: Body<Data = Bytes>,
{
    if parts.status.is_informational() {
        respond.send_reset(Reason::INTERNAL_ERROR);
        return Err(SendError::Informational(parts.status));
    }
    let has_no_content = matches!(
        parts.status,
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    );
    let sends_body = !is_head && !has_no_content && !body.is_end_stream();
    complete_head(&mut parts, body.size_hint().exact(), is_head, sends_body);
    let head = Response::from_parts(parts, ());
    let stream = respond.send_response(head, !sends_body)?;
    let mut sender = ResponseSender {
        stream,
        unwritten: UnwrittenBytes::default(),
        write_timeout,
        flow,
    };
    if sends_body {
        sender.send(body).await?;
    }
    Ok(sender.stream)
}

/// Changes a response head so that it is valid for HTTP/2. Removes connection-specific headers (RFC 9113, section
/// 8.2.2), leaves at most one `Content-Length`, and adds `Date`.
fn complete_head(parts: &mut Parts, exact: Option<u64>, is_head: bool, sends_body: bool) {
    let headers = &mut parts.headers;
    for name in [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
    if parts.status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    } else {
        // If a body is sent, `Content-Length` is the actual length of the body. In response to `HEAD`, it is the length
        // of the body that `GET` would return, unless the service has set it.
        let length = match exact {
            Some(exact) if sends_body => Some(HeaderValue::from(exact)),
            Some(exact @ 1..) if is_head && !headers.contains_key(CONTENT_LENGTH) => {
                Some(HeaderValue::from(exact))
            }
            _ => headers.get(CONTENT_LENGTH).cloned(),
        };
        if let Some(length) = length {
            // `insert` replaces all existing `Content-Length` lines by one.
            headers.insert(CONTENT_LENGTH, length);
        }
    }
    if !headers.contains_key(DATE) {
        headers.insert(DATE, date_header(Instant::now()));
    }
}

/// Sends the body of a response whose head is already sent.
struct ResponseSender<'a> {
    stream: SendStream<TrackedPart>,
    unwritten: UnwrittenBytes,
    write_timeout: Duration,
    flow: &'a FlowControl,
}

impl ResponseSender<'_> {
    async fn send<B: Body<Data = Bytes>>(
        &mut self,
        mut body: Pin<&mut B>,
    ) -> Result<(), SendError> {
        loop {
            let frame = poll_fn(|cx| {
                if self.stream.poll_reset(cx).is_ready() {
                    return Poll::Ready(Err(SendError::Cancelled));
                }
                body.as_mut().poll_frame(cx).map(Ok)
            });
            let Some(frame) = frame.await? else {
                return self.queue(Bytes::new(), true);
            };
            let Ok(frame) = frame else {
                self.stream.send_reset(Reason::INTERNAL_ERROR);
                return Err(SendError::Truncated);
            };
            match frame.into_data() {
                Ok(data) => {
                    let is_last = body.is_end_stream();
                    self.send_data(data, is_last).await?;
                    if is_last {
                        return Ok(());
                    }
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_else(|_| HeaderMap::new());
                    self.stream.send_trailers(trailers)?;
                    return Ok(());
                }
            }
        }
    }

    /// Sends a part of the body, as fast as the client's flow-control windows permit.
    async fn send_data(&mut self, mut data: Bytes, is_last: bool) -> Result<(), SendError> {
        if data.is_empty() && is_last {
            return self.queue(data, true);
        }
        while !data.is_empty() {
            let granted = self.capacity(data.len().min(MAX_REQUESTED)).await?;
            let part = data.split_to(granted.min(data.len()));
            self.queue(part, is_last && data.is_empty())?;
        }
        Ok(())
    }

    /// Passes a part of the body to `h2`. The stream has send capacity for it.
    fn queue(&mut self, part: Bytes, is_last: bool) -> Result<(), SendError> {
        let part = if is_last {
            TrackedPart::last(part)
        } else {
            self.unwritten.track(part)
        };
        self.stream.send_data(part, is_last)?;
        Ok(())
    }

    /// Asks `h2` for a send capacity of `wanted` bytes and waits until at least a part of it is available. Returns the
    /// number of bytes that can be sent. Resets the stream if the client grants no window within `write_timeout`.
    async fn capacity(&mut self, wanted: usize) -> Result<usize, SendError> {
        self.stream.reserve_capacity(wanted);
        let available = self.stream.capacity();
        if available > 0 {
            return Ok(available);
        }
        let waiting = self.flow.wait();
        let mut rounds = 1;
        loop {
            let granted = poll_fn(|cx| self.stream.poll_capacity(cx));
            match timeout(self.write_timeout, granted).await {
                Ok(Some(granted)) => {
                    self.flow.grant();
                    return Ok(granted?);
                }
                Ok(None) => return Err(SendError::Cancelled),
                // A blocked socket holds back data of this stream. The write timeout of the socket applies instead,
                // because it detects whether the client acknowledges bytes. The type `Rewind` checks that timeout. If
                // `h2` skips the stream, its data is unwritten because the client has withdrawn the window.
                Err(_elapsed)
                    if self.flow.is_blocked()
                        && !self.unwritten.is_empty()
                        && !waiting.is_skipped() => {}
                Err(_elapsed)
                    if rounds < MAX_ROUNDS
                        && (self.flow.is_blocked() || waiting.is_behind_others()) =>
                {
                    rounds += 1;
                }
                Err(_elapsed) => break,
            }
        }
        self.stream.send_reset(Reason::CANCEL);
        Err(SendError::Stalled(self.write_timeout))
    }
}
