//! Parts of HTTP messages: methods, headers, hosts, origins and tokens.

use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Uri};

use super::ValueError;
use crate::request::headers::protected_lookalike;
use crate::request::methods::registered_spelling;
use crate::store::redis::settings::Password;
use crate::upstream::HostHeader;

pub(super) fn method(text: &str) -> Result<Method, ValueError> {
    if let Some(registered) = registered_spelling(text) {
        return Err(ValueError::new(
            format!("the method `{text}` matches no request: methods are case-sensitive"),
            format!("write \"{registered}\""),
        ));
    }
    if matches!(text, "*" | "ANY" | "ALL") {
        return Err(ValueError::new(
            format!("`{text}` does not stand for all methods"),
            "remove `methods`: without it, a route matches all methods",
        ));
    }
    if text.contains('|') {
        let methods: Vec<_> = text
            .split('|')
            .map(|method| format!("\"{method}\""))
            .collect();
        return Err(ValueError::new(
            format!("`{text}` is not a valid request method"),
            format!("write [{}]", methods.join(", ")),
        ));
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| {
        ValueError::new(
            format!("`{text}` is not a valid request method"),
            "write a method such as \"GET\" or \"POST\", or remove `methods` for all methods",
        )
    })
}

pub(super) fn header_name(text: &str) -> Result<HeaderName, ValueError> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
        ValueError::new(
            format!("`{text}` is not a valid header name"),
            "write letters, digits and dashes, such as \"X-Api-Key\"",
        )
    })
}

/// Part of an idempotency scope or of the key of a rate limit.
pub(super) fn counted_header(text: &str) -> Result<HeaderName, ValueError> {
    let name = header_name(text)?;
    match protected_lookalike(&name) {
        None => Ok(name),
        Some(meant) => Err(ValueError::new(
            format!(
                "the gateway never forwards the header `{text}`, because servers can read it as `{meant}`"
            ),
            format!("write \"{meant}\", or name another header"),
        )),
    }
}

/// Header that is added to the responses of the gateway.
pub(super) fn response_header(text: &str) -> Result<HeaderName, ValueError> {
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
    let header = header_name(text)?;
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
    Ok(header)
}

pub(super) fn header_value(text: &str) -> Result<HeaderValue, ValueError> {
    HeaderValue::from_str(text).map_err(|_| {
        ValueError::new(
            "the header value contains characters that are not allowed in a header",
            "write only visible characters and spaces",
        )
    })
}

pub(super) fn host_choice(text: &str) -> Result<HostHeader, ValueError> {
    let malformed = || {
        ValueError::new(
            format!("`{text}` is not a valid host"),
            "write \"preserve\", \"server\", or a host such as \"api.example\"",
        )
    };
    match text {
        "preserve" => Ok(HostHeader::Preserve),
        "server" => Ok(HostHeader::Server),
        _ => {
            let authority: Authority = text.parse().map_err(|_| malformed())?;
            if authority.as_str().contains('@') {
                return Err(malformed());
            }
            let value = HeaderValue::from_str(text).map_err(|_| malformed())?;
            Ok(HostHeader::Literal(value))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum OriginPattern {
    Any,
    /// As in the `Origin` header that browsers send.
    Exactly(HeaderValue),
}

pub(super) fn origin(text: &str) -> Result<OriginPattern, ValueError> {
    if text == "*" {
        return Ok(OriginPattern::Any);
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
        .map(OriginPattern::Exactly)
        .map_err(|_| malformed())
}

/// Returns the value of a `Link` header.
pub(super) fn docs_link(text: &str) -> Result<HeaderValue, ValueError> {
    // `Uri` accepts more characters than RFC 3986, such as `>`, which would end the URL in the `Link` header.
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
        let link = format!("<{text}>; rel=\"describedby\"");
        return Ok(HeaderValue::try_from(link).expect("a URL is visible ASCII"));
    }
    Err(ValueError::new(
        format!("`{text}` is not a valid URL of a web page"),
        "write an absolute URL without user and without spaces, such as \"https://docs.example/errors\"",
    ))
}

pub(super) fn token(text: &str) -> Result<Password, ValueError> {
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
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_a_lower_case_method_is_upper_case() {
        let error = method("post").expect_err("lower case");
        assert!(error.help.contains("\"POST\""));
        assert!(method("propfind").is_err());
        assert!(method("purge").is_ok());
        assert!(method("GE T").is_err());
    }

    #[test]
    fn a_lookalike_of_a_protected_header_is_invalid() {
        for text in [
            "X_Forwarded_For",
            "x-forwarded_for",
            "Idempotency_Key",
            "Proxy_Connection",
        ] {
            let error = counted_header(text).expect_err(text);
            assert!(error.help.contains('-'), "{}", error.help);
        }
        for text in ["X-Forwarded-For", "X-Api-Key", "x_api_key", "Host"] {
            assert!(counted_header(text).is_ok(), "{text}");
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
            assert!(response_header(text).is_err(), "{text}");
        }
        assert!(response_header("X-Served-By").is_ok());
    }

    #[test]
    fn an_origin_must_have_the_form_that_browsers_send() {
        for text in ["https://app.example", "http://localhost:3000", "*"] {
            assert!(origin(text).is_ok(), "{text}");
        }
        for (text, remedy) in [
            ("https://app.example/", "\"https://app.example\""),
            ("https://App.example", "\"https://app.example\""),
            ("https://app.example:443", "\"https://app.example\""),
            ("app.example", "no path"),
            ("https://app.example/x", "no path"),
            ("null", "no path"),
        ] {
            let error = origin(text).expect_err(text);
            assert!(error.help.contains(remedy), "{text}: {}", error.help);
        }
    }

    #[test]
    fn a_host_is_preserve_server_or_a_literal() {
        let host = host_choice;
        assert_eq!(host("preserve"), Ok(HostHeader::Preserve));
        assert_eq!(host("server"), Ok(HostHeader::Server));
        assert!(matches!(host("a.example:81"), Ok(HostHeader::Literal(_))));
        assert!(host("http://a").is_err() && host("a b").is_err());
    }

    #[test]
    fn a_token_is_not_empty_and_debug_output_omits_it() {
        assert!(token("").is_err());
        let token = token("secret").expect("a token");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
