//! Files that are not as they were left: flipped bytes, holes, missing ends, missing files.
//!
//! Whatever is damaged, a key that was used is never taken for a new one: the store says what is wrong and
//! does not open, or it opens and every record is there or cannot be read.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tempfile::TempDir;
use tidegate::clock::Clock;
use tidegate::idempotency::{Claim, ExecutionOutcome, Records};
use tidegate::store::StoreCapacity;
use tidegate::store::disk::{DiskRecords, OpenError};
use tokio::runtime::Runtime;

use crate::bench::{claim_request, sized_answer};
use crate::campaign::number;
use crate::harness::{Process, Upstream, eventually, full};
use crate::ledger::KEY;
use crate::scene::{Scene, kill};

/// Enough, and large enough, that some are in tables and some in the journal only.
const RECORDS: u16 = 2_000;
const BODY: usize = 11 << 10;

/// Places in each file that are damaged, besides its beginning and its end.
const PLACES: u64 = 1;

/// Something that happens to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// One byte there is another.
    Flip(u64),
    /// Four kibibytes from there on are zero.
    Hole(u64),
    /// It ends there.
    Cut(u64),
    /// It is not there.
    Gone,
}

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
            permit.sending();
            let outcome = ExecutionOutcome::Completed(sized_answer(key, BODY));
            store.end(permit, outcome).await.unwrap();
        }
        other => panic!("the claim_request was not won: {other:?}"),
    }
}

/// Copies a directory; tables, which never change, are linked, and the zeros at the end of a journal are
/// not written.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else if from.ends_with("tables") {
            fs::hard_link(entry.path(), &to).unwrap();
        } else {
            write_sparsely(&to, &fs::read(entry.path()).unwrap());
        }
    }
}

fn write_sparsely(path: &Path, content: &[u8]) {
    fs::write(path, &content[..used(content)]).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(content.len() as u64).unwrap();
}

/// The bytes up to the last that is not zero.
fn used(content: &[u8]) -> usize {
    content
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1)
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

impl Damage {
    /// What is done to a file of which so many bytes are used.
    fn all(used: u64, random: &mut fastrand::Rng) -> Vec<Self> {
        let mut all = vec![Self::Cut(0), Self::Gone];
        if used > 0 {
            let ends = [0, used - 1];
            let middle = (0..PLACES).map(|_| random.u64(..used));
            let places: Vec<u64> = ends.into_iter().chain(middle).collect();
            all.extend(places.iter().map(|&at| Self::Flip(at)));
            all.extend(places.iter().map(|&at| Self::Hole(at)));
            all.extend(places.iter().map(|&at| Self::Cut(at)));
        }
        all
    }

    fn strike(self, file: &Path) {
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).open(file).unwrap()
        };
        match self {
            Self::Flip(at) => {
                let file = open();
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            }
            Self::Hole(at) => {
                let file = open();
                let length = file.metadata().unwrap().len();
                let size = usize::try_from((length - at).min(4_096)).unwrap();
                file.write_all_at(&vec![0; size], at).unwrap();
            }
            Self::Cut(at) => open().set_len(at).unwrap(),
            Self::Gone => fs::remove_file(file).unwrap(),
        }
    }
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

fn open(home: &Path) -> Result<Result<DiskRecords, OpenError>, String> {
    let opened = catch_unwind(AssertUnwindSafe(|| {
        DiskRecords::open(home, room(), clock())
    }));
    let opened = opened.map_err(|_| "opening panics")?;
    if let Err(error) = &opened {
        let message = error.to_string();
        if !message.contains("move") && !message.contains("name another") {
            return Err(format!("no way out: {message}"));
        }
    }
    Ok(opened)
}

#[test]
fn damage_to_any_file_is_told_or_harmless_and_no_used_key_is_taken_for_a_new_one() {
    let left = full_store();
    assert_eq!(examine(left.path()), Ok(Verdict::Opened { unreadable: 0 }));
    let seed = number("CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut random = fastrand::Rng::with_seed(seed);
    let files = files_in(left.path());
    let (mut refused, mut opened, mut unreadable) = (0, 0, 0);
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.strip_prefix(left.path()).unwrap();
        let content = fs::read(file).unwrap();
        for damage in Damage::all(used(&content) as u64, &mut random) {
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
        verdicts.push(Verdict::Opened { unreadable: 0 });
    }
    assert_eq!(verdicts[0], Verdict::Opened { unreadable: 0 });
    assert_eq!(verdicts[1], Verdict::Refused);
    // The engine can have written the end of the journal to tables before the kill. A store without that end is then
    // complete, as the responses above have shown, and opens.
    let is_complete = Verdict::Opened { unreadable: 0 };
    assert!([Verdict::Refused, is_complete].contains(&verdicts[2]));
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
        permit.sending();
        let outcome = ExecutionOutcome::Completed(sized_answer(key, 64 << 10));
        store.end(permit, outcome).await.unwrap();
    }
    eventually("the index is written to a table", || {
        !files_in(&home.path().join(EXPIRIES)).is_empty()
    })
    .await;
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
                permit.sending();
                let outcome = ExecutionOutcome::Completed(sized_answer(key, 100));
                store.end(permit, outcome).await.unwrap();
            }
            other => panic!("the claim of {key} is not won: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
