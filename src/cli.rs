//! Commands of the `tidegate` binary, one file each.

mod admin_client;
mod check;
mod completions;
mod config_file;
mod demo;
mod explain;
mod init;
#[cfg(feature = "lab")]
mod lab;
mod man;
mod schema;
mod serve;
mod top;

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  tidegate demo                                      try the gateway with a built-in sample API
  tidegate serve --upstream http://127.0.0.1:9000    run it in front of your API, without a file
  tidegate init                                      write a configuration to start from
  tidegate check tidegate.toml                       validate a configuration
  tidegate serve tidegate.toml                       run a configuration";

const WELCOME: &str = "\
Tidegate limits the requests of each client of an API, and executes requests with the same idempotency key once.

Commands to try:
  tidegate demo                                      a gateway in front of a built-in sample API
  tidegate serve --upstream http://127.0.0.1:9000    a gateway in front of your API, without a file
  tidegate init                                      writes tidegate.toml, a configuration to start from

`tidegate --help` lists all commands. `tidegate COMMAND --help` explains one, with examples.";

/// A throttling and idempotency gateway: exact Retry-After on 429, and requests with the same idempotency key are
/// executed at most once.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version = env!("TIDEGATE_VERSION"), after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway in front of a built-in sample API and print commands to try
    Demo(demo::Args),
    /// Run the gateway from a configuration file or for one upstream URL
    Serve(serve::Args),
    /// Reload the configuration of the running gateway; exit with 1 if it has errors
    #[command(after_help = admin_client::RELOAD_EXAMPLES)]
    Reload(admin_client::Args),
    /// Exit with 0 if the running gateway is ready
    #[command(after_help = admin_client::READY_EXAMPLES)]
    Ready(admin_client::Args),
    /// Show the keys that the running gateway rejects most, live
    #[command(after_help = top::EXAMPLES)]
    Top(top::Args),
    /// Write a commented configuration to start from
    Init(init::Args),
    /// Validate a configuration file, and print its errors and warnings
    Check(check::Args),
    /// Show the route, client, rate limits and outcome of a request without sending it
    Explain(explain::Args),
    /// Run a client command against scripted failures and judge how it retries
    #[cfg(feature = "lab")]
    Lab(Box<lab::Args>),
    /// Print the JSON Schema of the configuration
    Schema(schema::Args),
    /// Print a script that lets a shell complete commands and options
    Completions(completions::Args),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Args),
}

/// Runs the command of the parsed arguments and returns the exit code of the process.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Some(command) = cli.command else {
        writeln!(stdout(), "{WELCOME}")?;
        return Ok(ExitCode::SUCCESS);
    };
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Reload(args) => admin_client::reload(&args),
        Command::Ready(args) => admin_client::ready(&args),
        Command::Top(args) => top::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        #[cfg(feature = "lab")]
        Command::Lab(args) => Ok(lab::run(&args)),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
