//! Places where a test can have the process die.
//!
//! Only builds with the `failpoints` feature have them, and then only those that the environment names
//! act: `FAILPOINTS='after-claim=return'` kills the process the moment it gets there, as a crash would.
//! In any other build `failpoint!` is nothing at all. What is named beside a place is done before the end.

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

pub(crate) use failpoint;

/// Takes up what the environment says about failpoints.
#[cfg(feature = "failpoints")]
pub fn arm() {
    // Armed for as long as the process lives.
    std::mem::forget(fail::FailScenario::setup());
}

/// Ends the process at once: nothing is flushed, nothing is dropped.
#[cfg(feature = "failpoints")]
pub(crate) fn die(name: &str) {
    eprintln!("failpoint {name}: the process dies here");
    std::process::abort();
}
