//! Checks the files that fjall does not check itself, before it opens them.
//!
//! fjall deletes a keyspace whose file `current` is missing, and does not verify the checksum of a keyspace's list of
//! tables. Either would turn used keys into new ones. The layout of these files is private to fjall and its lsm-tree, so
//! `Cargo.toml` requires one exact version of fjall, and with it lsm-tree 3.1. Compare the layout before an update. The
//! alternative, a checksum of our own, would have to be written whenever fjall changes a list of tables.
//!
//! Tables are not checked here: fjall verifies each block that it reads.

use std::fs;
use std::io;
use std::path::Path;

use super::Result;
use crate::idempotency::StoreError;

/// The five keyspaces of a store, and the one in which fjall stores their names.
const KEYSPACES: usize = 6;

/// Counts the journals. There is one, unless the process died just after it began another one.
pub(super) fn journals(path: &Path) -> Result<usize> {
    let mut journals = 0;
    for entry in fs::read_dir(path).map_err(StoreError::new)? {
        let path = entry.map_err(StoreError::new)?.path();
        journals += usize::from(path.extension().is_some_and(|end| end == "jnl"));
    }
    Ok(journals)
}

/// Fails if a keyspace is missing or its list of tables is damaged.
pub(super) fn check_keyspaces(path: &Path) -> Result<()> {
    let mut whole = 0;
    for entry in fs::read_dir(path).map_err(StoreError::new)? {
        let keyspace = entry.map_err(StoreError::new)?.path();
        if keyspace.is_dir() {
            check_tables(&keyspace).map_err(|error| {
                StoreError::new(format_args!("{}: {error}", keyspace.display()))
            })?;
            whole += 1;
        }
    }
    if whole < KEYSPACES {
        return Err(StoreError::new(format_args!(
            "of {KEYSPACES} keyspaces {whole} are there"
        )));
    }
    Ok(())
}

/// Fails if the list of tables of a keyspace is damaged. `current` has 25 bytes: the number of the list, its
/// checksum (xxh3, 128 bits) and the kind of the checksum, 0.
fn check_tables(keyspace: &Path) -> io::Result<()> {
    let current = fs::read(keyspace.join("current"))?;
    let Ok(current): std::result::Result<[u8; 25], _> = current.try_into() else {
        return Err(io::Error::other("`current` is damaged"));
    };
    let (number, sum) = current.split_at(8);
    let number = u64::from_le_bytes(number.try_into().unwrap_or_default());
    let list = fs::read(keyspace.join(format!("v{number}")))?;
    let is = xxhash_rust::xxh3::xxh3_128(&list).to_le_bytes();
    if sum[..16] != is || sum[16] != 0 {
        return Err(io::Error::other("the list of tables is damaged"));
    }
    Ok(())
}
