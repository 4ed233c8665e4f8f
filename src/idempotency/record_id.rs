//! Id of a record: the hash of a key and the hash of its scope.
//!
//! The hashes are keyed with the [secret of the store](crate::request::hash_keys). Each header is hashed with the
//! number of its lines, so different lists of headers never produce the same input. Key and scope have separate hashes,
//! so that an operator can find the records of a key without the credentials of the caller.

use std::fmt;
use std::str::FromStr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use thiserror::Error;

use super::credentials::{self, SignedIdentity};
use super::rule::ScopePart;
use super::{IdempotencyKey, Scope};
use crate::request::client::ClientId;
use crate::request::hash_keys::{HashInput, Secret, Subject, Tag};
use crate::request::headers::canonical;

/// Hash of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 16]);

/// Hash of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScopeHash(pub [u8; 16]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the scope hash is invalid: it must have 32 hexadecimal digits")]
pub struct NotAHash;

/// Id of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId {
    /// Hash of the key.
    pub key: KeyHash,
    /// Hash of its scope.
    pub scope: ScopeHash,
}

impl KeyHash {
    /// Hashes a key with the secret of the store.
    pub fn of(secret: &Secret, key: &IdempotencyKey<'_>) -> Self {
        Self(secret.hash(Subject::Key, |parts| parts.add(key.as_bytes())))
    }
}

impl ScopeHash {
    fn of(secret: &Secret, scope: &Scope, client: ClientId, headers: &HeaderMap) -> Self {
        Self(secret.hash(Subject::Scope, |parts| match scope {
            Scope::Shared => parts.tag(Tag::All as u8),
            // `RecordId::named` evaluated the function before.
            Scope::Credential | Scope::Function(_) => add_credential(parts, headers, client),
            Scope::Parts(names) => {
                for name in names {
                    match name {
                        ScopePart::Client => parts.client(client),
                        ScopePart::Header(name) => add_header(parts, headers, name, client),
                        ScopePart::Cookie(name) => add_cookie(parts, headers, name, client),
                    }
                }
            }
        }))
    }
}

/// Of a header that is signed for each request, only the identity counts, together with the client, because it is not
/// verified.
fn add_credential(parts: &mut HashInput, headers: &HeaderMap, client: ClientId) {
    let mut lines = credentials::lines(headers, &AUTHORIZATION);
    match (lines.next().and_then(SignedIdentity::parse), lines.next()) {
        (Some(signed), None) => {
            parts.tag(Tag::Signed as u8);
            parts.client(client);
            signed.add_to(parts);
        }
        _ => add_header(parts, headers, &AUTHORIZATION, client),
    }
}

/// An absent or empty cookie counts as the client.
fn add_cookie(parts: &mut HashInput, headers: &HeaderMap, name: &str, client: ClientId) {
    let values = || credentials::cookie_values(headers, name);
    let count = values().count();
    if count == 0 {
        return parts.client(client);
    }
    parts.tag(Tag::Cookie as u8);
    parts.add(name.as_bytes());
    parts.number(count);
    values().for_each(|value| parts.add(value));
}

/// An absent or empty header counts as the client. Otherwise all callers without it would share a scope and could get
/// each other's responses.
fn add_header(parts: &mut HashInput, headers: &HeaderMap, name: &HeaderName, client: ClientId) {
    let lines = || credentials::lines(headers, name);
    let count = lines().count();
    if count == 0 {
        return parts.client(client);
    }
    parts.tag(Tag::Header as u8);
    parts.add(name.as_str().as_bytes());
    parts.number(count);
    lines().for_each(|line| parts.add(&canonical(name, line)));
}

impl RecordId {
    /// Computes the id for a request of `client` with these headers.
    pub fn of(
        secret: &Secret,
        key: &IdempotencyKey<'_>,
        scope: &Scope,
        client: ClientId,
        headers: &HeaderMap,
    ) -> Self {
        Self {
            key: KeyHash::of(secret, key),
            scope: ScopeHash::of(secret, scope, client, headers),
        }
    }

    /// For a caller that an embedding application has named. The rule is part of the scope, because the functions of
    /// two rules can give the same name to different callers.
    pub(super) fn named(
        secret: &Secret,
        key: &IdempotencyKey<'_>,
        rule: &str,
        caller: &str,
    ) -> Self {
        Self {
            key: KeyHash::of(secret, key),
            scope: ScopeHash(secret.hash(Subject::Scope, |parts| {
                parts.tag(Tag::Named as u8);
                parts.add(rule.as_bytes());
                parts.add(caller.as_bytes());
            })),
        }
    }

    /// Returns the form that stores use.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.key.0);
        bytes[16..].copy_from_slice(&self.scope.0);
        bytes
    }

    /// Reads the result of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let half = |half: &[u8]| half.try_into().expect("half of 32 bytes");
        Self {
            key: KeyHash(half(&bytes[..16])),
            scope: ScopeHash(half(&bytes[16..])),
        }
    }
}

impl fmt::Display for ScopeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl FromStr for ScopeHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        // `from_str_radix` also accepts a leading plus sign.
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAHash);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| NotAHash)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

pub(super) fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::request::client::Trust;

    fn client(address: &str) -> ClientId {
        let caller = Trust::default().identify(address.parse().unwrap(), &HeaderMap::new());
        caller.unwrap().id()
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|&(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .fold(HeaderMap::new(), |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            })
    }

    fn key(text: &str) -> IdempotencyKey<'_> {
        IdempotencyKey::parse(text.as_bytes()).unwrap()
    }

    const SECRET: Secret = Secret::from_bytes([7; 32]);

    #[test]
    fn requests_with_the_same_authorization_share_a_scope_across_clients() {
        let bearer = headers(&[("authorization", "Bearer a")]);
        let other = headers(&[("authorization", "Bearer b")]);
        let of = |address, headers: &HeaderMap| {
            RecordId::of(
                &SECRET,
                &key("k"),
                &Scope::Credential,
                client(address),
                headers,
            )
        };
        assert_eq!(of("192.0.2.1", &bearer), of("192.0.2.2", &bearer));
        assert_ne!(of("192.0.2.1", &bearer), of("192.0.2.1", &other));
        assert_ne!(of("192.0.2.1", &bearer), of("192.0.2.1", &HeaderMap::new()));
        let empty = headers(&[("authorization", "")]);
        assert_ne!(of("192.0.2.1", &empty), of("192.0.2.2", &empty));
        assert_ne!(
            of("192.0.2.1", &HeaderMap::new()),
            of("192.0.2.2", &HeaderMap::new())
        );
    }

    #[test]
    fn a_retry_with_a_new_signature_has_the_same_scope() {
        let of = |address, value| {
            let headers = headers(&[("authorization", value)]);
            RecordId::of(
                &SECRET,
                &key("k"),
                &Scope::Credential,
                client(address),
                &headers,
            )
        };
        let first = "AWS4-HMAC-SHA256 Credential=A/20261117/r/s/aws4_request, SignedHeaders=host, Signature=1";
        let retry = "AWS4-HMAC-SHA256 Credential=A/20261118/r/s/aws4_request, SignedHeaders=host, Signature=2";
        let other = "AWS4-HMAC-SHA256 Credential=B/20261117/r/s/aws4_request, SignedHeaders=host, Signature=1";
        let none = "AWS4-HMAC-SHA256 SignedHeaders=host, Signature=1";
        assert_eq!(of("192.0.2.1", first), of("192.0.2.1", retry));
        assert_ne!(of("192.0.2.1", first), of("192.0.2.1", other));
        // Another client with the same identity gets another scope, because the gateway does not verify the identity.
        assert_ne!(of("192.0.2.1", first), of("192.0.2.2", first));
        assert_eq!(of("192.0.2.1", none), of("192.0.2.2", none));
    }

    #[test]
    fn a_cookie_separates_callers() {
        let scope = Scope::Parts([ScopePart::Cookie("sid".into())].into());
        let of = |address, value| {
            let headers = headers(&[("cookie", value)]);
            RecordId::of(&SECRET, &key("k"), &scope, client(address), &headers)
        };
        let one = of("192.0.2.1", "sid=1; a=b");
        assert_eq!(of("192.0.2.2", "AWSALB=x; sid=1"), one);
        for other in ["sid=2", "sid=1; sid=2", "Sid=1", "sid=", "a=1"] {
            assert_ne!(of("192.0.2.1", other), one, "{other}");
        }
        assert_eq!(of("192.0.2.1", "sid="), of("192.0.2.1", "a=b"));
        assert_ne!(of("192.0.2.1", "a=b"), of("192.0.2.2", "a=b"));
    }

    #[test]
    fn a_shared_scope_is_the_same_for_all_callers() {
        let of = |address, headers: &HeaderMap| {
            RecordId::of(&SECRET, &key("k"), &Scope::Shared, client(address), headers)
        };
        let bearer = headers(&[("authorization", "Bearer a")]);
        assert_eq!(of("192.0.2.1", &bearer), of("192.0.2.9", &HeaderMap::new()));
    }

    #[test]
    fn separators_within_header_values_do_not_produce_the_same_scope() {
        let name = |name| ScopePart::Header(HeaderName::from_static(name));
        let scope = Scope::Parts([name("x-a"), name("x-b")].into());
        let of = |lines: &[_]| {
            RecordId::of(
                &SECRET,
                &key("k"),
                &scope,
                client("192.0.2.1"),
                &headers(lines),
            )
        };
        let plain = of(&[("x-a", "1"), ("x-b", "2")]);
        for lines in [
            &[("x-a", "12"), ("x-b", "")][..],
            &[("x-a", ""), ("x-b", "12")],
            &[("x-a", "1"), ("x-a", "2")],
            &[("x-b", "1"), ("x-a", "2")],
            &[("x-a", "1x-b2")],
        ] {
            assert_ne!(of(lines), plain, "{lines:?}");
        }
    }

    #[test]
    fn a_key_has_the_same_hash_in_all_scopes() {
        let of = |address| {
            RecordId::of(
                &SECRET,
                &key("k"),
                &Scope::Credential,
                client(address),
                &HeaderMap::new(),
            )
        };
        let (one, other) = (of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(one.key, other.key);
        assert_ne!(one.scope, other.scope);
        assert_eq!(RecordId::from_bytes(&one.to_bytes()), one);
    }

    #[test]
    fn record_ids_depend_on_the_secret() {
        let of = |secret: Secret| {
            RecordId::of(
                &secret,
                &key("k"),
                &Scope::Shared,
                client("192.0.2.1"),
                &HeaderMap::new(),
            )
        };
        assert_ne!(of(SECRET), of(Secret::random()));
        assert_ne!(of(Secret::random()), of(Secret::random()));
    }
}
