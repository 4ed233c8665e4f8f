//! `tidegate explain`: shows how the gateway would handle a request, without sending it.

use std::io::{Write as _, stdout};
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::config_file::ConfigFile;
use crate::config::{self, Environment, Overrides};
use crate::pipeline::explain::{explain, request};

const EXAMPLES: &str = "\
Examples:
  tidegate explain tidegate.toml --path /v1/payments
  tidegate explain tidegate.toml --method POST --path /v1/payments --header 'Idempotency-Key: order-17'
  tidegate explain tidegate.toml --path / --peer 10.0.0.7 --header 'X-Forwarded-For: 203.0.113.9'";

/// Show the route, client, rate limits and outcome of a request without sending it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// Method of the request
    #[arg(long, default_value = "GET")]
    method: String,
    /// Path of the request as the client sends it, with an optional query
    #[arg(long, value_parser = parse_path)]
    path: String,
    /// Request header; can be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// IP address of the other end of the connection: the client or a proxy
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    peer: IpAddr,
}

/// Without a slash at the start, the path would be the host of the request.
fn parse_path(text: &str) -> Result<String, String> {
    if text.starts_with('/') || text == "*" {
        return Ok(text.to_owned());
    }
    let path = match text.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]).to_owned(),
        None => format!("/{text}"),
    };
    Err(format!("a path starts with `/`; write `{path}`"))
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let path = args
        .file
        .find("Name the file: tidegate explain FILE --path PATH")?;
    let environment = Environment::of_process();
    // Neither certificates nor secrets change the outcome of a request.
    let loaded = config::load_without_files(&path, &environment, &Overrides::default());
    let policy = match loaded {
        Ok(loaded) => loaded.policy,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let request = match request(&args.method, &args.path, headers(&args.headers)?) {
        Ok(request) => request,
        Err("method") => bail!("--method '{}' is not a valid request method", args.method),
        Err(_) => bail!("--path '{}' is not a valid request path", args.path),
    };
    writeln!(stdout(), "{}", explain(&policy, request, args.peer))?;
    Ok(ExitCode::SUCCESS)
}

fn headers(lines: &[String]) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            bail!("--header '{line}' has no colon: write 'Name: value'");
        };
        let name: HeaderName = name
            .trim()
            .parse()
            .with_context(|| format!("--header: '{name}' is not a valid header name"))?;
        let value: HeaderValue = value
            .trim()
            .parse()
            .with_context(|| format!("--header: '{value}' is not a valid header value"))?;
        headers.append(name, value);
    }
    Ok(headers)
}
