//! What of a message's headers is for the next hop.
//!
//! Hop-by-hop headers stay on their hop, both ways. What says who is calling is the gateway's own word:
//! a caller that is not trusted to speak for others cannot put any of it in. `Connection` may name
//! headers to be taken out, but never one that decides who somebody is or what a request means.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE,
    COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    VIA,
};

use smallvec::SmallVec;

use crate::client::Caller;
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::wire::NEVER_TRAILERS;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(super) const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers of one hop (RFC 9110, section 7.6.1), besides those `Connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What only a trusted peer may say about where a request came from.
const HEARSAY: [HeaderName; 6] = [
    FORWARDED,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    X_FORWARDED_PORT,
    X_FORWARDED_PREFIX,
    X_REAL_IP,
];

/// Headers that keep their effect whatever `Connection` says: without them a request would mean
/// something else, or be somebody else's.
const PROTECTED: [HeaderName; 20] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    COOKIE,
    FORWARDED,
    HOST,
    IDEMPOTENCY_KEY,
    ORIGIN,
    SET_COOKIE,
    VIA,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PORT,
    X_FORWARDED_PREFIX,
    X_FORWARDED_PROTO,
    X_REAL_IP,
    X_REQUEST_ID,
    TRANSFER_ENCODING,
];

/// What the gateway tells upstream about a request.
#[derive(Clone, Debug)]
pub struct Provenance<'a> {
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

/// Makes a client's headers into those sent upstream; `upgrade` where the request asks for one that is
/// to be passed on. `keys` are headers that idempotency keys come in, and as safe as `Idempotency-Key`.
pub fn to_upstream(
    headers: &mut HeaderMap,
    provenance: Provenance<'_>,
    keys: &[HeaderName],
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
    remove(headers, keys, |name| {
        // The expectation is met here: the wire says `100 Continue` once upstream wants the body.
        *name == EXPECT
            || HOP_BY_HOP.contains(name)
            || (!trusted && HEARSAY.contains(name))
            || is_lookalike(name, keys)
    });
    join_cookies(headers);
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
pub fn to_client(headers: &mut HeaderMap, upgraded: bool) {
    let protocol = upgraded.then(|| headers.get(UPGRADE).cloned()).flatten();
    // Upstream announces its trailers here, on one line or several. The client's connection sends those
    // that are announced if the client accepts trailers.
    let trailers: SmallVec<[HeaderValue; 1]> = headers.get_all(TRAILER).iter().cloned().collect();
    remove(headers, &[], |name| HOP_BY_HOP.contains(name));
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    for line in trailers {
        headers.append(TRAILER, line);
    }
}

/// Makes upstream's trailers into those sent to the client.
pub fn trailers_to_client(trailers: &mut HeaderMap) {
    for name in NEVER_TRAILERS {
        trailers.remove(name);
    }
}

/// Whether a request asks to leave HTTP for a protocol that can be passed on. HTTP/2 is not one: the
/// connection upstream is ours and stays HTTP/1.1.
pub fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    let Some(protocol) = headers.get(UPGRADE) else {
        return false;
    };
    let names_upgrade =
        tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
    let h2c = protocol.to_str().is_ok_and(|protocols| {
        protocols
            .split(',')
            .any(|protocol| protocol.trim().eq_ignore_ascii_case("h2c"))
    });
    names_upgrade && !h2c
}

/// Takes out the headers that `unwanted` picks and those `Connection` names. One pass over what is there
/// costs less than asking for everything that might be. What is in `keep` is not `Connection`'s to name.
fn remove(headers: &mut HeaderMap, keep: &[HeaderName], unwanted: impl Fn(&HeaderName) -> bool) {
    let mut doomed: SmallVec<[HeaderName; 8]> = headers
        .keys()
        .filter(|name| unwanted(name))
        .cloned()
        .collect();
    if headers.contains_key(CONNECTION) {
        let named = tokens(headers, &CONNECTION)
            // Most of what is said there, and no header's name.
            .filter(|token| !["keep-alive", "close", "upgrade"].contains(token))
            .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
            .filter(|name| !PROTECTED.contains(name) && !keep.contains(name));
        doomed.extend(named);
    }
    for name in doomed {
        headers.remove(name);
    }
}

/// Whether some servers read this name as another: `X_Forwarded_For` becomes `X-Forwarded-For` in CGI
/// and its heirs.
fn is_lookalike(name: &HeaderName, keys: &[HeaderName]) -> bool {
    if !name.as_str().contains('_') {
        return false;
    }
    let read_as = name.as_str().replace('_', "-");
    PROTECTED
        .iter()
        .chain(&HOP_BY_HOP)
        .chain(keys)
        .any(|meant| meant.as_str() == read_as)
}

/// HTTP/2 may split a cookie over lines, and HTTP/1.1 has it in one (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<_> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let cookie = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]));
    headers.insert(
        COOKIE,
        cookie.expect("values joined by visible ASCII are one"),
    );
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
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
