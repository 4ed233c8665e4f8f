//! `tidegate man`: writes the manual pages. Packages are built with it, so `--help` does not list it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory as _;

use super::Cli;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory in which the pages are written
    directory: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), &args.directory)?;
    Ok(ExitCode::SUCCESS)
}
