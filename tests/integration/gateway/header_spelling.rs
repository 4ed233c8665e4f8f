//! Spellings of a header that selects the bucket of a limit, over HTTP/1 and HTTP/2. `pipeline::tests::spellings` has
//! the table of all spellings.

use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn no_spelling_of_a_counted_header_has_a_bucket_of_its_own() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("key = \"header:X-Api-Key\"\nrate = \"1/h\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    for request in [client.get("/").header("X-Api-Key", "real"), client.get("/")] {
        assert_eq!(request.send().await.status, 200);
    }
    // HTTP/1 has white space around values, which is removed. Over HTTP/2 it makes the request malformed, and
    // `Connection` is not allowed.
    let rows = [
        (&[("X-Api-Key", " \treal \t")][..], 429, Some(400)),
        (
            &[("X-Api-Key", "real"), ("Accept", "*/*\t")],
            429,
            Some(400),
        ),
        (
            &[("X-Api-Key", "new"), ("X-Api-Key", "real")],
            400,
            Some(400),
        ),
        (
            &[("X_Api_Key", "new"), ("X.Api.Key", "new")],
            429,
            Some(429),
        ),
        (
            &[("X-Api-Key", "new"), ("Connection", "close, x-api-key")],
            429,
            None,
        ),
    ];
    for (lines, http1, http2) in rows {
        let sent = [(client.clone(), Some(http1)), (client.clone().h2(), http2)];
        for (client, expected) in sent {
            let Some(expected) = expected else { continue };
            let request = lines
                .iter()
                .fold(client.get("/"), |request, (name, value)| {
                    request.header(name, value)
                });
            let response = request.send().await;
            assert_eq!(
                response.status, expected,
                "{lines:?} over {:?}",
                response.version
            );
        }
    }
    assert_eq!(upstream.count(), 2);
}
