//! CORS over HTTP: code in a browser can read a rejection, and preflights use up no limit. `respond::cors` and
//! `pipeline::tests::responses` have the tables of headers.

use crate::support::{Gateway, Upstream};

const APP: &str = "https://app.example";

#[tokio::test]
async fn an_allowed_origin_can_read_rejections_and_its_preflights_are_not_charged() {
    let upstream = Upstream::replying(200);
    let cors = format!("[respond.cors]\norigins = [\"{APP}\"]\ncredentials = true");
    let gateway = Gateway::limited("rate = \"1/h\"")
        .with_section(&cors)
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    for _ in 0..5 {
        let preflight = client.request("OPTIONS", "/").header("Origin", APP);
        let preflight = preflight.header("Access-Control-Request-Method", "POST");
        let response = preflight.send().await;
        assert_eq!(response.status, 204);
        assert_eq!(response.header("access-control-allow-methods"), "POST");
    }
    assert_eq!(upstream.count(), 0);
    for status in [200, 429] {
        let response = client.post("/").header("Origin", APP).send().await;
        assert_eq!(response.status, status);
        assert_eq!(response.header("access-control-allow-origin"), APP);
        assert_eq!(response.header("access-control-allow-credentials"), "true");
        assert_eq!(response.header("vary"), "Origin");
        let exposed = response.header("access-control-expose-headers");
        assert!(exposed.contains("Retry-After") && exposed.contains("RateLimit-Policy"));
    }
}
