//! The head of an answer, as it goes over the wire, and the way its body does.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue, MAX_FORWARDS, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};
use http::response::Parts;
use http::{Method, StatusCode};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::date;
use super::head::Version;

/// What the request decides of its answer's form.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) version: Version,
    /// Whether the client takes trailers.
    pub(super) trailers: bool,
}

/// How the end of an answer's body is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body, whatever the headers say.
    None,
    /// After so many bytes.
    Length(u64),
    /// By the last of its chunks; these trailers may follow it.
    Chunked { trailers: Names },
    /// By the end of the connection.
    Close,
}

/// Names of headers.
pub(super) type Names = SmallVec<[HeaderName; 2]>;

/// Fields that say how a message is framed, where it belongs, how it is to be handled or whose it is: whoever
/// puts trailers among the headers would take them for that (RFC 9110, section 6.5.1).
pub const NEVER_TRAILERS: [HeaderName; 16] = [
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

/// Room for an ordinary answer's status line and for each of its headers.
const LINE: usize = 32;

/// Appends the head of an answer to `out`. Its body has `exact` bytes, where that is known; `last` if no
/// request is taken after this one.
pub(super) fn head(
    out: &mut Vec<u8>,
    parts: &Parts,
    exact: Option<u64>,
    asked: &Asked,
    last: bool,
    now: Instant,
) -> Framing {
    let framing = framing(parts, exact, asked);
    out.reserve(LINE * (parts.headers.len() + 4));
    status_line(out, parts.status, asked.version);
    let mut lengthy = false;
    for (name, value) in &parts.headers {
        match *name {
            TRANSFER_ENCODING => {}
            CONTENT_LENGTH => {
                // Of several there is one, and it says what the body has.
                if !std::mem::replace(&mut lengthy, true) {
                    match &framing {
                        Framing::Length(length) => length_line(out, *length),
                        Framing::None if keeps_length(parts.status) => line(out, name, value),
                        _ => {}
                    }
                }
            }
            TRAILER if !matches!(framing, Framing::Chunked { .. }) => {}
            _ => line(out, name, value),
        }
    }
    match &framing {
        Framing::Chunked { .. } => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::Length(length) if !lengthy => length_line(out, *length),
        Framing::None if !lengthy && asked.method == Method::HEAD => {
            // What the body would have had; nothing is known of one that is not there.
            if let Some(length @ 1..) = exact
                && keeps_length(parts.status)
            {
                length_line(out, length);
            }
        }
        Framing::None | Framing::Length(_) | Framing::Close => {}
    }
    let persistent = !last && framing != Framing::Close;
    match asked.version {
        // What comes after it is not HTTP, and no other answer is of this kind.
        _ if parts.status.is_informational() => {}
        Version::Http11 if !persistent => out.extend_from_slice(b"connection: close\r\n"),
        Version::Http10 if persistent => out.extend_from_slice(b"connection: keep-alive\r\n"),
        _ => {}
    }
    if !parts.headers.contains_key(DATE) {
        out.extend_from_slice(b"date: ");
        date::append(out, now);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    framing
}

/// Appends `size` and the line end that follow a chunk's beginning.
pub(super) fn chunk_size(out: &mut Vec<u8>, size: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(DIGITS[size >> (4 * digit) & 0xf]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the end of a chunked body: its last chunk, and of its trailers those that were announced.
pub(super) fn last_chunk(
    out: &mut Vec<u8>,
    announced: &[HeaderName],
    trailers: Option<&HeaderMap>,
) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if announced.contains(name) {
            line(out, name, value);
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

fn line(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
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

fn framing(parts: &Parts, exact: Option<u64>, asked: &Asked) -> Framing {
    let bodyless = parts.status.is_informational()
        || matches!(
            parts.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    if bodyless || asked.method == Method::HEAD {
        return Framing::None;
    }
    match (exact.or_else(|| declared(&parts.headers)), asked.version) {
        (Some(length), _) => Framing::Length(length),
        (None, Version::Http10) => Framing::Close,
        (None, Version::Http11) => Framing::Chunked {
            trailers: if asked.trailers {
                announced(&parts.headers)
            } else {
                Names::new()
            },
        },
    }
}

/// The length that the headers declare for a body that does not know its own.
fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The trailers that the headers announce, without those that would be believed in a wrong place.
fn announced(headers: &HeaderMap) -> Names {
    let lines = headers.get_all(TRAILER).iter();
    lines
        .flat_map(|value| value.as_bytes().split(|&octet| octet == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| !NEVER_TRAILERS.contains(name))
        .collect()
}

/// Whether an answer without a body may declare a length: not where there never is one.
fn keeps_length(status: StatusCode) -> bool {
    !status.is_informational() && status != StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Asked = Asked {
        method: Method::GET,
        version: Version::Http11,
        trailers: false,
    };

    const HEAD: Asked = Asked {
        method: Method::HEAD,
        ..GET
    };

    const OLD: Asked = Asked {
        version: Version::Http10,
        ..GET
    };

    /// The head of an answer with these header lines, without its date, and how its body is framed.
    fn head_of(
        status: u16,
        lines: &[(&'static str, &'static str)],
        exact: Option<u64>,
        asked: &Asked,
        last: bool,
    ) -> (String, Framing) {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = StatusCode::from_u16(status).unwrap();
        for (name, value) in lines {
            let value = HeaderValue::from_static(value);
            parts.headers.append(HeaderName::from_static(name), value);
        }
        let mut out = Vec::new();
        let framing = head(&mut out, &parts, exact, asked, last, Instant::now());
        let head = String::from_utf8(out).unwrap();
        let head = head.strip_suffix("\r\n\r\n").unwrap();
        let (head, date) = head.rsplit_once("\r\ndate: ").unwrap();
        assert!(httpdate::parse_http_date(date).is_ok(), "{date}");
        (head.replace("\r\n", "|"), framing)
    }

    fn chunked(trailers: &[&'static str]) -> Framing {
        let trailers = trailers.iter().copied().map(HeaderName::from_static);
        Framing::Chunked {
            trailers: trailers.collect(),
        }
    }

    #[test]
    fn the_lines_of_a_head_are_sent_in_their_order() {
        let lines = [("set-cookie", "a"), ("x", "y"), ("set-cookie", "b")];
        let (head, framing) = head_of(200, &lines, Some(5), &GET, false);
        assert_eq!(
            head,
            "HTTP/1.1 200 OK|set-cookie: a|set-cookie: b|x: y|content-length: 5"
        );
        assert_eq!(framing, Framing::Length(5));
    }

    #[test]
    fn a_date_that_is_given_is_kept() {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts
            .headers
            .insert(DATE, HeaderValue::from_static("long ago"));
        let mut out = Vec::new();
        head(&mut out, &parts, Some(0), &GET, false, Instant::now());
        assert_eq!(
            out,
            b"HTTP/1.1 200 OK\r\ndate: long ago\r\ncontent-length: 0\r\n\r\n"
        );
    }

    #[test]
    fn the_length_that_is_sent_is_the_bodys() {
        let lines = [("content-length", "7"), ("x", "y"), ("content-length", "8")];
        let (head, framing) = head_of(200, &lines, Some(5), &GET, false);
        assert_eq!(head, "HTTP/1.1 200 OK|content-length: 5|x: y");
        assert_eq!(framing, Framing::Length(5));
        let (head, framing) = head_of(200, &lines[..1], None, &GET, false);
        assert_eq!(head, "HTTP/1.1 200 OK|content-length: 7");
        assert_eq!(framing, Framing::Length(7));
    }

    #[test]
    fn a_body_of_unknown_length_is_chunked_or_ends_with_the_connection() {
        let (head, framing) = head_of(200, &[("transfer-encoding", "gzip")], None, &GET, false);
        assert_eq!(head, "HTTP/1.1 200 OK|transfer-encoding: chunked");
        assert_eq!(framing, chunked(&[]));
        let (head, framing) = head_of(200, &[], None, &OLD, false);
        assert_eq!(head, "HTTP/1.0 200 OK");
        assert_eq!(framing, Framing::Close);
    }

    #[test]
    fn whether_the_connection_goes_on_is_said_where_it_is_not_understood() {
        for (asked, last, said) in [
            (&GET, false, ""),
            (&GET, true, "|connection: close"),
            (&OLD, false, "|connection: keep-alive"),
            (&OLD, true, ""),
        ] {
            let (head, _) = head_of(204, &[], Some(0), asked, last);
            let (_, rest) = head.split_once("204 No Content").unwrap();
            assert_eq!(rest, said);
        }
    }

    #[test]
    fn an_answer_without_a_body_says_only_what_one_would_have_had() {
        let length = [("content-length", "5")];
        for (status, asked, lines, exact, expected) in [
            (200, &HEAD, &length[..], Some(0), "|content-length: 5"),
            (200, &HEAD, &[], Some(5), "|content-length: 5"),
            (200, &HEAD, &[], Some(0), ""),
            (200, &HEAD, &[], None, ""),
            (304, &GET, &length, Some(0), "|content-length: 5"),
            (304, &GET, &[], Some(0), ""),
            (204, &GET, &length, Some(0), ""),
            (204, &HEAD, &[], Some(5), ""),
        ] {
            let (head, framing) = head_of(status, lines, exact, asked, false);
            let lines = head.find('|').map_or("", |at| &head[at..]);
            assert_eq!(lines, expected, "{status} {asked:?} {exact:?}");
            assert_eq!(framing, Framing::None);
        }
    }

    #[test]
    fn trailers_are_announced_and_sent_to_those_who_take_them() {
        let asked = Asked {
            trailers: true,
            ..GET
        };
        let lines = [("trailer", "X-Sum, x-took")];
        let (head, framing) = head_of(200, &lines, None, &asked, false);
        assert_eq!(
            head,
            "HTTP/1.1 200 OK|trailer: X-Sum, x-took|transfer-encoding: chunked"
        );
        assert_eq!(framing, chunked(&["x-sum", "x-took"]));
        let (_, framing) = head_of(200, &lines, None, &GET, false);
        assert_eq!(framing, chunked(&[]));
        let lines = [("trailer", "set-cookie,Content-Length, x, transfer-encoding")];
        let (_, framing) = head_of(200, &lines, None, &asked, false);
        assert_eq!(framing, chunked(&["x"]));

        let Framing::Chunked { trailers: names } = chunked(&["x-sum"]) else {
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
    fn a_status_without_a_name_has_none() {
        let (head, _) = head_of(599, &[], Some(0), &GET, false);
        assert_eq!(head, "HTTP/1.1 599 |content-length: 0");
    }

    #[test]
    fn a_chunk_says_its_size_in_hexadecimal() {
        for size in [0, 1, 9, 10, 15, 16, 255, 256, 65_535, 65_536, usize::MAX] {
            let mut out = Vec::new();
            chunk_size(&mut out, size);
            assert_eq!(out, format!("{size:x}\r\n").into_bytes());
        }
    }
}
