//! Presets: retry policies with a name.
//!
//! The numbers of each preset are those in the document of an existing client, so they must not change here. The
//! documents specify no deadline. A program whose users wait for the response should set one.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::backoff::{Backoff, Jitter, Strategy};
use super::classify::RetryTable;
use super::policy::{RetryAfterPolicy, RetryPolicy};

/// A longer `Retry-After` is shortened to this value, which is also the longest backoff of a preset before jitter.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// Name of a retry policy whose numbers come from the document of an existing client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "kebab-case")
)]
pub enum Preset {
    /// For an authorization API that rate-limits its callers: 3 attempts, backoff 1 s to 32 s, jitter ±25 %.
    AuthorizationApi,
    /// 4 attempts, backoff 1 s, 2 s and 4 s, no jitter. `Retry-After` is ignored.
    Sender,
    /// For requests that a user waits for: 3 attempts, backoff 100 ms to 3 s, jitter +20 %.
    Interactive,
    /// For most applications: 5 attempts, backoff 1 s to 30 s, jitter +30 %.
    Standard,
    /// For background jobs: 10 attempts, backoff 5 s to 5 min, jitter +50 %.
    Batch,
    /// 3 attempts, backoff 500 ms to 20 s, jitter up to +500 ms.
    TrafficControl,
}

/// Error of a name that is not the name of a preset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown retry preset `{name}`; expected one of: {}", names())]
pub struct UnknownPreset {
    name: String,
}

impl Preset {
    /// All presets, in the order in which errors list their names.
    pub const ALL: [Self; 6] = [
        Self::AuthorizationApi,
        Self::Sender,
        Self::Interactive,
        Self::Standard,
        Self::Batch,
        Self::TrafficControl,
    ];

    /// Returns the name of the preset, such as `authorization-api`.
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

    /// Returns the policy, whose fields a program can change.
    pub fn policy(self) -> RetryPolicy {
        let (attempts, retry_after) = match self {
            Self::AuthorizationApi | Self::Interactive | Self::TrafficControl => (3, OBEYED),
            // The document specifies three retries.
            Self::Sender => (4, RetryAfterPolicy::Ignored),
            Self::Standard => (5, OBEYED),
            Self::Batch => (10, OBEYED),
        };
        RetryPolicy {
            table: self.table(),
            backoff: self.backoff(),
            attempts: NonZeroU32::new(attempts).expect("not zero"),
            deadline: None,
            retry_after,
        }
    }

    fn table(self) -> RetryTable {
        match self {
            Self::AuthorizationApi => RetryTable::AuthorizationApi,
            Self::Sender => RetryTable::Sender,
            Self::Interactive | Self::Standard | Self::Batch => RetryTable::Handbook,
            Self::TrafficControl => RetryTable::TrafficControl,
        }
    }

    fn backoff(self) -> Backoff {
        let millis = Duration::from_millis;
        let (base, cap, jitter) = match self {
            Self::AuthorizationApi => (millis(1_000), millis(32_000), Jitter::Percent(0.25)),
            // The document specifies no cap. The longest of the three delays is 4 s.
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

const OBEYED: RetryAfterPolicy = RetryAfterPolicy::Obeyed {
    most: MAX_RETRY_AFTER,
};

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

    /// Compares base, cap, number of attempts and jitter of each preset with its document.
    #[test]
    fn each_preset_has_the_values_of_its_document() {
        let text = |preset: Preset| {
            let policy = preset.policy();
            let Backoff {
                base, cap, jitter, ..
            } = policy.backoff;
            let attempts = policy.attempts;
            format!("{base:?} {cap:?} {attempts} {jitter:?}")
        };
        assert_eq!(text(Preset::AuthorizationApi), "1s 32s 3 Percent(0.25)");
        assert_eq!(text(Preset::Interactive), "100ms 3s 3 Proportional(0.2)");
        assert_eq!(text(Preset::Standard), "1s 30s 5 Proportional(0.3)");
        assert_eq!(text(Preset::Batch), "5s 300s 10 Proportional(0.5)");
        assert_eq!(text(Preset::TrafficControl), "500ms 20s 3 Added(500ms)");
        let sender = Preset::Sender.policy();
        assert_eq!(sender.attempts.get(), 4);
        assert_eq!(sender.backoff.base, Duration::from_secs(1));
        assert_eq!(sender.backoff.jitter, Jitter::None);
    }

    #[test]
    fn the_name_of_a_preset_parses_as_the_preset() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(preset));
        }
    }

    #[test]
    fn the_error_of_an_unknown_name_lists_the_known_names() {
        let error = "Standard".parse::<Preset>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown retry preset `Standard`; expected one of: authorization-api, sender, interactive, standard, \
             batch, traffic-control"
        );
    }
}
