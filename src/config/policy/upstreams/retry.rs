//! When a request is sent once more.
//!
//! A preset says everything, and each key takes a part of that back. What contradicts itself is an error. What
//! makes retries a burden, or leaves them without use, is a warning, and only where a person wrote it: a
//! preset that has no jitter has none on purpose. Retries without end cannot be written at all, as
//! attempts and time both have a bound.

use std::time::Duration;

use super::super::super::file::{BudgetTable, PresetWord, RetrySection, StrategyWord};
use super::super::super::problem::Findings;
use super::super::super::scalar::HumanDuration;
use super::super::{count, plain, timeout};
use crate::retry::{Backoff, Jitter, Preset, RetryAfterPolicy, RetryPolicy, Strategy};
use crate::upstream::{BudgetSettings, RetrySettings};

/// The settings of a section.
pub(super) fn resolve(section: &RetrySection, findings: &mut Findings) -> RetrySettings {
    let default = RetrySettings::default();
    let preset = section.preset.as_ref();
    let preset = preset.map_or(Preset::Standard, |word| word.value.into());
    let said = preset.policy();
    let deadline = section.deadline.as_ref().map(|deadline| deadline.value.0);
    let policy = RetryPolicy {
        backoff: backoff(section, preset, said.backoff, findings),
        attempts: count(section.attempts.as_ref(), said.attempts),
        deadline: deadline.or(default.policy.deadline),
        ..said
    };
    let budget = budget(section.budget.as_ref());
    // Where there is no second attempt, nothing about it matters.
    if policy.attempts.get() > 1 {
        doubt_backoff(section, policy.backoff, findings);
        doubt_use(section, &policy, findings);
        doubt_budget(section, budget, findings);
    }
    let kept = section.max_body.as_ref();
    RetrySettings {
        policy,
        max_body: kept.map_or(default.max_body, |bytes| {
            usize::try_from(bytes.value.0).unwrap_or(usize::MAX)
        }),
        budget,
    }
}

impl From<PresetWord> for Preset {
    fn from(word: PresetWord) -> Self {
        match word {
            PresetWord::AuthorizationApi => Self::AuthorizationApi,
            PresetWord::Sender => Self::Sender,
            PresetWord::Interactive => Self::Interactive,
            PresetWord::Standard => Self::Standard,
            PresetWord::Batch => Self::Batch,
            PresetWord::TrafficControl => Self::TrafficControl,
        }
    }
}

fn backoff(
    section: &RetrySection,
    preset: Preset,
    said: Backoff,
    findings: &mut Findings,
) -> Backoff {
    let strategy = match section.strategy.as_ref().map(|word| word.value) {
        Some(StrategyWord::Constant) => Strategy::Constant,
        Some(StrategyWord::Linear) => Strategy::Linear,
        Some(StrategyWord::Exponential) => Strategy::Exponential,
        None => said.strategy,
    };
    if let Some(factor) = &section.factor {
        let growth = match strategy {
            Strategy::Constant => Some("waits do not grow"),
            Strategy::Linear => Some("waits grow by `base` each time"),
            Strategy::Exponential => None,
        };
        if let Some(growth) = growth {
            findings.error(
                &factor.span,
                format!("`factor` has no effect: {growth}"),
                "write `strategy = \"exponential\"`, or remove `factor`",
            );
        }
    }
    let (base, cap) = bounds(section, preset, said, findings);
    let jitter = section.jitter.as_ref();
    Backoff {
        strategy,
        base,
        cap,
        factor: plain(section.factor.as_ref(), said.factor),
        jitter: jitter.map_or(said.jitter, |jitter| jitter.value.0),
    }
}

/// The first wait and the longest.
fn bounds(
    section: &RetrySection,
    preset: Preset,
    said: Backoff,
    findings: &mut Findings,
) -> (Duration, Duration) {
    let base = timeout(section.base.as_ref(), said.base);
    let Some(cap) = &section.cap else {
        return (base, said.cap.max(base));
    };
    if cap.value.0 < base {
        let first = HumanDuration(base);
        let by_whom = match &section.base {
            Some(_) => String::new(),
            None => format!(" by the preset `{}`", preset.name()),
        };
        findings.error(
            &cap.span,
            format!("`cap` is below `base`, which is {first}{by_whom}"),
            format!("set `cap` to at least \"{first}\", or set a shorter `base`"),
        );
        if let Some(base) = &section.base {
            findings.note(&base.span, "the first wait");
        }
    }
    (base, cap.value.0)
}

fn budget(table: Option<&BudgetTable>) -> BudgetSettings {
    let default = BudgetSettings::default();
    let Some(table) = table else {
        return default;
    };
    let window = table.window.as_ref();
    BudgetSettings {
        ratio: plain(table.ratio.as_ref(), default.ratio),
        window: window.map_or(default.window, |window| window.value.0),
        floor: plain(table.floor.as_ref(), default.floor),
    }
}

/// Says what keeps callers that failed together together.
fn doubt_backoff(section: &RetrySection, backoff: Backoff, findings: &mut Findings) {
    if let Some(word) = &section.strategy {
        if backoff.jitter == Jitter::Decorrelated && word.value != StrategyWord::Exponential {
            findings.warning(
                &word.span,
                "`strategy` has no effect: a decorrelated wait depends on the one before alone",
                "remove `strategy`, or write another `jitter`, such as \"full\"",
            );
        } else if word.value == StrategyWord::Constant {
            findings.warning(
                &word.span,
                "retries at a constant interval press an upstream that struggles as hard as ever",
                "write `strategy = \"exponential\"`",
            );
        }
    }
    if let Some(jitter) = &section.jitter
        && jitter.value.0 == Jitter::None
    {
        findings.warning(
            &jitter.span,
            "retries without jitter come back together where they failed together",
            "write `jitter = \"full\"`, or leave it out to have the preset's",
        );
    }
}

/// Says if no wait fits into the deadline.
fn doubt_use(section: &RetrySection, policy: &RetryPolicy, findings: &mut Findings) {
    let Some(deadline) = policy.deadline else {
        return;
    };
    let of_deadline = section.deadline.as_ref().map(|deadline| &deadline.span);
    let of_base = section.base.as_ref().map(|base| &base.span);
    let (Some(span), true) = (of_deadline.or(of_base), policy.backoff.base >= deadline) else {
        return;
    };
    let shortest = shortest_first_wait(policy.backoff);
    let unless = match policy.retry_after {
        RetryAfterPolicy::Obeyed { .. } => ", unless a `Retry-After` asks for one earlier",
        RetryAfterPolicy::Ignored => "",
    };
    let often = if shortest >= deadline {
        "no retry will ever be made"
    } else {
        "many a retry will not be made"
    };
    let (first, most) = (HumanDuration(policy.backoff.base), HumanDuration(deadline));
    findings.warning(
        span,
        format!("{often}{unless}: the first wait is {first}, and `deadline` leaves {most} for everything"),
        "set a longer `deadline`, or a shorter `base`",
    );
}

/// The shortest that jitter can make the first wait.
fn shortest_first_wait(backoff: Backoff) -> Duration {
    let base = backoff.base;
    match backoff.jitter {
        Jitter::Full => Duration::ZERO,
        Jitter::Equal => base / 2,
        Jitter::Percent(part) => base.mul_f64(1.0 - part),
        Jitter::None | Jitter::Added(_) | Jitter::Proportional(_) | Jitter::Decorrelated => base,
    }
}

fn doubt_budget(section: &RetrySection, budget: BudgetSettings, findings: &mut Findings) {
    let ratio = section
        .budget
        .as_ref()
        .and_then(|budget| budget.ratio.as_ref());
    if let Some(ratio) = ratio
        && budget.ratio <= 0.0
        && budget.floor == 0
    {
        findings.warning(
            &ratio.span,
            "no retry will ever be made: the budget has room for none",
            "set `ratio` or `floor` above 0, or write `attempts = 1`",
        );
    }
}
