//! The life of a request between its connection and its answer.
//!
//! The stages that only look (intake, identity, path, route) are calls in a row, each of which may
//! reject; what they found travels on in the request's extensions. The stages that act are tower
//! services, one inside the other, so that another application can wear them too.

mod arrival;
mod open;
mod record;

use std::sync::Arc;

use http::header::{HOST, ORIGIN};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri, Version};
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

use self::record::{Logged, PendingRequest, Recorder, Seen};
use crate::admin::Metrics;
use crate::buffers::Buffers;
use crate::clock::Clock;
use crate::config::Policy;
use crate::gateway::ServerSettings;
use crate::idempotency::{Idempotency, IdempotencyLayer, Naming, Told};
use crate::intake::{self, Incoming, RequestBody};
use crate::path;
use crate::request_id::RequestId;
use crate::respond::cors::preflight_method;
use crate::respond::{Body, Manner, Rejection, problem};
use crate::store::disk::buckets::Snapshots;
use crate::store::memory::MemoryBuckets;
use crate::store::memory::records::MemoryRecords;
use crate::store::redis::Redis;
use crate::store::{BucketStore, RecordStore};
use crate::throttle::{Passage, Resending, Side, Throttle, ThrottleLayer};
use crate::upstream::connect::ConnectorError;
use crate::upstream::{Forward, Standing};
use crate::wire::Violation;

pub use arrival::{Arrival, Connection};
pub use open::OpenError;
pub use record::ResponseBody;

/// What all workers share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// What the gateway runs on.
    pub policy: Arc<Policy>,
    /// Where its buckets are.
    pub buckets: BucketStore,
    /// Where its records are.
    pub records: RecordStore,
    /// What names both.
    pub naming: Naming,
    /// The Redis that both are in, to be closed at the end; `None` for other stores.
    pub redis: Option<Redis>,
    /// What writes the buckets down, where they are to outlive a restart.
    pub snapshots: Option<Arc<Snapshots>>,
    /// Bytes of bodies held in memory.
    pub buffers: Buffers,
    /// How the servers of each upstream stand.
    pub standings: Arc<[Arc<Standing>]>,
    /// What is counted, by each worker for itself.
    pub metrics: Arc<[Arc<Metrics>]>,
    /// What time it is.
    pub clock: Clock,
}

/// One worker's chain of stages.
#[derive(Clone, Debug)]
pub struct Pipeline {
    policy: Arc<Policy>,
    clock: Clock,
    metrics: Arc<Metrics>,
    manner: Arc<Manner>,
    recorder: Arc<Recorder>,
    /// Whether any request is logged.
    logs: bool,
    chain: Throttle<Idempotency<Forward, RecordStore>, BucketStore>,
}

/// The body of a response before it is recorded.
pub type Answered = Told<Body>;

impl Shared {
    /// Everything a policy needs to be put to work, kept in memory whatever its store: see
    /// [`open`](Self::open).
    pub fn new(policy: Arc<Policy>, clock: Clock) -> Self {
        let metrics = || Metrics::new(&policy.routes, &policy.limits, &policy.upstreams);
        Self {
            buckets: BucketStore::Memory(Arc::new(MemoryBuckets::new(
                policy.max_clients,
                clock.clone(),
            ))),
            records: RecordStore::Memory(MemoryRecords::new(policy.store.room, clock.clone())),
            naming: Naming::random(),
            redis: None,
            snapshots: None,
            buffers: Buffers::new(policy.server.buffers),
            standings: (policy.upstreams.iter())
                .map(|upstream| Arc::new(Standing::new(upstream, policy.server.workers)))
                .collect(),
            metrics: (0..policy.server.workers)
                .map(|_| Arc::new(metrics()))
                .collect(),
            policy,
            clock,
        }
    }
}

impl Pipeline {
    /// The chain of the worker with this number, with upstream connections of its own; what outlives its
    /// connections is tracked by `tasks`.
    ///
    /// What every request touches is the worker's own copy, however rarely it changes: a reference
    /// count that two cores take turns at costs more than the rest of a stage.
    pub fn new(shared: &Shared, worker: usize, tasks: TaskTracker) -> Result<Self, ConnectorError> {
        let Shared {
            policy,
            buckets,
            records,
            naming,
            redis: _,
            snapshots: _,
            buffers,
            standings,
            metrics,
            clock,
        } = shared.clone();
        let metrics = Arc::clone(&metrics[worker]);
        let manner = Arc::new(policy.manner.clone());
        let buffers = Arc::new(buffers);
        let forward = Forward::new(
            &standings,
            worker,
            &policy.routes,
            &policy.server,
            Arc::clone(&buffers),
            Arc::clone(&manner),
            Arc::clone(&metrics),
            clock.clone(),
        )?;
        let throttle = ThrottleLayer::new(
            &policy.routes,
            Arc::new(buckets),
            naming.clone(),
            Arc::clone(&manner),
            Arc::clone(&metrics),
            clock.clone(),
        );
        let idempotency = IdempotencyLayer::new(
            &policy.routes,
            Arc::new(records),
            naming,
            (policy.server.caps.connections / policy.server.workers).max(1),
            buffers,
            tasks,
            Arc::clone(&manner),
            Arc::clone(&metrics),
            clock.clone(),
        );
        // Throttle first: what is refused costs no connection and claims no key, and an answer from a
        // record is counted like any other. Idempotency next to upstream: only what comes from there is
        // ever kept, and nothing the gateway says for itself.
        let chain = throttle.layer(idempotency.layer(forward));
        Ok(Self {
            recorder: Arc::new(Recorder {
                policy: Arc::clone(&policy),
                metrics: Arc::clone(&metrics),
                clock: clock.clone(),
            }),
            logs: policy.log.access || policy.routes.iter().any(|route| route.access_log),
            policy,
            clock,
            metrics,
            manner,
            chain,
        })
    }

    /// How connections are served.
    pub fn settings(&self) -> &ServerSettings {
        &self.policy.server
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Responds to `request`, which arrived on `connection`. With a `violation`, what arrived is not a request, and
    /// `request` only takes its place.
    ///
    /// Not an `async fn`: the stages before the throttle run at once, and so does the throttle if its buckets are in
    /// memory. The future has no room for the request that they read.
    pub fn answer(
        &self,
        connection: &Arc<Connection>,
        mut request: Request<Incoming>,
        violation: Option<Violation>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send + use<'_> {
        let mut seen = Seen {
            started: self.logs.then(|| self.clock.now()),
            peer: connection.peer,
            method: request.method().clone(),
            version: request.version(),
            request_id: RequestId::of(request.headers()),
            client: None,
            route: None,
            logged: None,
        };
        let origin = self
            .manner
            .cors
            .as_ref()
            .and_then(|_| request.headers().get(ORIGIN).cloned());
        let entered = match violation {
            Some(violation) => Err(violation.into()),
            None => self.enter(connection, &mut request, &mut seen),
        };
        let answering = match entered {
            Ok(Entered::Onward) => {
                let limit = self.policy.server.caps.body_bytes;
                let notes = seen.logged.as_ref().map(|logged| &logged.notes);
                let request = request.map(|body| RequestBody::coming(body, limit, notes));
                Answering::Onward(self.chain.clone().call(request))
            }
            Ok(Entered::Preflight(response)) => {
                if let Some(logged) = &seen.logged {
                    logged.notes.facts().reason = Some("preflight");
                }
                Answering::Made(response)
            }
            Err(rejection) => {
                if seen.route.is_none() && self.policy.log.access && is_logged() {
                    let host = host_of(&request);
                    let mut logged = Logged::new(request.uri(), host);
                    // On HTTP/2 a violation follows a valid head.
                    logged.is_placeholder =
                        violation.is_some() && request.version() != Version::HTTP_2;
                    seen.logged = Some(logged);
                }
                if let Some(logged) = &seen.logged {
                    logged.reject(&rejection);
                }
                let headers = request.headers();
                let response = problem::response(&rejection, headers, &self.manner, &self.clock);
                Answering::Made(Box::new(response))
            }
        };
        let pending = PendingRequest {
            recorder: &self.recorder,
            seen: Some(seen),
        };
        async move {
            match answering {
                Answering::Onward(coming) => {
                    let Ok(mut response) = coming.await;
                    if let Some(cors) = &self.manner.cors {
                        cors.complete(response.headers_mut(), origin, &self.manner);
                    }
                    pending.finish(response)
                }
                Answering::Made(response) => pending.finish(*response),
            }
        }
    }

    /// Checks a request, identifies its client and finds its route, and stores the results in its extensions.
    fn enter(
        &self,
        connection: &Arc<Connection>,
        request: &mut Request<Incoming>,
        seen: &mut Seen,
    ) -> Result<Entered, Rejection> {
        let policy = &*self.policy;
        let names = policy.routes.headers();
        let host = intake::check(request, policy.server.caps.body_bytes, names)?;

        let caller = policy
            .trust
            .identify(connection.peer, request.headers())
            .map_err(|error| Rejection::bad_request(error.to_string()))?;
        seen.client = Some(caller.id());

        let path = path::normalise(request.uri().path())
            .map_err(|error| Rejection::bad_request(error.to_string()))?;
        let preflight = preflight_method(request.method(), request.headers());
        let method = preflight.as_ref().unwrap_or(request.method());
        let route = policy
            .routes
            .find(method, path.matching())
            .ok_or(Rejection::NoRoute)?;
        seen.route = Some(route.id);
        if route.access_log && is_logged() {
            seen.logged = Some(Logged::new(request.uri(), Some(host.clone())));
        }

        if let (Some(cors), true) = (&policy.manner.cors, preflight.is_some()) {
            let mut response = cors.preflight(request.headers());
            policy.manner.add_headers(response.headers_mut());
            return Ok(Entered::Preflight(Box::new(response)));
        }
        let side = if preflight.is_some() {
            Side::Preflight
        } else {
            Side::Main
        };
        let rewritten = rewritten(request.uri(), path.forward())?;
        if let Some(uri) = rewritten {
            *request.uri_mut() = uri;
        }
        names.check_counted(route.id.0, request.headers_mut(), &caller, Some(&host))?;
        let arrival = Arrival {
            connection: Arc::clone(connection),
            upstream: route.upstream,
            host,
            request_id: seen.request_id.clone(),
            notes: seen.logged.as_ref().map(|logged| Arc::clone(&logged.notes)),
        };
        request.extensions_mut().insert(Passage {
            caller,
            route: route.id,
            side,
            resending: Resending::ByMethod,
            arrival: Some(arrival),
        });
        Ok(Entered::Onward)
    }
}

/// What becomes of a request that was not rejected.
enum Entered {
    /// It goes on to be throttled and forwarded.
    Onward,
    /// It is a CORS preflight, and this is its answer.
    Preflight(Box<Response<Answered>>),
}

/// An answer on its way, or made already.
enum Answering<Coming> {
    Onward(Coming),
    Made(Box<Response<Answered>>),
}

/// Returns the host of a request that was not checked.
fn host_of<B>(request: &Request<B>) -> Option<HeaderValue> {
    let header = request.headers().get(HOST).cloned();
    header.or_else(|| HeaderValue::from_str(request.uri().authority()?.as_str()).ok())
}

/// Whether lines of the access log are written at all.
fn is_logged() -> bool {
    tracing::enabled!(target: "tidegate::access", tracing::Level::INFO)
}

/// `uri` with `path` for its own, if that differs. Its host stays: HTTP/2 names it nowhere else, and it is
/// part of what an idempotency key stands for.
fn rewritten(uri: &Uri, path: &str) -> Result<Option<Uri>, Rejection> {
    if uri.path() == path {
        return Ok(None);
    }
    let target = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    let target = target.map_err(|_| Rejection::bad_request("The path is not one of a URL."))?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target);
    let uri = Uri::from_parts(parts);
    uri.map(Some)
        .map_err(|_| Rejection::bad_request("The request's target is not a URL."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewritten_path_keeps_its_query() {
        let uri: Uri = "/a/../b?x=1&y=/../".parse().unwrap();
        assert_eq!(rewritten(&uri, "/b").unwrap().unwrap(), "/b?x=1&y=/../");
        assert!(rewritten(&"/b?x".parse().unwrap(), "/b").unwrap().is_none());
    }

    #[test]
    fn a_rewritten_path_keeps_its_host() {
        let uri: Uri = "https://api.example:81/a/../b?x".parse().unwrap();
        let rewritten = rewritten(&uri, "/b").unwrap().unwrap();
        assert_eq!(rewritten, "https://api.example:81/b?x");
    }
}
