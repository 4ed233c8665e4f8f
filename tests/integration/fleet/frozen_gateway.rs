//! Tests of a gateway that crashes, or is frozen for longer than the lease of its claims.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::fleet::gateways::{Setup, is_in_flight};
use crate::fleet::upstream_api::{Api, ApiResponse, Withheld};
use crate::support::redis::RedisServer;
use crate::support::{ClientResponse, Process, eventually, is_unknown};

/// Duration of the lease of a claim.
const LEASE: Duration = Duration::from_secs(2);

/// Maximum time between the expiry of a lease and its detection by another gateway.
const DETECTION: Duration = Duration::from_secs(2);

/// Configures gateways with short leases. No timeout for the body of an upstream response is set, because it would
/// expire while the gateway is frozen.
fn setup(api: &Api, redis: &RedisServer) -> Setup {
    Setup::new(api, &redis.url())
        .store("lease = \"2s\"")
        .upstream("connect_timeout = \"500ms\"\nfirst_byte_timeout = \"1s\"")
}

fn send(gateway: &Arc<Process>) -> JoinHandle<ClientResponse> {
    let gateway = Arc::clone(gateway);
    tokio::spawn(async move { gateway.pay("key").await })
}

/// Sends a request, and freezes `gateway` after it has received the head of the upstream response. Returns the request,
/// and a time just before its claim.
async fn freeze_in_response(gateway: &Arc<Process>) -> (JoinHandle<ClientResponse>, Instant) {
    let began = Instant::now();
    let first = send(gateway);
    gateway.wait_for_heads(1).await;
    gateway.freeze();
    (first, began)
}

/// Asserts that other gateways treat the idempotency key as in flight until its lease expires, and then as unknown.
/// `claimed` is the time of the claim.
async fn assert_lease_expires(claimed: Instant, waiting: &Process, conflicting: &Process) {
    let rejected = conflicting.pay("key").await;
    assert!(is_in_flight(&rejected), "{rejected:?}");
    let frozen = Instant::now();
    let waited = waiting.pay("key").await;
    assert!(is_unknown(&waited), "{waited:?}");
    assert!(claimed.elapsed() >= LEASE, "{:?}", claimed.elapsed());
    let took = frozen.elapsed();
    eprintln!("unknown {took:?} after its gateway was frozen");
    assert!(took < LEASE + DETECTION, "{took:?}");
}

#[tokio::test]
async fn a_frozen_gateway_cannot_replace_the_record_of_a_later_execution() {
    let (api, redis) = (Api::holding(Withheld::Bodies), RedisServer::start());
    let setup = setup(&api, &redis).keyed("on_unknown = \"release\"");
    let conflicting = setup.clone();
    let conflicting = conflicting.keyed("on_unknown = \"release\", in_flight = \"conflict\"");
    let (frozen, other) = (Arc::new(setup.start()), setup.start());
    let conflicting = conflicting.start();
    let (first, claimed) = freeze_in_response(&frozen).await;
    assert_lease_expires(claimed, &other, &conflicting).await;

    // The next request with the same idempotency key is executed again, because of `on_unknown = "release"`.
    api.hold(Withheld::Nothing);
    let second = other.pay("key").await;
    assert!(!second.is_replay(), "{second:?}");
    let second = ApiResponse::of(&second).expect("a response of the API");
    assert_eq!(second.execution(), 2);
    frozen.thaw();
    let first = first.await.unwrap();
    assert!(
        is_unknown(&first),
        "the first execution has no record: {first:?}"
    );
    for _ in 0..2 {
        for gateway in [&frozen, &other, &conflicting] {
            assert_eq!(gateway.replay("key").await, second);
        }
    }
    assert_eq!(api.times("key"), 2);
}

#[tokio::test]
async fn a_frozen_gateway_completes_its_own_unknown_record() {
    let (api, redis) = (Api::holding(Withheld::Bodies), RedisServer::start());
    let setup = setup(&api, &redis);
    let (frozen, other) = (Arc::new(setup.start()), setup.start());
    let conflicting = setup.clone().keyed("in_flight = \"conflict\"").start();
    let (first, claimed) = freeze_in_response(&frozen).await;
    assert_lease_expires(claimed, &other, &conflicting).await;

    api.hold(Withheld::Nothing);
    for gateway in [&other, &conflicting] {
        let held = gateway.pay("key").await;
        assert!(is_unknown(&held), "{held:?}");
    }
    frozen.thaw();
    let first = first.await.unwrap();
    assert!(!first.is_replay(), "{first:?}");
    let first = ApiResponse::of(&first).expect("a response of the API");
    for gateway in [&frozen, &other, &conflicting] {
        assert_eq!(gateway.replay("key").await, first);
    }
    assert_eq!(api.times("key"), 1);
}

#[tokio::test]
async fn the_key_of_a_crashed_gateway_is_unknown_when_its_lease_expires() {
    let (api, redis) = (Api::holding(Withheld::Responses), RedisServer::start());
    let setup = setup(&api, &redis);
    let (mut crashed, other) = (setup.start(), Arc::new(setup.start()));
    let conflicting = setup.clone().keyed("in_flight = \"conflict\"").start();
    let began = Instant::now();
    let first = tokio::spawn(crashed.pay_request("key").try_send());
    eventually("the execution has begun", async || api.times("key") == 1).await;
    // This duplicate request already waits when the gateway crashes.
    let waiting = send(&other);
    eventually("a request waits", async || {
        other.outcomes("waited").await == 1
    })
    .await;
    crashed.kill();
    first.await.unwrap().expect_err("the gateway has crashed");
    assert_lease_expires(began, &other, &conflicting).await;
    let waited = waiting.await.unwrap();
    assert!(is_unknown(&waited), "{waited:?}");

    api.hold(Withheld::Nothing);
    for gateway in [&*other, &conflicting, &setup.start()] {
        let held = gateway.pay("key").await;
        assert!(is_unknown(&held), "{held:?}");
    }
    assert_eq!(api.times("key"), 1, "one execution");
}
