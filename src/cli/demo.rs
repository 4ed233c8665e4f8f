//! `tidegate demo`: runs the gateway in front of a sample API and prints commands to try.

mod guide;
mod log_format;
mod sample;

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context as _;

use self::guide::Guide;
use self::log_format::DemoFormat;
use self::sample::SampleApi;
use super::serve::RunningGateway;
use crate::admin::listener::Admin;
use crate::config::{self, Environment, Overrides};
use crate::pipeline::log;

const CONFIG: &str = include_str!("../../config/demo.toml");

/// Variables that replace the servers in the file with the sample API.
const SERVERS: [&str; 2] = [
    "TIDEGATE__UPSTREAM__SAMPLE__SERVERS",
    "TIDEGATE__UPSTREAM__FAILURES__SERVERS",
];

const EXAMPLES: &str = "\
Examples:
  tidegate demo
  tidegate demo --listen 127.0.0.1:8081 --admin 127.0.0.1:9091    if the usual ports are in use";

/// Run the gateway in front of a built-in sample API and print commands to try.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Address to listen on instead of 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_listen)]
    listen: Option<SocketAddr>,
    /// Address of the admin listener instead of 127.0.0.1:9090
    #[arg(long, value_name = "ADDRESS", value_parser = config::parse_listen)]
    admin: Option<SocketAddr>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sample = SampleApi::bind().context("cannot start the sample API of the demo")?;
    let overrides = Overrides {
        listen: args.listen.into_iter().collect(),
        admin: args.admin,
        ..Overrides::default()
    };
    let servers = format!("[\"http://{}\"]", sample.address());
    let environment = SERVERS
        .iter()
        .fold(Environment::of_process(), |environment, name| {
            environment.with(name, &servers)
        });
    let loaded = match config::parse("demo.toml", CONFIG, &environment, &overrides) {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let _log = log::start_with(loaded.policy.log.clone(), DemoFormat::default())?;
    let running = RunningGateway::start(loaded, None).context(
        "cannot start the demo; if an address is in use, choose others with --listen and --admin",
    )?;
    let gateway = running.gateway.addresses()[0];
    let guide = Guide::new(gateway, running.admin.as_ref().map(Admin::address));
    println!("{}", guide.for_terminal());
    sample
        .serve(guide)
        .context("cannot start the sample API of the demo")?;
    running.run_until_stopped()?;
    Ok(ExitCode::SUCCESS)
}
