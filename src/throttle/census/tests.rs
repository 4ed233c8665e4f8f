use std::collections::HashMap;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::request::client::ClientId;

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn key(number: u64) -> BucketKey {
    BucketKey {
        high: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        low: number,
    }
}

fn census() -> Census {
    let census = Census::new(Rejections::default());
    census.resize(1);
    census
}

fn reject(census: &Census, number: u64, now: u64, wait: u64) -> bool {
    let wait = Duration::from_millis(wait);
    let headers = HeaderMap::new();
    census.rejected(key(number), (at(now), wait), &headers, || ShownKey::Global)
}

fn count(census: &Census, number: u64, window: Window, now: u64) -> Option<KeyCount> {
    let keys = census.most_rejected(window, at(now)).keys.into_iter();
    keys.into_iter()
        .find_map(|(bucket, count)| (bucket == key(number)).then_some(count))
}

#[test]
fn a_request_before_the_stated_time_is_early_beyond_the_tolerance() {
    let census = census();
    // Each row: time of a rejection, its wait, and whether it is early.
    for (now, wait, early) in [
        (0, 1_000, false), // states 1,000
        (1, 999, false),   // sent before the first response arrived
        (49, 951, false),
        (50, 950, true),
        (500, 500, true),
        (990, 10, true),
        (991, 9, false),       // a timer that fires early
        (1_000, 1_000, false), // a token went to another request; states 2,000
        (1_049, 951, false),
        (1_500, 500, true),
        (5_000, 1_000, false),
        (5_100, 300, false), // the bucket was refilled, or the request costs less; states 5,400
        (5_200, 200, true),
    ] {
        assert_eq!(reject(&census, 1, now, wait), early, "{now} ms");
    }
    let count = count(&census, 1, Window::FiveMinutes, 5_200).unwrap();
    assert_eq!((count.count, count.error, count.early), (13, 0, 5));
    // Four rejected requests needed 17 attempts.
    assert!((count.attempts_per_admission() - 17.0 / 4.0).abs() < 1e-9);
}

#[test]
fn a_stated_time_is_kept_beyond_the_window() {
    let census = census();
    assert!(!reject(&census, 1, 0, 86_400_000));
    // Two minutes, seven minutes, and two hours after the rejection.
    for now in [120_000, 420_000, 7_200_000] {
        let early = reject(&census, 1, now, 86_400_000 - now);
        assert!(early, "{now}");
    }
}

#[test]
fn a_window_covers_at_least_half_of_its_length() {
    let (census, minute) = (census(), 60_000);
    for now in 0..180 {
        reject(&census, now, now * minute, 0);
    }
    let now = 180 * minute;
    for (window, least, most) in [(Window::FiveMinutes, 2, 5), (Window::Hour, 30, 60)] {
        let counted = census.most_rejected(window, at(now));
        let found = counted.keys.len() as u64;
        assert!((least..=most).contains(&found), "{window:?}: {found}");
        let since = at(now).since(counted.since).as_secs() / 60;
        assert!(since >= found && since <= most, "{window:?}: {since}");
    }
    // After a long pause, both windows are empty.
    for window in [Window::FiveMinutes, Window::Hour] {
        assert!(census.most_rejected(window, at(now * 3)).keys.is_empty());
    }
}

#[test]
fn a_key_near_its_quota_is_listed_until_it_is_rejected() {
    let census = census();
    for number in 0..3 {
        census.near(key(number), at(0), || ShownKey::Global);
    }
    reject(&census, 1, 10, 1_000);
    let near = census.nearest(Window::FiveMinutes, at(20));
    let mut keys: Vec<_> = near.keys.iter().map(|(bucket, _)| bucket.low).collect();
    keys.sort_unstable();
    assert_eq!(keys, [0, 2]);
}

#[test]
fn the_keys_with_a_thousandth_of_the_rejections_of_a_million_clients_are_listed() {
    let census = census();
    let mut random = fastrand::Rng::with_seed(7);
    // A million clients, of which a hundred have 0.1 to 10 % of the rejections together with the others' one each.
    let heavy: Vec<u64> = (0..100).collect();
    let mut requests: Vec<u64> = (1_000..1_001_000).collect();
    for &number in &heavy {
        let times = if number == 0 { 100_000 } else { 2_000 + number };
        requests.extend(std::iter::repeat_n(number, usize::try_from(times).unwrap()));
    }
    random.shuffle(&mut requests);
    let mut truth: HashMap<u64, u64> = HashMap::new();
    for (index, &number) in requests.iter().enumerate() {
        *truth.entry(number).or_default() += 1;
        // All within one window of five minutes, over two generations.
        let now = index as u64 * 299_000 / requests.len() as u64;
        reject(&census, number, now, 0);
    }
    let counted = census.most_rejected(Window::FiveMinutes, at(299_000));
    let listed: HashMap<u64, &KeyCount> = (counted.keys.iter())
        .map(|(bucket, count)| (bucket.low, count))
        .collect();
    for (number, &times) in &truth {
        if times * 1_000 >= requests.len() as u64 {
            let count = listed[number];
            assert!(count.count <= times && times <= count.count + count.error);
        }
    }
    for (number, count) in listed {
        let times = truth[&number];
        assert!(count.count <= times && times <= count.count + count.error);
        assert!(count.error * 1_000 < requests.len() as u64);
    }
}

#[test]
fn the_memory_of_all_censuses_is_bounded() {
    for limits in [1, 3, 10, 100] {
        let censuses: Vec<_> = (0..limits).map(|_| census()).collect();
        let mut keys = 0;
        for census in &censuses {
            census.resize(limits);
            // Fills all generations.
            for step in 0..8_u64 {
                for number in 0..2_000 {
                    reject(census, number + step * 10_000, step * 600_000, 0);
                }
            }
            let state = census.state.lock();
            let generations = state.rejected.short.iter().chain(&state.rejected.long);
            keys += generations.map(Summary::slots).max().unwrap();
        }
        assert!(keys * BYTES_PER_KEY <= MAX_BYTES, "{limits} limits: {keys}");
        assert!(keys / limits >= MIN_KEYS, "{limits} limits: {keys}");
    }
}

#[test]
fn the_number_of_subscribers_is_bounded() {
    let rejections = Rejections::default();
    let first = rejections.subscribe(2).unwrap();
    let second = rejections.subscribe(2).unwrap();
    assert!(rejections.subscribe(2).is_none());
    drop(first);
    assert!(rejections.subscribe(2).is_some());
    drop(second);
    assert_eq!(rejections.subscribers(), 0);
}

#[test]
fn a_user_agent_and_a_key_are_stored_up_to_a_length() {
    let census = census();
    let mut headers = HeaderMap::new();
    let agent = format!("agent\u{e9}{}", "x".repeat(500));
    headers.insert(
        USER_AGENT,
        HeaderValue::from_bytes(agent.as_bytes()).unwrap(),
    );
    let shown = || ShownKey::Value(shortened(&[b'v'; 500]));
    census.rejected(key(1), (at(0), Duration::ZERO), &headers, shown);
    let count = count(&census, 1, Window::FiveMinutes, 0).unwrap();
    assert_eq!(count.user_agent.as_deref(), Some(&agent[..MAX_TEXT]));
    assert_eq!(count.key.to_string().len(), MAX_TEXT);
    let client = ClientId::of(IpAddr::from([192, 0, 2, 7]), 64);
    assert_eq!(ShownKey::Client(client).to_string(), "192.0.2.7");
}

proptest! {
    #[test]
    fn counts_stay_within_their_errors(
        capacity in 8_usize..40,
        keys in prop::collection::vec((0_u64..60, 0_u64..4), 1..600),
    ) {
        let mut parts: Vec<Summary> = (0..4).map(|_| Summary::default()).collect();
        for part in &mut parts {
            part.set_capacity(capacity);
        }
        let mut truth: HashMap<u64, u64> = HashMap::new();
        for &(number, part) in &keys {
            *truth.entry(number).or_default() += 1;
            let part = &mut parts[usize::try_from(part).unwrap()];
            if let Some(known) = part.get_mut(key(number)) {
                known.count += 1;
            } else {
                let mut count = KeyCount::new(ShownKey::Global, at(0), None);
                count.count = 1;
                part.insert(key(number), count);
            }
            prop_assert!(part.len() <= capacity);
        }
        let mut merged = Summary::default();
        merged.set_capacity(capacity);
        for part in &parts {
            merged.merge(part);
        }
        prop_assert!(merged.len() <= capacity);
        let most_missed = keys.len() as u64 / (capacity as u64 - capacity as u64 / 8);
        let listed = merged.into_keys();
        for (number, &times) in &truth {
            match listed.iter().find(|(bucket, _)| *bucket == key(*number)) {
                Some((_, count)) => prop_assert!(
                    count.count <= times && times <= count.count + count.error
                ),
                None => prop_assert!(times <= most_missed, "{times} of {most_missed}"),
            }
        }
    }
}
