mod clients;
mod needs_redis;
mod serving;
mod shutdown;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use axum::extract::{ConnectInfo, State};
use axum::routing::{get, post};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::Notify;
use tower::ServiceExt as _;

use super::*;

const CLIENT: &str = "192.0.2.1:9";

/// Application that numbers its payments. No payment ends before `open` is notified.
#[derive(Clone, Default)]
struct Bank {
    payments: Arc<AtomicU32>,
    open: Arc<Notify>,
}

impl Bank {
    /// Creates a bank whose payments end immediately.
    fn open() -> Self {
        let bank = Self::default();
        bank.open.notify_one();
        bank
    }

    fn made(&self) -> u32 {
        self.payments.load(Ordering::Relaxed)
    }
}

async fn pay(State(bank): State<Bank>) -> String {
    let number = bank.payments.fetch_add(1, Ordering::Relaxed) + 1;
    bank.open.notified().await;
    bank.open.notify_one();
    format!("payment {number}")
}

fn app(layer: EmbeddedLayer, bank: &Bank) -> Router {
    Router::new()
        .route("/payments", post(pay))
        .with_state(bank.clone())
        .layer(layer)
}

/// Returns a limit of one request per second and client, with a burst of 3.
fn device() -> Limit {
    let quota: Quota = "1/s".parse().unwrap();
    Limit::per_client("device", quota).burst(3).unwrap()
}

/// Returns a limit of `count` requests per hour and client.
fn hourly(name: &str, count: u32) -> Limit {
    Limit::per_client(name, format!("{count}/h").parse().unwrap())
}

fn layer(embedded: &Embedded) -> EmbeddedLayer {
    let keys = Some(KeyRule::default());
    embedded.layer("payments", [device()], keys).unwrap()
}

/// Creates the state in virtual time. The clock is returned too.
fn in_virtual_time() -> (Embedded, Clock) {
    let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
    let store = OpenStore::in_memory(MAX_CLIENTS, StoreCapacity::default(), clock.clone());
    (Embedded::with_store(store, clock.clone()), clock)
}

/// Returns a request without an idempotency key.
fn plain(path: &str, peer: &str) -> Request<Body> {
    let mut request = Request::post(path).body(Body::from("100")).unwrap();
    let peer: SocketAddr = peer.parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

/// Returns a payment with the idempotency key `k`.
fn payment(peer: &str) -> Request<Body> {
    with_key(plain("/payments", peer), "k")
}

fn with_key(mut request: Request<Body>, key: &'static str) -> Request<Body> {
    let key = HeaderValue::from_static(key);
    request.headers_mut().insert("idempotency-key", key);
    request
}

/// Attaches a user, as an authentication layer does.
fn of_user(mut request: Request<Body>, user: &'static str) -> Request<Body> {
    request.extensions_mut().insert(User(user));
    request
}

#[derive(Clone)]
struct User(&'static str);

fn user_of(request: &Parts) -> Option<String> {
    let user = request.extensions.get::<User>()?;
    Some(user.0.to_owned())
}

async fn send(app: &Router, request: Request<Body>) -> Response {
    app.clone().oneshot(request).await.unwrap()
}

async fn status(app: &Router, request: Request<Body>) -> u16 {
    send(app, request).await.status().as_u16()
}

async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().into()).unwrap()
}

fn is_replay(response: &Response) -> bool {
    response.headers().contains_key("idempotent-replayed")
}

#[tokio::test]
async fn a_layer_replays_keys_and_rejects_requests_beyond_the_limit() {
    let ((embedded, clock), bank) = (in_virtual_time(), Bank::open());
    let app = app(layer(&embedded), &bank);
    for replayed in [false, true, true, true] {
        let response = send(&app, payment(CLIENT)).await;
        assert_eq!(is_replay(&response), replayed);
        assert!(response.headers().contains_key("ratelimit"));
        assert_eq!(text(response).await, "payment 1");
    }
    clock.advance(Duration::from_millis(300));
    let rejected = send(&app, payment(CLIENT)).await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["x-should-retry"], "true");
    assert_eq!(rejected.headers()["retry-after-ms"], "700");
    let other = send(&app, payment("192.0.2.2:9")).await;
    assert_eq!(text(other).await, "payment 2");
    clock.advance(Duration::from_millis(700));
    assert!(is_replay(&send(&app, payment(CLIENT)).await));
}

#[tokio::test]
async fn rejections_have_the_configured_hints_and_link() {
    let link = "<https://docs.example/>; rel=\"describedby\"";
    let settings = RespondSettings {
        hints: [Hint::Stripe].into_iter().collect(),
        docs: Some(HeaderValue::from_static(link)),
        ..RespondSettings::default()
    };
    let embedded = Embedded::new().respond(settings);
    let app = app(layer(&embedded), &Bank::default());
    for (key, status, hint) in [
        ("two words", 400, "false"),
        ("two words", 400, "false"),
        ("two words", 400, "false"),
        ("two words", 400, "false"),
        ("k", 429, "true"),
    ] {
        let response = send(&app, with_key(payment(CLIENT), key)).await;
        assert_eq!(response.status(), status);
        let headers = response.headers();
        assert_eq!(headers["stripe-should-retry"], hint);
        assert_eq!(headers["link"], link);
        assert!(!headers.contains_key("retry-after-ms"));
    }
}

/// `x-tenant` is the key of a limit, `authorization` is in the scope of idempotency keys, and `x-payment` contains the
/// idempotency key.
#[tokio::test]
async fn equal_spellings_of_a_header_share_one_bucket_and_one_scope() {
    let header = HeaderName::from_static;
    let limit = Limit {
        key: [KeyPart::Header(header("x-tenant"))].into(),
        ..hourly("tenant", 2)
    };
    let keys = KeyRule {
        header: header("x-payment"),
        ..KeyRule::default()
    };
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let layer = embedded.layer("payments", [limit], Some(keys));
    let app = app(layer.unwrap(), &bank);
    for (lines, expected) in [
        (&[("x-tenant", "real")][..], 200),
        (&[("x-tenant", "real"), ("authorization", "Bearer t")], 200),
        (&[("x-tenant", "real")], 429),
        (&[("x-tenant", " real")], 400),
        (&[("x-tenant", "real"), ("x-tenant", "n")], 400),
        (
            &[("x-tenant", "n"), ("connection", "x-tenant, x-payment")],
            200,
        ),
        (&[("x_tenant", "n"), ("authorization", "bearer  t")], 200),
        (&[("x-tenant", "")], 429),
        (&[("authorization", "a"), ("authorization", "b")], 400),
    ] {
        let mut request = plain("/payments", CLIENT);
        for (name, value) in [("x-payment", "k")].iter().chain(lines) {
            request
                .headers_mut()
                .append(header(name), HeaderValue::from_static(value));
        }
        assert_eq!(status(&app, request).await, expected, "{lines:?}");
    }
    assert_eq!(bank.made(), 2);
}

#[tokio::test]
async fn a_request_without_a_peer_address_gets_500_and_is_not_executed() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let limits_only = embedded.layer("limits", [device()], None).unwrap();
    let keys_only = embedded.layer("keys", [], Some(KeyRule::default()));
    for layer in [layer(&embedded), limits_only, keys_only.unwrap()] {
        let mut request = payment(CLIENT);
        request.extensions_mut().clear();
        let response = send(&app(layer, &bank), request).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["x-should-retry"], "false");
        let problem = text(response).await;
        for part in [
            "urn:tidegate:problem:client-address-unknown",
            "does not know the address of the client",
            "into_make_service_with_connect_info::<SocketAddr>()",
        ] {
            assert!(problem.contains(part), "{problem}");
        }
    }
    assert_eq!(bank.made(), 0);
    let counted = embedded.metrics().text();
    let line = "tidegate_requests_total{route=\"payments\",status=\"500\"} 1";
    assert!(counted.contains(line), "{counted}");
}

#[tokio::test]
async fn an_application_without_connections_sets_one_address_for_all_requests() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let peer: SocketAddr = CLIENT.parse().unwrap();
    let app = app(layer(&embedded), &bank).layer(MockConnectInfo(peer));
    let mut request = payment("192.0.2.7:1");
    request.extensions_mut().clear();
    assert_eq!(text(send(&app, request).await).await, "payment 1");
    assert!(is_replay(&send(&app, payment(CLIENT)).await));
}

#[tokio::test]
async fn rules_have_separate_limits_and_share_equal_limits() {
    let embedded = Embedded::new();
    let shared = hourly("shared", 3);
    let first = embedded.layer("first", [hourly("one", 1), shared.clone()], None);
    let second = embedded.layer("second", [hourly("two", 9), shared], None);
    let app = Router::new()
        .route("/first", post("1").layer(first.unwrap()))
        .route("/second", post("2").layer(second.unwrap()));
    for (path, expected, limit) in [
        ("/first", 200, None),
        ("/first", 429, Some("one")),
        ("/second", 200, None),
        ("/second", 200, None),
        ("/second", 429, Some("shared")),
    ] {
        let response = send(&app, plain(path, CLIENT)).await;
        assert_eq!(response.status(), expected, "{path}");
        let body = text(response).await;
        if let Some(name) = limit {
            let detail = format!("The rate limit '{name}' is exceeded");
            assert!(body.contains(&detail), "{body}");
        }
    }
    // Another client has its own buckets.
    let other = "192.0.2.2:9";
    for (path, expected) in [
        ("/first", 200),
        ("/second", 200),
        ("/second", 200),
        ("/second", 429),
    ] {
        assert_eq!(status(&app, plain(path, other)).await, expected, "{path}");
    }
    let metrics = embedded.metrics().text();
    for rule in ["first", "second"] {
        let line = format!("tidegate_rejected_total{{route=\"{rule}\",limit=\"shared\"}} ");
        assert_eq!(metrics.matches(&line).count(), 1, "{metrics}");
    }
}

#[test]
fn the_iterator_of_the_limits_can_use_the_state() {
    let embedded = Embedded::new();
    let limits = std::iter::once_with(|| {
        embedded.metrics().text();
        hourly("one", 1)
    });
    assert!(embedded.layer("a", limits, None).is_ok());
}

#[test]
fn conflicting_and_invalid_rules_are_errors() {
    let embedded = Embedded::new();
    let add = |name: &str, limits: &[Limit], keys: Option<KeyRule>| {
        let layer = embedded.layer(name, limits.to_vec(), keys);
        layer.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(add("a", &[hourly("one", 1)], None), Ok(()));
    let by_user = Limit::by("user", "1/s".parse().unwrap(), user_of);
    assert_eq!(add("b", &[hourly("one", 1), by_user.clone()], None), Ok(()));
    assert_eq!(add("c", &[by_user], None), Ok(()));
    let no_key = Limit {
        key: [].into(),
        ..hourly("none", 1)
    };
    let global = Limit {
        key: [KeyPart::Global].into(),
        ..hourly("one", 1)
    };
    let no_scope = KeyRule {
        scope: Scope::Parts([].into()),
        ..KeyRule::default()
    };
    let other_user = Limit::by("user", "1/s".parse().unwrap(), user_of);
    for (name, limits, keys, message) in [
        ("a", &[][..], None, "the rule `a` has a layer already; "),
        (
            "d",
            &[hourly("one", 2)],
            None,
            "the limit `one` has other settings in another rule; ",
        ),
        (
            "d",
            &[global],
            None,
            "the limit `one` has other settings in another rule; ",
        ),
        (
            "d",
            &[other_user],
            None,
            "the limit `user` has other settings in another rule; ",
        ),
        (
            "d",
            &[hourly("x", 1), hourly("x", 1)],
            None,
            "the rule contains the limit `x` twice; ",
        ),
        (
            "d",
            &[hourly("a\"b", 1)],
            None,
            "`a\"b` is not a valid name of a rule or limit; ",
        ),
        ("", &[], None, "`` is not a valid name of a rule or limit; "),
        ("d", &[no_key], None, "the limit `none` has an empty key; "),
        (
            "d",
            &[],
            Some(no_scope),
            "the rule `d` has an empty scope; ",
        ),
    ] {
        let error = add(name, limits, keys).expect_err(message);
        assert!(error.starts_with(message), "{error}");
    }
    // A rejected rule adds nothing, so its name and its limits are free.
    assert_eq!(add("d", &[hourly("x", 5)], None), Ok(()));
}

#[tokio::test]
async fn a_key_function_separates_users_behind_one_address() {
    let embedded = Embedded::new();
    let limit = Limit::by("user", "1/h".parse().unwrap(), user_of);
    let layer = embedded.layer("payments", [limit], None).unwrap();
    let app = app(layer, &Bank::open());
    let request = || plain("/payments", CLIENT);
    for (user, expected) in [("ada", 200), ("bob", 200), ("ada", 429), ("bob", 429)] {
        let status = status(&app, of_user(request(), user)).await;
        assert_eq!(status, expected, "{user}");
    }
    // Without a name, the request is counted by its address. A user cannot be named like an address.
    for (request, expected) in [
        (request(), 200),
        (of_user(request(), ""), 429),
        (plain("/payments", "192.0.2.2:9"), 200),
        (of_user(request(), "192.0.2.2"), 200),
        (of_user(plain("/payments", "192.0.2.3:9"), "ada"), 429),
    ] {
        assert_eq!(status(&app, request).await, expected);
    }
}

#[tokio::test]
async fn a_scope_function_separates_the_keys_of_users() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let keys = KeyRule {
        scope: Scope::by(user_of),
        ..KeyRule::default()
    };
    let layer = embedded.layer("payments", [], Some(keys)).unwrap();
    let app = app(layer, &bank);
    let with_token = |mut request: Request<Body>, token| {
        let token = HeaderValue::from_static(token);
        request.headers_mut().insert("authorization", token);
        request
    };
    for (request, expected) in [
        (of_user(payment(CLIENT), "ada"), "payment 1"),
        (of_user(payment(CLIENT), "bob"), "payment 2"),
        // A user keeps the scope with another address and another credential.
        (of_user(payment("192.0.2.2:9"), "ada"), "payment 1"),
        (
            with_token(of_user(payment(CLIENT), "ada"), "Bearer t"),
            "payment 1",
        ),
        // Without a name, callers are separated by credential or address.
        (payment(CLIENT), "payment 3"),
        (with_token(payment(CLIENT), "Bearer t"), "payment 4"),
        (with_token(payment(CLIENT), "Bearer u"), "payment 5"),
        (payment("192.0.2.2:9"), "payment 6"),
        (payment(CLIENT), "payment 3"),
    ] {
        assert_eq!(text(send(&app, request).await).await, expected);
    }
}

#[tokio::test]
async fn equal_names_of_different_rules_are_different_scopes() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let apps = ["users", "tenants"].map(|name| {
        let keys = KeyRule {
            scope: Scope::by(user_of),
            ..KeyRule::default()
        };
        app(embedded.layer(name, [], Some(keys)).unwrap(), &bank)
    });
    for (app, expected) in apps.iter().zip(["payment 1", "payment 2"]) {
        let response = send(app, of_user(payment(CLIENT), "42")).await;
        assert_eq!(text(response).await, expected);
    }
}

/// The outer layer has a limit. An authentication layer follows, and the inner layer has keys and a limit per user.
#[tokio::test]
async fn layers_of_one_application_can_be_nested() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let keys = KeyRule {
        scope: Scope::by(user_of),
        ..KeyRule::default()
    };
    let user = Limit::by("user", "2/h".parse().unwrap(), user_of);
    let inner = embedded.layer("inner", [user], Some(keys)).unwrap();
    let outer = embedded
        .layer("outer", [hourly("address", 3)], None)
        .unwrap();
    let app = app(inner, &bank)
        .layer(axum::Extension(User("ada")))
        .layer(outer);
    let first = send(&app, payment(CLIENT)).await;
    let members = |response: &Response| {
        let lines = response.headers().get_all("ratelimit").iter();
        let lines: Vec<_> = lines.map(|line| line.to_str().unwrap()).collect();
        lines.join(", ")
    };
    let limits = members(&first);
    assert!(limits.contains("\"user\";r=1"), "{limits}");
    assert!(limits.contains("\"address\";r=2"), "{limits}");
    assert_eq!(text(first).await, "payment 1");
    assert!(is_replay(&send(&app, payment(CLIENT)).await));
    let rejected = text(send(&app, payment(CLIENT)).await).await;
    assert!(
        rejected.contains("The rate limit 'user' is exceeded"),
        "{rejected}"
    );
    let rejected = text(send(&app, payment(CLIENT)).await).await;
    assert!(
        rejected.contains("The rate limit 'address' is exceeded"),
        "{rejected}"
    );
    assert_eq!(bank.made(), 1);
}

/// Without the rule that only the outer layer claims the key, the inner layer would wait for the claim of the outer
/// layer.
#[tokio::test(start_paused = true)]
async fn nested_layers_with_keys_execute_a_request_once() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let keys = || Some(KeyRule::default());
    let inner = embedded.layer("inner", [hourly("inner", 1)], keys());
    let outer = embedded.layer("outer", [], keys()).unwrap();
    let app = app(inner.unwrap(), &bank).layer(outer);
    for replayed in [false, true] {
        let response = send(&app, payment(CLIENT)).await;
        assert_eq!(is_replay(&response), replayed);
        assert_eq!(text(response).await, "payment 1");
    }
    // The limit of the inner layer applies to a request that the outer layer executes.
    let second = with_key(payment(CLIENT), "second");
    assert_eq!(status(&app, second).await, 429);
    assert_eq!(bank.made(), 1);
}

#[tokio::test]
async fn routers_nested_under_different_paths_have_different_fingerprints() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let keys = Some(KeyRule::default());
    let api = app(embedded.layer("payments", [], keys).unwrap(), &bank);
    let app = Router::new().nest("/eu", api.clone()).nest("/us", api);
    let to = |path: &'static str| {
        let mut request = payment(CLIENT);
        *request.uri_mut() = path.parse().unwrap();
        request
    };
    assert_eq!(
        text(send(&app, to("/eu/payments")).await).await,
        "payment 1"
    );
    assert_eq!(
        text(send(&app, to("/eu/payments")).await).await,
        "payment 1"
    );
    assert_eq!(status(&app, to("/us/payments")).await, 422);
    assert_eq!(bank.made(), 1);
}

#[tokio::test]
async fn a_keyed_request_body_that_exceeds_the_buffer_bounds_gets_503() {
    for (total, expected) in [(2, 503), (1_000, 200)] {
        let embedded = Embedded::new().buffer(BufferBounds {
            total,
            per_client: total,
        });
        let bank = Bank::open();
        let app = app(layer(&embedded), &bank);
        assert_eq!(status(&app, payment(CLIENT)).await, expected);
        assert_eq!(bank.made(), u32::from(expected == 200));
    }
}

#[tokio::test]
async fn an_error_of_the_application_is_returned_and_leaves_the_key_unknown() {
    let embedded = Embedded::new();
    let failing = tower::service_fn(|_: Request<Body>| async {
        Err::<Response, _>(std::io::Error::other("broken"))
    });
    let service = tower::ServiceBuilder::new()
        .layer(layer(&embedded))
        .service(failing);
    let first = service.clone().oneshot(payment(CLIENT)).await;
    assert_eq!(first.unwrap_err().to_string(), "broken");
    let second = service.oneshot(payment(CLIENT)).await.unwrap();
    assert_eq!(second.status(), StatusCode::CONFLICT);
}

#[tokio::test]
async fn metrics_count_rejected_and_replayed_requests_without_clients_and_keys() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let app = app(layer(&embedded), &bank).route("/metrics", get(embedded.metrics()));
    let request = || with_key(payment(CLIENT), "order-4711");
    for expected in [200, 200, 200, 200, 429, 429] {
        assert_eq!(status(&app, request()).await, expected);
    }
    let scrape = Request::get("/metrics").body(Body::empty()).unwrap();
    let response = send(&app, scrape).await;
    assert_eq!(response.headers()["content-type"], OPENMETRICS);
    let metrics = text(response).await;
    for line in [
        "tidegate_requests_total{route=\"payments\",status=\"200\"} 4",
        "tidegate_requests_total{route=\"payments\",status=\"429\"} 2",
        "tidegate_rejected_total{route=\"payments\",limit=\"device\"} 2",
        "tidegate_idempotency_requests_total{route=\"payments\",outcome=\"executed\"} 1",
        "tidegate_idempotency_requests_total{route=\"payments\",outcome=\"replayed\"} 3",
        "tidegate_idempotency_records{state=\"completed\"} 1",
        "tidegate_buckets 1",
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} in\n{metrics}"
        );
    }
    for absent in ["192.0.2.1", "4711", "(none)"] {
        assert!(!metrics.contains(absent), "{absent} in\n{metrics}");
    }
}

#[tokio::test]
async fn a_disk_store_survives_reopening() {
    let dir = tempfile::TempDir::new().unwrap();
    let bank = Bank::open();
    for expected in [[Some(false), Some(true)], [Some(true), None]] {
        let embedded = Embedded::on_disk(dir.path()).unwrap();
        let keys = Some(KeyRule::default());
        let layer = embedded.layer("payments", [hourly("hourly", 3)], keys);
        let app = app(layer.unwrap(), &bank);
        for replayed in expected {
            let response = send(&app, payment(CLIENT)).await;
            match replayed {
                Some(replayed) => {
                    assert_eq!(is_replay(&response), replayed);
                    assert_eq!(text(response).await, "payment 1");
                }
                None => assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS),
            }
        }
        // The application still holds its layer when the store is closed.
        embedded.finish().await;
        let late = with_key(payment("192.0.2.2:9"), "late");
        assert_eq!(status(&app, late).await, 503);
    }
    assert_eq!(bank.made(), 1);
}

#[test]
fn a_store_that_cannot_be_opened_is_an_error() {
    let dir = tempfile::TempDir::new().unwrap();
    let _open = Embedded::on_disk(dir.path()).unwrap();
    let error = Embedded::on_disk(dir.path()).unwrap_err().to_string();
    assert!(error.contains(&*dir.path().to_string_lossy()), "{error}");
    let error = Embedded::in_redis("redis://u:secret@h:x").unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("invalid host, port or path; write \"redis://"),
        "{error}"
    );
    assert!(!error.contains("secret"), "{error}");
}

/// Returns the policy of a minimal configuration with these lines in `[store]`.
fn configured(store: &str) -> crate::config::Policy {
    use crate::config::{Environment, Overrides, parse};
    let text = format!(
        "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n\
         [store]\n{store}\n"
    );
    let (environment, overrides) = (Environment::default(), Overrides::default());
    let loaded = parse("test.toml", &text, &environment, &overrides);
    loaded.unwrap().policy
}

#[test]
fn the_bounds_of_a_store_are_the_defaults_of_the_configuration() {
    let memory = configured("");
    assert_eq!(memory.max_clients, MAX_CLIENTS);
    assert_eq!(memory.store.capacity, StoreCapacity::default());
    let disk = configured("backend = \"disk\"\npath = \"data\"");
    let capacity = StoreCapacity {
        max_bytes: MAX_DISK_BYTES,
        ..StoreCapacity::default()
    };
    assert_eq!(disk.store.capacity, capacity);
}

/// The settings of a store in Redis are the defaults of the configuration, except for the lease. The configuration
/// computes the lease from the timeouts of the upstreams, which an application does not have.
#[test]
fn the_settings_of_a_redis_store_are_the_defaults_of_the_configuration() {
    use crate::config::Backend;
    use crate::store::redis::settings::RedisSettings;
    let policy = configured("backend = \"redis\"\nurl = \"redis://127.0.0.1:6379\"");
    let settings = RedisSettings::try_from("redis://127.0.0.1:6379").unwrap();
    let expected = Backend::Redis(RedisSettings {
        lease: Duration::from_secs(30),
        ..settings
    });
    assert_eq!(policy.store.backend, expected);
}

#[test]
fn clones_of_a_key_function_are_equal() {
    let function = KeyFunction::new(user_of);
    assert_eq!(function, function.clone());
    assert_ne!(function, KeyFunction::new(user_of));
}
