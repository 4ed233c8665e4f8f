//! Client of the admin listener of a running gateway, and the commands `ready` and `reload`.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::body::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::config_file::ConfigFile;
use crate::config::{self, Environment};

pub(super) const READY_EXAMPLES: &str = "\
Examples:
  tidegate ready
  tidegate ready --admin http://127.0.0.1:9090";

pub(super) const RELOAD_EXAMPLES: &str = "\
Examples:
  tidegate reload
  tidegate reload --admin http://127.0.0.1:9090 --token-file /etc/tidegate/admin-token";

const USAGE: &str = "Name the admin listener: --admin http://127.0.0.1:9090";

/// Longer than the timeout of the admin listener.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Admin listener of the running gateway.
#[derive(Debug, clap::Args)]
#[group(id = "admin_listener")]
pub(super) struct Args {
    /// URL of the admin listener. Default: `[admin]` of ./tidegate.toml, or else of /etc/tidegate/tidegate.toml
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// File with the token of the admin listener. Default without --admin: the token of the same configuration
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

pub(super) fn ready(args: &Args) -> anyhow::Result<ExitCode> {
    let response = args.send(&Method::GET, "/readyz")?;
    stdout().write_all(response.body())?;
    Ok(match response.status() {
        StatusCode::OK => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

pub(super) fn reload(args: &Args) -> anyhow::Result<ExitCode> {
    let response = args.send(&Method::POST, "/admin/v1/reload")?;
    let body: Value = serde_json::from_slice(response.body())
        .context("the response is not that of an admin listener of Tidegate")?;
    let text = |name: &str| body[name].as_str().unwrap_or_default();
    if response.status() != StatusCode::OK {
        eprintln!("{}", text("detail"));
        if response.status() == StatusCode::UNAUTHORIZED {
            eprintln!(
                "If the token has changed, name the file of the previous one with --token-file."
            );
        }
        return Ok(ExitCode::FAILURE);
    }
    let mut out = stdout();
    writeln!(
        out,
        "{}: reloaded (SHA-256 {})",
        text("source"),
        text("hash")
    )?;
    for key in body["pending_restart"].as_array().into_iter().flatten() {
        writeln!(
            out,
            "restart the gateway to change {}",
            key.as_str().unwrap_or_default()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    pub(super) fn send(&self, method: &Method, path: &str) -> anyhow::Result<Response<Bytes>> {
        let (authority, token) = self.find()?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &authority);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .context("the token is not visible ASCII")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let exchange =
            async { tokio::time::timeout(TIMEOUT, exchange(&authority, request)).await? };
        let response = runtime.block_on(exchange);
        response.with_context(|| format!("no response from the admin listener on {authority}"))
    }

    /// Returns host and port of the listener, and its token.
    fn find(&self) -> anyhow::Result<(String, Option<String>)> {
        let (authority, configured) = match &self.admin {
            Some(url) => (authority(url)?, None),
            None => configured()?,
        };
        let Some(path) = &self.token_file else {
            return Ok((authority, configured));
        };
        let token = std::fs::read_to_string(path);
        let token = token.with_context(|| format!("cannot read {}", path.display()))?;
        Ok((authority, Some(token.trim_end().to_owned())))
    }
}

fn authority(url: &str) -> anyhow::Result<String> {
    let uri: Uri = url
        .parse()
        .with_context(|| format!("{url} is not a URL\n\n{USAGE}"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) if authority.port().is_some() => Ok(authority.to_string()),
        _ => bail!("{url} is not a URL of the form http://HOST:PORT\n\n{USAGE}"),
    }
}

/// Returns the address and the token of `[admin]` in the default configuration file.
fn configured() -> anyhow::Result<(String, Option<String>)> {
    let path = ConfigFile::default().find(USAGE)?;
    let admin = config::load_admin(&path, &Environment::of_process());
    let admin = admin.map_err(|errors| {
        anyhow::Error::msg(format!(
            "cannot find the admin listener\n\n{errors}\n{USAGE}"
        ))
    })?;
    let Some(admin) = admin else {
        bail!(
            "{} configures no admin listener: add `[admin] listen = \"127.0.0.1:9090\"`",
            path.display()
        );
    };
    let token = admin.token.map(|token| token.reveal().to_owned());
    Ok((admin.listen.to_string(), token))
}

async fn exchange(
    authority: &str,
    request: Request<Empty<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    let stream = TcpStream::connect(authority).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(head, body))
}
