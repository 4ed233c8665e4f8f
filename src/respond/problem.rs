//! A rejection as a response: problem+json, HTML or plain text, whichever `Accept` prefers.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, LINK, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::retry_after::{self, whole_seconds};
use super::{Manner, Rejection};
use crate::clock::Clock;
use crate::throttle::RetryAfterForm;

/// Capacity for the headers of a rejection without hints and configured headers, including those that later stages
/// add.
const HEADERS: usize = 10;

/// The forms of a problem response, the default first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Html,
    Text,
}

/// The media ranges of `Accept` that select a form.
const RANGES: [(&str, Form); 8] = [
    ("*/*", Form::Json),
    ("application/json", Form::Json),
    ("application/problem+json", Form::Json),
    ("application/*", Form::Json),
    ("text/html", Form::Html),
    ("application/xhtml+xml", Form::Html),
    ("text/plain", Form::Text),
    ("text/*", Form::Text),
];

/// Renders `rejection` as the response to a request with these headers.
pub fn response<B: From<Bytes>>(
    rejection: &Rejection,
    request: &HeaderMap,
    manner: &Manner,
    clock: &Clock,
) -> Response<B> {
    let (content_type, body) = if let Some(fallback) = rejection.fallback() {
        (fallback.content_type.clone(), fallback.body.clone())
    } else {
        let form = Form::preferred(request);
        (form.content_type(), form.render(rejection))
    };
    let mut response = Response::new(B::from(body));
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    headers.reserve(HEADERS + manner.hints.iter().len() + manner.headers.len());
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(
        CACHE_CONTROL,
        const { HeaderValue::from_static("no-store") },
    );
    if let Some((wait, form)) = rejection.wait() {
        // Only a date needs the wall clock.
        let wall = match form {
            RetryAfterForm::Seconds => SystemTime::UNIX_EPOCH,
            RetryAfterForm::HttpDate => clock.wall(),
        };
        headers.insert(RETRY_AFTER, retry_after::header(wait, form, wall));
        manner.hints.retry_after(wait, headers);
    } else if rejection.is_final() {
        manner.hints.do_not_retry(headers);
    }
    if let Some(allow) = rejection.allow() {
        headers.insert(ALLOW, allow);
    }
    manner.add_headers(headers);
    if let Some(docs) = &manner.docs {
        headers.append(LINK, docs.clone());
    }
    if let Some(cors) = &manner.cors {
        cors.write(headers, request, manner);
    }
    response
}

impl Form {
    /// The form with the highest weight in `Accept`, the earlier one of equal weights, and JSON if `Accept` names none.
    fn preferred(request: &HeaderMap) -> Self {
        let lines = request.get_all(ACCEPT);
        // Most clients send no `Accept`, or one of these.
        if lines
            .iter()
            .all(|line| line == "*/*" || line == "application/json")
        {
            return Self::Json;
        }
        let mut best = (0, Self::Json);
        for range in lines
            .iter()
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
        {
            let mut parts = range.split(';').map(str::trim);
            let range = parts.next().unwrap_or_default();
            let Some((_, form)) = RANGES
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(range))
            else {
                continue;
            };
            let weight = parts
                .find_map(|parameter| parameter.strip_prefix("q="))
                .map_or(1_000, thousandths);
            if weight > best.0 {
                best = (weight, *form);
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

    fn render(self, rejection: &Rejection) -> Bytes {
        let title = rejection.title();
        match self {
            Self::Json => json(rejection),
            Self::Text => format!("{title}\n\n{}\n", rejection.detail()).into_bytes(),
            Self::Html => html(rejection, title, &escape(&rejection.detail())).into_bytes(),
        }
        .into()
    }
}

/// Renders a problem document (RFC 9457) with an `error` member for SDKs. Without it, stripe for Node takes the
/// response for a success, and others show no text.
fn json(rejection: &Rejection) -> Vec<u8> {
    let (kind, title) = (rejection.kind().as_bytes(), rejection.title().as_bytes());
    let status = rejection.status();
    let mut out = Vec::with_capacity(640);
    out.extend_from_slice(br#"{"type":"urn:tidegate:problem:"#);
    out.extend_from_slice(kind);
    out.extend_from_slice(br#"","title":""#);
    out.extend_from_slice(title);
    out.extend_from_slice(br#"","status":"#);
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(br#","detail":""#);
    let start = out.len();
    rejection.append_detail(&mut out);
    escape_json(&mut out, start);
    let detail = start..out.len();
    out.push(b'"');
    if rejection.is_outcome_unknown() {
        out.extend_from_slice(br#","outcome":"unknown""#);
    }
    if let Some(phase) = rejection.phase() {
        out.extend_from_slice(br#","timeout":""#);
        out.extend_from_slice(phase.name().as_bytes());
        out.push(b'"');
    }
    if let Some((wait, _)) = rejection.wait() {
        out.extend_from_slice(br#","retry_after":"#);
        out.extend_from_slice(itoa::Buffer::new().format(whole_seconds(wait)).as_bytes());
    }
    if let Some((limit, others)) = rejection.violated() {
        out.extend_from_slice(br#","violated-policies":["#);
        append_quoted(&mut out, &limit.name);
        for limit in others {
            out.push(b',');
            append_quoted(&mut out, &limit.name);
        }
        out.push(b']');
    }
    out.extend_from_slice(br#","error":{"type":""#);
    out.extend_from_slice(error_type(status).as_bytes());
    out.extend_from_slice(br#"","code":""#);
    out.extend_from_slice(kind);
    out.extend_from_slice(br#"","message":""#);
    out.extend_from_slice(title);
    out.extend_from_slice(b": ");
    out.extend_from_within(detail);
    out.extend_from_slice(br#""}}"#);
    out
}

/// The `type` in the `error` member of a problem document with this status.
pub(crate) fn error_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        429 => "rate_limit_error",
        409 | 422 => "idempotency_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Escapes the text from `start` to the end of `out` for a JSON string. Few texts need it, and one pass over all bytes is
/// faster than a writer that handles each byte.
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

/// Appends `text` as a JSON string.
fn append_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let start = out.len();
    out.extend_from_slice(text.as_bytes());
    escape_json(out, start);
    out.push(b'"');
}

fn html(rejection: &Rejection, title: &str, detail: &str) -> String {
    let status = rejection.status();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{code} {title}</title>\
         <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:36em;margin:15vh auto;padding:0 1em;\
         color:#222;background:#fff}}h1{{font-size:1.4em}}h1 span{{color:#888;font-weight:400}}\
         @media(prefers-color-scheme:dark){{body{{color:#ddd;background:#181818}}}}</style></head>\n\
         <body><h1><span>{code}</span> {title}</h1><p>{detail}</p></body>\n</html>\n",
        code = status.as_u16(),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A weight as thousandths; one that makes no sense counts as the full weight.
fn thousandths(weight: &str) -> u32 {
    let valid = weight
        .parse::<f32>()
        .ok()
        .filter(|weight| (0.0..=1.0).contains(weight));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 1000"
    )]
    valid.map_or(1_000, |weight| (weight * 1_000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::super::Hint;
    use super::*;
    use crate::idempotency::Mismatch;

    fn preferred(accept: &str) -> Form {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        Form::preferred(&headers)
    }

    #[test]
    fn the_form_with_the_highest_weight_wins_and_json_where_all_are_alike() {
        assert_eq!(Form::preferred(&HeaderMap::new()), Form::Json);
        assert_eq!(preferred("*/*"), Form::Json);
        assert_eq!(
            preferred("text/html,application/xhtml+xml,*/*;q=0.8"),
            Form::Html
        );
        assert_eq!(preferred("text/plain"), Form::Text);
        assert_eq!(
            preferred("text/plain;q=0.5, application/json;q=0.9"),
            Form::Json
        );
        assert_eq!(preferred("text/html;q=0, text/plain;q=0.1"), Form::Text);
        assert_eq!(preferred("image/png"), Form::Json);
        assert_eq!(preferred("TEXT/HTML; q=1.0"), Form::Html);
        assert_eq!(preferred(";;;q=,,"), Form::Json);
    }

    #[test]
    fn a_hint_is_true_with_retry_after_and_false_where_a_retry_cannot_succeed() {
        let timeout = Rejection::BadRequest {
            status: StatusCode::REQUEST_TIMEOUT,
            detail: "slow".into(),
        };
        let unavailable = |is_held| Rejection::UpstreamUnavailable {
            detail: "The connection was reset.".into(),
            is_held,
        };
        let cases = [
            (unavailable(true), Some("false")),
            (unavailable(false), None),
            (Rejection::InFlight, Some("true")),
            (Rejection::StoreFull, Some("true")),
            (Rejection::StoreUnavailable, Some("true")),
            (Rejection::LimitsUnavailable, Some("true")),
            (Rejection::TooManyExecutions, Some("true")),
            (Rejection::OutcomeUnknown { is_held: true }, Some("false")),
            (Rejection::OutcomeUnknown { is_held: false }, None),
            (Rejection::ResponseNotRetained, Some("false")),
            (Rejection::KeyReused(Mismatch::Request), Some("false")),
            (Rejection::PayloadTooLarge { limit: 1 }, Some("false")),
            (Rejection::bad_request("no"), Some("false")),
            (Rejection::NoRoute, None),
            (Rejection::MethodNotAllowed, None),
            (timeout, None),
        ];
        let manner = Manner {
            hints: [Hint::Ms, Hint::ShouldRetry, Hint::Stripe, Hint::Amz]
                .into_iter()
                .collect(),
            ..Manner::default()
        };
        for (rejection, expected) in cases {
            let request = HeaderMap::new();
            let response: Response<Bytes> = response(&rejection, &request, &manner, &Clock::real());
            let header = |name| {
                let value = response.headers().get(name);
                value.map(|value: &HeaderValue| value.to_str().unwrap())
            };
            assert_eq!(header("x-should-retry"), expected, "{rejection:?}");
            assert_eq!(header("stripe-should-retry"), expected, "{rejection:?}");
            let wait = rejection
                .wait()
                .map(|(wait, _)| wait.as_millis().to_string());
            assert_eq!(header("retry-after").is_some(), wait.is_some());
            assert_eq!(header("retry-after-ms"), wait.as_deref(), "{rejection:?}");
            assert_eq!(header("x-amz-retry-after"), wait.as_deref());
        }
    }

    #[test]
    fn a_held_unknown_outcome_is_stated_in_every_form() {
        let timeout = |is_held| Rejection::UpstreamTimeout {
            phase: crate::upstream::patience::Phase::FirstByte,
            detail: "No response arrived in time.".into(),
            is_held,
        };
        let held = timeout(true);
        let json: serde_json::Value = serde_json::from_slice(&json(&held)).unwrap();
        assert_eq!(json["outcome"], "unknown");
        for form in [Form::Html, Form::Text] {
            let text = String::from_utf8(form.render(&held).to_vec()).unwrap();
            assert!(text.contains("outcome is unknown"), "{text}");
        }
        for rejection in [
            timeout(false),
            Rejection::InFlight,
            Rejection::KeyReused(Mismatch::Request),
        ] {
            let text = String::from_utf8(super::json(&rejection)).unwrap();
            assert!(!text.contains("unknown"), "{text}");
        }
    }

    #[test]
    fn what_a_detail_quotes_cannot_break_out_of_its_form() {
        let rejection = Rejection::bad_request("a \"quote\" \n and <script>");
        let json: serde_json::Value =
            serde_json::from_slice(&Form::Json.render(&rejection)).unwrap();
        assert_eq!(json["detail"], "a \"quote\" \n and <script>");
        let error = &json["error"];
        assert_eq!(error["message"], "Bad request: a \"quote\" \n and <script>");
        let html = Form::Html.render(&rejection);
        assert!(!String::from_utf8_lossy(&html).contains("<script>"));
    }
}
