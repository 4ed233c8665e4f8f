//! Strict parser of HTTP/1 request heads.
//!
//! Most parsers accept a bare LF as a line end, two equal `Content-Length` lines, `Content-Length` together with
//! `Transfer-Encoding`, or `Transfer-Encoding: gzip, chunked`. Another server can interpret each of these heads
//! differently, which makes request smuggling possible. This parser follows RFC 9112 without its optional leniencies.
//!
//! One empty line before the request line is accepted (RFC 9112, section 2.2), because some old clients send one after
//! a body. The values of headers such as `Host` are checked in `request::head`, also for HTTP/2.

mod octets;

use std::ops::Range;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};

pub(super) use self::octets::is_token;
use self::octets::{find_control, find_control_or_space, token_end, trim};
use super::target;
use super::violation::Violation;

/// Number of header lines that the gateway typically adds to a request.
const ADDED_HEADERS: usize = 6;

/// Size limits of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Maximum size in bytes, including the final empty line (`max_header_bytes`).
    pub bytes: usize,
    /// Maximum number of header lines (`max_headers`).
    pub lines: usize,
}

/// Positions in the parsed bytes, and properties that the connection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each flag is independent of the others"
)]
pub struct Head {
    /// Including the final empty line.
    pub len: usize,
    pub method: Range<usize>,
    pub target: Range<usize>,
    pub version: Version,
    pub framing: Framing,
    pub expects_continue: bool,
    pub accepts_trailers: bool,
    /// According to the HTTP version and the `Connection` header.
    pub keep_alive: bool,
    /// The bytes after a request with an `Upgrade` header can belong to another protocol.
    pub upgrade: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// In the spelling of the client.
    pub name: Range<usize>,
    /// Without surrounding white space.
    pub value: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Also `Content-Length: 0`.
    None,
    /// Length in bytes, greater than 0.
    Length(u64),
    Chunked,
}

/// Parses the request head at the start of `bytes`, and stores the positions of its header lines in `lines`. Returns
/// `None` if the head is incomplete.
pub fn parse(
    bytes: &[u8],
    limits: HeadLimits,
    lines: &mut Vec<HeaderLine>,
) -> Result<Option<Head>, Violation> {
    let within = &bytes[..bytes.len().min(limits.bytes)];
    match parse_head(within, limits.lines, lines) {
        Ok(head) => Ok(Some(head)),
        Err(ParseError::Invalid(violation)) => Err(violation),
        Err(ParseError::Incomplete) if within.len() == limits.bytes => Err(Violation::HeadTooLarge),
        Err(ParseError::Incomplete) => Ok(None),
    }
}

impl Head {
    /// `bytes` are the bytes that were parsed. The header values reference them without a copy.
    pub(super) fn request(
        &self,
        bytes: &Bytes,
        lines: &[HeaderLine],
    ) -> Result<Request<()>, Violation> {
        let mut request = Request::new(());
        *request.method_mut() =
            Method::from_bytes(&bytes[self.method.clone()]).map_err(|_| Violation::RequestLine)?;
        *request.uri_mut() = target::parse(request.method(), bytes, self.target.clone())?;
        *request.version_mut() = match self.version {
            Version::Http10 => http::Version::HTTP_10,
            Version::Http11 => http::Version::HTTP_11,
        };
        *request.headers_mut() = header_map(bytes, lines)?;
        Ok(request)
    }
}

fn header_map(bytes: &Bytes, lines: &[HeaderLine]) -> Result<HeaderMap, Violation> {
    let mut headers = HeaderMap::try_with_capacity(lines.len() + ADDED_HEADERS)
        .map_err(|_| Violation::TooManyHeaders)?;
    for line in lines {
        let name =
            HeaderName::from_bytes(&bytes[line.name.clone()]).map_err(|_| Violation::Name)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice(line.value.clone()))
            .map_err(|_| Violation::Control)?;
        headers
            .try_append(name, value)
            .map_err(|_| Violation::TooManyHeaders)?;
    }
    Ok(headers)
}

enum ParseError {
    Incomplete,
    Invalid(Violation),
}

impl From<Violation> for ParseError {
    fn from(violation: Violation) -> Self {
        Self::Invalid(violation)
    }
}

fn parse_head(bytes: &[u8], limit: usize, lines: &mut Vec<HeaderLine>) -> Result<Head, ParseError> {
    lines.clear();
    let (line, mut at) = request_line(bytes)?;
    let mut fields = ConnectionFields::default();
    loop {
        match bytes.get(at) {
            None => return Err(ParseError::Incomplete),
            Some(b'\r' | b'\n') => break,
            Some(_) => {}
        }
        if lines.len() == limit {
            return Err(Violation::TooManyHeaders.into());
        }
        let (line, next) = header_line(bytes, at)?;
        fields.read(&bytes[line.name.clone()], &bytes[line.value.clone()])?;
        lines.push(line);
        at = next;
    }
    let len = line_end(bytes, at)?;
    let http11 = line.version == Version::Http11;
    Ok(Head {
        len,
        framing: fields.framing(line.version)?,
        expects_continue: fields.expects_continue && http11,
        accepts_trailers: fields.accepts_trailers && http11,
        keep_alive: !fields.close && (http11 || fields.keep_alive),
        upgrade: fields.upgrade && http11,
        method: line.method,
        target: line.target,
        version: line.version,
    })
}

struct RequestLine {
    method: Range<usize>,
    target: Range<usize>,
    version: Version,
}

fn request_line(bytes: &[u8]) -> Result<(RequestLine, usize), ParseError> {
    let start = match bytes.first() {
        Some(b'\r' | b'\n') => line_end(bytes, 0)?,
        _ => 0,
    };
    let method_end = token_end(bytes, start);
    expect_space(bytes, start, method_end, Violation::RequestLine)?;
    let target_start = method_end + 1;
    let target_end = find_control_or_space(bytes, target_start);
    let invalid = Violation::TargetCharacter {
        octet: bytes.get(target_end).copied().unwrap_or_default(),
        at: target_end - target_start,
    };
    expect_space(bytes, target_start, target_end, invalid)?;
    // The type `Uri` accepts only UTF-8.
    let target = &bytes[target_start..target_end];
    if !target.is_ascii() && str::from_utf8(target).is_err() {
        return Err(Violation::Target.into());
    }
    let version_start = target_end + 1;
    let version_end = find_control_or_space(bytes, version_start);
    let next = line_end(bytes, version_end).map_err(|error| match error {
        ParseError::Invalid(Violation::Control) => Violation::RequestLine.into(),
        other => other,
    })?;
    let line = RequestLine {
        method: start..method_end,
        target: target_start..target_end,
        version: version(&bytes[version_start..version_end])?,
    };
    Ok((line, next))
}

/// Checks that the part from `start` to `end` is not empty and that a space follows. The violation is `otherwise` if
/// neither a space nor a line end follows.
fn expect_space(
    bytes: &[u8],
    start: usize,
    end: usize,
    otherwise: Violation,
) -> Result<(), ParseError> {
    match bytes.get(end) {
        None => Err(ParseError::Incomplete),
        Some(b' ') if end > start => Ok(()),
        Some(b'\n') => Err(Violation::BareLf.into()),
        Some(b' ' | b'\r') => Err(Violation::RequestLine.into()),
        Some(_) => Err(otherwise.into()),
    }
}

fn version(bytes: &[u8]) -> Result<Version, Violation> {
    match bytes {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(Violation::Version)
        }
        _ => Err(Violation::RequestLine),
    }
}

/// Also returns the start of the next line.
fn header_line(bytes: &[u8], start: usize) -> Result<(HeaderLine, usize), ParseError> {
    let name_end = token_end(bytes, start);
    match bytes.get(name_end) {
        None => return Err(ParseError::Incomplete),
        Some(b':') if name_end > start => {}
        Some(b':') => return Err(Violation::EmptyName.into()),
        Some(b' ' | b'\t') if name_end == start => return Err(Violation::Folded.into()),
        Some(b' ' | b'\t') => return Err(Violation::SpaceBeforeColon.into()),
        Some(b'\n') => return Err(Violation::BareLf.into()),
        Some(_) => return Err(Violation::Name.into()),
    }
    let value_start = name_end + 1;
    let mut value_end = find_control(bytes, value_start);
    while bytes.get(value_end) == Some(&b'\t') {
        value_end = find_control(bytes, value_end + 1);
    }
    let next = line_end(bytes, value_end)?;
    let line = HeaderLine {
        name: start..name_end,
        value: trim(bytes, value_start..value_end),
    };
    Ok((line, next))
}

/// Returns the position after the CRLF.
fn line_end(bytes: &[u8], at: usize) -> Result<usize, ParseError> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(at + 2),
        (None, _) | (Some(b'\r'), None) => Err(ParseError::Incomplete),
        (Some(b'\r'), Some(_)) => Err(Violation::BareCr.into()),
        (Some(b'\n'), _) => Err(Violation::BareLf.into()),
        (Some(_), _) => Err(Violation::Control.into()),
    }
}

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each flag is independent of the others"
)]
struct ConnectionFields {
    host: bool,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
    expects_continue: bool,
    accepts_trailers: bool,
    close: bool,
    keep_alive: bool,
}

impl ConnectionFields {
    fn read(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        match name.len() {
            2 if is(name, b"te") => {
                self.accepts_trailers |= list(value).any(|item| is(item, b"trailers"));
            }
            4 if is(name, b"host") => {
                if self.host {
                    return Err(Violation::HostRepeated);
                }
                self.host = true;
            }
            6 if is(name, b"expect") => {
                self.expects_continue = is(value, b"100-continue");
            }
            7 if is(name, b"upgrade") => self.upgrade = true,
            10 if is(name, b"connection") => {
                for item in list(value) {
                    self.close |= is(item, b"close");
                    self.keep_alive |= is(item, b"keep-alive");
                }
            }
            14 if is(name, b"content-length") => {
                if self.length.is_some() {
                    return Err(Violation::ContentLengthRepeated);
                }
                self.length = Some(decimal(value).ok_or(Violation::ContentLength)?);
            }
            17 if is(name, b"transfer-encoding") => {
                if self.chunked {
                    return Err(Violation::TransferEncodingRepeated);
                }
                if !is(value, b"chunked") {
                    return Err(Violation::TransferEncoding);
                }
                self.chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn framing(&self, version: Version) -> Result<Framing, Violation> {
        match (version, self.host, self.chunked, self.length) {
            (Version::Http10, _, true, _) => Err(Violation::TransferEncodingOnHttp10),
            (_, _, true, Some(_)) => Err(Violation::BothFramings),
            (Version::Http11, false, _, _) => Err(Violation::HostMissing),
            (_, _, true, None) => Ok(Framing::Chunked),
            (_, _, false, None | Some(0)) => Ok(Framing::None),
            (_, _, false, Some(length)) => Ok(Framing::Length(length)),
        }
    }
}

fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&octet| octet == b',').map(<[u8]>::trim_ascii)
}

fn is(text: &[u8], word: &[u8]) -> bool {
    text.eq_ignore_ascii_case(word)
}

/// Accepts 1 to 19 digits, which always fit in a `u64`, like the HTTP/2 library. The bound also limits leading zeros.
fn decimal(digits: &[u8]) -> Option<u64> {
    if !(1..=19).contains(&digits.len()) {
        return None;
    }
    digits.iter().try_fold(0, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        Some(number * 10 + digit)
    })
}

#[cfg(test)]
mod tests;
