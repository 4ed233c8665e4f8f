//! `serve --watch`: reloads the configuration when its file changes.
//!
//! The directory is watched, not the file, because editors and Kubernetes replace the file. Kubernetes replaces a
//! symbolic link to a directory, so every event counts. A reload follows only if the content has changed.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Context as _;
use notify::{RecursiveMode, Watcher as _};

use crate::config;
use crate::server::reload::Reloader;

/// Time from an event to the reload, because a file is often written in several steps.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) fn start(path: &Path, reloader: Arc<Reloader>) -> anyhow::Result<()> {
    let (events, received) = channel();
    // The file can have changed since it was loaded.
    let first_check = events.clone();
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
    first_check.send(())?;
    drop(first_check);
    let path = path.to_owned();
    let mut seen = Some(reloader.status().hash);
    std::thread::Builder::new()
        .name("tidegate-watch".into())
        .spawn(move || {
            let _watcher = watcher;
            while received.recv().is_ok() {
                std::thread::sleep(PAUSE);
                received.try_iter().for_each(drop);
                let file = config::read_file(&path).ok();
                let found = file.map(|(_, text)| config::hash(&text));
                if found != seen {
                    seen = found;
                    // The reloader logs an error.
                    let _ = reloader.reload("--watch");
                }
            }
        })?;
    Ok(())
}
