//! Fake wall clocks for child processes, with libfaketime.
//!
//! Only the wall clock moves. Monotonic clocks and timers are unaffected: if a server's clock moves by an hour, its
//! keys expire and nothing else changes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

/// Wall clock that is ahead of the real one by an adjustable amount.
pub(crate) struct FakeTime {
    directory: TempDir,
    ahead: Mutex<Duration>,
}

impl FakeTime {
    /// Creates a clock that shows the real time.
    pub(crate) fn new() -> Self {
        let time = Self {
            directory: tempfile::tempdir().expect("a directory"),
            ahead: Mutex::default(),
        };
        time.advance(Duration::ZERO);
        time
    }

    /// Moves the clock ahead for all processes that use it. They see it immediately, because libfaketime reads the file
    /// at each query.
    pub(crate) fn advance(&self, by: Duration) {
        let mut ahead = self.ahead.lock();
        *ahead += by;
        // The rename is atomic: a partly written number would be another time.
        let draft = self.directory.path().join("draft");
        fs::write(&draft, offset('+', *ahead)).expect("a file");
        fs::rename(&draft, self.file()).expect("a file");
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("time")
    }

    pub(super) fn apply(&self, command: &mut Command) {
        command
            .envs(preloaded())
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1");
    }
}

/// Makes a command run with its wall clock ahead.
pub(crate) fn shift_clock_ahead(command: &mut Command, ahead: Duration) {
    command.envs(ahead_variables(ahead));
}

/// Makes a command run with its wall clock behind.
pub(crate) fn shift_clock_back(command: &mut Command, behind: Duration) {
    command.envs(variables('-', behind));
}

/// Returns the environment variables that [`shift_clock_ahead`] sets.
pub(crate) fn ahead_variables(ahead: Duration) -> Vec<(&'static str, String)> {
    variables('+', ahead)
}

fn variables(sign: char, by: Duration) -> Vec<(&'static str, String)> {
    let mut variables = preloaded();
    variables.push(("FAKETIME", offset(sign, by)));
    variables
}

fn offset(sign: char, by: Duration) -> String {
    format!("{sign}{}.{:06}", by.as_secs(), by.subsec_micros())
}

/// Returns the environment variables that load libfaketime and limit it to the wall clock.
///
/// The C library is preloaded after it, so that `redis-server` uses the allocator of the C library. Its own allocator,
/// jemalloc, reads the clock when it is first used. If libfaketime allocated through it while looking up the real
/// clock, both would wait for each other.
fn preloaded() -> Vec<(&'static str, String)> {
    let library = library().unwrap_or_else(|| {
        panic!("libfaketime is not installed: it comes with the package `faketime` (or run `make test`)")
    });
    vec![
        ("LD_PRELOAD", format!("{}:libc.so.6", library.display())),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("NO_FAKE_STAT", "1".to_owned()),
    ]
}

fn library() -> Option<PathBuf> {
    let architectures = fs::read_dir("/usr/lib").ok()?.flatten();
    let mut candidates = architectures.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    candidates.find(|candidate| candidate.exists())
}

/// Removes the shared memory files that libfaketime leaves behind when a process is killed.
pub(crate) fn remove_faketime_files(pid: u32) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        // A process that exits normally removes them itself.
        let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
    }
}
