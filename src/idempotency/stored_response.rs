//! Response as a store keeps it: status, header lines in order, and body, byte for byte. Hop-by-hop headers, the HTTP
//! version and trailers are not stored. The first client gets no trailers either, so that its response equals a replay.

use bytes::{Bytes, BytesMut};
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::request::request_id::RequestId;

/// Headers that later stages add.
const ADDED: usize = 6;

pub(crate) const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// In a replay, the `X-Request-Id` of the request that was executed.
pub(super) const ORIGINAL_REQUEST_ID: HeaderName =
    HeaderName::from_static("idempotent-original-request-id");

/// Response of a record. Header values and body are copied into one block, because a slice of 100 bytes would keep
/// several KiB of the upstream's read buffer in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    status: StatusCode,
    lines: Box<[StoredHeader]>,
    /// All header values in order, then the body.
    block: Bytes,
}

/// The value starts where that of the previous line ends in the block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredHeader {
    name: HeaderName,
    end: usize,
}

impl StoredResponse {
    /// Copies a response.
    pub fn new(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        Self::copy_without(|_| false, status, headers, None, body)
    }

    /// The id of the executed request becomes a header line.
    pub(super) fn copy_without(
        exclude: impl Fn(&HeaderName) -> bool,
        status: StatusCode,
        headers: &HeaderMap,
        request_id: Option<&RequestId>,
        body: &[u8],
    ) -> Self {
        let request_id = request_id.map(|id| (ORIGINAL_REQUEST_ID, id.to_header()));
        let values: usize = headers.values().map(HeaderValue::len).sum();
        let added = request_id.as_ref().map_or(0, |(_, id)| id.len());
        let mut block = BytesMut::with_capacity(values + added + body.len());
        // Usually exact, because most configurations exclude no header.
        let mut lines = Vec::with_capacity(headers.len() + usize::from(added > 0));
        let kept = headers.iter().filter(|(name, _)| !exclude(name));
        let request_id = request_id.as_ref().map(|(name, id)| (name, id));
        for (name, value) in kept.chain(request_id) {
            block.extend_from_slice(value.as_bytes());
            lines.push(StoredHeader {
                name: name.clone(),
                end: block.len(),
            });
        }
        block.extend_from_slice(body);
        Self {
            status,
            lines: lines.into(),
            block: block.freeze(),
        }
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the header lines. Lines with the same name are adjacent.
    pub fn lines(&self) -> impl Iterator<Item = (&HeaderName, Bytes)> {
        self.lines.iter().scan(0, |start, line| {
            let value = self.block.slice(*start..line.end);
            *start = line.end;
            Some((&line.name, value))
        })
    }

    /// Returns the body without copying it.
    pub fn body(&self) -> Bytes {
        self.block.slice(self.body_at()..)
    }

    fn body_at(&self) -> usize {
        self.lines.last().map_or(0, |line| line.end)
    }

    /// Creates a response with `Idempotent-Replayed: true`.
    pub fn replay<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = self.to_response();
        let replayed = HeaderValue::from_static("true");
        response.headers_mut().insert(IDEMPOTENT_REPLAYED, replayed);
        response
    }

    /// Creates a response without `Idempotent-Replayed`.
    pub fn to_response<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.body()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.reserve(self.lines.len() + ADDED);
        for (name, value) in self.lines() {
            let value = HeaderValue::from_maybe_shared(value)
                .expect("the bytes are those of a header value");
            headers.append(name.clone(), value);
        }
        response
    }

    /// Returns the approximate memory in bytes.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.lines.len() * size_of::<StoredHeader>() + self.block.len()
    }
}

/// The trailers that it announces are not stored.
pub(super) fn remove_trailer_header(headers: &mut HeaderMap) {
    headers.remove(TRAILER);
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, SET_COOKIE};

    use super::*;

    #[test]
    fn a_replay_has_all_header_lines_in_order_byte_for_byte() {
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
        let response = StoredResponse::new(head.status, &head.headers, b"\0\xff");
        let replay: Response<Bytes> = response.replay();
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
    fn excluded_headers_are_not_stored_and_the_others_stay_in_order() {
        let (head, ()) = Response::builder()
            .header("x-a", "1")
            .header("x-b", "2")
            .header("x-c", "3")
            .header("x-a", "4")
            .body(())
            .unwrap()
            .into_parts();
        let exclude = |name: &HeaderName| name == "x-b";
        let (status, headers) = (head.status, &head.headers);
        let response = StoredResponse::copy_without(exclude, status, headers, None, b"body");
        let lines: Vec<_> = response
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
        assert_eq!(response.body(), "body");
    }
}
