//! URLs of Redis servers. The `redis` crate parses them, and this module allows fewer forms: `#insecure` would switch
//! off the verification of certificates, and a Unix socket has no host for the log. No error contains the URL, because
//! the URL can contain a password.

use std::borrow::Cow;
use std::ops::Range;

use redis::{ConnectionAddr, IntoConnectionInfo as _};
use thiserror::Error;

use super::settings::RedisNode;

const FORM: &str = "write scheme, host, and optional port and database: \"redis://127.0.0.1:6379\", \
                    \"rediss://redis.example/1\"";

/// Error of a text that is not the URL of a Redis server. The error contains no password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{title}; write \"redis://HOST:PORT/DATABASE\" or \"rediss://USER:PASSWORD@HOST:PORT/DATABASE\", with reserved \
     characters in user and password as `%` and two hexadecimal digits"
)]
pub struct RedisUrlError {
    pub(crate) title: &'static str,
    pub(crate) help: &'static str,
}

/// Parses the URL of a Redis server, or of one node of a Redis Cluster.
pub(crate) fn redis_url(text: &str) -> Result<RedisNode, RedisUrlError> {
    let error = |title, help| RedisUrlError { title, help };
    if !text.starts_with("redis://") && !text.starts_with("rediss://") {
        return Err(error(
            "the URL of the Redis server does not begin with `redis://` or `rediss://`",
            FORM,
        ));
    }
    if text.contains(['?', '#']) {
        return Err(error(
            "the URL of the Redis server has a query or a fragment",
            "remove it; in user and password, write `?` as `%3F` and `#` as `%23`",
        ));
    }
    // The parser would drop control characters, and take an invalid escape literally.
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    let is_hex = |escape: &[u8]| escape.len() > 1 && escape[..2].iter().all(u8::is_ascii_hexdigit);
    if text.contains(char::is_control) || !escapes.all(is_hex) {
        return Err(error(
            "the URL of the Redis server has a control character or an invalid percent escape",
            "write `%` as `%25`, and other bytes as `%` and two hexadecimal digits",
        ));
    }
    let invalid = error(
        "the URL of the Redis server has an invalid host, port or path",
        "write a host name or IP address (IPv6 in brackets: `[::1]`), and optionally a port from 1 to 65535 and a \
         database number; in user and password, write `/` as `%2F`, `:` as `%3A` and `@` as `%40`",
    );
    let Ok(info) = text.into_connection_info() else {
        return Err(invalid);
    };
    let (host, port, tls) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => (host, *port, false),
        ConnectionAddr::TcpTls { host, port, .. } => (host, *port, true),
        _ => return Err(invalid),
    };
    let login = info.redis_settings();
    let (Ok(database), 1..) = (login.db().try_into(), port) else {
        return Err(invalid);
    };
    let password = login.password().filter(|password| !password.is_empty());
    if password.is_none() && text.contains('@') {
        return Err(error(
            "the URL of the Redis server has a user without a password",
            "write `user:password@` or `:password@`, or remove the user from the URL and set `user` and `password` \
             in [store]",
        ));
    }
    Ok(RedisNode {
        host: host.as_str().into(),
        port,
        tls,
        database,
        user: login.username().map(Into::into),
        password: password.map(Into::into),
    })
}

/// Returns `text` with the range `secret` replaced by `***`.
pub(crate) fn mask(text: &str, secret: Option<Range<usize>>) -> Cow<'_, str> {
    match secret {
        Some(secret) => format!("{}***{}", &text[..secret.start], &text[secret.end..]).into(),
        None => text.into(),
    }
}

/// Returns the byte range of the password in a URL, which can be malformed. If the end of the password is unclear, the
/// range is too long rather than too short.
pub(crate) fn password_in_url(url: &str) -> Option<Range<usize>> {
    let scheme = url.find("://").map(|at| at + 3);
    if let Some(at) = url.rfind('@') {
        let start = scheme.filter(|start| *start <= at).unwrap_or(0);
        let colon = url[start..at].find(':').map(|colon| start + colon + 1);
        return Some(colon.unwrap_or(start)..at).filter(|secret| !secret.is_empty());
    }
    // Text after the colon that is not a port number is treated as a password, because the host can be missing, as in
    // `redis://user:password`.
    let start = scheme?;
    let authority = url[start..].split(['/', '?', '#']).next()?;
    let port = authority.find(':')? + 1;
    let is_port = authority[port..].bytes().all(|byte| byte.is_ascii_digit());
    (!is_port && !authority.starts_with('[')).then_some(start + port..url.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> RedisNode {
        redis_url(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn all_parts_of_a_url_are_parsed() {
        let plain = RedisNode {
            host: "redis.example".into(),
            port: 6379,
            tls: false,
            database: 0,
            user: None,
            password: None,
        };
        assert_eq!(node("redis://redis.example"), plain);
        assert_eq!(node("redis://redis.example:6379/0"), plain);
        let all = RedisNode {
            host: "10.0.0.1".into(),
            port: 6390,
            tls: true,
            database: 3,
            user: Some("g/te".into()),
            password: Some("p@s:s%ü+".into()),
        };
        assert_eq!(
            node("rediss://g%2Fte:p%40s%3As%25%C3%BC+@10.0.0.1:6390/3"),
            all
        );
        let nameless = RedisNode { user: None, ..all };
        assert_eq!(
            node("rediss://:p%40s%3As%25%C3%BC+@10.0.0.1:6390/3"),
            nameless
        );
        assert!(!format!("{nameless:?}").contains("p@s"));
        assert_eq!(&*node("redis://[2001:db8::7]:7000").host, "2001:db8::7");
    }

    #[test]
    fn malformed_urls_are_reported_without_their_password() {
        for (text, title) in [
            ("", "does not begin"),
            ("localhost:6379", "does not begin"),
            ("gate:s3cret@h", "does not begin"),
            ("http://gate:s3cret@h", "does not begin"),
            ("redis+unix:///run/redis.sock", "does not begin"),
            ("REDIS://h", "does not begin"),
            ("redis://h?db=1", "a query"),
            ("rediss://:s3cret@h#insecure", "a fragment"),
            ("redis://", "invalid host"),
            ("redis:///1", "invalid host"),
            ("redis://:s3cret@", "invalid host"),
            ("redis://a b", "invalid host"),
            ("redis://2001:db8::7:7000", "invalid host"),
            ("redis://gate:s3cret/0", "invalid host"),
            ("redis://:s3/cret@h", "invalid host"),
            ("redis://:s3\tcret@h", "control character"),
            ("redis://:s3cret%@h", "percent escape"),
            ("redis://:s3cret%2@h", "percent escape"),
            ("redis://:s3cret@h:x", "port"),
            ("redis://h:0", "port"),
            ("redis://h:65536", "port"),
            ("redis://:s3cret@h/db", "path"),
            ("redis://h/-1", "path"),
            ("redis://h/4294967296", "path"),
            ("redis://s3cret@h", "without a password"),
            ("redis://gate:@h", "without a password"),
            ("redis://@h", "without a password"),
        ] {
            let error = redis_url(text).expect_err(text);
            assert!(error.title.contains(title), "{text}: {}", error.title);
            let shown = format!("{error} {}", error.help);
            assert!(!shown.contains("s3"), "{shown}");
        }
    }

    #[test]
    fn passwords_are_masked_in_malformed_urls() {
        for (url, shown) in [
            ("redis://h:6379/1", "redis://h:6379/1"),
            ("redis://[fe80::ab]:6379", "redis://[fe80::ab]:6379"),
            ("redis://u:p@h:6379", "redis://u:***@h:6379"),
            ("redis://p@h", "redis://***@h"),
            ("redis://:p:q/r@s@h", "redis://:***@h"),
            ("u:p@redis://h", "u:***@redis://h"),
            ("redis://:6p/0", "redis://:***"),
            ("redis://@h", "redis://@h"),
            ("h:6379", "h:6379"),
        ] {
            assert_eq!(mask(url, password_in_url(url)), shown, "{url}");
        }
    }
}
