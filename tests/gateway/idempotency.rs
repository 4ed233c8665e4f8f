//! Idempotency keys from outside: at most once within the TTL, with replay.
//!
//! Most upstreams here number their executions and say so in what they answer, so that a replay can be
//! told from a second execution by its body alone.

mod body_field;
mod crowd;
mod disk;
mod endings;
mod forms;
mod hang_up;
mod order;
mod outcome;
mod pipelined;
mod refusals;
mod replay;
mod room;
mod scopes;
mod share;
mod unkept;
mod users;
mod waiters;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use crate::harness::{Answer, Upstream, full};

/// An upstream whose every answer is 201 and the number of the execution.
fn numbering() -> Upstream {
    numbering_with(201)
}

/// An upstream whose every answer is this status and the number of the execution.
fn numbering_with(status: u16) -> Upstream {
    let executions = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            let mut reply = full(format!("execution {number}"));
            *reply.status_mut() = status.try_into().expect("a status");
            reply
        }
    })
}

/// An upstream that answers as [`numbering`] when a permit is added, and what adds them.
fn held() -> (Upstream, Arc<Semaphore>) {
    held_with(201, None)
}

/// An upstream that answers with this status, and `Retry-After` where it is to, when a permit is added.
fn held_with(status: u16, retry_after: Option<&'static str>) -> (Upstream, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let waiting = Arc::clone(&permits);
    let executions = AtomicUsize::new(0);
    let upstream = Upstream::with(move |_| {
        let number = executions.fetch_add(1, Ordering::SeqCst) + 1;
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.acquire().await.expect("never closed").forget();
            let mut reply = full(format!("execution {number}"));
            *reply.status_mut() = status.try_into().expect("a status");
            if let Some(value) = retry_after {
                let value = http::HeaderValue::from_static(value);
                reply.headers_mut().insert("retry-after", value);
            }
            reply
        }
    });
    (upstream, permits)
}

/// The URL of an upstream that speaks in raw bytes.
fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Holds that `answer` is the execution with this number, for the first time.
#[track_caller]
fn is_execution(answer: &Answer, number: usize) {
    assert_eq!(answer.text(), format!("execution {number}"), "{answer:?}");
    assert!(!answer.is_replay(), "{answer:?}");
}

/// Holds that `answer` is the execution with this number, once more.
#[track_caller]
fn is_replay_of(answer: &Answer, number: usize) {
    assert_eq!(answer.text(), format!("execution {number}"), "{answer:?}");
    assert!(answer.is_replay(), "{answer:?}");
}

/// Asserts that `answer` is a rejection with this status and problem type, that it has `Retry-After` if a retry can
/// succeed, and that its hints agree.
#[track_caller]
fn is_problem(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.problem(), kind);
    assert!(!answer.is_replay(), "{answer:?}");
    let waits = matches!(
        kind,
        "idempotency-in-flight" | "idempotency-keys-exhausted" | "store-unavailable"
    );
    assert_eq!(answer.has("retry-after"), waits, "{answer:?}");
    assert_eq!(answer.has("retry-after-ms"), waits, "{answer:?}");
    let is_final = matches!(
        kind,
        "idempotency-outcome-unknown" | "response-not-retained"
    ) || [400, 413, 422].contains(&status);
    if waits || is_final {
        let hint = if waits { "true" } else { "false" };
        assert_eq!(answer.header("x-should-retry"), hint, "{answer:?}");
    }
}
