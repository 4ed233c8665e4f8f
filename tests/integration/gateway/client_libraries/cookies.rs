//! Test with two users on one machine. The requests of both users have the same idempotency key. Each user has a cookie
//! jar, and a load balancer sets a new cookie with each response.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::HeaderValue;
use http::header::SET_COOKIE;
use serde_json::Value;

use super::users;
use crate::support::{Gateway, Received, Upstream, full};

/// Creates an upstream that sets a session cookie for `/login/USER` and responds to `/orders` with the number of the
/// order. Each response also sets the cookie of a load balancer to a new value.
fn shop() -> Upstream {
    let (orders, responses) = (AtomicUsize::new(0), AtomicUsize::new(0));
    Upstream::with(move |received: Received| {
        let mut reply = match &*received.target {
            "/orders" => {
                let number = orders.fetch_add(1, Ordering::SeqCst) + 1;
                full(format!("order {number} of {}", received.header("cookie")))
            }
            _ => full("welcome"),
        };
        let mut set = |cookie: String| {
            let cookie = HeaderValue::try_from(cookie).expect("the header value is valid");
            reply.headers_mut().append(SET_COOKIE, cookie);
        };
        if let Some(user) = received.target.strip_prefix("/login/") {
            set(format!("session={user}; Path=/"));
        }
        let number = responses.fetch_add(1, Ordering::SeqCst);
        set(format!("AWSALB=balancer-{number}; Path=/"));
        async move { reply }
    })
}

#[tokio::test]
async fn a_new_load_balancer_cookie_is_replayed_and_another_session_is_rejected() {
    let upstream = shop();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let [first, retry, other] = users("cookies", &gateway).await;
    let text = |value: &Value| value.as_str().expect("the value is text").to_owned();

    assert_eq!(first["status"], 200, "{first}");
    assert!(
        text(&first["body"]).starts_with("order 1 of "),
        "unexpected first exchange: {first}"
    );
    assert_eq!(first["replayed"], Value::Null);
    assert_ne!(first["cookie"], retry["cookie"]);
    assert!(
        text(&retry["cookie"]).contains("session=ann"),
        "unexpected exchange of the retry: {retry}"
    );
    assert_eq!(retry["replayed"], "true", "{retry}");
    assert_eq!(retry["body"], first["body"]);

    assert!(
        text(&other["cookie"]).contains("session=bob"),
        "unexpected exchange of the second user: {other}"
    );
    assert_eq!(other["status"], 422, "{other}");
    assert_eq!(other["replayed"], Value::Null);
    assert_eq!(other["set_cookie"], Value::Null, "{other}");
    let body = text(&other["body"]);
    for part in [
        "idempotency-key-reused",
        "the same request with other credentials",
        "`scope`",
    ] {
        assert!(
            body.contains(part),
            "the body does not contain {part:?}: {body}"
        );
    }
    for secret in ["order 1", "ann", "balancer"] {
        assert!(
            !body.contains(secret),
            "the body contains {secret:?}: {body}"
        );
    }
    let orders = upstream.requests();
    let orders = orders.iter().filter(|sent| sent.target == "/orders");
    assert_eq!(orders.count(), 1);
}
