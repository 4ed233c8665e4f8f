//! Browser code can read a refusal, and its preflights cost it nothing.

use http::HeaderValue;

use crate::harness::{Gateway, Upstream, full};

const APP: &str = "https://app.example";

fn gateway(cors: &str, upstream: &Upstream) -> Gateway {
    Gateway::with(&format!(
        "{cors}\n[upstream.api]\nservers = [\"{{upstream}}\"]\n[limit.device]\nrate = \"1/h\"\n\
         [[route]]\nname = \"register\"\npath = \"/register\"\nmethods = [\"POST\"]\n\
         limits = [\"device\"]\n"
    ))
    .upstream(upstream)
    .start()
}

const CORS: &str = r#"
    [respond.cors]
    origins = ["https://app.example"]
    credentials = true
    expose = ["X-Request-Id"]
"#;

#[tokio::test]
async fn an_allowed_origin_may_read_a_refusal_and_its_headers() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let ask = || {
        gateway
            .client()
            .post("/register")
            .header("Origin", APP)
            .send()
    };
    assert_eq!(ask().await.status, 200);
    let refused = ask().await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("access-control-allow-origin"), APP);
    assert_eq!(refused.header("access-control-allow-credentials"), "true");
    assert_eq!(refused.header("vary"), "Origin");
    let exposed = refused
        .header("access-control-expose-headers")
        .to_lowercase();
    for name in [
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "ratelimit",
        "ratelimit-policy",
        "x-request-id",
    ] {
        let listed = exposed.split(',').any(|each| each.trim() == name);
        assert!(listed, "{name} in {exposed}");
    }
}

#[tokio::test]
async fn another_origin_gets_the_refusal_without_leave_to_read_it() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    for origin in [
        "https://evil.example",
        "https://app.example.evil.example",
        "null",
    ] {
        let ask = || {
            gateway
                .client()
                .post("/register")
                .header("Origin", origin)
                .send()
        };
        let mut answer = ask().await;
        while answer.status != 429 {
            answer = ask().await;
        }
        assert!(!answer.has("access-control-allow-origin"), "{origin}");
        assert_eq!(answer.header("vary"), "Origin", "{origin}");
    }
}

#[tokio::test]
async fn without_the_section_a_refusal_says_nothing_to_browsers() {
    let upstream = Upstream::replying(200);
    let gateway = gateway("", &upstream);
    let ask = || {
        gateway
            .client()
            .post("/register")
            .header("Origin", APP)
            .send()
    };
    assert_eq!(ask().await.status, 200);
    let refused = ask().await;
    assert_eq!(refused.status, 429);
    assert!(!refused.has("access-control-allow-origin"));
}

#[tokio::test]
async fn a_preflight_is_answered_by_the_gateway_and_costs_nothing() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    for _ in 0..5 {
        let answer = gateway
            .client()
            .request("OPTIONS", "/register")
            .header("Origin", APP)
            .header("Access-Control-Request-Method", "POST")
            .header(
                "Access-Control-Request-Headers",
                "authorization, x-device-info",
            )
            .send()
            .await;
        assert_eq!(answer.status, 204);
        assert_eq!(answer.header("access-control-allow-origin"), APP);
        assert_eq!(answer.header("access-control-allow-methods"), "POST");
        let allowed = answer.header("access-control-allow-headers");
        assert_eq!(allowed, "authorization, x-device-info");
        assert_eq!(answer.header("access-control-max-age"), "600");
    }
    assert_eq!(upstream.count(), 0);
    let real = gateway.client().post("/register").header("Origin", APP);
    assert_eq!(real.send().await.status, 200);
}

#[tokio::test]
async fn a_preflight_of_another_origin_is_answered_without_leave() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let answer = gateway
        .client()
        .request("OPTIONS", "/register")
        .header("Origin", "https://evil.example")
        .header("Access-Control-Request-Method", "POST")
        .send()
        .await;
    assert_eq!(answer.status, 204);
    assert!(!answer.has("access-control-allow-origin"));
    assert!(!answer.has("access-control-allow-methods"));
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn without_the_section_a_preflight_is_forwarded_and_charged_to_a_twin() {
    let upstream = Upstream::replying(200);
    let gateway = gateway("", &upstream);
    let preflight = || {
        gateway
            .client()
            .request("OPTIONS", "/register")
            .header("Origin", APP)
            .header("Access-Control-Request-Method", "POST")
            .send()
    };
    assert_eq!(preflight().await.status, 200);
    assert_eq!(upstream.last().method, "OPTIONS");
    // The twin is used up; the real bucket is not touched.
    assert_eq!(preflight().await.status, 429);
    assert_eq!(gateway.client().post("/register").send().await.status, 200);
    assert_eq!(gateway.client().post("/register").send().await.status, 429);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_preflight_for_a_method_no_route_takes_is_not_found() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let answer = gateway
        .client()
        .request("OPTIONS", "/register")
        .header("Origin", APP)
        .header("Access-Control-Request-Method", "DELETE")
        .send()
        .await;
    assert_eq!(answer.status, 404);
    // Still readable: the page's author should see why.
    assert_eq!(answer.header("access-control-allow-origin"), APP);
}

#[tokio::test]
async fn an_options_request_that_is_no_preflight_matches_by_its_own_method() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let answer = gateway
        .client()
        .request("OPTIONS", "/register")
        .send()
        .await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn a_page_may_read_an_answer_whose_upstream_said_nothing_about_it() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let ask = || {
        gateway
            .client()
            .post("/register")
            .header("Origin", APP)
            .send()
    };
    let answer = ask().await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), APP);
    assert_eq!(answer.header("vary"), "Origin");
}

#[tokio::test]
async fn what_upstream_says_about_who_may_read_its_answer_stands() {
    let upstream = Upstream::with(|_| async {
        let mut reply = full("ok");
        let theirs = HeaderValue::from_static("https://other.example");
        reply
            .headers_mut()
            .insert("access-control-allow-origin", theirs);
        reply
    });
    let gateway = gateway(CORS, &upstream);
    let asking = gateway.client().post("/register").header("Origin", APP);
    let answer = asking.send().await;
    assert_eq!(
        answer.header("access-control-allow-origin"),
        "https://other.example"
    );
    assert!(!answer.has("access-control-allow-credentials"));
}

#[tokio::test]
async fn what_upstream_varies_by_is_kept_and_the_origin_named_once() {
    for (theirs, told) in [
        ("accept-encoding", "accept-encoding, Origin"),
        ("Accept-Encoding, origin", "Accept-Encoding, origin"),
    ] {
        let upstream = Upstream::with(move |_| async move {
            let mut reply = full("ok");
            let theirs = HeaderValue::from_static(theirs);
            reply.headers_mut().insert("vary", theirs);
            reply
        });
        let gateway = gateway(CORS, &upstream);
        let asking = gateway.client().post("/register").header("Origin", APP);
        assert_eq!(asking.send().await.header("vary"), told);
    }
}
