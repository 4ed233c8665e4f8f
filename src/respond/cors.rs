//! CORS headers, which permit browser code to read the responses of the gateway.
//!
//! Without them, a browser reports "network error" to the script instead of the 429. The gateway adds them to every
//! response that it generates, and to upstream responses that have none. A preflight from an origin that is not allowed
//! gets 204 without CORS headers, so the browser blocks the request.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::RespondSettings;

/// CORS settings: `[respond.cors]` of the configuration.
#[derive(Clone, Debug)]
pub struct Cors {
    /// Allowed values of `Origin`; `None` allows every origin.
    pub origins: Option<Vec<HeaderValue>>,
    /// Methods in `Access-Control-Allow-Methods`; `None` allows the method in `Access-Control-Request-Method`.
    pub methods: Option<Vec<Method>>,
    /// Names in `Access-Control-Allow-Headers`; `None` allows those in `Access-Control-Request-Headers`.
    pub headers: Option<Vec<HeaderName>>,
    /// Response headers that browser code can read in addition to those of the gateway.
    pub expose: Vec<HeaderName>,
    /// Whether the gateway sends `Access-Control-Allow-Credentials: true`.
    pub credentials: bool,
    /// Value of `Access-Control-Max-Age`.
    pub max_age: Duration,
}

/// `None` if the request is not a preflight.
pub(crate) fn preflight_method(method: &Method, headers: &HeaderMap) -> Option<Method> {
    if method != Method::OPTIONS || !headers.contains_key(ORIGIN) {
        return None;
    }
    let requested = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(requested.as_bytes()).ok()
}

impl Cors {
    /// Has no effect if `origin` is not allowed.
    pub(crate) fn write(
        &self,
        response: &mut HeaderMap,
        origin: Option<&HeaderValue>,
        settings: &RespondSettings,
    ) {
        if !self.allow_origin(response, origin) {
            return;
        }
        let mut exposed = String::from("Retry-After");
        let mut expose = |name: &str| {
            exposed.push_str(", ");
            exposed.push_str(name);
        };
        for hint in settings.hints.iter() {
            expose(hint.name());
        }
        for name in settings.rate_limit.header_names() {
            expose(name);
        }
        for name in &self.expose {
            expose(name.as_str());
        }
        let exposed = HeaderValue::try_from(exposed).expect("header names are visible ASCII");
        response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }

    /// For a response from the upstream.
    pub(crate) fn write_if_absent(
        &self,
        response: &mut HeaderMap,
        origin: Option<&HeaderValue>,
        settings: &RespondSettings,
    ) {
        if !response.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            self.write(response, origin, settings);
        }
    }

    pub(crate) fn preflight<B: From<Bytes>>(&self, request: &HeaderMap) -> Response<B> {
        let mut response = Response::new(B::from(Bytes::new()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        if self.allow_origin(headers, request.get(ORIGIN)) {
            let methods = match &self.methods {
                Some(methods) => join_names(methods.iter().map(Method::as_str)),
                None => request.get(ACCESS_CONTROL_REQUEST_METHOD).cloned(),
            };
            let allowed = match &self.headers {
                Some(names) => join_names(names.iter().map(HeaderName::as_str)),
                None => request.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned(),
            };
            let max_age = Some(HeaderValue::from(self.max_age.as_secs()));
            let grants = [
                (ACCESS_CONTROL_ALLOW_METHODS, methods),
                (ACCESS_CONTROL_ALLOW_HEADERS, allowed),
                (ACCESS_CONTROL_MAX_AGE, max_age),
            ];
            for (name, value) in grants {
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

    /// Returns whether the configuration allows `origin`.
    fn allow_origin(&self, response: &mut HeaderMap, origin: Option<&HeaderValue>) -> bool {
        // Otherwise a cache could serve the response for one origin to another.
        if !varies_by_origin(response) {
            response.append(VARY, HeaderValue::from_static("Origin"));
        }
        let Some(origin) = origin else {
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

fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> Option<HeaderValue> {
    let names: Vec<_> = names.collect();
    HeaderValue::try_from(names.join(", "))
        .ok()
        .filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::{Dialect, Hint, Hints};
    use super::*;

    const APP: &str = "https://app.example";

    fn cors() -> Cors {
        Cors {
            origins: Some(vec![HeaderValue::from_static(APP)]),
            methods: None,
            headers: None,
            expose: Vec::new(),
            credentials: false,
            max_age: Duration::from_mins(10),
        }
    }

    fn headers<const N: usize>(lines: [(&'static str, &'static str); N]) -> HeaderMap {
        lines
            .into_iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    /// Joins all values of a header with commas.
    fn all(headers: &HeaderMap, name: HeaderName) -> String {
        let lines: Vec<_> = headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect();
        lines.join(", ")
    }

    fn written(cors: &Cors, request: &HeaderMap) -> HeaderMap {
        let mut response = HeaderMap::new();
        cors.write(
            &mut response,
            request.get(ORIGIN),
            &RespondSettings::default(),
        );
        response
    }

    fn preflight(cors: &Cors, request: &HeaderMap) -> HeaderMap {
        let response: Response<Bytes> = cors.preflight(request);
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert!(response.body().is_empty());
        response.headers().clone()
    }

    #[test]
    fn a_preflight_is_an_options_request_with_an_origin_and_a_requested_method() {
        let complete = headers([("origin", APP), ("access-control-request-method", "PUT")]);
        assert_eq!(
            preflight_method(&Method::OPTIONS, &complete),
            Some(Method::PUT)
        );
        assert_eq!(preflight_method(&Method::GET, &complete), None);
        let no_origin = headers([("access-control-request-method", "PUT")]);
        assert_eq!(preflight_method(&Method::OPTIONS, &no_origin), None);
        let no_method = headers([("origin", APP)]);
        assert_eq!(preflight_method(&Method::OPTIONS, &no_method), None);
        let invalid = headers([("origin", APP), ("access-control-request-method", "P T")]);
        assert_eq!(preflight_method(&Method::OPTIONS, &invalid), None);
    }

    #[test]
    fn an_allowed_origin_is_echoed_and_may_read_retry_after() {
        let response = written(&cors(), &headers([("origin", APP)]));
        assert_eq!(response[ACCESS_CONTROL_ALLOW_ORIGIN], APP);
        assert_eq!(response[VARY], "Origin");
        assert_eq!(
            response[ACCESS_CONTROL_EXPOSE_HEADERS],
            "Retry-After, Retry-After-Ms, X-Should-Retry, RateLimit, RateLimit-Policy"
        );
        assert!(!response.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS));
    }

    #[test]
    fn exposed_headers_depend_on_the_dialect_the_hints_and_the_configuration() {
        let cors = Cors {
            expose: vec![HeaderName::from_static("x-served-by")],
            ..cors()
        };
        let exposed = |rate_limit, hints: &[Hint]| {
            let mut response = HeaderMap::new();
            let settings = RespondSettings {
                rate_limit,
                hints: hints.iter().copied().collect::<Hints>(),
                ..RespondSettings::default()
            };
            let origin = HeaderValue::from_static(APP);
            cors.write(&mut response, Some(&origin), &settings);
            all(&response, ACCESS_CONTROL_EXPOSE_HEADERS)
        };
        assert_eq!(
            exposed(Dialect::X, &[]),
            "Retry-After, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, x-served-by"
        );
        assert_eq!(
            exposed(Dialect::Off, &[Hint::Amz, Hint::Stripe]),
            "Retry-After, X-Amz-Retry-After, Stripe-Should-Retry, x-served-by"
        );
    }

    #[test]
    fn origins_that_are_not_allowed_get_only_vary() {
        let not_allowed = [
            headers([]),
            headers([("origin", "https://evil.example")]),
            headers([("origin", "https://app.example.evil.example")]),
            headers([("origin", "http://app.example")]),
            headers([("origin", "https://app.example:8443")]),
            headers([("origin", "null")]),
        ];
        for request in not_allowed {
            let response = written(&cors(), &request);
            assert_eq!(response.len(), 1, "{request:?}");
            assert_eq!(response[VARY], "Origin");
        }
    }

    #[test]
    fn an_existing_vary_header_is_extended() {
        let mut response = headers([("vary", "Accept")]);
        let origin = HeaderValue::from_static(APP);
        cors().write(&mut response, Some(&origin), &RespondSettings::default());
        assert_eq!(all(&response, VARY), "Accept, Origin");
    }

    #[test]
    fn any_origin_is_echoed_if_all_are_allowed() {
        let any_origin = Cors {
            origins: None,
            ..cors()
        };
        let response = written(&any_origin, &headers([("origin", "https://any.example")]));
        assert_eq!(response[ACCESS_CONTROL_ALLOW_ORIGIN], "https://any.example");
    }

    #[test]
    fn credentials_are_allowed_only_for_allowed_origins() {
        let with_credentials = Cors {
            credentials: true,
            ..cors()
        };
        let allowed = written(&with_credentials, &headers([("origin", APP)]));
        assert_eq!(allowed[ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        let other = headers([("origin", "https://evil.example")]);
        let not_allowed = written(&with_credentials, &other);
        assert!(!not_allowed.contains_key(ACCESS_CONTROL_ALLOW_CREDENTIALS));
    }

    #[test]
    fn a_preflight_is_allowed_what_it_requests_unless_the_configuration_has_a_list() {
        let request = headers([
            ("origin", APP),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-key, content-type"),
        ]);
        let response = preflight(&cors(), &request);
        assert_eq!(response[ACCESS_CONTROL_ALLOW_ORIGIN], APP);
        assert_eq!(response[ACCESS_CONTROL_ALLOW_METHODS], "PUT");
        assert_eq!(
            response[ACCESS_CONTROL_ALLOW_HEADERS],
            "x-key, content-type"
        );
        assert_eq!(response[ACCESS_CONTROL_MAX_AGE], "600");
        assert_eq!(
            all(&response, VARY),
            "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
        );

        let listed = Cors {
            methods: Some(vec![Method::GET, Method::POST]),
            headers: Some(vec![HeaderName::from_static("x-key")]),
            ..cors()
        };
        let response = preflight(&listed, &request);
        assert_eq!(response[ACCESS_CONTROL_ALLOW_METHODS], "GET, POST");
        assert_eq!(response[ACCESS_CONTROL_ALLOW_HEADERS], "x-key");

        let nothing = Cors {
            methods: Some(Vec::new()),
            headers: Some(Vec::new()),
            ..cors()
        };
        let response = preflight(&nothing, &request);
        assert!(!response.contains_key(ACCESS_CONTROL_ALLOW_METHODS));
        assert!(!response.contains_key(ACCESS_CONTROL_ALLOW_HEADERS));
    }
}
