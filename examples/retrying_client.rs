//! A client with the retry policy of the authorization API, in four cases: temporary 429s, a 429 with `Retry-After`,
//! permanent 429s, and a real rate limit.
//!
//! Run these commands in two terminals:
//!
//! ```text
//! cargo run -- demo
//! cargo run --example retrying_client
//! ```
//!
//! The example takes about 35 seconds. The first argument sets the address of the demo gateway (default:
//! 127.0.0.1:8080). This is the expected output, but delays without `Retry-After` vary by ±25 %:
//!
//! ```text
//! Three 429s, then a 200
//! Rate limit hit (attempt 1/5), retrying in 1s...
//! Rate limit hit (attempt 2/5), retrying in 2s...
//! Rate limit hit (attempt 3/5), retrying in 4s...
//!   200 OK after 7.4 s
//!
//! A 429 with Retry-After: 10, then a 200
//! Rate limit hit (attempt 1/5), retrying in 10s...
//!   200 OK after 10.0 s
//!
//! Only 429s
//! Rate limit hit (attempt 1/5), retrying in 1s...
//! Rate limit hit (attempt 2/5), retrying in 2s...
//! Rate limit hit (attempt 3/5), retrying in 5s...
//! Rate limit hit (attempt 4/5), retrying in 9s...
//!   rate limit exceeded: gave up after 5 attempts: 429 Too Many Requests after 16.9 s
//!
//! Five calls with a limit of one per second and a burst of three
//!   200 OK after 0.0 s
//!   200 OK after 0.0 s
//!   200 OK after 0.0 s
//!   200 OK after 0.0 s
//! Rate limit hit (attempt 1/5), retrying in 1s...
//!   200 OK after 1.0 s
//! ```

use std::error::Error;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tidegate::retry::environment::{self, Settings};
use tidegate::retry::events::Console;
use tidegate::retry::{ErrorResponse, Failure, GaveUp, RetryAfter, RetryableError, Retrying};
use tokio::net::TcpStream;

/// Error of one attempt to call the API.
#[derive(Debug, Error)]
enum CallError {
    #[error(transparent)]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    ErrorResponse(#[from] ErrorResponse),
}

impl RetryableError for CallError {
    fn failure(&self) -> Option<Failure> {
        match self {
            Self::Connect(error) => error.failure(),
            Self::Http(error) if error.is_incomplete_message() => Some(Failure::Disconnected),
            Self::Http(error) => Failure::of_error(error),
            Self::ErrorResponse(response) => response.failure(),
        }
    }

    fn retry_after(&self) -> Option<RetryAfter> {
        match self {
            Self::ErrorResponse(response) => response.retry_after(),
            Self::Connect(_) | Self::Http(_) => None,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1);
    let server = server.as_deref().unwrap_or("127.0.0.1:8080");
    // The client makes five attempts, as the document of the API recommends, unless `HTTP_RETRY_ATTEMPTS` is set.
    let settings = Settings::authorization_api(|name| {
        let recommended = (name == "HTTP_RETRY_ATTEMPTS").then(|| "5".to_owned());
        environment::of_process(name).or(recommended)
    })?;
    // The demo stores the position in a scripted sequence of responses per path and query. Each run has a new query, so
    // that it gets each sequence from the beginning.
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();

    println!("Three 429s, then a 200");
    call_with_retries(
        server,
        &format!("/flaky/429,429,429,200?run={run}"),
        settings,
    )
    .await;
    println!("\nA 429 with Retry-After: 10, then a 200");
    call_with_retries(server, &format!("/flaky/429:10,200?run={run}"), settings).await;
    println!("\nOnly 429s");
    call_with_retries(server, &format!("/flaky/429?run={run}"), settings).await;
    println!("\nFive calls with a limit of one per second and a burst of three");
    for _ in 0..5 {
        call_with_retries(server, "/o/client/register", settings).await;
    }
    Ok(())
}

/// Sends a GET request for `path` with retries, and prints the result.
async fn call_with_retries(server: &str, path: &str, settings: Settings) {
    let began = Instant::now();
    let result: Result<StatusCode, GaveUp<CallError>> = Retrying::from(settings)
        .observer(Console::new(std::io::stdout()))
        .run(async |_| call(server, path).await)
        .await;
    let took = began.elapsed().as_secs_f64();
    match result {
        Ok(status) => println!("  {status} after {took:.1} s"),
        Err(gave_up) => println!("  {gave_up}: {} after {took:.1} s", gave_up.last.error()),
    }
}

/// Sends one GET request on a new connection. A status of 400 or above is an error.
async fn call(server: &str, path: &str) -> Result<StatusCode, CallError> {
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path)
        .header(header::HOST, server)
        .body(Empty::<Bytes>::new())
        .expect("a valid path");
    let response = sender.send_request(request).await?;
    Ok(ErrorResponse::check(response)?.status())
}
