//! Fake wall clocks for child processes, made with libfaketime.
//!
//! Only the wall clock of a process is changed. Its monotonic clock and its timers are unaffected. If the clock of a
//! Redis server moves ahead by an hour, Redis keys expire, but no timeout does.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

/// Fake wall clock, which is ahead of the real clock by an adjustable amount.
pub(crate) struct FakeTime {
    directory: TempDir,
    ahead: Mutex<Duration>,
}

impl FakeTime {
    /// Creates a fake clock that shows the real time until the first call of [`advance`](Self::advance).
    pub(crate) fn new() -> Self {
        let time = Self {
            directory: tempfile::tempdir().expect("the directory is created"),
            ahead: Mutex::default(),
        };
        time.advance(Duration::ZERO);
        time
    }

    /// Moves the clock ahead for all processes that use it. The processes see the change immediately, because
    /// libfaketime reads the file whenever a process reads the clock.
    pub(crate) fn advance(&self, by: Duration) {
        let mut ahead = self.ahead.lock();
        *ahead += by;
        // The file is replaced by a rename, which is atomic. A process that read a partly written number would get a
        // wrong time.
        let draft = self.directory.path().join("draft");
        fs::write(&draft, offset('+', *ahead)).expect("the file is written");
        fs::rename(&draft, self.file()).expect("the file is written");
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

/// Makes a command run with its wall clock ahead of the real time by `ahead`.
pub(crate) fn shift_clock_ahead(command: &mut Command, ahead: Duration) {
    command.envs(ahead_variables(ahead));
}

/// Makes a command run with its wall clock behind the real time by `behind`.
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
/// The C library is preloaded after libfaketime, so that `redis-server` uses the allocator of the C library instead of
/// jemalloc. If the server used jemalloc, it would deadlock: jemalloc reads the clock when it initialises itself, and
/// libfaketime then allocates memory to look up the real clock. But jemalloc cannot allocate memory yet.
fn preloaded() -> Vec<(&'static str, String)> {
    let library = library().unwrap_or_else(|| {
        panic!("libfaketime is not installed. Install the package `faketime`, or run `make test`")
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

/// Removes the shared memory files of libfaketime, which remain when the process `pid` is killed.
pub(crate) fn remove_faketime_files(pid: u32) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        // An error is ignored: a process that exits normally has already removed its files.
        let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
    }
}
