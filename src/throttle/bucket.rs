//! Keys under which a store keeps the buckets of rate limits.
//!
//! The key is a 128-bit keyed hash of the limit's name and of the request properties in the limit's key, so all keys
//! have the same size. The seed is secret: a client can neither produce the bucket key of another client nor place all
//! of its buckets in one shard. Position and quota of the limit are not hashed, so a limit keeps its buckets when the
//! configuration changes.

use std::borrow::Cow;

use http::request::Parts;
use http::{HeaderMap, HeaderName};

use super::census::shortened;
use super::{KeyPart, Limit};
use crate::request::client::ClientId;
use crate::request::hash_keys::{Seed, Tag};
use crate::request::headers::canonical;
use crate::request::log_fields::ShownKey;

/// Key of the bucket of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketKey {
    /// Upper half of the hash.
    pub high: u64,
    /// Lower half of the hash.
    pub low: u64,
}

/// Which requests of a limit key a bucket counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketKind {
    /// All requests except CORS preflights.
    Main,
    /// CORS preflights, so that they take no tokens from other requests.
    Preflight,
}

/// What limit keys are computed from.
#[derive(Clone, Copy, Debug)]
pub struct KeySource<'a> {
    pub(super) headers: &'a HeaderMap,
    /// For functions of an embedding application; `None` in the gateway.
    parts: Option<&'a Parts>,
}

impl<'a> From<&'a HeaderMap> for KeySource<'a> {
    fn from(headers: &'a HeaderMap) -> Self {
        let parts = None;
        Self { headers, parts }
    }
}

impl<'a> From<&'a Parts> for KeySource<'a> {
    fn from(parts: &'a Parts) -> Self {
        Self {
            headers: &parts.headers,
            parts: Some(parts),
        }
    }
}

impl BucketKey {
    /// Returns the key of the bucket to which `limit` charges a request.
    pub fn of<'a>(
        seed: Seed,
        limit: &Limit,
        kind: BucketKind,
        client: ClientId,
        request: impl Into<KeySource<'a>>,
    ) -> Self {
        let KeySource { headers, parts } = request.into();
        let hash = seed.hash(|name| {
            name.add(limit.name.as_bytes());
            name.tag(match kind {
                BucketKind::Main => 0,
                BucketKind::Preflight => 1,
            });
            for part in &limit.key {
                match part {
                    KeyPart::Global => name.tag(Tag::All as u8),
                    KeyPart::Client => name.client(client),
                    KeyPart::Header(header) => {
                        match counted_value(headers, header) {
                            Some(value) => {
                                name.tag(Tag::Header as u8);
                                name.add(header.as_str().as_bytes());
                                name.add(&value);
                            }
                            // If all requests without the header shared one bucket, a client could use up the tokens of
                            // others. For an enforced limit, a request with a repeated header was rejected earlier.
                            None => name.client(client),
                        }
                    }
                    KeyPart::Function(function) => {
                        match parts.and_then(|parts| function.name_caller(parts)) {
                            Some(caller) => {
                                name.tag(Tag::Named as u8);
                                name.add(caller.as_bytes());
                            }
                            None => name.client(client),
                        }
                    }
                }
            }
        });
        Self {
            high: hash.h1,
            low: hash.h2,
        }
    }
}

/// `None` if the header is absent, empty or repeated.
fn counted_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) if !line.is_empty() => Some(canonical(name, line.as_bytes())),
        _ => None,
    }
}

impl Limit {
    /// As the log and the admin API show it: parts separated by slashes, shortened if it is long.
    pub(crate) fn shown_key(
        &self,
        bucket: BucketKey,
        client: ClientId,
        request: KeySource<'_>,
    ) -> ShownKey {
        match &*self.key {
            [KeyPart::Client] => ShownKey::Client(client),
            [KeyPart::Global] => ShownKey::Global,
            _ if !self.log_key => ShownKey::Hash(bucket.high),
            parts => {
                let value = |part: &KeyPart| match part {
                    KeyPart::Global => "global".into(),
                    KeyPart::Header(name) => match counted_value(request.headers, name) {
                        Some(value) => String::from_utf8_lossy(&value).into_owned(),
                        None => client.to_string(),
                    },
                    KeyPart::Client | KeyPart::Function(_) => client.to_string(),
                };
                let parts: Vec<_> = parts.iter().map(value).collect();
                ShownKey::Value(shortened(parts.join("/").as_bytes()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::throttle::{Exceed, Mode, OnStoreError, Quota, QuotaSince, RetryAfterForm};

    const SEED: Seed = Seed::from_halves(1, 2);

    fn header(name: &'static str) -> KeyPart {
        KeyPart::Header(HeaderName::from_static(name))
    }

    fn limit<const N: usize>(name: &str, key: [KeyPart; N]) -> Limit {
        Limit {
            name: name.into(),
            quota: Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3).unwrap(),
            quota_since: QuotaSince::default(),
            key: key.into(),
            exceed: Exceed::Reject,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
            log_key: false,
        }
    }

    fn client(address: &str) -> ClientId {
        ClientId::of(address.parse().unwrap(), 64)
    }

    fn headers<const N: usize>(lines: [(&'static str, &'static str); N]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn bucket(limit: &Limit, address: &str, headers: &HeaderMap) -> BucketKey {
        BucketKey::of(SEED, limit, BucketKind::Main, client(address), headers)
    }

    #[test]
    fn each_client_has_its_own_bucket_per_limit() {
        let device = limit("device", [KeyPart::Client]);
        let none = HeaderMap::new();
        let first = bucket(&device, "192.0.2.1", &none);
        assert_eq!(first, bucket(&device, "192.0.2.1", &none));
        assert_ne!(first, bucket(&device, "192.0.2.2", &none));
        let other = limit("other", [KeyPart::Client]);
        assert_ne!(first, bucket(&other, "192.0.2.1", &none));
    }

    #[test]
    fn a_limit_has_the_same_buckets_after_its_quota_changes() {
        let before = limit("device", [KeyPart::Client]);
        let mut after = before.clone();
        after.quota = Quota::new(NonZeroU32::MIN, Duration::from_mins(1), 0).unwrap();
        let none = HeaderMap::new();
        assert_eq!(
            bucket(&before, "192.0.2.1", &none),
            bucket(&after, "192.0.2.1", &none)
        );
    }

    #[test]
    fn ipv6_addresses_of_one_network_share_a_bucket() {
        let device = limit("device", [KeyPart::Client]);
        let none = HeaderMap::new();
        let first = bucket(&device, "2001:db8::1", &none);
        assert_eq!(first, bucket(&device, "2001:db8::ffff:1", &none));
        assert_ne!(first, bucket(&device, "2001:db8:0:1::1", &none));
    }

    #[test]
    fn a_global_limit_has_one_bucket_for_all_clients() {
        let all = limit("all", [KeyPart::Global]);
        let named = headers([("x-key", "a")]);
        assert_eq!(
            bucket(&all, "192.0.2.1", &named),
            bucket(&all, "2001:db8::1", &HeaderMap::new())
        );
    }

    #[test]
    fn a_limit_by_header_has_one_bucket_per_value() {
        let keyed = limit("keyed", [header("x-key")]);
        let a = headers([("x-key", "a")]);
        let b = headers([("x-key", "b")]);
        assert_eq!(
            bucket(&keyed, "192.0.2.1", &a),
            bucket(&keyed, "192.0.2.2", &a)
        );
        assert_ne!(
            bucket(&keyed, "192.0.2.1", &a),
            bucket(&keyed, "192.0.2.1", &b)
        );
    }

    #[test]
    fn a_request_without_the_header_is_counted_by_its_client() {
        let keyed = limit("keyed", [header("x-key")]);
        let none = HeaderMap::new();
        let absent = bucket(&keyed, "192.0.2.1", &none);
        assert_ne!(absent, bucket(&keyed, "192.0.2.2", &none));
        // An empty or repeated header selects the same bucket as an absent header.
        for lines in [
            headers([("x-key", "")]),
            headers([("x-key", "a"), ("x-key", "b")]),
            headers([("x-key", "a"), ("x-key", "")]),
        ] {
            assert_eq!(absent, bucket(&keyed, "192.0.2.1", &lines));
        }
    }

    #[test]
    fn equal_spellings_of_a_host_or_an_auth_scheme_share_a_bucket() {
        for (name, spellings) in [
            ("host", ["a.example", "A.Example:80", "a.example."]),
            ("authorization", ["Bearer t", "bearer t", "BEARER  t"]),
        ] {
            let keyed = limit("keyed", [header(name)]);
            let of = |value| bucket(&keyed, "192.0.2.1", &headers([(name, value)]));
            assert_eq!(spellings.map(of), [of(spellings[0]); 3], "{name}");
        }
    }

    #[test]
    fn a_header_with_the_bytes_of_an_address_does_not_select_its_bucket() {
        let keyed = limit("keyed", [header("x-key")]);
        let crafted = headers([("x-key", "AAAA")]);
        let other_client = bucket(&keyed, "65.65.65.65", &HeaderMap::new());
        assert_ne!(other_client, bucket(&keyed, "192.0.2.1", &crafted));
    }

    #[test]
    fn a_limit_with_several_key_parts_counts_by_all_of_them() {
        let both = limit("both", [KeyPart::Client, header("x-key")]);
        let a = headers([("x-key", "a")]);
        let b = headers([("x-key", "b")]);
        let first = bucket(&both, "192.0.2.1", &a);
        assert_ne!(first, bucket(&both, "192.0.2.1", &b));
        assert_ne!(first, bucket(&both, "192.0.2.2", &a));
        assert_ne!(first, bucket(&both, "192.0.2.1", &HeaderMap::new()));
    }

    #[test]
    fn separators_within_header_values_do_not_produce_the_same_bucket() {
        let both = limit("both", [header("x-a"), header("x-b")]);
        let lists = [
            headers([("x-a", "x"), ("x-b", "yz")]),
            headers([("x-a", "xy"), ("x-b", "z")]),
            headers([("x-a", "x,y"), ("x-b", "z")]),
            headers([("x-a", "x"), ("x-b", "y,z")]),
            headers([("x-a", "xyz"), ("x-b", "")]),
            headers([("x-a", ""), ("x-b", "xyz")]),
            headers([("x-a", "x")]),
            headers([("x-b", "x")]),
            headers([]),
        ];
        let buckets = lists.map(|headers| bucket(&both, "192.0.2.1", &headers));
        for (index, bucket) in buckets.iter().enumerate() {
            assert!(!buckets[..index].contains(bucket), "list {index} collides");
        }
    }

    #[test]
    fn a_limit_name_with_the_bytes_of_a_key_part_has_another_bucket() {
        let none = HeaderMap::new();
        let short = limit("a", [KeyPart::Global, KeyPart::Global]);
        let long = limit("a\u{0}\u{0}", [KeyPart::Global]);
        assert_ne!(
            bucket(&short, "192.0.2.1", &none),
            bucket(&long, "192.0.2.1", &none)
        );
    }

    #[test]
    fn preflights_and_requests_have_different_buckets() {
        let device = limit("device", [KeyPart::Client]);
        let kinds = [BucketKind::Main, BucketKind::Preflight]
            .map(|side| BucketKey::of(SEED, &device, side, client("192.0.2.1"), &HeaderMap::new()));
        assert_ne!(kinds[0], kinds[1]);
    }

    #[test]
    fn bucket_keys_depend_on_the_seed_and_debug_output_hides_it() {
        let device = limit("device", [KeyPart::Client]);
        let of = |seed: Seed| {
            BucketKey::of(
                seed,
                &device,
                BucketKind::Main,
                client("192.0.2.1"),
                &HeaderMap::new(),
            )
        };
        assert_ne!(of(SEED), of(Seed::from_halves(1, 3)));
        assert_ne!(of(SEED), of(Seed::from_halves(2, 2)));
        assert_ne!(of(Seed::random()), of(Seed::random()));
        assert_eq!(format!("{SEED:?}"), "Seed(..)");
    }

    /// The hash must not depend on the architecture, because gateways with different word sizes and byte orders can
    /// share one Redis.
    #[test]
    fn a_bucket_key_is_the_same_on_all_architectures() {
        let both = limit("device", [KeyPart::Client, header("x-key")]);
        let headers = headers([("x-key", "a")]);
        let BucketKey { high, low } = bucket(&both, "192.0.2.1", &headers);
        let expected = (7_349_559_492_347_978_979, 17_549_649_572_252_888_018);
        assert_eq!((high, low), expected);
    }
}
