//! Request headers, reduced to one spelling before anything is counted by them.
//!
//! Limits and scopes read the value that upstream receives. A spelling that the gateway counts separately and
//! upstream reads like another is a way around a limit, or a second execution of a key. So the headers are settled
//! first: `Cookie` lines are joined, headers named in `Connection` are removed, and lookalikes such as `X_Api_Key` are
//! not forwarded. A header that a limit or a scope is counted by and that is repeated is rejected, because servers
//! differ in which line they read.
//!
//! The names are resolved when the configuration is loaded. A request without `Connection` and without a header
//! that its route is counted by costs one pass over its headers.
//!
//! Not covered: a server that trims or decodes a value further than HTTP does, such as a no-break space.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE,
    COOKIE, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use smallvec::SmallVec;

use super::HeadError;
use crate::client::{Caller, X_FORWARDED_FOR};
use crate::request_id::X_REQUEST_ID;

/// The host that the client requested.
pub(crate) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// The scheme that the client used.
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Lifetime of a connection (RFC 2068, section 19.7.1.1).
pub(crate) const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers of one hop (RFC 9110, section 7.6.1), besides those named in `Connection`.
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

/// Headers about the origin of a request that are forwarded only from a trusted peer.
pub(crate) static FROM_TRUSTED_PEERS: [HeaderName; 6] = [
    FORWARDED,
    X_FORWARDED_HOST,
    X_FORWARDED_PROTO,
    X_FORWARDED_PORT,
    X_FORWARDED_PREFIX,
    X_REAL_IP,
];

/// Headers that keep their effect if `Connection` names them: without them a request has another meaning or
/// another sender.
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

/// Names of the request headers that a configuration reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderNames {
    /// Headers that idempotency keys are sent in, on any route.
    keys: Vec<HeaderName>,
    /// All headers that limits, scopes and keys of any route are read from.
    read: Vec<HeaderName>,
    /// Whether a name in `read` has a separator other than `-`.
    has_odd_names: bool,
}

/// Headers that the enforced limits and the scope of a route are counted by.
#[derive(Clone, Debug, Default)]
pub(crate) struct CountedHeaders {
    names: Box<[HeaderName]>,
    /// Whether the gateway writes one of them itself.
    are_written: bool,
}

impl HeaderNames {
    /// Adds a route: headers that it is counted by (enforced limits, scope), headers that are only read (shadow limits),
    /// and the header of its idempotency key. Returns the headers that the route is counted by.
    pub(crate) fn add_route<'a>(
        &mut self,
        counted: impl Iterator<Item = &'a HeaderName>,
        watched: impl Iterator<Item = &'a HeaderName>,
        key: Option<&HeaderName>,
    ) -> CountedHeaders {
        let mut of_route = Vec::new();
        for name in counted {
            insert(&mut of_route, name);
            insert(&mut self.read, name);
        }
        for name in watched {
            insert(&mut self.read, name);
        }
        if let Some(name) = key {
            insert(&mut self.keys, name);
            insert(&mut self.read, name);
        }
        self.has_odd_names = !self.read.iter().all(is_regular);
        let is_written = |name: &HeaderName| {
            [HOST, X_FORWARDED_FOR].contains(name) || FROM_TRUSTED_PEERS.contains(name)
        };
        CountedHeaders {
            are_written: of_route.iter().any(is_written),
            names: of_route.into(),
        }
    }

    /// Reduces the headers of a request to one spelling. `connection` is false if no line of `Connection` names a
    /// header.
    pub(crate) fn settle(&self, headers: &mut HeaderMap, connection: bool) {
        if is_repeated(headers, &COOKIE) {
            join_cookies(headers);
        }
        if connection {
            remove_named_in_connection(headers, &self.keys);
        }
    }

    /// Whether servers can read this name as a header that has an effect: CGI and its successors turn
    /// `X_Forwarded_For` and `X-Forwarded-For` into one variable, and some do so with every separator.
    pub(crate) fn is_lookalike(&self, name: &HeaderName) -> bool {
        if is_regular(name) && !self.has_odd_names {
            return false;
        }
        if protected_lookalike(name).is_some() {
            return true;
        }
        let mut read = self.read.iter();
        read.any(|meant| reads_as(name, meant)) && !self.read.contains(name)
    }
}

impl CountedHeaders {
    /// Checks that none of the headers is repeated. Those that the gateway writes itself get the value that upstream
    /// receives. `host` is the host of the request.
    pub(crate) fn check(
        &self,
        headers: &mut HeaderMap,
        caller: &Caller,
        host: Option<&HeaderValue>,
    ) -> Result<(), HeadError> {
        if self.are_written {
            for name in &self.names {
                write(name, headers, caller, host);
            }
        }
        match self.names.iter().find(|name| is_repeated(headers, name)) {
            None => Ok(()),
            Some(name) => Err(HeadError::Invalid(
                format!("The header {name} is sent more than once.").into(),
            )),
        }
    }
}

fn insert(names: &mut Vec<HeaderName>, name: &HeaderName) {
    if !names.contains(name) {
        names.push(name.clone());
    }
}

/// Gives a header that the gateway writes itself the value that upstream receives.
fn write(name: &HeaderName, headers: &mut HeaderMap, caller: &Caller, host: Option<&HeaderValue>) {
    if *name == X_FORWARDED_FOR {
        headers.insert(X_FORWARDED_FOR, caller.forwarded_for());
    } else if let (true, Some(host)) = (*name == HOST, host) {
        headers.entry(HOST).or_insert_with(|| host.clone());
    } else if FROM_TRUSTED_PEERS.contains(name) && !caller.peer_trusted() {
        headers.remove(name);
    }
}

/// Whether a header has more than one line. Most requests repeat no header at all, which costs no look-up.
fn is_repeated(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.len() != headers.keys_len() && headers.get_all(name).iter().nth(1).is_some()
}

/// Whether a value has white space around it. HTTP/1 removes it, and HTTP/2 does not allow it (RFC 9113, section
/// 8.2.1).
pub(crate) fn has_padded_value(headers: &HeaderMap) -> bool {
    headers.values().any(|value| {
        let value = value.as_bytes();
        value.first().copied().is_some_and(is_blank) || value.last().copied().is_some_and(is_blank)
    })
}

/// The error of a request for which [`has_padded_value`] holds.
pub(crate) const PADDED_VALUE: HeadError =
    HeadError::Invalid(Cow::Borrowed("A header value has white space around it."));

fn is_blank(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t')
}

/// Whether a line of `Connection` can name a header: it has other options than the usual ones.
pub(super) fn names_headers(line: &HeaderValue) -> bool {
    !matches!(line.as_bytes(), b"keep-alive" | b"close" | b"Keep-Alive")
}

/// Removes the headers named in `Connection`, except protected ones, those in `keep`, and hop-by-hop headers, which
/// are read until the message is forwarded.
pub(crate) fn remove_named_in_connection(headers: &mut HeaderMap, keep: &[HeaderName]) {
    // Most messages have no `Connection`, or one with the usual option.
    if !headers.get_all(CONNECTION).iter().any(names_headers) {
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

/// Whether a request asks to switch to a protocol that the gateway can tunnel. HTTP/2 is not one: the connection to
/// upstream stays HTTP/1.1.
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

/// The elements of a header that is a list of tokens.
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

/// HTTP/2 may split a cookie over several lines, and HTTP/1 has it on one (RFC 9113, section 8.2.3).
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
        cookie.expect("values joined by visible ASCII are one"),
    );
}

/// The protected or hop-by-hop header that servers can read `name` as, if it is not that name itself.
pub(crate) fn protected_lookalike(name: &HeaderName) -> Option<&'static HeaderName> {
    let mut with_an_effect = PROTECTED.iter().chain(&HOP_BY_HOP);
    with_an_effect.find(|meant| reads_as(name, meant))
}

/// Whether two different names are the same with every separator taken as `-`.
fn reads_as(name: &HeaderName, meant: &HeaderName) -> bool {
    let (name, meant) = (name.as_str(), meant.as_str());
    let fold = |octet: u8| {
        if octet.is_ascii_alphanumeric() {
            octet
        } else {
            b'-'
        }
    };
    name.len() == meant.len() && name != meant && name.bytes().map(fold).eq(meant.bytes().map(fold))
}

/// Octets of usual names; a table, because every octet of every forwarded name is looked up.
static REGULAR: [bool; 256] = {
    let mut table = [false; 256];
    let mut octet = 0_u8;
    while octet.is_ascii() {
        table[octet as usize] = octet.is_ascii_alphanumeric() || octet == b'-';
        octet += 1;
    }
    table
};

/// Whether a name has no separator but `-`.
fn is_regular(name: &HeaderName) -> bool {
    let mut octets = name.as_str().bytes();
    octets.all(|octet| REGULAR[usize::from(octet)])
}

/// The value of a header as limits and scopes count it. Hosts and authentication schemes are not case-sensitive.
/// A host is counted without its port and a final dot, a credential with one space after its scheme.
pub(crate) fn canonical<'a>(name: &HeaderName, value: &'a [u8]) -> Cow<'a, [u8]> {
    match *name {
        AUTHORIZATION => canonical_credential(value),
        HOST => canonical_host(value),
        _ => Cow::Borrowed(value),
    }
}

/// The usual spelling, `Bearer abc`, stays as it is, and so does a value of one word: that is no scheme but a secret.
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
