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

use crate::client::Caller;
use crate::request_id::{RequestId, X_REQUEST_ID};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
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
#[derive(Clone, Copy, Debug)]
pub struct Provenance<'a> {
    /// Who is calling.
    pub caller: &'a Caller,
    /// The host the client asked for.
    pub host: &'a HeaderValue,
    /// The scheme it asked by.
    pub scheme: &'static str,
    /// The request's id.
    pub request_id: &'a RequestId,
}

/// Makes a client's headers into those sent upstream; `upgrade` where the request asks for one that is
/// to be passed on.
pub fn to_upstream(headers: &mut HeaderMap, provenance: Provenance<'_>, upgrade: bool) {
    let protocol = upgrade.then(|| headers.get(UPGRADE).cloned()).flatten();
    remove_hop_by_hop(headers);
    remove_lookalikes(headers);
    join_cookies(headers);
    // The expectation is met here: hyper says `100 Continue` once upstream wants the body.
    headers.remove(EXPECT);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }

    let Provenance {
        caller,
        host,
        scheme,
        request_id,
    } = provenance;
    if !caller.peer_trusted() {
        for name in &HEARSAY {
            headers.remove(name);
        }
    }
    // An HTTP/2 request names its host in `:authority` alone.
    headers.entry(HOST).or_insert_with(|| host.clone());
    headers.insert(X_FORWARDED_FOR, caller.forwarded_for());
    headers
        .entry(X_FORWARDED_HOST)
        .or_insert_with(|| host.clone());
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert_with(|| HeaderValue::from_static(scheme));
    headers.append(VIA, HeaderValue::from_static("1.1 tidegate"));
    headers.insert(X_REQUEST_ID, request_id.to_header());
}

/// Makes upstream's headers into those sent to the client; `upgraded` where they switch protocols.
pub fn to_client(headers: &mut HeaderMap, upgraded: bool) {
    let protocol = upgraded.then(|| headers.get(UPGRADE).cloned()).flatten();
    let trailer = headers.get(TRAILER).cloned();
    remove_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    // Trailers pass where upstream listed them and the client asked for them; hyper sees to both.
    if let Some(trailer) = trailer {
        headers.insert(TRAILER, trailer);
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

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
            .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
            .filter(|name| !PROTECTED.contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Takes out names that some servers read as another: `X_Forwarded_For` becomes `X-Forwarded-For` in
/// CGI and its heirs.
fn remove_lookalikes(headers: &mut HeaderMap) {
    let is_lookalike = |name: &HeaderName| {
        if !name.as_str().contains('_') {
            return false;
        }
        let read_as = name.as_str().replace('_', "-");
        PROTECTED
            .iter()
            .chain(&HOP_BY_HOP)
            .any(|meant| meant.as_str() == read_as)
    };
    let lookalikes: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_lookalike(name))
        .cloned()
        .collect();
    for name in lookalikes {
        headers.remove(name);
    }
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
