//! A test of a store on a disk that is too full for its maintenance.
//! `tests/integration/crash/full_disk.rs` tests gateways on a full disk.

use std::time::{Duration, Instant, SystemTime};

use super::record_fixture::{TTL, claim_request, sized_response};
use crate::clock::Clock;
use crate::idempotency::{Claim, ExecutionOutcome, Records as _};
use crate::store::StoreCapacity;
use crate::store::disk::DiskRecords;

#[path = "../../../tests/support/small_disk.rs"]
#[allow(dead_code, reason = "tests of the gateway use the rest")]
mod small_disk;

use small_disk::SmallDisk;

/// How long the disk can take to fill up on a busy machine.
const FILL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the store can take to work again after the disk has free space.
const RECOVERY: Duration = Duration::from_secs(5);

/// Maintenance deletes expired records to free space, but the deletion needs some free space itself.
#[tokio::test]
async fn a_store_on_a_disk_too_full_for_maintenance_recovers_when_space_is_free() {
    let disk = SmallDisk::mount();
    disk.remount("size=120m");
    let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000));
    let capacity = StoreCapacity {
        max_keys: 100_000,
        max_bytes: 1 << 30,
        ..StoreCapacity::default()
    };
    let store = DiskRecords::open(&disk.path().join("store"), capacity, clock.clone()).unwrap();
    for key in 0..700 {
        let mut claim_request = claim_request(key);
        if key >= 600 {
            claim_request.settings.ttl = 3 * TTL;
        }
        let Ok(Claim::Won(mut permit)) = store.claim(&claim_request).await else {
            panic!("the claim is not won");
        };
        permit.mark_sent();
        let outcome = ExecutionOutcome::Completed(sized_response(key, 64 << 10));
        store.end(permit, outcome).await.unwrap();
    }

    // The free space is enough to delete expired records, but not enough to write the others to a table.
    disk.fill();
    disk.free(2 << 20);
    clock.advance(TTL);
    let mut keys = 1_000..;
    let deadline = Instant::now() + FILL_TIMEOUT;
    while store
        .claim(&claim_request(keys.next().unwrap()))
        .await
        .is_ok()
    {
        assert!(Instant::now() < deadline, "the disk is never full");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    disk.empty();
    let deadline = Instant::now() + RECOVERY;
    while store
        .claim(&claim_request(keys.next().unwrap()))
        .await
        .is_err()
    {
        assert!(Instant::now() < deadline, "the store does not recover");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
