//! `[store]`: backend and capacity of the store of rate limit buckets and idempotency records.

mod lease;
mod redis;

use super::super::file::StoreSection;
use super::super::located::Located;
use super::super::problem::Findings;
use super::super::scalar::{BackendWord, Size};
use super::super::source::Span;
use super::super::{Backend, StoreSettings};
use super::plain;
use crate::store::StoreCapacity;

pub(super) use lease::resolve_lease;

/// Default of `max_bytes` with `backend = "disk"`, in bytes.
const DEFAULT_DISK_BYTES: u64 = 4 << 30;

pub(super) fn resolve(section: &StoreSection, findings: &mut Findings) -> StoreSettings {
    // If `backend` is missing and an error was reported, validation has possibly removed an invalid `backend`. Then it
    // is unknown which keys are unused.
    if section.backend.is_some() || !findings.has_errors() {
        report_unused_keys(section, findings);
    }
    let backend = match word(section) {
        BackendWord::Memory => Backend::Memory,
        BackendWord::Disk => disk(section, findings),
        BackendWord::Redis => {
            redis::resolve(section, findings).map_or(Backend::Memory, Backend::Redis)
        }
    };
    let default = StoreCapacity::default();
    let max_bytes = match backend {
        Backend::Memory | Backend::Redis(_) => default.max_bytes,
        Backend::Disk { .. } => DEFAULT_DISK_BYTES,
    };
    StoreSettings {
        capacity: StoreCapacity {
            max_keys: plain(section.max_keys.as_ref(), default.max_keys),
            max_bytes: section
                .max_bytes
                .as_ref()
                .map_or(max_bytes, |Located { value: Size(b), .. }| *b),
        },
        backend,
    }
}

/// Returns the maximum total size of the stored responses in bytes. The gateway sets no maximum on Redis, so the result
/// for Redis is `u64::MAX`.
pub(super) fn max_response_bytes(store: &StoreSettings) -> u64 {
    match store.backend {
        Backend::Memory | Backend::Disk { .. } => store.capacity.max_bytes,
        Backend::Redis(_) => u64::MAX,
    }
}

/// Whether the store is Redis, which can be unavailable. Also true if an invalid `backend` was possibly removed by
/// validation.
pub(super) fn is_remote(section: &StoreSection, findings: &Findings) -> bool {
    let may_be_removed = section.backend.is_none() && findings.has_errors();
    may_be_removed || word(section) == BackendWord::Redis
}

fn word(section: &StoreSection) -> BackendWord {
    plain(section.backend.as_ref(), BackendWord::Memory)
}

/// Converts the settings of the disk store. If `path` is missing, reports an error and returns another backend, so that
/// later checks can run.
fn disk(section: &StoreSection, findings: &mut Findings) -> Backend {
    let Some(path) = &section.path else {
        missing(
            section,
            "`path` is missing in [store]: `backend = \"disk\"` requires the path of a directory",
            "add `path = \"data/tidegate\"` to [store]",
            findings,
        );
        return Backend::Memory;
    };
    if path.value.as_os_str().is_empty() {
        findings.error(
            &path.span,
            "`path` of the disk store is empty",
            "write the path of a directory, such as `path = \"data/tidegate\"`",
        );
    }
    Backend::Disk {
        path: path.value.clone(),
    }
}

/// Reports a configuration key that the backend requires and that is missing. After an error, this function does
/// nothing, because validation has possibly removed an invalid value of the key.
fn missing(section: &StoreSection, title: &str, help: &str, findings: &mut Findings) {
    if let Some(backend) = &section.backend
        && !findings.has_errors()
    {
        findings.error(&backend.span, title, help);
    }
}

/// Reports configuration keys that have no effect with the configured backend.
fn report_unused_keys(section: &StoreSection, findings: &mut Findings) {
    let word = word(section);
    let reason = match word {
        BackendWord::Memory => "the backend of the store is \"memory\"",
        BackendWord::Disk => "the backend of the store is \"disk\"",
        BackendWord::Redis => "the backend of the store is \"redis\"",
    };
    let (set, to) = if section.backend.is_some() {
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
    if let Some(path) = section.path.as_ref().filter(|_| word != BackendWord::Disk) {
        report("path", &path.span, "disk");
    }
    if word != BackendWord::Redis {
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
    let keys = section.max_keys.as_ref().map(|keys| &keys.span);
    let bytes = section.max_bytes.as_ref().map(|bytes| &bytes.span);
    for (key, span) in [("max_keys", keys), ("max_bytes", bytes)] {
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
            max_keys: 1_000_000,
            max_bytes: 4 << 30,
        };
        assert_eq!(disk.capacity, capacity);

        let configured = settings("max_keys = 7\nmax_bytes = \"1KiB\"");
        let capacity = StoreCapacity {
            max_keys: 7,
            max_bytes: 1024,
        };
        assert_eq!(configured.capacity, capacity);
    }
}
