//! A request, made of the head it came in.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Uri};

use super::head::{Head, Line, Version};
use super::violation::Violation;

/// Header lines that a request is likely to get on its way.
const ADDED: usize = 6;

/// The request whose head is `bytes`, read as `head` and `lines`. Its values are parts of `bytes`.
pub(super) fn request(
    bytes: &Bytes,
    head: &Head,
    lines: &[Line],
) -> Result<Request<()>, Violation> {
    let mut request = Request::new(());
    *request.method_mut() =
        Method::from_bytes(&bytes[head.method.clone()]).map_err(|_| Violation::RequestLine)?;
    *request.uri_mut() =
        Uri::from_maybe_shared(bytes.slice(head.target.clone())).map_err(|_| Violation::Target)?;
    *request.version_mut() = match head.version {
        Version::Http10 => http::Version::HTTP_10,
        Version::Http11 => http::Version::HTTP_11,
    };
    *request.headers_mut() = headers(bytes, lines)?;
    Ok(request)
}

fn headers(bytes: &Bytes, lines: &[Line]) -> Result<HeaderMap, Violation> {
    let mut headers =
        HeaderMap::try_with_capacity(lines.len() + ADDED).map_err(|_| Violation::TooManyHeaders)?;
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
