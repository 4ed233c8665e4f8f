//! What the engine takes on trust, looked at before it does.

use std::fs;
use std::io;
use std::path::Path;

use super::Result;
use crate::idempotency::StoreError;

/// Our five, and the one in which the engine keeps their names.
const KEYSPACES: usize = 6;

/// How many journals there are: one, unless the process died just after another was begun.
pub(super) fn journals(path: &Path) -> Result<usize> {
    let mut journals = 0;
    for entry in fs::read_dir(path).map_err(StoreError::new)? {
        let path = entry.map_err(StoreError::new)?.path();
        journals += usize::from(path.extension().is_some_and(|end| end == "jnl"));
    }
    Ok(journals)
}

/// Whether all keyspaces are there, and the list of tables of each is what was written: what the engine
/// takes on trust. A keyspace without its `current` is to it one that was never finished, which it deletes
/// with all it holds; and of a list it writes a checksum that it does not look at.
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

/// Whether a keyspace's list of tables is what was written. `current` has its number, its checksum and the
/// kind of that, 0.
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
