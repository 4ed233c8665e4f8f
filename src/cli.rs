//! The commands of the binary, one file each.

mod check;
mod demo;
mod explain;
mod schema;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A throttling and idempotency gateway: truthful 429s, and one execution for a key.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway in front of a built-in sample API, and say what to try
    Demo(demo::Args),
    /// Run a configuration, or just stand in front of one upstream
    Serve(serve::Args),
    /// Validate a configuration
    Check(check::Args),
    /// Say which route, client and limits a request would meet, without making it
    Explain(explain::Args),
    /// Print the JSON Schema of the configuration
    Schema(schema::Args),
}

/// Runs the command that was asked for.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Schema(args) => schema::run(&args),
    }
}
