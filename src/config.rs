//! Reads a configuration file and compiles it to a [`Policy`].
//!
//! The steps are:
//!
//! 1. Parse the TOML text. If it has syntax errors, continue with the lines without errors.
//! 2. Apply the overrides of environment variables and command-line flags.
//! 3. Replace `${VARIABLE}` in strings.
//! 4. Validate the tree of TOML values against the JSON Schema, and set the defaults that the schema contains.
//! 5. Decode the tree into serde types.
//! 6. Resolve names, such as the upstream of a route, and compare values with each other.
//!
//! Each step reports all problems that it finds, and each [`ConfigProblem`] has a location in the file.
//!
//! Relative paths in a configuration are relative to the working directory. Step 6 reads the files that the
//! configuration names: certificates, private keys and secrets. So an unusable file has a location, too.
//!
//! ```
//! use tidegate::config::{self, Environment, Overrides};
//!
//! let file = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n[[route]]\nname = \"all\"\npaht = \"/\"\n";
//! let errors = config::parse("gateway.toml", file, &Environment::default(), &Overrides::default()).unwrap_err();
//! assert!(errors.problems().iter().any(|problem| problem.line == 5 && problem.help.contains("path")));
//! ```

mod file;
#[cfg(feature = "lab")]
pub(crate) mod lab;
mod located;
mod overrides;
mod policy;
mod problem;
mod scalar;
mod schema;
mod secrets;
mod source;
pub(crate) mod suggest;
mod syntax;
mod tree;
mod validate;
mod variables;

use std::io::Read as _;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, Deserializer};

use crate::idempotency;
use crate::request::client::Trust;
use crate::request::headers::{HeaderNames, IdentifyingHeaders};
use crate::request::methods::KnownMethods;
use crate::request::route::Matcher;
use crate::request::{EntryRule, EntrySettings};
use crate::respond::RespondSettings;
use crate::scenario::{CountBy, Scenario};
use crate::store::StoreCapacity;
use crate::store::redis::settings::{Password, RedisSettings};
use crate::throttle::Limit;
use crate::upstream::{Timeouts, Upstream};

pub use overrides::Overrides;
pub use problem::{ConfigErrors, ConfigProblem, Severity};
pub use schema::schema;
pub use variables::Environment;

use file::File;
pub(crate) use file::{LogFormat, LogLevel, LogSettings};
pub(crate) use policy::server::ServerSettings;
use problem::Findings;
use schema::SCHEMA;

/// Maximum size of a configuration file in bytes. A running gateway that reloads a larger one could lack the memory.
const MAX_FILE: u64 = 4 << 20;

/// Valid configuration in the form that the gateway uses: names are resolved, and defaults are set.
#[derive(Debug)]
pub struct Policy {
    /// `[server]`: listeners, workers, timeouts, size limits, and maximum numbers of connections and streams.
    pub(crate) server: ServerSettings,
    /// `[admin]`. `None` means that `admin.listen` is not set, so there is no admin listener.
    pub(crate) admin: Option<AdminSettings>,
    /// `[client]`: trusted proxies, exempt networks, IPv6 prefix length.
    pub(crate) trust: Trust,
    /// `store.max_clients`: maximum number of rate limit buckets that the gateway tracks, over all rate limits.
    pub(crate) max_clients: usize,
    /// `[store]`: where rate limit buckets and idempotency records are stored.
    pub(crate) store: StoreSettings,
    /// `[respond]`: headers of the responses that the gateway creates itself, such as rejections.
    pub(crate) respond: RespondSettings,
    /// `[log]`: format of log lines, and whether requests are written to the access log.
    pub(crate) log: LogSettings,
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    pub(crate) limits: Vec<Arc<Limit>>,
    /// Scenarios in the order of their names.
    pub(crate) scenarios: Vec<Arc<Scenario>>,
    /// Routes in the order of the file. The first route that matches a request applies.
    pub(crate) routes: Matcher<RoutePolicy>,
    /// Request headers that some route reads: for the key of a rate limit, an idempotency scope or an idempotency key.
    pub(crate) headers: HeaderNames,
    /// Methods whose case is checked: the registered ones, and those in `methods` of routes and of `idempotency`.
    pub(crate) methods: KnownMethods,
}

/// One `[[route]]` of the configuration, without `path` and `methods`, which are in the [`Matcher`].
#[derive(Clone, Debug)]
pub(crate) struct RoutePolicy {
    /// Name of the route, used in metrics and in the access log.
    pub(crate) name: Arc<str>,
    /// Upstream that receives the requests of the route. `None` only for a route with a scenario: requests that pass
    /// the scenario then get 200.
    pub(crate) upstream: Option<RouteUpstream>,
    /// Scenario that responds to the requests of the route before they reach the upstream.
    pub(crate) scenario: Option<Arc<Scenario>>,
    /// Rate limits of the route, in the order of its `limits`.
    pub(crate) limits: Vec<Arc<Limit>>,
    /// Number of tokens that a request takes from each rate limit.
    pub(crate) cost: NonZeroU32,
    /// How the gateway handles idempotency keys. `None` means that it only forwards them.
    pub(crate) idempotency: Option<Arc<idempotency::KeyRule>>,
    /// Number of bytes of a request body that are buffered before a server is contacted; 0 for none.
    pub(crate) request_buffer: usize,
    /// Whether requests of the route are written to the access log.
    pub(crate) access_log: bool,
    /// Request headers in the keys of the rate limits and in the idempotency scope of the route.
    pub(crate) identifying_headers: IdentifyingHeaders,
}

impl EntryRule for RoutePolicy {
    fn identifying_headers(&self) -> &IdentifyingHeaders {
        &self.identifying_headers
    }

    fn takes_test_ids(&self) -> bool {
        let scenario = self.scenario.as_ref();
        scenario.is_some_and(|scenario| scenario.by == CountBy::Test)
    }
}

impl Policy {
    pub(crate) fn entry_settings<'a, R: EntryRule>(
        &'a self,
        routes: &'a Matcher<R>,
    ) -> EntrySettings<'a, R> {
        EntrySettings {
            max_body: self.server.limits.body_bytes,
            names: &self.headers,
            methods: &self.methods,
            trust: &self.trust,
            routes,
            responds_to_preflights: self.respond.cors.is_some(),
            takes_test_ids: self.scenarios.iter().any(|it| it.by == CountBy::Test),
        }
    }

    /// Keeps the values of `running` that only a restart can change. Returns the keys whose new values have to wait for
    /// a restart.
    pub(crate) fn keep_until_restart(&mut self, running: &Self) -> Vec<&'static str> {
        let mut pending = Vec::new();
        macro_rules! keep {
            ($($key:literal: $($field:ident).+;)+) => {$(
                if self.$($field).+ != running.$($field).+ {
                    pending.push($key);
                    self.$($field).+.clone_from(&running.$($field).+);
                }
            )+};
        }
        keep! {
            "server.listen": server.listen;
            "server.workers": server.workers;
            "server.max_connections": server.limits.connections;
            "server.max_connections_per_client": server.limits.connections_per_client;
            "server.max_buffered": server.buffers.total;
            "server.max_buffered_per_client": server.buffers.per_client;
            "server.tunnel_timeout": server.tunnels.idle;
            "server.max_tunnels_per_client": server.tunnels.per_client;
            "store.max_clients": max_clients;
        }
        let mut store = running.store.clone();
        if let (Backend::Redis(kept), Backend::Redis(new)) =
            (&mut store.backend, &self.store.backend)
        {
            // By default, the lease follows the timeouts of the routes, which a reload changes.
            kept.lease = new.lease;
        }
        if self.store != store {
            pending.push("store");
            self.store = store;
        }
        let listen = |policy: &Self| policy.admin.as_ref().map(|admin| admin.listen);
        if listen(self) != listen(running) {
            pending.push("admin.listen");
            let token = self.admin.take().map(|admin| admin.token);
            self.admin.clone_from(&running.admin);
            if let (Some(admin), Some(token)) = (&mut self.admin, token) {
                admin.token = token;
            }
        }
        pending
    }
}

/// Upstream of a route.
#[derive(Clone, Debug)]
pub(crate) struct RouteUpstream {
    pub(crate) upstream: Arc<Upstream>,
    /// Timeouts of requests to the upstream: those of the upstream, or those that the route sets instead.
    pub(crate) timeouts: Timeouts,
}

/// `[admin]` of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct AdminSettings {
    /// Address of the admin listener.
    pub(crate) listen: SocketAddr,
    /// Bearer token that requests must have, except those to `/`, `/livez` and `/readyz`. If `None`, requests need no
    /// token on a loopback address, and only `/livez` and `/readyz` are available on other addresses.
    pub(crate) token: Option<Password>,
}

/// `[store]` of the configuration, except `max_clients`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    /// Where rate limit buckets and idempotency records are stored.
    pub(crate) backend: Backend,
    /// Maximum number of idempotency keys and maximum total size of their responses in a memory store or disk store. A
    /// Redis store does not use these values, because its bounds are in [`RedisSettings`].
    pub(crate) capacity: StoreCapacity,
}

/// `backend` of `[store]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Backend {
    /// Memory of the process. All data is lost when the process ends.
    #[default]
    Memory,
    /// Directory on disk. Idempotency records survive a restart; rate limit buckets are in memory.
    Disk {
        /// Path of the directory. The store creates it if it does not exist.
        path: PathBuf,
    },
    /// Redis server or cluster, which several gateways can share.
    Redis(RedisSettings),
}

/// Valid configuration and the warnings about it.
#[derive(Debug)]
pub struct Loaded {
    /// The valid configuration.
    pub policy: Policy,
    /// SHA-256 of the configuration file, in hexadecimal.
    pub hash: String,
    /// Warnings, in the order of the file.
    pub warnings: Vec<ConfigProblem>,
}

/// Reads and validates a configuration file, and the files that it names. An error contains all problems that were
/// found.
pub fn load(path: &Path, env: &Environment, overrides: &Overrides) -> Result<Loaded, ConfigErrors> {
    load_for(Purpose::Serve, path, env, overrides)
}

/// Reads and validates a configuration file, but not the files that it names. The policy has no secrets from files, so
/// it must not be used to run a gateway.
pub fn load_without_files(
    path: &Path,
    env: &Environment,
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    load_for(Purpose::Inspect, path, env, overrides)
}

fn load_for(
    purpose: Purpose,
    path: &Path,
    env: &Environment,
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    let (name, text) = read_file(path)?;
    parse_for(purpose, &name, &text, env, overrides)
}

/// Reads only `[admin]` of a configuration file. Errors in other sections do not matter, nor do syntax errors after which
/// the parser finds the section.
pub(crate) fn load_admin(
    path: &Path,
    env: &Environment,
) -> Result<Option<AdminSettings>, ConfigErrors> {
    let (name, text) = read_file(path)?;
    let mut findings = Findings::default();
    findings.sources.add(&*name, &*text);
    let mut table = tree::parse(&text);
    overrides::apply_environment(table.get_mut(), &SCHEMA, env, &mut findings);
    tree::retain_sections(&mut table, &["admin"]);
    let file = decode(table, env, &mut findings);
    let admin = file.and_then(|file| policy::admin(&file.admin, Purpose::Serve, &mut findings));
    if findings.has_errors() {
        return Err(findings.into_errors());
    }
    Ok(admin)
}

/// Returns the name of a configuration file in problems, and its text.
pub(crate) fn read_file(path: &Path) -> Result<(String, String), ConfigErrors> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(path);
    let read = opened.and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    let problem = match read {
        Ok(length) if length as u64 > MAX_FILE => Some("it is larger than 4 MiB".to_owned()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    if let Some(problem) = problem {
        let title = format!("cannot read the configuration file: {problem}");
        let help = "check the path and the permissions of the file";
        return Err(ConfigProblem::of_file(name.as_str(), title, help.into()).into());
    }
    let text = String::from_utf8(bytes).map_err(|error| not_unicode(&name, &error))?;
    Ok((name, text))
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
        "the configuration file is not valid UTF-8",
        "save the file in the UTF-8 encoding",
    );
    findings.into_errors()
}

/// Validates a configuration from `text`, and the files that it names. Problems show `name` as the file name.
pub fn parse(
    name: &str,
    text: &str,
    env: &Environment,
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    parse_for(Purpose::Serve, name, text, env, overrides)
}

fn parse_for(
    purpose: Purpose,
    name: &str,
    text: &str,
    env: &Environment,
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    let mut findings = Findings::default();
    findings.sources.add(name, text);
    let policy = read(purpose, text, env, overrides, &mut findings);
    loaded(policy, hash(text), findings)
}

pub(crate) fn hash(text: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("{hash:?}").trim_start_matches("SHA256:").to_owned()
}

/// Returns the policy and its warnings, or all problems if there is an error.
fn loaded(
    policy: Option<Policy>,
    hash: String,
    findings: Findings,
) -> Result<Loaded, ConfigErrors> {
    match (policy, findings.has_errors()) {
        (Some(policy), false) => Ok(Loaded {
            policy,
            hash,
            warnings: findings.into_problems(),
        }),
        _ => Err(findings.into_errors()),
    }
}

/// Returns the configuration of `tidegate serve --upstream URL`. All requests are forwarded to `upstream` of the
/// overrides. If they contain a `limit`, it applies to each client, with this `burst` above the steady rate.
pub fn policy_for_upstream(
    burst: Option<u32>,
    env: &Environment,
    overrides: &Overrides,
) -> Result<Loaded, ConfigErrors> {
    let limits = overrides
        .limit
        .as_ref()
        .map_or("", |_| "limits = [\"client\"]\n");
    let burst = burst.map_or_else(String::new, |burst| {
        format!("[limit.client]\nburst = {burst}\n")
    });
    let text = format!("[[route]]\nname = \"all\"\npath = \"/\"\n{limits}{burst}");
    parse("configuration of --upstream", &text, env, overrides)
}

/// Parses the address of a listener. The error says which address to write instead.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, impl std::error::Error + use<>> {
    text.parse::<scalar::Listen>().map(|listen| listen.0)
}

fn read(
    purpose: Purpose,
    text: &str,
    env: &Environment,
    overrides: &Overrides,
    findings: &mut Findings,
) -> Option<Policy> {
    let text = syntax::check(text, findings)?;
    let mut table = tree::parse(&text);
    overrides::apply_environment(table.get_mut(), &SCHEMA, env, findings);
    overrides::apply_flags(table.get_mut(), overrides, findings);
    let file = decode(table, env, findings)?;
    policy::resolve(&file, purpose, findings)
}

/// Replaces variables, validates the tree of TOML values, and decodes it.
fn decode(
    mut table: Spanned<DeTable<'_>>,
    env: &Environment,
    findings: &mut Findings,
) -> Option<File> {
    secrets::redact(table.get_ref(), &SCHEMA, findings);
    variables::interpolate(table.get_mut(), env, findings);
    validate::check(&mut table, findings);
    match File::deserialize(Deserializer::from(table)) {
        Ok(file) => Some(file),
        Err(error) => {
            findings.error(
                &error.span().unwrap_or(0..0),
                error.message(),
                "compare the file with the output of `tidegate schema`",
            );
            None
        }
    }
}

/// What a configuration is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// A gateway. It warns about names that no route uses, and about a scenario beside limits or idempotency keys.
    Serve,
    /// An inspection of the configuration of a gateway, without the files that it names.
    Inspect,
    /// A run of `tidegate lab`. Its listener can refuse connections.
    Lab,
}

impl Purpose {
    /// Whether the files that the configuration names are read.
    fn reads_files(self) -> bool {
        self != Self::Inspect
    }
}

#[cfg(test)]
mod tests;
