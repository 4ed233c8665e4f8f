//! Where buckets and idempotency keys are kept, and how many.

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

pub(super) use lease::set_lease;

/// Bytes that answers may take on disk where nothing is said.
const DEFAULT_DISK_BYTES: u64 = 4 << 30;

pub(super) fn resolve(section: &StoreSection, findings: &mut Findings) -> StoreSettings {
    // The word may be gone for a fault of its own, which is to be mended first.
    if section.backend.is_some() || !findings.has_errors() {
        misplaced(section, findings);
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

/// Bytes the answers of all keys may take, as far as the gateway has a say in it.
pub(super) fn bytes_for_answers(store: &StoreSettings) -> u64 {
    match store.backend {
        Backend::Memory | Backend::Disk { .. } => store.capacity.max_bytes,
        Backend::Redis(_) => u64::MAX,
    }
}

/// Whether the store may be out of reach; where the word for it has a fault, it may.
pub(super) fn is_remote(section: &StoreSection, findings: &Findings) -> bool {
    let lost = section.backend.is_none() && findings.has_errors();
    lost || word(section) == BackendWord::Redis
}

fn word(section: &StoreSection) -> BackendWord {
    plain(section.backend.as_ref(), BackendWord::Memory)
}

/// The directory; where it has a fault, whatever will do for the checks that follow.
fn disk(section: &StoreSection, findings: &mut Findings) -> Backend {
    let Some(path) = &section.path else {
        missing(
            section,
            "nothing says where on disk",
            "add a directory to [store]: `path = \"data/tidegate\"`",
            findings,
        );
        return Backend::Memory;
    };
    if path.value.as_os_str().is_empty() {
        findings.error(
            &path.span,
            "an empty `path` names no directory",
            "write a directory, such as `path = \"data/tidegate\"`",
        );
    }
    Backend::Disk {
        path: path.value.clone(),
    }
}

/// Reports a key that a backend needs, unless it may be gone for a fault of its own.
fn missing(section: &StoreSection, title: &str, help: &str, findings: &mut Findings) {
    if let Some(backend) = &section.backend
        && !findings.has_errors()
    {
        findings.error(&backend.span, title, help);
    }
}

/// Reports keys that belong to another backend.
fn misplaced(section: &StoreSection, findings: &mut Findings) {
    let word = word(section);
    let kept = match word {
        BackendWord::Memory => "everything is kept in memory",
        BackendWord::Disk => "everything is kept on disk",
        BackendWord::Redis => "everything is kept in Redis",
    };
    let place = if section.backend.is_some() {
        ("set", "in")
    } else {
        ("add", "to")
    };
    let mut report = |key: &str, span: &Span, backend: &str| {
        let (set, within) = place;
        findings.error(
            span,
            format!("`{key}` has no effect: {kept}"),
            format!("{set} `backend = \"{backend}\"` {within} [store], or remove `{key}`"),
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
                format!("`max_keys_per_client` has no effect: {kept}"),
                "remove `max_keys_per_client`: above 80 % of `max_keys` each client has a share of 10 % without it",
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
                format!("`{key}` has no effect: Redis bounds what it keeps itself"),
                format!("set `maxmemory` in Redis itself, and remove `{key}`"),
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
        loaded.expect("a sound configuration").policy.store
    }

    #[test]
    fn memory_is_smaller_than_disk_unless_somebody_says_otherwise() {
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

        let told = settings("max_keys = 7\nmax_bytes = \"1KiB\"");
        let capacity = StoreCapacity {
            max_keys: 7,
            max_bytes: 1024,
        };
        assert_eq!(told.capacity, capacity);
    }
}
