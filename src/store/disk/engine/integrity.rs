//! Checks of files that fjall does not verify itself, made before fjall opens them.
//!
//! fjall deletes a keyspace whose file `current` is missing, and does not verify the checksum of the table list of a
//! keyspace. In both cases, used keys would look like new ones. The layout of these files is private to fjall and its
//! crate lsm-tree. `Cargo.toml` therefore requires one exact version of fjall, and with it lsm-tree 3.1. Compare the
//! layout before an update. A separate checksum file would have to be written whenever fjall changes a table list.
//!
//! Tables are not checked here: fjall verifies each block that it reads.

use std::fs;
use std::io;
use std::path::Path;

use super::EngineResult;
use crate::idempotency::StoreError;

/// Number of keyspaces: five of the store, and one in which fjall stores their names.
const KEYSPACES: usize = 6;

/// Counts the journals. There is more than one only if the process died shortly after it started a new journal.
pub(super) fn journals(path: &Path) -> EngineResult<usize> {
    let mut journals = 0;
    for entry in fs::read_dir(path).map_err(StoreError::new)? {
        let path = entry.map_err(StoreError::new)?.path();
        journals += usize::from(path.extension().is_some_and(|end| end == "jnl"));
    }
    Ok(journals)
}

/// Fails if a keyspace is missing or its table list is damaged.
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
            "found only {found} of {KEYSPACES} keyspaces"
        )));
    }
    Ok(())
}

/// Fails if the table list of a keyspace is damaged. The file `current` has 25 bytes: the number of the list (8), its
/// xxh3 checksum (16) and the type of the checksum (1), which is 0.
fn check_tables(keyspace: &Path) -> io::Result<()> {
    let current = fs::read(keyspace.join("current"))?;
    let Ok(current): Result<[u8; 25], _> = current.try_into() else {
        return Err(io::Error::other("the file `current` is damaged"));
    };
    let (number, sum) = current.split_at(8);
    let number = u64::from_le_bytes(number.try_into().unwrap_or_default());
    let list = fs::read(keyspace.join(format!("v{number}")))?;
    let actual = xxhash_rust::xxh3::xxh3_128(&list).to_le_bytes();
    if sum[..16] != actual || sum[16] != 0 {
        return Err(io::Error::other("the table list is damaged"));
    }
    Ok(())
}
