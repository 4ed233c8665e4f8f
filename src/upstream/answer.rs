//! Upstream's answer, made into the client's.
//!
//! What upstream says of its body must be beyond doubt, or somebody on the way could take part of one
//! answer for the next; an answer in doubt is none.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::error::ForwardError;
use super::patience::Patience;
use super::pool::Lease;
use super::target::Visit;
use super::{Relay, headers, tunnel};
use crate::admin::InFlight;
use crate::pipeline::Arrival;
use crate::respond::Body;
use crate::wire::upgrade::Upgrade;

/// What an answer's body holds until it has passed.
pub(super) struct Relaying {
    pub(super) lease: Lease,
    pub(super) patience: Patience,
    pub(super) in_flight: InFlight,
    pub(super) visit: Visit,
}

/// Upstream's answer as the client gets it.
pub(super) fn to_client(
    response: Response<Incoming>,
    relaying: Relaying,
    arrival: &Arrival,
    client_upgrade: Option<Upgrade>,
) -> Result<Response<Body>, ForwardError> {
    let Relaying {
        lease,
        patience,
        in_flight,
        mut visit,
    } = relaying;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client_upgrade else {
            return Err(ForwardError::BadAnswer(
                "the answer switches protocols unasked",
            ));
        };
        let mut response = response;
        let upstream = hyper::upgrade::on(&mut response);
        visit.succeeded();
        let held = (lease, in_flight, visit);
        tunnel::open(&arrival.connection, client, upstream, held);
        let (mut parts, _) = response.into_parts();
        headers::to_client(&mut parts.headers, true);
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    let (mut parts, body) = response.into_parts();
    headers::to_client(&mut parts.headers, false);
    parts.extensions = http::Extensions::new();
    let relay = Relay::new(body, lease, &patience, (in_flight, visit));
    Ok(Response::from_parts(parts, Body::from(relay)))
}

/// Why nobody can be sure where an answer ends or what its body is. A coding besides `chunked` would be
/// left on the body while the header that names it stays on its hop.
pub(super) fn framing_fault(headers: &HeaderMap) -> Option<&'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next()?;
    if headers.contains_key(CONTENT_LENGTH) {
        Some("the answer declares its length in two ways")
    } else if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        Some("the answer's transfer coding is not exactly chunked")
    } else {
        None
    }
}

/// Bytes of an answer that are read to save its connection.
const WORTH_READING: usize = 64 * 1024;

/// How long that may take.
const WORTH_WAITING: Duration = Duration::from_millis(250);

/// Lets go of an answer that nobody gets. Its connection serves again if the little that is left comes soon.
pub(super) fn discard(response: Response<Incoming>, lease: Lease) {
    let mut body = response.into_body();
    if body.is_end_stream() {
        lease.finish();
        return;
    }
    if body.size_hint().lower() > WORTH_READING as u64 {
        return;
    }
    tokio::spawn(async move {
        let read = async {
            let mut left = WORTH_READING;
            while let Some(frame) = body.frame().await {
                let length = frame.ok()?.data_ref().map_or(0, Bytes::len);
                left = left.checked_sub(length)?;
            }
            Some(())
        };
        if let Ok(Some(())) = timeout(WORTH_WAITING, read).await {
            lease.finish();
        }
    });
}
