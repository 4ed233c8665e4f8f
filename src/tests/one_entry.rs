//! The gateway, `explain` and `embed` agree on the client, the route and the outcome of every request head.
//!
//! Each client has one bucket in each limit, and each route has one limit. The `RateLimit` header of a response thus
//! shows the route, and how many requests of the same client preceded it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::Full;
use tower::{Layer as _, ServiceExt as _};

use crate::embed::Embedded;
use crate::pipeline::explain::explain;
use crate::pipeline::tests::Chain;
use crate::request::body::RequestBody;

const CONFIG: &str = r#"
    client.trusted_proxies = ["10.0.0.0/8"]
    server.max_body = "1MiB"
    [limit.pay]
    rate = "1/h"
    burst = 999
    [limit.strict]
    rate = "1/h"
    burst = 999
    [limit.other]
    rate = "1/h"
    burst = 999
    [[route]]
    name = "pay"
    path = "/pay"
    methods = ["GET", "POST"]
    limits = ["pay"]
    idempotency = { scope = ["header:x-api-key"], mode = "required" }
    [[route]]
    name = "strict"
    path = "/strict"
    paths = "strict"
    limits = ["strict"]
    idempotency = { scope = ["header:x-api-key"] }
    [[route]]
    name = "other"
    path = "/other"
    limits = ["other"]
    idempotency = { scope = ["header:x-api-key"] }
"#;

const CORS: &str = "respond.cors.origins = [\"https://app.example\"]\n";

const TARGETS: &[&str] = &[
    "/pay",
    "/%70ay?x={1}",
    "/pay//x",
    "/pay/..//other",
    "/other;/../pay",
    "/other",
    "/strict/x",
    "/strict/x//y",
    "/none",
    "/t/t1/pay",
    "http://api.example/pay",
    "http://b.example/pay",
];

/// Header lines of a request. `KEY` is replaced by a number.
const HEADERS: &[&[(&str, &str)]] = &[
    &[],
    &[("x-forwarded-for", "198.51.100.7, 10.1.2.3")],
    &[
        ("x-forwarded-for", "198.51.100.8"),
        ("connection", "x-forwarded-for"),
    ],
    &[("x-forwarded-for", "not an address")],
    &[("x-api-key", "a"), ("x-api-key", "b")],
    &[("x_api_key", "a")],
    &[("x-original-url", "/other")],
    &[("idempotency-key", "\"KEY\""), ("x-api-key", "a")],
    &[("idempotency-key", "\"")],
    &[("content-length", "2000000")],
    &[("expect", "later")],
    &[("host", "second.example")],
    &[
        ("origin", "https://app.example"),
        ("access-control-request-method", "POST"),
    ],
];

const METHODS: &[Method] = &[
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::OPTIONS,
    Method::TRACE,
];

/// Outcome of a request, as `explain` prints it or as a response shows it.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Admitted by the limit with this name, which counted this many earlier requests of the client.
    Admitted {
        limit: String,
        earlier: u64,
    },
    Rejected {
        status: u16,
        detail: String,
    },
    /// The gateway responds to a preflight itself.
    Preflight,
}

/// What `explain` prints about a request.
struct Explained {
    client: Option<String>,
    route: Option<String>,
    outcome: String,
}

/// Number of requests of each client that each limit has admitted, separately for preflights.
type Counts = HashMap<(String, String, bool), u64>;

fn heads() -> impl Iterator<Item = (IpAddr, Request<()>)> {
    let peers = ["192.0.2.1", "10.0.0.9"];
    let products = TARGETS.iter().flat_map(|target| {
        let methods = METHODS.iter();
        methods.flat_map(move |method| HEADERS.iter().map(move |headers| (target, method, headers)))
    });
    products
        .enumerate()
        .map(move |(number, (target, method, headers))| {
            let mut request = Request::builder()
                .uri(Uri::from_static(target))
                .method(method);
            request = request.header(HOST, "api.example");
            for (name, value) in *headers {
                request = request.header(*name, value.replace("KEY", &number.to_string()));
            }
            let peer = peers[number % peers.len()].parse().unwrap();
            (peer, request.body(()).unwrap())
        })
}

impl Explained {
    fn of(text: &str) -> Self {
        let line = |name: &str| {
            let mut lines = text.lines().map(|line| line.split_at(10));
            let found = lines.find(|(label, _)| label.trim() == name);
            found.map(|(_, value)| value.trim().to_owned())
        };
        Self {
            client: line("client").map(|text| text.split(' ').next().unwrap().to_owned()),
            route: line("route").filter(|route| route != "none"),
            outcome: line("outcome").unwrap(),
        }
    }

    /// Returns the outcome that the text describes, and counts a request that the limit admits.
    fn outcome(&self, is_preflight: bool, counts: &mut Counts) -> Outcome {
        if self.outcome.contains("responds to the CORS preflight") {
            return Outcome::Preflight;
        }
        let text = self.outcome.split(" (429 if").next().unwrap();
        let rejected = text
            .split_once(", ")
            .and_then(|(status, detail)| Some((status.parse().ok()?, detail.to_owned())));
        // A request whose idempotency key is rejected has passed the limit.
        if rejected.is_none() || text.len() < self.outcome.len() {
            let (client, limit) = (self.client.clone().unwrap(), self.route.clone().unwrap());
            let key = (client, limit.clone(), is_preflight);
            let count = counts.entry(key).or_default();
            *count += 1;
            if rejected.is_none() {
                let earlier = *count - 1;
                return Outcome::Admitted { limit, earlier };
            }
        }
        let (status, detail) = rejected.expect("a text without a status describes an admission");
        Outcome::Rejected { status, detail }
    }
}

/// Returns the outcome that a response shows.
fn outcome(status: u16, headers: &HeaderMap, body: &[u8]) -> Outcome {
    let limit = headers
        .get("ratelimit")
        .map(|field| field.to_str().unwrap());
    match (status, limit) {
        (204, None) => Outcome::Preflight,
        (400.., _) => {
            let problem: serde_json::Value = serde_json::from_slice(body).unwrap();
            let detail = problem["detail"].as_str().unwrap().to_owned();
            Outcome::Rejected { status, detail }
        }
        (_, Some(field)) => {
            let (name, rest) = field.split_once(";r=").unwrap();
            let left: u64 = rest.split(';').next().unwrap().parse().unwrap();
            Outcome::Admitted {
                limit: name.trim_matches('"').to_owned(),
                earlier: 999 - left,
            }
        }
        (_, None) => panic!("status {status} without a RateLimit header"),
    }
}

fn is_preflight(request: &Request<()>) -> bool {
    let asks = request
        .headers()
        .contains_key("access-control-request-method");
    asks && request.method() == Method::OPTIONS
}

#[tokio::test(start_paused = true)]
async fn explain_names_the_client_route_and_outcome_of_the_gateway() {
    for config in [CONFIG, &format!("{CORS}{CONFIG}")] {
        let chain = Chain::new(config);
        let mut counts = Counts::new();
        let mut seen = [0; 3];
        for (peer, head) in heads() {
            let text = explain(&chain.shared.policy, head.clone(), peer).to_string();
            let expected = Explained::of(&text).outcome(is_preflight(&head), &mut counts);
            seen[match expected {
                Outcome::Admitted { .. } => 0,
                Outcome::Rejected { .. } => 1,
                Outcome::Preflight => 2,
            }] += 1;
            let shown = format!("{head:?} from {peer}\n{text}");
            let request = head.map(|()| RequestBody::empty());
            let response = chain.respond(&peer.to_string(), request).await;
            let status = response.status.as_u16();
            let actual = outcome(status, &response.headers, &response.body);
            assert_eq!(actual, expected, "{shown}");
        }
        let [admitted, rejected, preflights] = seen;
        assert!(admitted > 100 && rejected > 100, "{seen:?}");
        assert_eq!(preflights > 0, config != CONFIG);
    }
}

#[tokio::test(start_paused = true)]
async fn embed_counts_the_client_that_explain_names() {
    let chain = Chain::new(CONFIG);
    let policy = &chain.shared.policy;
    let route = policy.routes.iter().find(|route| &*route.name == "other");
    let route = route.unwrap();
    let limits = route.limits.iter().map(|limit| (**limit).clone());
    let keys = route.idempotency.as_deref().cloned();
    let embedded = Embedded::new().trust(policy.trust.clone());
    let layer = embedded.layer("other", limits, keys).unwrap();
    let service = layer.layer(tower::service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
    }));
    let (mut counts, mut compared) = (Counts::new(), 0);
    for (peer, head) in heads() {
        // The route decides nothing about these heads: it matches every method and has no rule of its own.
        if head.uri().path() != "/other" {
            continue;
        }
        let text = explain(policy, head.clone(), peer).to_string();
        let explained = Explained::of(&text);
        if explained.client.is_none() {
            continue;
        }
        compared += 1;
        let expected = explained.outcome(is_preflight(&head), &mut counts);
        let shown = format!("{head:?} from {peer}\n{text}");
        let mut request = head.map(|()| Full::new(Bytes::new()));
        let peer = ConnectInfo(SocketAddr::new(peer, 9));
        request.extensions_mut().insert(peer);
        let (parts, body) = service.clone().oneshot(request).await.unwrap().into_parts();
        let body = http_body_util::BodyExt::collect(body)
            .await
            .unwrap()
            .to_bytes();
        let actual = outcome(parts.status.as_u16(), &parts.headers, &body);
        assert_eq!(actual, expected, "{shown}");
    }
    assert!(compared > 20, "{compared}");
}
