//! Parser of a step of a scenario, such as `delay 200ms + 429 retry-after=2`.
//!
//! A step is a list of words, separated by spaces. Its actions come first and are joined with `+`. Options have the form
//! `name=value`. A value in double quotes can contain spaces and the escapes `\"`, `\\`, `\n`, `\r` and `\t`.

mod values;

use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use self::values::{byte_rate, chance, header, retry_after, status, unquote};
use super::super::suggest;
use super::{ValueError, number};
use crate::scenario::respond::DEFAULT_BODY;
use crate::scenario::step::{Extent, Step, StepAction};

/// Besides a status.
const ACTIONS: [&str; 10] = [
    "pass",
    "delay",
    "stall",
    "slow",
    "reset",
    "truncate",
    "executed-then-lost",
    "goaway",
    "refused-stream",
    "refuse",
];

const OPTIONS: [&str; 7] = [
    "retry-after",
    "header",
    "body",
    "after",
    "times",
    "for",
    "chance",
];

/// Unless `for` is set.
const DEFAULT_REFUSAL: Duration = Duration::from_secs(1);

pub(super) fn step(text: &str) -> Result<Step, ValueError> {
    let words = words(text)?;
    let mut parser = StepParser {
        step: Step {
            text: text.into(),
            ..Step::respond(StatusCode::OK)
        },
        words: &words,
        outcome: None,
        seen: Vec::new(),
    };
    parser.parse()?;
    let StepParser {
        step,
        outcome,
        seen,
        ..
    } = parser;
    check(&step, outcome.as_ref(), &seen)?;
    Ok(step)
}

#[derive(Clone, Debug)]
struct Word<'t> {
    text: &'t str,
    range: Range<usize>,
}

struct StepParser<'t> {
    step: Step,
    words: &'t [Word<'t>],
    /// `None` for a step of `delay` or `slow` alone.
    outcome: Option<Word<'t>>,
    /// In the order of the text.
    seen: Vec<Word<'t>>,
}

impl<'t> StepParser<'t> {
    fn parse(&mut self) -> Result<(), ValueError> {
        let mut needs_action = true;
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            if word.text == "+" {
                if needs_action {
                    return Err(error("`+` does not follow an action", EXAMPLE).at(word));
                }
                needs_action = true;
            } else if let Some((name, value)) = option(word.text) {
                if needs_action {
                    let title = format!("the option `{name}` precedes the action");
                    return Err(error(title, EXAMPLE).at(word));
                }
                self.option(word, name, value)?;
            } else if needs_action {
                self.action(word, &mut words)?;
                needs_action = false;
            } else {
                return Err(unexpected(word));
            }
        }
        if !needs_action {
            return Ok(());
        }
        Err(match self.words.last() {
            Some(plus) => error("no action follows `+`", EXAMPLE).at(plus),
            None => error("the step is empty", EXAMPLE),
        })
    }

    fn action(
        &mut self,
        word: &Word<'t>,
        words: &mut std::slice::Iter<'t, Word<'t>>,
    ) -> Result<(), ValueError> {
        let mut argument = |example: &str| {
            let next = words.next().filter(|next| next.text != "+");
            next.ok_or_else(|| {
                let title = format!("`{}` has no value", word.text);
                error(title, format!("write `{example}`")).at(word)
            })
        };
        let action = match word.text {
            "delay" => {
                self.once(word, word.text)?;
                let time = argument("delay 200ms")?;
                self.step.delay = number::duration(time.text).map_err(|e| e.at(time))?;
                return Ok(());
            }
            "slow" => {
                self.once(word, word.text)?;
                let rate = argument("slow 1KiB")?;
                self.step.rate = Some(byte_rate(rate)?);
                return Ok(());
            }
            "stall" => {
                let time = argument("stall 10s")?;
                StepAction::Stall(number::timeout(time.text).map_err(|e| e.at(time))?)
            }
            "pass" => StepAction::Pass,
            "reset" => StepAction::Reset,
            "truncate" => StepAction::Truncate,
            "executed-then-lost" => StepAction::ExecutedThenLost,
            "goaway" => StepAction::GoAway,
            "refused-stream" => StepAction::RefusedStream,
            "refuse" => {
                self.step.extent = Extent::For(DEFAULT_REFUSAL);
                StepAction::Refuse
            }
            _ => StepAction::Respond(status(word)?),
        };
        if let Some(first) = &self.outcome {
            let title = format!("`{}` cannot be combined with `{}`", word.text, first.text);
            let help = "write one outcome per step; only `delay` and `slow` can be combined with it, using `+`";
            return Err(error(title, help).at(word));
        }
        self.outcome = Some(word.clone());
        self.step.action = action;
        Ok(())
    }

    fn option(&mut self, word: &Word<'t>, name: &str, value: &str) -> Result<(), ValueError> {
        if name == "header" {
            self.seen.push(word.clone());
        } else {
            self.once(word, name)?;
        }
        // The first colon of a header separates its name from its value: neither `header=` nor a name contains one.
        let colon = word.text.find(':').filter(|_| name == "header");
        let content = word.range.start + colon.unwrap_or(name.len()) + 1..word.range.end;
        let value = unquote(value);
        let parsed = match name {
            "retry-after" => retry_after(&value).map(|text| self.step.retry_after = Some(text)),
            "header" => header(&value).map(|header| {
                self.step.contents.push((Some(header.0.clone()), content));
                self.step.headers.push(header);
            }),
            "body" => {
                self.step.contents.push((None, content));
                self.step.body = Some(Bytes::from(value.into_owned()));
                Ok(())
            }
            "after" => number::size(&value).map(|size| self.step.after = Some(size)),
            "times" => {
                let times = value.parse().ok().and_then(NonZeroU32::new);
                let times = times.ok_or_else(|| {
                    let title = format!("`{value}` is not a number of times");
                    error(
                        title,
                        "write a whole number of at least 1, such as `times=3`",
                    )
                });
                times.map(|times| self.step.extent = Extent::Times(times))
            }
            "for" => number::timeout(&value).map(|time| self.step.extent = Extent::For(time)),
            _ => chance(&value).map(|chance| self.step.chance = chance),
        };
        parsed.map_err(|error| error.at(word))
    }

    fn once(&mut self, word: &Word<'t>, name: &str) -> Result<(), ValueError> {
        let is_same = |seen: &Word<'_>| seen.text == name || option_name(seen.text) == Some(name);
        if self.seen.iter().any(is_same) {
            let title = format!("`{name}` is given twice");
            return Err(error(title, format!("write `{name}` once")).at(word));
        }
        self.seen.push(word.clone());
        Ok(())
    }
}

const EXAMPLE: &str =
    "write an action and its options, such as `429 retry-after=2`, `delay 200ms + 503` or `reset`";

fn error(title: impl Into<String>, help: impl Into<String>) -> ValueError {
    ValueError::new(title, help)
}

impl ValueError {
    fn at(self, word: &Word<'_>) -> Self {
        Self {
            part: Some(word.range.clone()),
            ..self
        }
    }
}

/// Checks that the options have an effect and do not contradict each other.
fn check(step: &Step, outcome: Option<&Word<'_>>, seen: &[Word<'_>]) -> Result<(), ValueError> {
    let find = |name: &str| {
        let mut all = seen.iter();
        all.find(|word| word.text == name || option_name(word.text) == Some(name))
    };
    let sends_body = match step.action {
        StepAction::Respond(StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) => false,
        StepAction::Respond(_) | StepAction::Stall(_) | StepAction::Truncate => true,
        StepAction::Reset => step.after.is_some(),
        _ => false,
    };
    let action = outcome.map_or("slow", |word| word.text);
    let mut without_effect = Vec::new();
    if !sends_body {
        without_effect.extend(["body", "slow"]);
        if !matches!(step.action, StepAction::Respond(_)) {
            without_effect.extend(["retry-after", "header"]);
        }
    }
    if step.action == StepAction::Refuse {
        without_effect.extend(["delay", "times", "chance"]);
    }
    let has_after = match step.action {
        StepAction::Stall(_) | StepAction::Reset | StepAction::Truncate => true,
        _ => step.rate.is_some() && sends_body,
    };
    if !has_after {
        without_effect.push("after");
    }
    if let Some(word) = without_effect.into_iter().find_map(find) {
        let name = option_name(word.text).unwrap_or(word.text);
        let title = format!("`{name}` has no effect on `{action}`");
        return Err(error(title, format!("remove `{}`", word.text)).at(word));
    }
    if let (Some(_), Some(word)) = (find("for"), find("times")) {
        let help = "write `times=N` for a number of requests, or `for=D` for a time";
        return Err(error("`for` and `times` are both given", help).at(word));
    }
    let length = step
        .body
        .as_ref()
        .map_or(DEFAULT_BODY, |body| body.len() as u64);
    if let (Some(after), Some(word)) = (step.after, find("after"))
        && after >= length
    {
        let title = format!("`{}` is not within the body of {length} bytes", word.text);
        return Err(error(title, "write a smaller size, or a longer `body`").at(word));
    }
    if step.action == StepAction::Truncate && length == 0 {
        let help = "write a longer `body`";
        return Err(error("an empty body cannot be truncated", help));
    }
    Ok(())
}

/// Splits at spaces outside double quotes.
fn words(text: &str) -> Result<Vec<Word<'_>>, ValueError> {
    let mut words = Vec::new();
    let mut start = None;
    let mut quote = None;
    let mut is_escaped = false;
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if quote.is_some() => is_escaped = true,
            '"' => quote = quote.is_none().then_some(at),
            _ => {}
        }
        let is_space = character.is_whitespace() && quote.is_none();
        match start {
            None if !is_space => start = Some(at),
            Some(from) if is_space => {
                words.push(Word {
                    text: &text[from..at],
                    range: from..at,
                });
                start = None;
            }
            _ => {}
        }
    }
    if let Some(at) = quote {
        return Err(ValueError {
            part: Some(at..text.len()),
            ..error(
                "a double quote is not closed",
                "close the value with a double quote, as in `body=\"text\"`",
            )
        });
    }
    if let Some(from) = start {
        words.push(Word {
            text: &text[from..],
            range: from..text.len(),
        });
    }
    Ok(words)
}

/// The name is not necessarily known.
fn option(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    OPTIONS.contains(&name).then_some((name, value))
}

fn option_name(word: &str) -> Option<&str> {
    option(word).map(|(name, _)| name)
}

/// At a place where only an option or `+` is valid.
fn unexpected(word: &Word<'_>) -> ValueError {
    if let Some((name, _)) = word.text.split_once('=') {
        let title = format!("`{name}` is not an option of a step");
        return error(title, suggest::remedy(name, OPTIONS.into_iter())).at(word);
    }
    let title = format!("`{}` follows an action without `+`", word.text);
    let help = "join actions with `+`, as in `delay 200ms + 503`; write an option as `name=value`";
    error(title, help).at(word)
}

#[cfg(test)]
mod tests;
