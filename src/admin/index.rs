//! Root of the admin listener: the dashboard for browsers, and a list of the endpoints as plain text for other clients.
//!
//! Both are static and contain no data of the gateway. So they need no token, which a browser could not send anyway.

use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, HeaderMap, VARY};
use axum::response::{Html, IntoResponse, Response};

use super::dashboard::dashboard;

/// Text above the list, and the command that it introduces.
const ACCESS: [&str; 2] = [
    "If [admin] token is set, these endpoints require it, except /livez and /readyz:",
    "curl -H 'Authorization: Bearer TOKEN' URL",
];

/// Returns the dashboard if `Accept` lists `text/html`, as browsers do, and a list of the endpoints otherwise.
pub(super) fn show(headers: &HeaderMap, endpoints: &str) -> Response {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|line| line.to_str().ok());
    let vary = [(VARY, "accept")];
    if accepted.any(|line| line.contains("text/html")) {
        let dashboard = dashboard(&text(endpoints));
        let policy = [(CONTENT_SECURITY_POLICY, dashboard.policy.clone())];
        (vary, policy, Html(dashboard.page.as_str())).into_response()
    } else {
        (vary, text(endpoints)).into_response()
    }
}

fn text(endpoints: &str) -> String {
    let [access, command] = ACCESS;
    format!("Tidegate admin API\n\n{access}\n{command}\n\n{endpoints}")
}
