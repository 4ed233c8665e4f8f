//! Policies with a name.
//!
//! Six callers that exist, each with its own idea of patience. The numbers are theirs and are not to be tuned
//! here; a program that wants others takes the nearest policy and changes a field of it.
//!
//! None has a deadline, because none of their documents has one: whoever has somebody waiting sets it.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::backoff::{Backoff, Jitter, Strategy};
use super::classify::Table;
use super::policy::{Policy, RetryAfterPolicy};

/// The longest wait a `Retry-After` can impose on those who obey it: the longest any preset chooses itself.
const MOST_TOLD: Duration = Duration::from_mins(5);

/// A policy with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// `authorization-api`: patient with limits, ±25 %. Three attempts; five are recommended.
    AuthorizationApi,
    /// `sender`: 1, 2, 4 s and no `Retry-After`.
    Sender,
    /// `interactive`: somebody is waiting.
    Interactive,
    /// `standard`: for most callers.
    Standard,
    /// `batch`: nobody is waiting.
    Batch,
    /// `traffic-control`: three attempts and half a second of jitter.
    TrafficControl,
}

/// There is no preset with that name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no preset `{name}`; there are {}", names())]
pub struct UnknownPreset {
    name: String,
}

impl Preset {
    /// All there are.
    pub const ALL: [Self; 6] = [
        Self::AuthorizationApi,
        Self::Sender,
        Self::Interactive,
        Self::Standard,
        Self::Batch,
        Self::TrafficControl,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::AuthorizationApi => "authorization-api",
            Self::Sender => "sender",
            Self::Interactive => "interactive",
            Self::Standard => "standard",
            Self::Batch => "batch",
            Self::TrafficControl => "traffic-control",
        }
    }

    /// What it says.
    pub fn policy(self) -> Policy {
        let (attempts, retry_after) = match self {
            Self::AuthorizationApi | Self::Interactive | Self::TrafficControl => (3, OBEYED),
            // Three retries.
            Self::Sender => (4, RetryAfterPolicy::Ignored),
            Self::Standard => (5, OBEYED),
            Self::Batch => (10, OBEYED),
        };
        Policy {
            table: self.table(),
            backoff: self.backoff(),
            attempts: NonZeroU32::new(attempts).expect("none of them is zero"),
            deadline: None,
            retry_after,
        }
    }

    fn table(self) -> Table {
        match self {
            Self::AuthorizationApi => Table::AuthorizationApi,
            Self::Sender => Table::Sender,
            Self::Interactive | Self::Standard | Self::Batch => Table::Handbook,
            Self::TrafficControl => Table::TrafficControl,
        }
    }

    fn backoff(self) -> Backoff {
        let millis = Duration::from_millis;
        let (base, cap, jitter) = match self {
            Self::AuthorizationApi => (millis(1_000), millis(32_000), Jitter::Percent(0.25)),
            // Only the number of attempts ends its growth.
            Self::Sender => (millis(1_000), Duration::MAX, Jitter::None),
            Self::Interactive => (millis(100), millis(3_000), Jitter::Proportional(0.2)),
            Self::Standard => (millis(1_000), millis(30_000), Jitter::Proportional(0.3)),
            Self::Batch => (millis(5_000), millis(300_000), Jitter::Proportional(0.5)),
            Self::TrafficControl => (millis(500), millis(20_000), Jitter::Added(millis(500))),
        };
        Backoff {
            strategy: Strategy::Exponential,
            base,
            cap,
            factor: 2.0,
            jitter,
        }
    }
}

const OBEYED: RetryAfterPolicy = RetryAfterPolicy::Obeyed { most: MOST_TOLD };

fn names() -> String {
    Preset::ALL.map(Preset::name).join(", ")
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == name);
        found.ok_or_else(|| UnknownPreset { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base, cap, attempts and jitter, as the documents write them.
    #[test]
    fn each_preset_has_the_numbers_of_its_document() {
        let written = |preset: Preset| {
            let policy = preset.policy();
            let Backoff {
                base, cap, jitter, ..
            } = policy.backoff;
            let attempts = policy.attempts;
            format!("{base:?} {cap:?} {attempts} {jitter:?}")
        };
        assert_eq!(written(Preset::AuthorizationApi), "1s 32s 3 Percent(0.25)");
        assert_eq!(written(Preset::Interactive), "100ms 3s 3 Proportional(0.2)");
        assert_eq!(written(Preset::Standard), "1s 30s 5 Proportional(0.3)");
        assert_eq!(written(Preset::Batch), "5s 300s 10 Proportional(0.5)");
        assert_eq!(written(Preset::TrafficControl), "500ms 20s 3 Added(500ms)");
        let sender = Preset::Sender.policy();
        assert_eq!(sender.attempts.get(), 4);
        assert_eq!(sender.backoff.base, Duration::from_secs(1));
        assert_eq!(sender.backoff.jitter, Jitter::None);
    }

    #[test]
    fn each_preset_doubles_its_waits_and_only_the_sender_ignores_a_retry_after() {
        for preset in Preset::ALL {
            let policy = preset.policy();
            assert_eq!(policy.backoff.strategy, Strategy::Exponential, "{preset}");
            assert!((policy.backoff.factor - 2.0).abs() < f64::EPSILON);
            let ignored = policy.retry_after == RetryAfterPolicy::Ignored;
            assert_eq!(ignored, preset == Preset::Sender, "{preset}");
        }
    }

    #[test]
    fn a_preset_is_read_by_the_name_it_is_written_with() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(preset));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = "Standard".parse::<Preset>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no preset `Standard`; there are authorization-api, sender, interactive, standard, batch, \
             traffic-control"
        );
    }
}
