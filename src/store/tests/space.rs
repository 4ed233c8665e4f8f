//! Records that expire give their space back.
//!
//! All but the journal does: the engine begins another only when one has 64 MB, so that much and a memtable
//! may stay. Hence twice as much is written here as would otherwise be needed to see it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::idempotency::{Claim, ExecutionOutcome, Records as _};
use crate::store::{RecordStore, StoreCapacity};

use crate::store::tests::bench::{Bench, Kind, TTL, claim_request, sized_answer};

const ANSWERS: u16 = 3_200;
const BODY: usize = 64 << 10;

/// How long the space may take to come back once the records have expired.
const PATIENCE: Duration = Duration::from_mins(1);

/// The bytes a directory takes on disk.
fn space(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => space(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        // Deleted meanwhile.
        Err(_) => 0,
    });
    sizes.sum()
}

#[tokio::test]
async fn two_hundred_mebibytes_that_expired_are_given_back_but_for_the_journal() {
    let room = StoreCapacity {
        max_keys: 100_000,
        max_bytes: 1 << 30,
    };
    let bench = Bench::with_room(Kind::Disk, room);
    let RecordStore::Disk(store) = &bench.records else {
        panic!("a store on disk");
    };
    let keys: Vec<u16> = (0..ANSWERS).collect();
    for keys in keys.chunks(50) {
        let mut writing = tokio::task::JoinSet::new();
        for &key in keys {
            let store = store.clone();
            writing.spawn(async move {
                let Ok(Claim::Won(mut permit)) = store.claim(&claim_request(key)).await else {
                    panic!("the claim_request was not won");
                };
                permit.mark_sent();
                let outcome = ExecutionOutcome::Completed(sized_answer(key, BODY));
                store.end(permit, outcome).await.unwrap();
            });
        }
        writing.join_all().await;
    }
    let full = space(bench.home());
    assert!(full > u64::from(ANSWERS) * BODY as u64, "{full} bytes");

    bench.clock.advance(TTL);
    let deadline = Instant::now() + PATIENCE;
    let mut left = full;
    while left >= full / 2 {
        assert!(
            Instant::now() < deadline,
            "{left} of {full} bytes are still taken"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
        left = space(bench.home());
    }
    println!(
        "space: {} MiB before, {} MiB after they expired",
        full >> 20,
        left >> 20
    );
    assert_eq!(bench.counts().await.completed, 0);
}
