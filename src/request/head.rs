//! Checks request heads, on HTTP/1 and HTTP/2.
//!
//! The parsers have checked syntax and framing. These checks reject a valid head that two servers could interpret
//! differently: its host, the form of its target, `CONNECT` and `TRACE`, and spellings of [methods](super::methods) and
//! [headers](super::headers).

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};

use super::client::{Caller, TooManyHops, Trust};
use super::headers::{self, HeaderNames, IdentifyingHeaders, PADDED_VALUE, has_padded_value};
use super::methods::KnownMethods;
use crate::respond::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// The text is the `detail` member of the problem document.
    Invalid(Cow<'static, str>),
    /// `CONNECT`, `TRACE`, or the target `*`.
    MethodNotAllowed,
    ExpectationFailed,
    BodyTooLarge {
        limit: u64,
    },
}

impl HeadError {
    fn invalid(detail: &'static str) -> Self {
        Self::Invalid(Cow::Borrowed(detail))
    }
}

impl From<TooManyHops> for HeadError {
    fn from(error: TooManyHops) -> Self {
        Self::Invalid(error.to_string().into())
    }
}

impl From<HeadError> for Problem {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Invalid(detail) => Self::bad_request(detail),
            HeadError::MethodNotAllowed => Self::method_not_allowed(
                "The gateway does not forward CONNECT, TRACE, or requests with the target '*'.",
                HeaderValue::from_static(FORWARDED_METHODS),
            ),
            HeadError::ExpectationFailed => Self::new(
                StatusCode::EXPECTATION_FAILED,
                "bad-request",
                "Bad request",
                "The Expect header has an unsupported value. The only supported value is 100-continue.",
            ),
            HeadError::BodyTooLarge { limit } => Self::payload_too_large(limit),
        }
    }
}

/// `Allow` in the response to a request that no route can match.
const FORWARDED_METHODS: &str = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT";

/// Also normalises the headers. Afterwards `Host` is the requested host with its port, if any. Only an HTTP/1.0 request
/// can have none.
pub(crate) fn check<B>(
    request: &mut Request<B>,
    max_body: u64,
    names: &HeaderNames,
    methods: &KnownMethods,
) -> Result<(), HeadError> {
    let checked = CheckedHeaders::of(request.headers());
    methods.check(request.method())?;
    check_method(request)?;
    check_target(request.uri())?;
    let host = check_host(request, &checked.host)?;
    check_expectation(&checked)?;
    let length = check_content_length(&checked.length, max_body)?;
    let lists_headers = checked.lists_headers;
    // The HTTP/1 parser removes white space around header values.
    if request.version() == Version::HTTP_2 && has_padded_value(request.headers()) {
        return Err(PADDED_VALUE);
    }
    let headers = request.headers_mut();
    if let Some(host) = host {
        headers.insert(HOST, host);
    }
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    names.normalise(headers, lists_headers);
    Ok(())
}

/// For a request whose server has already checked its head, as in an application that embeds the stages.
pub(crate) fn identify(
    request: &mut Parts,
    peer: IpAddr,
    names: &HeaderNames,
    trust: &Trust,
    identifying: &IdentifyingHeaders,
) -> Result<Caller, HeadError> {
    // An HTTP/2 request has its host in the target.
    let authority = request.uri.authority();
    let host = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    let headers = &mut request.headers;
    if has_padded_value(headers) {
        return Err(PADDED_VALUE);
    }
    names.normalise(headers, true);
    let lookalikes = headers.keys().filter(|name| names.is_lookalike(name));
    for name in lookalikes.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
    let caller = trust.identify(peer, headers)?;
    identifying.check(headers, &caller, host.as_ref())?;
    Ok(caller)
}

/// With its port, if any. An HTTP/1.0 request can have no host.
pub(crate) fn requested_host<B>(request: &Request<B>) -> Result<Option<HeaderValue>, HeadError> {
    let mut header = SingleHeader::default();
    for line in request.headers().get_all(HOST) {
        header.add(line);
    }
    let host = check_host(request, &header)?;
    Ok(host.or_else(|| header.line.cloned()))
}

/// Collected in one pass over all headers: a lookup takes as long as a pass over eight headers, and most requests have
/// fewer than sixteen.
#[derive(Default)]
struct CheckedHeaders<'a> {
    host: SingleHeader<'a>,
    length: SingleHeader<'a>,
    has_unknown_expectation: bool,
    /// `Connection` has a value other than `close` and `keep-alive`, and can name headers.
    lists_headers: bool,
}

/// A request must not repeat it.
#[derive(Default)]
struct SingleHeader<'a> {
    line: Option<&'a HeaderValue>,
    is_repeated: bool,
}

impl<'a> CheckedHeaders<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let mut checked = Self::default();
        for (name, value) in headers {
            match *name {
                HOST => checked.host.add(value),
                CONTENT_LENGTH => checked.length.add(value),
                CONNECTION => checked.lists_headers |= headers::lists_headers(value),
                EXPECT => {
                    let is_met = value.as_bytes().eq_ignore_ascii_case(b"100-continue");
                    checked.has_unknown_expectation |= !is_met;
                }
                _ => {}
            }
        }
        checked
    }
}

impl<'a> SingleHeader<'a> {
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

/// Only HTTP/2 needs this check: its library accepts the targets `?x` and `#x`, and truncates the latter to an empty
/// target.
fn check_target(target: &Uri) -> Result<(), HeadError> {
    let has_path = |target: &PathAndQuery| match target.as_str() {
        // An empty target is displayed like `/`, but is not equal to it.
        "/" => *target == ROOT,
        text => text.starts_with('/'),
    };
    if target.path_and_query().is_none_or(has_path) {
        Ok(())
    } else {
        Err(HeadError::invalid(
            "The request target has no path. Send a path that begins with `/`, and `%23` for `#`.",
        ))
    }
}

static ROOT: PathAndQuery = PathAndQuery::from_static("/");

/// The host must be in the target or in `Host`, and equal if it is in both. An HTTP/1.0 request needs none. Returns the
/// new value of `Host` if the target contains the host, because the target takes precedence (RFC 9112, section 3.2.2).
fn check_host<B>(
    request: &Request<B>,
    header: &SingleHeader<'_>,
) -> Result<Option<HeaderValue>, HeadError> {
    let target = request.uri();
    let web = |scheme: &Scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS;
    if !target.scheme().is_none_or(web) {
        return Err(HeadError::invalid(
            "The scheme in the request target is not supported. Use http or https.",
        ));
    }
    if header.is_repeated {
        return Err(HeadError::invalid(
            "The request has more than one Host header.",
        ));
    }
    match (header.line, target.authority()) {
        (None, None) if request.version() == Version::HTTP_10 => Ok(None),
        (None, None) => Err(HeadError::invalid("The request has no Host header.")),
        (Some(host), None) => {
            if is_plain_host(host.as_bytes()) {
                Ok(None)
            } else {
                Err(HeadError::invalid(
                    "The Host header is not a host name or IP address with an optional port.",
                ))
            }
        }
        (line, Some(authority)) => {
            if !line.is_none_or(|host| is_same_host(host, authority, target.scheme())) {
                return Err(HeadError::invalid(
                    "The request target and the Host header name different hosts.",
                ));
            }
            HeaderValue::from_str(authority.as_str())
                .ok()
                .filter(|host| is_plain_host(host.as_bytes()))
                .map(Some)
                .ok_or_else(|| {
                    HeadError::invalid(
                        "The host in the request target is not a host name or IP address with an optional port.",
                    )
                })
        }
    }
}

/// Case has no meaning, and the default port of the scheme equals an absent port (RFC 9110, section 4.2.3).
fn is_same_host(header: &HeaderValue, authority: &Authority, scheme: Option<&Scheme>) -> bool {
    let default_port: &[u8] = match scheme {
        Some(scheme) if *scheme == Scheme::HTTPS => b":443",
        Some(_) => b":80",
        None => b"",
    };
    let [header, authority] = [header.as_bytes(), authority.as_str().as_bytes()]
        .map(|host| host.strip_suffix(default_port).unwrap_or(host));
    header.eq_ignore_ascii_case(authority)
}

/// A host name or IP address, with or without a port. RFC 3986 also allows other characters and percent escapes in a
/// host name, but real names do not contain them, and a server that decodes them would see another host.
fn is_plain_host(host: &[u8]) -> bool {
    if let Some(bracketed) = host.strip_prefix(b"[") {
        let Some(end) = bracketed.iter().position(|&byte| byte == b']') else {
            return false;
        };
        let address = std::str::from_utf8(&bracketed[..end]).map(str::parse::<Ipv6Addr>);
        return matches!(address, Ok(Ok(_))) && is_port(&bracketed[end + 1..]);
    }
    let in_name = |byte: &&u8| HOST_NAME_BYTES[usize::from(**byte)];
    let name = host.iter().take_while(in_name).count();
    name > 0 && is_port(&host[name..])
}

/// A table, because every request is checked.
static HOST_NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte.is_ascii() {
        table[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        byte += 1;
    }
    table
};

/// Empty, or a colon followed by any number of digits.
fn is_port(bytes: &[u8]) -> bool {
    match bytes {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn check_expectation(checked: &CheckedHeaders<'_>) -> Result<(), HeadError> {
    if checked.has_unknown_expectation {
        return Err(HeadError::ExpectationFailed);
    }
    Ok(())
}

/// Returns the length if `Content-Length` has leading zeros. Some servers read such a number as octal, so the gateway
/// forwards the canonical form.
fn check_content_length(header: &SingleHeader<'_>, limit: u64) -> Result<Option<u64>, HeadError> {
    if header.is_repeated {
        return Err(HeadError::invalid(
            "The request has more than one Content-Length header.",
        ));
    }
    let Some(declared) = header.line.and_then(|length| length.to_str().ok()) else {
        return Ok(None);
    };
    match declared.parse::<u64>() {
        Ok(length) if length <= limit => {
            let is_padded = declared.len() > 1 && declared.starts_with('0');
            Ok(is_padded.then_some(length))
        }
        Ok(_) => Err(HeadError::BodyTooLarge { limit }),
        Err(_) => Err(HeadError::invalid(
            "The value of the Content-Length header is not a decimal number.",
        )),
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
        let (names, methods) = (HeaderNames::default(), KnownMethods::default());
        let checked = check(&mut request, 10, &names, &methods);
        checked.map_or_else(|error| Problem::from(error).status.as_u16(), |()| 200)
    }

    #[test]
    fn a_request_without_exactly_one_valid_host_is_rejected() {
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
    fn a_target_whose_host_differs_from_the_header_is_rejected() {
        assert_eq!(status(&request("http://a.example/x", &["a.example"])), 200);
        assert_eq!(status(&request("http://A.example/x", &["a.example"])), 200);
        assert_eq!(status(&request("http://b.example/x", &["a.example"])), 400);
        assert_eq!(
            status(&request("http://a.example:80/x", &["A.example"])),
            200
        );
        assert_eq!(
            status(&request("http://a.example:443/x", &["a.example"])),
            400
        );
        assert_eq!(
            status(&request("http://u@a.example/x", &["u@a.example"])),
            400
        );
        assert_eq!(status(&request("http://a.example/x", &[])), 200);
        assert_eq!(status(&request("ftp://a.example/x", &["a.example"])), 400);
    }

    #[test]
    fn connect_trace_and_the_target_asterisk_get_405() {
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
    fn an_expectation_other_than_continue_gets_417() {
        for (expectation, expected) in [("100-continue", 200), ("100-Continue", 200), ("x", 417)] {
            let mut request = request("/", &["a.example"]);
            request
                .headers_mut()
                .insert(EXPECT, expectation.parse().unwrap());
            assert_eq!(status(&request), expected);
        }
    }

    #[test]
    fn a_content_length_above_the_limit_gets_413() {
        let mut request = request("/", &["a.example"]);
        request.headers_mut().insert(CONTENT_LENGTH, 10.into());
        assert_eq!(status(&request), 200);
        request.headers_mut().insert(CONTENT_LENGTH, 11.into());
        assert_eq!(status(&request), 413);
    }
}
