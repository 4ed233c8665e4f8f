//! `serve --watch`: reloads the configuration when its file changes.
//!
//! The directory is watched, not the file, because editors and Kubernetes replace the file. Kubernetes replaces a
//! symbolic link to a directory, so every event counts. A reload follows only if the content has changed.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;
use notify::{RecursiveMode, Watcher as _};

use crate::server::reload::Reloader;

/// A reload waits until no event has followed for this time, because a file is often written in several steps.
const QUIET: Duration = Duration::from_millis(500);

/// Starts a thread that reloads the configuration when the file at `path` changes.
pub(super) fn start(path: &Path, reloader: Arc<Reloader>) -> anyhow::Result<()> {
    let (events, received) = channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        match event {
            Ok(event) if event.kind.is_access() => return,
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot watch the directory of the configuration"),
        }
        // An error means that the thread has ended.
        let _ = events.send(());
    })?;
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    };
    let started = watcher.watch(directory, RecursiveMode::NonRecursive);
    started.with_context(|| format!("cannot watch the directory {}", directory.display()))?;
    let path = path.to_owned();
    let mut seen = std::fs::read(&path).ok();
    std::thread::Builder::new()
        .name("tidegate-watch".into())
        .spawn(move || {
            let _watcher = watcher;
            while wait_for_change(&received) {
                let found = std::fs::read(&path).ok();
                if found != seen {
                    seen = found;
                    // The reloader logs an error.
                    let _ = reloader.reload("--watch");
                }
            }
        })?;
    Ok(())
}

/// Waits for an event and the end of those that follow it. Returns `false` if no event can follow.
fn wait_for_change(events: &Receiver<()>) -> bool {
    if events.recv().is_err() {
        return false;
    }
    while events.recv_timeout(QUIET) != Err(RecvTimeoutError::Timeout) {}
    true
}
