//! Tests of the store on disk with damaged files: flipped bytes, holes, truncated and missing files.
//!
//! Whatever the damage, the store never treats a used idempotency key as new. If it detects the damage when it opens,
//! it fails with an error. Otherwise it opens, and every record is either intact or unreadable.
//! `tests/integration/crash/journal_damage.rs` has the tests that need a process.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::record_fixture::{claim_request, sized_response};
use crate::clock::Clock;
use crate::idempotency::{Claim, ExecutionOutcome, Records};
use crate::store::StoreCapacity;
use crate::store::disk::{DiskOpenError, DiskRecords};

#[path = "../../../tests/support/damage.rs"]
mod files;

use files::{Damage, copy, used, write_sparsely};

/// How long the storage engine can take to write a table on a busy machine.
const TABLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of records. Together, this number and the size of a body ensure that some records are in tables and some only
/// in the journal.
const RECORDS: u16 = 2_000;
const BODY: usize = 11 << 10;

/// Number of damaged offsets in each file, in addition to its first and last byte.
const RANDOM_OFFSETS: u64 = 1;

/// The effect of a damaged file on a store.
#[derive(Debug, PartialEq, Eq)]
enum DamageEffect {
    /// The store fails to open, with an error.
    NotOpened,
    /// The store opens, and this number of records cannot be read.
    Opened { unreadable: u16 },
}

fn capacity() -> StoreCapacity {
    StoreCapacity {
        max_keys: 100_000,
        max_bytes: 1 << 30,
        ..StoreCapacity::default()
    }
}

fn clock() -> Clock {
    Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000))
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
}

/// Creates the files of a store with `RECORDS` records.
fn filled_store() -> TempDir {
    let home = TempDir::new().unwrap();
    let store = DiskRecords::open(home.path(), capacity(), clock()).unwrap();
    runtime().block_on(async {
        let keys: Vec<u16> = (0..RECORDS).collect();
        for keys in keys.chunks(50) {
            let mut writing = tokio::task::JoinSet::new();
            for &key in keys {
                let store = store.clone();
                writing.spawn(async move { write(&store, key).await });
            }
            writing.join_all().await;
        }
    });
    home
}

async fn write(store: &DiskRecords, key: u16) {
    match store.claim(&claim_request(key)).await.unwrap() {
        Claim::Won(mut permit) => {
            permit.mark_sent();
            let outcome = ExecutionOutcome::Completed(sized_response(key, BODY));
            store.end(permit, outcome).await.unwrap();
        }
        other => panic!("the claim is not won: {other:?}"),
    }
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the kinds of damage to test on a file with `used` bytes of content.
fn damages(used: u64, random: &mut fastrand::Rng) -> Vec<Damage> {
    let mut all = vec![Damage::Cut(0), Damage::Gone];
    if used > 0 {
        let ends = [0, used - 1];
        let middle = (0..RANDOM_OFFSETS).map(|_| random.u64(..used));
        let offsets: Vec<u64> = ends.into_iter().chain(middle).collect();
        all.extend(offsets.iter().map(|&at| Damage::Flip(at)));
        all.extend(offsets.iter().map(|&at| Damage::Hole(at)));
        all.extend(offsets.iter().map(|&at| Damage::Cut(at)));
    }
    all
}

/// Opens the store in `home` and claims every idempotency key. Fails if a used key is treated as new.
fn examine(home: &Path) -> Result<DamageEffect, String> {
    // After a failure the store is opened again, because a supervisor restarts a gateway immediately.
    let opened = match open(home)? {
        Err(_) => open(home)?,
        opened => opened,
    };
    match opened {
        Err(_) => Ok(DamageEffect::NotOpened),
        Ok(store) => {
            let mut unreadable = 0;
            for key in 0..RECORDS {
                let claim = async {
                    let claim_request = claim_request(key);
                    tokio::time::timeout(Duration::from_secs(10), store.claim(&claim_request)).await
                };
                match runtime().block_on(claim) {
                    Ok(Ok(Claim::Replay(response))) if response == sized_response(key, BODY) => {}
                    Ok(Ok(other)) => return Err(format!("the record {key} is {other:?}")),
                    Ok(Err(_)) => unreadable += 1,
                    Err(_) => return Err(format!("reading the record {key} hangs")),
                }
            }
            Ok(DamageEffect::Opened { unreadable })
        }
    }
}

fn open(home: &Path) -> Result<Result<DiskRecords, DiskOpenError>, String> {
    let opened = catch_unwind(AssertUnwindSafe(|| {
        DiskRecords::open(home, capacity(), clock())
    }));
    let opened = opened.map_err(|_| "opening panics")?;
    if let Err(error) = &opened {
        let message = error.to_string();
        if !message.contains("move") && !message.contains("name another") {
            return Err(format!("the message has no remedy: {message}"));
        }
    }
    Ok(opened)
}

#[test]
fn damage_to_any_file_never_makes_a_used_key_new() {
    let left = filled_store();
    assert_eq!(
        examine(left.path()),
        Ok(DamageEffect::Opened { unreadable: 0 })
    );
    let seed = std::env::var("CRASH_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    let files = files_in(left.path());
    let (mut not_opened, mut opened, mut unreadable) = (0, 0, 0);
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.strip_prefix(left.path()).unwrap();
        let content = fs::read(file).unwrap();
        for damage in damages(used(&content) as u64, &mut random) {
            let home = TempDir::new().unwrap();
            copy(left.path(), home.path());
            let damaged = home.path().join(name);
            // The hard link is replaced with a separate file, so that the original stays undamaged.
            fs::remove_file(&damaged).unwrap();
            write_sparsely(&damaged, &content);
            damage.apply(&damaged);
            match examine(home.path()) {
                Ok(DamageEffect::NotOpened) => not_opened += 1,
                Ok(DamageEffect::Opened { unreadable: lost }) => {
                    opened += 1;
                    unreadable += u64::from(lost);
                }
                Err(what) => wrong.push(format!("{} {damage:?}: {what}", name.display())),
            }
        }
    }
    println!(
        "damage: {not_opened} not opened, {opened} opened with {unreadable} unreadable records"
    );
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    assert!(not_opened > 0 && opened > 0);
}

#[test]
fn a_store_without_one_of_its_keyspaces_does_not_open() {
    let left = filled_store();
    let keyspaces = Path::new("records/keyspaces");
    for entry in fs::read_dir(left.path().join(keyspaces)).unwrap() {
        let home = TempDir::new().unwrap();
        copy(left.path(), home.path());
        let gone = home.path().join(keyspaces).join(entry.unwrap().file_name());
        fs::remove_dir_all(&gone).unwrap();
        assert_eq!(
            examine(home.path()),
            Ok(DamageEffect::NotOpened),
            "{}",
            gone.display()
        );
    }
}

/// The directory of the index by expiry. The storage engine numbers its keyspaces in the order of their creation.
const EXPIRIES: &str = "records/keyspaces/3/tables";

#[tokio::test]
async fn a_damaged_index_of_expiries_rejects_no_request() {
    let home = TempDir::new().unwrap();
    // These records are larger than a journal, so the storage engine writes the index to a table.
    let store = DiskRecords::open(home.path(), capacity(), clock()).unwrap();
    for key in 0..1_500 {
        let Ok(Claim::Won(mut permit)) = store.claim(&claim_request(key)).await else {
            panic!("the claim is not won");
        };
        permit.mark_sent();
        let outcome = ExecutionOutcome::Completed(sized_response(key, 64 << 10));
        store.end(permit, outcome).await.unwrap();
    }
    let deadline = Instant::now() + TABLE_TIMEOUT;
    while files_in(&home.path().join(EXPIRIES)).is_empty() {
        assert!(
            Instant::now() < deadline,
            "the index is not written to a table"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    drop(store);
    let tables = files_in(&home.path().join(EXPIRIES));
    for table in &tables {
        Damage::Flip(100).apply(table);
    }

    // `max_bytes` is smaller than the stored responses, so that maintenance reads the index continuously.
    let small = StoreCapacity {
        max_bytes: 32 << 20,
        ..capacity()
    };
    let store = DiskRecords::open(home.path(), small, clock()).unwrap();
    let until = Instant::now() + Duration::from_secs(4);
    let mut key = 10_000;
    while Instant::now() < until {
        key += 1;
        match store.claim(&claim_request(key)).await {
            Ok(Claim::Won(mut permit)) => {
                permit.mark_sent();
                let outcome = ExecutionOutcome::Completed(sized_response(key, 100));
                store.end(permit, outcome).await.unwrap();
            }
            other => panic!("the claim of {key} is not won: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
