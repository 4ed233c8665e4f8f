//! The strict reading of a request's head.
//!
//! hyper's parser follows "be liberal in what you accept": it takes bare LF for a line end, keeps one
//! of two equal Content-Lengths, prefers Transfer-Encoding to a Content-Length beside it, and takes
//! `gzip, chunked`. Each of these is a head that another server reads differently, which is all that
//! request smuggling needs. So the head is read here first, by RFC 9112 without its leniencies, and
//! only a head with a single possible reading passes. What passes, hyper reads alike: the same end,
//! the same headers, the same framing.
//!
//! One empty line before the request line is let through, as section 2.2 asks (some old clients send
//! one after a body); a second is refused. What a header means, Host's value included, is not judged
//! here: that is the same question under HTTP/2, and has its own place.

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

/// A valid head, as far as it decides where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// How many bytes it has.
    pub len: usize,
    /// What body follows.
    pub framing: Framing,
    /// Whether the bytes after this message may belong to another protocol.
    pub upgrade: bool,
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

/// Reads the head that `bytes` begin with; `None` if it is not all there yet.
pub fn read(bytes: &[u8], limits: Limits) -> Result<Option<Head>, Violation> {
    let within = &bytes[..bytes.len().min(limits.bytes)];
    match whole(within, limits.lines) {
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

fn whole(bytes: &[u8], lines: usize) -> Result<Head, Stop> {
    let (line, mut at) = request_line(bytes)?;
    let mut fields = Fields::default();
    let mut count = 0;
    loop {
        match bytes.get(at) {
            None => return Err(Stop::Incomplete),
            Some(b'\r' | b'\n') => break,
            Some(_) => {}
        }
        count += 1;
        if count > lines {
            return Err(Violation::TooManyHeaders.into());
        }
        let (name, value, next) = header_line(bytes, at)?;
        fields.note(name, value)?;
        at = next;
    }
    let len = line_end(bytes, at)?;
    Ok(Head {
        len,
        framing: fields.framing(line.version)?,
        upgrade: line.connect || (fields.upgrade && line.version == Version::Http11),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

struct RequestLine {
    version: Version,
    connect: bool,
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
    // The parser behind wants a string: a target that is none has no reading there.
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
        version: version(&bytes[version_start..version_end])?,
        connect: &bytes[start..method_end] == b"CONNECT",
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

/// A header line's name, its value with the white space around it, and where the next line begins.
fn header_line(bytes: &[u8], start: usize) -> Result<(&[u8], &[u8], usize), Stop> {
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
    Ok((
        &bytes[start..name_end],
        &bytes[value_start..value_end],
        next,
    ))
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

/// The headers that decide how a request is framed.
#[derive(Default)]
struct Fields {
    host: bool,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
}

impl Fields {
    fn note(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                if self.host {
                    return Err(Violation::HostRepeated);
                }
                self.host = true;
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if self.length.is_some() {
                    return Err(Violation::ContentLengthRepeated);
                }
                self.length = Some(decimal(trim(value)).ok_or(Violation::ContentLength)?);
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if self.chunked {
                    return Err(Violation::TransferEncodingRepeated);
                }
                if !trim(value).eq_ignore_ascii_case(b"chunked") {
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

/// A number of nothing but digits. hyper keeps the two largest for itself, so they overflow too.
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
