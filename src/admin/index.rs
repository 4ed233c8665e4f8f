//! Index page of the admin listener: a list of the endpoints, as HTML or plain text.
//!
//! The page is static and contains no data of the gateway. So it needs no token, which a browser could not send anyway.

use axum::http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
};
use axum::response::{IntoResponse, Response};

/// Text above the list, and the command that it introduces.
const ACCESS: [&str; 2] = [
    "If [admin] token is set, these endpoints require it, except /livez and /readyz:",
    "curl -H 'Authorization: Bearer TOKEN' URL",
];

/// The page uses one inline style sheet, and neither scripts nor other resources.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const STYLE: &str = "\
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td { border-top: 1px solid #8886; padding: .4rem 1rem .4rem 0; vertical-align: top }
code { font: 14px/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
";

/// Returns the index page. It is HTML if `Accept` lists `text/html`, as browsers do, and plain text otherwise.
pub(super) fn show(headers: &HeaderMap, endpoints: &str) -> Response {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|line| line.to_str().ok());
    let (content_type, body) = if accepted.any(|line| line.contains("text/html")) {
        ("text/html; charset=utf-8", html(endpoints))
    } else {
        ("text/plain; charset=utf-8", text(endpoints))
    };
    let fields = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (VARY, "accept"),
    ];
    (
        fields.map(|(name, value)| (name, HeaderValue::from_static(value))),
        body,
    )
        .into_response()
}

fn text(endpoints: &str) -> String {
    let [access, command] = ACCESS;
    format!("Tidegate admin API\n\n{access}\n{command}\n\n{endpoints}")
}

fn html(endpoints: &str) -> String {
    let [access, command] = ACCESS;
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Tidegate admin API</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Tidegate admin API</h1>\n<p>{access}<br><code>{command}</code></p>\n\
         <pre>{endpoints}</pre>\n</body>\n</html>\n"
    )
}
