//! Guide of the demo: commands to try, as text for the terminal and as a web page with buttons that send the requests.

use std::fmt::Write as _;
use std::net::SocketAddr;

use serde_json::{Value, json};

/// `{{host}}`, `{{dashboard}}` and `{{steps}}` are replaced.
const PAGE: &str = include_str!("page.html");

#[derive(Clone, Debug)]
pub(super) struct Guide {
    gateway: SocketAddr,
    admin: Option<SocketAddr>,
}

struct GuideStep {
    /// Only on the page.
    title: &'static str,
    text: &'static str,
    commands: Vec<String>,
    /// Requests that the button on the page sends: method, path, headers and body. Empty for no button.
    requests: Vec<Value>,
}

impl Guide {
    pub(super) fn new(gateway: SocketAddr, admin: Option<SocketAddr>) -> Self {
        Self { gateway, admin }
    }

    pub(super) fn for_terminal(&self) -> String {
        let gateway = self.gateway;
        let mut guide = format!(
            "Tidegate is running at http://{gateway} in front of a sample payments API.\n\n\
             Open http://{gateway}/ in a browser, or run these commands in another terminal. Each request adds a line \
             to the log below.\n"
        );
        if let Some(admin) = self.admin {
            let _ = writeln!(
                guide,
                "The dashboard at http://{admin}/ shows them as plots and tables."
            );
        }
        for step in self.steps(&gateway.to_string()) {
            guide.push('\n');
            guide.push_str(&step.for_terminal());
        }
        guide.push_str("\nPress Ctrl-C to stop.");
        guide
    }

    /// `host` is the address of the gateway.
    pub(super) fn as_text(&self, host: &str) -> String {
        let steps = self.steps(host);
        let steps: Vec<_> = steps.iter().map(GuideStep::for_terminal).collect();
        steps.join("\n")
    }

    pub(super) fn as_page(&self, host: &str) -> String {
        let steps: String = self.steps(host).iter().map(GuideStep::as_html).collect();
        let dashboard = self.admin.map_or(String::new(), |admin| {
            format!(
                "<p>The buttons move the plots of the <a href=\"http://{admin}/\" target=\"_blank\">dashboard</a>.</p>\n"
            )
        });
        PAGE.replace("{{host}}", &escape(host))
            .replace("{{dashboard}}", &dashboard)
            .replace("{{steps}}", &steps)
    }

    fn steps(&self, host: &str) -> Vec<GuideStep> {
        const ORDER: &str = r#"{"amount":1200,"currency":"EUR"}"#;
        let register = format!("http://{host}/o/client/register");
        let payments = format!("http://{host}/v1/payments");
        let status = "curl -s -o /dev/null -w '%{http_code}\\n'";
        let request = |path, header| json!({"method": "GET", "path": path, "headers": header});
        let other_order = ORDER.replace("1200", "9900");
        let pay = |headers: Value, order: &str| json!({"method": "POST", "path": "/v1/payments", "headers": headers, "body": order});
        let curl_pay = |key: &str, order: &str| {
            format!("curl -i -X POST -H 'Idempotency-Key: {key}' -d '{order}' {payments}")
        };
        let mut steps = vec![
            GuideStep {
                title: "Exceed a rate limit",
                text: "Registration: 1 request per second per client, with a burst of 3.\n\
                       The first four requests get 200. The next ones get 429 with Retry-After.",
                commands: vec![format!(
                    "for i in 1 2 3 4 5; do {status} {register}; done; curl -i {register}"
                )],
                requests: vec![request("/o/client/register", json!({})); 6],
            },
            GuideStep {
                title: "Be another client",
                text: "Each client has its own rate limit. The demo trusts X-Forwarded-For from 127.0.0.0/8, so this is \
                       another client:",
                commands: vec![format!(
                    "curl -i -H 'X-Forwarded-For: 203.0.113.7' {register}"
                )],
                requests: vec![request(
                    "/o/client/register",
                    json!({"X-Forwarded-For": "203.0.113.7"}),
                )],
            },
            GuideStep {
                title: "Repeat a payment safely",
                text: "Payments: 5 requests per second per client, with a burst of 10. Requests with the same \
                       Idempotency-Key make one payment.\n\
                       Send this request twice. The second response is the same payment, with `idempotent-replayed: \
                       true`.",
                commands: vec![curl_pay("order-17", ORDER)],
                requests: vec![pay(json!({"Idempotency-Key": "order-17"}), ORDER); 2],
            },
            GuideStep {
                title: "Use a key for another payment",
                text: "The same key with another payment gets 422, and this payment is not made. Without a key, each \
                       request makes a new payment:",
                commands: vec![
                    curl_pay("order-18", ORDER),
                    curl_pay("order-18", &other_order),
                    format!("curl -i -X POST -d '{ORDER}' {payments}"),
                ],
                requests: vec![
                    pay(json!({"Idempotency-Key": "order-18"}), ORDER),
                    pay(json!({"Idempotency-Key": "order-18"}), &other_order),
                    pay(json!({}), ORDER),
                ],
            },
            GuideStep {
                title: "Test a client with scripted failures",
                text: "The sample API can fail by a script, to test the retries of your client: 429, then 429 with \
                       `Retry-After: 2`, then 200.",
                commands: vec![format!(
                    "for i in 1 2 3; do {status} http://{host}/flaky/429,429:2,200; done"
                )],
                requests: vec![request("/flaky/429,429:2,200", json!({})); 3],
            },
        ];
        if let Some(admin) = self.admin {
            steps.push(GuideStep {
                title: "Read the metrics",
                text: "Metrics with the number of rejected requests:",
                commands: vec![format!(
                    "curl -s http://{admin}/metrics | grep '^tidegate_rejected_total'"
                )],
                requests: vec![],
            });
        }
        steps
    }
}

impl GuideStep {
    fn for_terminal(&self) -> String {
        let mut text = format!("{}\n\n", self.text);
        for command in &self.commands {
            text.push_str("  ");
            text.push_str(command);
            text.push('\n');
        }
        text
    }

    fn as_html(&self) -> String {
        let mut html = format!(
            "<section><h2>{}</h2><p>{}</p><pre>{}</pre>",
            escape(self.title),
            mark_code(&escape(self.text)),
            escape(&self.commands.join("\n"))
        );
        if !self.requests.is_empty() {
            let requests = escape(&Value::from(self.requests.clone()).to_string());
            let _ = write!(
                html,
                "<button type=\"button\" data-requests=\"{requests}\">Send from this page</button>\
                 <ol aria-live=\"polite\"></ol>"
            );
        }
        html + "</section>\n"
    }
}

/// Marks the parts of a text in backticks as code.
fn mark_code(html: &str) -> String {
    let mut marked = String::new();
    for (index, part) in html.split('`').enumerate() {
        match index % 2 {
            0 => marked.push_str(part),
            _ => marked.extend(["<code>", part, "</code>"]),
        }
    }
    marked
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guide() -> Guide {
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        Guide::new(address(8080), Some(address(9090)))
    }

    #[test]
    fn the_guide_in_the_terminal_says_where_to_run_the_commands() {
        let guide = guide().for_terminal();
        assert!(guide.contains("in another terminal"), "{guide}");
        assert!(
            guide.contains("Open http://127.0.0.1:8080/ in a browser"),
            "{guide}"
        );
        assert!(
            guide.contains("\nThe dashboard at http://127.0.0.1:9090/ "),
            "{guide}"
        );
        assert!(guide.ends_with("Press Ctrl-C to stop."), "{guide}");
    }

    #[test]
    fn the_page_has_all_commands_and_no_unescaped_host() {
        let page = guide().as_page("<b>:80");
        for step in guide().steps("<b>:80") {
            assert!(
                page.contains(&escape(&step.commands.join("\n"))),
                "{}",
                step.title
            );
        }
        assert!(!page.contains("<b>") && !page.contains("{{"), "{page}");
    }
}
