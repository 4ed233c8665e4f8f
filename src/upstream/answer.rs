//! Upstream's answer, made into the client's.
//!
//! What upstream says of its body must be beyond doubt, or somebody on the way could take part of one
//! answer for the next; an answer in doubt is none.

use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::forward::ForwardError;
use super::patience::Patience;
use super::pool::Lease;
use super::{Relay, headers, tunnel};
use crate::admin::InFlight;
use crate::pipeline::Arrival;
use crate::respond::Body;

/// What an answer's body holds until it has passed.
pub(super) struct Relaying {
    pub(super) lease: Lease,
    pub(super) patience: Patience,
    pub(super) in_flight: InFlight,
}

/// Upstream's answer as the client gets it.
pub(super) fn to_client(
    response: Response<Incoming>,
    relaying: Relaying,
    arrival: &Arrival,
    client_upgrade: Option<OnUpgrade>,
) -> Result<Response<Body>, ForwardError> {
    let Relaying {
        lease,
        patience,
        in_flight,
    } = relaying;
    if let Some(fault) = framing_fault(response.headers()) {
        return Err(ForwardError::BadAnswer(fault));
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client_upgrade else {
            return Err(ForwardError::BadAnswer(
                "the answer switches protocols unasked",
            ));
        };
        let mut response = response;
        let upstream = hyper::upgrade::on(&mut response);
        tunnel::open(&arrival.connection, client, upstream, (lease, in_flight));
        let (mut parts, _) = response.into_parts();
        headers::to_client(&mut parts.headers, true);
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    let (mut parts, body) = response.into_parts();
    headers::to_client(&mut parts.headers, false);
    parts.extensions = http::Extensions::new();
    let relay = Relay::new(body, lease, &patience, in_flight);
    Ok(Response::from_parts(parts, Body::from(relay)))
}

/// Why nobody can be sure where an answer ends or what its body is. A coding besides `chunked` would be
/// left on the body while the header that names it stays on its hop.
fn framing_fault(headers: &HeaderMap) -> Option<&'static str> {
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
