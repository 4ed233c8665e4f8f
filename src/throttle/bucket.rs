//! Names of buckets.
//!
//! The name of a bucket is a 128-bit keyed hash of the name of its limit and of the values that the limit is counted by.
//! Every bucket takes the same few bytes, whatever the length of the headers. A client that does not know the seed can
//! neither choose the bucket of another client nor put its own buckets into one shard. The position of the limit is
//! not part of the name, so buckets stay valid when the configuration is reordered.

use http::HeaderMap;
use siphasher::sip128::Hasher128 as _;

use super::{KeyPart, Limit};
use crate::client::ClientId;
use crate::hash_keys::Seed;
use crate::intake::headers::canonical;

/// The name of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketKey {
    /// Hash of the bucket in tables.
    pub high: u64,
    /// Distinguishes buckets with the same hash.
    pub low: u64,
}

/// One of the two buckets that a limit has per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The bucket of requests.
    Main,
    /// A separate bucket of the same quota for CORS preflights, so that they use no tokens of requests.
    Preflight,
}

impl BucketKey {
    /// Returns the bucket of `limit` for a request of `client` with these headers.
    pub fn of(
        seed: Seed,
        limit: &Limit,
        side: Side,
        client: ClientId,
        headers: &HeaderMap,
    ) -> Self {
        let mut name = seed.hasher();
        name.part(limit.name.as_bytes());
        name.tag(match side {
            Side::Main => 0,
            Side::Preflight => 1,
        });
        for part in &limit.key {
            match part {
                KeyPart::Global => name.tag(2),
                KeyPart::Client => name.client(client),
                KeyPart::Header(header) => {
                    let mut lines = headers.get_all(header).iter();
                    match (lines.next(), lines.next()) {
                        (Some(line), None) if !line.is_empty() => {
                            name.header(&canonical(header, line.as_bytes()));
                        }
                        // Without its header a request is counted by its client: in one bucket for all such
                        // requests, one client could use up the tokens of the others. An empty header counts as
                        // absent, and so does a repeated one, which an enforced limit rejects before.
                        _ => name.client(client),
                    }
                }
            }
        }
        let hash = name.0.finish128();
        Self {
            high: hash.h1,
            low: hash.h2,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::throttle::{Exceed, LimitId, Mode, OnStoreError, Quota, RetryAfterForm};

    const SEED: Seed = Seed::from_halves(1, 2);

    fn header(name: &'static str) -> KeyPart {
        KeyPart::Header(HeaderName::from_static(name))
    }

    fn limit<const N: usize>(name: &str, key: [KeyPart; N]) -> Limit {
        Limit {
            id: LimitId(0),
            name: name.into(),
            quota: Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3).unwrap(),
            key: key.into(),
            exceed: Exceed::Reject,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
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
        BucketKey::of(SEED, limit, Side::Main, client(address), headers)
    }

    #[test]
    fn a_client_has_one_bucket_a_limit_and_shares_it_with_nobody() {
        let device = limit("device", [KeyPart::Client]);
        let none = HeaderMap::new();
        let ours = bucket(&device, "192.0.2.1", &none);
        assert_eq!(ours, bucket(&device, "192.0.2.1", &none));
        assert_ne!(ours, bucket(&device, "192.0.2.2", &none));
        let other = limit("other", [KeyPart::Client]);
        assert_ne!(ours, bucket(&other, "192.0.2.1", &none));
    }

    #[test]
    fn a_limit_keeps_its_buckets_when_its_place_or_its_quota_changes() {
        let before = limit("device", [KeyPart::Client]);
        let mut after = before.clone();
        after.id = LimitId(7);
        after.quota = Quota::new(NonZeroU32::MIN, Duration::from_mins(1), 0).unwrap();
        let none = HeaderMap::new();
        assert_eq!(
            bucket(&before, "192.0.2.1", &none),
            bucket(&after, "192.0.2.1", &none)
        );
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let device = limit("device", [KeyPart::Client]);
        let none = HeaderMap::new();
        let ours = bucket(&device, "2001:db8::1", &none);
        assert_eq!(ours, bucket(&device, "2001:db8::ffff:1", &none));
        assert_ne!(ours, bucket(&device, "2001:db8:0:1::1", &none));
    }

    #[test]
    fn a_global_limit_has_one_bucket_for_everybody() {
        let all = limit("all", [KeyPart::Global]);
        let named = headers([("x-key", "a")]);
        assert_eq!(
            bucket(&all, "192.0.2.1", &named),
            bucket(&all, "2001:db8::1", &HeaderMap::new())
        );
    }

    #[test]
    fn a_header_stands_for_whoever_sends_it() {
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
    fn whoever_leaves_the_header_out_is_counted_by_address() {
        let keyed = limit("keyed", [header("x-key")]);
        let none = HeaderMap::new();
        let ours = bucket(&keyed, "192.0.2.1", &none);
        assert_ne!(ours, bucket(&keyed, "192.0.2.2", &none));
        // No spelling of an absent or repeated header has a bucket of its own.
        for lines in [
            headers([("x-key", "")]),
            headers([("x-key", "a"), ("x-key", "b")]),
            headers([("x-key", "a"), ("x-key", "")]),
        ] {
            assert_eq!(ours, bucket(&keyed, "192.0.2.1", &lines));
        }
    }

    #[test]
    fn spellings_of_a_host_and_of_a_scheme_have_one_bucket() {
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
    fn a_header_that_spells_an_address_does_not_reach_that_address_s_bucket() {
        let keyed = limit("keyed", [header("x-key")]);
        let spelt = headers([("x-key", "AAAA")]);
        let theirs = bucket(&keyed, "65.65.65.65", &HeaderMap::new());
        assert_ne!(theirs, bucket(&keyed, "192.0.2.1", &spelt));
    }

    #[test]
    fn a_list_counts_by_all_of_its_parts() {
        let both = limit("both", [KeyPart::Client, header("x-key")]);
        let a = headers([("x-key", "a")]);
        let b = headers([("x-key", "b")]);
        let ours = bucket(&both, "192.0.2.1", &a);
        assert_ne!(ours, bucket(&both, "192.0.2.1", &b));
        assert_ne!(ours, bucket(&both, "192.0.2.2", &a));
        assert_ne!(ours, bucket(&both, "192.0.2.1", &HeaderMap::new()));
    }

    /// A caller may put anything into a header; what it cannot do is spell another list of parts.
    #[test]
    fn crafted_separators_do_not_collide() {
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
    fn the_end_of_a_limit_s_name_cannot_be_taken_for_its_key() {
        let none = HeaderMap::new();
        let short = limit("a", [KeyPart::Global, KeyPart::Global]);
        let long = limit("a\u{0}\u{2}", [KeyPart::Global]);
        assert_ne!(
            bucket(&short, "192.0.2.1", &none),
            bucket(&long, "192.0.2.1", &none)
        );
    }

    #[test]
    fn a_preflight_draws_from_a_twin() {
        let device = limit("device", [KeyPart::Client]);
        let sides = [Side::Main, Side::Preflight]
            .map(|side| BucketKey::of(SEED, &device, side, client("192.0.2.1"), &HeaderMap::new()));
        assert_ne!(sides[0], sides[1]);
    }

    #[test]
    fn another_seed_names_every_bucket_anew_and_none_is_printed() {
        let device = limit("device", [KeyPart::Client]);
        let of = |seed: Seed| {
            BucketKey::of(
                seed,
                &device,
                Side::Main,
                client("192.0.2.1"),
                &HeaderMap::new(),
            )
        };
        assert_ne!(of(SEED), of(Seed::from_halves(1, 3)));
        assert_ne!(of(SEED), of(Seed::from_halves(2, 2)));
        assert_ne!(of(Seed::random()), of(Seed::random()));
        assert_eq!(format!("{SEED:?}"), "Seed(..)");
    }

    /// Gateways on machines of any word size and byte order share the buckets of one Redis.
    #[test]
    fn the_name_of_a_bucket_is_the_same_on_every_machine() {
        let both = limit("device", [KeyPart::Client, header("x-key")]);
        let headers = headers([("x-key", "a")]);
        let BucketKey { high, low } = bucket(&both, "192.0.2.1", &headers);
        let expected = (18_390_889_737_217_584_393, 7_470_890_025_643_960_807);
        assert_eq!((high, low), expected);
    }
}
