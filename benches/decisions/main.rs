//! Cost of parsing, routing and rate limiting a request, and its growth with the number of routes, clients and threads.
//!
//! Run with `make bench`. After the report of criterion, ratios with their maximum are printed: a million clients
//! compared with a thousand, and a thousand routes compared with ten.
//!
//! The measurement of a charge includes everything from the address of the client to the decision. The table of buckets
//! tracks all clients of the benchmark. If a benchmark has several threads, each thread makes the number of charges
//! that criterion sets, and the result is the time per charge of one thread. This time equals that of a single thread
//! if the threads do not block each other.

mod charge;
mod ratios;
mod request;
mod route;

use std::time::{Duration, SystemTime};

use criterion::Criterion;

/// The benchmark uses the allocator of the gateway, because the cost of a charge with a million clients depends on the
/// memory pages that the allocator uses for the table of buckets.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let started = SystemTime::now();
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
        .configure_from_args();
    request::bench(&mut criterion);
    route::bench(&mut criterion);
    charge::bench(&mut criterion);
    criterion.final_summary();
    ratios::print(started);
}
