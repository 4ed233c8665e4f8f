//! Throttle and idempotency around an ordinary axum application, without the proxy.
//!
//! Run with:
//!
//! ```text
//! cargo run --example embed_in_axum
//! ```
//!
//! and in another terminal:
//!
//! ```text
//! for i in 1 2; do curl -s -i -X POST -H 'Idempotency-Key: order-17' http://127.0.0.1:3000/payments; done
//! for i in 1 2 3; do curl -s -o /dev/null -w '%{http_code}\n' -X POST http://127.0.0.1:3000/payments; done
//! curl -i http://127.0.0.1:3000/health
//! ```
//!
//! Expected output: `payment 1` twice, the second time with
//!
//! ```text
//! idempotent-replayed: true
//! ratelimit-policy: "device";q=4;w=4
//! ratelimit: "device";r=2;t=1
//! ```
//!
//! then 200, 200 and 429 (a replay is counted like any other request), and a 200 from a route that wears
//! no layer.

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use tidegate::embed::Embedded;
use tidegate::idempotency::Rule;
use tidegate::throttle::{Limit, Quota};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // 1 request a second for each client, and 3 more at once.
    let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?;
    let embedded = Embedded::new(
        vec![Limit::per_client("device", quota)],
        Some(Rule::default()),
    );

    let payments = Router::new()
        .route("/payments", post(pay))
        .with_state(Arc::default())
        // A layer added later is met earlier: first who is calling, then whether they may, then the key.
        .layer(embedded.idempotency())
        .layer(embedded.throttle())
        .layer(embedded.identify());
    let app = payments.route("/health", get(|| async { "well\n" }));

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    // Payments go on after their client has left; they are not cut off.
    embedded.finish().await;
    Ok(())
}

/// Makes a payment, each time it is really called.
async fn pay(State(made): State<Arc<AtomicU32>>) -> String {
    let number = made.fetch_add(1, Ordering::Relaxed) + 1;
    format!("payment {number}\n")
}
