//! `[store]`: backend and capacity of the store of rate limit buckets and idempotency records.

mod lease;
mod redis;

use super::super::file::{BackendKind, StoreSection};
use super::super::problem::Findings;
use super::super::source::Span;
use super::super::{Backend, Purpose, StoreSettings};
use crate::store::StoreCapacity;

pub(super) use lease::resolve_lease;

/// In bytes.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;

/// In bytes.
const DEFAULT_DISK_BYTES: u64 = 4 << 30;

/// Without the lease of Redis, which depends on the routes.
pub(super) fn resolve(
    section: &StoreSection,
    purpose: Purpose,
    findings: &mut Findings,
) -> StoreSettings {
    // If an invalid `backend` was removed, it is unknown which keys are unused.
    if !findings.was_removed("store.backend") {
        report_unused_keys(section, findings);
    }
    let backend = match section.backend.value {
        BackendKind::Memory => Backend::Memory,
        BackendKind::Disk => disk(section, findings),
        BackendKind::Redis => {
            redis::resolve(section, purpose, findings).map_or(Backend::Memory, Backend::Redis)
        }
    };
    let default = match backend {
        Backend::Memory | Backend::Redis(_) => DEFAULT_MEMORY_BYTES,
        Backend::Disk { .. } => DEFAULT_DISK_BYTES,
    };
    StoreSettings {
        capacity: StoreCapacity {
            max_keys: section.max_keys.value,
            min_ttl: section.min_ttl.value.0,
            max_bytes: section
                .max_bytes
                .as_ref()
                .map_or(default, |bytes| bytes.value.0),
        },
        backend,
    }
}

/// The gateway sets no maximum on Redis, so the result is `u64::MAX`.
pub(super) fn max_response_bytes(store: &StoreSettings) -> u64 {
    match store.backend {
        Backend::Memory | Backend::Disk { .. } => store.capacity.max_bytes,
        Backend::Redis(_) => u64::MAX,
    }
}

/// Also true if an invalid `backend` was possibly removed.
pub(super) fn is_remote(section: &StoreSection, findings: &Findings) -> bool {
    let may_be_removed = section.backend.span.is_none() && findings.was_removed("store.backend");
    may_be_removed || section.backend.value == BackendKind::Redis
}

/// If `path` is missing, returns another backend, so that later checks can run.
fn disk(section: &StoreSection, findings: &mut Findings) -> Backend {
    let Some(path) = &section.path else {
        missing(
            section,
            "path",
            "`path` is missing in [store]: `backend = \"disk\"` requires the path of a directory",
            "add `path = \"data/tidegate\"` to [store]",
            findings,
        );
        return Backend::Memory;
    };
    if path.value.0.as_os_str().is_empty() {
        findings.error(
            &path.span,
            "`path` of the disk store is empty",
            "write the path of a directory, such as `path = \"data/tidegate\"`",
        );
    }
    Backend::Disk {
        path: path.value.0.clone(),
    }
}

fn missing(section: &StoreSection, key: &str, title: &str, help: &str, findings: &mut Findings) {
    if let Some(span) = &section.backend.span
        && !findings.was_removed(&format!("store.{key}"))
    {
        findings.error(span, title, help);
    }
}

fn report_unused_keys(section: &StoreSection, findings: &mut Findings) {
    let backend = section.backend.value;
    let reason = match backend {
        BackendKind::Memory => "the backend of the store is \"memory\"",
        BackendKind::Disk => "the backend of the store is \"disk\"",
        BackendKind::Redis => "the backend of the store is \"redis\"",
    };
    let (set, to) = if section.backend.span.is_some() {
        ("set", "in")
    } else {
        ("add", "to")
    };
    let mut report = |key: &str, span: &Span, backend: &str| {
        findings.error(
            span,
            format!("`{key}` has no effect: {reason}"),
            format!("{set} `backend = \"{backend}\"` {to} [store], or remove `{key}`"),
        );
    };
    if let Some(path) = &section.path
        && backend != BackendKind::Disk
    {
        report("path", &path.span, "disk");
    }
    if backend != BackendKind::Redis {
        for (key, span) in redis::keys(section) {
            report(key, span, "redis");
        }
        if let Some(most) = &section.max_keys_per_client {
            findings.error(
                &most.span,
                format!("`max_keys_per_client` has no effect: {reason}"),
                "remove `max_keys_per_client`. Without it, while more than 80 % of `max_keys` are in use, each client \
                 can store at most 10 % of `max_keys`",
            );
        }
        return;
    }
    let keys = section.max_keys.span.as_ref();
    let min_ttl = section.min_ttl.span.as_ref();
    let bytes = section.max_bytes.as_ref().map(|bytes| &bytes.span);
    for (key, span) in [
        ("max_keys", keys),
        ("min_ttl", min_ttl),
        ("max_bytes", bytes),
    ] {
        if let Some(span) = span {
            findings.error(
                span,
                format!("`{key}` has no effect with `backend = \"redis\"`: Redis has its own memory limit"),
                format!("set `maxmemory` in the configuration of Redis, and remove `{key}`"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;
    use crate::config::{Environment, Overrides, parse};

    fn settings(store: &str) -> StoreSettings {
        let text = format!(
            "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
             [[route]]\nname = \"all\"\npath = \"/\"\n[store]\n{store}\n"
        );
        let loaded = parse(
            "test.toml",
            &text,
            &Environment::default(),
            &Overrides::default(),
        );
        loaded.expect("a valid configuration").policy.store
    }

    #[test]
    fn the_default_capacity_depends_on_the_backend() {
        let memory = settings("");
        assert_eq!(memory, StoreSettings::default());
        assert_eq!(memory.capacity.max_bytes, 256 << 20);

        let disk = settings("backend = \"disk\"\npath = \"data/gate\"");
        let path = PathBuf::from("data/gate");
        assert_eq!(disk.backend, Backend::Disk { path });
        let capacity = StoreCapacity {
            max_bytes: 4 << 30,
            ..StoreCapacity::default()
        };
        assert_eq!(disk.capacity, capacity);

        let configured = settings("max_keys = 7\nmin_ttl = \"5s\"\nmax_bytes = \"1KiB\"");
        let capacity = StoreCapacity {
            max_keys: 7,
            max_bytes: 1024,
            min_ttl: Duration::from_secs(5),
        };
        assert_eq!(configured.capacity, capacity);
    }
}
