//! Cost of each decision on a request, and its growth with routes, clients and threads.
//!
//! Run with `make bench`. After the report of criterion, the ratios that the project bounds are printed: a million
//! clients compared with a thousand, and a thousand routes compared with ten.
//!
//! A charge is measured from the address of the client to the decision, with a table that tracks every client. With
//! several threads, each thread makes the number of charges that criterion sets, and the result is the time per charge
//! of one thread. It equals the result for one thread if the threads do not block each other.

mod charge;
mod ratios;
mod request;
mod route;

use std::time::{Duration, SystemTime};

use criterion::Criterion;

/// The allocator of the gateway. The memory pages of a table affect the cost of a million clients.
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
