//! Sample payments API behind the gateway of `tidegate demo`.
//!
//! The API also has `/flaky/SCRIPT`, which responds with scripted failures to test the retries of a client.

mod flaky;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::guide::Guide;

/// Maximum number of stored payments. Above it, the oldest payment is removed.
const MAX_PAYMENTS: usize = 10_000;

/// Sample API that is bound to a free port of 127.0.0.1 and does not serve requests yet.
#[derive(Debug)]
pub(super) struct SampleApi {
    socket: TcpListener,
    address: SocketAddr,
}

#[derive(Default)]
struct PaymentLedger {
    payments: BTreeMap<u64, Payment>,
    last: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Payment {
    id: String,
    amount: u64,
    currency: String,
    status: &'static str,
}

#[derive(Debug, Deserialize)]
struct Order {
    amount: u64,
    currency: String,
}

type SharedLedger = Arc<Mutex<PaymentLedger>>;

impl SampleApi {
    /// Binds a free port of 127.0.0.1. Connections wait until [`serve`](Self::serve) is called.
    pub(super) fn bind() -> io::Result<Self> {
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Serves requests in a thread of its own until the process ends. The page at `/` shows the guide.
    pub(super) fn serve(self, guide: Guide) -> io::Result<()> {
        let Self { socket, address } = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("sample-api".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let served = match tokio::net::TcpListener::from_std(socket) {
                        Ok(listener) => axum::serve(listener, router(guide)).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = served {
                        tracing::error!(%error, %address, "sample API of the demo stopped after an error");
                    }
                });
            })?;
        Ok(())
    }

    /// Returns the address that the sample API listens on.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn router(guide: Guide) -> Router {
    let guide = Arc::new(guide);
    Router::new()
        .route(
            "/",
            get(move |headers| async move { page(&guide, &headers) }),
        )
        .route("/o/client/{action}", any(client))
        .route("/v1/payments", get(list).post(pay))
        .route("/v1/payments/{id}", get(show))
        .nest("/flaky", flaky::router())
        .fallback(|| async { not_found() })
        .with_state(SharedLedger::default())
}

/// Shows the guide: as a web page to browsers, and as text to other clients.
fn page(guide: &Guide, headers: &HeaderMap) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    let vary = [(header::VARY, "Accept")];
    if text(header::ACCEPT).is_some_and(|accept| accept.contains("text/html")) {
        (vary, Html(guide.as_page(host))).into_response()
    } else {
        (vary, guide.as_text(host)).into_response()
    }
}

/// Responds with JSON and a newline after it, so that the prompt of a terminal starts on its own line.
fn json_line(status: StatusCode, body: &impl Serialize) -> Response {
    let body = serde_json::to_string(body).expect("strings and numbers can be serialised");
    let json = [(header::CONTENT_TYPE, "application/json")];
    (status, json, body + "\n").into_response()
}

fn not_found() -> Response {
    json_line(StatusCode::NOT_FOUND, &json!({ "error": "not found" }))
}

async fn client(Path(action): Path<String>) -> Response {
    json_line(StatusCode::OK, &json!({ "client": action, "status": "ok" }))
}

async fn pay(State(ledger): State<SharedLedger>, body: axum::body::Bytes) -> Response {
    // The content type is ignored and the body is parsed as JSON, because `curl -d` sends the content type of a form.
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let error = json!({ "error": format!("the body is not a valid payment: {error}") });
            return json_line(StatusCode::BAD_REQUEST, &error);
        }
    };
    let mut ledger = ledger.lock();
    ledger.last += 1;
    let number = ledger.last;
    let payment = Payment {
        id: format!("pay_{number}"),
        amount: order.amount,
        currency: order.currency,
        status: "succeeded",
    };
    ledger.payments.insert(number, payment.clone());
    if ledger.payments.len() > MAX_PAYMENTS {
        ledger.payments.pop_first();
    }
    json_line(StatusCode::CREATED, &payment)
}

async fn list(State(ledger): State<SharedLedger>) -> Response {
    let ledger = ledger.lock();
    let latest: Vec<_> = ledger.payments.values().rev().take(20).collect();
    json_line(StatusCode::OK, &latest)
}

async fn show(State(ledger): State<SharedLedger>, Path(id): Path<String>) -> Response {
    let number = id
        .strip_prefix("pay_")
        .and_then(|number| number.parse().ok());
    let found = number.and_then(|number: u64| ledger.lock().payments.get(&number).cloned());
    match found {
        Some(payment) => json_line(StatusCode::OK, &payment),
        None => not_found(),
    }
}
