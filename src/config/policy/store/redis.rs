//! Redis: where it is, who we are to it, and what is asked of it.

use std::num::NonZeroU32;

use super::super::super::file::StoreSection;
use super::super::super::located::{Located, OneOrMany};
use super::super::super::problem::Findings;
use super::super::super::scalar::{PasswordText, RedisUrl, StoreTimeout, UserText};
use super::super::super::source::Span;
use super::super::read_secret;
use super::{lease, missing};
use crate::store::redis::settings::{
    LIMITS_TIMEOUT, Nodes, PREFIX, Password, RECORDS_TIMEOUT, RedisNode, RedisSettings,
};

/// The keys of `[store]` that only Redis has, where they are given.
pub(super) fn keys(section: &StoreSection) -> impl Iterator<Item = (&'static str, &Span)> {
    fn at<T>(given: Option<&Located<T>>) -> Option<&Span> {
        given.map(|given| &given.span)
    }
    let keys = [
        ("url", at(section.url.as_ref())),
        ("prefix", at(section.prefix.as_ref())),
        ("user", at(section.user.as_ref())),
        ("password", at(section.password.as_ref())),
        ("password_file", at(section.password_file.as_ref())),
        ("ca_file", at(section.ca_file.as_ref())),
        ("limits_timeout", at(section.limits_timeout.as_ref())),
        ("records_timeout", at(section.records_timeout.as_ref())),
        ("lease", at(section.lease.as_ref())),
        ("wait_replicas", at(section.wait_replicas.as_ref())),
    ];
    keys.into_iter()
        .filter_map(|(key, span)| Some((key, span?)))
}

/// The settings, but for the lease, which depends on what claims are made for; `None` without a usable URL.
pub(super) fn resolve(section: &StoreSection, findings: &mut Findings) -> Option<RedisSettings> {
    let password = password(section, findings);
    let Some(url) = &section.url else {
        missing(
            section,
            "nothing says where Redis is",
            "add its URL to [store]: `url = \"redis://127.0.0.1:6379\"`, or a list of them for a cluster",
            findings,
        );
        return None;
    };
    let nodes = nodes(url, findings)?;
    check_credentials(section, url, findings);
    if let Some(ca_file) = &section.ca_file
        && !nodes.all().iter().any(|node| node.tls)
    {
        findings.error(
            &ca_file.span,
            "`ca_file` has no effect: Redis is spoken to without TLS",
            "write `rediss://` in `url`, or remove `ca_file`",
        );
    }
    let timeout = |given: &Option<Located<StoreTimeout>>, default| match given {
        Some(given) => given.value.0,
        None => default,
    };
    let user = section.user.as_ref();
    Some(RedisSettings {
        nodes,
        prefix: match &section.prefix {
            Some(prefix) => prefix.value.0.as_str().into(),
            None => PREFIX.into(),
        },
        user: user.map(
            |Located {
                 value: UserText(user),
                 ..
             }| user.as_str().into(),
        ),
        password,
        ca_file: section.ca_file.as_ref().map(|file| file.value.clone()),
        limits_timeout: timeout(&section.limits_timeout, LIMITS_TIMEOUT),
        records_timeout: timeout(&section.records_timeout, RECORDS_TIMEOUT),
        lease: lease::MARGIN,
        wait_replicas: section
            .wait_replicas
            .as_ref()
            .and_then(|replicas| NonZeroU32::new(replicas.value)),
        max_keys_per_client: section
            .max_keys_per_client
            .as_ref()
            .and_then(|most| NonZeroU32::new(most.value)),
    })
}

fn nodes(url: &Located<OneOrMany<RedisUrl>>, findings: &mut Findings) -> Option<Nodes> {
    let listed = match &url.value {
        OneOrMany::One(RedisUrl(node)) => return Some(Nodes::Single(node.clone())),
        OneOrMany::Many(listed) => listed,
    };
    // An empty list is what faults have left, and those were reported.
    let first = listed.first()?;
    let same = |node: &RedisNode| {
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
                "a cluster has no databases but 0",
                format!(
                    "remove `/{}`, and tell fleets apart by `prefix`",
                    node.database
                ),
            );
        }
        if node.tls != first.value.0.tls {
            findings
                .error(
                    span,
                    "a cluster is spoken to with TLS or without, not both",
                    "write `redis://` in all of its URLs, or `rediss://`",
                )
                .note(&first.span, "the first is not like it");
        }
        if !same(node) {
            findings
                .error(
                    span,
                    "the nodes of a cluster have one user and password, and these differ",
                    "write the same in all URLs, or in none and set `user` and `password` in [store]",
                )
                .note(&first.span, "the first has others, or none");
        }
    }
    let nodes = listed.iter().map(|url| url.value.0.clone());
    Some(Nodes::Cluster(nodes.collect()))
}

fn password(section: &StoreSection, findings: &mut Findings) -> Option<Password> {
    let PasswordText(password) = match (&section.password, &section.password_file) {
        (Some(password), Some(file)) => {
            findings
                .error(
                    &file.span,
                    "the password is given twice",
                    "keep `password_file` and remove `password`, or the other way round",
                )
                .note(&password.span, "it is also given here");
            return None;
        }
        (Some(password), None) => password.value.clone(),
        (None, Some(file)) => read_secret("password", file, findings)?,
        (None, None) => return None,
    };
    Some(password)
}

/// Who we are is said in one place, and with its proof.
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
                format!("`{key}` is given, and a password in `url` too"),
                "remove the one from `url`, or `user`, `password` and `password_file` from [store]",
            )
            .note(in_url, "it is also given here");
    } else if let Some(user) = &section.user
        && section.password.is_none()
        && section.password_file.is_none()
        && !findings.has_errors()
    {
        findings.error(
            &user.span,
            "a user without a password is nobody to Redis",
            "add `password = \"${REDIS_PASSWORD}\"` or `password_file` to [store], or remove `user`",
        );
    }
}

#[cfg(test)]
mod tests;
