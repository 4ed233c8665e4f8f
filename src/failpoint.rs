//! Failpoints: points in the code where a test can crash the process or make an operation fail.
//!
//! Failpoints exist only in builds with the feature `failpoints`. The environment variable `FAILPOINTS` activates them:
//!
//! - `after-claim=return` aborts the process at `failpoint!("after-claim")`. The optional second argument of the macro
//!   is an expression that is evaluated just before the abort.
//! - `store-sync=5%return` makes `fails!("store-sync")` true with a probability of 5 %.
//!
//! In other builds `failpoint!` expands to nothing and `fails!` to `false`.

#[cfg(feature = "failpoints")]
macro_rules! failpoint {
    ($name:literal $(, $last_act:expr)?) => {
        fail::eval($name, |_| {
            $(drop($last_act);)?
            $crate::failpoint::abort($name)
        });
    };
}

#[cfg(not(feature = "failpoints"))]
macro_rules! failpoint {
    ($name:literal $(, $last_act:expr)?) => {};
}

/// Returns whether the operation at this failpoint must fail. If `FAILPOINTS` is `NAME=sleep(1000)`, the operation does
/// not fail, but is delayed by 1,000 ms.
#[cfg(feature = "failpoints")]
macro_rules! fails {
    ($name:literal) => {
        fail::eval($name, |_| ()).is_some()
    };
}

#[cfg(not(feature = "failpoints"))]
macro_rules! fails {
    ($name:literal) => {
        false
    };
}

pub(crate) use failpoint;
pub(crate) use fails;

/// Activates the failpoints that the environment variable `FAILPOINTS` lists.
#[cfg(feature = "failpoints")]
pub(crate) fn arm() {
    // The scenario is never dropped, because dropping it would deactivate the failpoints.
    std::mem::forget(fail::FailScenario::setup());
}

/// Simulates a crash: aborts the process without flushing buffers or running destructors.
#[cfg(feature = "failpoints")]
pub(crate) fn abort(name: &str) {
    eprintln!("failpoint {name}: aborting the process");
    std::process::abort();
}
