//! `[store]` with `backend = "redis"`: servers, credentials and timeouts.

use super::super::super::Purpose;
use super::super::super::file::StoreSection;
use super::super::super::located::{Located, OneOrMany};
use super::super::super::problem::Findings;
use super::super::super::scalar::{PasswordText, RedisUrl};
use super::super::super::source::Span;
use super::super::files::{self, read_secret};
use super::{lease, missing};
use crate::store::redis::settings::{Nodes, Password, RedisNode, RedisSettings};

/// Keys that are set and have an effect only with Redis.
pub(super) fn keys(section: &StoreSection) -> impl Iterator<Item = (&'static str, &Span)> {
    fn at<T>(given: Option<&Located<T>>) -> Option<&Span> {
        given.map(|given| &given.span)
    }
    let keys = [
        ("url", at(section.url.as_ref())),
        ("prefix", section.prefix.span.as_ref()),
        ("user", at(section.user.as_ref())),
        ("password", at(section.password.as_ref())),
        ("password_file", at(section.password_file.as_ref())),
        ("ca_file", at(section.ca_file.as_ref())),
        ("limits_timeout", section.limits_timeout.span.as_ref()),
        ("records_timeout", section.records_timeout.span.as_ref()),
        ("lease", at(section.lease.as_ref())),
        ("wait_replicas", at(section.wait_replicas.as_ref())),
    ];
    keys.into_iter()
        .filter_map(|(key, span)| Some((key, span?)))
}

/// Without the lease, which depends on the routes. Returns `None` if `url` is missing or invalid.
pub(super) fn resolve(
    section: &StoreSection,
    purpose: Purpose,
    findings: &mut Findings,
) -> Option<RedisSettings> {
    let password = password(section, purpose, findings);
    let Some(url) = &section.url else {
        missing(
            section,
            "url",
            "`url` is missing in [store]: `backend = \"redis\"` requires the URL of a Redis server",
            "add `url = \"redis://127.0.0.1:6379\"` to [store], or a list of URLs for a Redis Cluster",
            findings,
        );
        return None;
    };
    let nodes = nodes(url, findings)?;
    check_credentials(section, url, findings);
    if let Some(ca_file) = &section.ca_file {
        if nodes.all().iter().any(|node| node.tls) {
            // The client of Redis reads the file itself.
            let _checked = files::read_ca(ca_file, purpose, findings);
        } else {
            findings.error(
                &ca_file.span,
                "`ca_file` has no effect: the connection to Redis does not use TLS",
                "write `rediss://` in `url`, or remove `ca_file`",
            );
        }
    }
    Some(RedisSettings {
        nodes,
        prefix: section.prefix.value.0.as_str().into(),
        user: section
            .user
            .as_ref()
            .map(|user| user.value.0.as_str().into()),
        password,
        ca_file: section.ca_file.as_ref().map(|file| file.value.0.clone()),
        limits_timeout: section.limits_timeout.value.0,
        records_timeout: section.records_timeout.value.0,
        lease: lease::MARGIN,
        wait_replicas: section
            .wait_replicas
            .as_ref()
            .map(|replicas| replicas.value),
        max_keys_per_client: section.max_keys_per_client.as_ref().map(|most| most.value),
    })
}

fn nodes(url: &Located<OneOrMany<RedisUrl>>, findings: &mut Findings) -> Option<Nodes> {
    let listed = match &url.value {
        OneOrMany::One(RedisUrl(node)) => return Some(Nodes::Single(node.clone())),
        OneOrMany::Many(listed) => listed,
    };
    // The entries of an empty list were all invalid and are reported.
    let first = listed.first()?;
    let has_same_credentials = |node: &RedisNode| {
        (&node.user, &node.password) == (&first.value.0.user, &first.value.0.password)
    };
    for Located {
        span,
        value: RedisUrl(node),
    } in listed
    {
        if node.database != 0 {
            findings.error(
                span,
                "this URL selects a database, but a Redis Cluster has only database 0",
                format!(
                    "remove `/{}`, and set `prefix` to separate gateways that must not share data",
                    node.database
                ),
            );
        }
        if node.tls != first.value.0.tls {
            findings
                .error(
                    span,
                    "the URLs of a Redis Cluster must all use TLS, or all not use TLS",
                    "write `rediss://` in all URLs, or `redis://` in all URLs",
                )
                .note(&first.span, "this URL differs");
        }
        if !has_same_credentials(node) {
            findings
                .error(
                    span,
                    "the URLs of a Redis Cluster must all have the same user and password",
                    "write the same user and password in all URLs, or remove them and set `user` and `password` in \
                     [store]",
                )
                .note(&first.span, "this URL differs");
        }
    }
    let nodes = listed.iter().map(|url| url.value.0.clone());
    Some(Nodes::Cluster(nodes.collect()))
}

fn password(section: &StoreSection, purpose: Purpose, findings: &mut Findings) -> Option<Password> {
    let PasswordText(password) = match (&section.password, &section.password_file) {
        (Some(password), Some(file)) => {
            findings
                .error(
                    &file.span,
                    "`password` and `password_file` are both set",
                    "remove `password` or `password_file`",
                )
                .note(&password.span, "`password` is set here");
            return None;
        }
        (Some(password), None) => password.value.clone(),
        (None, Some(file)) => read_secret("password", file, purpose, findings)?,
        (None, None) => return None,
    };
    Some(password)
}

/// Also reports a `user` without a password.
fn check_credentials(
    section: &StoreSection,
    url: &Located<OneOrMany<RedisUrl>>,
    findings: &mut Findings,
) {
    let given = section.user.as_ref().map(|user| ("user", &user.span));
    let given = given.or(section
        .password
        .as_ref()
        .map(|password| ("password", &password.span)));
    let given = given.or(section
        .password_file
        .as_ref()
        .map(|file| ("password_file", &file.span)));
    let in_url = match &url.value {
        OneOrMany::One(RedisUrl(node)) => node.password.as_ref().map(|_| &url.span),
        OneOrMany::Many(listed) => {
            let of_node = listed.iter().find(|url| url.value.0.password.is_some());
            of_node.map(|url| &url.span)
        }
    };
    if let (Some((key, span)), Some(in_url)) = (given, in_url) {
        findings
            .error(
                span,
                format!("the Redis credentials are set twice: in `{key}` and in `url`"),
                "remove the credentials from `url`, or remove `user`, `password` and `password_file` from [store]",
            )
            .note(in_url, "`url` contains credentials here");
    } else if let Some(user) = &section.user
        && section.password.is_none()
        && section.password_file.is_none()
        && !findings.was_removed("store.password")
        && !findings.was_removed("store.password_file")
    {
        findings.error(
            &user.span,
            "`user` is set without `password` or `password_file`",
            "add `password = \"${REDIS_PASSWORD}\"` or `password_file` to [store], or remove `user`",
        );
    }
}

#[cfg(test)]
mod tests;
