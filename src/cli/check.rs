//! `tidegate check`: validates a configuration file, and prints its errors and warnings.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

use super::config_file::ConfigFile;
use crate::config::{self, Environment, Loaded, Overrides};

const EXAMPLES: &str = "\
Examples:
  tidegate check tidegate.toml
  tidegate check --no-files tidegate.toml    without certificates and secrets, as in a CI job
  tidegate check --strict tidegate.toml      fails on warnings, too

Exit codes: 0 if the configuration is valid; otherwise 1. Warnings fail only with --strict.";

/// Validate a configuration file, and print its errors and warnings.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Do not read the files that the configuration names: certificates, private keys, tokens and passwords
    #[arg(long)]
    no_files: bool,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,
}

/// Prints `FILE: ok` with a summary to standard output, and errors and warnings to standard error.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = args.file.find("Name the file: tidegate check FILE")?;
    let colour = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let load = if args.no_files {
        config::load_without_files
    } else {
        config::load
    };
    match load(&path, &Environment::of_process(), &Overrides::default()) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                writeln!(stderr(), "{}\n", warning.render(colour))?;
            }
            if args.strict && !loaded.warnings.is_empty() {
                let warnings = count(loaded.warnings.len(), "warning");
                writeln!(
                    stderr(),
                    "{}: {warnings}, which --strict rejects",
                    path.display()
                )?;
                return Ok(ExitCode::FAILURE);
            }
            writeln!(stdout(), "{}: ok ({})", path.display(), summary(&loaded))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(errors) => {
            writeln!(stderr(), "{}", errors.render(colour))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn summary(loaded: &Loaded) -> String {
    let policy = &loaded.policy;
    [
        count(policy.routes.len(), "route"),
        count(policy.limits.len(), "limit"),
        count(policy.upstreams.len(), "upstream"),
    ]
    .join(", ")
}

fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_1_has_a_singular_noun() {
        assert_eq!(count(1, "route"), "1 route");
        assert_eq!(count(0, "limit"), "0 limits");
    }
}
