//! Checks of files that fjall does not verify itself, before it opens them.
//!
//! fjall deletes a keyspace whose file `current` is missing, and does not verify the checksum of a keyspace's table
//! list. In both cases, records of used keys would be missing, and their requests could be executed again. Table files
//! need no check: fjall verifies each block that it reads.
//!
//! The layout of these files is private to fjall and its crate lsm-tree. Therefore `Cargo.toml` requires one exact
//! version of fjall, and with it lsm-tree 3.1. Before an update, check that the layout has not changed. A checksum file
//! of our own would have to be written whenever fjall changes a table list.

use std::fs;
use std::io;
use std::path::Path;

use super::EngineResult;
use crate::idempotency::StoreError;

/// Five of the disk store, and one in which fjall stores their names.
const KEYSPACES: usize = 6;

/// There are several only if the process died shortly after fjall started a new one.
pub(super) fn journals(path: &Path) -> EngineResult<usize> {
    let mut journals = 0;
    for entry in fs::read_dir(path).map_err(StoreError::new)? {
        let path = entry.map_err(StoreError::new)?.path();
        journals += usize::from(path.extension().is_some_and(|end| end == "jnl"));
    }
    Ok(journals)
}

pub(super) fn check_keyspaces(path: &Path) -> EngineResult<()> {
    let mut found = 0;
    for entry in fs::read_dir(path).map_err(StoreError::new)? {
        let keyspace = entry.map_err(StoreError::new)?.path();
        if keyspace.is_dir() {
            check_tables(&keyspace).map_err(|error| {
                StoreError::new(format_args!("{}: {error}", keyspace.display()))
            })?;
            found += 1;
        }
    }
    if found < KEYSPACES {
        return Err(StoreError::new(format_args!(
            "the storage engine has only {found} of {KEYSPACES} keyspaces"
        )));
    }
    Ok(())
}

/// The file `current` has 25 bytes: 8 for the number of the list, 16 for its xxh3 checksum, and 1 for the type of the
/// checksum, which must be 0.
fn check_tables(keyspace: &Path) -> io::Result<()> {
    let current = fs::read(keyspace.join("current"))?;
    let Ok(current): Result<[u8; 25], _> = current.try_into() else {
        return Err(io::Error::other(
            "the file `current` does not have 25 bytes",
        ));
    };
    let (number, sum) = current.split_at(8);
    let number = u64::from_le_bytes(number.try_into().unwrap_or_default());
    let list = fs::read(keyspace.join(format!("v{number}")))?;
    let actual = xxhash_rust::xxh3::xxh3_128(&list).to_le_bytes();
    if sum[..16] != actual || sum[16] != 0 {
        return Err(io::Error::other(
            "the checksum of the table list does not match",
        ));
    }
    Ok(())
}
