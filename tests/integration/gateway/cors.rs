//! Tests of CORS: code in a browser can read a rejection, and preflights do not use up the rate limits of other
//! requests.

use http::HeaderValue;

use crate::support::{Gateway, Upstream, full};

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
async fn an_allowed_origin_can_read_a_rejection_and_its_headers() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let send = || {
        gateway
            .client()
            .post("/register")
            .header("Origin", APP)
            .send()
    };
    assert_eq!(send().await.status, 200);
    let rejected = send().await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.header("access-control-allow-origin"), APP);
    assert_eq!(rejected.header("access-control-allow-credentials"), "true");
    assert_eq!(rejected.header("vary"), "Origin");
    let exposed = rejected
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
        assert!(
            listed,
            "{name} is not in Access-Control-Expose-Headers: {exposed}"
        );
    }
}

#[tokio::test]
async fn another_origin_cannot_read_a_rejection() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    for origin in [
        "https://evil.example",
        "https://app.example.evil.example",
        "null",
    ] {
        let send = || {
            gateway
                .client()
                .post("/register")
                .header("Origin", origin)
                .send()
        };
        let mut response = send().await;
        while response.status != 429 {
            response = send().await;
        }
        assert!(
            !response.has("access-control-allow-origin"),
            "the origin {origin} can read the response"
        );
        assert_eq!(response.header("vary"), "Origin", "{origin}");
    }
}

#[tokio::test]
async fn without_the_section_a_rejection_has_no_cors_headers() {
    let upstream = Upstream::replying(200);
    let gateway = gateway("", &upstream);
    let send = || {
        gateway
            .client()
            .post("/register")
            .header("Origin", APP)
            .send()
    };
    assert_eq!(send().await.status, 200);
    let rejected = send().await;
    assert_eq!(rejected.status, 429);
    assert!(!rejected.has("access-control-allow-origin"));
}

#[tokio::test]
async fn the_gateway_responds_to_a_preflight_without_charging_it() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    for _ in 0..5 {
        let response = gateway
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
        assert_eq!(response.status, 204);
        assert_eq!(response.header("access-control-allow-origin"), APP);
        assert_eq!(response.header("access-control-allow-methods"), "POST");
        let allowed = response.header("access-control-allow-headers");
        assert_eq!(allowed, "authorization, x-device-info");
        assert_eq!(response.header("access-control-max-age"), "600");
    }
    assert_eq!(upstream.count(), 0);
    let real = gateway.client().post("/register").header("Origin", APP);
    assert_eq!(real.send().await.status, 200);
}

#[tokio::test]
async fn a_preflight_of_another_origin_gets_no_cors_headers() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let response = gateway
        .client()
        .request("OPTIONS", "/register")
        .header("Origin", "https://evil.example")
        .header("Access-Control-Request-Method", "POST")
        .send()
        .await;
    assert_eq!(response.status, 204);
    assert!(!response.has("access-control-allow-origin"));
    assert!(!response.has("access-control-allow-methods"));
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn without_the_section_a_preflight_is_forwarded_and_charged_to_a_separate_bucket() {
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
    // The first preflight has used up the separate bucket for preflights. The bucket of the POST requests is still
    // full.
    assert_eq!(preflight().await.status, 429);
    assert_eq!(gateway.client().post("/register").send().await.status, 200);
    assert_eq!(gateway.client().post("/register").send().await.status, 429);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_preflight_for_a_method_without_a_route_returns_405() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let response = gateway
        .client()
        .request("OPTIONS", "/register")
        .header("Origin", APP)
        .header("Access-Control-Request-Method", "DELETE")
        .send()
        .await;
    assert_eq!(response.status, 405);
    // The 405 has CORS headers, so that the author of the page can read the reason.
    assert_eq!(response.header("access-control-allow-origin"), APP);
}

#[tokio::test]
async fn an_options_request_that_is_not_a_preflight_matches_by_its_own_method() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let response = gateway
        .client()
        .request("OPTIONS", "/register")
        .send()
        .await;
    assert_eq!(response.status, 405);
    assert_eq!(response.problem(), "method-not-allowed");
}

#[tokio::test]
async fn a_response_without_cors_headers_from_upstream_gets_those_of_the_gateway() {
    let upstream = Upstream::replying(200);
    let gateway = gateway(CORS, &upstream);
    let send = || {
        gateway
            .client()
            .post("/register")
            .header("Origin", APP)
            .send()
    };
    let response = send().await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("access-control-allow-origin"), APP);
    assert_eq!(response.header("vary"), "Origin");
}

#[tokio::test]
async fn cors_headers_of_upstream_are_not_changed() {
    let upstream = Upstream::with(|_| async {
        let mut reply = full("ok");
        let upstream_value = HeaderValue::from_static("https://other.example");
        reply
            .headers_mut()
            .insert("access-control-allow-origin", upstream_value);
        reply
    });
    let gateway = gateway(CORS, &upstream);
    let request = gateway.client().post("/register").header("Origin", APP);
    let response = request.send().await;
    assert_eq!(
        response.header("access-control-allow-origin"),
        "https://other.example"
    );
    assert!(!response.has("access-control-allow-credentials"));
}

#[tokio::test]
async fn vary_of_upstream_is_extended_by_origin_once() {
    for (upstream_value, expected) in [
        ("accept-encoding", "accept-encoding, Origin"),
        ("Accept-Encoding, origin", "Accept-Encoding, origin"),
    ] {
        let upstream = Upstream::with(move |_| async move {
            let mut reply = full("ok");
            let upstream_value = HeaderValue::from_static(upstream_value);
            reply.headers_mut().insert("vary", upstream_value);
            reply
        });
        let gateway = gateway(CORS, &upstream);
        let request = gateway.client().post("/register").header("Origin", APP);
        assert_eq!(request.send().await.header("vary"), expected);
    }
}
