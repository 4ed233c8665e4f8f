//! `tidegate top`: shows the keys that the limits of a running gateway reject most, live.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use http::{Method, StatusCode};
use serde::Deserialize;

use super::admin_client;
use crate::request::log_fields::Escaped;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --by early                keys that return before the time that their 429 stated
  tidegate top --by near --once          keys close to their quota, printed once";

/// Keys per limit that are requested.
const MAX_KEYS: usize = 50;

/// Number of printed keys if the output is not a terminal.
const LINES: usize = 50;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    admin: admin_client::Args,
    /// Which keys: most rejected, returning early, or near their quota
    #[arg(long, default_value = "rejected")]
    by: By,
    /// Time that is counted
    #[arg(long, default_value = "5m")]
    window: Window,
    /// Show only this limit
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Print once and exit; the default if the output is not a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Rejected,
    Early,
    Near,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Window {
    #[value(name = "5m")]
    FiveMinutes,
    #[value(name = "1h")]
    Hour,
}

#[derive(Debug, Deserialize)]
struct Limits {
    limits: Vec<Limit>,
}

#[derive(Debug, Deserialize)]
struct Limit {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Top {
    limit: String,
    keys: Vec<Key>,
    left_out: usize,
}

#[derive(Debug, Deserialize)]
struct Key {
    #[serde(skip)]
    limit: String,
    key: String,
    used: Option<f64>,
    rejected: u64,
    error: u64,
    early: u64,
    attempts_per_admission: Option<f64>,
    user_agent: Option<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_live = stdout().is_terminal() && !args.once;
    loop {
        let (keys, left_out) = fetch(args)?;
        let size = terminal_size().filter(|_| stdout().is_terminal());
        let (lines, width) = size.unwrap_or((LINES + 3, usize::MAX));
        let table = table(args, &keys, left_out, lines.saturating_sub(3), width);
        // Moves to the top left, and clears what follows.
        let clear = if is_live { "\x1b[H\x1b[J" } else { "" };
        stdout().write_all(format!("{clear}{table}").as_bytes())?;
        stdout().flush()?;
        if !is_live {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_secs(args.interval));
    }
}

/// Returns the keys of all limits, and the number of keys that the gateway left out.
fn fetch(args: &Args) -> anyhow::Result<(Vec<Key>, usize)> {
    let names = match &args.limit {
        Some(name) => vec![name.clone()],
        None => {
            let Limits { limits } = get(args, "/admin/v1/limits")?;
            limits.into_iter().map(|limit| limit.name).collect()
        }
    };
    let by = args.by.to_possible_value().context("the value is listed")?;
    let window = args
        .window
        .to_possible_value()
        .context("the value is listed")?;
    let (by, window) = (by.get_name(), window.get_name());
    let (mut keys, mut left_out) = (Vec::new(), 0);
    for name in names {
        let path = format!("/admin/v1/limits/{name}/top?by={by}&window={window}&max={MAX_KEYS}");
        let top: Top = get(args, &path)?;
        left_out += top.left_out;
        keys.extend(top.keys.into_iter().map(|key| Key {
            limit: top.limit.clone(),
            ..key
        }));
    }
    keys.sort_by(|a, b| match args.by {
        By::Rejected => b.rejected.cmp(&a.rejected),
        By::Early => b.early.cmp(&a.early),
        By::Near => b
            .used
            .unwrap_or_default()
            .total_cmp(&a.used.unwrap_or_default()),
    });
    Ok((keys, left_out))
}

fn get<T: serde::de::DeserializeOwned>(args: &Args, path: &str) -> anyhow::Result<T> {
    let response = args.admin.send(&Method::GET, path)?;
    if response.status() != StatusCode::OK {
        let problem: serde_json::Value =
            serde_json::from_slice(response.body()).unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or_default();
        bail!("{}: {detail}", response.status());
    }
    serde_json::from_slice(response.body())
        .context("the response is not that of an admin listener of this version of Tidegate")
}

fn table(args: &Args, keys: &[Key], left_out: usize, lines: usize, width: usize) -> String {
    let what = match args.by {
        By::Rejected => "most rejected keys",
        By::Early => "keys that return early",
        By::Near => "keys near their quota that are not rejected",
    };
    let window = match args.window {
        Window::FiveMinutes => "five minutes",
        Window::Hour => "hour",
    };
    let hidden = keys.len().saturating_sub(lines) + left_out;
    let mut text = format!("{what} of the last {window}");
    if hidden > 0 {
        write!(text, ", {hidden} more").expect("a String accepts all text");
    }
    let requests = match args.by {
        By::Near => "REQUESTS",
        _ => "REJECTED",
    };
    let mut rows = vec![
        [
            "LIMIT",
            "KEY",
            requests,
            "EARLY",
            "ATTEMPTS",
            "USED",
            "USER-AGENT",
        ]
        .map(String::from),
    ];
    rows.extend(keys.iter().take(lines).map(Key::row));
    let columns: Vec<usize> = (0..rows[0].len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        })
        .collect();
    for row in rows {
        let cells = row.iter().zip(&columns).enumerate();
        let cells: Vec<String> = cells
            .map(|(index, (cell, &width))| match index {
                2..=5 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            })
            .collect();
        let line: String = cells.join("  ").chars().take(width).collect();
        write!(text, "\n{}", line.trim_end()).expect("a String accepts all text");
    }
    if keys.is_empty() {
        text.push_str("\n(none)");
    }
    text.push('\n');
    text
}

impl Key {
    fn row(&self) -> [String; 7] {
        let error = match self.error {
            0 => String::new(),
            error => format!("+{error}"),
        };
        let attempts = self.attempts_per_admission.map(|it| format!("{it:.1}"));
        let used = self.used.map(|used| format!("{:.0} %", used * 100.0));
        let agent = self.user_agent.as_deref().unwrap_or_default();
        [
            self.limit.clone(),
            Escaped(&self.key).to_string(),
            format!("{}{error}", self.rejected),
            self.early.to_string(),
            attempts.unwrap_or_else(|| "-".into()),
            used.unwrap_or_else(|| "-".into()),
            Escaped(agent).to_string().replace("\\u{20}", " "),
        ]
    }
}

/// Lines and columns of the terminal.
fn terminal_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    let (lines, columns) = (usize::from(size.ws_row), usize::from(size.ws_col));
    (lines > 0 && columns > 0).then_some((lines, columns))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn keys(json: &str) -> Vec<Key> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_table_is_aligned_and_escapes_what_clients_send() {
        let args = Command::parse_from(["top"]).args;
        let keys = keys(
            r#"[{"key":"a\u001b[31m\u202e b","used":1.0,"rejected":1200,"error":3,"early":1100,
                 "attempts_per_admission":12.34,"user_agent":"curl/7\n.88 x"},
                {"key":"192.0.2.7","used":null,"rejected":7,"error":0,"early":0,
                 "attempts_per_admission":null,"user_agent":null}]"#,
        );
        let lines = [
            "most rejected keys of the last five minutes, 5 more",
            "LIMIT  KEY                         REJECTED  EARLY  ATTEMPTS   USED  USER-AGENT",
            r"       a\u{1b}[31m\u{202e}\u{20}b    1200+3   1100      12.3  100 %  curl/7\u{a}.88 x",
            "       192.0.2.7                          7      0         -      -",
            "",
        ];
        assert_eq!(table(&args, &keys, 5, 50, usize::MAX), lines.join("\n"));
    }

    #[test]
    fn the_table_fits_the_terminal() {
        let args = Command::parse_from(["top", "--by", "near"]).args;
        let key = r#"{"key":"192.0.2.7","used":0.9,"rejected":7,"error":0,"early":0,
                      "attempts_per_admission":null,"user_agent":null}"#;
        let keys = keys(&format!("[{}]", [key; 9].join(",")));
        let shown = table(&args, &keys, 0, 4, 30);
        assert!(shown.starts_with(
            "keys near their quota that are not rejected of the last five minutes, 5 more\n"
        ));
        assert_eq!(shown.lines().count(), 6);
        assert!(shown.lines().skip(1).all(|line| line.chars().count() <= 30));
        assert!(table(&args, &[], 0, 4, 30).ends_with("(none)\n"));
    }
}
