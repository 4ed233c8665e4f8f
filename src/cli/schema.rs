//! `tidegate schema`: prints the JSON Schema of the configuration, for editors and validators.

use std::io::{Write, stdout};
use std::process::ExitCode;

use crate::config;

const EXAMPLES: &str = "\
Examples:
  tidegate schema > tidegate.schema.json    then write `#:schema tidegate.schema.json` at the top of tidegate.toml";

/// Print the JSON Schema of the configuration, for editors and validators.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {}

pub(super) fn run(_: &Args) -> anyhow::Result<ExitCode> {
    let schema = serde_json::to_string_pretty(&config::schema())?;
    writeln!(stdout(), "{schema}")?;
    Ok(ExitCode::SUCCESS)
}
