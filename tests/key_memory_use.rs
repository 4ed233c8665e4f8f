//! Test of the memory use of idempotency keys: 1.5 million keys with `max_keys` of one million.
//!
//! Every key has its own client and scope, and a response of 50 bytes. The resident memory of the process must grow by
//! at most `max_keys` times [`BYTES_PER_KEY`] plus `max_bytes`. The memory is measured for the whole process, so this
//! file contains a single test and uses the allocator of the gateway.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, StatusCode};
use mimalloc::MiMalloc;
use tidegate::clock::Clock;
use tidegate::idempotency::{
    Claim, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, RecordId, RecordSettings,
    Records as _, StoredResponse,
};
use tidegate::internals::{BYTES_PER_KEY, MemoryRecords, StoreCapacity};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const KEYS: u64 = 1_500_000;

#[test]
fn keys_beyond_max_keys_take_no_memory_and_none_is_rejected() {
    let before = resident_bytes();
    let capacity = StoreCapacity {
        min_ttl: Duration::from_secs(500),
        ..StoreCapacity::default()
    };
    let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
    let records = MemoryRecords::new(capacity, clock.clone());
    let bound = capacity.max_keys as u64 * BYTES_PER_KEY + capacity.max_bytes;
    let started = Instant::now();
    for key in 0..KEYS {
        clock.advance(Duration::from_millis(1));
        let mut permit = match records.claim_now(&claim_request(key, &clock)) {
            Claim::Won(permit) => permit,
            other => panic!("key {key}: {other:?}"),
        };
        permit.mark_sent();
        let response = StoredResponse::new(StatusCode::CREATED, &HeaderMap::new(), &[7; 50]);
        let outcome = ExecutionOutcome::Completed(response.into());
        drop(records.end(permit, outcome));
        if key % 250_000 == 249_999 {
            let grown = resident_bytes() - before;
            println!(
                "{} keys after {:.1?}: {grown} bytes",
                key + 1,
                started.elapsed()
            );
            assert!(grown <= bound, "{grown} of {bound} bytes");
        }
    }
    let counts = records.counts();
    assert_eq!(counts.completed + counts.tombstones, 1_000_000);
    assert_eq!(counts.forgotten, KEYS - 1_000_000);
    assert_eq!(counts.effective_ttl, Some(Duration::from_secs(1_000)));
}

fn claim_request(key: u64, clock: &Clock) -> ClaimRequest {
    let hash = blake3::hash(&key.to_be_bytes());
    ClaimRequest {
        at: clock.now(),
        id: RecordId::from_bytes(hash.as_bytes()),
        client: ClientHash(u64::from_be_bytes(hash.as_bytes()[..8].try_into().unwrap())),
        fingerprint: Fingerprint::from_bytes(hash.as_bytes()),
        settings: RecordSettings::default(),
    }
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = resident.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<u64>().unwrap() * 1_024
}
