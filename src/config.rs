//! Reads a configuration file and compiles it to a [`Policy`].
//!
//! The steps are:
//!
//! 1. Parse the TOML text. If it has syntax errors, only these are reported.
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
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, Deserializer};

pub use overrides::Overrides;
pub use policy::Policy;
pub use problem::{ConfigErrors, ConfigProblem, Severity};
pub use schema::schema;
pub use variables::Environment;

use file::File;
pub(crate) use file::{LogFormat, LogLevel, LogSettings};
pub(crate) use policy::server::ServerSettings;
pub(crate) use policy::{AdminSettings, Backend, RoutePolicy, RouteUpstream, StoreSettings};
use problem::Findings;
use schema::SCHEMA;

/// In bytes. A running gateway that reloads a larger file could lack the memory.
const MAX_FILE: u64 = 4 << 20;

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
    if admin.is_some() && !findings.has_errors() {
        return Ok(admin);
    }
    // A syntax error can be the cause, or hide the section. Its line is shown without the value, which can be a secret.
    let mut syntax_errors = Findings::default();
    syntax_errors.sources.add(name, &*text);
    match syntax::parse(&text, &mut syntax_errors) {
        None => Err(syntax_errors.into_errors()),
        Some(_) if findings.has_errors() => Err(findings.into_errors()),
        Some(_) => Ok(None),
    }
}

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
    findings.syntax_error(
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
    let mut table = syntax::parse(text, findings)?;
    overrides::apply_environment(table.get_mut(), &SCHEMA, env, findings);
    overrides::apply_flags(table.get_mut(), overrides, findings);
    let file = decode(table, env, findings)?;
    policy::resolve(&file, purpose, findings)
}

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Warns about names that no route uses, and about a scenario beside limits or idempotency keys.
    Serve,
    /// Does not read the files that the configuration names.
    Inspect,
    /// `tidegate lab`, whose listener can refuse connections.
    Lab,
}

impl Purpose {
    fn reads_files(self) -> bool {
        self != Self::Inspect
    }
}

#[cfg(test)]
mod tests;
