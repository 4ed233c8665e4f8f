//! Sends a response on an HTTP/2 stream.
//!
//! A part of the body is passed to `h2` only when the client's flow-control windows permit it. If a stream gets no
//! capacity for `write_timeout`, the gateway resets this stream, and other streams continue. It waits longer while
//! other streams are served first or the socket is blocked.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

use crate::http::http1::{SocketState, date_header};

/// Maximum send capacity that a stream requests at a time, in bytes. It is small so that the streams of a connection
/// alternate.
const MAX_REQUESTED: usize = 16 * 1024;

/// Maximum wait of a stream while other streams are served or the socket is blocked, as a multiple of `write_timeout`.
const MAX_ROUNDS: usize = 4;

/// What a stream knows of its connection.
#[derive(Debug)]
pub(super) struct FlowControl {
    /// Number of capacity grants to all streams.
    granted: AtomicU64,
    socket: Arc<SocketState>,
}

impl FlowControl {
    pub(super) fn new(socket: Arc<SocketState>) -> Self {
        Self {
            granted: AtomicU64::new(0),
            socket,
        }
    }
}

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

/// Returns the stream when `h2` has queued all frames of the response.
pub(super) async fn send<B>(
    respond: &mut SendResponse<Bytes>,
    mut parts: Parts,
    is_head: bool,
    body: Pin<&mut B>,
    write_timeout: Duration,
    flow: &FlowControl,
) -> Result<SendStream<Bytes>, SendError>
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
        write_timeout,
        flow,
    };
    if sends_body {
        sender.send(body).await?;
    }
    Ok(sender.stream)
}

/// Removes connection-specific headers (RFC 9113, section 8.2.2), leaves at most one `Content-Length`, and adds `Date`.
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
        // In response to `HEAD`, the length is that of the body that `GET` would return, unless the service has set it.
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

struct ResponseSender<'a> {
    stream: SendStream<Bytes>,
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
                return Ok(self.stream.send_data(Bytes::new(), true)?);
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

    async fn send_data(&mut self, mut data: Bytes, is_last: bool) -> Result<(), SendError> {
        if data.is_empty() && is_last {
            return Ok(self.stream.send_data(data, true)?);
        }
        while !data.is_empty() {
            let granted = self.capacity(data.len().min(MAX_REQUESTED)).await?;
            let part = data.split_to(granted.min(data.len()));
            self.stream.send_data(part, is_last && data.is_empty())?;
        }
        Ok(())
    }

    /// Waits until a part of the `wanted` bytes can be sent, and returns its length.
    async fn capacity(&mut self, wanted: usize) -> Result<usize, SendError> {
        self.stream.reserve_capacity(wanted);
        let available = self.stream.capacity();
        if available > 0 {
            return Ok(available);
        }
        let flow = self.flow;
        for _round in 0..MAX_ROUNDS {
            let before = flow.granted.load(Ordering::Relaxed);
            let granted = poll_fn(|cx| self.stream.poll_capacity(cx));
            match timeout(self.write_timeout, granted).await {
                Ok(Some(granted)) => {
                    flow.granted.fetch_add(1, Ordering::Relaxed);
                    return Ok(granted?);
                }
                Ok(None) => return Err(SendError::Cancelled),
                Err(_elapsed)
                    if flow.socket.is_blocked()
                        || flow.granted.load(Ordering::Relaxed) > before => {}
                Err(_elapsed) => break,
            }
        }
        self.stream.send_reset(Reason::CANCEL);
        Err(SendError::Stalled(self.write_timeout))
    }
}
