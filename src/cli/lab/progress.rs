//! Progress of a scenario on standard error: a line that changes in a terminal, or else one line per scenario.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval between two changes of the line.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Progress of one scenario. Clones show the same line.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// `None` if standard error is not a terminal.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Announces a scenario that takes `at_most` this time.
    pub(super) fn start(scenario: &str, at_most: Duration) -> Self {
        let at_most = readable(at_most);
        if !io::stderr().is_terminal() {
            eprintln!("scenario {scenario}: running the command, at most {at_most}");
            return Self { bar: None };
        }
        let style = ProgressStyle::with_template("{spinner} {prefix}  {elapsed} of {msg}")
            .expect("the template is valid");
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
            .with_style(style)
            .with_prefix(format!("scenario {scenario}"))
            .with_message(format!("at most {at_most}"));
        bar.enable_steady_tick(REDRAW_INTERVAL);
        Self { bar: Some(bar) }
    }

    /// Whether the progress is a line that changes.
    pub(super) fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// Shows a new state after the name of the scenario and the elapsed time.
    pub(super) fn update(&self, state: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(state);
        }
    }

    /// Writes a line of the command's output above the line of the progress.
    pub(super) fn write(&self, line: &[u8]) {
        let write = || {
            let mut stderr = io::stderr().lock();
            // An error is ignored: standard error is closed, so it cannot be reported.
            let _ = stderr.write_all(line);
            if !line.ends_with(b"\n") {
                let _ = stderr.write_all(b"\n");
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Removes the line.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns a time limit as text, without fractions of a second if it is long.
pub(super) fn readable(limit: Duration) -> humantime::FormattedDuration {
    let rounded = match limit.as_secs() {
        0..10 => Duration::new(limit.as_secs(), limit.subsec_millis() * 1_000_000),
        seconds => Duration::from_secs(seconds),
    };
    humantime::format_duration(rounded)
}
