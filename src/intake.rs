//! Checks of a request's head, the same for HTTP/1 and HTTP/2.
//!
//! The parsers have checked the framing. These checks reject what a parser accepts and two servers can read
//! differently: the host, the form of the target, methods that are not requests for a resource, and
//! [spellings of headers](headers). A request with two possible meanings is rejected.

pub(crate) mod headers;

use std::borrow::Cow;
use std::net::Ipv6Addr;

use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, EXPECT, HOST};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use self::headers::{HeaderNames, PADDED_VALUE, has_padded_value};
use crate::problem::Problem;

/// Why a request is rejected because of its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// The head has no meaning, or more than one.
    Invalid(Cow<'static, str>),
    /// The method is never forwarded, or the target is `*`.
    MethodNotAllowed,
    /// `Expect` contains another expectation than `100-continue`.
    ExpectationFailed,
    /// The declared length of the body exceeds the limit.
    BodyTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
}

impl HeadError {
    fn invalid(detail: &'static str) -> Self {
        Self::Invalid(Cow::Borrowed(detail))
    }
}

impl From<HeadError> for Problem {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Invalid(detail) => Self::bad_request(detail),
            HeadError::MethodNotAllowed => {
                let mut problem = Self::new(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "bad-request",
                    "Method not allowed",
                    "CONNECT and TRACE are not forwarded, nor is a request for '*'.",
                );
                problem
                    .headers
                    .insert(ALLOW, HeaderValue::from_static(FORWARDED_METHODS));
                problem
            }
            HeadError::ExpectationFailed => Self::new(
                StatusCode::EXPECTATION_FAILED,
                "bad-request",
                "Bad request",
                "The gateway meets no expectation but 100-continue.",
            ),
            HeadError::BodyTooLarge { limit } => Self::payload_too_large(limit),
        }
    }
}

/// The value of `Allow` for a method that is never forwarded.
const FORWARDED_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Checks the head of `request`, reduces its headers to one spelling, and returns its host.
pub(crate) fn check<B>(
    request: &mut Request<B>,
    max_body: u64,
    names: &HeaderNames,
) -> Result<HeaderValue, HeadError> {
    let declared = Declared::of(request.headers());
    check_method(request)?;
    let host = check_host(request.uri(), &declared.host)?;
    check_expectation(&declared)?;
    check_length(&declared.length, max_body)?;
    let names_headers = declared.names_headers;
    // The reader of HTTP/1 has removed such white space.
    if request.version() == Version::HTTP_2 && has_padded_value(request.headers()) {
        return Err(PADDED_VALUE);
    }
    names.settle(request.headers_mut(), names_headers);
    Ok(host)
}

/// Headers that are checked. One pass finds all of them: each of three look-ups would cost as much as passing
/// eight headers, and most requests have fewer than twice as many.
#[derive(Default)]
struct Declared<'a> {
    host: Sole<'a>,
    length: Sole<'a>,
    expects_more_than_to_continue: bool,
    /// Whether `Connection` can name a header.
    names_headers: bool,
}

/// A header that may have one line.
#[derive(Default)]
struct Sole<'a> {
    line: Option<&'a HeaderValue>,
    is_repeated: bool,
}

impl<'a> Declared<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let mut declared = Self::default();
        for (name, value) in headers {
            match *name {
                HOST => declared.host.add(value),
                CONTENT_LENGTH => declared.length.add(value),
                CONNECTION => declared.names_headers |= headers::names_headers(value),
                EXPECT => {
                    let is_met = value.as_bytes().eq_ignore_ascii_case(b"100-continue");
                    declared.expects_more_than_to_continue |= !is_met;
                }
                _ => {}
            }
        }
        declared
    }
}

impl<'a> Sole<'a> {
    fn add(&mut self, line: &'a HeaderValue) {
        self.is_repeated = self.line.replace(line).is_some();
    }
}

fn check_method<B>(request: &Request<B>) -> Result<(), HeadError> {
    let forwarded = !matches!(*request.method(), Method::CONNECT | Method::TRACE);
    if forwarded && request.uri().path() != "*" {
        Ok(())
    } else {
        Err(HeadError::MethodNotAllowed)
    }
}

/// Exactly one host, in the target, in `Host`, or the same in both.
fn check_host(target: &Uri, header: &Sole<'_>) -> Result<HeaderValue, HeadError> {
    let web = |scheme: &Scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS;
    if !target.scheme().is_none_or(web) {
        return Err(HeadError::invalid(
            "The request's target is neither http nor https.",
        ));
    }
    if header.is_repeated {
        return Err(HeadError::invalid(
            "The request has more than one Host header.",
        ));
    }
    match (header.line, target.authority()) {
        (None, None) => Err(HeadError::invalid("The request has no Host header.")),
        (Some(host), None) => {
            if is_plain_host(host.as_bytes()) {
                Ok(host.clone())
            } else {
                Err(HeadError::invalid(
                    "The Host header is not one host with, at most, a port.",
                ))
            }
        }
        (line, Some(authority)) => {
            let agrees = line.is_none_or(|host| {
                host.as_bytes()
                    .eq_ignore_ascii_case(authority.as_str().as_bytes())
            });
            if !agrees {
                return Err(HeadError::invalid(
                    "The request's target names another host than its Host header.",
                ));
            }
            HeaderValue::from_str(authority.as_str())
                .ok()
                .filter(|host| is_plain_host(host.as_bytes()))
                .ok_or_else(|| HeadError::invalid("The request's target names no plain host."))
        }
    }
}

/// A name or an address with, at most, a port. RFC 3986 would allow more in a name, percent-encoding among
/// it, but no name has any of that, and whoever decodes it has another host.
fn is_plain_host(host: &[u8]) -> bool {
    if let Some(bracketed) = host.strip_prefix(b"[") {
        let Some(end) = bracketed.iter().position(|&byte| byte == b']') else {
            return false;
        };
        let address = std::str::from_utf8(&bracketed[..end]).map(str::parse::<Ipv6Addr>);
        return matches!(address, Ok(Ok(_))) && is_port(&bracketed[end + 1..]);
    }
    let in_name = |byte: &&u8| IN_NAME[usize::from(**byte)];
    let name = host.iter().take_while(in_name).count();
    name > 0 && is_port(&host[name..])
}

/// The bytes a host's name is made of; a table, because every byte of every request's host is looked up.
static IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        table[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        byte += 1;
    }
    table
};

/// A colon and digits, or nothing.
fn is_port(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn check_expectation(declared: &Declared<'_>) -> Result<(), HeadError> {
    if declared.expects_more_than_to_continue {
        return Err(HeadError::ExpectationFailed);
    }
    Ok(())
}

fn check_length(header: &Sole<'_>, limit: u64) -> Result<(), HeadError> {
    if header.is_repeated {
        return Err(HeadError::invalid(
            "The request has more than one Content-Length.",
        ));
    }
    let declared = header.line.and_then(|length| length.to_str().ok());
    match declared.map(str::parse::<u64>) {
        None => Ok(()),
        Some(Ok(length)) if length <= limit => Ok(()),
        Some(Ok(_)) => Err(HeadError::BodyTooLarge { limit }),
        Some(Err(_)) => Err(HeadError::invalid("The Content-Length is not a number.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::builder().uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap()
    }

    fn status(request: &Request<()>) -> u16 {
        let mut request = request.clone();
        let host = check(&mut request, 10, &HeaderNames::default());
        host.map_or_else(|error| Problem::from(error).status.as_u16(), |_| 200)
    }

    #[test]
    fn a_request_is_for_exactly_one_plain_host() {
        for host in [
            "a.example",
            "a.example:80",
            "[::1]:8080",
            "127.0.0.1",
            "under_score",
        ] {
            assert_eq!(status(&request("/", &[host])), 200, "{host}");
        }
        let bad = [
            "",
            "a,b",
            "user@a.example",
            "a.example/x",
            "a b",
            "a:b",
            ":80",
            "a:1:2",
            "a?b",
            "a#b",
            "a%2eb",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "[1]",
            "::1",
        ];
        for host in bad {
            assert_eq!(status(&request("/", &[host])), 400, "{host:?}");
        }
        assert_eq!(status(&request("/", &[])), 400);
        assert_eq!(status(&request("/", &["a.example", "a.example"])), 400);
    }

    #[test]
    fn a_target_that_names_a_host_agrees_with_the_header() {
        assert_eq!(status(&request("http://a.example/x", &["a.example"])), 200);
        assert_eq!(status(&request("http://A.example/x", &["a.example"])), 200);
        assert_eq!(status(&request("http://b.example/x", &["a.example"])), 400);
        assert_eq!(
            status(&request("http://u@a.example/x", &["u@a.example"])),
            400
        );
        assert_eq!(status(&request("http://a.example/x", &[])), 200);
        assert_eq!(status(&request("ftp://a.example/x", &["a.example"])), 400);
    }

    #[test]
    fn methods_that_ask_for_no_resource_are_not_taken() {
        for method in [Method::TRACE, Method::CONNECT] {
            let mut request = request("/", &["a.example"]);
            *request.method_mut() = method;
            assert_eq!(status(&request), 405);
        }
        for method in [Method::OPTIONS, Method::GET] {
            let mut request = request("*", &["a.example"]);
            *request.method_mut() = method;
            assert_eq!(status(&request), 405);
        }
    }

    #[test]
    fn only_the_expectation_to_continue_is_met() {
        for (expectation, expected) in [("100-continue", 200), ("100-Continue", 200), ("x", 417)] {
            let mut request = request("/", &["a.example"]);
            request
                .headers_mut()
                .insert(EXPECT, expectation.parse().unwrap());
            assert_eq!(status(&request), expected);
        }
    }

    #[test]
    fn a_body_declared_larger_than_the_cap_is_refused_unread() {
        let mut request = request("/", &["a.example"]);
        request.headers_mut().insert(CONTENT_LENGTH, 10.into());
        assert_eq!(status(&request), 200);
        request.headers_mut().insert(CONTENT_LENGTH, 11.into());
        assert_eq!(status(&request), 413);
    }
}
