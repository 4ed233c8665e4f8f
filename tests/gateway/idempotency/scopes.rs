//! Whose key it is: nobody ever gets another's answer.

use super::{is_execution, is_problem, is_replay_of, numbering};
use crate::harness::Gateway;

#[tokio::test]
async fn a_key_is_its_credentials_wherever_that_comes_from() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let ask = |from: &str, credential: &str| {
        let asking = gateway.client().from(from).post("/").key("k1");
        asking.header("Authorization", credential).send()
    };
    is_execution(&ask("127.0.0.1", "Bearer ann").await, 1);
    is_execution(&ask("127.0.0.1", "Bearer bob").await, 2);
    is_execution(&ask("127.0.0.1", "Bearer Ann").await, 3);
    // The scheme is not case-sensitive (RFC 9110, section 11.1).
    is_replay_of(&ask("127.0.0.1", "bearer ann").await, 1);
    is_replay_of(&ask("127.0.0.2", "Bearer ann").await, 1);
    is_replay_of(&ask("127.0.0.2", "Bearer bob").await, 2);
    // A value of one word has no scheme.
    is_execution(&ask("127.0.0.1", "Secret").await, 4);
    is_execution(&ask("127.0.0.1", "secret").await, 5);
}

#[tokio::test]
async fn without_a_credential_a_key_is_its_clients() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let ask = |from: &str| gateway.client().from(from).post("/").key("k1").send();
    is_execution(&ask("127.0.0.1").await, 1);
    is_execution(&ask("127.0.0.2").await, 2);
    is_replay_of(&ask("127.0.0.1").await, 1);
    is_replay_of(&ask("127.0.0.2").await, 2);
}

#[tokio::test]
async fn the_client_is_the_one_a_trusted_proxy_speaks_for() {
    let upstream = numbering();
    let gateway = Gateway::keyed("")
        .and("[client]\ntrusted_proxies = [\"127.0.0.9/32\"]")
        .upstream(&upstream)
        .start();
    let ask = |from: &str, client: &str| {
        let asking = gateway.client().from(from).post("/").key("k1");
        asking.header("X-Forwarded-For", client).send()
    };
    is_execution(&ask("127.0.0.9", "192.0.2.1").await, 1);
    is_execution(&ask("127.0.0.9", "192.0.2.2").await, 2);
    is_replay_of(&ask("127.0.0.9", "203.0.113.7, 192.0.2.1").await, 1);
    // Whoever is not trusted speaks for itself only, whatever it says.
    is_execution(&ask("127.0.0.8", "192.0.2.1").await, 3);
    is_replay_of(&ask("127.0.0.8", "192.0.2.2").await, 3);
}

#[tokio::test]
async fn a_scope_can_be_what_a_header_says() {
    let upstream = numbering();
    let gateway = Gateway::keyed("scope = [\"header:x-api-key\"]")
        .upstream(&upstream)
        .start();
    let ask = |from: &str, api_key: &str, credential: &str| {
        let asking = gateway.client().from(from).post("/").key("k1");
        let asking = asking.header("Authorization", credential);
        asking.header("X-Api-Key", api_key).send()
    };
    is_execution(&ask("127.0.0.1", "a", "Bearer old").await, 1);
    is_replay_of(&ask("127.0.0.2", "a", "Bearer refreshed").await, 1);
    is_execution(&ask("127.0.0.1", "b", "Bearer old").await, 2);
    // Who leaves it out stands for itself, and not for all who do.
    let without = |from: &str| gateway.client().from(from).post("/").key("k1").send();
    is_execution(&without("127.0.0.1").await, 3);
    is_execution(&without("127.0.0.2").await, 4);
    is_replay_of(&without("127.0.0.1").await, 3);
}

#[tokio::test]
async fn a_scope_can_be_a_cookie() {
    let upstream = numbering();
    let gateway = Gateway::keyed("scope = [\"cookie:session\"]")
        .upstream(&upstream)
        .start();
    for (client, first) in [(gateway.client(), 1), (gateway.client().h2(), 4)] {
        let send = |from: &str, cookies: &[&str], key: &str| {
            let request = client.clone().from(from).post("/").key(key);
            let request = cookies
                .iter()
                .fold(request, |request, cookie| request.header("Cookie", cookie));
            request.header("Authorization", "Bearer a").send()
        };
        let key = &*format!("k{first}");
        is_execution(&send("127.0.0.1", &["session=ann"], key).await, first);
        is_execution(&send("127.0.0.1", &["session=bob"], key).await, first + 1);
        // The scope is the cookie alone: not the address, other cookies or their order.
        let moved = send("127.0.0.2", &["csrf=1; session=ann"], key);
        is_replay_of(&moved.await, first);
        let split = send("127.0.0.3", &["a=1", "session=bob", "b=2"], key);
        is_replay_of(&split.await, first + 1);
        is_execution(&send("127.0.0.1", &["Session=ann"], key).await, first + 2);
    }
    assert_eq!(upstream.count(), 6);
}

#[tokio::test]
async fn without_the_header_or_cookie_of_the_scope_credentials_count() {
    for scope in ["cookie:session", "header:x-user"] {
        let upstream = numbering();
        let gateway = Gateway::keyed(&format!("scope = [\"{scope}\"]"))
            .upstream(&upstream)
            .start();
        let send = |name: &str, value: &str| {
            let request = gateway.client().post("/").key("k1");
            request.header(name, value).send()
        };
        is_execution(&send("Authorization", "Bearer ann").await, 1);
        is_replay_of(&send("Authorization", "Bearer ann").await, 1);
        for (name, value) in [
            ("Authorization", "Bearer bob"),
            ("X-Api-Key", "bob"),
            ("Cookie", "sid=bob"),
        ] {
            let rejected = send(name, value).await;
            is_problem(&rejected, 422, "idempotency-key-reused");
            assert!(rejected.text().contains("credentials"), "{rejected:?}");
        }
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn a_scope_of_several_parts_is_each_combination() {
    let upstream = numbering();
    let gateway = Gateway::keyed("scope = [\"header:x-a\", \"header:x-b\"]")
        .upstream(&upstream)
        .start();
    let ask = |a: &str, b: &str| {
        let asking = gateway.client().post("/").key("k1");
        asking.header("X-A", a).header("X-B", b).send()
    };
    let combinations = [("1", "2"), ("12", ""), ("", "12"), ("2", "1"), ("1,2", "")];
    for (number, (a, b)) in (1..).zip(combinations) {
        is_execution(&ask(a, b).await, number);
    }
    for (number, (a, b)) in (1..).zip(combinations) {
        is_replay_of(&ask(a, b).await, number);
    }
}

#[tokio::test]
async fn a_shared_scope_is_one_key_space_of_all_callers() {
    let upstream = numbering();
    let gateway = Gateway::keyed("scope = [\"shared\"]")
        .upstream(&upstream)
        .start();
    let ask = |from: &str, credential: &str| {
        let asking = gateway.client().from(from).post("/").key("k1");
        asking.header("Authorization", credential).send()
    };
    is_execution(&ask("127.0.0.1", "Bearer ann").await, 1);
    is_replay_of(&ask("127.0.0.2", "Bearer bob").await, 1);
    let refused = gateway.client().post("/").key("k1").body("other").send();
    is_problem(&refused.await, 422, "idempotency-key-reused");
}

#[tokio::test]
async fn a_header_named_in_connection_keeps_its_effect_and_reaches_upstream() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let ask = |credential: &str, connection: &str| {
        let asking = gateway.client().post("/").key("k1");
        let asking = asking.header("Authorization", credential);
        asking.header("Connection", connection).send()
    };
    let named = "idempotency-key, authorization";
    is_execution(&ask("Bearer ann", named).await, 1);
    let sent = upstream.last();
    assert_eq!(sent.header("idempotency-key"), "k1");
    assert_eq!(sent.header("authorization"), "Bearer ann");
    is_replay_of(&ask("Bearer ann", named).await, 1);
    is_replay_of(&ask("Bearer ann", "keep-alive").await, 1);
    is_execution(&ask("Bearer bob", "Authorization, close").await, 2);
}

#[tokio::test]
async fn a_header_that_only_looks_like_the_key_is_never_taken_for_it() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for number in 1..=3 {
        let asking = gateway.client().post("/").header("Idempotency_Key", "k1");
        is_execution(&asking.send().await, number);
        assert!(!upstream.last().has("idempotency_key"));
    }
    // Nor does it make the real one a second one.
    for expected in [is_execution, is_replay_of] {
        let asking = gateway.client().post("/").header("Idempotency_Key", "k2");
        expected(&asking.key("k1").send().await, 4);
    }
    assert_eq!(upstream.last().header("idempotency-key"), "k1");
}

#[tokio::test]
async fn where_a_key_is_required_a_lookalike_is_none() {
    let upstream = numbering();
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
         idempotency = { mode = \"required\", scope = \"client\" }",
    )
    .upstream(&upstream)
    .start();
    let asking = gateway.client().post("/").header("Idempotency_Key", "k1");
    is_problem(&asking.send().await, 400, "idempotency-key-missing");
    assert_eq!(upstream.count(), 0);
}
