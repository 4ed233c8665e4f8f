//! Calls the rate limiter without a gateway: one client with a rate limit of 1 request per second and a burst of 3.
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
//! seconds  status  tokens left  wait     retry-after
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
use std::time::Duration;

use tidegate::clock::Moment;
use tidegate::throttle::{BucketKey, Charge, ChargeOutcome, Limit, Quota, decide};

/// When the client sends each request, in milliseconds since the start.
const REQUESTS: [u64; 9] = [0, 300, 600, 900, 1_200, 1_400, 1_600, 1_800, 2_100];

fn main() -> Result<(), Box<dyn Error>> {
    let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?;
    let limit = Limit::per_client("device", quota);
    let charge = Charge {
        limit: &limit,
        bucket: BucketKey { high: 0, low: 0 },
        cost: NonZeroU32::MIN,
    };
    // The only state of a bucket is the time at which the bucket becomes full. At first, this is the start time, so
    // the client's bucket is full.
    let mut full_at = [Moment::default()];

    println!("seconds  status  tokens left  wait     retry-after");
    for time in REQUESTS.map(Duration::from_millis) {
        let seconds = time.as_secs_f64();
        let now = Moment::default().after(time);
        let decision = decide(&[charge], &mut full_at, now);
        let left = decision.readings[0].remaining;
        match decision.outcome {
            ChargeOutcome::Admitted { .. } => println!("{seconds:>7.1}  ok      {left:>11}"),
            ChargeOutcome::Rejected { wait, .. } => println!(
                "{seconds:>7.1}  429     {left:>11}  {:<7}{:>13}",
                format!("{wait:?}"),
                wait.as_secs_f64().ceil()
            ),
            ChargeOutcome::Unavailable => unreachable!("only a Redis store can be unavailable"),
        }
    }
    Ok(())
}
