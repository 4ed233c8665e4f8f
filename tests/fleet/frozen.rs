//! A gateway that stands still for longer than its claim holds, or for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::api::{Api, Held, Print};
use crate::gateways::{Gateway, Setup, is_in_flight, is_unknown};
use crate::harness::{Answer, eventually};
use crate::redis::RedisServer;

/// How long a claim holds.
const LEASE: Duration = Duration::from_secs(2);

/// How much later it shows on another gateway, at most.
const SHOWS: Duration = Duration::from_secs(2);

/// Gateways whose claims do not hold for long. Upstream has time for the body of an answer, or a gateway that
/// stood still would find that it took too long.
fn setup(api: &Api, redis: &RedisServer) -> Setup {
    Setup::before(api, &redis.url())
        .store("lease = \"2s\"")
        .upstream("connect_timeout = \"500ms\"\nfirst_byte_timeout = \"1s\"")
}

fn ask(gateway: &Arc<Gateway>) -> JoinHandle<Answer> {
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move { gateway.pay("key").await })
}

/// Has `gateway` come as far as the head of an answer, and stand still there; somebody waits for its answer,
/// which began then at the earliest.
async fn stuck(gateway: &Arc<Gateway>) -> (JoinHandle<Answer>, Instant) {
    let began = Instant::now();
    let first = ask(gateway);
    gateway.has_heads(1).await;
    gateway.freeze();
    (first, began)
}

/// The key is in flight at other gateways until the claim that was made at `claimed` lapses, and unknown then.
async fn lapses(claimed: Instant, waiting: &Gateway, refusing: &Gateway) {
    let refused = refusing.pay("key").await;
    assert!(is_in_flight(&refused), "{refused:?}");
    let frozen = Instant::now();
    let told = waiting.pay("key").await;
    assert!(is_unknown(&told), "{told:?}");
    assert!(claimed.elapsed() >= LEASE, "{:?}", claimed.elapsed());
    let took = frozen.elapsed();
    eprintln!("unknown {took:?} after its gateway stood still");
    assert!(took < LEASE + SHOWS, "{took:?}");
}

#[tokio::test]
async fn a_gateway_that_stood_still_never_answers_for_what_another_did() {
    let (api, redis) = (Api::holding(Held::Bodies), RedisServer::start());
    let setup = setup(&api, &redis).keyed("on_unknown = \"release\"");
    let refusing = setup.clone();
    let refusing = refusing.keyed("on_unknown = \"release\", in_flight = \"conflict\"");
    let (frozen, other) = (Arc::new(setup.start()), setup.start());
    let refusing = refusing.start();
    let (first, claimed) = stuck(&frozen).await;
    lapses(claimed, &other, &refusing).await;

    // Who comes after that has it carried out, and that is that.
    api.hold(Held::Nothing);
    let second = other.pay("key").await;
    assert!(!second.is_replay(), "{second:?}");
    let second = Print::of(&second).expect("an answer of the API");
    assert_eq!(second.execution(), 2);
    frozen.thaw();
    let first = first.await.unwrap();
    assert!(
        is_unknown(&first),
        "its execution is not on record: {first:?}"
    );
    for _ in 0..2 {
        for gateway in [&frozen, &other, &refusing] {
            assert_eq!(gateway.replay("key").await, second);
        }
    }
    assert_eq!(api.times("key"), 2);
}

#[tokio::test]
async fn a_gateway_that_stood_still_completes_what_nobody_else_did() {
    let (api, redis) = (Api::holding(Held::Bodies), RedisServer::start());
    let setup = setup(&api, &redis);
    let (frozen, other) = (Arc::new(setup.start()), setup.start());
    let refusing = setup.clone().keyed("in_flight = \"conflict\"").start();
    let (first, claimed) = stuck(&frozen).await;
    lapses(claimed, &other, &refusing).await;

    api.hold(Held::Nothing);
    for gateway in [&other, &refusing] {
        let held = gateway.pay("key").await;
        assert!(is_unknown(&held), "{held:?}");
    }
    frozen.thaw();
    let first = first.await.unwrap();
    assert!(!first.is_replay(), "{first:?}");
    let first = Print::of(&first).expect("an answer of the API");
    for gateway in [&frozen, &other, &refusing] {
        assert_eq!(gateway.replay("key").await, first);
    }
    assert_eq!(api.times("key"), 1);
}

#[tokio::test]
async fn what_a_dead_gateway_was_at_is_unknown_when_its_claim_lapses() {
    let (api, redis) = (Api::holding(Held::Answers), RedisServer::start());
    let setup = setup(&api, &redis);
    let (mut dead, other) = (setup.start(), Arc::new(setup.start()));
    let refusing = setup.clone().keyed("in_flight = \"conflict\"").start();
    let began = Instant::now();
    let first = tokio::spawn(dead.paying("key").try_send());
    eventually("the execution has begun", async || api.times("key") == 1).await;
    // Some wait since before it died.
    let waiting = ask(&other);
    eventually("somebody waits", async || {
        other.outcomes("waited").await == 1
    })
    .await;
    dead.kill();
    first.await.unwrap().expect_err("nobody is left to answer");
    lapses(began, &other, &refusing).await;
    let waited = waiting.await.unwrap();
    assert!(is_unknown(&waited), "{waited:?}");

    api.hold(Held::Nothing);
    for gateway in [&*other, &refusing, &setup.start()] {
        let held = gateway.pay("key").await;
        assert!(is_unknown(&held), "{held:?}");
    }
    assert_eq!(api.times("key"), 1, "one execution");
}
