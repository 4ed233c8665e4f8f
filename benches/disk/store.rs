//! Creates disk stores with a given number of idempotency records.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use tidegate::clock::{Clock, Moment};
use tidegate::idempotency::{
    Claim, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, KeyHash, OnUnknown, RecordId,
    RecordSettings, Records as _, ScopeHash, StoredResponse,
};
use tidegate::internals::{DiskRecords, StoreCapacity};
use tokio::task::JoinSet;

use crate::BenchResult;

/// Number of concurrent tasks that fill a store.
const WRITERS: usize = 512;

/// Number of idempotency keys per scope.
const KEYS_PER_SCOPE: u32 = 1_000;

/// Opens the disk store in the directory `path`.
pub(crate) fn open(path: &Path) -> BenchResult<DiskRecords> {
    let capacity = StoreCapacity {
        max_keys: 2_000_000,
        max_bytes: 4 << 30,
        ..StoreCapacity::default()
    };
    Ok(DiskRecords::open(path, capacity, Clock::real())?)
}

/// Returns the claim of the idempotency key with this number. Key and scope are hashes of numbers.
pub(crate) fn claim_request(number: u32) -> ClaimRequest {
    let hash = |text: &str, number: u32| {
        let hash = blake3::keyed_hash(
            blake3::hash(text.as_bytes()).as_bytes(),
            &number.to_be_bytes(),
        );
        let mut half = [0; 16];
        half.copy_from_slice(&hash.as_bytes()[..16]);
        half
    };
    ClaimRequest {
        at: Moment::default(),
        id: RecordId {
            key: KeyHash(hash("key", number)),
            scope: ScopeHash(hash("scope", number / KEYS_PER_SCOPE)),
        },
        client: ClientHash(1),
        fingerprint: Fingerprint {
            request: [7; 16],
            credentials: [7; 16],
        },
        settings: RecordSettings {
            ttl: Duration::from_hours(24),
            on_unknown: OnUnknown::Hold,
            max_keys_per_scope: NonZeroU32::MAX,
        },
    }
}

fn response(number: u32) -> Arc<StoredResponse> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("x-number", HeaderValue::from(number));
    Arc::new(StoredResponse::new(
        StatusCode::CREATED,
        &headers,
        &[b'a'; 300],
    ))
}

/// Creates a disk store with `records` records in the directory `path`.
pub(crate) fn fill(path: &Path, records: u32) -> BenchResult<()> {
    let store = open(path)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let next = Arc::new(AtomicU32::new(0));
    runtime.block_on(async {
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let (store, next) = (store.clone(), Arc::clone(&next));
            writers.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= records {
                        return Ok(());
                    }
                    write(&store, number).await?;
                }
            });
        }
        writers.join_all().await.into_iter().collect()
    })
}

async fn write(store: &DiskRecords, number: u32) -> BenchResult<()> {
    match store.claim(&claim_request(number)).await? {
        Claim::Won(mut permit) => {
            permit.mark_sent();
            Ok(store
                .end(permit, ExecutionOutcome::Completed(response(number)))
                .await?)
        }
        other => Err(format!("idempotency key {number} should be new, but is {other:?}").into()),
    }
}
