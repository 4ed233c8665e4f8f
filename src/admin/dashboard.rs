//! The dashboard: the page at `/` for browsers. It reads the admin API and has no data of its own.
//!
//! The page is one document. Its policy names the style sheet and the script by their hashes, so a text that a client
//! brings into the page can become neither. `EventSource` is not used, because it cannot send the token.

use std::sync::OnceLock;

use axum::http::HeaderValue;
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

pub(super) struct Dashboard {
    pub(super) page: String,
    pub(super) policy: HeaderValue,
}

/// `endpoints` is the list of the endpoints, which is always the same.
pub(super) fn dashboard(endpoints: &str) -> &'static Dashboard {
    static DASHBOARD: OnceLock<Dashboard> = OnceLock::new();
    DASHBOARD.get_or_init(|| Dashboard::new(endpoints))
}

impl Dashboard {
    fn new(endpoints: &str) -> Self {
        let page = PAGE
            .replace("{{style}}", STYLE)
            .replace(
                "{{endpoints}}",
                &endpoints.replace('&', "&amp;").replace('<', "&lt;"),
            )
            .replace("{{script}}", SCRIPT);
        let hash = |source: &str| STANDARD.encode(digest(&SHA256, source.as_bytes()));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        let policy = HeaderValue::try_from(policy).expect("base64 is valid in a header");
        Self { page, policy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document_without_inline_handlers_styles_and_external_resources() {
        let page = Dashboard::new("GET /a <b>").page;
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
