//! Why a request has no route, and the response to it.

use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};

use crate::request::path::{PathError, TooManyReadings};
use crate::respond::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteError {
    InvalidPath(PathError),
    TargetTooLong,
    NoRoute,
    MethodNotAllowed {
        /// Methods of the routes that match the path, sorted by name.
        allowed: Vec<Method>,
    },
    Ambiguous {
        /// `None` if no route matches the literal reading.
        literal: Option<Arc<str>>,
        /// `None` if no route matches this lenient reading.
        lenient: Option<Arc<str>>,
    },
    NotStrict {
        route: Arc<str>,
    },
    TooManyReadings {
        /// `None` if no route matches the literal reading.
        literal: Option<Arc<str>>,
    },
}

impl RouteError {
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous { .. } | Self::TooManyReadings { .. })
    }
}

impl From<PathError> for RouteError {
    fn from(error: PathError) -> Self {
        Self::InvalidPath(error)
    }
}

impl From<RouteError> for Problem {
    fn from(error: RouteError) -> Self {
        match error {
            RouteError::InvalidPath(error) => error.into(),
            RouteError::TargetTooLong => Self::bad_request(
                "The request target is too long. Percent-encoding of invalid characters increases its length.",
            ),
            RouteError::NoRoute => Self::new(
                StatusCode::NOT_FOUND,
                "no-route",
                "No route",
                "No route of the gateway matches the path of this request. Check the path.",
            ),
            RouteError::MethodNotAllowed { allowed } => {
                let names: Vec<_> = allowed.iter().map(Method::as_str).collect();
                let names = names.join(", ");
                let detail = format!(
                    "No route of the gateway matches this path with the method of the request. Allowed methods: {names}."
                );
                let allow = HeaderValue::from_str(&names).expect("methods are visible ASCII");
                Self::method_not_allowed(detail, allow)
            }
            RouteError::Ambiguous { literal, lenient } => Self::bad_request(format!(
                "The path is ambiguous. As it is written, it matches {}. A server that decodes or normalises it can \
                     read it as a path that matches {}. {}",
                describe(literal.as_deref()),
                describe(lenient.as_deref()),
                remedy(literal.as_deref())
            )),
            RouteError::NotStrict { route } => Self::bad_request(format!(
                "A server that decodes or normalises the path can read it as another path, and the route '{route}' \
                 accepts no such path (`paths = \"strict\"`). {AVOID}."
            )),
            RouteError::TooManyReadings { literal } => Self::bad_request(format!(
                "The path is ambiguous: {TooManyReadings}. {}",
                remedy(literal.as_deref())
            )),
        }
    }
}

fn describe(route: Option<&str>) -> String {
    route.map_or("no route".into(), |route| format!("the route '{route}'"))
}

const AVOID: &str = "Send a path without dot segments, `//`, `\\`, `;`, `%2F`, `%3F`, `%23`, a final `%0A`, \
                     nested escapes and escapes that are not UTF-8";

/// `literal` is the route of the literal reading.
fn remedy(literal: Option<&str>) -> String {
    match literal {
        Some(route) => format!(
            "{AVOID}, or set `ambiguous_paths = \"allow\"` in the route '{route}' if upstream reads the path as it is \
             written."
        ),
        None => format!("{AVOID}."),
    }
}
