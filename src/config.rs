//! Reads a configuration file and compiles it to a [`Policy`].
//!
//! A configuration is read in steps, each on the whole of it: parse the TOML, apply what the environment and the command
//! line override, insert variables into strings, validate the tree against the schema, decode it, and resolve names. Every
//! step reports all problems instead of stopping at the first, and each [`Problem`] has a place in the file.
//!
//! Relative paths in a configuration start at the working directory. Only files that contain a secret (`token_file`,
//! `password_file`) are read here; certificates are read by their users.
//!
//! ```
//! use tidegate::config::{self, Environment, Overrides};
//!
//! let file = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n[[route]]\nname = \"all\"\npaht = \"/\"\n";
//! let errors = config::parse("gateway.toml", file, &Environment::default(), &Overrides::default()).unwrap_err();
//! assert!(errors.problems().iter().any(|problem| problem.line == 5 && problem.help.contains("path")));
//! ```

mod environment;
mod file;
mod located;
mod overrides;
mod policy;
mod problem;
mod scalar;
mod schema;
mod secrets;
mod shape;
mod source;
mod suggest;
mod tree;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use toml::de::Deserializer;

use crate::client::Trust;
use crate::idempotency;
use crate::intake::headers::{CountedHeaders, HeaderNames};
use crate::log::LogFormat;
use crate::respond::RespondSettings;
use crate::route::Matcher;
use crate::settings::ServerSettings;
use crate::store::StoreCapacity;
use crate::store::redis::settings::RedisSettings;
use crate::throttle::Limit;
use crate::upstream::{Upstream, UpstreamId};

pub use environment::Environment;
pub use overrides::Overrides;
pub use problem::{ConfigErrors, Problem, Severity};
pub use schema::schema;

use file::File;
use problem::Findings;

/// What the gateway runs on: a configuration that was found to be right.
#[derive(Debug)]
pub struct Policy {
    /// Listening, workers, deadlines, caps.
    pub(crate) server: ServerSettings,
    /// The admin listener, where there is one.
    pub(crate) admin: Option<AdminSettings>,
    /// Whose word is taken on who is calling.
    pub(crate) trust: Trust,
    /// How many buckets are tracked at most, all limits together.
    pub(crate) max_clients: usize,
    /// Where idempotency keys are remembered, and how many.
    pub(crate) store: StoreSettings,
    /// Settings of the responses that the gateway makes.
    pub(crate) respond: RespondSettings,
    /// How the gateway writes its log.
    pub(crate) log: LogSettings,
    /// Upstreams; an [`UpstreamId`] is an index here.
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    /// Limits; [`LimitId`](crate::throttle::LimitId) is an index here.
    pub(crate) limits: Vec<Arc<Limit>>,
    /// Routes in the order of the file.
    pub(crate) routes: Matcher<RoutePolicy>,
    /// Headers that limits, scopes and keys of all routes are read from.
    pub(crate) headers: HeaderNames,
}

/// One `[[route]]` of the configuration, without its patterns.
#[derive(Clone, Debug)]
pub(crate) struct RoutePolicy {
    /// Name of the route, also in metrics.
    pub(crate) name: Arc<str>,
    /// The upstream that receives its requests.
    pub(crate) upstream: UpstreamId,
    /// Limits in the order in which clients see them.
    pub(crate) limits: Vec<Arc<Limit>>,
    /// Tokens that a request takes from each of the limits.
    pub(crate) cost: NonZeroU32,
    /// Rule of its idempotency keys; `None` if they are only forwarded.
    pub(crate) idempotency: Option<Arc<idempotency::KeyRule>>,
    /// Whether its requests are written to the access log.
    pub(crate) access_log: bool,
    /// Headers that its limits and its scope are counted by.
    pub(crate) counted: CountedHeaders,
}

/// `[admin]` of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct AdminSettings {
    /// Where the admin listener listens.
    pub(crate) listen: SocketAddr,
    /// What a caller must present, where it must present anything.
    pub(crate) token: Option<String>,
}

/// `[store]` of the configuration, as far as it is about idempotency keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    /// What remembers them.
    pub(crate) backend: Backend,
    /// How many are remembered at most, and what their answers may take. Redis sees to its own.
    pub(crate) capacity: StoreCapacity,
}

/// What remembers idempotency keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Memory: they are gone with the process.
    #[default]
    Memory,
    /// A directory on disk.
    Disk {
        /// Where it is, or is to be.
        path: PathBuf,
    },
    /// A Redis, which other gateways may share.
    Redis(RedisSettings),
}

/// `[log]` of the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogSettings {
    /// How a log line is written.
    pub(crate) format: LogFormat,
    /// Whether requests are logged where no route says otherwise.
    pub(crate) access: bool,
}

/// A configuration that can be used, and what somebody should still look at.
#[derive(Debug)]
pub struct Loaded {
    /// What the gateway runs on.
    pub policy: Policy,
    /// What was found wanting, but not wrong.
    pub warnings: Vec<Problem>,
}

/// Reads a configuration file.
pub fn load(path: &Path, env: &Environment, overrides: &Overrides) -> Result<Loaded, ConfigErrors> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| {
        Problem::of_file(
            name.as_str(),
            format!("cannot read the configuration: {error}"),
            "name a file that exists and that the gateway may read".into(),
        )
    })?;
    match String::from_utf8(bytes) {
        Ok(text) => parse(&name, &text, env, overrides),
        Err(error) => Err(not_unicode(&name, &error)),
    }
}

fn not_unicode(name: &str, error: &std::string::FromUtf8Error) -> ConfigErrors {
    let mut findings = Findings::default();
    findings
        .sources
        .add(name, String::from_utf8_lossy(error.as_bytes()));
    let at = error.utf8_error().valid_up_to();
    let replacement = at..at + char::REPLACEMENT_CHARACTER.len_utf8();
    findings.error(
        &replacement,
        "this is not UTF-8",
        "save the file in the UTF-8 encoding",
    );
    findings.into_errors()
}

/// Reads a configuration from a text; `name` is what its problems call the file.
pub fn parse(
    name: &str,
    text: &str,
    env: &Environment,
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    let mut findings = Findings::default();
    findings.sources.add(name, text);
    let policy = read(text, env, overrides, &mut findings);
    match (policy, findings.has_errors()) {
        (Some(policy), false) => Ok(Loaded {
            policy,
            warnings: findings.into_problems(),
        }),
        _ => Err(findings.into_errors()),
    }
}

/// The configuration of a gateway that was given nothing but a URL: every request goes there, and
/// every client is held to the default limit.
pub fn policy_for_upstream(
    url: &str,
    env: &Environment,
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    let overrides = Overrides {
        upstream: Some(url.to_owned()),
        ..overrides.clone()
    };
    let text = include_str!("config/upstream_only.toml");
    parse("built-in configuration", text, env, &overrides)
}

fn read(
    text: &str,
    env: &Environment,
    overrides: &Overrides,
    findings: &mut Findings,
) -> Option<Policy> {
    let mut table = tree::read(text, findings)?;
    let schema = schema();
    overrides::apply_environment(table.get_mut(), &schema, env, findings);
    overrides::apply_flags(table.get_mut(), overrides, findings);
    secrets::hide(table.get_ref(), &schema, findings);
    environment::interpolate(table.get_mut(), env, findings);
    shape::check(&mut table, &schema, findings);
    let file = match File::deserialize(Deserializer::from(table)) {
        Ok(file) => file,
        Err(error) => {
            findings.error(
                &error.span().unwrap_or(0..0),
                error.message(),
                "compare with `tidegate schema`",
            );
            return None;
        }
    };
    policy::resolve(&file, findings)
}

#[cfg(test)]
mod tests;
