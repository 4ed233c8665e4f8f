//! The arithmetic of a limit, without a gateway: one client at 1 request a second with a burst of 3,
//! on a clock that moves only when told to.
//!
//! Run with:
//!
//! ```text
//! cargo run --example decide
//! ```
//!
//! Expected output:
//!
//! ```text
//! seconds  answer  tokens left  wait     retry-after
//!     0.0  ok                3
//!     0.3  ok                2
//!     0.6  ok                1
//!     0.9  ok                0
//!     1.2  ok                0
//!     1.4  429               0  600ms              1
//!     1.6  429               0  400ms              1
//!     1.8  429               0  200ms              1
//!     2.1  ok                0
//! ```

use std::error::Error;
use std::num::NonZeroU32;
use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use tidegate::client::Trust;
use tidegate::clock::Clock;
use tidegate::hash_keys::Seed;
use tidegate::respond::retry_after::whole_seconds;
use tidegate::store::memory::MemoryBuckets;
use tidegate::throttle::{
    BucketKey, Charge, Exceed, KeyPart, Limit, LimitId, Mode, OnStoreError, Outcome, Quota,
    RetryAfterForm, Side,
};

/// When the client calls, in milliseconds.
const CALLS: [u64; 9] = [0, 300, 600, 900, 1_200, 1_400, 1_600, 1_800, 2_100];

fn main() -> Result<(), Box<dyn Error>> {
    let limit = Limit {
        id: LimitId(0),
        name: "device".into(),
        quota: Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?,
        key: [KeyPart::Client].into(),
        exceed: Exceed::Reject,
        mode: Mode::Enforce,
        retry_after: RetryAfterForm::Seconds,
        on_store_error: OnStoreError::Local,
    };
    let headers = HeaderMap::new();
    let caller = Trust::default().identify([192, 0, 2, 1].into(), &headers)?;
    let clock = Clock::virtual_from(UNIX_EPOCH);
    let buckets = MemoryBuckets::new(1_000, clock.clone());
    let charge = Charge {
        limit: &limit,
        bucket: BucketKey::of(Seed::random(), &limit, Side::Main, caller.id(), &headers),
        cost: NonZeroU32::MIN,
    };

    println!("seconds  answer  tokens left  wait     retry-after");
    let mut before = 0;
    for call in CALLS {
        clock.advance(Duration::from_millis(call - before));
        before = call;
        let seconds = Duration::from_millis(call).as_secs_f64();
        let verdict = buckets.charge_now(&[charge]);
        let left = verdict.readings[0].remaining;
        match verdict.outcome {
            Outcome::Admitted { .. } => println!("{seconds:>7.1}  ok      {left:>11}"),
            Outcome::Rejected { wait, .. } => println!(
                "{seconds:>7.1}  429     {left:>11}  {:<7}{:>13}",
                format!("{wait:?}"),
                whole_seconds(wait)
            ),
            Outcome::Unavailable => unreachable!("memory is always there"),
        }
    }
    Ok(())
}
