//! The strict reading of a request's head.
//!
//! Most parsers follow "be liberal in what you accept": they take bare LF for a line end, keep one of
//! two equal Content-Lengths, prefer Transfer-Encoding to a Content-Length beside it, and take `gzip,
//! chunked`. Each of these is a head that another server reads differently, which is all that request
//! smuggling needs. So a head is read here by RFC 9112 without its leniencies, and only one with a
//! single possible reading is a request.
//!
//! One empty line before the request line is let through, as section 2.2 asks (some old clients send
//! one after a body); a second is refused. What a header means, Host's value included, is not judged
//! here: that is the same question under HTTP/2, and has its own place.

use std::ops::Range;

use super::octets::{control, control_or_space, token_end, trim};
use super::violation::Violation;

/// How large a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, from the first to the empty line's last.
    pub bytes: usize,
    /// Header lines.
    pub lines: usize,
}

/// A valid head: where its parts are, and what they say of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a wish of the client's, and none excludes another"
)]
pub struct Head {
    /// How many bytes it has.
    pub len: usize,
    /// Where its method is.
    pub method: Range<usize>,
    /// Where its target is.
    pub target: Range<usize>,
    /// Its version.
    pub version: Version,
    /// What body follows.
    pub framing: Framing,
    /// Whether the client waits to be asked for the body.
    pub expects: bool,
    /// Whether the client takes trailers.
    pub trailers: bool,
    /// Whether the client means to send another request after this one.
    pub keep_alive: bool,
    /// Whether the bytes after this message may belong to another protocol.
    pub upgrade: bool,
}

/// Where a header line's name and value are, the latter without the white space around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The name, in the case it was sent in.
    pub name: Range<usize>,
    /// The value.
    pub value: Range<usize>,
}

/// The versions that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// How a message's body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// So many bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// Reads the head that `bytes` begin with, and its header lines into `lines`; `None` if it is not all
/// there yet.
pub fn read(
    bytes: &[u8],
    limits: Limits,
    lines: &mut Vec<Line>,
) -> Result<Option<Head>, Violation> {
    let within = &bytes[..bytes.len().min(limits.bytes)];
    match whole(within, limits.lines, lines) {
        Ok(head) => Ok(Some(head)),
        Err(Stop::Bad(violation)) => Err(violation),
        Err(Stop::Incomplete) if within.len() == limits.bytes => Err(Violation::HeadTooLarge),
        Err(Stop::Incomplete) => Ok(None),
    }
}

enum Stop {
    Incomplete,
    Bad(Violation),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Bad(violation)
    }
}

fn whole(bytes: &[u8], limit: usize, lines: &mut Vec<Line>) -> Result<Head, Stop> {
    lines.clear();
    let (line, mut at) = request_line(bytes)?;
    let mut fields = Fields::default();
    loop {
        match bytes.get(at) {
            None => return Err(Stop::Incomplete),
            Some(b'\r' | b'\n') => break,
            Some(_) => {}
        }
        if lines.len() == limit {
            return Err(Violation::TooManyHeaders.into());
        }
        let (line, next) = header_line(bytes, at)?;
        fields.note(&bytes[line.name.clone()], &bytes[line.value.clone()])?;
        lines.push(line);
        at = next;
    }
    let len = line_end(bytes, at)?;
    let http11 = line.version == Version::Http11;
    Ok(Head {
        len,
        framing: fields.framing(line.version)?,
        expects: fields.expects && http11,
        trailers: fields.trailers && http11,
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

fn request_line(bytes: &[u8]) -> Result<(RequestLine, usize), Stop> {
    let start = match bytes.first() {
        Some(b'\r' | b'\n') => line_end(bytes, 0)?,
        _ => 0,
    };
    let method_end = token_end(bytes, start);
    space(bytes, start, method_end, Violation::RequestLine)?;
    let target_start = method_end + 1;
    let target_end = control_or_space(bytes, target_start);
    space(bytes, target_start, target_end, Violation::Target)?;
    // A target that is no text has no reading as a URL.
    let target = &bytes[target_start..target_end];
    if !target.is_ascii() && str::from_utf8(target).is_err() {
        return Err(Violation::Target.into());
    }
    let version_start = target_end + 1;
    let version_end = control_or_space(bytes, version_start);
    let next = line_end(bytes, version_end).map_err(|stop| match stop {
        Stop::Bad(Violation::Control) => Violation::RequestLine.into(),
        other => other,
    })?;
    let line = RequestLine {
        method: start..method_end,
        target: target_start..target_end,
        version: version(&bytes[version_start..version_end])?,
    };
    Ok((line, next))
}

/// Holds that the part of the request line from `start` is not empty and ends in one space.
fn space(bytes: &[u8], start: usize, end: usize, otherwise: Violation) -> Result<(), Stop> {
    match bytes.get(end) {
        None => Err(Stop::Incomplete),
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

/// The header line at `start`, and where the next line begins.
fn header_line(bytes: &[u8], start: usize) -> Result<(Line, usize), Stop> {
    let name_end = token_end(bytes, start);
    match bytes.get(name_end) {
        None => return Err(Stop::Incomplete),
        Some(b':') if name_end > start => {}
        Some(b':') => return Err(Violation::EmptyName.into()),
        Some(b' ' | b'\t') if name_end == start => return Err(Violation::Folded.into()),
        Some(b' ' | b'\t') => return Err(Violation::SpaceBeforeColon.into()),
        Some(b'\n') => return Err(Violation::BareLf.into()),
        Some(_) => return Err(Violation::Name.into()),
    }
    let value_start = name_end + 1;
    let mut value_end = control(bytes, value_start);
    while bytes.get(value_end) == Some(&b'\t') {
        value_end = control(bytes, value_end + 1);
    }
    let next = line_end(bytes, value_end)?;
    let line = Line {
        name: start..name_end,
        value: trim(bytes, value_start..value_end),
    };
    Ok((line, next))
}

/// Where the line after the CRLF at `at` begins.
fn line_end(bytes: &[u8], at: usize) -> Result<usize, Stop> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(at + 2),
        (None, _) | (Some(b'\r'), None) => Err(Stop::Incomplete),
        (Some(b'\r'), Some(_)) => Err(Violation::BareCr.into()),
        (Some(b'\n'), _) => Err(Violation::BareLf.into()),
        (Some(_), _) => Err(Violation::Control.into()),
    }
}

/// What the headers say of the connection and of the body.
#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one header's word, and none excludes another"
)]
struct Fields {
    host: bool,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
    expects: bool,
    trailers: bool,
    close: bool,
    keep_alive: bool,
}

impl Fields {
    fn note(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        match name.len() {
            2 if is(name, b"te") => {
                self.trailers |= options(value).any(|option| is(option, b"trailers"));
            }
            4 if is(name, b"host") => {
                if self.host {
                    return Err(Violation::HostRepeated);
                }
                self.host = true;
            }
            6 if is(name, b"expect") => {
                self.expects = is(value, b"100-continue");
            }
            7 if is(name, b"upgrade") => self.upgrade = true,
            10 if is(name, b"connection") => {
                for option in options(value) {
                    self.close |= is(option, b"close");
                    self.keep_alive |= is(option, b"keep-alive");
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

/// The parts of a list.
fn options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&octet| octet == b',').map(<[u8]>::trim_ascii)
}

/// Whether this is that word, in whatever case.
fn is(this: &[u8], word: &[u8]) -> bool {
    this.eq_ignore_ascii_case(word)
}

/// A number of nothing but digits. The two largest mean something else to other parsers, and overflow.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let number = digits.iter().try_fold(0u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    (number <= u64::MAX - 2).then_some(number)
}

#[cfg(test)]
mod tests;
