//! What a caller does after each attempt.

use std::num::NonZeroU32;
use std::time::Duration;

use super::backoff::Backoff;
use super::classify::{Failure, Table};

/// What a caller does after each attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Which failures are tried again after.
    pub table: Table,
    /// How long it waits where nobody says.
    pub backoff: Backoff,
    /// Attempts in all, the first included.
    pub attempts: NonZeroU32,
    /// No attempt begins later than this after the first; `None` for no bound.
    pub deadline: Option<Duration>,
    /// What it makes of a `Retry-After`.
    pub retry_after: Heed,
}

/// What a caller makes of a `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heed {
    /// It waits as long as it is told, but never longer than this.
    Obeyed {
        /// The longest wait anybody can impose.
        most: Duration,
    },
    /// It does not look.
    Ignored,
}

/// The attempts of one request, as far as they went.
#[derive(Clone, Debug)]
pub struct Course {
    policy: Policy,
    /// Attempts made.
    made: u32,
    previous: Option<Duration>,
}

/// What comes after an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another one.
    Retry(Wait),
    /// Nothing.
    GiveUp(GiveUp),
}

/// How long to wait for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// This long.
    pub delay: Duration,
    /// Whether that is what a `Retry-After` said.
    pub told: bool,
}

/// Why there is no further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// Another would fail like this one.
    NotWorthIt,
    /// There were as many as there may be.
    Exhausted,
    /// The next one would begin too late.
    TooLate,
}

impl Policy {
    /// Before the first attempt.
    pub fn begin(self) -> Course {
        Course {
            policy: self,
            made: 0,
            previous: None,
        }
    }
}

impl Course {
    /// An attempt failed, `elapsed` after the first began; `retry_after` is what its answer told the caller to
    /// wait, if it did.
    pub fn failed(
        &mut self,
        failure: Failure,
        retry_after: Option<Duration>,
        elapsed: Duration,
        random: &mut fastrand::Rng,
    ) -> Next {
        let (_, _, _, _) = (failure, retry_after, elapsed, random);
        self.made += 1;
        Next::GiveUp(GiveUp::NotWorthIt)
    }

    /// Attempts that failed so far.
    pub fn made(&self) -> u32 {
        self.made
    }
}
