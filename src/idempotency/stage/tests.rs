//! What cannot be seen from outside: the bound on executions whose clients have disconnected.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::*;
use crate::buffers::BufferBounds;
use crate::client::Trust;
use crate::metrics::Metrics;
use crate::problem::Retry;
use crate::store::memory::records::{MemoryRecords, Room};

fn stage(max_executions: usize) -> Idempotency<MemoryRecords> {
    let clock = Clock::real();
    Idempotency::new(
        MemoryRecords::new(Room::default(), clock.clone()),
        HashKeySource::random(),
        max_executions,
        Arc::new(Buffers::new(BufferBounds::default())),
        TaskTracker::new(),
        clock,
    )
}

fn context() -> RequestContext {
    let peer = "192.0.2.1".parse().unwrap();
    let caller = Trust::default().identify(peer, &HeaderMap::new()).unwrap();
    RequestContext::new(caller, false, &HeaderMap::new(), None)
}

/// Sends a request with `key` through `stage`. The execution ends when `open` is notified.
async fn send(
    stage: Idempotency<MemoryRecords>,
    key: &'static str,
    open: Arc<Notify>,
) -> Result<Response<ResponseBody>, Problem> {
    let metrics = Metrics::new([(&"all".into(), true)], [], []);
    let keys = Arc::new(RouteKeys::new(
        Rule::default(),
        Arc::clone(&metrics.routes[0]),
    ));
    let request = Request::post("/").header("idempotency-key", key);
    let request = request.body(RequestBody::from(Bytes::new())).unwrap();
    let keyed = keys.inspect(&request).unwrap().unwrap();
    let execute = move |_, _| async move {
        open.notified().await;
        Ok(Response::new(ResponseBody::empty()))
    };
    stage.run(&context(), &keys, keyed, request, execute).await
}

#[tokio::test]
async fn executions_are_bounded_though_their_clients_have_gone() {
    let open = Arc::new(Notify::new());
    let stage = stage(2);
    for key in ["a", "b"] {
        let sending = tokio::spawn(send(stage.clone(), key, Arc::clone(&open)));
        tokio::task::yield_now().await;
        sending.abort();
    }
    let rejected = send(stage.clone(), "c", Arc::clone(&open))
        .await
        .unwrap_err();
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(matches!(rejected.retry, Retry::After(..)));
    // Nothing was claimed for it, and it is executed when another execution has ended.
    open.notify_one();
    loop {
        open.notify_one();
        if send(stage.clone(), "c", Arc::clone(&open)).await.is_ok() {
            break;
        }
        tokio::task::yield_now().await;
    }
}
