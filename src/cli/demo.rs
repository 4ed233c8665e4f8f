//! `tidegate demo`: the gateway in front of a sample API, and what to try.

mod sample;

use std::process::ExitCode;

use anyhow::Context as _;

use super::serve::Running;
use crate::config::{self, Environment, Overrides};
use crate::log;

/// What the demo runs on.
const CONFIG: &str = include_str!("../../config/demo.toml");

/// Run the gateway in front of a built-in sample API, and say what to try.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Listen here instead of 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<std::net::SocketAddr>,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sample = sample::Api::start().context("cannot start the sample API")?;
    let overrides = Overrides {
        listen: args.listen.into_iter().collect(),
        upstream: Some(format!("http://{}", sample.address())),
    };
    let loaded = config::parse("demo.toml", CONFIG, &Environment::of_process(), &overrides);
    let policy = match loaded {
        Ok(loaded) => loaded.policy,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let _log = log::start(log::LogFormat::Text);
    let running = Running::start(policy)?;
    let gateway = running.gateway.addresses()[0];
    let admin = running
        .admin
        .as_ref()
        .map(crate::admin::listener::Admin::address);
    println!("{}", guide(gateway, admin));
    running.until_signalled()?;
    Ok(ExitCode::SUCCESS)
}

fn guide(gateway: std::net::SocketAddr, admin: Option<std::net::SocketAddr>) -> String {
    let mut guide = format!(
        "Tidegate stands at http://{gateway} in front of a sample payments API.

Registration: 1 request a second for each client, and 3 more at once.
Try it: four pass, the fifth is refused and told when to come back.

  for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{gateway}/o/client/register; done
  curl -i http://{gateway}/o/client/register

Another client has a bucket of its own (127.0.0.0/8 is a trusted proxy here):

  curl -i -H 'X-Forwarded-For: 203.0.113.7' http://{gateway}/o/client/register

Payments: 5 a second, and 10 more at once; one with an Idempotency-Key is made once, however often it is sent.
Send this twice: the second time it is the same payment, with `idempotent-replayed: true`.

  curl -i -X POST -H 'Idempotency-Key: order-17' -d '{{\"amount\":1200,\"currency\":\"EUR\"}}' http://{gateway}/v1/payments

The same key for another payment is refused with 422, and without a key each one is a new payment:

  curl -i -X POST -H 'Idempotency-Key: order-17' -d '{{\"amount\":9900,\"currency\":\"EUR\"}}' http://{gateway}/v1/payments
  curl -i -X POST -d '{{\"amount\":1200,\"currency\":\"EUR\"}}' http://{gateway}/v1/payments

What fails to order, for a client of yours to be tried on: 429, then 429 with `Retry-After: 2`, then 200.

  for i in 1 2 3; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{gateway}/flaky/429,429:2,200; done
"
    );
    if let Some(admin) = admin {
        let scrape = format!("curl -s http://{admin}/metrics | grep refused");
        guide.push_str(&["\nWhat the gateway counted:\n\n  ", &scrape, "\n"].concat());
    }
    guide.push_str("\nCtrl-C stops it.");
    guide
}
