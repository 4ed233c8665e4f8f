//! Damage to the journals of the storage engine after the gateway was killed. Unit tests of the disk store cover damage
//! to all other files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::crash::execution_log::KEY;
use crate::crash::setup::disk_gateway_at;
use crate::support::damage::{Damage, copy, used};
use crate::support::{Process, ProcessBuilder, Upstream, eventually, full};

/// Result of an attempt to start a gateway with a damaged store.
#[derive(Debug, PartialEq, Eq)]
enum StartResult {
    /// The gateway exits and logs the reason.
    Rejected,
    /// The gateway starts, and no request with a used idempotency key is executed again.
    Started,
}

fn journals_in(store: &Path) -> Vec<PathBuf> {
    let mut journals: Vec<PathBuf> = fs::read_dir(store.join("records"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "jnl"))
        .collect();
    journals.sort_by_key(|path| {
        path.file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .parse::<u64>()
            .ok()
    });
    journals
}

/// Kills a gateway shortly after the storage engine has started a new journal. The content of the old journal is then
/// not yet written to table files. Returns the idempotency keys whose requests received a response.
async fn kill_between_journals(setup: &ProcessBuilder, store: &Path) -> Vec<String> {
    let mut keys = Vec::new();
    for attempt in 0..20 {
        let mut process = setup.restart();
        let before = journals_in(store);
        let mut clients = tokio::task::JoinSet::new();
        let count = Arc::new(AtomicUsize::new(0));
        for name in 0..16 {
            let client = process.client();
            let count = Arc::clone(&count);
            clients.spawn(async move {
                let mut completed = Vec::new();
                let Ok(mut connection) = client.try_keep_alive().await else {
                    return completed;
                };
                for number in 0.. {
                    let key = format!("{attempt}-{name}-{number}");
                    let request = client.post("/").header(KEY, &key);
                    match connection.try_send(request).await {
                        Ok(_) => {
                            count.fetch_add(1, Ordering::Relaxed);
                            completed.push(key);
                        }
                        Err(_) => break,
                    }
                }
                completed
            });
        }
        eventually("a new journal is started", async || {
            journals_in(store).last() != before.last()
        })
        .await;
        let before = count.load(Ordering::Relaxed);
        eventually("requests are recorded in it", async || {
            count.load(Ordering::Relaxed) > before + 16
        })
        .await;
        process.kill();
        keys.extend(clients.join_all().await.into_iter().flatten());
        if journals_in(store).len() > 1 {
            return keys;
        }
    }
    panic!("in 20 attempts the engine always deleted the old journal before the kill");
}

/// Starts a gateway and waits until it listens. Returns `None` if it exits with an error that contains the remedy.
async fn try_start(setup: &ProcessBuilder) -> Option<Process> {
    let mut process = setup.start();
    let logged = |part: &str| process.lines().iter().any(|line| line.contains(part));
    eventually("the gateway starts or exits", async || {
        logged("listening") || logged("move it away")
    })
    .await;
    if logged("move it away") {
        assert!(!process.wait_for_exit().success());
        return None;
    }
    Some(process)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_with_a_damaged_older_journal_is_rejected() {
    let upstream = Upstream::with(|received| async move {
        let mut body = received.header(KEY).into_bytes();
        body.resize(60 << 10, b'.');
        full(body)
    });
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let setup = disk_gateway_at(&store, &upstream.url());
    let keys = kill_between_journals(&setup, &store).await;
    let sealed = journals_in(&store).swap_remove(0);
    let end = used(&fs::read(&sealed).unwrap()) as u64;
    let mut results = Vec::new();
    for damage in [
        None,
        Some(Damage::Flip(end - (1 << 20))),
        Some(Damage::Cut(end - (1 << 20))),
    ] {
        let home = TempDir::new().unwrap();
        copy(&store, home.path());
        if let Some(damage) = damage {
            let struck = home
                .path()
                .join("records")
                .join(sealed.file_name().unwrap());
            damage.apply(&struck);
        }
        let setup = disk_gateway_at(home.path(), &upstream.url());
        // After a rejection, the gateway is started once more, as a supervisor would do. The first attempt can have
        // changed the files.
        let Some(process) = try_start(&setup).await else {
            assert!(try_start(&setup).await.is_none(), "{damage:?}");
            results.push(StartResult::Rejected);
            continue;
        };
        let mut connection = process.client().keep_alive().await;
        for key in &keys {
            let response = connection
                .send(process.client().post("/").header(KEY, key))
                .await;
            let replayed = response.header("idempotent-replayed") == "true";
            assert!(
                replayed || response.status == 503,
                "{damage:?}: {key}: {}",
                response.status
            );
        }
        results.push(StartResult::Started);
    }
    assert_eq!(results[0], StartResult::Started);
    assert_eq!(results[1], StartResult::Rejected);
    // Both results are correct for the truncated journal. If the engine wrote the truncated part to table files before
    // the kill, the store is complete and opens. The responses above have shown that no idempotency key is missing.
    assert!([StartResult::Rejected, StartResult::Started].contains(&results[2]));
}
