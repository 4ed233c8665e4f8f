//! Credentials of a request: which headers identify a user, and what stays the same when a request is repeated.
//!
//! Users behind one address can differ only in a cookie or an API key. The credentials outside the scope therefore
//! take part in the fingerprint: the second user of a key gets a mismatch, never the response of the first. A
//! credential that differs in every request would make each retry a mismatch, or another scope and so a second
//! execution. Hence two exceptions: an `Authorization` that is signed separately for each request counts by the
//! identity in it, and cookies of load balancers and analytics do not count.

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderValue, PROXY_AUTHORIZATION};
use smallvec::{SmallVec, smallvec};

use super::rule::{Rule, Scope, ScopePart};
use crate::hash_keys::Parts;
use crate::intake::headers::canonical;

/// Cookies that load balancers, bot protection and analytics set, which change between a request and its retry and
/// identify no user of the API. A name that ends with `*` is a prefix. A name with a credential word is never ignored:
/// the session of a Rails application called `ga` is `_ga_session`. Prefixes are narrow, because the same products set
/// sessions of users, such as `AWSELBAuthSessionCookie` and `NSC_AAAC`.
const IGNORED_COOKIES: [&str; 45] = [
    // Load balancers: AWS, Google, Azure, Cloudflare, HAProxy, F5.
    "AWSALB",
    "AWSALBCORS",
    "AWSALBTG",
    "AWSALBTGCORS",
    "AWSALBAPP-*",
    "AWSELB",
    "AWSELBCORS",
    "GCLB",
    "ARRAffinity",
    "ARRAffinitySameSite",
    "__cflb",
    "SERVERID",
    "BIGipServer*",
    // Bot protection: Cloudflare, Akamai, Imperva, DataDome.
    "__cf_bm",
    "_cfuvid",
    "ak_bmsc",
    "bm_lso",
    "bm_mi",
    "bm_s",
    "bm_so",
    "bm_ss",
    "bm_sv",
    "bm_sz",
    "_abck",
    "incap_ses_*",
    "visid_incap_*",
    "nlbi_*",
    "datadome",
    // Analytics: Google, Meta, Microsoft, Matomo, Hotjar, Datadog.
    "_ga",
    "_ga_*",
    "_gac_*",
    "_gat",
    "_gat_*",
    "_gid",
    "_gcl_*",
    "__utm*",
    "_fbp",
    "_fbc",
    "_uetsid*",
    "_uetvid*",
    "_clck",
    "_clsk",
    "_pk_*",
    "_hj*",
    "_dd_s",
];

/// Adds the recognised credentials outside the scope of `rule`. Returns whether there is one.
pub(super) fn add_unscoped(parts: &mut Parts, rule: &Rule, headers: &HeaderMap) -> bool {
    let has_scoped_authorization = match &rule.scope {
        Scope::Credential => true,
        Scope::Shared => return false,
        Scope::Parts(names) if identify_caller(names, headers) => return false,
        Scope::Parts(_) => false,
    };
    let mut names: SmallVec<[&HeaderName; 4]> = headers
        .keys()
        .filter(|&name| is_credential(name) && *name != rule.header)
        .filter(|&name| !(has_scoped_authorization && name == AUTHORIZATION))
        .collect();
    // Proxies between the client and the gateway can change the order of headers.
    names.sort_unstable_by_key(|name| name.as_str());
    let mut any = false;
    for name in names {
        any |= add_header(parts, name, headers);
    }
    any
}

/// Whether a scope names headers or cookies and the request has all of them. If one is missing, the client takes its
/// place, and users behind one address are separated by their other credentials only.
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

/// Adds the lines of a header that identify its sender. Returns whether there is one.
fn add_header(parts: &mut Parts, name: &HeaderName, headers: &HeaderMap) -> bool {
    let mut any = false;
    for line in lines(headers, name) {
        if *name == COOKIE {
            let mut pairs: SmallVec<[(&[u8], &[u8]); 8]> = cookies(line)
                .filter(|(name, value)| !is_ignored(name, value))
                .collect();
            // Stable, because a server reads the first of two cookies with one name.
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
        if let Some(signed) = Signed::parse(line).filter(|_| is_authorization) {
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

/// The lines of a header that have a value.
pub(super) fn lines<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).iter();
    lines
        .map(HeaderValue::as_bytes)
        .filter(|line| !line.is_empty())
}

/// Whether the `Authorization` header is signed separately for each request.
pub(crate) fn is_signed(headers: &HeaderMap) -> bool {
    lines(headers, &AUTHORIZATION).any(|line| Signed::parse(line).is_some())
}

/// Whether a header with this name is taken for a credential: `Cookie`, and names that contain a credential word.
fn is_credential(name: &HeaderName) -> bool {
    *name == COOKIE || has_credential_word(name.as_str().as_bytes())
}

/// Whether a name contains `token`, `api-key`, `apikey`, `auth`, `session` or `secret`, in any case. One pass, because
/// every header of a request with a key is checked.
fn has_credential_word(name: &[u8]) -> bool {
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

/// The names and values in a `Cookie` header (RFC 6265, section 5.4).
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

/// The values of a cookie that are not empty.
pub(crate) fn cookie_values<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> impl Iterator<Item = &'a [u8]> {
    lines(headers, &COOKIE)
        .flat_map(cookies)
        .filter(move |(cookie, value)| *cookie == name.as_bytes() && !value.is_empty())
        .map(|(_, value)| value)
}

/// Whether a cookie is one of [`IGNORED_COOKIES`]. A cookie whose name contains a credential word is not. Neither is one
/// whose value could contain further cookies, because some servers separate them with commas or white space.
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

/// Schemes whose parameters are `ID:SIGNATURE`: AWS Signature Version 2 and its relatives.
const ID_AND_SIGNATURE: [&str; 5] = ["AWS", "GOOG1", "OSS", "SharedKey", "SharedKeyLite"];

/// The stable part of an `Authorization` value that is signed separately for each request. It is not verified.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signed<'a> {
    scheme: &'static str,
    identity: SmallVec<[&'a [u8]; 2]>,
}

impl<'a> Signed<'a> {
    /// Finds the identity in a value of AWS Signature Version 4 (also as Google has it) and 2, OAuth 1, Digest, Hawk or
    /// HTTP signatures in `Authorization`. Returns `None` for any other scheme, and if no identity parses.
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
            // An id can contain a colon, and a signature in Base64 cannot.
            let params = params.trim_ascii();
            let end = memchr::memrchr(b':', params).filter(|&end| end > 0)?;
            ("id", smallvec![&params[..end]])
        } else {
            return None;
        };
        Some(Self { scheme, identity })
    }

    /// Adds the identity to what is hashed.
    pub(super) fn add_to(&self, parts: &mut Parts) {
        parts.add(self.scheme.as_bytes());
        parts.number(self.identity.len());
        for part in &self.identity {
            parts.add(part);
        }
    }
}

/// The id of the access key in `ID/DATE/REGION/SERVICE/aws4_request`. An id can contain a slash, so it ends at the date.
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

/// The value of a parameter in a list such as `a=1, b="2"`, empty if it is absent. Returns `None` if it is repeated or
/// if the list is malformed: a server could read another value.
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
            // A quote could enclose the comma.
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

/// The index of the quote that ends a quoted string.
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
