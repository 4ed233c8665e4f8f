//! Index page of the admin listener: a list of the endpoints, as HTML or plain text.
//!
//! The page is static and contains no data of the gateway. So it needs no token, which a browser could not send anyway.

use std::fmt::Write as _;

use axum::http::header::{
    ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
};
use axum::response::{IntoResponse, Response};

/// Endpoints of the admin listener: path, description, and whether `GET` works without parameters in the path.
const ENDPOINTS: &[(&str, &str, bool)] = &[
    ("/livez", "200 while the process runs", true),
    (
        "/readyz",
        "200, or 503 while the gateway drains; names a store that fails",
        true,
    ),
    ("/metrics", "Metrics in the OpenMetrics text format", true),
    (
        "/admin/v1/config",
        "Configuration in force, and the result of the last reload",
        true,
    ),
    ("/admin/v1/reload", "POST reloads the configuration", false),
    (
        "/admin/v1/drain",
        "POST ends the gateway after a drain; requires a token",
        false,
    ),
    (
        "/admin/v1/idempotency",
        "Number of idempotency records by state",
        true,
    ),
    (
        "/admin/v1/idempotency/keys/KEY",
        "Records of a key; DELETE frees a key whose outcome is unknown",
        false,
    ),
    (
        "/admin/v1/upstreams",
        "State of all upstreams and their servers",
        true,
    ),
    ("/admin/v1/upstreams/NAME", "State of one upstream", false),
    (
        "/admin/v1/upstreams/NAME/servers/HOST:PORT/open or /close",
        "POST opens or closes the circuit of a server",
        false,
    ),
    #[cfg(feature = "lab")]
    (
        "/admin/v1/lab/runs",
        "Runs of scenarios; POST starts a run",
        true,
    ),
    #[cfg(feature = "lab")]
    (
        "/admin/v1/lab/runs/ID",
        "Verdict on the client of a run; DELETE removes the run",
        false,
    ),
];

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
pub(super) async fn show(headers: HeaderMap) -> Response {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|line| line.to_str().ok());
    let (content_type, body) = if accepted.any(|line| line.contains("text/html")) {
        ("text/html; charset=utf-8", html())
    } else {
        ("text/plain; charset=utf-8", text())
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

/// Returns the paths of all endpoints, separated by commas.
pub(super) fn paths() -> String {
    let paths: Vec<_> = ENDPOINTS.iter().map(|(path, ..)| *path).collect();
    paths.join(", ")
}

fn text() -> String {
    let width = ENDPOINTS.iter().map(|(path, ..)| path.len()).max();
    let width = width.unwrap_or_default();
    let [access, command] = ACCESS;
    let mut page = format!("Tidegate admin API\n\n{access}\n{command}\n\n");
    for (path, description, _) in ENDPOINTS {
        writeln!(page, "{path:width$}  {description}").expect("a String accepts all text");
    }
    page
}

fn html() -> String {
    let [access, command] = ACCESS;
    let mut rows = String::new();
    for (path, description, is_link) in ENDPOINTS {
        let path = if *is_link {
            format!("<a href=\"{path}\">{path}</a>")
        } else {
            (*path).to_owned()
        };
        writeln!(
            rows,
            "<tr><td><code>{path}</code></td><td>{description}</td></tr>"
        )
        .expect("a String accepts all text");
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Tidegate admin API</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Tidegate admin API</h1>\n<p>{access}<br><code>{command}</code></p>\n\
         <table>\n{rows}</table>\n</body>\n</html>\n"
    )
}
