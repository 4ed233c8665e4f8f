//! Damage to the journals that a killed gateway leaves. The tests of the store have damage to all other files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

use crate::harness::{Process, Upstream, eventually, full};
use crate::ledger::KEY;
use crate::scene::{Scene, kill};

#[path = "../support/damage.rs"]
#[allow(dead_code, reason = "tests of the store use the rest")]
mod files;

use files::{Damage, copy, used};

/// How a gateway starts on a damaged store.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It exits and logs the reason.
    Refused,
    /// It starts, and no used key is taken for a new one.
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

/// A gateway killed just after the engine has begun another journal, while what is in the one before is
/// not in tables yet; the keys that were answered.
async fn killed_between_journals(scene: &Scene, store: &Path) -> Vec<String> {
    let mut keys = Vec::new();
    for attempt in 0..20 {
        let mut process = scene.restart();
        let before = journals_in(store);
        let mut clients = tokio::task::JoinSet::new();
        let count = Arc::new(AtomicUsize::new(0));
        for name in 0..16 {
            let client = process.client();
            let count = Arc::clone(&count);
            clients.spawn(async move {
                let mut answered = Vec::new();
                let Ok(mut connection) = client.try_keep_alive().await else {
                    return answered;
                };
                for number in 0.. {
                    let key = format!("{attempt}-{name}-{number}");
                    let asking = client.post("/").header(KEY, &key);
                    match connection.try_send(asking).await {
                        Ok(_) => {
                            count.fetch_add(1, Ordering::Relaxed);
                            answered.push(key);
                        }
                        Err(_) => break,
                    }
                }
                answered
            });
        }
        eventually("another journal is begun", || {
            journals_in(store).last() != before.last()
        })
        .await;
        let so_far = count.load(Ordering::Relaxed);
        eventually("something is in it", || {
            count.load(Ordering::Relaxed) > so_far + 16
        })
        .await;
        kill(&mut process);
        keys.extend(clients.join_all().await.into_iter().flatten());
        if journals_in(store).len() > 1 {
            return keys;
        }
    }
    panic!("the journal before was always gone already");
}

/// A gateway, unless it refuses to start and says what to do.
async fn started(scene: &Scene) -> Option<Process> {
    let mut process = scene.start(&[]);
    let says = |part: &str| process.lines().iter().any(|line| line.contains(part));
    eventually("it starts or refuses to", || {
        says("listening") || says("move it away")
    })
    .await;
    if says("move it away") {
        assert!(!process.end().success());
        return None;
    }
    Some(process)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_to_a_journal_before_the_current_one_is_told_too() {
    let upstream = Upstream::with(|received| async move {
        let mut body = received.header(KEY).into_bytes();
        body.resize(60 << 10, b'.');
        full(body)
    });
    let dir = TempDir::new().unwrap();
    let store = dir.path().join("store");
    let scene = Scene::with_store(TempDir::new().unwrap(), &store, &upstream.url());
    let keys = killed_between_journals(&scene, &store).await;
    let sealed = journals_in(&store).swap_remove(0);
    let end = used(&fs::read(&sealed).unwrap()) as u64;
    let mut verdicts = Vec::new();
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
            damage.strike(&struck);
        }
        let scene = Scene::with_store(TempDir::new().unwrap(), home.path(), &upstream.url());
        // A supervisor starts it again at once, and finds what the first attempt has left.
        let Some(process) = started(&scene).await else {
            assert!(started(&scene).await.is_none(), "{damage:?}");
            verdicts.push(Verdict::Refused);
            continue;
        };
        let mut connection = process.client().keep_alive().await;
        for key in &keys {
            let answer = connection
                .send(process.client().post("/").header(KEY, key))
                .await;
            let replayed = answer.header("idempotent-replayed") == "true";
            assert!(
                replayed || answer.status == 503,
                "{damage:?}: {key}: {}",
                answer.status
            );
        }
        verdicts.push(Verdict::Started);
    }
    assert_eq!(verdicts[0], Verdict::Started);
    assert_eq!(verdicts[1], Verdict::Refused);
    // The engine can have written the end of the journal to tables before the kill. A store without that end is then
    // complete, as the responses above have shown, and opens.
    assert!([Verdict::Refused, Verdict::Started].contains(&verdicts[2]));
}
