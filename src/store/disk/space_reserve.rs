//! Reserved disk space for the responses of executions in flight.
//!
//! The file `reserve` has the size of one batch plus the largest response. Claims are admitted only while it exists.
//! When a write fails, the writer thread deletes it, so that executions in flight can still record their responses on a
//! full disk, and creates it again when the disk has space for it and another batch. A check of the free space would
//! not be enough, because other programs can use it before a response is recorded.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use rustix::io::Errno;

/// In bytes, if the file system does not support `fallocate`.
const CHUNK: usize = 1 << 20;

pub(super) struct Reserve {
    path: PathBuf,
    /// In bytes. 0 if there is no file.
    held: u64,
}

impl Reserve {
    /// Does not create the file.
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            path: dir.join("reserve"),
            held: 0,
        }
    }

    pub(super) fn holds(&self, bytes: u64) -> bool {
        self.held >= bytes
    }

    /// Fails unless `more` bytes stay free on the disk. After an error, no space is reserved.
    pub(super) fn hold(&mut self, bytes: u64, more: u64) -> io::Result<()> {
        if self.holds(bytes) {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false);
        let held = file.open(&self.path).and_then(|file| {
            check_space(&file, bytes + more)?;
            allocate(&file, bytes + more)?;
            file.set_len(bytes)?;
            file.sync_all()
        });
        match held {
            Ok(()) => self.held = bytes,
            Err(_) => self.release(),
        }
        held
    }

    /// A failure is logged.
    pub(super) fn release(&mut self) {
        self.held = 0;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(
                    %error,
                    path = %self.path.display(),
                    "cannot delete reserve file of the idempotency store, its disk space stays allocated"
                );
            }
            _ => {}
        }
    }
}

/// Without this check, an allocation that fails would fill the disk for a short time, and writes of other programs
/// would fail.
fn check_space(file: &File, bytes: u64) -> io::Result<()> {
    let space = fstatvfs(file)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let own = file.metadata()?.blocks() * 512;
    // A file system without a size limit, such as an unlimited tmpfs, reports 0 blocks.
    if space.f_blocks > 0 && free.saturating_add(own) < bytes {
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}

/// Allocates disk blocks.
fn allocate(mut file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        allocated => return Ok(allocated?),
    }
    let chunk = vec![0xa5; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        file.write_all(&chunk[..part])?;
        left -= part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_reserve_allocates_disk_blocks_until_it_is_released() {
        let dir = TempDir::new().unwrap();
        let mut reserve = Reserve::new(dir.path());
        assert!(!reserve.holds(1));
        reserve.hold(3 << 20, 1 << 20).unwrap();
        assert!(reserve.holds(3 << 20) && !reserve.holds(4 << 20));
        let file = dir.path().join("reserve");
        // `hold` allocates 4 MiB to check that the additional 1 MiB is free, and then shortens the file to 3 MiB. The
        // file system can round this size up, but the file must occupy less than 4 MiB.
        let allocated = fs::metadata(&file).unwrap().blocks() * 512;
        assert!((3 << 20..4 << 20).contains(&allocated), "{allocated}");
        reserve.hold(4 << 20, 0).unwrap();
        assert!(fs::metadata(&file).unwrap().blocks() * 512 >= 4 << 20);
        reserve.release();
        assert!(!file.exists() && !reserve.holds(1));
        reserve.release();
    }

    #[test]
    fn a_reserve_that_does_not_fit_on_the_disk_leaves_no_file() {
        let dir = TempDir::new().unwrap();
        let mut reserve = Reserve::new(dir.path());
        assert!(reserve.hold(1, 1 << 60).is_err());
        assert!(!reserve.holds(1));
        assert!(!dir.path().join("reserve").exists());
    }
}
