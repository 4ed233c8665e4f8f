//! A store whose disk is too full for its upkeep. `tests/crash/full_disk.rs` has gateways on a full disk.

use std::time::{Duration, Instant, SystemTime};

use super::bench::{TTL, claim_request, sized_answer};
use crate::clock::Clock;
use crate::idempotency::{Claim, ExecutionOutcome, Records as _};
use crate::store::StoreCapacity;
use crate::store::disk::DiskRecords;

#[path = "../../../tests/support/small_disk.rs"]
#[allow(dead_code, reason = "tests of the gateway use the rest")]
mod small_disk;

use small_disk::SmallDisk;

/// Time for the disk to fill up on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time for the store to work again once it has space.
const RECOVERY: Duration = Duration::from_secs(5);

/// Freeing the space of expired records needs some space itself.
#[tokio::test]
async fn a_disk_too_full_to_be_tidied_up_does_not_keep_the_store_from_going_on() {
    let disk = SmallDisk::mount();
    disk.remount("size=120m");
    let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000));
    let room = StoreCapacity {
        max_keys: 100_000,
        max_bytes: 1 << 30,
    };
    let store = DiskRecords::open(&disk.path().join("store"), room, clock.clone()).unwrap();
    for key in 0..700 {
        let mut claim_request = claim_request(key);
        if key >= 600 {
            claim_request.settings.ttl = 3 * TTL;
        }
        let Ok(Claim::Won(mut permit)) = store.claim(&claim_request).await else {
            panic!("the claim_request was not won");
        };
        permit.mark_sent();
        let outcome = ExecutionOutcome::Completed(sized_answer(key, 64 << 10));
        store.end(permit, outcome).await.unwrap();
    }

    // Enough is left to drop what expires, and not enough to write the rest to a table.
    disk.fill();
    disk.leave(2 << 20);
    clock.advance(TTL);
    let mut keys = 1_000..;
    let deadline = Instant::now() + PATIENCE;
    while store
        .claim(&claim_request(keys.next().unwrap()))
        .await
        .is_ok()
    {
        assert!(Instant::now() < deadline, "there is always space");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    disk.empty();
    let deadline = Instant::now() + RECOVERY;
    while store
        .claim(&claim_request(keys.next().unwrap()))
        .await
        .is_err()
    {
        assert!(Instant::now() < deadline, "the store never goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
