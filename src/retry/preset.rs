//! Policies with a name.

use super::policy::Policy;

/// A policy with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// `authorization-api`: patient with limits, ±25 %.
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
        use std::num::NonZeroU32;
        use std::time::Duration;

        use super::{Backoff, Heed, Jitter, Strategy, Table};
        Policy {
            table: Table::Handbook,
            backoff: Backoff {
                strategy: Strategy::Exponential,
                base: Duration::from_secs(1),
                cap: Duration::from_secs(30),
                factor: 2.0,
                jitter: Jitter::Proportional(0.3),
            },
            attempts: NonZeroU32::new(5).expect("not zero"),
            deadline: None,
            retry_after: Heed::Obeyed {
                most: Duration::from_mins(5),
            },
        }
    }
}
