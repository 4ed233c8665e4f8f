//! Tests that the store on disk frees the space of expired records, except the space of the journal.
//!
//! The storage engine starts a new journal only after 64 MB, so 64 MB and a memtable can remain. The test writes 200
//! MiB, so that the space to free is clearly larger than the space that can remain.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::idempotency::{Claim, ExecutionOutcome, Records as _};
use crate::store::{RecordStore, StoreCapacity};

use crate::store::tests::record_fixture::{
    RecordFixture, StoreKind, TTL, claim_request, sized_response,
};

const RESPONSES: u16 = 3_200;
const BODY: usize = 64 << 10;

/// How long the store can take to free the space of expired records.
const FREE_TIMEOUT: Duration = Duration::from_mins(1);

/// Returns the disk usage of a directory, in bytes.
fn space(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => space(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        // An error means that the file was deleted in the meantime, so it uses no space.
        Err(_) => 0,
    });
    sizes.sum()
}

#[tokio::test]
async fn expired_records_free_at_least_half_of_200_mib() {
    let capacity = StoreCapacity {
        max_keys: 100_000,
        max_bytes: 1 << 30,
        ..StoreCapacity::default()
    };
    let fixture = RecordFixture::with_capacity(StoreKind::Disk, capacity);
    let RecordStore::Disk(store) = &fixture.records else {
        panic!("not a store on disk");
    };
    let keys: Vec<u16> = (0..RESPONSES).collect();
    for keys in keys.chunks(50) {
        let mut writing = tokio::task::JoinSet::new();
        for &key in keys {
            let store = store.clone();
            writing.spawn(async move {
                let Ok(Claim::Won(mut permit)) = store.claim(&claim_request(key)).await else {
                    panic!("the claim is not won");
                };
                permit.mark_sent();
                let outcome = ExecutionOutcome::Completed(sized_response(key, BODY));
                store.end(permit, outcome).await.unwrap();
            });
        }
        writing.join_all().await;
    }
    let full = space(fixture.dir());
    assert!(full > u64::from(RESPONSES) * BODY as u64, "{full} bytes");

    fixture.clock.advance(TTL);
    let deadline = Instant::now() + FREE_TIMEOUT;
    let mut left = full;
    while left >= full / 2 {
        assert!(
            Instant::now() < deadline,
            "{left} of {full} bytes are still in use"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
        left = space(fixture.dir());
    }
    println!(
        "disk usage: {} MiB before, {} MiB after the records expired",
        full >> 20,
        left >> 20
    );
    assert_eq!(fixture.counts().await.completed, 0);
}
