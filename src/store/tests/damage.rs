//! Damaged files of the store on disk: flipped bytes, holes, missing ends, missing files.
//!
//! Whatever is damaged, a key that was used is never taken for a new one: the store reports the damage and does not open,
//! or it opens and every record is there or cannot be read. `tests/crash/journal_damage.rs` has the test that needs a process.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::bench::{claim_request, sized_answer};
use crate::clock::Clock;
use crate::idempotency::{Claim, ExecutionOutcome, Records};
use crate::store::StoreCapacity;
use crate::store::disk::{DiskOpenError, DiskRecords};

#[path = "../../../tests/support/damage.rs"]
mod files;

use files::{Damage, copy, used, write_sparsely};

/// Time for the engine to write a table on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Enough, and large enough, that some are in tables and some in the journal only.
const RECORDS: u16 = 2_000;
const BODY: usize = 11 << 10;

/// Places in each file that are damaged, besides its beginning and its end.
const PLACES: u64 = 1;

/// What a damaged store comes to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It does not open, and says why.
    Refused,
    /// It opens, and so many records cannot be read.
    Opened { unreadable: u16 },
}

fn room() -> StoreCapacity {
    StoreCapacity {
        max_keys: 100_000,
        max_bytes: 1 << 30,
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

/// The files of a store full of records.
fn full_store() -> TempDir {
    let home = TempDir::new().unwrap();
    let store = DiskRecords::open(home.path(), room(), clock()).unwrap();
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
            let outcome = ExecutionOutcome::Completed(sized_answer(key, BODY));
            store.end(permit, outcome).await.unwrap();
        }
        other => panic!("the claim_request was not won: {other:?}"),
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

/// Returns the damages to test on a file of which so many bytes are used.
fn damages(used: u64, random: &mut fastrand::Rng) -> Vec<Damage> {
    let mut all = vec![Damage::Cut(0), Damage::Gone];
    if used > 0 {
        let ends = [0, used - 1];
        let middle = (0..PLACES).map(|_| random.u64(..used));
        let places: Vec<u64> = ends.into_iter().chain(middle).collect();
        all.extend(places.iter().map(|&at| Damage::Flip(at)));
        all.extend(places.iter().map(|&at| Damage::Hole(at)));
        all.extend(places.iter().map(|&at| Damage::Cut(at)));
    }
    all
}

/// Opens what is in `home` and asks for every record.
fn examine(home: &Path) -> Result<Verdict, String> {
    // A supervisor starts it again at once, and finds what the first attempt has left.
    let opened = match open(home)? {
        Err(_) => open(home)?,
        opened => opened,
    };
    match opened {
        Err(_) => Ok(Verdict::Refused),
        Ok(store) => {
            let mut unreadable = 0;
            for key in 0..RECORDS {
                let asked = async {
                    let claim_request = claim_request(key);
                    tokio::time::timeout(Duration::from_secs(10), store.claim(&claim_request)).await
                };
                match runtime().block_on(asked) {
                    Ok(Ok(Claim::Replay(answer))) if answer == sized_answer(key, BODY) => {}
                    Ok(Ok(other)) => return Err(format!("the record {key} is {other:?}")),
                    Ok(Err(_)) => unreadable += 1,
                    Err(_) => return Err(format!("asking for the record {key} hangs")),
                }
            }
            Ok(Verdict::Opened { unreadable })
        }
    }
}

fn open(home: &Path) -> Result<Result<DiskRecords, DiskOpenError>, String> {
    let opened = catch_unwind(AssertUnwindSafe(|| {
        DiskRecords::open(home, room(), clock())
    }));
    let opened = opened.map_err(|_| "opening panics")?;
    if let Err(error) = &opened {
        let message = error.to_string();
        if !message.contains("move") && !message.contains("another directory") {
            return Err(format!("no way out: {message}"));
        }
    }
    Ok(opened)
}

#[test]
fn damage_to_any_file_is_told_or_harmless_and_no_used_key_is_taken_for_a_new_one() {
    let left = full_store();
    assert_eq!(examine(left.path()), Ok(Verdict::Opened { unreadable: 0 }));
    let seed = std::env::var("CRASH_SEED")
        .map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    let files = files_in(left.path());
    let (mut refused, mut opened, mut unreadable) = (0, 0, 0);
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.strip_prefix(left.path()).unwrap();
        let content = fs::read(file).unwrap();
        for damage in damages(used(&content) as u64, &mut random) {
            let home = TempDir::new().unwrap();
            copy(left.path(), home.path());
            let struck = home.path().join(name);
            // A file of its own in the place of a link.
            fs::remove_file(&struck).unwrap();
            write_sparsely(&struck, &content);
            damage.strike(&struck);
            match examine(home.path()) {
                Ok(Verdict::Refused) => refused += 1,
                Ok(Verdict::Opened { unreadable: lost }) => {
                    opened += 1;
                    unreadable += u64::from(lost);
                }
                Err(what) => wrong.push(format!("{} {damage:?}: {what}", name.display())),
            }
        }
    }
    println!("damage: {refused} refused, {opened} opened with {unreadable} unreadable records");
    assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    assert!(refused > 0 && opened > 0);
}

#[test]
fn a_store_without_one_of_its_keyspaces_does_not_open() {
    let left = full_store();
    let keyspaces = Path::new("records/keyspaces");
    for entry in fs::read_dir(left.path().join(keyspaces)).unwrap() {
        let home = TempDir::new().unwrap();
        copy(left.path(), home.path());
        let gone = home.path().join(keyspaces).join(entry.unwrap().file_name());
        fs::remove_dir_all(&gone).unwrap();
        assert_eq!(
            examine(home.path()),
            Ok(Verdict::Refused),
            "{}",
            gone.display()
        );
    }
}

/// The directory of the index by expiry: the engine numbers its keyspaces in the order of their creation.
const EXPIRIES: &str = "records/keyspaces/3/tables";

#[tokio::test]
async fn a_damaged_index_of_expiries_stops_no_request() {
    let home = TempDir::new().unwrap();
    // More than a journal holds, so that the index is in a table.
    let store = DiskRecords::open(home.path(), room(), clock()).unwrap();
    for key in 0..1_500 {
        let Ok(Claim::Won(mut permit)) = store.claim(&claim_request(key)).await else {
            panic!("the claim is not won");
        };
        permit.mark_sent();
        let outcome = ExecutionOutcome::Completed(sized_answer(key, 64 << 10));
        store.end(permit, outcome).await.unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
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
        Damage::Flip(100).strike(table);
    }

    // Responses exceed `max_bytes`, so that upkeep reads the index at once and all the time.
    let small = StoreCapacity {
        max_bytes: 32 << 20,
        ..room()
    };
    let store = DiskRecords::open(home.path(), small, clock()).unwrap();
    let until = Instant::now() + Duration::from_secs(4);
    let mut key = 10_000;
    while Instant::now() < until {
        key += 1;
        match store.claim(&claim_request(key)).await {
            Ok(Claim::Won(mut permit)) => {
                permit.mark_sent();
                let outcome = ExecutionOutcome::Completed(sized_answer(key, 100));
                store.end(permit, outcome).await.unwrap();
            }
            other => panic!("the claim of {key} is not won: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
