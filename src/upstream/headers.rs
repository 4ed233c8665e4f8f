//! Headers of a message for its next hop.
//!
//! Hop-by-hop headers are removed in both directions. The gateway writes the headers about the origin of a request
//! itself, except what a trusted peer sends. [`crate::intake::headers`] has removed the headers named in `Connection`
//! before limits and scopes are counted.

use http::header::{
    CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, UPGRADE, VIA,
};

use smallvec::SmallVec;

use crate::client::{Caller, X_FORWARDED_FOR};
use crate::http1::FORBIDDEN_TRAILERS;
pub(super) use crate::intake::headers::KEEP_ALIVE;
use crate::intake::headers::{
    FROM_TRUSTED_PEERS, HOP_BY_HOP, HeaderNames, X_FORWARDED_HOST, X_FORWARDED_PROTO,
    remove_named_in_connection, tokens,
};
use crate::request_id::{RequestId, X_REQUEST_ID};

/// What the gateway tells upstream about a request.
#[derive(Clone, Debug)]
pub(crate) struct Provenance<'a> {
    /// Who is calling.
    pub caller: &'a Caller,
    /// The way the request came, as far as it is believed.
    pub forwarded_for: HeaderValue,
    /// The host the client asked for.
    pub host: &'a HeaderValue,
    /// The scheme it asked by.
    pub scheme: &'static str,
    /// The request's id.
    pub request_id: &'a RequestId,
}

/// Headers added to a request on its way upstream.
const ADDED: usize = 6;

/// Turns the headers of a client's request into those sent upstream. `upgrade` is true if the request switches
/// protocols. Lookalikes of the headers in `names` are dropped.
pub(crate) fn to_upstream(
    headers: &mut HeaderMap,
    provenance: Provenance<'_>,
    names: &HeaderNames,
    upgrade: bool,
) {
    let Provenance {
        caller,
        forwarded_for,
        host,
        scheme,
        request_id,
    } = provenance;
    let protocol = upgrade.then(|| headers.get(UPGRADE).cloned()).flatten();
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let trusted = caller.peer_trusted();
    remove(headers, |name| {
        // The gateway sends `100 Continue` itself, when it reads the body.
        *name == EXPECT
            || HOP_BY_HOP.contains(name)
            || (!trusted && FROM_TRUSTED_PEERS.contains(name))
            || names.is_lookalike(name)
    });
    headers.reserve(ADDED);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    } else if trailers {
        // Said anew on our own hop: the answer's trailers are passed on to a client that asked.
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }

    // An HTTP/2 request names its host in `:authority` alone.
    headers.entry(HOST).or_insert_with(|| host.clone());
    headers.insert(X_FORWARDED_FOR, forwarded_for);
    headers
        .entry(X_FORWARDED_HOST)
        .or_insert_with(|| host.clone());
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert_with(|| HeaderValue::from_static(scheme));
    headers.append(VIA, HeaderValue::from_static("1.1 tidegate"));
    headers.insert(X_REQUEST_ID, request_id.to_header());
}

/// Turns the headers of an upstream response into those sent to the client. `upgraded` is true if the
/// response switches protocols.
pub(crate) fn to_client(headers: &mut HeaderMap, upgraded: bool) {
    let protocol = upgraded.then(|| headers.get(UPGRADE).cloned()).flatten();
    // Upstream announces its trailers here, on one line or several. The client's connection sends those
    // that are announced if the client accepts trailers.
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

/// Makes upstream's trailers into those sent to the client.
pub(crate) fn trailers_to_client(trailers: &mut HeaderMap) {
    for name in FORBIDDEN_TRAILERS {
        trailers.remove(name);
    }
}

/// Removes the headers for which `unwanted` holds. One pass over the headers costs less than a look-up of each
/// unwanted name.
fn remove(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
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
    fn a_trailer_that_would_be_believed_as_a_header_is_not_passed_on() {
        let mut trailers = HeaderMap::new();
        for name in ["x-sum", "set-cookie", "content-length", "transfer-encoding"] {
            trailers.append(name, HeaderValue::from_static("1"));
        }
        trailers.append(SET_COOKIE, HeaderValue::from_static("2"));
        trailers_to_client(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-sum"]);
    }
}
