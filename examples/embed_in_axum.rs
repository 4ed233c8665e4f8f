//! Rate limits and idempotency keys as layers of an axum application, without the gateway as a proxy.
//!
//! Run with:
//!
//! ```text
//! cargo run --example embed_in_axum
//! ```
//!
//! Then run these commands in another terminal:
//!
//! ```text
//! for i in 1 2; do curl -s -i -X POST -H 'Idempotency-Key: order-17' http://127.0.0.1:3000/payments; done
//! for i in 1 2 3; do curl -s -o /dev/null -w '%{http_code}\n' -X POST http://127.0.0.1:3000/payments; done
//! curl -i http://127.0.0.1:3000/health
//! ```
//!
//! Expected output of the first line: `payment 1` twice. The second response is a replay and contains these headers:
//!
//! ```text
//! idempotent-replayed: true
//! ratelimit-policy: "device";q=4;w=4
//! ratelimit: "device";r=2;t=1
//! ```
//!
//! Expected output of the second line: 200, 200 and 429. The bucket has four tokens (1 for the rate, 3 for the burst).
//! The first line took two of them, because a replay also takes a token. The last command gets a 200, because its route
//! has no layers.

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
use tidegate::idempotency::KeyRule;
use tidegate::throttle::{Limit, Quota};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The rate limit is 1 request per second for each client, with a burst of 3.
    let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?;
    let embedded = Embedded::new(
        vec![Limit::per_client("device", quota)],
        Some(KeyRule::default()),
    );

    let payments = Router::new()
        .route("/payments", post(pay))
        .with_state(Arc::default())
        // A request passes these layers from bottom to top: client identity, rate limit, idempotency key.
        .layer(embedded.idempotency())
        .layer(embedded.throttle())
        .layer(embedded.identify());
    let app = payments.route("/health", get(|| async { "healthy\n" }));

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    // This call waits for payments whose clients have disconnected, because these payments are not cancelled.
    embedded.finish().await;
    Ok(())
}

/// Makes a payment and returns its number. For a request with a known idempotency key, the stored response is replayed
/// and this function is not called.
async fn pay(State(made): State<Arc<AtomicU32>>) -> String {
    let number = made.fetch_add(1, Ordering::Relaxed) + 1;
    format!("payment {number}\n")
}
