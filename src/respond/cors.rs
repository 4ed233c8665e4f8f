//! Letting browser code read what the gateway says.
//!
//! Without these headers a script sees only "network error" where a 429 stood. They go on every response
//! the gateway makes, and on proxied ones whose upstream sent none of its own. A preflight whose origin
//! is not allowed gets the same empty answer without them: the browser then refuses on its own.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::{Dialect, rate_limit};

/// Which browser code may read the gateway's responses: `[respond.cors]`.
#[derive(Clone, Debug)]
pub struct Cors {
    /// The origins allowed, as browsers write them; `None` for any.
    pub origins: Option<Vec<HeaderValue>>,
    /// Methods a preflight is told; `None` for the one it asked about.
    pub methods: Option<Vec<Method>>,
    /// Request headers a preflight is told; `None` for those it asked about.
    pub headers: Option<Vec<HeaderName>>,
    /// Response headers exposed beside `Retry-After` and the `RateLimit` ones.
    pub expose: Vec<HeaderName>,
    /// Whether credentials may be sent along.
    pub credentials: bool,
    /// How long a browser may keep a preflight's answer.
    pub max_age: Duration,
}

/// The method a CORS preflight asks about, if the request is one.
pub fn preflight_method(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let asked = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(asked.as_bytes()).ok()
}

impl Cors {
    /// Adds what lets the origin that sent `request` read a response, if it may.
    pub fn write(&self, response: &mut HeaderMap, request: &HeaderMap, dialect: Dialect) {
        if !self.grant(response, request) {
            return;
        }
        let mut exposed = String::from("Retry-After");
        let names = rate_limit::names(dialect).iter().copied();
        for name in names.chain(self.expose.iter().map(HeaderName::as_str)) {
            exposed.push_str(", ");
            exposed.push_str(name);
        }
        let exposed = HeaderValue::try_from(exposed).expect("header names are visible ASCII");
        response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }

    /// Adds the same to a response of upstream's, asked for by a page of `origin`, unless upstream has
    /// said itself who may read it.
    pub fn complete(
        &self,
        response: &mut HeaderMap,
        origin: Option<HeaderValue>,
        dialect: Dialect,
    ) {
        if response.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            return;
        }
        let mut request = HeaderMap::new();
        if let Some(origin) = origin {
            request.insert(ORIGIN, origin);
        }
        self.write(response, &request, dialect);
    }

    /// The gateway's own answer to the preflight with these headers.
    pub fn preflight<B: From<Bytes>>(&self, request: &HeaderMap) -> Response<B> {
        let mut response = Response::new(B::from(Bytes::new()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        if self.grant(headers, request) {
            let methods = match &self.methods {
                Some(methods) => listed(methods.iter().map(Method::as_str)),
                None => request.get(ACCESS_CONTROL_REQUEST_METHOD).cloned(),
            };
            let allowed = match &self.headers {
                Some(names) => listed(names.iter().map(HeaderName::as_str)),
                None => request.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned(),
            };
            let max_age = Some(HeaderValue::from(self.max_age.as_secs()));
            let answers = [
                (ACCESS_CONTROL_ALLOW_METHODS, methods),
                (ACCESS_CONTROL_ALLOW_HEADERS, allowed),
                (ACCESS_CONTROL_MAX_AGE, max_age),
            ];
            for (name, value) in answers {
                if let Some(value) = value {
                    headers.insert(name, value);
                }
            }
            headers.append(
                VARY,
                HeaderValue::from_static(
                    "Access-Control-Request-Method, Access-Control-Request-Headers",
                ),
            );
        }
        response
    }

    /// Names the origin of `request` as one that may read the response, if it may.
    fn grant(&self, response: &mut HeaderMap, request: &HeaderMap) -> bool {
        // Said even where no origin is granted, or a cache would hand one origin's answer to another.
        if !varies_by_origin(response) {
            response.append(VARY, HeaderValue::from_static("Origin"));
        }
        let Some(origin) = request.get(ORIGIN) else {
            return false;
        };
        let allowed = self
            .origins
            .as_ref()
            .is_none_or(|origins| origins.contains(origin));
        if allowed {
            response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            if self.credentials {
                response.insert(
                    ACCESS_CONTROL_ALLOW_CREDENTIALS,
                    HeaderValue::from_static("true"),
                );
            }
        }
        allowed
    }
}

fn varies_by_origin(response: &HeaderMap) -> bool {
    let lines = response.get_all(VARY).iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case("origin"))
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Option<HeaderValue> {
    let names: Vec<_> = names.collect();
    HeaderValue::try_from(names.join(", "))
        .ok()
        .filter(|value| !value.is_empty())
}
