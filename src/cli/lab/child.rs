//! The command of a lab run, and the end of all processes that it started.
//!
//! The lab is a child subreaper (`PR_SET_CHILD_SUBREAPER`): a process whose parent has ended becomes a child of the
//! lab. So every process that the command starts remains a descendant of the lab, also after `setsid` and a double
//! fork, and `/proc` shows it. A process group would be simpler, but a process can leave it. If SIGKILL ends the lab
//! itself, the command is not ended.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait,
};
use tokio::time::{Instant, sleep};

use crate::cli::serve::Signals;

const TERMINATION_GRACE: Duration = Duration::from_secs(2);

/// How long the lab tries to kill processes. A process in an uninterruptible system call does not end before the call.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientCommand<'a> {
    /// Not empty.
    pub(super) words: &'a [OsString],
    /// Without a trailing slash.
    pub(super) url: &'a str,
    pub(super) ca_file: Option<&'a Path>,
}

/// Its processes are killed when this value is dropped.
#[derive(Debug)]
pub(super) struct ClientProcess {
    pid: Pid,
    status: Option<WaitStatus>,
    /// Children that the lab had before it started the command. They belong to the program that executed the lab.
    inherited: HashSet<i32>,
}

impl ClientCommand<'_> {
    /// Standard output and standard error of the command go to the standard error of the lab.
    pub(super) fn start(&self) -> anyhow::Result<ClientProcess> {
        let own = getpid();
        set_child_subreaper(Some(own)).context("cannot become a child subreaper")?;
        let inherited = running_descendants(&HashSet::new())?;
        let mut command = self.prepare();
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        command.stdout(stderr);
        let child = command.spawn().map_err(|error| self.explain(&error))?;
        Ok(ClientProcess {
            pid: Pid::from_child(&child),
            status: None,
            inherited: inherited
                .into_iter()
                .map(|pid| pid.as_raw_nonzero().get())
                .collect(),
        })
    }

    fn prepare(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command
            .args(self.words[1..].iter().map(|word| match word.to_str() {
                Some(text) => text.replace("{url}", self.url).into(),
                None => word.clone(),
            }))
            .env("TIDEGATE_URL", self.url)
            // Ctrl-C reaches only the lab, which then ends the command.
            .process_group(0);
        match self.ca_file {
            Some(path) => command.env("TIDEGATE_CA_FILE", path),
            None => command.env_remove("TIDEGATE_CA_FILE"),
        };
        // The command is not in the foreground of the terminal, so reading from the terminal would suspend it.
        if io::IsTerminal::is_terminal(&io::stdin()) {
            command.stdin(Stdio::null());
        }
        command
    }

    fn explain(&self, error: &io::Error) -> anyhow::Error {
        let program = &self.words[0];
        let path = Path::new(program);
        let help = match error.kind() {
            io::ErrorKind::NotFound if path.is_file() => {
                "the interpreter in the first line of the file does not exist"
            }
            io::ErrorKind::NotFound if path.components().count() > 1 => {
                "the file does not exist; check the path"
            }
            io::ErrorKind::NotFound if program.to_string_lossy().contains(' ') => {
                "no program has this name; write each argument separately, or use `sh -c '…'`"
            }
            io::ErrorKind::NotFound => "no directory in PATH contains it; check the spelling",
            io::ErrorKind::PermissionDenied if path.is_dir() => {
                "it is a directory; name a program in it"
            }
            io::ErrorKind::PermissionDenied => {
                "the file is not executable; `chmod +x` makes it executable"
            }
            _ => return anyhow::anyhow!("cannot start the command `{}`: {error}", path.display()),
        };
        anyhow::anyhow!("cannot start the command `{}`: {help}", path.display())
    }
}

impl ClientProcess {
    /// Also removes other ended processes from the process table.
    pub(super) fn status(&mut self) -> Option<WaitStatus> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid {
                self.status = Some(status);
            }
        }
        self.status
    }

    /// Ends all processes that the command started: with SIGTERM, and after [`TERMINATION_GRACE`] or a signal to the
    /// lab with SIGKILL. Returns the number of processes that were running.
    pub(super) async fn end(&mut self, signals: &mut Signals) -> anyhow::Result<usize> {
        let running = self.running()?;
        for pid in &running {
            signal(*pid, Signal::TERM);
        }
        let deadline = Instant::now() + TERMINATION_GRACE;
        while Instant::now() < deadline && !self.running()?.is_empty() {
            tokio::select! {
                () = sleep(POLL_INTERVAL) => {}
                _ = signals.next() => break,
            }
        }
        self.kill()?;
        Ok(running.len())
    }

    /// Also kills the processes that these start meanwhile.
    fn kill(&mut self) -> anyhow::Result<()> {
        let deadline = std::time::Instant::now() + KILL_TIMEOUT;
        loop {
            let running = self.running()?;
            if running.is_empty() {
                return Ok(());
            }
            if std::time::Instant::now() > deadline {
                let pids: Vec<_> = running.iter().map(ToString::to_string).collect();
                anyhow::bail!(
                    "processes of the command cannot be killed: {}",
                    pids.join(", ")
                );
            }
            for pid in running {
                signal(pid, Signal::KILL);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn running(&mut self) -> anyhow::Result<Vec<Pid>> {
        self.status();
        running_descendants(&self.inherited)
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("error: {error:#}");
        }
    }
}

/// An error is ignored: the process has ended, or it has changed its user, and [`ClientProcess::kill`] reports
/// processes that remain.
fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// Descendants of this process that have not ended, without `excluded` children and their descendants.
fn running_descendants(excluded: &HashSet<i32>) -> anyhow::Result<Vec<Pid>> {
    let processes = processes().context("cannot read the list of processes in /proc")?;
    let mut family = HashSet::from([getpid().as_raw_nonzero().get()]);
    loop {
        let known = family.len();
        let children = processes
            .iter()
            .filter(|it| !excluded.contains(&it.pid) && family.contains(&it.parent));
        let children: Vec<_> = children.map(|it| it.pid).collect();
        family.extend(children);
        if family.len() == known {
            break;
        }
    }
    let running = processes
        .iter()
        .filter(|it| !it.has_ended && family.contains(&it.parent) && family.contains(&it.pid));
    Ok(running.filter_map(|it| Pid::from_raw(it.pid)).collect())
}

struct ProcessEntry {
    pid: i32,
    parent: i32,
    /// A zombie: its parent has not read its status.
    has_ended: bool,
}

fn processes() -> io::Result<Vec<ProcessEntry>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // A process that has ended meanwhile has no file.
        if let Ok(stat) = std::fs::read(entry.path().join("stat")) {
            processes.extend(parse_stat(pid, &String::from_utf8_lossy(&stat)));
        }
    }
    Ok(processes)
}

/// Reads the fields `state` and `ppid` of `/proc/PID/stat`. The field before them is the name of the program, which can
/// contain spaces and parentheses.
fn parse_stat(pid: i32, stat: &str) -> Option<ProcessEntry> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    Some(ProcessEntry {
        pid,
        parent: fields.next()?.parse().ok()?,
        has_ended: matches!(state, "Z" | "X"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_and_spaces_is_not_confused_with_fields() {
        let entry = parse_stat(7, "7 (a) S 1 (b) Z 42 7 7 0 -1").unwrap();
        assert_eq!((entry.pid, entry.parent), (7, 42));
        assert!(entry.has_ended);
        assert!(parse_stat(7, "7 (a").is_none());
    }

    #[test]
    fn the_url_replaces_its_placeholder_in_arguments_only() {
        let words: Vec<OsString> = ["{url}/run", "--to={url}/x", "{url}"]
            .map(Into::into)
            .into();
        let command = ClientCommand {
            words: &words,
            url: "http://127.0.0.1:1",
            ca_file: None,
        };
        let command = command.prepare();
        assert_eq!(command.get_program(), "{url}/run");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(
            arguments,
            ["--to=http://127.0.0.1:1/x", "http://127.0.0.1:1"]
        );
    }
}
