//! The directory of a disk store, with its lock file and its identity file.
//!
//! A process locks the file `lock` while it uses the directory. The file `identity` has the format and the secret of
//! the hashes. It is checked before the engine opens any file. Another format is rejected, because there is no
//! conversion. Records without `identity` are rejected too: a new secret would give every used key a new hash, so its
//! request could be executed again.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::idempotency::Secret;

/// The only format that this version writes and reads.
const FORMAT: u32 = 2;

/// In the file `identity`.
const ENGINE: &str = "fjall-3";

/// Dropping the value unlocks the directory.
#[derive(Debug)]
pub(super) struct StoreDir {
    path: PathBuf,
    secret: Secret,
    _lock: File,
}

/// Reason why a store directory cannot be used. Every message ends with a remedy.
#[derive(Debug, Error)]
pub enum StoreDirError {
    /// The directory cannot be created, read or written.
    #[error(
        "cannot use the store directory {path}: {cause}; make the directory readable and writable for the user that \
         runs Tidegate, or set `store.path` to another directory"
    )]
    Io {
        /// Path of the store directory.
        path: PathBuf,
        /// Error of the operating system. The message contains this error in the middle and ends with the remedy, so
        /// `source` does not return the error.
        cause: io::Error,
    },
    /// Another process has locked the directory.
    #[error(
        "the store directory {path} is in use by process {holder}; stop that process, or set `store.path` to \
         another directory"
    )]
    InUse {
        /// Path of the store directory.
        path: PathBuf,
        /// Process id from the file `lock`. Empty if that process has not written its id yet.
        holder: String,
    },
    /// The directory has a format that this version of the gateway does not support.
    #[error(
        "the store directory {path} has format {format}, but this version of Tidegate requires format {FORMAT}; run \
         the version that wrote the directory until its idempotency keys have expired, and then move the directory \
         away; or move it away now to start with an empty store: requests that were executed before can then be \
         executed again"
    )]
    OtherFormat {
        /// Path of the store directory.
        path: PathBuf,
        /// Number of the format, from the file `identity`.
        format: u32,
    },
    /// A file of the directory is missing or damaged.
    #[error(
        "the store directory {path} is damaged: {what}; restore the directory from a backup, or move it away to start \
         with an empty store: requests that were executed before can then be executed again"
    )]
    Damaged {
        /// Path of the store directory.
        path: PathBuf,
        /// Which file is missing or damaged, and how.
        what: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Identity {
    format: u32,
    engine: String,
    secret: String,
}

/// The field that all formats have.
#[derive(Deserialize)]
struct IdentityFormat {
    format: u32,
}

impl StoreDir {
    /// Creates the directory and the file `identity` if they do not exist.
    pub(super) fn open(path: &Path) -> Result<Self, StoreDirError> {
        let path = path.to_owned();
        let io = |cause| StoreDirError::Io {
            path: path.clone(),
            cause,
        };
        // Stored responses can contain secrets.
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(&path).map_err(io)?;
        let lock = lock(&path)?;
        let file = path.join("identity");
        let secret = match fs::read(&file) {
            Ok(bytes) => read_identity(&path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if path.join("records").exists() {
                    return Err(StoreDirError::Damaged {
                        path,
                        what: "the directory has idempotency records but no file `identity`".into(),
                    });
                }
                let secret = Secret::random();
                write_identity(&path, &secret).map_err(io)?;
                secret
            }
            Err(error) => return Err(io(error)),
        };
        Ok(Self {
            path,
            secret,
            _lock: lock,
        })
    }

    pub(super) fn secret(&self) -> Secret {
        self.secret
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn records(&self) -> PathBuf {
        self.path.join("records")
    }
}

/// Writes the process id into the file `lock`.
fn lock(path: &Path) -> Result<File, StoreDirError> {
    let io = |cause| StoreDirError::Io {
        path: path.to_owned(),
        cause,
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut lock = options.open(path.join("lock")).map_err(io)?;
    match lock.try_lock() {
        Ok(()) => {
            lock.set_len(0).map_err(io)?;
            write!(lock, "{}", std::process::id()).map_err(io)?;
            Ok(lock)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            lock.rewind().map_err(io)?;
            lock.read_to_string(&mut holder).map_err(io)?;
            Err(StoreDirError::InUse {
                path: path.to_owned(),
                holder,
            })
        }
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

fn read_identity(path: &Path, bytes: &[u8]) -> Result<Secret, StoreDirError> {
    let damaged = |what: String| StoreDirError::Damaged {
        path: path.to_owned(),
        what,
    };
    if let Ok(IdentityFormat { format }) = serde_json::from_slice(bytes)
        && format != FORMAT
    {
        let path = path.to_owned();
        return Err(StoreDirError::OtherFormat { path, format });
    }
    let identity: Identity = serde_json::from_slice(bytes).map_err(|error| {
        damaged(format!(
            "the file `identity` cannot be parsed as JSON ({error})"
        ))
    })?;
    if identity.engine != ENGINE {
        return Err(damaged(format!(
            "the file `identity` names the storage engine `{}` instead of `{ENGINE}`",
            identity.engine
        )));
    }
    let mut secret = [0; 32];
    match blake3::Hash::from_hex(&identity.secret) {
        Ok(bytes) => secret.copy_from_slice(bytes.as_bytes()),
        Err(_) => {
            return Err(damaged(
                "the file `identity` has no valid `secret` (64 hexadecimal digits)".into(),
            ));
        }
    }
    Ok(Secret::from_bytes(secret))
}

/// After a power failure, the file is complete or does not exist.
fn write_identity(path: &Path, secret: &Secret) -> io::Result<()> {
    let identity = Identity {
        format: FORMAT,
        engine: ENGINE.into(),
        secret: blake3::Hash::from_bytes(*secret.as_bytes())
            .to_hex()
            .to_string(),
    };
    let text = serde_json::to_vec_pretty(&identity).map_err(io::Error::other)?;
    replace(&path.join("identity"), &text)
}

/// After a power failure, the file has either the old or the new content.
pub(super) fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
    if let Err(error) = written {
        // It would occupy space on a full disk. After an error, the next call overwrites it.
        drop(fs::remove_file(&new));
        return Err(error);
    }
    fs::rename(&new, file)?;
    let parent = file.parent().unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use tempfile::TempDir;

    use super::*;

    fn error(path: &Path) -> String {
        StoreDir::open(path).unwrap_err().to_string()
    }

    #[test]
    fn the_secret_is_created_once_and_readable_only_by_the_owner() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("deep/store");
        let first = StoreDir::open(&path).unwrap().secret();
        let second = StoreDir::open(&path).unwrap().secret();
        assert_eq!(first.as_bytes(), second.as_bytes());
        let mode = |path: &Path| MetadataExt::mode(&fs::metadata(path).unwrap()) & 0o777;
        assert_eq!(mode(&path.join("identity")), 0o600);
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_directory_in_use_is_rejected_with_the_process_id() {
        let dir = TempDir::new().unwrap();
        let held = StoreDir::open(dir.path()).unwrap();
        let message = error(dir.path());
        let own_id = format!("in use by process {}", std::process::id());
        assert!(message.contains(&own_id), "{message}");
        drop(held);
        StoreDir::open(dir.path()).unwrap();
    }

    #[test]
    fn another_format_or_a_damaged_identity_is_rejected_with_a_remedy() {
        let dir = TempDir::new().unwrap();
        drop(StoreDir::open(dir.path()).unwrap());
        let identity = dir.path().join("identity");
        let text = fs::read_to_string(&identity).unwrap();
        for (content, expected) in [
            (
                text.replace("\"format\": 2", "\"format\": 3"),
                "has format 3, but this version of Tidegate requires format 2; run the version that wrote",
            ),
            (
                text.replace("\"format\": 2", "\"format\": 1"),
                "has format 1, but this version of Tidegate requires format 2; run the version that wrote",
            ),
            (
                r#"{ "format": 1 }"#.into(),
                "has format 1, but this version of Tidegate requires format 2; run the version that wrote",
            ),
            (
                text.replace("fjall-3", "fjall-9"),
                "names the storage engine `fjall-9`",
            ),
            (text[..text.len() / 2].to_owned(), "cannot be parsed"),
            (String::new(), "cannot be parsed"),
            (
                text.replace("\"secret\": \"", "\"secret\": \"zz"),
                "has no valid `secret`",
            ),
        ] {
            fs::write(&identity, content).unwrap();
            let message = error(dir.path());
            assert!(message.contains(expected), "{message}");
            assert!(message.contains("move"), "{message}");
        }
        fs::remove_file(&identity).unwrap();
        fs::create_dir(dir.path().join("records")).unwrap();
        assert!(error(dir.path()).contains("records but no file `identity`"));
    }

    #[test]
    fn a_path_that_is_not_a_directory_is_rejected_with_its_name() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let message = error(&file);
        assert!(
            message.contains("cannot use the store directory"),
            "{message}"
        );
        assert!(message.contains("file"), "{message}");
    }
}
