//! Two rate limits and idempotency keys as a layer of an axum application, without the gateway as a proxy.
//!
//! Run with:
//!
//! ```text
//! cargo run --no-default-features --features embed --example embed_in_axum
//! ```
//!
//! Then run these commands in another terminal:
//!
//! ```text
//! for i in 1 2; do curl -s -i -X POST -H 'Idempotency-Key: order-17' http://127.0.0.1:3000/payments; done
//! for i in 1 2 3; do curl -s -o /dev/null -w '%{http_code}\n' -X POST http://127.0.0.1:3000/payments; done
//! ```
//!
//! Expected output of the first line: `paid` twice. The second response is a replay and contains these headers:
//!
//! ```text
//! idempotent-replayed: true
//! ratelimit-policy: "device";q=4;w=4, "hourly";q=1000;w=3600
//! ratelimit: "device";r=2;t=1, "hourly";r=998;t=4
//! ```
//!
//! Expected output of the second line: 200, 200 and 429. The bucket `device` has four tokens (1 for the rate, 3 for the
//! burst). The first line took two of them, because a replay also takes a token.
//!
//! docs/library.md adds a graceful shutdown, metrics, and other stores.

use std::net::SocketAddr;

use axum::{Router, routing::post};
use tidegate::embed::{Embedded, KeyRule, Limit};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let embedded = Embedded::new();
    let device = Limit::per_client("device", "1/s".parse()?).burst(3)?;
    let hourly = Limit::per_client("hourly", "1000/h".parse()?);
    let rule = embedded.layer("payments", [device, hourly], Some(KeyRule::default()))?;
    let app = Router::new().route("/payments", post("paid\n").layer(rule));
    // The layer needs the address of the client.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app).await?;
    Ok(())
}
