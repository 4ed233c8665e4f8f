//! Points where a test can crash the process or make an operation fail, in builds with the feature `failpoints`.
//!
//! The environment variable `FAILPOINTS` activates them. `after-claim=return` aborts the process at
//! `failpoint!("after-claim")`, after the optional second argument is evaluated. `store-sync=5%return` makes
//! `fails!("store-sync")` true with a probability of 5 %, and `store-sync=sleep(1000)` delays the operation by 1,000 ms.

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

#[cfg(feature = "failpoints")]
pub(crate) fn arm() {
    // The scenario is never dropped, because dropping it would deactivate the failpoints.
    std::mem::forget(fail::FailScenario::setup());
}

/// Neither flushes buffers nor runs destructors.
#[cfg(feature = "failpoints")]
pub(crate) fn abort(name: &str) {
    eprintln!("failpoint {name}: aborting the process");
    std::process::abort();
}
