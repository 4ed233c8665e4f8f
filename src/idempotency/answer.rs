//! An answer as it is kept: status, header lines in order, body.
//!
//! Bytes are kept as they came: a value that is not UTF-8, a coding nobody here undid. What belongs to
//! one hop is gone already, and the version of HTTP is not part of an answer. Trailers are not kept, and
//! so the first caller does not get them either: both get the same.

use bytes::Bytes;
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, response};

/// Says that an answer was given before.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What an answer takes besides its bytes, about.
const OVERHEAD: usize = 256;

/// What one header line takes besides its bytes, about.
const LINE_OVERHEAD: usize = 48;

/// An answer as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its header lines. A map gives them back in the order they were put in, lines of one name together.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// The answer with this head and body, without the headers to leave out.
    pub fn of(head: &response::Parts, body: Bytes, exclude: &[HeaderName]) -> Self {
        let headers = if exclude.iter().any(|name| head.headers.contains_key(name)) {
            let kept = head
                .headers
                .iter()
                .filter(|(name, _)| !exclude.contains(name));
            let mut headers = HeaderMap::with_capacity(head.headers.len());
            for (name, value) in kept {
                headers.append(name.clone(), value.clone());
            }
            headers
        } else {
            head.headers.clone()
        };
        Self {
            status: head.status,
            headers,
            body,
        }
    }

    /// The answer once more, marked as one that was given before.
    pub fn replay<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = self.repeat();
        let replayed = HeaderValue::from_static("true");
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, replayed);
        response
    }

    /// The answer once more.
    pub fn repeat<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }

    /// What it takes to keep, in bytes, about.
    pub fn weight(&self) -> usize {
        let lines = self.headers.iter();
        let headers: usize = lines
            .map(|(name, value)| LINE_OVERHEAD + name.as_str().len() + value.len())
            .sum();
        OVERHEAD + headers + self.body.len()
    }
}

/// Takes out of a head what a kept answer does not have.
pub(super) fn forgo_trailers(head: &mut response::Parts) {
    head.headers.remove(TRAILER);
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, SET_COOKIE};

    use super::*;

    #[test]
    fn a_replay_has_every_line_in_its_order_byte_for_byte() {
        let not_utf8 = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        let (head, ()) = Response::builder()
            .status(201)
            .header("x-first", "1")
            .header(SET_COOKIE, "a=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT")
            .header(CONTENT_TYPE, "text/plain")
            .header(SET_COOKIE, "b=2, and a comma")
            .header("x-odd", not_utf8)
            .header(SET_COOKIE, "a=1; Expires=Thu, 01 Jan 2026 00:00:00 GMT")
            .body(())
            .unwrap()
            .into_parts();
        let lines = |headers: &HeaderMap| {
            let lines = headers.iter();
            lines
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect::<Vec<_>>()
        };
        let first = lines(&head.headers);
        let replay: Response<Bytes> =
            Answer::of(&head, Bytes::from_static(b"\0\xff"), &[]).replay();
        assert_eq!(replay.status(), 201);
        assert_eq!(replay.body().as_ref(), b"\0\xff");
        let replayed = lines(replay.headers());
        assert_eq!(replayed[..first.len()], first);
        assert_eq!(
            replayed[first.len()..],
            [(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"))]
        );
    }

    #[test]
    fn what_is_left_out_is_not_kept_and_the_rest_keeps_its_order() {
        let (head, ()) = Response::builder()
            .header("x-a", "1")
            .header("x-b", "2")
            .header("x-c", "3")
            .header("x-a", "4")
            .body(())
            .unwrap()
            .into_parts();
        let answer = Answer::of(&head, Bytes::new(), &[HeaderName::from_static("x-b")]);
        let lines: Vec<_> = answer
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        assert_eq!(lines, [("x-a", &b"1"[..]), ("x-a", b"4"), ("x-c", b"3")]);
    }
}
