//! A started program and all it starts in turn: what it uses, and its end.
//!
//! Ended by process id, when dropped, so a panic leaves nothing behind; what it had started is ended
//! too if it outlives it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;

/// Clock ticks in a second, as `/proc` counts them on every architecture the peers run on.
const TICKS_PER_SECOND: u32 = 100;

/// How long a program has to end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running program.
pub(crate) struct Process(Child);

/// What `/proc/PID/stat` tells.
struct Stat {
    parent: i32,
    /// Of user and system time, all threads together.
    ticks: u64,
    /// When it started, which tells it from a later process of the same id.
    started: u64,
}

impl Process {
    /// Starts a program that writes whatever it has to say to `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Outcome<Self> {
        let log = File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Ok(Self(child))
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.0.try_wait().ok()??;
        Some(status.to_string())
    }

    /// CPU time used so far by it and all that descends from it.
    pub(crate) fn cpu(&self) -> Duration {
        let ticks: u64 = self.family().iter().map(|(_, stat)| stat.ticks).sum();
        Duration::from_secs(ticks) / TICKS_PER_SECOND
    }

    /// Memory taken by it and all that descends from it, in KiB, with what they share counted once.
    pub(crate) fn memory(&self) -> u64 {
        self.family().iter().map(|(pid, _)| memory(*pid)).sum()
    }

    fn id(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a process id is positive")
    }

    /// It and all that descends from it.
    fn family(&self) -> Vec<(i32, Stat)> {
        let all: Vec<_> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Some((pid, stat(pid)?)))
            .collect();
        let mut family = vec![self.id()];
        let mut asked = 0;
        while let Some(&parent) = family.get(asked) {
            let children = all.iter().filter(|(_, stat)| stat.parent == parent);
            family.extend(children.map(|(pid, _)| *pid));
            asked += 1;
        }
        all.into_iter()
            .filter(|(pid, _)| family.contains(pid))
            .collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let family = self.family();
        signal(self.id(), Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while self.ended().is_none() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        for (pid, then) in family {
            if stat(pid).is_some_and(|now| now.started == then.started) {
                signal(pid, Signal::KILL);
            }
        }
        // An error means that it has been waited for.
        let _ = self.0.wait();
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // An error means that it has ended.
        let _ = kill_process(pid, signal);
    }
}

fn stat(pid: i32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; what follows it is plain.
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        ticks: number(11)? + number(12)?,
        started: number(19)?,
    })
}

/// The proportional share of a process in KiB, or its resident size where the kernel does not tell.
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
