//! Where buckets and idempotency keys are kept, and how many.

use super::super::file::StoreSection;
use super::super::located::Located;
use super::super::problem::Findings;
use super::super::scalar::{BackendWord, Size};
use super::super::{Backend, StoreSettings};
use super::plain;
use crate::store::memory::records::Room;

/// Bytes that answers may take on disk where nothing is said.
const DEFAULT_DISK_BYTES: u64 = 4 << 30;

pub(super) fn resolve(section: &StoreSection, findings: &mut Findings) -> StoreSettings {
    let backend = backend(section, findings);
    let default = Room::default();
    let max_bytes = match backend {
        Backend::Memory => default.max_bytes,
        Backend::Disk { .. } => DEFAULT_DISK_BYTES,
    };
    StoreSettings {
        room: Room {
            max_keys: plain(section.max_keys.as_ref(), default.max_keys),
            max_bytes: section
                .max_bytes
                .as_ref()
                .map_or(max_bytes, |Located { value: Size(b), .. }| *b),
        },
        backend,
    }
}

/// The backend; where it has a fault, whatever will do for the checks that follow.
fn backend(section: &StoreSection, findings: &mut Findings) -> Backend {
    let disk = section
        .backend
        .as_ref()
        .filter(|word| word.value == BackendWord::Disk);
    match (disk, &section.path) {
        (None, None) => Backend::Memory,
        // The other key may be gone for a fault of its own: that one is to be mended first.
        (None, Some(_)) if section.backend.is_none() && findings.has_errors() => Backend::Memory,
        (Some(_), None) if findings.has_errors() => Backend::Memory,
        (None, Some(path)) => {
            findings.error(
                &path.span,
                "`path` has no effect: everything is kept in memory",
                "add `backend = \"disk\"` to [store], or remove `path`",
            );
            Backend::Memory
        }
        (Some(disk), None) => {
            findings.error(
                &disk.span,
                "nothing says where on disk",
                "add a directory to [store]: `path = \"data/tidegate\"`",
            );
            Backend::Memory
        }
        (Some(_), Some(path)) => {
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
        assert_eq!(memory.room.max_bytes, 256 << 20);

        let disk = settings("backend = \"disk\"\npath = \"data/gate\"");
        let path = PathBuf::from("data/gate");
        assert_eq!(disk.backend, Backend::Disk { path });
        let room = Room {
            max_keys: 1_000_000,
            max_bytes: 4 << 30,
        };
        assert_eq!(disk.room, room);

        let told = settings("max_keys = 7\nmax_bytes = \"1KiB\"");
        let room = Room {
            max_keys: 7,
            max_bytes: 1024,
        };
        assert_eq!(told.room, room);
    }
}
