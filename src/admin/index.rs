//! Root of the admin listener: the dashboard for browsers, and a list of the endpoints for other clients. Both are
//! static, so they need no token, which a browser could not send anyway.

use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, HeaderMap, VARY};
use axum::response::{Html, IntoResponse, Response};

use super::dashboard::dashboard;

const ACCESS: &str = "\
If [admin] token is set, these endpoints require it, except /livez and /readyz:
curl -H 'Authorization: Bearer TOKEN' URL";

/// Browsers list `text/html` in `Accept`.
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
    format!("Tidegate admin API\n\n{ACCESS}\n\n{endpoints}")
}
