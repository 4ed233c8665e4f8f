//! Tests of applications that share a Redis server.

use super::*;
use crate::store::tests::redis::RedisServer;

#[tokio::test]
async fn two_applications_share_keys_and_limits_in_redis() {
    let server = RedisServer::start();
    let url = server.url();
    let bank = Bank::open();
    let applications = [0, 1].map(|_| {
        let embedded = Embedded::in_redis(&url).unwrap();
        let keys = Some(KeyRule::default());
        let layer = embedded.layer("payments", [hourly("hourly", 3)], keys);
        (app(layer.unwrap(), &bank), embedded)
    });
    let [(first, _), (second, _)] = &applications;
    let response = send(first, payment(CLIENT)).await;
    assert!(!is_replay(&response));
    assert_eq!(text(response).await, "payment 1");
    let response = send(second, payment(CLIENT)).await;
    assert!(is_replay(&response));
    assert_eq!(text(response).await, "payment 1");
    assert_eq!(status(first, payment(CLIENT)).await, 200);
    assert_eq!(status(second, payment(CLIENT)).await, 429);
    assert_eq!(bank.made(), 1);
    for (_, embedded) in &applications {
        embedded.finish().await;
    }
    // Redis has the record, but a closed application neither replays nor executes.
    for key in ["k", "late"] {
        let late = with_key(payment("192.0.2.2:9"), key);
        assert_eq!(status(first, late).await, 503);
    }
    assert_eq!(bank.made(), 1);
}
