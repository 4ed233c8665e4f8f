//! Sample payments API behind the gateway of `tidegate demo`.
//!
//! The API also has `/flaky/SCRIPT`, which responds with scripted failures to test the retries of a client.

mod flaky;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Maximum number of stored payments. Above it, the oldest payment is removed.
const MAX_PAYMENTS: usize = 10_000;

/// Sample API that runs in its own thread until the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleApi {
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
    /// Starts the sample API in its own thread, on a free port of 127.0.0.1.
    pub(super) fn start() -> io::Result<Self> {
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("sample-api".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let served = match tokio::net::TcpListener::from_std(socket) {
                        Ok(listener) => axum::serve(listener, router()).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = served {
                        tracing::error!(%error, %address, "sample API of the demo stopped after an error");
                    }
                });
            })?;
        Ok(Self { address })
    }

    /// Returns the address that the sample API listens on.
    pub(super) fn address(self) -> SocketAddr {
        self.address
    }
}

fn router() -> Router {
    Router::new()
        .route("/o/client/{action}", any(client))
        .route("/v1/payments", get(list).post(pay))
        .route("/v1/payments/{id}", get(show))
        .nest("/flaky", flaky::router())
        .fallback(|| async { (StatusCode::NOT_FOUND, Json(json!({"error": "not found"}))) })
        .with_state(SharedLedger::default())
}

async fn client(Path(action): Path<String>) -> Json<serde_json::Value> {
    Json(json!({ "client": action, "status": "ok" }))
}

async fn pay(State(ledger): State<SharedLedger>, body: axum::body::Bytes) -> Response {
    // The content type is ignored and the body is parsed as JSON, because `curl -d` sends the content type of a form.
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let error = json!({ "error": format!("the body is not a valid payment: {error}") });
            return (StatusCode::BAD_REQUEST, Json(error)).into_response();
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
    (StatusCode::CREATED, Json(payment)).into_response()
}

async fn list(State(ledger): State<SharedLedger>) -> Json<Vec<Payment>> {
    Json(
        ledger
            .lock()
            .payments
            .values()
            .rev()
            .take(20)
            .cloned()
            .collect(),
    )
}

async fn show(State(ledger): State<SharedLedger>, Path(id): Path<String>) -> Response {
    let number = id
        .strip_prefix("pay_")
        .and_then(|number| number.parse().ok());
    let found = number.and_then(|number: u64| ledger.lock().payments.get(&number).cloned());
    match found {
        Some(payment) => Json(payment).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
