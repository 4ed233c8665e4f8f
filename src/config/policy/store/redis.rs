//! Redis: where it is, who we are to it, and what is asked of it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::super::super::file::{File, StoreSection};
use super::super::super::located::{Located, OneOrMany};
use super::super::super::problem::Findings;
use super::super::super::scalar::{
    LONGEST_LEASE, Lease, PasswordText, RedisUrl, StoreTimeout, UserText,
};
use super::super::super::source::Span;
use super::super::super::{Backend, StoreSettings};
use super::super::read_secret;
use super::missing;
use crate::route::Route;
use crate::store::redis::settings::{
    LIMITS_TIMEOUT, Node, Nodes, PREFIX, Password, RECORDS_TIMEOUT, RedisSettings,
};
use crate::upstream::{Timeouts, Upstream};

/// How much longer than any execution a claim holds where nothing is said.
const LEASE_MARGIN: Duration = Duration::from_secs(30);

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
        lease: LEASE_MARGIN,
        wait_replicas: section
            .wait_replicas
            .as_ref()
            .and_then(|replicas| NonZeroU32::new(replicas.value)),
    })
}

fn nodes(url: &Located<OneOrMany<RedisUrl>>, findings: &mut Findings) -> Option<Nodes> {
    let listed = match &url.value {
        OneOrMany::One(RedisUrl(node)) => return Some(Nodes::Single(node.clone())),
        OneOrMany::Many(listed) => listed,
    };
    // An empty list is what faults have left, and those were reported.
    let first = listed.first()?;
    let same = |node: &Node| {
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

/// How long a claim holds: longer than what it is made for can take.
pub(in super::super) fn set_lease(
    store: &mut StoreSettings,
    file: &File,
    upstreams: &[Arc<Upstream>],
    routes: &[Route],
    findings: &mut Findings,
) {
    // A fault elsewhere may have taken out the deadline that counts.
    let Backend::Redis(redis) = &mut store.backend else {
        return;
    };
    if findings.has_errors() {
        return;
    }
    let keyed = routes.iter().filter(|route| route.idempotency.is_some());
    let slowest = keyed
        .map(|route| &upstreams[route.upstream.0])
        .max_by_key(|upstream| whole(&upstream.timeouts));
    let deadline = slowest.map_or(Duration::ZERO, |upstream| whole(&upstream.timeouts));
    let enough = (deadline + LEASE_MARGIN).min(LONGEST_LEASE);
    let Some(Located {
        span,
        value: Lease(lease),
    }) = &file.store.lease
    else {
        redis.lease = enough;
        return;
    };
    redis.lease = *lease;
    let Some(slowest) = slowest.filter(|_| *lease <= deadline) else {
        return;
    };
    let (name, deadline) = (&slowest.name, written(deadline));
    let help = if enough > whole(&slowest.timeouts) {
        format!(
            "set `lease` to more than \"{deadline}\", such as \"{}\", or leave it out",
            written(enough)
        )
    } else {
        format!(
            "set a `timeout` under \"{}\" in [upstream.{name}]",
            written(LONGEST_LEASE)
        )
    };
    findings.error(
        span,
        format!(
            "a claim must outlive what it was made for, and a request with a key to `{name}` may take {deadline}"
        ),
        help,
    );
    if let Some((upstream, _)) = file.upstream.0.iter().nth(slowest.id.0) {
        findings.note(&upstream.span, format!("its `timeout`, or its `connect_timeout` and `first_byte_timeout`, add up to {deadline}"));
    }
}

/// How long an exchange may take until its answer begins, or at all where that is bounded.
fn whole(timeouts: &Timeouts) -> Duration {
    timeouts
        .total
        .unwrap_or(timeouts.connect + timeouts.first_byte)
}

/// A duration as the configuration would have it.
fn written(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

#[cfg(test)]
mod tests;
