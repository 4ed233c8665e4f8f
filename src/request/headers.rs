//! Normalises request headers before rate limits and idempotency scopes read them.
//!
//! If the gateway distinguished two spellings that the upstream treats as equal, a client could bypass a rate limit, or
//! have a request with an idempotency key executed twice. So `Cookie` lines are joined, headers listed in `Connection`
//! are removed, and lookalikes such as `X_Api_Key` are not forwarded. A request that repeats a header that a rate limit
//! or scope reads is rejected, because servers differ in which line they read.
//!
//! An upstream can still read another value if it trims or decodes a header more than the HTTP standard specifies, such
//! as a no-break space.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE,
    COOKIE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use smallvec::SmallVec;

use super::client::{Caller, X_FORWARDED_FOR};
use super::head::HeadError;
use super::request_id::X_REQUEST_ID;

pub(crate) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// RFC 2068, section 19.7.1.1.
pub(crate) const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// RFC 9110, section 7.6.1. `Connection` can list further ones.
pub(crate) static HOP_BY_HOP: [HeaderName; 9] = [
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

/// Proxies describe the original request in them. They are forwarded only from a trusted peer.
pub(crate) static FROM_TRUSTED_PEERS: [HeaderName; 6] = [
    FORWARDED,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    X_FORWARDED_PORT,
    X_FORWARDED_PREFIX,
    X_REAL_IP,
];

/// Headers that some servers and frameworks read instead of the request target.
static REPLACES_TARGET: [HeaderName; 2] = [
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
];

/// They stay in the request even if `Connection` lists them. Otherwise the upstream could interpret the request
/// differently from the gateway, or attribute it to another sender.
static PROTECTED: [HeaderName; 20] = [
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

#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderNames {
    /// They contain the idempotency key on at least one route.
    keys: Vec<HeaderName>,
    /// At least one route reads them: keys of rate limits, idempotency scopes, and idempotency keys.
    read: Vec<HeaderName>,
    /// A name in `read` contains another character than letters, digits and `-`.
    has_odd_names: bool,
    pub(crate) allows_underscores: bool,
}

/// Headers in the key of an enforced rate limit or in the idempotency scope of a route. Limits in shadow mode are not
/// included.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdentifyingHeaders {
    names: Box<[HeaderName]>,
    /// Such as `X-Forwarded-For`, which the gateway sets itself.
    includes_gateway_headers: bool,
}

impl HeaderNames {
    /// `enforced` are the headers in the keys of enforced rate limits and in the idempotency scope, `shadow` those of
    /// rate limits in shadow mode, and `key` contains the idempotency key. Returns the headers that the route reads.
    pub(crate) fn add_route<'a>(
        &mut self,
        enforced: impl Iterator<Item = &'a HeaderName>,
        shadow: impl Iterator<Item = &'a HeaderName>,
        key: Option<&HeaderName>,
    ) -> IdentifyingHeaders {
        let mut of_route = Vec::new();
        for name in enforced {
            insert(&mut of_route, name);
            insert(&mut self.read, name);
        }
        for name in shadow {
            insert(&mut self.read, name);
        }
        if let Some(name) = key {
            insert(&mut self.keys, name);
            insert(&mut self.read, name);
        }
        self.has_odd_names = !self.read.iter().all(is_regular);
        let is_set_by_gateway = |name: &HeaderName| {
            [HOST, X_FORWARDED_FOR].contains(name) || FROM_TRUSTED_PEERS.contains(name)
        };
        IdentifyingHeaders {
            includes_gateway_headers: of_route.iter().any(is_set_by_gateway),
            names: of_route.into(),
        }
    }

    /// Joins the `Cookie` lines and removes the headers that `Connection` lists. `connection` is false if it lists
    /// none.
    pub(crate) fn normalise(&self, headers: &mut HeaderMap, connection: bool) {
        if is_repeated(headers, &COOKIE) {
            join_cookies(headers);
        }
        if connection {
            remove_named_in_connection(headers, &self.keys);
        }
    }

    /// A name with an underscore is dropped, as in nginx: CGI and WSGI servers can read it as a variable such as
    /// `SCRIPT_NAME`, which changes the path.
    pub(crate) fn is_dropped(&self, name: &HeaderName) -> bool {
        let replaces_target = REPLACES_TARGET.contains(name);
        if !replaces_target && is_regular(name) {
            return self.has_odd_names && self.is_lookalike(name);
        }
        let has_underscore = || name.as_str().contains('_');
        let is_dropped = replaces_target || !self.allows_underscores && has_underscore();
        is_dropped && !self.read.contains(name) || self.is_lookalike(name)
    }

    /// Whether an upstream can confuse this name with a protected header, or with a header that a route reads: CGI maps
    /// `X_Forwarded_For` and `X-Forwarded-For` to the same variable.
    pub(crate) fn is_lookalike(&self, name: &HeaderName) -> bool {
        if is_regular(name) && !self.has_odd_names {
            return false;
        }
        if protected_lookalike(name).is_some() {
            return true;
        }
        let mut read = self.read.iter();
        read.any(|other| is_lookalike_of(name, other)) && !self.read.contains(name)
    }
}

impl IdentifyingHeaders {
    /// Replaces or removes the headers in `names` that the gateway does not forward as the client sent them. Then
    /// returns an error if one of them has several lines. `host` is the host of a request that can lack `Host`.
    pub(crate) fn check(
        &self,
        headers: &mut HeaderMap,
        caller: &Caller,
        host: Option<&HeaderValue>,
    ) -> Result<(), HeadError> {
        if self.includes_gateway_headers {
            for name in &self.names {
                set_as_upstream_receives(name, headers, caller, host);
            }
        }
        match self.names.iter().find(|name| is_repeated(headers, name)) {
            None => Ok(()),
            Some(name) => Err(HeadError::Invalid(
                format!("The request has more than one {name} header. Send it once.").into(),
            )),
        }
    }
}

fn insert(names: &mut Vec<HeaderName>, name: &HeaderName) {
    if !names.contains(name) {
        names.push(name.clone());
    }
}

/// Sets `X-Forwarded-For` to the value that the upstream receives, and adds a missing `Host`. Removes a header in
/// [`FROM_TRUSTED_PEERS`] if the peer is not trusted.
fn set_as_upstream_receives(
    name: &HeaderName,
    headers: &mut HeaderMap,
    caller: &Caller,
    host: Option<&HeaderValue>,
) {
    if *name == X_FORWARDED_FOR {
        headers.insert(X_FORWARDED_FOR, caller.forwarded_for());
    } else if let (true, Some(host)) = (*name == HOST, host) {
        headers.entry(HOST).or_insert_with(|| host.clone());
    } else if FROM_TRUSTED_PEERS.contains(name) && !caller.peer_trusted() {
        headers.remove(name);
    }
}

/// Most requests repeat no header at all. Then the number of lines equals the number of names, and the lookup is
/// skipped.
fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.len() != headers.keys_len() && headers.get_all(name).iter().nth(1).is_some()
}

/// HTTP/2 forbids leading and trailing white space (RFC 9113, section 8.2.1).
pub(crate) fn has_padded_value(headers: &HeaderMap) -> bool {
    headers.values().any(|value| {
        let value = value.as_bytes();
        value.first().copied().is_some_and(is_blank) || value.last().copied().is_some_and(is_blank)
    })
}

pub(crate) const PADDED_VALUE: HeadError = HeadError::Invalid(Cow::Borrowed(
    "A header value has leading or trailing white space. Remove the white space.",
));

fn is_blank(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t')
}

/// The usual values `keep-alive` and `close` name no header.
pub(super) fn lists_headers(line: &HeaderValue) -> bool {
    !matches!(line.as_bytes(), b"keep-alive" | b"close" | b"Keep-Alive")
}

/// Except [`PROTECTED`] headers and those in `keep`. Hop-by-hop headers also stay until the message is forwarded,
/// because the gateway still reads them.
pub(crate) fn remove_named_in_connection(headers: &mut HeaderMap, keep: &[HeaderName]) {
    // A fast path: most messages have no `Connection` header, or one with a usual value.
    if !headers.get_all(CONNECTION).iter().any(lists_headers) {
        return;
    }
    let named: SmallVec<[HeaderName; 4]> = tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .filter(|name| {
            !PROTECTED.contains(name) && !HOP_BY_HOP.contains(name) && !keep.contains(name)
        })
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Not for `h2c`, because the gateway uses HTTP/1.1 to the upstream.
pub(crate) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
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

/// The non-empty elements of all lines of a comma-separated list.
pub(crate) fn tokens<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

/// HTTP/2 allows several lines, HTTP/1 only one (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<_> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .filter(|line| !line.is_empty())
        .collect();
    let cookie = HeaderValue::from_bytes(&lines.join(&b"; "[..]));
    headers.insert(
        COOKIE,
        cookie.expect("valid header values joined by visible ASCII are a valid value"),
    );
}

/// The protected or hop-by-hop header that a server can confuse with `name`.
pub(crate) fn protected_lookalike(name: &HeaderName) -> Option<&'static HeaderName> {
    let mut significant = PROTECTED.iter().chain(&HOP_BY_HOP).chain(&REPLACES_TARGET);
    significant.find(|other| is_lookalike_of(name, other))
}

/// Equal when every character that is not a letter or digit is replaced by `-`.
fn is_lookalike_of(name: &HeaderName, other: &HeaderName) -> bool {
    let (name, other) = (name.as_str(), other.as_str());
    let fold = |octet: u8| {
        if octet.is_ascii_alphanumeric() {
            octet
        } else {
            b'-'
        }
    };
    name.len() == other.len() && name != other && name.bytes().map(fold).eq(other.bytes().map(fold))
}

/// Letters, digits and `-`. A table, because every octet of every forwarded header name is checked.
static REGULAR: [bool; 256] = {
    let mut table = [false; 256];
    let mut octet = 0_u8;
    while octet.is_ascii() {
        table[octet as usize] = octet.is_ascii_alphanumeric() || octet == b'-';
        octet += 1;
    }
    table
};

fn is_regular(name: &HeaderName) -> bool {
    let mut octets = name.as_str().bytes();
    octets.all(|octet| REGULAR[usize::from(octet)])
}

/// The form that rate limits and idempotency scopes compare. Hosts and authentication schemes are case-insensitive. A
/// host loses its port and a final dot. In `Authorization`, exactly one space follows the scheme.
pub(crate) fn canonical<'a>(name: &HeaderName, value: &'a [u8]) -> Cow<'a, [u8]> {
    match *name {
        AUTHORIZATION => canonical_credential(value),
        HOST => canonical_host(value),
        _ => Cow::Borrowed(value),
    }
}

/// A value without a space is a secret without a scheme, and stays unchanged.
fn canonical_credential(value: &[u8]) -> Cow<'_, [u8]> {
    let Some(end) = value.iter().position(|&octet| is_blank(octet)) else {
        return Cow::Borrowed(value);
    };
    let (scheme, rest) = value.split_at(end);
    let credential = rest.trim_ascii_start();
    let is_capitalised = scheme
        .first()
        .is_none_or(|first| !first.is_ascii_lowercase())
        && !scheme.iter().skip(1).any(u8::is_ascii_uppercase);
    if is_capitalised && rest[0] == b' ' && rest.len() == credential.len() + 1 {
        return Cow::Borrowed(value);
    }
    let mut canonical = scheme.to_ascii_lowercase();
    if let Some(first) = canonical.first_mut() {
        first.make_ascii_uppercase();
    }
    canonical.push(b' ');
    canonical.extend_from_slice(credential);
    Cow::Owned(canonical)
}

fn canonical_host(value: &[u8]) -> Cow<'_, [u8]> {
    let name = match value.iter().rposition(|&octet| octet == b':') {
        Some(colon) if value[colon + 1..].iter().all(u8::is_ascii_digit) => &value[..colon],
        _ => value,
    };
    let bracketed = name
        .strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"));
    if let Some(Ok(address)) = bracketed.map(str::from_utf8)
        && let Ok(address) = address.parse::<Ipv6Addr>()
    {
        return Cow::Owned(format!("[{address}]").into_bytes());
    }
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests;
