//! A request whose key was used with another fingerprint is rejected. The credentials have a separate hash, so that the
//! rejection can say that only they differ.

use std::fmt;

use http::Request;
use http::header::HOST;

use super::credentials;
use super::record_id::write_hex;
use super::{KeyRule, multipart};
use crate::request::hash_keys::{Secret, Subject};

/// In bytes. A longer body is hashed separately, so that it is not copied into the input of the fingerprint's hash.
const INLINE_BODY: usize = 1_024;

/// Hashes of what a retry must repeat unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Hash of method, host, path, query and body.
    pub request: [u8; 16],
    /// Hash of the credentials outside of the scope; zero if there are none.
    pub credentials: [u8; 16],
}

/// Difference to the first request with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Method, host, path, query or body differ.
    Request,
    /// Only credentials outside of the scope differ.
    Credentials,
}

impl Fingerprint {
    /// Computes the fingerprint of a request whose path and query have the unified spelling.
    pub fn of<B>(secret: &Secret, rule: &KeyRule, request: &Request<B>, body: &[u8]) -> Self {
        let headers = request.headers();
        let credentials = secret.hash_if(Subject::Credentials, |parts| {
            credentials::add_unscoped(parts, rule, headers)
        });
        Self {
            request: secret.hash(Subject::Fingerprint, |parts| {
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
                if let Some(hash) = multipart::hash(headers, body) {
                    parts.tag(2);
                    parts.add(hash.as_bytes());
                } else if body.len() <= INLINE_BODY {
                    parts.tag(0);
                    parts.add(body);
                } else {
                    parts.tag(1);
                    parts.add(blake3::hash(body).as_bytes());
                }
            }),
            credentials: credentials.unwrap_or_default(),
        }
    }

    /// Compares this fingerprint with that of the first request.
    pub fn differs_from(&self, first: &Self) -> Option<Mismatch> {
        if self.request != first.request {
            Some(Mismatch::Request)
        } else if self.credentials != first.credentials {
            Some(Mismatch::Credentials)
        } else {
            None
        }
    }

    /// Returns the form in which stores save it.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.request);
        bytes[16..].copy_from_slice(&self.credentials);
        bytes
    }

    /// Reads the result of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let half = |half: &[u8]| half.try_into().expect("half of 32 bytes");
        Self {
            request: half(&bytes[..16]),
            credentials: half(&bytes[16..]),
        }
    }
}

/// Without the port.
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
        write_hex(&self.request, f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scope;
    use super::super::rule::ScopePart;
    use super::*;

    fn of(method: &str, uri: &str, host: &str, body: &str) -> Fingerprint {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, host)
            .body(())
            .unwrap();
        Fingerprint::of(&SECRET, &KeyRule::default(), &request, body.as_bytes())
    }

    const SECRET: Secret = Secret::from_bytes([1; 32]);

    /// Returns the fingerprint of a POST request with these headers, on a route whose idempotency key header is
    /// `x-key-token`.
    fn with(scope: &Scope, lines: &[(&str, &str)]) -> Fingerprint {
        let mut request = Request::builder().method("POST").uri("/");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let rule = KeyRule {
            scope: scope.clone(),
            header: http::HeaderName::from_static("x-key-token"),
            ..KeyRule::default()
        };
        Fingerprint::of(&SECRET, &rule, &request.body(()).unwrap(), b"")
    }

    #[test]
    fn credentials_outside_the_scope_are_part_of_the_fingerprint() {
        let client = Scope::Parts([ScopePart::Client].into());
        for scope in [&Scope::Credential, &client] {
            let none = with(scope, &[]);
            assert_eq!(none.credentials, [0; 16]);
            for name in [
                "cookie",
                "x-api-key",
                "x-auth-user",
                "x-session",
                "x-access-token",
                "x-secret",
            ] {
                let [one, other] = ["a=1", "a=2"].map(|value| with(scope, &[(name, value)]));
                assert_eq!(
                    one.differs_from(&other),
                    Some(Mismatch::Credentials),
                    "{name}"
                );
                assert_eq!(
                    one.differs_from(&none),
                    Some(Mismatch::Credentials),
                    "{name}"
                );
                assert_eq!(one.request, none.request);
            }
            assert_eq!(with(scope, &[("x-other", "1"), ("x-api-key", "")]), none);
            // The header of the idempotency key is not a credential, although its name contains `token`.
            assert_eq!(with(scope, &[("x-key-token", "k")]), none);
        }
        let bearer = [("authorization", "Bearer a")];
        assert_eq!(
            with(&Scope::Credential, &bearer),
            with(&Scope::Credential, &[])
        );
        assert_ne!(with(&client, &bearer), with(&client, &[]));
    }

    #[test]
    fn other_credentials_are_ignored_if_the_scope_identifies_the_caller() {
        let header = ScopePart::Header(http::HeaderName::from_static("x-user"));
        let cookie = ScopePart::Cookie("sid".into());
        for scope in [
            Scope::Shared,
            Scope::Parts([header, ScopePart::Client].into()),
            Scope::Parts([cookie].into()),
        ] {
            let named = [("x-user", "u"), ("cookie", "sid=1")];
            let lines = [
                ("x-user", "u"),
                ("cookie", "a=2; sid=1"),
                ("authorization", "Bearer a"),
            ];
            assert_eq!(with(&scope, &lines), with(&scope, &named), "{scope:?}");
        }
    }

    #[test]
    fn credentials_are_included_if_the_scope_falls_back_to_the_client() {
        let header = ScopePart::Header(http::HeaderName::from_static("x-user"));
        let cookie = ScopePart::Cookie("sid".into());
        for scope in [
            Scope::Parts([header.clone()].into()),
            Scope::Parts([cookie.clone()].into()),
            Scope::Parts([cookie, header].into()),
        ] {
            for named in ["x-other", "x-user"] {
                if named == "x-user" && matches!(&scope, Scope::Parts(parts) if parts.len() == 1) {
                    continue;
                }
                // The cookie `sid` is empty. An empty cookie does not identify a caller, just like an absent cookie.
                let of = |token: &str| {
                    let lines = [
                        (named, "u"),
                        ("cookie", "sid=; a=1"),
                        ("authorization", token),
                    ];
                    with(&scope, &lines)
                };
                let mismatch = of("Bearer a").differs_from(&of("Bearer b"));
                assert_eq!(mismatch, Some(Mismatch::Credentials), "{scope:?}");
                assert_eq!(of("Bearer a").differs_from(&of("bearer a")), None);
            }
        }
    }

    #[test]
    fn the_order_of_headers_and_cookies_is_not_part_of_the_fingerprint() {
        let of = |lines: &[_]| with(&Scope::Credential, lines);
        let plain = of(&[("cookie", "a=1; b=2"), ("x-api-key", "k")]);
        assert_eq!(of(&[("x-api-key", "k"), ("cookie", "b=2; a=1")]), plain);
        assert_eq!(
            of(&[("cookie", "AWSALB=x; a=1;b=2; _ga=9"), ("x-api-key", "k")]),
            plain
        );
        assert_ne!(of(&[("cookie", "a=2; b=1"), ("x-api-key", "k")]), plain);
        let [one, other] = ["a=1; a=2", "a=2; a=1"].map(|cookie| of(&[("cookie", cookie)]));
        assert_ne!(one, other);
        assert_eq!(of(&[("cookie", "AWSALB=x")]), of(&[]));

        let mut many: Vec<_> = (0..1_000).map(|number| format!("c{number}=v")).collect();
        let forwards = many.join("; ");
        many.reverse();
        let backwards = many.join(";");
        many[500].push('x');
        let other = many.join(";");
        let [forwards, backwards, other] =
            [&*forwards, &*backwards, &*other].map(|cookie| of(&[("cookie", cookie)]));
        assert_eq!(forwards, backwards);
        assert_ne!(forwards, other);
    }

    #[test]
    fn of_a_signed_authorization_only_the_identity_is_part_of_the_fingerprint() {
        let scope = Scope::Parts([ScopePart::Client].into());
        let of = |value| with(&scope, &[("authorization", value)]);
        let first = of("Hawk id=\"a\", ts=\"1\", nonce=\"x\", mac=\"1\"");
        assert_eq!(of("Hawk id=\"a\", ts=\"2\", nonce=\"y\", mac=\"2\""), first);
        assert_ne!(of("Hawk id=\"b\", ts=\"1\", nonce=\"x\", mac=\"1\""), first);
    }

    #[test]
    fn crafted_credentials_do_not_have_the_fingerprint_of_others() {
        let scope = Scope::Parts([ScopePart::Client].into());
        let of = |lines: &[_]| with(&scope, lines);
        let signed = of(&[(
            "authorization",
            "OAuth oauth_consumer_key=\"x-auth\", oauth_token=\"v\", oauth_signature=\"s\"",
        )]);
        assert_ne!(of(&[("authorization", "oauth"), ("x-auth", "v")]), signed);
        let cookie = of(&[("cookie", "x-token=1")]);
        assert_ne!(of(&[("cookie", "x-token"), ("x-token", "1")]), cookie);
    }

    #[test]
    fn a_multipart_boundary_is_not_part_of_the_fingerprint() {
        let of = |boundary: &str, value: &str| {
            let content_type = format!("multipart/form-data; boundary={boundary}");
            let request = Request::builder()
                .header("content-type", content_type)
                .body(())
                .unwrap();
            let body = format!("--{boundary}\r\na: b\r\n\r\n{value}\r\n--{boundary}--\r\n");
            Fingerprint::of(&SECRET, &KeyRule::default(), &request, body.as_bytes())
        };
        assert_eq!(of("one", "1"), of("two", "1"));
        assert_ne!(of("one", "1"), of("one", "2"));
    }

    #[test]
    fn method_path_query_host_and_body_are_part_of_the_fingerprint() {
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
    fn all_bytes_of_a_long_body_are_part_of_the_fingerprint() {
        let long = "x".repeat(INLINE_BODY + 1);
        let plain = of("POST", "/", "h", &long);
        assert_eq!(of("POST", "/", "h", &long), plain);
        assert_ne!(of("POST", "/", "h", &(long.clone() + "y")), plain);
        assert_ne!(of("POST", "/", "h", &long[1..]), plain);
        let hash = blake3::hash(long.as_bytes());
        let text_of_hash = hash
            .as_bytes()
            .iter()
            .map(|&byte| char::from(byte))
            .collect::<String>();
        assert_ne!(of("POST", "/", "h", &text_of_hash), plain);
    }

    #[test]
    fn case_and_port_of_the_host_are_not_part_of_the_fingerprint() {
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
