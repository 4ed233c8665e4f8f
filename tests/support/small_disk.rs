//! Small file system that tests can fill completely.
//!
//! The file system is a tmpfs that is mounted for one test. Mounting requires root. Other users must run the tests
//! under `unshare --user --map-root-user --mount`. If the mount fails, the tests fail with a message that names this
//! command.
//!
//! The unit tests of the disk store include this file by path.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// File system of 24 MiB, which is unmounted when this value is dropped. A new disk store uses less than 1 MiB of it.
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

    /// Writes a file until the file system has no free byte.
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

    /// Frees `bytes` of a file system that [`fill`](Self::fill) has filled.
    pub(crate) fn free(&self, bytes: u64) {
        let filler = OpenOptions::new().write(true).open(self.filler()).unwrap();
        let length = filler.metadata().unwrap().len();
        filler.set_len(length.saturating_sub(bytes)).unwrap();
    }

    /// Deletes the file that [`fill`](Self::fill) wrote.
    pub(crate) fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    /// Mounts the file system again with the mount option `how`.
    pub(crate) fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        run_mount(&["-o", &options, self.path().to_str().unwrap()]);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The unmount is lazy, because a gateway that a failed test left running can still have open files.
        let unmounted = Command::new("umount").arg("-l").arg(self.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!(
                "cannot unmount {}, unmount it manually",
                self.path().display()
            );
        }
    }
}

fn run_mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "cannot mount a small file system for these tests: mount {arguments:?} failed: {}\nRun these tests as root, \
         or under `unshare --user --map-root-user --mount`.",
        String::from_utf8_lossy(&output.stderr)
    );
}
