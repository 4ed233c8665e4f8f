//! What a request asks for, hashed: method, host, path, query and body.
//!
//! A key that comes again with another fingerprint is a mistake of its client, and is told so; it never
//! gets the first one's answer.

use std::fmt;

use http::Request;
use http::header::HOST;

use super::Secret;
use super::identity::{Subject, write_hex};

/// A body up to this length is hashed as it is; a longer one by its own hash, which spares a copy of it.
const INLINE_BODY: usize = 1_024;

/// What a request asks for, hashed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 16]);

impl Fingerprint {
    /// The fingerprint of `request`, whose path is normalised, with this body.
    pub fn of<B>(secret: &Secret, request: &Request<B>, body: &[u8]) -> Self {
        Self(secret.hash(Subject::Fingerprint, |parts| {
            parts.add(request.method().as_str().as_bytes());
            parts.add_lower_case(host(request));
            parts.add(request.uri().path().as_bytes());
            match request.uri().query() {
                None => parts.tag(0),
                Some(query) => {
                    parts.tag(1);
                    parts.add(query.as_bytes());
                }
            }
            if body.len() <= INLINE_BODY {
                parts.tag(0);
                parts.add(body);
            } else {
                parts.tag(1);
                parts.add(blake3::hash(body).as_bytes());
            }
        }))
    }
}

/// The host a request is for, without its port.
fn host<B>(request: &Request<B>) -> &[u8] {
    if let Some(authority) = request.uri().authority() {
        return authority.host().as_bytes();
    }
    let host = request
        .headers()
        .get(HOST)
        .map_or(&b""[..], |host| host.as_bytes());
    let is_port = |after: &[u8]| after.iter().all(u8::is_ascii_digit);
    match host.iter().rposition(|&byte| byte == b':') {
        Some(colon) if is_port(&host[colon + 1..]) => &host[..colon],
        _ => host,
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, uri: &str, host: &str, body: &str) -> Fingerprint {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, host)
            .body(())
            .unwrap();
        Fingerprint::of(&Secret::from_bytes([1; 32]), &request, body.as_bytes())
    }

    #[test]
    fn whatever_differs_in_what_is_asked_for_shows() {
        let plain = of("POST", "/a?b", "api.example", "body");
        for other in [
            of("PATCH", "/a?b", "api.example", "body"),
            of("POST", "/a", "api.example", "body"),
            of("POST", "/a?", "api.example", "body"),
            of("POST", "/a?bb", "api.example", "ody"),
            of("POST", "/a?b", "other.example", "body"),
            of("POST", "/a?b", "api.example", "Body"),
            of("POST", "/a?b", "api.example", ""),
        ] {
            assert_ne!(other, plain);
        }
        assert_ne!(of("POST", "/a?", "h", ""), of("POST", "/a", "h", ""));
    }

    #[test]
    fn a_long_body_counts_to_its_last_byte() {
        let long = "x".repeat(INLINE_BODY + 1);
        let plain = of("POST", "/", "h", &long);
        assert_eq!(of("POST", "/", "h", &long), plain);
        assert_ne!(of("POST", "/", "h", &(long.clone() + "y")), plain);
        assert_ne!(of("POST", "/", "h", &long[1..]), plain);
        let hash = blake3::hash(long.as_bytes());
        let posing = hash
            .as_bytes()
            .iter()
            .map(|&byte| char::from(byte))
            .collect::<String>();
        assert_ne!(of("POST", "/", "h", &posing), plain);
    }

    #[test]
    fn the_hosts_case_and_port_do_not() {
        let plain = of("POST", "/", "api.example", "");
        assert_eq!(of("POST", "/", "API.Example:8443", ""), plain);
        assert_eq!(
            of("POST", "http://api.example:80/", "api.example:80", ""),
            plain
        );
        assert_eq!(
            of("POST", "/", "[::1]:80", ""),
            of("POST", "/", "[::1]", "")
        );
        let long = "A.Long.Name.".repeat(30) + "Example";
        assert_eq!(
            of("POST", "/", &long, ""),
            of("POST", "/", &long.to_ascii_lowercase(), "")
        );
    }
}
