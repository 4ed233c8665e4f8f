//! Converts a response of a server into the response that is sent to the client.
//!
//! A response whose `Content-Length` and `Transfer-Encoding` are ambiguous is rejected. The client could otherwise
//! parse a part of the body as the next response (response splitting).

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::connection_auth;
use super::error::ForwardError;
use super::pool::Lease;
use super::target::AttemptGuard;
use super::timeouts::RequestTimeouts;
use super::tunnel::{self, RequestedTunnel};
use super::{RelayedBody, headers};
use crate::metrics::InFlight;
use crate::request::body::ResponseBody;
use crate::request::context::Arrival;

/// `tunnel` is `None` if the request does not ask for an upgrade.
pub(super) fn to_client(
    response: Response<Incoming>,
    (lease, in_flight, mut guard): (Lease, InFlight, AttemptGuard),
    timeouts: &RequestTimeouts,
    arrival: &Arrival,
    tunnel: Option<RequestedTunnel>,
    is_http2: bool,
) -> Result<Response<ResponseBody>, ForwardError> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(tunnel) = tunnel.filter(|tunnel| tunnel.is_for(response.headers())) else {
            return Err(ForwardError::InvalidResponse(
                "status 101 for a protocol that the request did not ask for".into(),
            ));
        };
        let mut response = response;
        let upstream = hyper::upgrade::on(&mut response);
        guard.succeeded();
        let held = (lease, in_flight, guard);
        tunnel::open(&arrival.connection, tunnel, upstream, held);
        let (mut parts, _) = response.into_parts();
        headers::to_client(&mut parts.headers, parts.status);
        return Ok(Response::from_parts(parts, ResponseBody::empty()));
    }
    let (mut parts, body) = response.into_parts();
    headers::to_client(&mut parts.headers, parts.status);
    parts.extensions = http::Extensions::new();
    if is_http2
        && parts.status == StatusCode::UNAUTHORIZED
        && connection_auth::is_demanded(&parts.headers)
        && !connection_auth::remove_challenges(&mut parts.headers)
    {
        guard.succeeded();
        return Err(ForwardError::RequiresHttp1);
    }
    let relay = RelayedBody::new(body, lease, timeouts, (in_flight, guard));
    Ok(Response::from_parts(parts, ResponseBody::streaming(relay)))
}

/// Reduces `Content-Length` to one line of decimal digits, because HTTP/2 does not allow several lines. hyper does not
/// check the length of a response without a body, such as to HEAD. A transfer coding other than `chunked` is rejected,
/// because the gateway removes the header but would not decode the body.
pub(super) fn check_framing(headers: &mut HeaderMap) -> Result<(), &'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        if headers.contains_key(CONTENT_LENGTH) {
            return Err(
                "the response has both a Content-Length and a Transfer-Encoding header field",
            );
        }
        if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err("the response has a Transfer-Encoding other than chunked");
        }
        return Ok(());
    }
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let Some(line) = lines.next() else {
        return Ok(());
    };
    if lines.next().is_none() && is_canonical(line.as_bytes()) {
        return Ok(());
    }
    let length = content_length(headers)
        .ok_or("the response has an invalid Content-Length, or several different ones")?;
    headers.insert(CONTENT_LENGTH, length.into());
    Ok(())
}

/// 1 to 19 digits without leading zeros fit into 64 bits.
fn is_canonical(value: &[u8]) -> bool {
    (1..=19).contains(&value.len())
        && value.iter().all(u8::is_ascii_digit)
        && (value == b"0" || value[0] != b'0')
}

/// All list members of all lines must be equal (RFC 9110, section 8.6).
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut length = None;
    for line in headers.get_all(CONTENT_LENGTH) {
        for member in line.to_str().ok()?.split(',') {
            let member = member.trim_matches([' ', '\t']);
            let is_number = !member.is_empty() && member.bytes().all(|byte| byte.is_ascii_digit());
            let number = member.parse().ok().filter(|_| is_number)?;
            if *length.get_or_insert(number) != number {
                return None;
            }
        }
    }
    length
}

/// Bound on what the gateway reads from a discarded response in order to reuse its connection.
const MAX_DISCARDED_BYTES: usize = 64 * 1024;

const MAX_DISCARD_TIME: Duration = Duration::from_millis(250);

pub(super) fn discard(response: Response<Incoming>, lease: Lease) {
    let mut body = response.into_body();
    if body.is_end_stream() {
        lease.finish();
        return;
    }
    if body.size_hint().lower() > MAX_DISCARDED_BYTES as u64 {
        return;
    }
    tokio::spawn(async move {
        let read = async {
            let mut left = MAX_DISCARDED_BYTES;
            while let Some(frame) = body.frame().await {
                let length = frame.ok()?.data_ref().map_or(0, Bytes::len);
                left = left.checked_sub(length)?;
            }
            Some(())
        };
        if let Ok(Some(())) = timeout(MAX_DISCARD_TIME, read).await {
            lease.finish();
        }
    });
}
