//! `tidegate completions`: prints a script that lets a shell complete commands and options.

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::Cli;

const EXAMPLES: &str = "\
Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate    with `fpath+=~/.zfunc` above `compinit` in ~/.zshrc
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish

The directory must exist. New shells use the script.";

/// Print a script that lets a shell complete commands and options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    shell: Shell,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // `generate` panics if it cannot write, for example because a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut script);
    stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
