//! A small file system that tests fill.
//!
//! It is a tmpfs, mounted for the test. That takes the right to mount: root has it, and so has everyone under
//! `unshare --user --map-root-user --mount`. Without it the tests fail with that message; they are not skipped.
//! Included by path, like `redis.rs`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A file system of 24 MiB; the store starts with less than one in use.
pub(crate) struct SmallDisk {
    mountpoint: TempDir,
}

impl SmallDisk {
    pub(crate) fn mount() -> Self {
        let mountpoint = TempDir::new().unwrap();
        let path = mountpoint.path().to_str().unwrap();
        run_mount(&["-t", "tmpfs", "-o", "size=24m", "tidegate-test", path]);
        Self { mountpoint }
    }

    pub(crate) fn path(&self) -> &Path {
        self.mountpoint.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Fills the file system.
    pub(crate) fn fill(&self) {
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .append(true)
            .open(self.filler())
            .unwrap();
        for size in [1 << 20, 4 << 10, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }

    /// Frees `bytes` of a filled file system.
    pub(crate) fn leave(&self, bytes: u64) {
        let filler = OpenOptions::new().write(true).open(self.filler()).unwrap();
        let length = filler.metadata().unwrap().len();
        filler.set_len(length.saturating_sub(bytes)).unwrap();
    }

    /// Frees what [`fill`](Self::fill) took.
    pub(crate) fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    pub(crate) fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        run_mount(&["-o", &options, self.path().to_str().unwrap()]);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a gateway that a failed test has left may still have files open.
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.path().display());
        }
    }
}

fn run_mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "these tests need a small file system of their own, and mount {arguments:?} failed: {}\nRun them as root, \
         or under `unshare --user --map-root-user --mount`.",
        String::from_utf8_lossy(&output.stderr)
    );
}
