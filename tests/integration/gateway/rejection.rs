//! A rejection over HTTP. `pipeline::tests` has the tables of its headers and bodies.

use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn a_rejection_of_a_get_and_of_a_head_request_has_the_same_headers() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream(&upstream)
        .start();
    for client in [gateway.client(), gateway.client().h2()] {
        if upstream.count() == 0 {
            assert_eq!(client.get("/").send().await.status, 200);
        }
        let got = client.get("/").header("Accept", "text/html").send().await;
        assert!(got.text().starts_with("<!doctype html>"), "{got:?}");
        let head = client.request("HEAD", "/").header("Accept", "text/html");
        let head = head.send().await;
        assert_eq!((head.status, head.body.len()), (429, 0));
        for name in ["content-type", "ratelimit-policy", "cache-control"] {
            assert_eq!(head.header(name), got.header(name), "{name}");
        }
        assert!((3_590..=3_600).contains(&head.retry_after()), "{head:?}");
    }
    assert_eq!(upstream.count(), 1);
}
