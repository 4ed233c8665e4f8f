//! An answer as it is kept: status, header lines in order, body.
//!
//! Bytes are kept as they came: a value that is not UTF-8, a coding nobody here undid. What belongs to
//! one hop is gone already, and the version of HTTP is not part of an answer. Trailers are not kept, and
//! so the first caller does not get them either: both get the same.

use bytes::{Bytes, BytesMut};
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, response};

/// Headers added to an answer on its further way, about.
const ADDED: usize = 6;

/// Says that an answer was given before.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// An answer as it is kept.
///
/// Values and body lie in one block of their own. What upstream sent are slices of what was read from its
/// connection, and to keep a slice is to keep all of that: some kilobytes for a hundred bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    status: StatusCode,
    lines: Box<[Line]>,
    /// The values in order, then the body.
    block: Bytes,
}

/// A header line: its name, and where its value ends. It begins where the one before it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    name: HeaderName,
    end: usize,
}

impl Answer {
    /// An answer with these headers and this body.
    pub fn new(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        Self::without(|_| false, status, headers, body)
    }

    /// The answer with this head and body, without the headers to leave out.
    pub fn of(head: &response::Parts, body: &[u8], exclude: &[HeaderName]) -> Self {
        let exclude = |name: &HeaderName| exclude.contains(name);
        Self::without(exclude, head.status, &head.headers, body)
    }

    /// Returns the response with these headers and this body, without the headers that `exclude` selects.
    pub(super) fn without(
        exclude: impl Fn(&HeaderName) -> bool,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Self {
        let values: usize = headers.values().map(HeaderValue::len).sum();
        let mut block = BytesMut::with_capacity(values + body.len());
        // Room for all at once: mostly none is left out, and then nothing is moved.
        let mut lines = Vec::with_capacity(headers.len());
        for (name, value) in headers {
            if !exclude(name) {
                block.extend_from_slice(value.as_bytes());
                lines.push(Line {
                    name: name.clone(),
                    end: block.len(),
                });
            }
        }
        block.extend_from_slice(body);
        Self {
            status,
            lines: lines.into(),
            block: block.freeze(),
        }
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Its header lines, in order; lines of one name are together.
    pub fn lines(&self) -> impl Iterator<Item = (&HeaderName, Bytes)> {
        self.lines.iter().scan(0, |start, line| {
            let value = self.block.slice(*start..line.end);
            *start = line.end;
            Some((&line.name, value))
        })
    }

    /// Its body.
    pub fn body(&self) -> Bytes {
        self.block.slice(self.body_at()..)
    }

    fn body_at(&self) -> usize {
        self.lines.last().map_or(0, |line| line.end)
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
        let mut response = Response::new(B::from(self.body()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.reserve(self.lines.len() + ADDED);
        for (name, value) in self.lines() {
            let value = HeaderValue::from_maybe_shared(value).expect("it was a value before");
            headers.append(name.clone(), value);
        }
        response
    }

    /// What it takes to keep, in bytes, about.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.lines.len() * size_of::<Line>() + self.block.len()
    }
}

/// Takes out of an answer's headers what a kept answer does not have.
pub(super) fn forgo_trailers(headers: &mut HeaderMap) {
    headers.remove(TRAILER);
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
        let answer = Answer::of(&head, b"\0\xff", &[]);
        let replay: Response<Bytes> = answer.replay();
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
        let answer = Answer::of(&head, b"body", &[HeaderName::from_static("x-b")]);
        let lines: Vec<_> = answer
            .lines()
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        assert_eq!(
            lines,
            [
                ("x-a", "1".into()),
                ("x-a", "4".into()),
                ("x-c", "3".into())
            ]
        );
        assert_eq!(answer.body(), "body");
    }
}
