//! Encoder of HTTP/1 responses.
//!
//! The encoder chooses the framing itself and ignores a `Transfer-Encoding` header of the response. If a body ends
//! early or is longer than declared, the response is truncated. The connection is then closed in such a way that the
//! client can detect the truncation.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};
use http::response::Parts;
use http_body::{Body, Frame};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::head::Version;
use super::timers;
use super::write::WriteBuffer;

#[derive(Clone, Copy, Debug)]
pub(super) struct RequestTraits {
    pub(super) is_head: bool,
    pub(super) version: Version,
    pub(super) accepts_trailers: bool,
}

#[derive(Debug)]
pub(super) struct Encoder {
    framing: ResponseFraming,
    /// `Some` when the body is completely encoded or truncated.
    outcome: Option<Sent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ResponseFraming {
    /// Because of the status, or because the request method is `HEAD`.
    None,
    /// Number of bytes that are not encoded yet.
    Length(u64),
    /// Only trailers with these names are sent.
    Chunked { trailers: TrailerNames },
    /// The body ends with the connection: its length is unknown, and HTTP/1.0 has no chunks.
    Close,
}

type TrailerNames = SmallVec<[HeaderName; 2]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Complete,
    /// The body failed, or its length differs from the declared length.
    Truncated,
}

/// Header fields that must not be sent as trailers (RFC 9110, section 6.5.1): a recipient that merges trailers into the
/// headers would act on them.
pub(crate) const FORBIDDEN_TRAILERS: [HeaderName; 16] = [
    AUTHORIZATION,
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    HOST,
    HeaderName::from_static("keep-alive"),
    MAX_FORWARDS,
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    WWW_AUTHENTICATE,
];

/// Estimated size of the status line and of each header line, in bytes.
const LINE: usize = 32;

impl Encoder {
    /// `exact` is the length of the body, if known. `last` is true if the connection closes after this response.
    pub(super) fn head(
        out: &mut Vec<u8>,
        parts: &Parts,
        exact: Option<u64>,
        request: RequestTraits,
        last: bool,
        now: Instant,
    ) -> Self {
        let framing = framing(parts, exact, request);
        out.reserve(LINE * (parts.headers.len() + 4));
        status_line(out, parts.status, request.version);
        let mut has_length = false;
        for (name, value) in &parts.headers {
            match *name {
                TRANSFER_ENCODING => {}
                CONTENT_LENGTH => {
                    // Of several `Content-Length` lines only one is sent, with the actual length of the body.
                    if !std::mem::replace(&mut has_length, true) {
                        match &framing {
                            ResponseFraming::Length(length) => length_line(out, *length),
                            ResponseFraming::None if may_have_length(parts.status) => {
                                header_line(out, name, value);
                            }
                            _ => {}
                        }
                    }
                }
                TRAILER if !matches!(framing, ResponseFraming::Chunked { .. }) => {}
                _ => header_line(out, name, value),
            }
        }
        match &framing {
            ResponseFraming::Chunked { .. } => {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
            }
            ResponseFraming::Length(length) if !has_length => length_line(out, *length),
            ResponseFraming::None if !has_length && request.is_head => {
                // A service often omits the body that it would send in response to `GET`, so the length 0 can be wrong.
                if let Some(length @ 1..) = exact
                    && may_have_length(parts.status)
                {
                    length_line(out, length);
                }
            }
            ResponseFraming::None | ResponseFraming::Length(_) | ResponseFraming::Close => {}
        }
        let persistent = !last && framing != ResponseFraming::Close;
        match request.version {
            // After a 101 response, the connection is not HTTP. Other informational responses do not occur.
            _ if parts.status.is_informational() => {}
            Version::Http11 if !persistent => out.extend_from_slice(b"connection: close\r\n"),
            Version::Http10 if persistent => out.extend_from_slice(b"connection: keep-alive\r\n"),
            _ => {}
        }
        if !parts.headers.contains_key(DATE) {
            out.extend_from_slice(b"date: ");
            timers::append_date(out, now);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        Self::new(framing)
    }

    fn new(framing: ResponseFraming) -> Self {
        let is_empty = matches!(framing, ResponseFraming::None | ResponseFraming::Length(0));
        Self {
            framing,
            outcome: is_empty.then_some(Sent::Complete),
        }
    }

    pub(super) fn is_until_close(&self) -> bool {
        self.framing == ResponseFraming::Close
    }

    pub(super) fn outcome(&self) -> Option<Sent> {
        self.outcome
    }

    /// The buffer must not be [full](WriteBuffer::is_full).
    pub(super) fn poll_encode<B: Body<Data = Bytes>>(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut B>,
        out: &mut WriteBuffer,
    ) -> Poll<()> {
        match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.frame(frame, out);
                if self.outcome.is_none() && body.is_end_stream() {
                    self.end(out);
                }
            }
            Some(Err(_logged_by_the_body)) => self.outcome = Some(Sent::Truncated),
            None => self.end(out),
        }
        Poll::Ready(())
    }

    fn frame(&mut self, frame: Frame<Bytes>, out: &mut WriteBuffer) {
        let frame = match frame.into_data() {
            Ok(data) if data.is_empty() => return,
            Ok(data) => return self.data(data, out),
            Err(frame) => frame,
        };
        if let (
            Ok(trailers),
            ResponseFraming::Chunked {
                trailers: announced,
            },
        ) = (frame.into_trailers(), &self.framing)
        {
            last_chunk(out.tail(), announced, Some(&trailers));
            self.outcome = Some(Sent::Complete);
        }
    }

    fn data(&mut self, mut data: Bytes, out: &mut WriteBuffer) {
        match &mut self.framing {
            ResponseFraming::None => {}
            ResponseFraming::Close => out.push(data),
            ResponseFraming::Chunked { .. } => out.push_chunk(data),
            ResponseFraming::Length(remaining) => {
                let limit = usize::try_from(*remaining).unwrap_or(usize::MAX);
                if data.len() > limit {
                    data.truncate(limit);
                    self.outcome = Some(Sent::Truncated);
                } else if data.len() == limit {
                    self.outcome = Some(Sent::Complete);
                }
                *remaining -= data.len() as u64;
                out.push(data);
            }
        }
    }

    fn end(&mut self, out: &mut WriteBuffer) {
        self.outcome = Some(match &self.framing {
            ResponseFraming::Length(1..) => Sent::Truncated,
            ResponseFraming::None | ResponseFraming::Length(0) | ResponseFraming::Close => {
                Sent::Complete
            }
            ResponseFraming::Chunked { trailers } => {
                last_chunk(out.tail(), trailers, None);
                Sent::Complete
            }
        });
    }
}

/// A trailer is dropped if its name is not in `announced`.
fn last_chunk(out: &mut Vec<u8>, announced: &[HeaderName], trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if announced.contains(name) {
            header_line(out, name, value);
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn status_line(out: &mut Vec<u8>, status: StatusCode, version: Version) {
    out.extend_from_slice(match version {
        Version::Http10 => b"HTTP/1.0 ",
        Version::Http11 => b"HTTP/1.1 ",
    });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn header_line(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn length_line(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn framing(parts: &Parts, exact: Option<u64>, request: RequestTraits) -> ResponseFraming {
    let bodyless = parts.status.is_informational()
        || matches!(
            parts.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    if bodyless || request.is_head {
        return ResponseFraming::None;
    }
    match (
        exact.or_else(|| declared_length(&parts.headers)),
        request.version,
    ) {
        (Some(length), _) => ResponseFraming::Length(length),
        (None, Version::Http10) => ResponseFraming::Close,
        (None, Version::Http11) => ResponseFraming::Chunked {
            trailers: if request.accepts_trailers {
                announced_trailers(&parts.headers)
            } else {
                TrailerNames::new()
            },
        },
    }
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The names that `Trailer` announces, except [`FORBIDDEN_TRAILERS`].
fn announced_trailers(headers: &HeaderMap) -> TrailerNames {
    let lines = headers.get_all(TRAILER).iter();
    lines
        .flat_map(|value| value.as_bytes().split(|&octet| octet == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| !FORBIDDEN_TRAILERS.contains(name))
        .collect()
}

/// RFC 9110, section 8.6.
fn may_have_length(status: StatusCode) -> bool {
    !status.is_informational() && status != StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: RequestTraits = RequestTraits {
        is_head: false,
        version: Version::Http11,
        accepts_trailers: false,
    };

    const HEAD: RequestTraits = RequestTraits {
        is_head: true,
        ..GET
    };

    const OLD: RequestTraits = RequestTraits {
        version: Version::Http10,
        ..GET
    };

    /// Encodes a response head with these header lines. Returns the head without its `Date` header, and the framing of
    /// the body.
    fn head_of(
        status: u16,
        lines: &[(&'static str, &'static str)],
        exact: Option<u64>,
        request: RequestTraits,
        last: bool,
    ) -> (String, ResponseFraming) {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = StatusCode::from_u16(status).unwrap();
        for (name, value) in lines {
            let value = HeaderValue::from_static(value);
            parts.headers.append(HeaderName::from_static(name), value);
        }
        let mut out = Vec::new();
        let encoder = Encoder::head(&mut out, &parts, exact, request, last, Instant::now());
        let head = String::from_utf8(out).unwrap();
        let head = head.strip_suffix("\r\n\r\n").unwrap();
        let (head, date) = head.rsplit_once("\r\ndate: ").unwrap();
        assert!(httpdate::parse_http_date(date).is_ok(), "{date}");
        (head.replace("\r\n", "|"), encoder.framing)
    }

    fn chunked(trailers: &[&'static str]) -> ResponseFraming {
        let trailers = trailers.iter().copied().map(HeaderName::from_static);
        ResponseFraming::Chunked {
            trailers: trailers.collect(),
        }
    }

    #[test]
    fn header_lines_are_sent_in_their_order() {
        let lines = [("set-cookie", "a"), ("x", "y"), ("set-cookie", "b")];
        let (head, framing) = head_of(200, &lines, Some(5), GET, false);
        assert_eq!(
            head,
            "HTTP/1.1 200 OK|set-cookie: a|set-cookie: b|x: y|content-length: 5"
        );
        assert_eq!(framing, ResponseFraming::Length(5));
    }

    #[test]
    fn the_date_of_the_response_replaces_the_current_date() {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts
            .headers
            .insert(DATE, HeaderValue::from_static("long ago"));
        let mut out = Vec::new();
        Encoder::head(&mut out, &parts, Some(0), GET, false, Instant::now());
        assert_eq!(
            out,
            b"HTTP/1.1 200 OK\r\ndate: long ago\r\ncontent-length: 0\r\n\r\n"
        );
    }

    #[test]
    fn content_length_is_the_length_of_the_body_or_the_declared_length() {
        let lines = [("content-length", "7"), ("x", "y"), ("content-length", "8")];
        let (head, framing) = head_of(200, &lines, Some(5), GET, false);
        assert_eq!(head, "HTTP/1.1 200 OK|content-length: 5|x: y");
        assert_eq!(framing, ResponseFraming::Length(5));
        let (head, framing) = head_of(200, &lines[..1], None, GET, false);
        assert_eq!(head, "HTTP/1.1 200 OK|content-length: 7");
        assert_eq!(framing, ResponseFraming::Length(7));
    }

    #[test]
    fn a_body_of_unknown_length_is_chunked_or_ends_with_the_connection() {
        let (head, framing) = head_of(200, &[("transfer-encoding", "gzip")], None, GET, false);
        assert_eq!(head, "HTTP/1.1 200 OK|transfer-encoding: chunked");
        assert_eq!(framing, chunked(&[]));
        let (head, framing) = head_of(200, &[], None, OLD, false);
        assert_eq!(head, "HTTP/1.0 200 OK");
        assert_eq!(framing, ResponseFraming::Close);
    }

    #[test]
    fn the_connection_header_is_sent_only_if_it_differs_from_the_default() {
        for (request, last, expected) in [
            (GET, false, ""),
            (GET, true, "|connection: close"),
            (OLD, false, "|connection: keep-alive"),
            (OLD, true, ""),
        ] {
            let (head, _) = head_of(204, &[], Some(0), request, last);
            let (_, rest) = head.split_once("204 No Content").unwrap();
            assert_eq!(rest, expected);
        }
    }

    #[test]
    fn content_length_without_a_body_is_sent_only_where_it_is_allowed() {
        let length = [("content-length", "5")];
        for (status, request, lines, exact, expected) in [
            (200, HEAD, &length[..], Some(0), "|content-length: 5"),
            (200, HEAD, &[], Some(5), "|content-length: 5"),
            (200, HEAD, &[], Some(0), ""),
            (200, HEAD, &[], None, ""),
            (304, GET, &length, Some(0), "|content-length: 5"),
            (304, GET, &[], Some(0), ""),
            (204, GET, &length, Some(0), ""),
            (204, HEAD, &[], Some(5), ""),
        ] {
            let (head, framing) = head_of(status, lines, exact, request, false);
            let lines = head.find('|').map_or("", |at| &head[at..]);
            assert_eq!(lines, expected, "{status} {request:?} {exact:?}");
            assert_eq!(framing, ResponseFraming::None);
        }
    }

    #[test]
    fn trailers_are_announced_and_sent_to_clients_that_accept_them() {
        let request = RequestTraits {
            accepts_trailers: true,
            ..GET
        };
        let lines = [("trailer", "X-Sum, x-took")];
        let (head, framing) = head_of(200, &lines, None, request, false);
        assert_eq!(
            head,
            "HTTP/1.1 200 OK|trailer: X-Sum, x-took|transfer-encoding: chunked"
        );
        assert_eq!(framing, chunked(&["x-sum", "x-took"]));
        let (_, framing) = head_of(200, &lines, None, GET, false);
        assert_eq!(framing, chunked(&[]));
        let lines = [("trailer", "set-cookie,Content-Length, x, transfer-encoding")];
        let (_, framing) = head_of(200, &lines, None, request, false);
        assert_eq!(framing, chunked(&["x"]));

        let ResponseFraming::Chunked { trailers: names } = chunked(&["x-sum"]) else {
            unreachable!()
        };
        let mut sent = HeaderMap::new();
        sent.insert("x-sum", HeaderValue::from_static("1"));
        sent.insert("set-cookie", HeaderValue::from_static("2"));
        let mut out = Vec::new();
        last_chunk(&mut out, &names, Some(&sent));
        assert_eq!(out, b"0\r\nx-sum: 1\r\n\r\n");
    }

    #[test]
    fn an_unknown_status_has_an_empty_reason_phrase() {
        let (head, _) = head_of(599, &[], Some(0), GET, false);
        assert_eq!(head, "HTTP/1.1 599 |content-length: 0");
    }
}
