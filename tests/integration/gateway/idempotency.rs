//! Tests of idempotency keys over HTTP: what only sockets, disconnects, threads, files and processes show. The tables
//! of decisions are in `pipeline::tests`, `store::tests` and `idempotency`.
//!
//! Most upstreams in these tests number their executions and return the number in the response body. The body alone
//! thus distinguishes a replay from a second execution.

mod body_field;
mod capacity;
mod client_disconnects;
mod concurrent_duplicates;
mod disk;
mod execution_results;
mod full_store;
mod pipelining;
mod rejections;
mod replay;
mod unstored_responses;
mod waiters;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use crate::support::{ClientResponse, Upstream, reply};

/// Creates an upstream that responds with 201. The body contains the number of the execution, starting at 1.
fn numbered_executions() -> Upstream {
    let executions = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
        std::future::ready(reply(201, format!("execution {number}")))
    })
}

/// Creates an upstream like [`numbered_executions`] that sends one response for each permit that the test adds to the
/// semaphore.
fn numbered_on_permit() -> (Upstream, Arc<Semaphore>) {
    let executions = AtomicUsize::new(0);
    Upstream::on_permit(move |_| {
        let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
        reply(201, format!("execution {number}"))
    })
}

/// Returns the URL of an upstream that listens on `address`.
fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Asserts that `response` comes from execution `number` and is not a replay.
#[track_caller]
fn assert_execution(response: &ClientResponse, number: usize) {
    assert_eq!(
        response.text(),
        format!("execution {number}"),
        "{response:?}"
    );
    assert!(!response.is_replay(), "{response:?}");
}

/// Asserts that `response` is a replay of the response of execution `number`.
#[track_caller]
fn assert_replay_of(response: &ClientResponse, number: usize) {
    assert_eq!(
        response.text(),
        format!("execution {number}"),
        "{response:?}"
    );
    assert!(response.is_replay(), "{response:?}");
}

/// Asserts that `response` is a rejection with this status and the problem type `kind`. It must have `Retry-After`,
/// `Retry-After-Ms` and `X-Should-Retry: true` exactly if a retry can succeed.
#[track_caller]
fn assert_problem(response: &ClientResponse, status: u16, kind: &str) {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(response.problem(), kind);
    assert!(!response.is_replay(), "{response:?}");
    let is_retryable = matches!(
        kind,
        "idempotency-in-flight" | "idempotency-keys-exhausted" | "store-unavailable"
    );
    assert_eq!(response.has("retry-after"), is_retryable, "{response:?}");
    assert_eq!(response.has("retry-after-ms"), is_retryable, "{response:?}");
    let is_final = matches!(
        kind,
        "idempotency-outcome-unknown" | "response-not-retained"
    ) || [400, 413, 422].contains(&status);
    if is_retryable || is_final {
        let hint = if is_retryable { "true" } else { "false" };
        assert_eq!(response.header("x-should-retry"), hint, "{response:?}");
    }
}
