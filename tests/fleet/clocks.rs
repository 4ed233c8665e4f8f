//! Gateways whose clocks are five minutes apart: Redis's own clock is the only one that counts.

use std::time::Duration;

use crate::api::{Api, Held};
use crate::gateways::{Gateway, Setup, is_in_flight};
use crate::harness::eventually;
use crate::redis::{RedisServer, ahead_variables};

const APART: Duration = Duration::from_mins(5);

/// What a request was told: whether it was admitted, how long to wait, what is left.
type Told = (bool, u64, String);

fn start_ahead(setup: &Setup) -> Gateway {
    let variables = ahead_variables(APART);
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    setup.start_in(&variables)
}

/// A client that asks one gateway after the other: all its burst at once, and then as often as it is told to.
async fn alternate(gateways: [&Gateway; 2]) -> Vec<Told> {
    let mut told = Vec::new();
    let mut wait = 0;
    for number in 0..12 {
        // As long as the gateway said, and no luck is needed then.
        if number > 5 && number % 2 == 0 {
            tokio::time::sleep(Duration::from_secs(wait)).await;
        }
        let answer = gateways[number % 2].get().await;
        let admitted = answer.status < 300;
        assert!(admitted || answer.status == 429, "{answer:?}");
        wait = if admitted { 0 } else { answer.retry_after() };
        told.push((admitted, wait, answer.header("ratelimit")));
    }
    told
}

#[tokio::test]
async fn a_client_of_two_gateways_is_admitted_as_by_one() {
    let api = Api::start();
    let (redis, other_redis) = (RedisServer::start(), RedisServer::start());
    let limit = "rate = \"1/2s\"\nburst = 3";
    let setup = Setup::before(&api, &redis.url()).limit(limit);
    let (right, ahead) = (setup.start(), start_ahead(&setup));
    let alone = Setup::before(&api, &other_redis.url()).limit(limit).start();
    let (two, one) = tokio::join!(alternate([&right, &ahead]), alternate([&alone, &alone]));
    assert_eq!(two, one);
    let admitted: Vec<_> = two.iter().map(|(admitted, ..)| *admitted).collect();
    let burst_and_then_one_a_wait = [
        true, true, true, true, false, false, true, false, true, false, true, false,
    ];
    assert_eq!(admitted, burst_and_then_one_a_wait, "{two:?}");
    ahead.stop();
}

#[tokio::test]
async fn claims_and_records_are_kept_for_as_long_as_they_should_be() {
    let (api, redis) = (Api::holding(Held::Answers), RedisServer::start());
    let setup = Setup::before(&api, &redis.url()).keyed("ttl = \"1h\", in_flight = \"conflict\"");
    let (right, ahead) = (setup.start(), start_ahead(&setup));
    for (number, [first, other]) in [[&ahead, &right], [&right, &ahead]].into_iter().enumerate() {
        api.hold(Held::Answers);
        let key = format!("key-{number}");
        let asked = tokio::spawn(first.paying(&key).send());
        eventually("it has begun", async || api.times(&key) == 1).await;
        let refused = other.pay(&key).await;
        assert!(is_in_flight(&refused), "{refused:?}");
        api.hold(Held::Nothing);
        assert!(!asked.await.unwrap().is_replay());
        let replayed = other.replay(&key).await;
        assert_eq!(first.replay(&key).await, replayed);
    }
    let records = redis.command(&["KEYS", "*"]).array();
    let left = records.into_iter().map(|name| {
        let left = redis.command(&["PTTL".to_owned(), name.text()]);
        Duration::from_millis(u64::try_from(left.int()).unwrap_or(0))
    });
    let kept: Vec<_> = left.filter(|it| *it > Duration::from_mins(1)).collect();
    assert!(kept.len() >= 2, "{kept:?}");
    for left in kept {
        // Claims are there for their lease on top of it.
        let hour = Duration::from_mins(59)..Duration::from_mins(62);
        assert!(hour.contains(&left), "{left:?}");
    }
    ahead.stop();
}
