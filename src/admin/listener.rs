//! The admin listener: `/livez`, `/readyz`, `/metrics`.
//!
//! Probes answer anybody, as whatever restarts or routes around a gateway has no token. The rest needs
//! the token where one is set; where none is, only a listener on a loopback address gives it, and then
//! only to a request made for a loopback host, so that no web page can have a browser read it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::config::AdminSettings;
use crate::gateway::Stop;

/// The text format Prometheus reads.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An admin listener at work, until dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    done: CancellationToken,
}

struct Office {
    registry: Registry,
    gateway: Stop,
    token: Option<String>,
    loopback: bool,
}

impl Admin {
    /// Serves on `socket`, on a thread of its own.
    pub fn start(
        socket: TcpListener,
        settings: &AdminSettings,
        registry: Registry,
        gateway: Stop,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let office = Arc::new(Office {
            registry,
            gateway,
            token: settings.token.clone(),
            loopback: settings.listen.ip().is_loopback(),
        });
        let done = CancellationToken::new();
        let stopped = done.clone().cancelled_owned();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("tidegate-admin".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let served = match tokio::net::TcpListener::from_std(socket) {
                        Ok(listener) => {
                            axum::serve(listener, router(office))
                                .with_graceful_shutdown(stopped)
                                .await
                        }
                        Err(error) => Err(error),
                    };
                    if let Err(error) = served {
                        tracing::error!(%error, "the admin listener stopped");
                    }
                });
            })?;
        Ok(Self { address, done })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.done.cancel();
    }
}

fn router(office: Arc<Office>) -> Router {
    let private = Router::new()
        .route("/metrics", get(metrics))
        .layer(middleware::from_fn_with_state(Arc::clone(&office), admit));
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .merge(private)
        .with_state(office)
}

async fn readyz(State(office): State<Arc<Office>>) -> Response {
    if office.gateway.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else {
        "ready\n".into_response()
    }
}

async fn metrics(State(office): State<Arc<Office>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &office.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn admit(State(office): State<Arc<Office>>, request: Request, next: Next) -> Response {
    match office.refusal(&request) {
        None => next.run(request).await,
        Some(why) => (StatusCode::FORBIDDEN, why).into_response(),
    }
}

impl Office {
    /// Why a request is not let in, if it is not.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        let header = |name| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if let Some(token) = &self.token {
            let presented = header(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
            let right = presented.is_some_and(|presented| same(presented, token));
            return (!right).then_some("present the admin token: Authorization: Bearer TOKEN\n");
        }
        if !self.loopback {
            return Some("set [admin] token to use this on an address others can reach\n");
        }
        let host = header(HOST).unwrap_or_default();
        if header(ORIGIN).is_some() || !is_loopback_host(host) {
            return Some(
                "this is not served to web pages, nor under another name than localhost\n",
            );
        }
        None
    }
}

fn is_loopback_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Compares without telling by its duration where two secrets differ.
fn same(presented: &str, expected: &str) -> bool {
    let (presented, expected) = (presented.as_bytes(), expected.as_bytes());
    let differing = presented
        .iter()
        .zip(expected)
        .fold(0, |bits, (a, b)| bits | (a ^ b));
    differing == 0 && presented.len() == expected.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn office(token: Option<&str>, loopback: bool) -> Office {
        Office {
            registry: Registry::default(),
            gateway: Stop::default(),
            token: token.map(Into::into),
            loopback,
        }
    }

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri("/metrics");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(axum::body::Body::empty()).unwrap()
    }

    #[test]
    fn a_loopback_listener_serves_only_requests_made_for_a_loopback_host() {
        let office = office(None, true);
        for host in [
            "127.0.0.1:9090",
            "localhost:9090",
            "[::1]:9090",
            "localhost",
            "127.8.8.8",
        ] {
            assert_eq!(office.refusal(&request(&[("host", host)])), None, "{host}");
        }
        for host in [
            "rebound.example:9090",
            "10.0.0.1",
            "",
            "localhost.evil.example",
        ] {
            assert!(
                office.refusal(&request(&[("host", host)])).is_some(),
                "{host}"
            );
        }
    }

    #[test]
    fn a_web_page_of_another_origin_is_refused() {
        let office = office(None, true);
        let page = request(&[
            ("host", "localhost:9090"),
            ("origin", "https://evil.example"),
        ]);
        assert!(office.refusal(&page).is_some());
    }

    #[test]
    fn without_a_token_nothing_is_given_to_the_outside() {
        assert!(
            office(None, false)
                .refusal(&request(&[("host", "localhost")]))
                .is_some()
        );
    }

    #[test]
    fn where_a_token_is_set_it_must_be_presented_whole() {
        let office = office(Some("secret"), false);
        let with = |value| request(&[("authorization", value)]);
        assert_eq!(office.refusal(&with("Bearer secret")), None);
        for wrong in [
            "Bearer secre",
            "Bearer secrets",
            "Bearer ",
            "secret",
            "Basic secret",
        ] {
            assert!(office.refusal(&with(wrong)).is_some(), "{wrong}");
        }
        assert!(office.refusal(&request(&[])).is_some());
    }
}
