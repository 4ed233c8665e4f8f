//! The innermost service: sends a request upstream and brings the answer's head back.
//!
//! Servers take turns. One that cannot be reached is passed over for the next, because nothing was sent
//! to it; the same goes for a kept-alive connection that turns out closed before it took the request.
//! Beyond that a request is sent once.

use std::borrow::Cow;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Request, Response, Uri, Version};
use http_body::Body as _;
use thiserror::Error;
use tokio::time::Instant;
use tower::Service;

use super::answer::{self, Relaying};
use super::connect::{self, ConnectError, Connector, ConnectorError};
use super::headers::{self, Provenance};
use super::patience::{OutOfPatience, Patience};
use super::pool::Pool;
use super::upload::{Progress, Stage, Upload};
use super::{HostHeader, Upstream};
use crate::admin::{InFlight, Metrics};
use crate::clock::Clock;
use crate::failpoint::failpoint;
use crate::gateway::ServerSettings;
use crate::idempotency::Undone;
use crate::intake::RequestBody;
use crate::pipeline::Arrival;
use crate::respond::{Asked, Body, Manner, Rejection, problem};
use crate::route::Routes;
use crate::throttle::Passage;
use crate::wire::Violation;

/// Sends requests upstream. Cheap to clone; all clones share their connections.
#[derive(Clone, Debug)]
pub struct Forward(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    targets: Vec<Target>,
    /// Headers that the idempotency keys of some route come in.
    key_headers: Vec<HeaderName>,
    max_body: u64,
    manner: Arc<Manner>,
    metrics: Arc<Metrics>,
    clock: Clock,
}

/// An upstream as one worker sees it.
#[derive(Debug)]
struct Target {
    upstream: Arc<Upstream>,
    servers: Vec<ServerTarget>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct ServerTarget {
    pool: Arc<Pool>,
    /// The `Host` that is its own.
    host: HeaderValue,
}

/// Why there is no answer to pass on.
#[derive(Debug, Error)]
pub enum ForwardError {
    /// No server could be reached.
    #[error("no server could be reached: {0}")]
    Connect(#[from] ConnectError),
    /// No server could be reached before the exchange had to be over.
    #[error("no server was reached: {0}")]
    NotReachedInTime(#[source] OutOfPatience),
    /// A connection that had just been made failed before it took the request.
    #[error("the connection failed before it took the request: {0}")]
    Unsent(#[source] hyper::Error),
    /// The connection failed with the request underway.
    #[error("the exchange failed: {0}")]
    Exchange(#[source] hyper::Error),
    /// The answer is not one that can be passed on.
    #[error("{0}")]
    BadAnswer(&'static str),
    /// No answer in time.
    #[error(transparent)]
    TimedOut(#[from] OutOfPatience),
    /// The request's body grew larger than the gateway takes.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(u64),
    /// The client broke off, or did not keep to HTTP.
    #[error("the client's request body failed")]
    ClientFailed(Option<Violation>),
}

impl ForwardError {
    /// Whether the client is to blame.
    fn is_clients(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::ClientFailed(_))
    }

    /// Whether anybody can have got the request.
    fn undone(&self) -> Undone {
        match self {
            Self::Connect(_) | Self::NotReachedInTime(_) | Self::Unsent(_) => Undone::Unsent,
            Self::Exchange(_)
            | Self::BadAnswer(_)
            | Self::TimedOut(_)
            | Self::TooLarge(_)
            | Self::ClientFailed(_) => Undone::Lost,
        }
    }
}

impl Forward {
    /// A forwarder to `upstreams` for requests of `routes`, with connections of its own.
    pub fn new(
        upstreams: &[Arc<Upstream>],
        routes: &Routes,
        server: &ServerSettings,
        manner: Arc<Manner>,
        metrics: Arc<Metrics>,
        clock: Clock,
    ) -> Result<Self, ConnectorError> {
        let targets = upstreams
            .iter()
            .map(Target::new)
            .collect::<Result<_, _>>()?;
        let rules = routes.iter().filter_map(|route| route.idempotency.as_ref());
        let mut key_headers: Vec<_> = rules.map(|rule| rule.header.clone()).collect();
        key_headers.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        key_headers.dedup();
        Ok(Self(Arc::new(Shared {
            targets,
            key_headers,
            max_body: server.caps.body_bytes,
            manner,
            metrics,
            clock,
        })))
    }
}

impl Target {
    fn new(upstream: &Arc<Upstream>) -> Result<Self, ConnectorError> {
        let speaks_tls = upstream.servers.iter().any(|server| server.tls);
        let tls = speaks_tls
            .then(|| connect::tls_config(upstream))
            .transpose()?;
        let servers = upstream
            .servers
            .iter()
            .map(|server| {
                let connector = Connector::new(server, tls.as_ref(), upstream.timeouts.connect)?;
                let host = HeaderValue::from_str(server.authority.as_str())
                    .expect("an authority is visible ASCII");
                Ok(ServerTarget {
                    pool: Pool::new(connector),
                    host,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            upstream: Arc::clone(upstream),
            servers,
            turn: AtomicUsize::new(0),
        })
    }

    /// Every server once, each time another first.
    fn in_turn(&self) -> impl Iterator<Item = &ServerTarget> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.servers.len();
        self.servers[first..].iter().chain(&self.servers[..first])
    }
}

impl Service<Request<RequestBody>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { Ok(shared.forward(request).await) })
    }
}

impl Shared {
    async fn forward(&self, mut request: Request<RequestBody>) -> Response<Body> {
        let passage: Passage = request
            .extensions_mut()
            .remove()
            .expect("routed before it is forwarded");
        let arrival = passage
            .arrival
            .as_ref()
            .expect("received before it is forwarded");
        let target = &self.targets[arrival.upstream.0];
        let asked = Asked::of(request.headers());
        let started = Instant::now();
        let in_flight = self.metrics.upstream(target.upstream.id).in_flight();

        let outcome = self
            .exchange(request, target, &passage, arrival, in_flight)
            .await;
        let metrics = self.metrics.upstream(target.upstream.id);
        match outcome {
            Ok(response) => {
                metrics.answered(started.elapsed());
                response
            }
            Err(error) => {
                metrics.failed(&error);
                let upstream = &*target.upstream.name;
                let request_id = &arrival.request_id;
                if error.is_clients() {
                    tracing::debug!(upstream, %request_id, %error, "a request was not completed");
                } else {
                    tracing::warn!(upstream, %request_id, %error, "no answer from upstream");
                }
                let rejection = rejection(&error, &target.upstream);
                let asked = asked.headers();
                let mut response = problem::response(&rejection, &asked, &self.manner, &self.clock);
                response.extensions_mut().insert(error.undone());
                response
            }
        }
    }

    async fn exchange(
        &self,
        mut request: Request<RequestBody>,
        target: &Target,
        passage: &Passage,
        arrival: &Arrival,
        in_flight: InFlight,
    ) -> Result<Response<Body>, ForwardError> {
        let patience = Patience::from_now(target.upstream.timeouts);
        // HTTP/1.0 has no upgrades (RFC 9110, section 7.8), nor has HTTP/2 this kind.
        let upgrades =
            request.version() == Version::HTTP_11 && headers::asks_for_upgrade(request.headers());
        let client_upgrade = upgrades.then(|| hyper::upgrade::on(&mut request));

        let (mut request, upload) = outgoing(
            request,
            passage,
            arrival,
            &self.key_headers,
            client_upgrade.is_some(),
        );
        let mut unreachable = None;
        'servers: for server in target.in_turn() {
            target
                .upstream
                .host
                .write(request.headers_mut(), &server.host);
            let mut lease = match reached(&patience, server.pool.lease()).await? {
                Ok(lease) => lease,
                Err(error) => {
                    tracing::debug!(server = ?server.pool.connector(), %error, "not reached");
                    unreachable = Some(error);
                    continue;
                }
            };
            let response = loop {
                lease.carries(upload.clone());
                let answer = lease.sender().try_send_request(request);
                let mut failed = match patience.for_answer(answer, upload.as_deref()).await? {
                    Ok(response) => break response,
                    Err(failed) => failed,
                };
                match failed.take_message() {
                    // The connection gave the request back: it never took a byte of it.
                    Some(unsent) if lease.reused => {
                        request = unsent;
                        lease = match reached(&patience, server.pool.lease_fresh()).await? {
                            Ok(lease) => lease,
                            Err(error) => {
                                unreachable = Some(error);
                                continue 'servers;
                            }
                        };
                    }
                    Some(_) => return Err(ForwardError::Unsent(failed.into_error())),
                    None => return Err(self.blame(failed.into_error(), upload.as_deref())),
                }
            };
            failpoint!("mid-upstream");
            let relaying = Relaying {
                lease,
                patience,
                in_flight,
            };
            return answer::to_client(response, relaying, arrival, client_upgrade);
        }
        Err(unreachable.map_or(
            ForwardError::BadAnswer("the upstream has no servers"),
            Into::into,
        ))
    }

    /// Whose fault a failed exchange is.
    fn blame(&self, error: hyper::Error, upload: Option<&Progress>) -> ForwardError {
        let Some(upload) = upload else {
            return ForwardError::Exchange(error);
        };
        match upload.stage() {
            Stage::TooLarge => ForwardError::TooLarge(self.max_body),
            Stage::ClientFailed => ForwardError::ClientFailed(upload.violation()),
            _ => ForwardError::Exchange(error),
        }
    }
}

/// The request as it is sent, and the account of its body.
fn outgoing(
    request: Request<RequestBody>,
    passage: &Passage,
    arrival: &Arrival,
    key_headers: &[HeaderName],
    upgrade: bool,
) -> (Request<Upload>, Option<Arc<Progress>>) {
    let (mut parts, body) = request.into_parts();
    let (upload, progress) = Upload::new(body);
    let provenance = Provenance {
        caller: &passage.caller,
        forwarded_for: arrival.connection.forwarded_for(&passage.caller),
        host: &arrival.host,
        scheme: arrival.connection.scheme,
        request_id: &arrival.request_id,
    };
    headers::to_upstream(&mut parts.headers, provenance, key_headers, upgrade);
    if progress.is_some() && upload.size_hint().exact().is_none() {
        // Said outright, or hyper would drop the body of a GET whose length is not known.
        parts
            .headers
            .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        parts.headers.remove(CONTENT_LENGTH);
    }
    let target = parts.uri.into_parts().path_and_query;
    let mut outgoing = Request::new(upload);
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = target.map_or_else(Uri::default, Uri::from);
    *outgoing.version_mut() = Version::HTTP_11;
    *outgoing.headers_mut() = parts.headers;
    (outgoing, progress)
}

/// Waits for a connection, but not past the exchange's end.
async fn reached<F: Future>(patience: &Patience, lease: F) -> Result<F::Output, ForwardError> {
    let lease = patience.within_total(lease).await;
    lease.map_err(ForwardError::NotReachedInTime)
}

fn rejection(error: &ForwardError, upstream: &Upstream) -> Rejection {
    let named = |what: &str| -> Cow<'static, str> {
        format!("The upstream '{}' {what}.", upstream.name).into()
    };
    match error {
        ForwardError::Connect(ConnectError::TimedOut(_)) | ForwardError::NotReachedInTime(_) => {
            Rejection::UpstreamTimeout {
                detail: named("could not be reached in time"),
            }
        }
        ForwardError::TimedOut(_) => Rejection::UpstreamTimeout {
            detail: named("did not answer in time"),
        },
        ForwardError::Connect(_) | ForwardError::Unsent(_) => Rejection::UpstreamUnavailable {
            detail: named("could not be reached"),
        },
        ForwardError::Exchange(_) => Rejection::UpstreamUnavailable {
            detail: named("broke off before it answered; whether it acted is not known"),
        },
        ForwardError::BadAnswer(_) => Rejection::UpstreamUnavailable {
            detail: named("gave an answer that is not valid HTTP"),
        },
        ForwardError::TooLarge(limit) => Rejection::PayloadTooLarge { limit: *limit },
        ForwardError::ClientFailed(Some(violation)) => (*violation).into(),
        ForwardError::ClientFailed(None) => Rejection::bad_request("The request body broke off."),
    }
}

impl HostHeader {
    fn write(&self, headers: &mut HeaderMap, server: &HeaderValue) {
        let host = match self {
            Self::Preserve => return,
            Self::Server => server.clone(),
            Self::Literal(host) => host.clone(),
        };
        headers.insert(HOST, host);
    }
}
