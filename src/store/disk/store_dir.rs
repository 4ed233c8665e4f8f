//! The directory of a store: whose it is, and what is in it.
//!
//! Beside the files of the engine are two more. A process holds `lock` for as long as it uses the directory.
//! `identity` contains the format of the directory and the secret that all names are derived from. The format is
//! checked before the engine opens anything, and a directory of another format is rejected: there is no
//! conversion. A directory with records and without an identity is rejected too, because a new secret would turn
//! every used key into a new one.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::idempotency::Secret;

/// The format that this version writes, and the only one that it reads.
const FORMAT: u32 = 2;

/// What engine a directory of this format is for.
const ENGINE: &str = "fjall-3";

/// A directory that is ours for as long as this lives.
#[derive(Debug)]
pub(super) struct StoreDir {
    path: PathBuf,
    secret: Secret,
    _lock: File,
}

/// Why a directory cannot be used. Every message ends with a way out.
#[derive(Debug, Error)]
pub enum StoreDirError {
    /// It cannot be made or read or written.
    #[error(
        "cannot use the store directory {path}: {cause}; make it a directory that this user may read and \
         write, or name another as `store.path`"
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system says. Not a source: the message is told whole, with its way out at the end.
        cause: io::Error,
    },
    /// Another process has it.
    #[error(
        "the store directory {path} is in use by process {holder}; stop that one first, or give each \
         gateway a directory of its own"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, as far as it is known.
        holder: String,
    },
    /// An older or newer version has written it.
    #[error(
        "the store directory {path} has format {format}, and this version requires format {FORMAT}; run the \
         version that wrote it until its keys have expired and then move the directory away, or move it away now \
         to start without its keys: keys that were used before can then execute again"
    )]
    OtherFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// It is not as a store leaves it.
    #[error(
        "the store directory {path} is damaged: {what}; restore it from a backup, or move it away to start \
         without its keys"
    )]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Identity {
    format: u32,
    engine: String,
    secret: String,
}

/// The part of an identity that is the same in all formats.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

impl StoreDir {
    /// Takes the directory at `path`, which is made if there is none.
    pub(super) fn take(path: &Path) -> Result<Self, StoreDirError> {
        let path = path.to_owned();
        let io = |cause| StoreDirError::Io {
            path: path.clone(),
            cause,
        };
        // Stored responses can contain secrets, so only the owner has access.
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
                        what: "it has records and no `identity`".into(),
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

    /// The secret that keys its names.
    pub(super) fn secret(&self) -> Secret {
        self.secret
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the engine's files are.
    pub(super) fn records(&self) -> PathBuf {
        self.path.join("records")
    }
}

/// Takes the lock, and writes into it who has it.
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
    if let Ok(Format { format }) = serde_json::from_slice(bytes)
        && format != FORMAT
    {
        let path = path.to_owned();
        return Err(StoreDirError::OtherFormat { path, format });
    }
    let identity: Identity = serde_json::from_slice(bytes)
        .map_err(|error| damaged(format!("its `identity` cannot be read ({error})")))?;
    if identity.engine != ENGINE {
        return Err(damaged(format!(
            "its `identity` names the engine `{}`",
            identity.engine
        )));
    }
    let mut secret = [0; 32];
    match blake3::Hash::from_hex(&identity.secret) {
        Ok(bytes) => secret.copy_from_slice(bytes.as_bytes()),
        Err(_) => return Err(damaged("its `identity` holds no secret".into())),
    }
    Ok(Secret::from_bytes(secret))
}

/// Writes the identity so that it is there whole or not at all.
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

/// Puts a file in the place of another, so that after a power cut there is the one or the other.
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
        // Half a file is of no use, and on a full disk it is in the way.
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
        StoreDir::take(path).unwrap_err().to_string()
    }

    #[test]
    fn a_secret_is_made_once_and_kept() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("deep/store");
        let first = StoreDir::take(&path).unwrap().secret();
        let second = StoreDir::take(&path).unwrap().secret();
        assert_eq!(first.as_bytes(), second.as_bytes());
        let mode = |path: &Path| MetadataExt::mode(&fs::metadata(path).unwrap()) & 0o777;
        assert_eq!(mode(&path.join("identity")), 0o600);
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_directory_is_one_process_s_at_a_time() {
        let dir = TempDir::new().unwrap();
        let held = StoreDir::take(dir.path()).unwrap();
        let message = error(dir.path());
        let us = format!("in use by process {}", std::process::id());
        assert!(message.contains(&us), "{message}");
        drop(held);
        StoreDir::take(dir.path()).unwrap();
    }

    #[test]
    fn what_is_not_as_a_store_leaves_it_is_refused_with_a_way_out() {
        let dir = TempDir::new().unwrap();
        drop(StoreDir::take(dir.path()).unwrap());
        let identity = dir.path().join("identity");
        let text = fs::read_to_string(&identity).unwrap();
        for (content, says) in [
            (
                text.replace("\"format\": 2", "\"format\": 3"),
                "has format 3, and this version requires format 2; run the version that wrote it",
            ),
            (
                text.replace("\"format\": 2", "\"format\": 1"),
                "has format 1, and this version requires format 2; run the version that wrote it",
            ),
            (
                r#"{ "format": 1 }"#.into(),
                "has format 1, and this version requires format 2; run the version that wrote it",
            ),
            (
                text.replace("fjall-3", "fjall-9"),
                "names the engine `fjall-9`",
            ),
            (text[..text.len() / 2].to_owned(), "cannot be read"),
            (String::new(), "cannot be read"),
            (
                text.replace("\"secret\": \"", "\"secret\": \"zz"),
                "holds no secret",
            ),
        ] {
            fs::write(&identity, content).unwrap();
            let message = error(dir.path());
            assert!(message.contains(says), "{message}");
            assert!(message.contains("move"), "{message}");
        }
        fs::remove_file(&identity).unwrap();
        fs::create_dir(dir.path().join("records")).unwrap();
        assert!(error(dir.path()).contains("it has records and no `identity`"));
    }

    #[test]
    fn a_place_that_cannot_be_a_directory_is_named() {
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
