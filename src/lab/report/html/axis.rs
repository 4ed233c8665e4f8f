//! Time axis of a timeline. Positions are percentages of the width.

use std::fmt::{self, Write as _};

/// Maximum number of intervals between ticks.
const INTERVALS: f64 = 6.0;

pub(super) struct Axis {
    end_ms: f64,
}

impl Axis {
    /// The axis ends at 1 ms if the time is shorter.
    pub(super) fn until(end_ms: f64) -> Self {
        Self {
            end_ms: end_ms.max(1.0),
        }
    }

    pub(super) fn end_ms(&self) -> f64 {
        self.end_ms
    }

    /// A time after the end is at the end.
    pub(super) fn x(&self, ms: f64) -> f64 {
        rounded((ms / self.end_ms * 100.0).clamp(0.0, 100.0))
    }

    pub(super) fn width(&self, start_ms: f64, end_ms: f64) -> f64 {
        rounded((self.x(end_ms) - self.x(start_ms)).max(0.0))
    }

    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> {
        let (step, end_ms) = (round_step(self.end_ms / INTERVALS), self.end_ms);
        (0_u32..)
            .map(move |index| f64::from(index) * step)
            .take_while(move |tick| *tick <= end_ms)
    }

    pub(super) fn write(&self, out: &mut String) -> fmt::Result {
        out.push_str(
            "<div class=\"plot axis\"><svg height=\"24\" role=\"img\" aria-label=\"Time axis in seconds\">\n",
        );
        for tick in self.ticks() {
            let (x, label) = (self.x(tick), seconds(tick));
            writeln!(
                out,
                "<line x1=\"{x}%\" x2=\"{x}%\" y1=\"18\" y2=\"24\" class=\"tick\"/>\
                 <text x=\"{x}%\" y=\"13\" text-anchor=\"middle\">{label}</text>"
            )?;
        }
        out.push_str("</svg></div>\n");
        Ok(())
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

/// Rounds to three decimals, which keeps the page small.
fn rounded(percent: f64) -> f64 {
    (percent * 1_000.0).round() / 1_000.0
}

fn seconds(ms: f64) -> String {
    let text = format!("{:.4}", ms / 1_000.0);
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_at_round_numbers() {
        let labels = |end_ms| {
            let axis = Axis::until(end_ms);
            let labels: Vec<_> = axis.ticks().map(seconds).collect();
            labels.join(" ")
        };
        assert_eq!(labels(7_300.0), "0 s 2 s 4 s 6 s");
        assert_eq!(labels(60_000.0), "0 s 10 s 20 s 30 s 40 s 50 s 60 s");
        assert_eq!(labels(140_000.0), "0 s 50 s 100 s");
        assert_eq!(
            labels(0.0),
            "0 s 0.0002 s 0.0004 s 0.0006 s 0.0008 s 0.001 s"
        );
    }

    #[test]
    fn positions_stay_within_the_axis() {
        let axis = Axis::until(2_000.0);
        let positions = [0.0, 500.0, 9_000.0].map(|ms| axis.x(ms).to_string());
        assert_eq!(positions, ["0", "25", "100"]);
        let widths = [9_000.0, 500.0].map(|end| axis.width(1_000.0, end).to_string());
        assert_eq!(widths, ["50", "0"]);
    }
}
