//! Rewrites and syncs the files of the database after a failed sync.
//!
//! After a failed `fsync`, the kernel can mark pages as clean although they never reached the disk. fjall still reads
//! them from the page cache, but after a power failure they are missing, and with them all later journal entries.
//! Therefore all files except tables are rewritten in place and synced before the database is reopened. fjall syncs a
//! table file before it adds it to the table list, and never changes it.
//!
//! A new journal and new table files would need disk space for a copy, which a full disk does not have.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Bytes read and written at a time.
const CHUNK: usize = 1 << 20;

/// Except table files.
pub(in super::super) fn resync(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            rewrite(&entry.path())?;
        } else if entry.file_name() != "tables" {
            resync(&entry.path())?;
        }
    }
    File::open(path)?.sync_all()
}

/// Up to the last non-zero byte. The zeros after it are space that fjall allocated for the journal and has not used
/// yet.
fn rewrite(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut chunk = vec![0; CHUNK];
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = (end - 1) / CHUNK as u64 * CHUNK as u64;
        let read = read_chunk(&file, &mut chunk, start, end)?;
        match read.iter().rposition(|&byte| byte != 0) {
            Some(last) => {
                end = start + last as u64 + 1;
                break;
            }
            None => end = start,
        }
    }
    let mut at = 0;
    while at < end {
        let read = read_chunk(&file, &mut chunk, at, end)?;
        file.write_all_at(read, at)?;
        at += read.len() as u64;
    }
    file.sync_all()
}

/// At most [`CHUNK`] bytes.
fn read_chunk<'a>(file: &File, chunk: &'a mut [u8], start: u64, end: u64) -> io::Result<&'a [u8]> {
    let size = usize::try_from(end - start).map_or(CHUNK, |size| size.min(CHUNK));
    file.read_exact_at(&mut chunk[..size], start)?;
    Ok(&chunk[..size])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::time::{Duration, SystemTime};

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn all_files_except_tables_are_rewritten_in_place_without_changes() {
        let dir = TempDir::new().unwrap();
        let tables = dir.path().join("keyspaces/1/tables");
        fs::create_dir_all(&tables).unwrap();
        let mut journal = vec![7; 3 * CHUNK + 5];
        journal[CHUNK..2 * CHUNK].fill(0);
        let files = [
            (dir.path().join("1.jnl"), journal, true),
            (dir.path().join("keyspaces/1/current"), vec![1; 25], true),
            (dir.path().join("empty"), Vec::new(), false),
            (tables.join("9"), vec![2; 100], false),
        ];
        let old = SystemTime::now() - Duration::from_hours(1);
        for (path, content, _) in &files {
            fs::write(path, content).unwrap();
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.set_modified(old).unwrap();
        }
        // Extends the journal by space that is allocated but not used.
        let journal = OpenOptions::new().write(true).open(&files[0].0).unwrap();
        journal.set_len(64 << 20).unwrap();
        journal.set_modified(old).unwrap();
        let inode = fs::metadata(&files[0].0).unwrap().ino();

        resync(dir.path()).unwrap();
        for (path, content, rewritten) in &files {
            let metadata = fs::metadata(path).unwrap();
            assert!(fs::read(path).unwrap().starts_with(content));
            let name = path.display();
            assert_eq!(metadata.modified().unwrap() > old, *rewritten, "{name}");
        }
        let journal = fs::metadata(&files[0].0).unwrap();
        assert_eq!((journal.ino(), journal.len()), (inode, 64 << 20));
        assert!(
            journal.blocks() * 512 < 4 << 20,
            "the unused space has no blocks"
        );
    }
}
