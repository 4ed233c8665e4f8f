//! `tidegate check FILE`: validates a configuration file, and prints its errors and warnings.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::{self, Environment, Loaded, Overrides};

/// Validate a configuration file, and print its errors and warnings.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration file to validate
    file: PathBuf,
}

/// Prints `FILE: ok` with a summary to standard output, or all errors to standard error. Prints warnings to standard
/// error in both cases.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let colour = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let environment = Environment::of_process();
    match config::load(&args.file, &environment, &Overrides::default()) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                writeln!(stderr(), "{}\n", warning.render(colour))?;
            }
            writeln!(
                stdout(),
                "{}: ok ({})",
                args.file.display(),
                summary(&loaded)
            )?;
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
