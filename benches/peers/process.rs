//! A child process with its descendants: CPU time, memory and termination.
//!
//! Dropping a [`Process`] sends SIGTERM to the process, so that no process remains after a panic. If the process or a
//! descendant does not exit, it gets SIGKILL.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::BenchResult;

/// Number of clock ticks per second in the times of `/proc`. It is the same on all supported architectures.
const TICKS_PER_SECOND: u32 = 100;

/// How long a process gets to exit after SIGTERM, before it gets SIGKILL.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A running child process. Dropping this value ends the process and its descendants.
pub(crate) struct Process(Child);

/// Some of the fields in `/proc/PID/stat`.
struct Stat {
    parent: i32,
    /// CPU time of all threads of the process, user and system, in clock ticks.
    ticks: u64,
    /// When the process started. This distinguishes it from a later process with the same id.
    started: u64,
}

impl Process {
    /// Starts a program that writes its output to the file `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> BenchResult<Self> {
        let log = File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Ok(Self(child))
    }

    /// Returns the exit status as text, or `None` if the process is still running.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.0.try_wait().ok()??;
        Some(status.to_string())
    }

    /// Returns the CPU time that the process and its descendants have used.
    pub(crate) fn cpu(&self) -> Duration {
        let ticks: u64 = self.process_tree().iter().map(|(_, stat)| stat.ticks).sum();
        Duration::from_secs(ticks) / TICKS_PER_SECOND
    }

    /// Returns the memory of the process and its descendants in KiB. Shared pages are counted once.
    pub(crate) fn memory(&self) -> u64 {
        self.process_tree()
            .iter()
            .map(|(pid, _)| memory(*pid))
            .sum()
    }

    pub(crate) fn signal(&self, name: Signal) {
        signal(self.id(), name);
    }

    fn id(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a process id is positive")
    }

    /// Returns the ids and `/proc` fields of the process and its descendants.
    fn process_tree(&self) -> Vec<(i32, Stat)> {
        let all: Vec<_> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Some((pid, stat(pid)?)))
            .collect();
        let mut process_tree = vec![self.id()];
        let mut visited = 0;
        while let Some(&parent) = process_tree.get(visited) {
            let children = all.iter().filter(|(_, stat)| stat.parent == parent);
            process_tree.extend(children.map(|(pid, _)| *pid));
            visited += 1;
        }
        all.into_iter()
            .filter(|(pid, _)| process_tree.contains(pid))
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let process_tree = self.process_tree();
        signal(self.id(), Signal::TERM);
        let deadline = Instant::now() + TIMEOUT;
        while self.ended().is_none() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        for (pid, then) in process_tree {
            if stat(pid).is_some_and(|now| now.started == then.started) {
                signal(pid, Signal::KILL);
            }
        }
        // The error is ignored, because it means that the process has already been waited for.
        let _ = self.0.wait();
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // The error is ignored, because it means that the process has already ended.
        let _ = kill_process(pid, signal);
    }
}

fn stat(pid: i32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields are parsed from the last `)` on, because the process name in parentheses can contain any character.
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        ticks: number(11)? + number(12)?,
        started: number(19)?,
    })
}

/// Returns the proportional set size of a process in KiB. If the kernel does not provide this size, returns the
/// resident set size.
fn memory(pid: i32) -> u64 {
    let field = |file: &str, name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    field("smaps_rollup", "Pss:")
        .or_else(|| field("status", "VmRSS:"))
        .unwrap_or(0)
}
