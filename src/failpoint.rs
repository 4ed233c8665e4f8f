//! Points at which a test can make the process crash or an operation fail.
//!
//! Only builds with the `failpoints` feature contain them, and only those that the environment names act.
//! `FAILPOINTS='after-claim=return'` aborts the process at `failpoint!("after-claim")`; an expression beside
//! the name is evaluated before. `FAILPOINTS='store-sync=5%return'` makes every twentieth
//! `fails!("store-sync")` true. In other builds `failpoint!` is empty and `fails!` is false.

#[cfg(feature = "failpoints")]
macro_rules! failpoint {
    ($name:literal $(, $last_act:expr)?) => {
        fail::eval($name, |_| {
            $(drop($last_act);)?
            $crate::failpoint::die($name)
        });
    };
}

#[cfg(not(feature = "failpoints"))]
macro_rules! failpoint {
    ($name:literal $(, $last_act:expr)?) => {};
}

/// Whether the operation at this point is to fail. Can also be made to sleep: `NAME=sleep(1000)`.
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

/// Activates the failpoints that the environment names.
#[cfg(feature = "failpoints")]
pub(crate) fn arm() {
    // Armed for as long as the process lives.
    std::mem::forget(fail::FailScenario::setup());
}

/// Ends the process at once: nothing is flushed, nothing is dropped.
#[cfg(feature = "failpoints")]
pub(crate) fn die(name: &str) {
    eprintln!("failpoint {name}: the process dies here");
    std::process::abort();
}
