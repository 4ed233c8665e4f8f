//! Headers of requests to servers, and of responses to clients.
//!
//! Hop-by-hop headers are removed in both directions. Received values of headers about the origin, such as
//! `X-Forwarded-For`, are used only if the peer is trusted. [`crate::request::headers`] removes what `Connection`
//! names, before limits and scopes read any header.

use http::StatusCode;
use http::header::{
    CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, UPGRADE, VIA,
};

use smallvec::SmallVec;

use crate::http::http1::FORBIDDEN_TRAILERS;
use crate::request::client::{Caller, X_FORWARDED_FOR};
use crate::request::context::Arrival;
pub(super) use crate::request::headers::KEEP_ALIVE;
use crate::request::headers::{
    FROM_TRUSTED_PEERS, HOP_BY_HOP, HeaderNames, X_FORWARDED_HOST, X_FORWARDED_PROTO,
    remove_named_in_connection, tokens,
};
use crate::request::request_id::X_REQUEST_ID;

/// Header lines that the gateway adds to a request.
const ADDED: usize = 6;

/// Returns the number of headers that were removed because of [their name](HeaderNames::is_dropped).
pub(crate) fn to_upstream(
    headers: &mut HeaderMap,
    caller: &Caller,
    arrival: &Arrival,
    names: &HeaderNames,
    upgrade: bool,
) -> u64 {
    let connection = &arrival.connection;
    let protocol = upgrade.then(|| headers.get(UPGRADE).cloned()).flatten();
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let trusted = caller.peer_trusted();
    let mut dropped = 0;
    remove(headers, |name| {
        // The gateway itself sends `100 Continue` when it starts to read the body.
        *name == EXPECT
            || HOP_BY_HOP.contains(name)
            || (!trusted && FROM_TRUSTED_PEERS.contains(name))
            || {
                let is_dropped = names.is_dropped(name);
                dropped += u64::from(is_dropped);
                is_dropped
            }
    });
    headers.reserve(ADDED);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    } else if trailers {
        // The client's `TE` is valid for one hop only.
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }

    headers.insert(X_FORWARDED_FOR, connection.forwarded_for(caller));
    // Without a host (HTTP/1.0), the server gets none that the client did not request.
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert_with(|| HeaderValue::from_static(connection.scheme));
    headers.append(VIA, HeaderValue::from_static("1.1 tidegate"));
    headers.insert(X_REQUEST_ID, arrival.request_id.to_header());
    dropped
}

/// `Upgrade` is kept in a 101 response, and in a 426, which must name the protocols that the client can use (RFC 9110,
/// section 15.5.22). In others it is an offer of the server for its own connection.
pub(crate) fn to_client(headers: &mut HeaderMap, status: StatusCode) {
    let protocol = match status {
        StatusCode::SWITCHING_PROTOCOLS => headers.get(UPGRADE).cloned(),
        StatusCode::UPGRADE_REQUIRED => required_protocols(headers),
        _ => None,
    };
    // The connection to the client sends only announced trailers, and only if the client accepts trailers.
    let trailers: SmallVec<[HeaderValue; 1]> = headers.get_all(TRAILER).iter().cloned().collect();
    remove_named_in_connection(headers, &[]);
    remove(headers, |name| HOP_BY_HOP.contains(name));
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    for line in trailers {
        headers.append(TRAILER, line);
    }
}

/// Without `h2c`, to which the gateway does not upgrade.
fn required_protocols(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocols: Vec<_> = tokens(headers, &UPGRADE)
        .filter(|protocol| !protocol.eq_ignore_ascii_case("h2c"))
        .collect();
    if protocols.is_empty() {
        return None;
    }
    HeaderValue::try_from(protocols.join(", ")).ok()
}

pub(crate) fn trailers_to_client(trailers: &mut HeaderMap) {
    for name in FORBIDDEN_TRAILERS {
        trailers.remove(name);
    }
}

/// One pass over all headers costs less than a lookup of each unwanted name.
fn remove(headers: &mut HeaderMap, mut unwanted: impl FnMut(&HeaderName) -> bool) {
    let found: SmallVec<[HeaderName; 8]> = headers
        .keys()
        .filter(|name| unwanted(name))
        .cloned()
        .collect();
    for name in found {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use http::header::SET_COOKIE;

    use super::*;

    #[test]
    fn forbidden_trailers_are_removed_and_others_are_forwarded() {
        let mut trailers = HeaderMap::new();
        for name in ["x-sum", "set-cookie", "content-length", "transfer-encoding"] {
            trailers.append(name, HeaderValue::from_static("1"));
        }
        trailers.append(SET_COOKIE, HeaderValue::from_static("2"));
        trailers_to_client(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-sum"]);
    }
}
