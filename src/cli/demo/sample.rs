//! A small payments API for the demo to stand in front of.
//!
//! Beside payments it has `/flaky/…`, which fails as its path says: a client's retries can be tried on it.

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

/// Payments kept; the oldest are forgotten.
const MAX_PAYMENTS: usize = 10_000;

/// The sample API at work, until the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Api {
    address: SocketAddr,
}

#[derive(Default)]
struct Ledger {
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

type Books = Arc<Mutex<Ledger>>;

impl Api {
    /// Starts it on a free loopback port, on a thread of its own.
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
                        tracing::error!(%error, "the sample API stopped");
                    }
                });
            })?;
        Ok(Self { address })
    }

    /// Where it listens.
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
        .with_state(Books::default())
}

async fn client(Path(action): Path<String>) -> Json<serde_json::Value> {
    Json(json!({ "client": action, "status": "ok" }))
}

async fn pay(State(books): State<Books>, body: axum::body::Bytes) -> Response {
    // curl -d sends a form's content type; the sample API reads JSON whatever it is called.
    let order: Order = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => {
            let error = json!({ "error": format!("not an order: {error}") });
            return (StatusCode::BAD_REQUEST, Json(error)).into_response();
        }
    };
    let mut ledger = books.lock();
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

async fn list(State(books): State<Books>) -> Json<Vec<Payment>> {
    Json(
        books
            .lock()
            .payments
            .values()
            .rev()
            .take(20)
            .cloned()
            .collect(),
    )
}

async fn show(State(books): State<Books>, Path(id): Path<String>) -> Response {
    let number = id
        .strip_prefix("pay_")
        .and_then(|number| number.parse().ok());
    let found = number.and_then(|number: u64| books.lock().payments.get(&number).cloned());
    match found {
        Some(payment) => Json(payment).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}
