//! Wall clocks that tests move, by way of libfaketime.
//!
//! Only the wall clock is moved. Time that is measured goes on as ever, and so do timers: a server whose
//! clock was moved by an hour has its keys expire and nothing else.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;

/// A clock that is ahead of the real one by as much as was asked for.
pub(crate) struct FakeTime {
    directory: TempDir,
    ahead: Mutex<Duration>,
}

impl FakeTime {
    /// A clock that is right.
    pub(crate) fn new() -> Self {
        let time = Self {
            directory: tempfile::tempdir().expect("a directory"),
            ahead: Mutex::default(),
        };
        time.advance(Duration::ZERO);
        time
    }

    /// Moves it ahead, for all that have it and at once: they read it each time they ask what time it is.
    pub(crate) fn advance(&self, by: Duration) {
        let mut ahead = self.ahead.lock();
        *ahead += by;
        // Put in place whole: half a number is another time.
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

/// Has a command run with its wall clock ahead by so much.
pub(crate) fn shifted(command: &mut Command, ahead: Duration) {
    command.envs(ahead_variables(ahead));
}

/// Has a command run with its wall clock behind by so much.
pub(crate) fn shifted_back(command: &mut Command, behind: Duration) {
    command.envs(variables('-', behind));
}

/// What [`shifted`] sets, for who takes variables and not commands.
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

/// The library, and what it must leave alone.
///
/// The C library comes right behind it and so lends its allocator to `redis-server`, whose own one asks for
/// the time when it is first used. Used first by libfaketime while that looks for the real clock, it
/// would ask libfaketime, and neither would ever be ready.
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

/// Takes away what libfaketime leaves of a process that was killed.
pub(crate) fn sweep(pid: u32) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        // There is none if it ended by itself.
        let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
    }
}
