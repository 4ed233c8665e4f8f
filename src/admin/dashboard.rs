//! Root of the admin listener: the dashboard for browsers, which reads the admin API, and a list of the endpoints for
//! other clients. Both are static, so they need no token, which a browser could not send anyway.
//!
//! The page is one document. Its policy names the style sheet and the script by their hashes, so a text that a client
//! brings into the page can become neither. `EventSource` is not used, because it cannot send the token.

use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

/// `{{style}}`, `{{endpoints}}` and `{{script}}` are replaced.
const PAGE: &str = include_str!("dashboard/page.html");
const STYLE: &str = include_str!("dashboard/page.css");
const SCRIPT: &str = concat!(
    include_str!("dashboard/elements.js"),
    include_str!("dashboard/polling.js"),
    include_str!("dashboard/traffic.js"),
    include_str!("dashboard/sections.js"),
    include_str!("dashboard/client.js"),
);

const ACCESS: &str = "\
If [admin] token is set, these endpoints require it, except /livez and /readyz:
curl -H 'Authorization: Bearer TOKEN' URL";

pub(super) struct Index {
    page: String,
    policy: HeaderValue,
    list: String,
}

impl Index {
    pub(super) fn new(endpoints: &str) -> Self {
        let list = format!("Tidegate admin API\n\n{ACCESS}\n\n{endpoints}");
        let escaped = list.replace('&', "&amp;").replace('<', "&lt;");
        let page = PAGE
            .replace("{{style}}", STYLE)
            .replace("{{endpoints}}", &escaped)
            .replace("{{script}}", SCRIPT);
        let hash = |source: &str| STANDARD.encode(digest(&SHA256, source.as_bytes()));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        let policy = HeaderValue::try_from(policy).expect("base64 is valid in a header");
        Self { page, policy, list }
    }

    /// Browsers list `text/html` in `Accept`.
    pub(super) fn show(&self, headers: &HeaderMap) -> Response {
        let accepted = headers.get_all(ACCEPT).iter();
        let mut accepted = accepted.filter_map(|line| line.to_str().ok());
        let vary = [(VARY, "accept")];
        if accepted.any(|line| line.contains("text/html")) {
            let policy = [(CONTENT_SECURITY_POLICY, self.policy.clone())];
            (vary, policy, Html(self.page.clone())).into_response()
        } else {
            (vary, self.list.clone()).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document_without_inline_handlers_styles_and_external_resources() {
        let page = Index::new("GET /a <b>").page;
        for part in [STYLE, SCRIPT, "GET /a &lt;b>"] {
            assert!(page.contains(part), "{part}");
        }
        let markup = page.replace(STYLE, "").replace(SCRIPT, "");
        for part in ["{{", "style=", " onclick", " src=", "http://", "https://"] {
            assert!(!markup.contains(part), "{part}");
        }
        // These would end the elements early.
        assert!(!STYLE.contains("</") && !SCRIPT.contains("</script") && !SCRIPT.contains("<!--"));
        assert!(!SCRIPT.contains("innerHTML"));
    }
}
