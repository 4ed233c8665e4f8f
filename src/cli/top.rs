//! `tidegate top`: shows the keys that the limits of a running gateway reject most, live.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use http::{Method, StatusCode};
use serde_json::Value;

use super::admin_client;
use crate::request::log_fields::Escaped;

pub(super) const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --by early                keys that return before the time that their 429 stated
  tidegate top --by near --once          keys close to their quota, printed once";

const INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of keys of a limit, and of lines if the output is not a terminal.
const MAX_KEYS: usize = 50;

const HEADINGS: [&str; 7] = [
    "LIMIT", "KEY", "REJECTED", "EARLY", "ATTEMPTS", "USED", "AGENT",
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    admin: admin_client::Args,
    /// Which keys: most rejected, returning early, or near their quota
    #[arg(long, default_value = "rejected")]
    by: By,
    /// Show only this limit
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Print once and exit; the default if the output is not a terminal
    #[arg(long)]
    once: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Rejected,
    Early,
    Near,
}

impl By {
    /// Name in the admin API, and title.
    fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Rejected => ("rejected", "most rejected keys"),
            Self::Early => ("early", "keys that return early"),
            Self::Near => ("near", "keys near their quota that are not rejected"),
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let is_live = stdout().is_terminal() && !args.once;
    loop {
        let (rows, left_out) = fetch(args)?;
        let size = rustix::termios::tcgetwinsize(stdout()).ok();
        let size = size.filter(|size| size.ws_row > 3 && size.ws_col > 0);
        let (lines, width) = size.map_or((MAX_KEYS, usize::MAX), |size| {
            (usize::from(size.ws_row) - 3, size.ws_col.into())
        });
        // Moves to the top left, and clears what follows.
        let clear = if is_live { "\x1b[H\x1b[J" } else { "" };
        let table = table(args.by, rows, left_out, lines, width);
        write!(stdout(), "{clear}{table}")?;
        if !is_live {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Returns a row for each key, and the number of further keys.
fn fetch(args: &Args) -> anyhow::Result<(Vec<[String; 7]>, u64)> {
    let names = if let Some(name) = &args.limit {
        vec![name.clone()]
    } else {
        let limits = get(args, "/admin/v1/limits")?;
        let limits = limits["limits"].as_array().into_iter().flatten();
        let names = limits.filter_map(|limit| limit["name"].as_str());
        names.map(Into::into).collect()
    };
    let by = args.by.describe().0;
    let (mut keys, mut left_out) = (Vec::new(), 0);
    for name in names {
        let path = format!("/admin/v1/limits/{name}/top?by={by}&max={MAX_KEYS}");
        let top = get(args, &path)?;
        left_out += top["left_out"].as_u64().unwrap_or_default();
        let of_limit = top["keys"].as_array().into_iter().flatten();
        keys.extend(of_limit.map(|key| (name.clone(), key.clone())));
    }
    let rank = |key: &Value| match args.by {
        By::Near => key["used"].as_f64().unwrap_or_default(),
        By::Rejected | By::Early => key[by].as_f64().unwrap_or_default(),
    };
    keys.sort_by(|(_, a), (_, b)| rank(b).total_cmp(&rank(a)));
    let rows = keys.iter().map(|(limit, key)| row(limit, key)).collect();
    Ok((rows, left_out))
}

fn get(args: &Args, path: &str) -> anyhow::Result<Value> {
    let response = args.admin.send(&Method::GET, path)?;
    let body: Value = serde_json::from_slice(response.body())
        .context("the response is not that of an admin listener of Tidegate")?;
    if response.status() != StatusCode::OK {
        bail!("{}", body["detail"].as_str().unwrap_or_default());
    }
    Ok(body)
}

fn row(limit: &str, key: &Value) -> [String; 7] {
    let number = |name: &str| key[name].as_u64().unwrap_or_default();
    let error = match number("error") {
        0 => String::new(),
        error => format!("+{error}"),
    };
    let rounded = |name: &str, factor: f64, digits, unit| match key[name].as_f64() {
        Some(value) => format!("{:.digits$}{unit}", value * factor),
        None => "-".into(),
    };
    [
        limit.into(),
        Escaped(key["key"].as_str().unwrap_or_default()).to_string(),
        format!("{}{error}", number("rejected")),
        number("early").to_string(),
        rounded("attempts_per_admission", 1.0, 1, ""),
        rounded("used", 100.0, 0, " %"),
        Escaped(key["user_agent"].as_str().unwrap_or("-")).to_string(),
    ]
}

/// Formats at most `lines` rows in `width` columns of a terminal.
fn table(by: By, mut rows: Vec<[String; 7]>, left_out: u64, lines: usize, width: usize) -> String {
    let hidden = rows.len().saturating_sub(lines) as u64 + left_out;
    rows.truncate(lines);
    let more = match hidden {
        _ if rows.is_empty() => ": none".into(),
        0 => String::new(),
        hidden => format!(", {hidden} more"),
    };
    let mut text = format!("{}, last 2.5 to 5 minutes{more}\n", by.describe().1);
    if rows.is_empty() {
        return text;
    }
    rows.insert(0, HEADINGS.map(Into::into));
    let longest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 7] = std::array::from_fn(|column| longest(column).unwrap_or_default());
    for row in &rows {
        let cells = row.iter().zip(widths).enumerate();
        let cells: Vec<_> = cells
            .map(|(column, (cell, width))| match column {
                2..=5 => format!("{cell:>width$}"),
                _ => format!("{cell:<width$}"),
            })
            .collect();
        let line: String = cells.join("  ").chars().take(width).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_is_aligned_and_escapes_what_clients_send() {
        let hostile = json!({
            "key": "a\u{1b}[31m\u{202e} b", "used": 1.0, "rejected": 1200, "error": 3, "early": 1100,
            "attempts_per_admission": 12.34, "user_agent": "curl/7\n.88"
        });
        let plain = json!({
            "key": "192.0.2.7", "used": null, "rejected": 7, "error": 0, "early": 0,
            "attempts_per_admission": null, "user_agent": null
        });
        let rows = vec![row("device", &hostile), row("device", &plain)];
        let lines = [
            "most rejected keys, last 2.5 to 5 minutes, 5 more",
            "LIMIT   KEY                         REJECTED  EARLY  ATTEMPTS   USED  AGENT",
            r"device  a\u{1b}[31m\u{202e}\u{20}b    1200+3   1100      12.3  100 %  curl/7\u{a}.88",
            "device  192.0.2.7                          7      0         -      -  -",
            "",
        ];
        let shown = table(By::Rejected, rows, 5, 50, usize::MAX);
        assert_eq!(shown, lines.join("\n"));
    }

    #[test]
    fn the_table_fits_the_terminal() {
        let rows = vec![[""; 7].map(|_| "192.0.2.7".to_owned()); 9];
        let shown = table(By::Near, rows, 0, 4, 30);
        let title = "keys near their quota that are not rejected, last 2.5 to 5 minutes, 5 more\n";
        assert!(shown.starts_with(title), "{shown}");
        assert_eq!(shown.lines().count(), 6);
        assert!(shown.lines().skip(1).all(|line| line.chars().count() <= 30));
        let none = table(By::Early, Vec::new(), 0, 4, 30);
        assert_eq!(
            none,
            "keys that return early, last 2.5 to 5 minutes: none\n"
        );
    }
}
