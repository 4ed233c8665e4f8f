//! The URL of a Redis server.
//!
//! Read by hand: `http::Uri` knows no user and no password, and an error of another library's could
//! repeat what it was given. No fault told from here shows a password.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use super::super::Fault;
use super::{PasswordText, UserText};
use crate::config::secrets;
use crate::store::redis::settings::{Password, RedisNode};

/// Where Redis listens if nobody says otherwise.
const DEFAULT_PORT: u16 = 6379;

/// What would be right, where the fault is not a particular one.
const FORM: &str = "write scheme, host, and any port and database: \"redis://127.0.0.1:6379\", \
                    \"rediss://redis.example/1\"";

/// One server, or one node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct RedisUrl(pub(in crate::config) RedisNode);

impl FromStr for RedisUrl {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let wrong = |what: &str, help: &str| {
            Fault::new(format!("`{}` {what}", secrets::masked_url(text)), help)
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong("is not the URL of a Redis server", FORM));
        };
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return Err(wrong("begins with neither `redis` nor `rediss`", FORM)),
        };
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (userinfo, address) = match authority.rsplit_once('@') {
            Some((userinfo, address)) => (Some(userinfo), address),
            None => (None, authority),
        };
        if tail.contains('@') || userinfo.is_some_and(|userinfo| userinfo.contains('@')) {
            return Err(wrong(
                "has a user or a password with characters that a URL ends them at",
                "write `@` as `%40`, `/` as `%2F`, `?` as `%3F` and `#` as `%23`, or set `user` and \
                 `password` in [store]",
            ));
        }
        let (user, password) = match userinfo.map(credentials) {
            None => (None, None),
            Some(Ok((user, password))) => (user, Some(password)),
            Some(Err(fault)) => return Err(wrong(fault.title.as_str(), &fault.help)),
        };
        let (host, port) = match host_and_port(address) {
            Ok(found) => found,
            Err(fault) => return Err(wrong(&fault.title, &fault.help)),
        };
        let database = match tail.strip_prefix('/') {
            None if tail.is_empty() => 0,
            None => return Err(wrong("has a query or a fragment", FORM)),
            Some("") => 0,
            Some(path) => digits(path)
                .ok_or_else(|| wrong("has a path that is not the number of a database", FORM))?,
        };
        Ok(Self(RedisNode {
            host: host.into(),
            port,
            tls,
            database,
            user,
            password,
        }))
    }
}

/// What stands before the `@`.
fn credentials(userinfo: &str) -> Result<(Option<Arc<str>>, Password), Fault> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    if password.is_empty() {
        return Err(Fault::new(
            "has a user without a password",
            "write `user:password@` or `:password@`, or set `user` and `password` in [store] and neither \
             in the URL",
        ));
    }
    let decoded = |text: &str| {
        percent_decoded(text).ok_or_else(|| {
            Fault::new(
                "has a user or a password with a broken escape",
                "write `%` as `%25`, and other octets as `%` and two hexadecimal digits",
            )
        })
    };
    let PasswordText(password) = decoded(password)?.parse()?;
    if user.is_empty() {
        return Ok((None, password));
    }
    let UserText(user) = decoded(user)?
        .parse()
        .map_err(|fault: Fault| Fault::new("has a user with spaces in the name", fault.help))?;
    Ok((Some(user.into()), password))
}

fn host_and_port(address: &str) -> Result<(&str, u16), Fault> {
    let bracketed = address.strip_prefix('[');
    if bracketed.is_none() && address.matches(':').count() > 1 {
        return Err(Fault::new(
            "has an address that does not end before its port",
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
        return Err(Fault::new("names no host", FORM));
    }
    if port.is_empty() {
        return Ok((host, DEFAULT_PORT));
    }
    match port.strip_prefix(':').and_then(digits) {
        Some(port) if port > 0 => Ok((host, port)),
        _ => Err(Fault::new(
            "has no port that can be",
            "write a port from 1 to 65535, or none for 6379",
        )),
    }
}

/// Whether this can be an IPv4 address or the name of a host.
fn is_name(host: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let numeric = host
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    matches!(host.len(), 1..=253)
        && host.bytes().all(plain)
        && (!numeric || host.parse::<Ipv4Addr>().is_ok())
}

/// A number of nothing but digits: `parse` would take a sign.
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
