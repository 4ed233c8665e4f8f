//! Tests of gateways whose clocks differ by five minutes. The clocks must have no effect, because scripts use the clock
//! of Redis.

use std::time::Duration;

use crate::fleet::gateways::{STARTUP, Setup, is_in_flight};
use crate::fleet::upstream_api::{Api, Withheld};
use crate::support::redis::{RedisServer, ahead_variables};
use crate::support::{Process, eventually};

const APART: Duration = Duration::from_mins(5);

/// The response to a request with a rate limit: whether it was admitted, `Retry-After`, and `RateLimit`.
type LimitResponse = (bool, u64, String);

fn start_ahead(setup: &Setup) -> Process {
    let variables = ahead_variables(APART).into_iter();
    let process = variables.fold(setup.process(), |process, (name, value)| {
        process.env(name, &value)
    });
    process.start_within(STARTUP)
}

/// Sends twelve requests to the gateways in turn: six without a pause, and then three pairs. Before each pair, waits
/// for the `Retry-After` of the last rejection.
async fn alternate(gateways: [&Process; 2]) -> Vec<LimitResponse> {
    let mut responses = Vec::new();
    let mut wait = 0;
    for number in 0..12 {
        // The first request of each pair is sent after a wait, so it is admitted.
        if number > 5 && number % 2 == 0 {
            tokio::time::sleep(Duration::from_secs(wait)).await;
        }
        let response = gateways[number % 2].get().await;
        let admitted = response.status < 300;
        assert!(admitted || response.status == 429, "{response:?}");
        wait = if admitted { 0 } else { response.retry_after() };
        responses.push((admitted, wait, response.header("ratelimit")));
    }
    responses
}

#[tokio::test]
async fn two_gateways_with_different_clocks_admit_like_one() {
    let api = Api::start();
    let (redis, other_redis) = (RedisServer::start(), RedisServer::start());
    let limit = "rate = \"1/2s\"\nburst = 3";
    let setup = Setup::new(&api, &redis.url()).limit(limit);
    let (correct, ahead) = (setup.start(), start_ahead(&setup));
    let alone = Setup::new(&api, &other_redis.url()).limit(limit).start();
    let (two, one) = tokio::join!(alternate([&correct, &ahead]), alternate([&alone, &alone]));
    assert_eq!(two, one);
    let admitted: Vec<_> = two.iter().map(|(admitted, ..)| *admitted).collect();
    // The bucket has four tokens, so four of the first six requests are admitted. One token is refilled during each
    // wait, so only the first request of each pair is admitted.
    let expected = [
        true, true, true, true, false, false, true, false, true, false, true, false,
    ];
    assert_eq!(admitted, expected, "{two:?}");
    ahead.stop();
}

#[tokio::test]
async fn claims_and_records_expire_by_the_clock_of_redis() {
    let (api, redis) = (Api::holding(Withheld::Responses), RedisServer::start());
    let setup = Setup::new(&api, &redis.url()).keyed("ttl = \"1h\", in_flight = \"conflict\"");
    let (correct, ahead) = (setup.start(), start_ahead(&setup));
    for (number, [first, other]) in [[&ahead, &correct], [&correct, &ahead]]
        .into_iter()
        .enumerate()
    {
        api.hold(Withheld::Responses);
        let key = format!("key-{number}");
        let first_response = tokio::spawn(first.pay_request(&key).send());
        eventually("the execution has begun", async || api.times(&key) == 1).await;
        let rejected = other.pay(&key).await;
        assert!(is_in_flight(&rejected), "{rejected:?}");
        api.hold(Withheld::Nothing);
        assert!(!first_response.await.unwrap().is_replay());
        let replayed = other.replay(&key).await;
        assert_eq!(first.replay(&key).await, replayed);
    }
    let records = redis.command(&["KEYS", "*"]).array();
    let left = records.into_iter().map(|name| {
        let left = redis.command(&["PTTL".to_owned(), name.text()]);
        Duration::from_millis(u64::try_from(left.int()).unwrap_or(0))
    });
    let expiries: Vec<_> = left.filter(|it| *it > Duration::from_mins(1)).collect();
    assert!(expiries.len() >= 2, "{expiries:?}");
    for left in expiries {
        // The range ends later than the TTL of one hour, because the lease is added to the TTL of a claim.
        let hour = Duration::from_mins(59)..Duration::from_mins(62);
        assert!(hour.contains(&left), "{left:?}");
    }
    ahead.stop();
}
