//! Methods, headers, hosts and origins.

use std::str::FromStr;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Uri};

use super::Fault;
use crate::intake::headers::protected_lookalike;
use crate::upstream::HostHeader;

/// A request method, as it stands on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct MethodName(pub(in super::super) Method);

impl FromStr for MethodName {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        const KNOWN: &[&str] = &[
            "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
        ];
        let upper = text.to_ascii_uppercase();
        if upper != text && KNOWN.contains(&upper.as_str()) {
            return Err(Fault::new(
                format!("`{text}` would match nothing: methods are case-sensitive"),
                format!("write \"{upper}\""),
            ));
        }
        Method::from_bytes(text.as_bytes()).map(Self).map_err(|_| {
            Fault::new(
                format!("`{text}` is not a method"),
                "write a method such as \"GET\" or \"POST\"; leave `methods` out for all of them",
            )
        })
    }
}

/// The name of a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct HeaderText(pub(in super::super) String);

impl HeaderText {
    pub(in super::super) fn name(&self) -> HeaderName {
        HeaderName::from_bytes(self.0.as_bytes()).expect("checked when it was read")
    }
}

impl FromStr for HeaderText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        HeaderName::from_bytes(text.as_bytes())
            .map(|_| Self(text.to_owned()))
            .map_err(|_| {
                Fault::new(
                    format!("`{text}` is not the name of a header"),
                    "write letters, digits and dashes, such as \"X-Api-Key\"",
                )
            })
    }
}

/// The name of a request header that limits or scopes are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct CountedHeader(pub(in super::super) HeaderName);

impl FromStr for CountedHeader {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let name = text.parse::<HeaderText>()?.name();
        match protected_lookalike(&name) {
            None => Ok(Self(name)),
            Some(meant) => Err(Fault::new(
                format!("`{text}` is never forwarded: servers can read it as `{meant}`"),
                format!("write \"{meant}\", or name another header"),
            )),
        }
    }
}

/// The name of a header that responses of the gateway may be given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct ResponseHeader(pub(in super::super) HeaderText);

impl FromStr for ResponseHeader {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
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
            return Err(Fault::new(
                format!("`{text}` is for the gateway itself to write"),
                "remove it; extra headers may be any that frame no message and tell of no limit",
            ));
        }
        Ok(Self(header))
    }
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct ValueText(pub(in super::super) HeaderValue);

impl FromStr for ValueText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        HeaderValue::from_str(text).map(Self).map_err(|_| {
            Fault::new(
                "a header cannot carry this value",
                "write visible characters and spaces only",
            )
        })
    }
}

/// The `Host` to send upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct HostChoice(pub(in super::super) HostHeader);

impl FromStr for HostChoice {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let malformed = || {
            Fault::new(
                format!("`{text}` is not a host"),
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

/// Whose browser code may read what the gateway says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Origin {
    /// Everybody's.
    Any,
    /// That of one origin, as browsers write it.
    Exactly(HeaderValue),
}

impl FromStr for Origin {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let title = || format!("no browser calls its origin `{text}`");
        let malformed = || {
            Fault::new(
                title(),
                "write scheme, host and any port, with no path: \"https://app.example\", or \"*\" for any",
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
            return Err(Fault::new(title(), format!("write \"{exact}\"")));
        }
        HeaderValue::from_str(text)
            .map(Self::Exactly)
            .map_err(|_| malformed())
    }
}

/// The address of a page, as the target of a `Link` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct DocsUrl(pub(in super::super) String);

impl FromStr for DocsUrl {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        // Characters of RFC 3986. `Uri` accepts others, some of which would end the target in `<…>`, and ignores a
        // fragment.
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
        Err(Fault::new(
            format!("`{text}` is not the URL of a web page"),
            "write an absolute URL without user and spaces, such as \"https://docs.example/errors\"",
        ))
    }
}

/// What a caller of the admin listener must present.
#[derive(Clone, PartialEq, Eq)]
pub(in super::super) struct TokenText(pub(in super::super) String);

impl std::fmt::Debug for TokenText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenText(..)")
    }
}

impl FromStr for TokenText {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        if text.is_empty() {
            return Err(Fault::new(
                "an empty token would let everybody in",
                "write the token, or leave the key out to go without",
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Fault::new(
                "a token cannot hold spaces or other than visible ASCII characters",
                "choose a token a header can carry, such as the output of `openssl rand -hex 32`",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_case_method_is_told_its_name() {
        let fault = "post".parse::<MethodName>().expect_err("lower case");
        assert!(fault.help.contains("\"POST\""));
        assert!("purge".parse::<MethodName>().is_ok());
        assert!("GE T".parse::<MethodName>().is_err());
    }

    #[test]
    fn a_lookalike_of_a_header_with_an_effect_cannot_be_counted_by() {
        for text in [
            "X_Forwarded_For",
            "x-forwarded_for",
            "Idempotency_Key",
            "Proxy_Connection",
        ] {
            let fault = text.parse::<CountedHeader>().expect_err(text);
            assert!(fault.help.contains('-'), "{}", fault.help);
        }
        for text in ["X-Forwarded-For", "X-Api-Key", "x_api_key", "Host"] {
            assert!(text.parse::<CountedHeader>().is_ok(), "{text}");
        }
    }

    #[test]
    fn framing_and_throttling_headers_are_not_for_sale() {
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
    fn an_origin_is_written_as_browsers_write_it() {
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
            let fault = text.parse::<Origin>().expect_err(text);
            assert!(fault.help.contains(remedy), "{text}: {}", fault.help);
        }
    }

    #[test]
    fn a_host_is_a_choice_or_a_literal() {
        let host = |text: &str| text.parse::<HostChoice>().map(|HostChoice(host)| host);
        assert_eq!(host("preserve"), Ok(HostHeader::Preserve));
        assert_eq!(host("server"), Ok(HostHeader::Server));
        assert!(matches!(host("a.example:81"), Ok(HostHeader::Literal(_))));
        assert!(host("http://a").is_err() && host("a b").is_err());
    }

    #[test]
    fn a_token_is_never_empty_and_never_shown() {
        assert!("".parse::<TokenText>().is_err());
        let token: TokenText = "secret".parse().expect("a token");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
