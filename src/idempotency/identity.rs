//! What a record is known by: its key and its scope, hashed.
//!
//! The hashes are keyed by a secret of the store, so what is kept tells nobody a credential, and nobody
//! outside can aim at a place in a table. Every part carries its length, and a header the number of its
//! lines: no two lists of parts spell the same bytes, whatever a caller puts into its headers.
//!
//! Key and scope stay apart in the name, so that an operator who is told a key can find its records
//! without knowing whose they are.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use thiserror::Error;

use super::credentials::{self, Signed};
use super::rule::ScopePart;
use super::{IdempotencyKey, Scope};
use crate::client::ClientId;
use crate::intake::headers::canonical;
use crate::throttle::Seed;

/// What keys the hashes of a store.
#[derive(Clone, Copy)]
pub struct Secret([u8; 32]);

/// A key, hashed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 16]);

/// A scope, hashed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScopeHash(pub [u8; 16]);

/// A client, hashed. Counts of keys per client use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientHash(pub u64);

/// What was taken for a hash and is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not 32 hexadecimal digits")]
pub struct NotAHash;

/// The name of one record: a key in its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId {
    /// The key.
    pub key: KeyHash,
    /// Whose it is.
    pub scope: ScopeHash,
}

/// What a hash is of, so that none passes for another.
#[derive(Clone, Copy)]
pub(super) enum Subject {
    Key = 1,
    Scope = 2,
    Fingerprint = 3,
    Seed = 4,
    Credentials = 5,
}

/// What a scope is made from.
#[derive(Clone, Copy)]
enum Owner {
    Everybody = 0,
    Client = 1,
    Header = 2,
    /// The client and the identity in an `Authorization` that is signed separately for each request.
    Signed = 3,
    Cookie = 4,
}

impl Secret {
    /// A secret nobody can guess.
    ///
    /// # Panics
    ///
    /// If the system has no random numbers to give, without which nothing here is safe.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("the system gives random numbers");
        Self(bytes)
    }

    /// The secret that was kept as these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// To be kept.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The seed of bucket names that belongs to this secret.
    pub fn seed(&self) -> Seed {
        let all = u128::from_le_bytes(self.hash(Subject::Seed, |_| {}));
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        Seed::from_halves((all >> 64) as u64, all as u64)
    }

    /// The name of the record of `key` in the scope of a request from `client` with these headers.
    pub fn record(
        &self,
        key: &IdempotencyKey<'_>,
        scope: &Scope,
        client: ClientId,
        headers: &HeaderMap,
    ) -> RecordId {
        RecordId {
            key: self.key(key),
            scope: self.scope(scope, client, headers),
        }
    }

    /// A key by itself.
    pub fn key(&self, key: &IdempotencyKey<'_>) -> KeyHash {
        KeyHash(self.hash(Subject::Key, |parts| parts.add(key.as_bytes())))
    }

    fn scope(&self, scope: &Scope, client: ClientId, headers: &HeaderMap) -> ScopeHash {
        ScopeHash(self.hash(Subject::Scope, |parts| match scope {
            Scope::Shared => parts.tag(Owner::Everybody as u8),
            Scope::Credential => parts.credential(headers, client),
            Scope::Parts(names) => {
                for name in names {
                    match name {
                        ScopePart::Client => parts.client(client),
                        ScopePart::Header(name) => parts.header_or_client(headers, name, client),
                        ScopePart::Cookie(name) => parts.cookie_or_client(headers, name, client),
                    }
                }
            }
        }))
    }

    /// Hashes what `fill` adds. Two of a billion hashes of 128 bits collide with a probability of 10⁻²⁰.
    pub(super) fn hash(&self, subject: Subject, fill: impl FnOnce(&mut Parts)) -> [u8; 16] {
        let hash = self.hash_if(subject, |parts| {
            fill(parts);
            true
        });
        hash.unwrap_or_default()
    }

    /// Hashes what `fill` adds, unless it returns `false`.
    pub(super) fn hash_if(
        &self,
        subject: Subject,
        fill: impl FnOnce(&mut Parts) -> bool,
    ) -> Option<[u8; 16]> {
        let mut parts = Parts::default();
        parts.tag(subject as u8);
        if !fill(&mut parts) {
            return None;
        }
        // All at once: blake3's incremental state takes two kilobytes, and most of what is hashed here a
        // hundred bytes.
        let hash = blake3::keyed_hash(&self.0, parts.all());
        let mut short = [0; 16];
        short.copy_from_slice(&hash.as_bytes()[..16]);
        Some(short)
    }
}

/// What is to be hashed, in parts that each carry their length.
pub(super) struct Parts {
    /// Room for nearly all there is to hash.
    short: [u8; SHORT],
    /// How much of it is filled.
    filled: usize,
    /// All there is, once it is longer than that.
    long: Vec<u8>,
}

/// Bytes that are put together without allocating.
const SHORT: usize = 256;

impl Default for Parts {
    fn default() -> Self {
        Self {
            short: [0; SHORT],
            filled: 0,
            long: Vec::new(),
        }
    }
}

impl Parts {
    fn all(&self) -> &[u8] {
        if self.long.is_empty() {
            &self.short[..self.filled]
        } else {
            &self.long
        }
    }

    fn put_so_far(&mut self) -> &mut [u8] {
        if self.long.is_empty() {
            &mut self.short[..self.filled]
        } else {
            &mut self.long
        }
    }

    /// Inlined, because most of what is put is of a length known where it is: then this is one store.
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        match self.short.get_mut(self.filled..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.filled = end;
            }
            None => self.put_long(bytes),
        }
    }

    #[cold]
    fn put_long(&mut self, bytes: &[u8]) {
        if self.long.is_empty() {
            self.long.extend_from_slice(&self.short[..self.filled]);
            // From here on nothing fits any more.
            self.filled = SHORT;
        }
        self.long.extend_from_slice(bytes);
    }

    pub(super) fn tag(&mut self, tag: u8) {
        self.put(&[tag]);
    }

    pub(super) fn add(&mut self, part: &[u8]) {
        self.number(part.len());
        self.put(part);
    }

    pub(super) fn add_lower_case(&mut self, part: &[u8]) {
        self.add(part);
        let put = self.put_so_far();
        let begins = put.len() - part.len();
        put[begins..].make_ascii_lowercase();
    }

    pub(super) fn number(&mut self, number: usize) {
        self.put(&(number as u64).to_le_bytes());
    }

    /// Adds the `Authorization` header. If it is signed separately for each request, adds the identity in it
    /// and the client: the identity is not verified, and a retry has another signature.
    fn credential(&mut self, headers: &HeaderMap, client: ClientId) {
        let mut lines = credentials::lines(headers, &AUTHORIZATION);
        match (lines.next().and_then(Signed::parse), lines.next()) {
            (Some(signed), None) => {
                self.tag(Owner::Signed as u8);
                self.client(client);
                signed.add_to(self);
            }
            _ => self.header_or_client(headers, &AUTHORIZATION, client),
        }
    }

    /// Adds every value of a cookie. If it is absent or empty, adds the client, as for a header.
    fn cookie_or_client(&mut self, headers: &HeaderMap, name: &str, client: ClientId) {
        let values = || credentials::cookie_values(headers, name);
        let count = values().count();
        if count == 0 {
            return self.client(client);
        }
        self.tag(Owner::Cookie as u8);
        self.add(name.as_bytes());
        self.number(count);
        values().for_each(|value| self.add(value));
    }

    /// Adds every line of a header. If it is absent or empty, adds the client instead: one scope for all callers
    /// without the header would replay the responses of one to the others.
    fn header_or_client(&mut self, headers: &HeaderMap, name: &HeaderName, client: ClientId) {
        let lines = || credentials::lines(headers, name);
        let count = lines().count();
        if count == 0 {
            return self.client(client);
        }
        self.tag(Owner::Header as u8);
        self.add(name.as_str().as_bytes());
        self.number(count);
        lines().for_each(|line| self.add(&canonical(name, line)));
    }

    fn client(&mut self, client: ClientId) {
        self.tag(Owner::Client as u8);
        match client.ip() {
            IpAddr::V4(address) => self.add(&address.octets()),
            IpAddr::V6(address) => self.add(&address.octets()),
        }
    }
}

impl RecordId {
    /// Its bytes: the key's, then the scope's.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.key.0);
        bytes[16..].copy_from_slice(&self.scope.0);
        bytes
    }

    /// The name that was written as these bytes.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let mut id = Self {
            key: KeyHash([0; 16]),
            scope: ScopeHash([0; 16]),
        };
        id.key.0.copy_from_slice(&bytes[..16]);
        id.scope.0.copy_from_slice(&bytes[16..]);
        id
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
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
        // A sign would pass for a digit.
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

impl fmt::Debug for ScopeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(super) fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::client::Trust;

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
    fn a_credential_is_a_scope_wherever_it_comes_from() {
        let bearer = headers(&[("authorization", "Bearer a")]);
        let other = headers(&[("authorization", "Bearer b")]);
        let of = |address, headers: &HeaderMap| {
            SECRET.record(&key("k"), &Scope::Credential, client(address), headers)
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
    fn a_retry_that_is_signed_again_stays_in_its_scope() {
        let of = |address, value| {
            let headers = headers(&[("authorization", value)]);
            SECRET.record(&key("k"), &Scope::Credential, client(address), &headers)
        };
        let first = "AWS4-HMAC-SHA256 Credential=A/20261117/r/s/aws4_request, SignedHeaders=host, Signature=1";
        let retry = "AWS4-HMAC-SHA256 Credential=A/20261118/r/s/aws4_request, SignedHeaders=host, Signature=2";
        let other = "AWS4-HMAC-SHA256 Credential=B/20261117/r/s/aws4_request, SignedHeaders=host, Signature=1";
        let none = "AWS4-HMAC-SHA256 SignedHeaders=host, Signature=1";
        assert_eq!(of("192.0.2.1", first), of("192.0.2.1", retry));
        assert_ne!(of("192.0.2.1", first), of("192.0.2.1", other));
        // The identity is not verified, so another client cannot use it.
        assert_ne!(of("192.0.2.1", first), of("192.0.2.2", first));
        assert_eq!(of("192.0.2.1", none), of("192.0.2.2", none));
    }

    #[test]
    fn a_cookie_separates_callers() {
        let scope = Scope::Parts([ScopePart::Cookie("sid".into())].into());
        let of = |address, value| {
            let headers = headers(&[("cookie", value)]);
            SECRET.record(&key("k"), &scope, client(address), &headers)
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
    fn a_shared_scope_is_everybodys() {
        let of = |address, headers: &HeaderMap| {
            SECRET.record(&key("k"), &Scope::Shared, client(address), headers)
        };
        let bearer = headers(&[("authorization", "Bearer a")]);
        assert_eq!(of("192.0.2.1", &bearer), of("192.0.2.9", &HeaderMap::new()));
    }

    #[test]
    fn separators_in_headers_never_make_two_scopes_one() {
        let name = |name| ScopePart::Header(HeaderName::from_static(name));
        let scope = Scope::Parts([name("x-a"), name("x-b")].into());
        let of =
            |lines: &[_]| SECRET.record(&key("k"), &scope, client("192.0.2.1"), &headers(lines));
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
    fn parts_are_put_together_in_order_however_long_they_are() {
        for lengths in [
            [1, 20, 3],
            [250, 6, 1],
            [256, 0, 300],
            [300, 1, 0],
            [9, 600, 9],
        ] {
            let (mut parts, mut plain) = (Parts::default(), Vec::new());
            for (octet, length) in (1..).zip(lengths) {
                let part = vec![octet; length];
                parts.put(&part);
                plain.extend(part);
            }
            assert_eq!(parts.all(), plain, "{lengths:?}");
        }
    }

    #[test]
    fn one_key_of_two_scopes_can_be_found_by_the_key_alone() {
        let of = |address| {
            SECRET.record(
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
    fn another_secret_makes_other_names() {
        let of = |secret: Secret| {
            secret.record(
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
