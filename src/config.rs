//! From the file a person writes to the policy the gateway runs on.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::client::Trust;
use crate::gateway::ServerSettings;
use crate::respond::Manner;
use crate::route::Routes;
use crate::throttle::Limit;
use crate::upstream::Upstream;

/// What the gateway runs on: a configuration that was found to be right.
#[derive(Debug)]
pub struct Policy {
    /// Listening, workers, deadlines, caps.
    pub server: ServerSettings,
    /// The admin listener, where there is one.
    pub admin: Option<AdminSettings>,
    /// Whose word is taken on who is calling.
    pub trust: Trust,
    /// How many buckets are tracked at most, all limits together.
    pub max_clients: usize,
    /// How the gateway speaks.
    pub manner: Manner,
    /// How the gateway writes its log.
    pub log: LogSettings,
    /// Upstreams; [`UpstreamId`](crate::upstream::UpstreamId) is an index here.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Limits; [`LimitId`](crate::throttle::LimitId) is an index here.
    pub limits: Vec<Arc<Limit>>,
    /// Routes, ready to match.
    pub routes: Routes,
}

/// `[admin]` of the configuration.
#[derive(Clone, Debug)]
pub struct AdminSettings {
    /// Where the admin listener listens.
    pub listen: SocketAddr,
    /// What a caller must present, where it must present anything.
    pub token: Option<String>,
}

/// `[log]` of the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSettings {
    /// How a log line is written.
    pub format: LogFormat,
}

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For a person.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
