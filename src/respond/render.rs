//! Renders a problem as a response in the format that `Accept` prefers: problem+json, HTML or plain text.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use super::retry_after::{self, whole_seconds};
use super::{Preferences, RespondSettings};
use crate::clock::Clock;
use crate::respond::{HEADER_CAPACITY, Problem, Retry, RetryAfterForm};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProblemFormat {
    Json,
    Html,
    Text,
}

const RANGES: [(&str, ProblemFormat); 8] = [
    ("*/*", ProblemFormat::Json),
    ("application/json", ProblemFormat::Json),
    ("application/problem+json", ProblemFormat::Json),
    ("application/*", ProblemFormat::Json),
    ("text/html", ProblemFormat::Html),
    ("application/xhtml+xml", ProblemFormat::Html),
    ("text/plain", ProblemFormat::Text),
    ("text/*", ProblemFormat::Text),
];

pub(crate) fn render<B: From<Bytes>>(
    mut problem: Problem,
    preferences: &Preferences,
    settings: &RespondSettings,
    clock: &Clock,
) -> Response<B> {
    let (content_type, body) = if let Some(fallback) = problem.fallback.take() {
        (fallback.content_type, fallback.body)
    } else {
        let format = ProblemFormat::preferred(&preferences.accept);
        (format.content_type(), format.render(&problem, preferences))
    };
    let mut response = Response::new(B::from(body));
    *response.status_mut() = problem.status;
    let headers = response.headers_mut();
    *headers = std::mem::take(&mut problem.headers);
    let expected = HEADER_CAPACITY + settings.headers.len();
    headers.reserve(expected.saturating_sub(headers.len()));
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(
        CACHE_CONTROL,
        const { HeaderValue::from_static("no-store") },
    );
    match problem.retry {
        Retry::After(wait, form) => {
            // Only a date needs the wall clock.
            let wall = match form {
                RetryAfterForm::Seconds => SystemTime::UNIX_EPOCH,
                RetryAfterForm::HttpDate => clock.wall(),
            };
            headers.insert(RETRY_AFTER, retry_after::header(wait, form, wall));
            settings.hints.retry_after(wait, headers);
        }
        Retry::Never => settings.hints.do_not_retry(headers),
        Retry::Unspecified => {}
    }
    settings.add_headers(headers);
    if let Some(docs) = &settings.docs {
        headers.append(LINK, docs.clone());
    }
    if let Some(cors) = &settings.cors {
        cors.write(headers, preferences.origin(), settings);
    }
    response
}

impl ProblemFormat {
    /// Highest weight in `Accept`, then first. JSON if `Accept` contains none of [`RANGES`].
    fn preferred(accept: &[HeaderValue]) -> Self {
        // Most requests have one of these values or no `Accept`, and need no parsing.
        if accept
            .iter()
            .all(|line| line == "*/*" || line == "application/json")
        {
            return Self::Json;
        }
        let mut best = (0, Self::Json);
        for range in accept
            .iter()
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
        {
            let mut parts = range.split(';').map(str::trim);
            let range = parts.next().unwrap_or_default();
            let Some((_, format)) = RANGES
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(range))
            else {
                continue;
            };
            let weight = parts
                .find_map(|parameter| parameter.strip_prefix("q="))
                .map_or(1_000, thousandths);
            if weight > best.0 {
                best = (weight, *format);
            }
        }
        best.1
    }

    fn content_type(self) -> HeaderValue {
        match self {
            Self::Json => const { HeaderValue::from_static("application/problem+json") },
            Self::Html => const { HeaderValue::from_static("text/html; charset=utf-8") },
            Self::Text => const { HeaderValue::from_static("text/plain; charset=utf-8") },
        }
    }

    fn render(self, problem: &Problem, preferences: &Preferences) -> Bytes {
        match self {
            Self::Json => json(problem, preferences),
            Self::Text => format!("{}\n\n{}\n", problem.title, problem.detail).into_bytes(),
            Self::Html => html(problem).into_bytes(),
        }
        .into()
    }
}

/// Without the additional member `error`, Stripe's SDK for Node would treat the response as a success, and other SDKs
/// would show no message.
fn json(problem: &Problem, preferences: &Preferences) -> Vec<u8> {
    let (kind, title) = (problem.kind.as_bytes(), problem.title.as_bytes());
    let mut out = Vec::with_capacity(640);
    out.extend_from_slice(br#"{"type":"urn:tidegate:problem:"#);
    out.extend_from_slice(kind);
    out.extend_from_slice(br#"","title":""#);
    out.extend_from_slice(title);
    out.extend_from_slice(br#"","status":"#);
    out.extend_from_slice(problem.status.as_str().as_bytes());
    out.extend_from_slice(br#","detail":""#);
    let start = out.len();
    out.extend_from_slice(problem.detail.as_bytes());
    escape_json(&mut out, start);
    let detail = start..out.len();
    out.push(b'"');
    if problem.is_outcome_unknown {
        out.extend_from_slice(br#","outcome":"unknown""#);
    }
    if let Some(phase) = problem.timeout {
        out.extend_from_slice(br#","timeout":""#);
        out.extend_from_slice(phase.name().as_bytes());
        out.push(b'"');
    }
    if let Retry::After(wait, _) = problem.retry {
        out.extend_from_slice(br#","retry_after":"#);
        out.extend_from_slice(itoa::Buffer::new().format(whole_seconds(wait)).as_bytes());
    }
    if let [first, others @ ..] = &*problem.violated {
        out.extend_from_slice(br#","violated-policies":["#);
        append_quoted(&mut out, first);
        for name in others {
            out.push(b',');
            append_quoted(&mut out, name);
        }
        out.push(b']');
    }
    if let Some(trace) = preferences.trace() {
        out.extend_from_slice(br#","trace_id":""#);
        out.extend_from_slice(trace.as_str().as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(br#","error":{"type":""#);
    out.extend_from_slice(error_type(problem.status).as_bytes());
    out.extend_from_slice(br#"","code":""#);
    out.extend_from_slice(kind);
    out.extend_from_slice(br#"","message":""#);
    out.extend_from_slice(title);
    out.extend_from_slice(b": ");
    out.extend_from_within(detail);
    out.extend_from_slice(br#""}}"#);
    out
}

/// SDKs select an error class by this value.
pub(crate) fn error_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        429 => "rate_limit_error",
        409 | 422 => "idempotency_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// From `start` to the end of `out`. Few texts contain special characters, so one check of all bytes is faster than a
/// writer that escapes byte by byte.
fn escape_json(out: &mut Vec<u8>, start: usize) {
    let special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    if out[start..]
        .iter()
        .fold(false, |found, byte| found | special(byte))
    {
        let text = String::from_utf8_lossy(&out[start..]);
        let quoted = serde_json::to_string(&text).expect("a string is always JSON");
        out.truncate(start);
        out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
    }
}

fn append_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let start = out.len();
    out.extend_from_slice(text.as_bytes());
    escape_json(out, start);
    out.push(b'"');
}

fn html(problem: &Problem) -> String {
    let (title, detail) = (problem.title, escape(&problem.detail));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{code} {title}</title>\
         <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:15vh auto;padding:0 1em;\
         color:#222;background:#fff}}h1{{font-size:1.4em}}h1 span{{color:#888;font-weight:400}}\
         @media(prefers-color-scheme:dark){{body{{color:#ddd;background:#181818}}}}</style></head>\n\
         <body><h1><span>{code}</span> {title}</h1><p>{detail}</p></body>\n</html>\n",
        code = problem.status.as_u16(),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// An invalid weight is treated as 1,000, the maximum.
fn thousandths(weight: &str) -> u32 {
    let valid = weight
        .parse::<f32>()
        .ok()
        .filter(|weight| (0.0..=1.0).contains(weight));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is between 0 and 1000"
    )]
    valid.map_or(1_000, |weight| (weight * 1_000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Hint;
    use super::*;
    use crate::respond::TimeoutPhase;

    fn preferred(accept: &'static str) -> ProblemFormat {
        ProblemFormat::preferred(&[HeaderValue::from_static(accept)])
    }

    fn unavailable() -> Problem {
        let detail = "The connection was reset.";
        Problem::new(
            StatusCode::BAD_GATEWAY,
            "upstream-unavailable",
            "Upstream unavailable",
            detail,
        )
    }

    #[test]
    fn the_format_with_the_highest_weight_is_selected_and_json_is_the_default() {
        assert_eq!(ProblemFormat::preferred(&[]), ProblemFormat::Json);
        assert_eq!(preferred("*/*"), ProblemFormat::Json);
        assert_eq!(
            preferred("text/html,application/xhtml+xml,*/*;q=0.8"),
            ProblemFormat::Html
        );
        assert_eq!(preferred("text/plain"), ProblemFormat::Text);
        assert_eq!(
            preferred("text/plain;q=0.5, application/json;q=0.9"),
            ProblemFormat::Json
        );
        assert_eq!(
            preferred("text/html;q=0, text/plain;q=0.1"),
            ProblemFormat::Text
        );
        assert_eq!(preferred("image/png"), ProblemFormat::Json);
        assert_eq!(preferred("TEXT/HTML; q=1.0"), ProblemFormat::Html);
        assert_eq!(preferred(";;;q=,,"), ProblemFormat::Json);
    }

    #[test]
    fn all_valid_accept_lines_and_the_first_origin_are_used() {
        let mut headers = http::HeaderMap::new();
        for (name, value) in [
            ("accept", &b"image/png"[..]),
            ("accept", b"\xff"),
            ("accept", b"text/html"),
            ("origin", b"https://app.example"),
            ("origin", b"https://evil.example"),
        ] {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        let preferences = Preferences::of(&headers);
        assert_eq!(
            ProblemFormat::preferred(&preferences.accept),
            ProblemFormat::Html
        );
        assert_eq!(preferences.origin().unwrap(), "https://app.example");
    }

    #[test]
    fn a_hint_is_true_with_retry_after_and_false_if_a_retry_cannot_succeed() {
        let settings = RespondSettings {
            hints: [Hint::Ms, Hint::ShouldRetry, Hint::Stripe, Hint::Amz]
                .into_iter()
                .collect(),
            ..RespondSettings::default()
        };
        let wait = Duration::from_millis(1_500);
        for (problem, expected, wait) in [
            (unavailable(), None, None),
            (unavailable().never_retry(), Some("false"), None),
            (unavailable().retry_after(wait), Some("true"), Some("1500")),
            (Problem::payload_too_large(1), Some("false"), None),
            (Problem::bad_request("no"), Some("false"), None),
        ] {
            let preferences = Preferences::default();
            let response: Response<Bytes> =
                render(problem.clone(), &preferences, &settings, &Clock::real());
            let header = |name| {
                let value = response.headers().get(name);
                value.map(|value: &HeaderValue| value.to_str().unwrap())
            };
            assert_eq!(header("x-should-retry"), expected, "{problem:?}");
            assert_eq!(header("stripe-should-retry"), expected, "{problem:?}");
            assert_eq!(header("retry-after"), wait.map(|_| "2"), "{problem:?}");
            assert_eq!(header("retry-after-ms"), wait, "{problem:?}");
            assert_eq!(header("x-amz-retry-after"), wait);
        }
    }

    #[test]
    fn the_fields_of_a_problem_are_members_of_its_document() {
        let mut problem = unavailable().retry_after(Duration::from_secs(3));
        let plain: serde_json::Value =
            serde_json::from_slice(&json(&problem, &Preferences::default())).unwrap();
        for member in ["outcome", "timeout", "violated-policies"] {
            assert!(plain.get(member).is_none(), "{member}");
        }
        problem.is_outcome_unknown = true;
        problem.timeout = Some(TimeoutPhase::FirstByte);
        problem.violated.extend(["device".into(), "global".into()]);
        let json: serde_json::Value =
            serde_json::from_slice(&json(&problem, &Preferences::default())).unwrap();
        assert_eq!(json["outcome"], "unknown");
        assert_eq!(json["timeout"], "first-byte");
        assert_eq!(json["retry_after"], 3);
        assert_eq!(
            json["violated-policies"],
            serde_json::json!(["device", "global"])
        );
    }

    #[test]
    fn special_characters_in_a_detail_are_escaped_in_json_and_html() {
        let problem = Problem::bad_request("a \"quote\" \n and <script>");
        let json: serde_json::Value =
            serde_json::from_slice(&ProblemFormat::Json.render(&problem, &Preferences::default()))
                .unwrap();
        assert_eq!(json["detail"], "a \"quote\" \n and <script>");
        let error = &json["error"];
        assert_eq!(error["message"], "Bad request: a \"quote\" \n and <script>");
        let html = ProblemFormat::Html.render(&problem, &Preferences::default());
        assert!(!String::from_utf8_lossy(&html).contains("<script>"));
    }
}
