//! Admin API. Its listener runs on its own thread, so metric scrapes and client requests do not delay each other. An
//! application that embeds the stages has no listener and uses only `stage_metrics`.

#[cfg(feature = "gateway")]
mod auth;
#[cfg(feature = "gateway")]
mod config;
#[cfg(feature = "gateway")]
mod dashboard;
#[cfg(feature = "gateway")]
mod events;
#[cfg(feature = "gateway")]
mod keys;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "gateway")]
mod limits;
#[cfg(feature = "gateway")]
pub(crate) mod listener;
#[cfg(feature = "gateway")]
mod openapi;
#[cfg(feature = "gateway")]
mod overview;
#[cfg(feature = "gateway")]
mod problem;
#[cfg(feature = "gateway")]
mod scrape;
#[cfg(feature = "gateway")]
mod serve;
pub(crate) mod stage_metrics;
#[cfg(feature = "gateway")]
mod traffic;
#[cfg(feature = "gateway")]
mod upstreams;

use std::time::{Duration, SystemTime};

#[cfg(feature = "gateway")]
use axum::http::StatusCode;

use crate::clock::{Clock, Moment};

/// Fractions of a millisecond are cut off.
#[expect(
    clippy::cast_precision_loss,
    reason = "millisecond precision is sufficient"
)]
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}

#[cfg(feature = "gateway")]
fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(feature = "gateway")]
fn timestamp(clock: &Clock, moment: Moment) -> String {
    let (now, wall) = (clock.now(), clock.wall());
    rfc3339(wall - now.since(moment) + moment.since(now))
}

/// The problem of a name that the configuration does not have.
#[cfg(feature = "gateway")]
fn not_found<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> problem::AdminProblem {
    let names = names.collect::<Vec<_>>().join(", ");
    let detail = format!("The configuration has no such {what}. Configured: {names}");
    problem::AdminProblem::plain(StatusCode::NOT_FOUND, detail)
}

/// Decodes percent escapes once, so `%2525` becomes `%25`. Returns `None` if an escape is malformed.
#[cfg(feature = "gateway")]
fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high * 16 + low).expect("two hexadecimal digits fit in a byte")
            }
            byte => byte,
        });
    }
    Some(decoded)
}
