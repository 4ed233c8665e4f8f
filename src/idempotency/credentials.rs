//! Recognises the credentials in a request, and the part of them that is the same in a retry.
//!
//! Users behind one IP address can differ only in a cookie or an API key. So the fingerprint includes credentials
//! outside of the scope: a second user with the same key is rejected as a mismatch and does not get the response of the
//! first. A credential that changes with every request would make each retry a mismatch, or part of the scope even a
//! second execution. So only the identity in an `Authorization` that is signed for each request counts, and cookies of
//! load balancers, bot protection and analytics do not.

use std::sync::LazyLock;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue, PROXY_AUTHORIZATION};
use smallvec::{SmallVec, smallvec};

use super::rule::{KeyRule, Scope, ScopePart};
use crate::request::hash_keys::HashInput;
use crate::request::headers::canonical;

/// Cookies of load balancers, bot protection and analytics, which can change between a request and its retry and
/// identify no user. `*` ends a prefix. The same products also set session cookies of users, such as
/// `AWSELBAuthSessionCookie` and `NSC_AAAC`, which match no entry. A cookie with a [credential
/// word](has_credential_word) is never ignored: `_ga_session` is the session cookie of a Rails application named `ga`.
static IGNORED_COOKIES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let lines = include_str!("ignored_cookies.txt").lines();
    lines.filter(|line| !line.starts_with('#')).collect()
});

/// Adds all credentials that are not part of the scope. Returns whether there is any.
pub(super) fn add_unscoped(parts: &mut HashInput, rule: &KeyRule, headers: &HeaderMap) -> bool {
    let has_scoped_authorization = match &rule.scope {
        Scope::Credential | Scope::Function(_) => true,
        Scope::Shared => return false,
        Scope::Parts(names) if identify_caller(names, headers) => return false,
        Scope::Parts(_) => false,
    };
    let mut names: SmallVec<[&HeaderName; 4]> = headers
        .keys()
        .filter(|&name| is_credential(name) && *name != rule.header)
        .filter(|&name| !(has_scoped_authorization && name == AUTHORIZATION))
        .collect();
    // Proxies in front of the gateway can change the order of headers.
    names.sort_unstable_by_key(|name| name.as_str());
    let mut any = false;
    for name in names {
        any |= add_header(parts, name, headers);
    }
    any
}

/// Whether the scope names a header or cookie, and the request has all of them. Otherwise the scope contains the client
/// address, and users behind one address are separated only by their other credentials.
fn identify_caller(scope: &[ScopePart], headers: &HeaderMap) -> bool {
    let mut named = false;
    scope.iter().all(|part| {
        named |= *part != ScopePart::Client;
        match part {
            ScopePart::Client => true,
            ScopePart::Header(name) => lines(headers, name).next().is_some(),
            ScopePart::Cookie(name) => cookie_values(headers, name).next().is_some(),
        }
    }) && named
}

/// Returns whether there is any credential.
fn add_header(parts: &mut HashInput, name: &HeaderName, headers: &HeaderMap) -> bool {
    let mut any = false;
    for line in lines(headers, name) {
        if *name == COOKIE {
            let mut pairs: SmallVec<[(&[u8], &[u8]); 8]> = cookies(line)
                .filter(|(name, value)| !is_ignored(name, value))
                .collect();
            // A stable sort, because servers use the first of two cookies with the same name.
            pairs.sort_by_key(|&(name, _)| name);
            for (cookie, value) in pairs {
                parts.add(name.as_str().as_bytes());
                parts.add(cookie);
                parts.add(value);
                any = true;
            }
            continue;
        }
        parts.add(name.as_str().as_bytes());
        let is_authorization = *name == AUTHORIZATION || *name == PROXY_AUTHORIZATION;
        if let Some(signed) = SignedIdentity::parse(line).filter(|_| is_authorization) {
            parts.tag(1);
            signed.add_to(parts);
        } else {
            parts.tag(0);
            parts.add(&canonical(name, line));
        }
        any = true;
    }
    any
}

/// Without empty values.
pub(super) fn lines<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines
        .map(HeaderValue::as_bytes)
        .filter(|line| !line.is_empty())
}

/// Whether the signature in `Authorization` differs for each request, as in AWS Signature Version 4.
pub(crate) fn is_signed(headers: &HeaderMap) -> bool {
    lines(headers, &AUTHORIZATION).any(|line| SignedIdentity::parse(line).is_some())
}

fn is_credential(name: &HeaderName) -> bool {
    *name == COOKIE || has_credential_word(name.as_str().as_bytes())
}

/// The words are `token`, `api-key`, `apikey`, `auth`, `session` and `secret`, in upper or lower case. The search takes
/// one pass, because it runs for every header of a request with a key.
pub(crate) fn has_credential_word(name: &[u8]) -> bool {
    let mut rest = name;
    while let [first, after @ ..] = rest {
        let follows = |word: &[u8]| {
            let start = after.get(..word.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        let found = match first {
            b'a' | b'A' => follows(b"uth") || follows(b"pi-key") || follows(b"pikey"),
            b's' | b'S' => follows(b"ession") || follows(b"ecret"),
            b't' | b'T' => follows(b"oken"),
            _ => false,
        };
        if found {
            return true;
        }
        rest = after;
    }
    false
}

/// Names and values of one line (RFC 6265, section 5.4).
pub(super) fn cookies(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    line.split(|&octet| octet == b';').filter_map(|pair| {
        let pair = pair.trim_ascii();
        match memchr::memchr(b'=', pair) {
            Some(at) => Some((&pair[..at], &pair[at + 1..])),
            None if pair.is_empty() => None,
            None => Some((pair, &pair[..0])),
        }
    })
}

/// Without empty values.
pub(crate) fn cookie_values<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> impl Iterator<Item = &'a [u8]> {
    lines(headers, &COOKIE)
        .flat_map(cookies)
        .filter(move |(cookie, value)| *cookie == name.as_bytes() && !value.is_empty())
        .map(|(_, value)| value)
}

/// A value with a comma, a quote or white space is not ignored, because some servers accept these as separators, so it
/// could contain further cookies.
fn is_ignored(cookie: &[u8], value: &[u8]) -> bool {
    let is_listed = IGNORED_COOKIES
        .iter()
        .any(|ignored| match ignored.strip_suffix('*') {
            Some(prefix) => cookie.starts_with(prefix.as_bytes()),
            None => cookie == ignored.as_bytes(),
        });
    let is_separator = |octet: &u8| matches!(octet, b',' | b'"' | b' ' | b'\t');
    is_listed && !has_credential_word(cookie) && !value.iter().any(is_separator)
}

/// Schemes with the syntax `ID:SIGNATURE`.
const ID_AND_SIGNATURE: [&str; 5] = ["AWS", "GOOG1", "OSS", "SharedKey", "SharedKeyLite"];

/// Identity in an `Authorization` value that is signed for each request. The signature is not verified.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SignedIdentity<'a> {
    scheme: &'static str,
    identity: SmallVec<[&'a [u8]; 2]>,
}

impl<'a> SignedIdentity<'a> {
    /// Supports AWS Signature versions 4 and 2, Google's variant of version 4, OAuth 1, Digest, Hawk and HTTP
    /// signatures.
    pub(super) fn parse(value: &'a [u8]) -> Option<Self> {
        let end = memchr::memchr2(b' ', b'\t', value)?;
        let (scheme, params) = value.split_at(end);
        let is = |expected: &str| scheme.eq_ignore_ascii_case(expected.as_bytes());
        let begins = |start: &str| {
            let begin = scheme.get(..start.len());
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()))
        };
        let optional = |name| param(params, name);
        let required = |name| optional(name).filter(|value| !value.is_empty());
        let (scheme, identity) = if is("Digest") {
            let user = match (optional("username")?, optional("username*")?) {
                (b"", user) | (user, b"") if !user.is_empty() => user,
                _ => return None,
            };
            ("digest", smallvec![user, required("realm")?])
        } else if is("OAuth") {
            required("oauth_signature")?;
            let consumer = required("oauth_consumer_key")?;
            ("oauth", smallvec![consumer, optional("oauth_token")?])
        } else if is("Hawk") {
            ("hawk", smallvec![required("id")?])
        } else if is("Signature") {
            ("signature", smallvec![required("keyId")?])
        } else if ["AWS4-", "GOOG4-"].iter().any(|start| begins(start)) {
            required("Signature")?;
            (
                "credential",
                smallvec![access_key(required("Credential")?)?],
            )
        } else if ID_AND_SIGNATURE.iter().any(|expected| is(expected)) {
            // An id can contain a colon, a Base64 signature cannot.
            let params = params.trim_ascii();
            let end = memchr::memrchr(b':', params).filter(|&end| end > 0)?;
            ("id", smallvec![&params[..end]])
        } else {
            return None;
        };
        Some(Self { scheme, identity })
    }

    pub(super) fn add_to(&self, parts: &mut HashInput) {
        parts.add(self.scheme.as_bytes());
        parts.number(self.identity.len());
        for part in &self.identity {
            parts.add(part);
        }
    }
}

/// Of the form `ID/DATE/REGION/SERVICE/aws4_request`. The id ends before the date and can itself contain slashes.
fn access_key(credential: &[u8]) -> Option<&[u8]> {
    let mut end = credential.len();
    while let Some(slash) = memchr::memrchr(b'/', &credential[..end]) {
        let segment = &credential[slash + 1..end];
        if segment.len() == 8 && segment.iter().all(u8::is_ascii_digit) {
            return (slash > 0).then_some(&credential[..slash]);
        }
        end = slash;
    }
    None
}

/// Returns an empty value if the parameter is absent from a list such as `a=1, b="2"`. Returns `None` if it is repeated
/// or the list is malformed, because a server could read another value than the gateway.
fn param<'a>(params: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    let mut found = None;
    let mut rest = params;
    loop {
        rest = rest.trim_ascii_start();
        while let Some(after) = rest.strip_prefix(b",") {
            rest = after.trim_ascii_start();
        }
        let Some(equals) = memchr::memchr(b'=', rest) else {
            return Some(found.unwrap_or_default());
        };
        let name = rest[..equals].trim_ascii_end();
        let value = rest[equals + 1..].trim_ascii_start();
        let (value, after) = if let Some(quoted) = value.strip_prefix(b"\"") {
            let end = end_of_quoted(quoted)?;
            let after = &quoted[end + 1..];
            if !matches!(after.first(), None | Some(b',' | b' ' | b'\t')) {
                return None;
            }
            (&quoted[..end], after)
        } else {
            let end = memchr::memchr(b',', value).unwrap_or(value.len());
            // A server could treat the comma after such a value as a part of a quoted string.
            if value.starts_with(b"'") || value[..end].contains(&b'"') {
                return None;
            }
            (value[..end].trim_ascii_end(), &value[end..])
        };
        if name.eq_ignore_ascii_case(wanted.as_bytes()) && found.replace(value).is_some() {
            return None;
        }
        rest = after;
    }
}

/// `text` starts after the opening quote.
fn end_of_quoted(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests;
