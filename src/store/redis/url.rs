//! Parser of the URLs of Redis servers.
//!
//! This module does not use a library, because `http::Uri` does not parse users and passwords, and an error of another
//! library could contain the password. No error of this module contains a password.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use super::settings::{Password, RedisNode};

/// Port that is used if a Redis URL contains no port.
const DEFAULT_PORT: u16 = 6379;

/// Help text that shows the form of a Redis URL.
const FORM: &str = "write scheme, host, and optional port and database: \"redis://127.0.0.1:6379\", \
                    \"rediss://redis.example/1\"";

/// Error of a text that is not the URL of a Redis server. The error contains no password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{title}; write \"redis://HOST:PORT/DATABASE\" or \"rediss://USER:PASSWORD@HOST:PORT/DATABASE\", with reserved \
     characters in user and password as `%` and two hexadecimal digits"
)]
pub struct RedisUrlError {
    /// What is wrong, in one line.
    pub(crate) title: String,
    /// How to fix the URL in the configuration.
    pub(crate) help: String,
}

impl RedisUrlError {
    fn new(title: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            help: help.into(),
        }
    }
}

/// Parses the URL of a Redis server, or of one node of a Redis Cluster.
pub(crate) fn redis_url(text: &str) -> Result<RedisNode, RedisUrlError> {
    let error =
        |what: &str, help: &str| RedisUrlError::new(format!("`{}` {what}", masked_url(text)), help);
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(error("is not the URL of a Redis server", FORM));
    };
    let tls = match scheme {
        "redis" => false,
        "rediss" => true,
        _ => {
            return Err(error("does not begin with `redis://` or `rediss://`", FORM));
        }
    };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (userinfo, address) = match authority.rsplit_once('@') {
        Some((userinfo, address)) => (Some(userinfo), address),
        None => (None, authority),
    };
    if tail.contains('@') || userinfo.is_some_and(|userinfo| userinfo.contains('@')) {
        return Err(error(
            "has a user or password with a reserved character that is not escaped",
            "write `@` as `%40`, `/` as `%2F`, `?` as `%3F` and `#` as `%23`, or set `user` and \
             `password` in [store]",
        ));
    }
    let (user, password) = match userinfo.map(credentials) {
        None => (None, None),
        Some(Ok((user, password))) => (user, Some(password)),
        Some(Err(cause)) => return Err(error(&cause.title, &cause.help)),
    };
    let (host, port) = match host_and_port(address) {
        Ok(found) => found,
        Err(cause) => return Err(error(&cause.title, &cause.help)),
    };
    let database = match tail.strip_prefix('/') {
        None if tail.is_empty() => 0,
        None => return Err(error("has a query or a fragment", FORM)),
        Some("") => 0,
        Some(path) => {
            digits(path).ok_or_else(|| error("has a path that is not a database number", FORM))?
        }
    };
    Ok(RedisNode {
        host: host.into(),
        port,
        tls,
        database,
        user,
        password,
    })
}

/// Parses the part of the URL before the `@`: `user:password` or `:password`. The title of an error has no
/// subject, because the caller puts the redacted URL before it.
fn credentials(userinfo: &str) -> Result<(Option<Arc<str>>, Password), RedisUrlError> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    if password.is_empty() {
        return Err(RedisUrlError::new(
            "has a user without a password",
            "write `user:password@` or `:password@`, or remove the user from the URL and set `user` and `password` \
             in [store]",
        ));
    }
    let decoded = |text: &str| {
        percent_decoded(text).ok_or_else(|| {
            RedisUrlError::new(
                "has an invalid percent escape in its user or password",
                "write `%` as `%25`, and other bytes as `%` and two hexadecimal digits",
            )
        })
    };
    let password = Password::from(&*decoded(password)?);
    if user.is_empty() {
        return Ok((None, password));
    }
    let user = decoded(user)?;
    if user.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(RedisUrlError::new(
            "has a user name with spaces",
            "write a name without spaces, or remove `user` to use the default user",
        ));
    }
    Ok((Some(user.into()), password))
}

fn host_and_port(address: &str) -> Result<(&str, u16), RedisUrlError> {
    let bracketed = address.strip_prefix('[');
    if bracketed.is_none() && address.matches(':').count() > 1 {
        return Err(RedisUrlError::new(
            "has an IPv6 address without brackets",
            "write an IPv6 address in brackets: \"redis://[::1]:6379\"",
        ));
    }
    let (host, port) = match bracketed {
        Some(bracketed) => bracketed.split_once(']').unwrap_or(("", "")),
        None => address.split_at(address.find(':').unwrap_or(address.len())),
    };
    let is_host = match bracketed {
        Some(_) => host.parse::<Ipv6Addr>().is_ok(),
        None => is_name(host),
    };
    if !is_host {
        return Err(RedisUrlError::new("has no valid host", FORM));
    }
    if port.is_empty() {
        return Ok((host, DEFAULT_PORT));
    }
    match port.strip_prefix(':').and_then(digits) {
        Some(port) if port > 0 => Ok((host, port)),
        _ => Err(RedisUrlError::new(
            "has an invalid port",
            "write a port from 1 to 65535, or omit it for the default port 6379",
        )),
    }
}

/// Whether a text is a valid IPv4 address or host name.
fn is_name(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let numeric = host
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    matches!(host.len(), 1..=253)
        && host.bytes().all(plain)
        && (!numeric || host.parse::<Ipv4Addr>().is_ok())
}

/// Parses a number that consists only of digits. `str::parse` alone would also accept a sign.
fn digits<N: FromStr>(text: &str) -> Option<N> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            octets.push(*first);
            rest = tail;
            continue;
        }
        let (escape, tail) = tail.split_at_checked(2)?;
        let nibble = |octet: u8| char::from(octet).to_digit(16);
        let octet = nibble(escape[0])? << 4 | nibble(escape[1])?;
        octets.push(u8::try_from(octet).ok()?);
        rest = tail;
    }
    String::from_utf8(octets).ok()
}

/// Returns a URL, which can be malformed, with its password replaced by `***`.
pub(crate) fn masked_url(url: &str) -> Cow<'_, str> {
    mask(url, password_in_url(url))
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
mod tests;
