//! `tidegate demo`: runs the gateway in front of a sample API and prints commands to try.

mod sample;

use std::process::ExitCode;

use anyhow::Context as _;

use super::serve::{OnHangup, RunningGateway};
use crate::config::{self, Environment, Overrides};
use crate::log;

/// Configuration file of the demo. The demo replaces the upstream in the file with the address of the sample API.
const CONFIG: &str = include_str!("../../config/demo.toml");

/// Run the gateway in front of a built-in sample API and print commands to try.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address to listen on instead of 127.0.0.1:8080
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<std::net::SocketAddr>,
}

/// Starts the sample API and the gateway, prints the guide, and runs until SIGTERM, SIGINT or SIGHUP.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sample = sample::SampleApi::start().context("cannot start the sample API of the demo")?;
    let overrides = Overrides {
        listen: args.listen.into_iter().collect(),
        upstream: Some(format!("http://{}", sample.address())),
        ..Overrides::default()
    };
    let loaded = config::parse("demo.toml", CONFIG, &Environment::of_process(), &overrides);
    let policy = match loaded {
        Ok(loaded) => loaded.policy,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let _log = log::start(policy.log);
    let running = RunningGateway::start(policy, OnHangup::Shutdown)?;
    let gateway = running.gateway.addresses()[0];
    let admin = running
        .admin
        .as_ref()
        .map(crate::admin::listener::Admin::address);
    println!("{}", guide(gateway, admin));
    running.run_until_stopped()?;
    Ok(ExitCode::SUCCESS)
}

fn guide(gateway: std::net::SocketAddr, admin: Option<std::net::SocketAddr>) -> String {
    let mut guide = format!(
        "Tidegate is running at http://{gateway} in front of a sample payments API.

Registration: 1 request per second per client, with a burst of 3.
The first four requests get 200. The fifth gets 429 with Retry-After.

  for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{gateway}/o/client/register; done
  curl -i http://{gateway}/o/client/register

Each client has its own rate limit. The demo trusts X-Forwarded-For from 127.0.0.0/8, so this is another client:

  curl -i -H 'X-Forwarded-For: 203.0.113.7' http://{gateway}/o/client/register

Payments: 5 requests per second per client, with a burst of 10. Requests with the same Idempotency-Key make one payment.
Send this request twice. The second response is the same payment, with `idempotent-replayed: true`.

  curl -i -X POST -H 'Idempotency-Key: order-17' -d '{{\"amount\":1200,\"currency\":\"EUR\"}}' http://{gateway}/v1/payments

The same key with another payment gets 422. Without a key, each request makes a new payment:

  curl -i -X POST -H 'Idempotency-Key: order-17' -d '{{\"amount\":9900,\"currency\":\"EUR\"}}' http://{gateway}/v1/payments
  curl -i -X POST -d '{{\"amount\":1200,\"currency\":\"EUR\"}}' http://{gateway}/v1/payments

The sample API can fail by a script, to test the retries of your client: 429, then 429 with `Retry-After: 2`, then 200.

  for i in 1 2 3; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{gateway}/flaky/429,429:2,200; done
"
    );
    if let Some(admin) = admin {
        let scrape = format!("curl -s http://{admin}/metrics | grep refused");
        guide.push_str(
            &[
                "\nMetrics with the number of rejected requests:\n\n  ",
                &scrape,
                "\n",
            ]
            .concat(),
        );
    }
    guide.push_str("\nPress Ctrl-C to stop.");
    guide
}
