//! Responses of a scenario: status, headers, and a body that can be slow, pause, or end early.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::step::{Step, StepAction};
use crate::http::service::{Abort, Reply};
use crate::request::body::{BodyError, ResponseBody};

/// Size of the body of a response whose step sets none, in bytes.
pub(crate) const DEFAULT_BODY: u64 = 64 * 1024;

/// Time between the last byte of a body and a reset. A reset discards bytes that the client has not received.
const BEFORE_RESET: Duration = Duration::from_millis(50);

/// Number of parts per second in which a slow body is sent.
const PARTS_PER_SECOND: u64 = 10;

pub(crate) fn reply(step: &Step, now: SystemTime) -> Reply<ResponseBody> {
    let abort = match step.action {
        StepAction::Reset if step.after.is_some() => None,
        StepAction::Reset | StepAction::Refuse | StepAction::ExecutedThenLost => Some(Abort::Reset),
        StepAction::GoAway => Some(Abort::GoAway),
        StepAction::RefusedStream => Some(Abort::RefuseStream),
        StepAction::Respond(_) | StepAction::Pass | StepAction::Stall(_) | StepAction::Truncate => {
            None
        }
    };
    match abort {
        Some(abort) => Reply::Abort(abort),
        None => Reply::Response(response(step, now)),
    }
}

pub(crate) fn response(step: &Step, now: SystemTime) -> Response<ResponseBody> {
    let status = match step.action {
        StepAction::Respond(status) => status,
        _ => StatusCode::OK,
    };
    let content = step.body.clone().unwrap_or_else(|| default_body(step));
    let has_no_content = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let content = if has_no_content {
        Bytes::new()
    } else {
        content
    };
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in &step.headers {
        headers.append(name, value.clone());
    }
    if let Some(retry_after) = &step.retry_after {
        headers.insert(RETRY_AFTER, retry_after.value(now));
    }
    if !content.is_empty() {
        let media_type = media_type(&content);
        headers.entry(CONTENT_TYPE).or_insert(media_type);
    }
    let is_stream = headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    *response.body_mut() = body(step, content, is_stream);
    response
}

pub(crate) fn passed() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(Bytes::from_static(b"{}")));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Clients that parse the response accept JSON, and it is large enough to be truncated within.
pub(crate) fn default_body(step: &Step) -> Bytes {
    let start = format!(
        "{{\"step\":{},\"padding\":\"",
        serde_json::json!(&*step.text)
    );
    let end = "\"}\n";
    let padding = to_usize(DEFAULT_BODY).saturating_sub(start.len() + end.len());
    Bytes::from([start, "x".repeat(padding), end.to_owned()].concat())
}

fn media_type(content: &Bytes) -> HeaderValue {
    HeaderValue::from_static(match content.first() {
        Some(b'{' | b'[') => "application/json",
        _ => "text/plain; charset=utf-8",
    })
}

fn body(step: &Step, content: Bytes, is_stream: bool) -> ResponseBody {
    let length = content.len() as u64;
    let fault = match step.action {
        StepAction::Stall(time) => Some((step.after.unwrap_or(0), BodyFault::Pause(time))),
        StepAction::Reset => (step.after).map(|after| (after, BodyFault::Fail { resets: true })),
        StepAction::Truncate => {
            let after = step.after.unwrap_or(length / 2);
            Some((after, BodyFault::Fail { resets: false }))
        }
        _ => None,
    };
    if fault.is_none() && step.rate.is_none() && !is_stream {
        return content.into();
    }
    let slow_from = match fault {
        None => step.after.unwrap_or(0),
        Some(_) => 0,
    };
    ResponseBody::streaming(StepBody {
        rest: content,
        sent: 0,
        rate: step.rate,
        slow_from,
        fault,
        wait: None,
        is_due: false,
        hides_length: is_stream,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyFault {
    /// The body pauses for this time, and then continues.
    Pause(Duration),
    /// The body fails, so that the response is truncated.
    Fail { resets: bool },
    /// The body fails when it is polled again.
    FailNow { resets: bool },
}

/// Body that is sent at a rate, and that pauses or fails after a number of bytes.
struct StepBody {
    rest: Bytes,
    sent: u64,
    rate: Option<u64>,
    slow_from: u64,
    /// Fault, and the number of bytes before it; `None` if the fault is over.
    fault: Option<(u64, BodyFault)>,
    wait: Option<Pin<Box<Sleep>>>,
    /// Whether the time of the next part has passed.
    is_due: bool,
    /// Whether the length is unknown to the client, as in a stream of events.
    hides_length: bool,
}

impl StepBody {
    fn next_part(&self) -> (usize, Duration) {
        let mut length = self.rest.len() as u64;
        if let Some((after, _)) = self.fault {
            length = length.min(after - self.sent);
        }
        if self.sent < self.slow_from {
            length = length.min(self.slow_from - self.sent);
            return (to_usize(length), Duration::ZERO);
        }
        let Some(rate) = self.rate else {
            return (to_usize(length), Duration::ZERO);
        };
        let length = length.min((rate / PARTS_PER_SECOND).max(1));
        let nanos = u128::from(length) * 1_000_000_000 / u128::from(rate.max(1));
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        (to_usize(length), time)
    }

    fn pause(&mut self, time: Duration) {
        self.wait = (!time.is_zero()).then(|| Box::pin(sleep(time)));
    }
}

impl Body for StepBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
            }
            match self.fault {
                Some((after, BodyFault::Pause(time))) if after == self.sent => {
                    self.fault = None;
                    self.pause(time);
                    continue;
                }
                // The body fails after a pause, in which the bytes before the fault reach the client.
                Some((after, BodyFault::Fail { resets })) if after == self.sent => {
                    self.fault = Some((after, BodyFault::FailNow { resets }));
                    self.pause(BEFORE_RESET);
                    continue;
                }
                Some((_, BodyFault::FailNow { resets })) => {
                    self.fault = None;
                    self.rest = Bytes::new();
                    return Poll::Ready(Some(Err(BodyError::Scenario { resets })));
                }
                _ => {}
            }
            if self.rest.is_empty() {
                return Poll::Ready(None);
            }
            let (length, time) = self.next_part();
            if !time.is_zero() && !std::mem::replace(&mut self.is_due, true) {
                self.pause(time);
                continue;
            }
            self.is_due = false;
            let part = self.rest.split_to(length);
            self.sent += part.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.fault.is_none() && self.wait.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.hides_length {
            SizeHint::new()
        } else {
            SizeHint::with_exact(self.rest.len() as u64)
        }
    }
}

fn to_usize(length: u64) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::time::Instant;

    use super::*;

    /// Reads a body to its end. Returns the bytes, the time that it took, and its error.
    async fn read(response: Response<ResponseBody>) -> (Vec<u8>, Duration, Option<BodyError>) {
        let start = Instant::now();
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => bytes.extend_from_slice(&frame.into_data().unwrap()),
                Err(error) => return (bytes, start.elapsed(), Some(error)),
            }
        }
        (bytes, start.elapsed(), None)
    }

    fn step(action: StepAction) -> Step {
        Step {
            action,
            ..Step::respond(StatusCode::OK)
        }
    }

    fn respond(step: &Step) -> Response<ResponseBody> {
        match reply(step, SystemTime::UNIX_EPOCH) {
            Reply::Response(response) => response,
            Reply::Abort(abort) => panic!("{abort:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_default_body_is_a_json_document_of_64_kib() {
        let mut step = Step::respond(StatusCode::SERVICE_UNAVAILABLE);
        step.text = "503 header=\"X: é\"".into();
        let response = respond(&step);
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
        let (bytes, _, error) = read(response).await;
        assert!(error.is_none());
        assert_eq!(bytes.len() as u64, DEFAULT_BODY);
        let document: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(document["step"], &*step.text);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_takes_its_length_divided_by_its_rate() {
        let mut slow = step(StepAction::Respond(StatusCode::OK));
        slow.rate = Some(16 * 1024);
        let (bytes, time, error) = read(respond(&slow)).await;
        assert!(error.is_none() && bytes.len() as u64 == DEFAULT_BODY);
        let expected = Duration::from_millis(3_950)..Duration::from_millis(4_100);
        assert!(expected.contains(&time), "{time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_pauses_the_body_once_and_then_completes_it() {
        let mut stall = step(StepAction::Stall(Duration::from_secs(3)));
        stall.after = Some(1_024);
        let (bytes, time, error) = read(respond(&stall)).await;
        assert!(error.is_none() && bytes.len() as u64 == DEFAULT_BODY);
        assert_eq!(time, Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_truncated_body_fails_after_the_given_number_of_bytes() {
        let mut truncate = step(StepAction::Truncate);
        let response = respond(&truncate);
        assert_eq!(response.body().size_hint().exact(), Some(DEFAULT_BODY));
        let (bytes, _, error) = read(response).await;
        assert!(matches!(error, Some(BodyError::Scenario { resets: false })));
        assert_eq!(bytes.len() as u64, DEFAULT_BODY / 2);
        truncate.after = Some(10);
        let (bytes, _, error) = read(respond(&truncate)).await;
        assert!(error.is_some() && bytes.len() == 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_sends_nothing_or_the_bytes_before_it() {
        let mut reset = step(StepAction::Reset);
        let aborted = reply(&reset, SystemTime::UNIX_EPOCH);
        assert!(matches!(aborted, Reply::Abort(Abort::Reset)));
        reset.after = Some(100);
        let (bytes, _, error) = read(respond(&reset)).await;
        assert!(matches!(error, Some(BodyError::Scenario { resets: true })));
        assert_eq!(bytes.len(), 100);
    }

    #[test]
    fn a_stream_of_events_has_no_length() {
        let mut events = step(StepAction::Truncate);
        events.body = Some(Bytes::from_static(b"data: 1\n\ndata: 2\n\n"));
        let media_type = HeaderValue::from_static("text/event-stream");
        events.headers.push((CONTENT_TYPE, media_type));
        assert_eq!(respond(&events).body().size_hint().exact(), None);
    }

    #[test]
    fn a_status_without_content_has_no_body() {
        let response = respond(&Step::respond(StatusCode::NO_CONTENT));
        assert!(response.body().is_end_stream());
        assert!(!response.headers().contains_key(CONTENT_TYPE));
    }
}
