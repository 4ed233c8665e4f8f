//! Server-sent events: rejections as they happen, and changes of circuits, configuration and store.
//!
//! Changes are found by comparing the state once per second, so the code that makes them does not know about events. A
//! circuit that opens and closes within a second is still reported, because its openings are counted.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::config::reload_result;
use super::listener::{AdminState, Running};
use super::problem::AdminProblem;
use super::rfc3339;
use crate::clock::Clock;
use crate::pipeline::GatewayState;
use crate::throttle::census::RejectedRequest;

const MAX_SUBSCRIBERS: usize = 16;

/// Number of changes that a subscriber can lag behind before it loses some.
const MAX_QUEUED: usize = 256;

pub(super) const INTERVAL: Duration = Duration::from_secs(1);

pub(super) type Change = (&'static str, Arc<Value>);

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new().routes(routes!(events))
}

pub(super) fn channel() -> broadcast::Sender<Change> {
    broadcast::Sender::new(MAX_QUEUED)
}

/// Sends rejections, and changes of circuits, configuration and store, as they happen
///
/// The types of events are `rejected`, `circuit`, `reload`, `store`, and `lost` with the number of events that the
/// subscriber lost.
#[utoipa::path(
    get,
    path = "/admin/v1/events",
    responses((status = 200, content_type = "text/event-stream", body = String))
)]
async fn events(
    State(admin): State<Arc<AdminState>>,
    Running(gateway): Running,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, AdminProblem> {
    let subscribed = gateway.rejections.subscribe(MAX_SUBSCRIBERS);
    let mut rejections = subscribed.ok_or_else(|| {
        let detail = format!("The events already have {MAX_SUBSCRIBERS} subscribers.");
        AdminProblem::plain(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    let (clock, mut changes) = (gateway.clock.clone(), admin.changes.subscribe());
    let done = admin.done.clone();
    let next = async move || {
        let event = tokio::select! {
            () = done.cancelled() => return None,
            rejected = rejections.receiver.recv() => {
                rejected.map(|it| ("rejected", Arc::new(describe(&it, &clock))))
            }
            change = changes.recv() => change,
        };
        let (kind, data) = match event {
            Ok(event) => event,
            Err(RecvError::Lagged(count)) => ("lost", Arc::new(json!({ "count": count }))),
            Err(RecvError::Closed) => return None,
        };
        Some(Event::default().event(kind).data(data.to_string()))
    };
    let stream = unfold(next, |mut next| async move {
        let event = next().await?;
        Some((Ok(event), next))
    });
    Ok(Sse::new(Box::pin(stream)).keep_alive(KeepAlive::default()))
}

fn describe(rejected: &RejectedRequest, clock: &Clock) -> Value {
    json!({
        "at": rfc3339(clock.wall()),
        "limit": &*rejected.limit,
        "route": &*rejected.route,
        "key": rejected.key.to_string(),
        "wait": rejected.wait.as_secs_f64(),
        "early": rejected.early,
    })
}

/// What is compared to find changes.
#[derive(Debug, Default)]
pub(super) struct LastState {
    reloaded: Option<SystemTime>,
    circuits: Vec<Circuit>,
    degraded: Vec<(&'static str, Option<Arc<str>>)>,
}

#[derive(Debug)]
struct Circuit {
    upstream: Arc<str>,
    server: String,
    state: &'static str,
    openings: u64,
}

impl Circuit {
    /// Returns the states of this circuit since `before`, which are those of all circuits. A new server has a closed one.
    fn changes(&self, before: &[Self]) -> Vec<&'static str> {
        let mut before = before.iter();
        let before = before.find(|it| it.upstream == self.upstream && it.server == self.server);
        let (was, openings) = before.map_or(("closed", 0), |it| (it.state, it.openings));
        let mut states = vec![was];
        if self.openings > openings {
            states.push("open");
        }
        states.push(self.state);
        states.dedup();
        states.split_off(1)
    }
}

impl LastState {
    /// Sends the changes since the last call.
    pub(super) fn compare(&mut self, admin: &AdminState, gateway: &GatewayState) {
        let at = rfc3339(gateway.clock.wall());
        let send = |kind, data| {
            // An error means that there is no subscriber.
            let _ = admin.changes.send((kind, Arc::new(data)));
        };
        let status = admin.reloader.as_ref().map(|reloader| reloader.status());
        let last = status.and_then(|status| status.last_reload);
        if let Some((when, error)) = last
            && self.reloaded.replace(when) != Some(when)
        {
            let result = reload_result(error.as_deref());
            let data = json!({ "at": rfc3339(when), "result": result, "error": error });
            send("reload", data);
        }
        let mut circuits = Vec::new();
        for upstream in gateway.upstream_states.iter() {
            for server in &upstream.servers {
                let snapshot = server.breaker.snapshot(gateway.clock.now());
                let circuit = Circuit {
                    upstream: Arc::clone(&upstream.upstream.name),
                    server: server.name().to_owned(),
                    state: snapshot.state.name(),
                    openings: snapshot.openings,
                };
                for state in circuit.changes(&self.circuits) {
                    let (upstream, server) = (&*circuit.upstream, &circuit.server);
                    let data =
                        json!({ "at": at, "upstream": upstream, "server": server, "state": state });
                    send("circuit", data);
                }
                circuits.push(circuit);
            }
        }
        self.circuits = circuits;
        let health = gateway.store.records.health().into_iter();
        let degraded: Vec<_> = health.map(|it| (it.part.name(), it.degraded)).collect();
        for (part, reason) in &degraded {
            let before = self.degraded.iter().find(|(name, _)| name == part);
            let was_degraded = before.is_some_and(|(_, reason)| reason.is_some());
            if reason.is_some() != was_degraded {
                let data = json!({ "at": at, "part": part, "degraded": reason.as_deref() });
                send("store", data);
            }
        }
        self.degraded = degraded;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuit(state: &'static str, openings: u64) -> Circuit {
        Circuit {
            upstream: "api".into(),
            server: "127.0.0.1:9000".into(),
            state,
            openings,
        }
    }

    #[test]
    fn a_circuit_that_opened_between_two_comparisons_is_reported() {
        for (before, now, changes) in [
            (("closed", 0), ("closed", 0), &[][..]),
            (("closed", 0), ("open", 1), &["open"]),
            (("closed", 0), ("half_open", 1), &["open", "half_open"]),
            (("closed", 3), ("closed", 4), &["open", "closed"]),
            (("open", 4), ("closed", 4), &["closed"]),
            (("half_open", 4), ("open", 5), &["open"]),
        ] {
            let before = [circuit(before.0, before.1)];
            assert_eq!(circuit(now.0, now.1).changes(&before), changes);
        }
        assert_eq!(circuit("open", 1).changes(&[]), ["open"]);
    }
}
