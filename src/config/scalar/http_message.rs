//! Configuration values that are parts of HTTP messages: methods, headers, hosts, origins and tokens.

use std::str::FromStr;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Uri};

use super::ValueError;
use crate::intake::headers::protected_lookalike;
use crate::upstream::HostHeader;

/// Name of a request method, which is case-sensitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct MethodName(pub(in super::super) Method);

impl FromStr for MethodName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const KNOWN: &[&str] = &[
            "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
        ];
        let upper = text.to_ascii_uppercase();
        if upper != text && KNOWN.contains(&upper.as_str()) {
            return Err(ValueError::new(
                format!("the method `{text}` matches no request: methods are case-sensitive"),
                format!("write \"{upper}\""),
            ));
        }
        Method::from_bytes(text.as_bytes()).map(Self).map_err(|_| {
            ValueError::new(
                format!("`{text}` is not a valid request method"),
                "write a method such as \"GET\" or \"POST\", or remove `methods` for all methods",
            )
        })
    }
}

/// Valid name of a header, in the spelling of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct HeaderText(pub(in super::super) String);

impl HeaderText {
    pub(in super::super) fn name(&self) -> HeaderName {
        HeaderName::from_bytes(self.0.as_bytes()).expect("checked by `from_str`")
    }
}

impl FromStr for HeaderText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        HeaderName::from_bytes(text.as_bytes())
            .map(|_| Self(text.to_owned()))
            .map_err(|_| {
                ValueError::new(
                    format!("`{text}` is not a valid header name"),
                    "write letters, digits and dashes, such as \"X-Api-Key\"",
                )
            })
    }
}

/// Name of a request header that is part of an idempotency scope or of the key of a rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct CountedHeader(pub(in super::super) HeaderName);

impl FromStr for CountedHeader {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let name = text.parse::<HeaderText>()?.name();
        match protected_lookalike(&name) {
            None => Ok(Self(name)),
            Some(meant) => Err(ValueError::new(
                format!(
                    "the gateway never forwards the header `{text}`, because servers can read it as `{meant}`"
                ),
                format!("write \"{meant}\", or name another header"),
            )),
        }
    }
}

/// Name of an additional header on the responses that the gateway creates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct ResponseHeader(pub(in super::super) HeaderText);

impl FromStr for ResponseHeader {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const FRAMING: &[&str] = &[
            "connection",
            "content-encoding",
            "content-length",
            "content-type",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ];
        let header: HeaderText = text.parse()?;
        let lower = text.to_ascii_lowercase();
        let throttling = [
            "ratelimit",
            "x-ratelimit",
            "retry-after",
            "x-amz-retry-after",
        ]
        .iter()
        .any(|prefix| lower.starts_with(prefix))
            || ["x-should-retry", "stripe-should-retry"].contains(&lower.as_str());
        if throttling || FRAMING.contains(&lower.as_str()) {
            return Err(ValueError::new(
                format!("the gateway writes the header `{text}` itself"),
                "remove this header: headers about framing, content type, rate limits and retries cannot be added",
            ));
        }
        Ok(Self(header))
    }
}

/// Valid value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct ValueText(pub(in super::super) HeaderValue);

impl FromStr for ValueText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        HeaderValue::from_str(text).map(Self).map_err(|_| {
            ValueError::new(
                "the header value contains characters that are not allowed in a header",
                "write only visible characters and spaces",
            )
        })
    }
}

/// `Host` header of requests to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct HostChoice(pub(in super::super) HostHeader);

impl FromStr for HostChoice {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let malformed = || {
            ValueError::new(
                format!("`{text}` is not a valid host"),
                "write \"preserve\", \"server\", or a host such as \"api.example\"",
            )
        };
        match text {
            "preserve" => Ok(Self(HostHeader::Preserve)),
            "server" => Ok(Self(HostHeader::Server)),
            _ => {
                let authority: Authority = text.parse().map_err(|_| malformed())?;
                if authority.as_str().contains('@') {
                    return Err(malformed());
                }
                let value = HeaderValue::from_str(text).map_err(|_| malformed())?;
                Ok(Self(HostHeader::Literal(value)))
            }
        }
    }
}

/// Entry of `origins`: an origin that CORS allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Origin {
    /// `*`: any origin.
    Any,
    /// One origin, in the form of the `Origin` header that browsers send.
    Exactly(HeaderValue),
}

impl FromStr for Origin {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let title = || format!("`{text}` is not an origin in the form that browsers send");
        let malformed = || {
            ValueError::new(
                title(),
                "write scheme, host and optional port, with no path: \"https://app.example\"; or \"*\" for any origin",
            )
        };
        let lower = text.to_ascii_lowercase();
        let origin = lower.strip_suffix('/').unwrap_or(&lower);
        let (scheme, host) = origin.split_once("://").ok_or_else(malformed)?;
        let authority: Authority = host.parse().map_err(|_| malformed())?;
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(host)
            .path_and_query("/")
            .build();
        if uri.is_err() || host.contains('@') || authority.host().is_empty() {
            return Err(malformed());
        }
        let default_port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => "",
        };
        let exact = match origin.strip_suffix(default_port) {
            Some(portless) if !default_port.is_empty() => portless,
            _ => origin,
        };
        if exact != text {
            return Err(ValueError::new(title(), format!("write \"{exact}\"")));
        }
        HeaderValue::from_str(text)
            .map(Self::Exactly)
            .map_err(|_| malformed())
    }
}

/// URL of a documentation page, for the `Link` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct DocsUrl(pub(in super::super) String);

impl FromStr for DocsUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // Only the characters of RFC 3986 are allowed. `Uri` also accepts others, such as `>`, which would end the URL
        // in the `Link` header.
        let allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
        let uri: Option<Uri> = text.parse().ok().filter(|_| text.bytes().all(allowed));
        let is_page = uri.is_some_and(|uri| {
            let scheme = uri.scheme_str();
            let host = uri
                .authority()
                .filter(|authority| !authority.as_str().contains('@'));
            matches!(scheme, Some("http" | "https"))
                && host.is_some_and(|authority| !authority.host().is_empty())
        });
        if is_page {
            return Ok(Self(text.to_owned()));
        }
        Err(ValueError::new(
            format!("`{text}` is not a valid URL of a web page"),
            "write an absolute URL without user and without spaces, such as \"https://docs.example/errors\"",
        ))
    }
}

/// Bearer token of the admin listener.
#[derive(Clone, PartialEq, Eq)]
pub(in super::super) struct TokenText(pub(in super::super) String);

impl std::fmt::Debug for TokenText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenText(..)")
    }
}

impl FromStr for TokenText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() {
            return Err(ValueError::new(
                "the admin token is empty",
                "write the token, or remove `token` to use no token",
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ValueError::new(
                "the admin token contains characters other than visible ASCII, such as spaces",
                "write a token of visible ASCII characters, such as the output of `openssl rand -hex 32`",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_a_lower_case_method_is_upper_case() {
        let error = "post".parse::<MethodName>().expect_err("lower case");
        assert!(error.help.contains("\"POST\""));
        assert!("purge".parse::<MethodName>().is_ok());
        assert!("GE T".parse::<MethodName>().is_err());
    }

    #[test]
    fn a_lookalike_of_a_protected_header_is_invalid() {
        for text in [
            "X_Forwarded_For",
            "x-forwarded_for",
            "Idempotency_Key",
            "Proxy_Connection",
        ] {
            let error = text.parse::<CountedHeader>().expect_err(text);
            assert!(error.help.contains('-'), "{}", error.help);
        }
        for text in ["X-Forwarded-For", "X-Api-Key", "x_api_key", "Host"] {
            assert!(text.parse::<CountedHeader>().is_ok(), "{text}");
        }
    }

    #[test]
    fn framing_and_throttling_headers_cannot_be_added() {
        for text in [
            "Content-Length",
            "connection",
            "RateLimit-Policy",
            "Retry-After",
        ] {
            assert!(text.parse::<ResponseHeader>().is_err(), "{text}");
        }
        assert!("X-Served-By".parse::<ResponseHeader>().is_ok());
    }

    #[test]
    fn an_origin_must_have_the_form_that_browsers_send() {
        for text in ["https://app.example", "http://localhost:3000", "*"] {
            assert!(text.parse::<Origin>().is_ok(), "{text}");
        }
        for (text, remedy) in [
            ("https://app.example/", "\"https://app.example\""),
            ("https://App.example", "\"https://app.example\""),
            ("https://app.example:443", "\"https://app.example\""),
            ("app.example", "no path"),
            ("https://app.example/x", "no path"),
            ("null", "no path"),
        ] {
            let error = text.parse::<Origin>().expect_err(text);
            assert!(error.help.contains(remedy), "{text}: {}", error.help);
        }
    }

    #[test]
    fn a_host_is_preserve_server_or_a_literal() {
        let host = |text: &str| text.parse::<HostChoice>().map(|HostChoice(host)| host);
        assert_eq!(host("preserve"), Ok(HostHeader::Preserve));
        assert_eq!(host("server"), Ok(HostHeader::Server));
        assert!(matches!(host("a.example:81"), Ok(HostHeader::Literal(_))));
        assert!(host("http://a").is_err() && host("a b").is_err());
    }

    #[test]
    fn a_token_is_not_empty_and_debug_output_omits_it() {
        assert!("".parse::<TokenText>().is_err());
        let token: TokenText = "secret".parse().expect("a token");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
