//! What cannot be seen from outside: the bound on executions whose clients may have gone.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::*;
use crate::buffers::BufferBounds;
use crate::client::Trust;
use crate::route::Route;
use crate::store::memory::records::{MemoryRecords, Room};
use crate::throttle::{Passage, Resending, Side};
use crate::upstream::UpstreamId;

fn layer(max_executions: usize) -> IdempotencyLayer<MemoryRecords> {
    let routes = Routes::compile(vec![Route {
        id: RouteId(0),
        name: "all".into(),
        patterns: vec!["/".into()],
        methods: None,
        upstream: UpstreamId(0),
        limits: Vec::new(),
        cost: std::num::NonZeroU32::MIN,
        idempotency: Some(Arc::new(Rule::default())),
        access_log: false,
    }])
    .unwrap();
    let clock = Clock::real();
    IdempotencyLayer::new(
        &routes,
        Arc::new(MemoryRecords::new(Room::default(), clock.clone())),
        Naming::random(),
        max_executions,
        Arc::new(Buffers::new(BufferBounds::default())),
        TaskTracker::new(),
        Arc::default(),
        Arc::new(Metrics::new(&routes, &[], &[])),
        clock,
    )
}

fn request(key: &str) -> Request<Body> {
    let mut request = Request::post("/")
        .header("idempotency-key", key)
        .body(Body::empty())
        .unwrap();
    let peer = "192.0.2.1".parse().unwrap();
    let caller = Trust::default().identify(peer, request.headers()).unwrap();
    request.extensions_mut().insert(Passage {
        caller,
        route: RouteId(0),
        side: Side::Main,
        resending: Resending::ByMethod,
        arrival: None,
    });
    request
}

#[tokio::test]
async fn executions_are_bounded_though_their_clients_have_gone() {
    let open = Arc::new(Notify::new());
    let inner = service_fn({
        let open = Arc::clone(&open);
        move |_: Request<Body>| {
            let open = Arc::clone(&open);
            async move {
                open.notified().await;
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        }
    });
    let service = layer(2).layer(inner);
    for key in ["a", "b"] {
        let asking = tokio::spawn(service.clone().oneshot(request(key)));
        tokio::task::yield_now().await;
        asking.abort();
    }
    let refused = service.clone().oneshot(request("c")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    // Nothing was claimed for it, and there is room again when one has ended.
    open.notify_one();
    loop {
        open.notify_one();
        let answer = service.clone().oneshot(request("c")).await.unwrap();
        if answer.status() == StatusCode::OK {
            break;
        }
        tokio::task::yield_now().await;
    }
}
