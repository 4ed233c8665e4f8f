//! Parser of the URLs of Redis servers.
//!
//! This module does not use a library, because `http::Uri` does not parse users and passwords, and an error of another
//! library could contain the password. No error of this module contains a password.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use super::super::ValueError;
use crate::config::secrets;
use crate::store::redis::settings::{Password, RedisNode};

/// Port that is used if a Redis URL contains no port.
const DEFAULT_PORT: u16 = 6379;

/// Help text that shows the form of a Redis URL.
const FORM: &str = "write scheme, host, and optional port and database: \"redis://127.0.0.1:6379\", \
                    \"rediss://redis.example/1\"";

/// Parses the URL of a Redis server, or of one node of a Redis Cluster.
pub(in super::super) fn redis_url(text: &str) -> Result<RedisNode, ValueError> {
    let error = |what: &str, help: &str| {
        ValueError::new(format!("`{}` {what}", secrets::masked_url(text)), help)
    };
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
fn credentials(userinfo: &str) -> Result<(Option<Arc<str>>, Password), ValueError> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    if password.is_empty() {
        return Err(ValueError::new(
            "has a user without a password",
            "write `user:password@` or `:password@`, or remove the user from the URL and set `user` and `password` \
             in [store]",
        ));
    }
    let decoded = |text: &str| {
        percent_decoded(text).ok_or_else(|| {
            ValueError::new(
                "has an invalid percent escape in its user or password",
                "write `%` as `%25`, and other bytes as `%` and two hexadecimal digits",
            )
        })
    };
    let password = super::password(&decoded(password)?)?;
    if user.is_empty() {
        return Ok((None, password));
    }
    let user = super::user(&decoded(user)?)
        .map_err(|error| ValueError::new("has a user name with spaces", error.help))?;
    Ok((Some(user.into()), password))
}

fn host_and_port(address: &str) -> Result<(&str, u16), ValueError> {
    let bracketed = address.strip_prefix('[');
    if bracketed.is_none() && address.matches(':').count() > 1 {
        return Err(ValueError::new(
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
        return Err(ValueError::new("has no valid host", FORM));
    }
    if port.is_empty() {
        return Ok((host, DEFAULT_PORT));
    }
    match port.strip_prefix(':').and_then(digits) {
        Some(port) if port > 0 => Ok((host, port)),
        _ => Err(ValueError::new(
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

#[cfg(test)]
mod tests;
