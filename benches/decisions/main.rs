//! What each decision on a request costs, and how that grows with routes, clients and threads.
//!
//! Run with `make bench`. After criterion's own report come the ratios the project holds itself to:
//! a million clients against a thousand, and a thousand routes against ten.
//!
//! A charge is measured as a request makes it, from the client's address to the verdict, on a table that
//! tracks every client it is asked about. On several threads each makes as many charges as criterion
//! asks for, and the figure is the time one of them takes: equal to the figure for one thread if they
//! do not get in each other's way.

mod charge;
mod ratios;
mod request;
mod route;

use std::time::{Duration, SystemTime};

use criterion::Criterion;

/// The gateway's own: which pages a table lies on decides what a million clients cost.
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
