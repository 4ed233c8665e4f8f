//! `[upstream.NAME.retry]`: converts the section to retry settings.
//!
//! A preset sets all values, and each configured key overrides one of them. Contradictions are errors. Settings that
//! overload the upstream or prevent all retries cause warnings. The values of a preset cause no warnings: for example,
//! a preset can omit jitter on purpose. Unlimited retries cannot be configured, because every retry policy has a
//! maximum number of attempts and a deadline.

use std::time::Duration;

use super::super::super::file::RetrySection;
use super::super::super::problem::Findings;
use super::super::super::scalar::display_duration;
use super::super::bytes;
use crate::retry::{Backoff, Jitter, RetryAfterPolicy, RetryPolicy, Strategy};
use crate::upstream::{BudgetSettings, RetrySettings};

pub(super) fn resolve(section: &RetrySection, findings: &mut Findings) -> RetrySettings {
    let base_policy = section.preset.policy();
    let policy = RetryPolicy {
        backoff: backoff(section, base_policy.backoff, findings),
        attempts: section.attempts.unwrap_or(base_policy.attempts),
        deadline: Some(section.deadline.value.0),
        ..base_policy
    };
    let budget = BudgetSettings {
        ratio: section.budget.ratio.value,
        window: section.budget.window.0,
        floor: section.budget.floor,
    };
    // Without retries, the warnings would be wrong.
    if policy.attempts.get() > 1 {
        warn_about_backoff(section, policy.backoff, findings);
        warn_if_no_retry_fits(section, &policy, findings);
        warn_about_budget(section, budget, findings);
    }
    RetrySettings {
        policy,
        max_body: bytes(&section.max_body),
        budget,
    }
}

fn backoff(section: &RetrySection, default: Backoff, findings: &mut Findings) -> Backoff {
    let strategy = section.strategy.as_ref();
    let strategy = strategy.map_or(default.strategy, |strategy| strategy.value);
    if let Some(factor) = &section.factor {
        let growth = match strategy {
            Strategy::Constant => Some("with `strategy = \"constant\"`, the backoff does not grow"),
            Strategy::Linear => Some("with `strategy = \"linear\"`, the backoff grows by `base`"),
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
    let (base, cap) = bounds(section, default, findings);
    let jitter = section.jitter.as_ref();
    let factor = section.factor.as_ref();
    Backoff {
        strategy,
        base,
        cap,
        factor: factor.map_or(default.factor, |factor| factor.value),
        jitter: jitter.map_or(default.jitter, |jitter| jitter.value.0),
    }
}

fn bounds(
    section: &RetrySection,
    default: Backoff,
    findings: &mut Findings,
) -> (Duration, Duration) {
    let base = section.base.as_ref();
    let base = base.map_or(default.base, |base| base.value.0);
    let Some(cap) = &section.cap else {
        return (base, default.cap.max(base));
    };
    if cap.value.0 < base {
        let first = display_duration(base);
        let origin = match &section.base {
            Some(_) => String::new(),
            None => format!(" in the preset `{}`", section.preset.name()),
        };
        findings.error(
            &cap.span,
            format!("`cap` is shorter than `base`, which is {first}{origin}"),
            format!("set `cap` to at least \"{first}\", or set a shorter `base`"),
        );
        if let Some(base) = &section.base {
            findings.note(&base.span, "`base` is set here");
        }
    }
    (base, cap.value.0)
}

fn warn_about_backoff(section: &RetrySection, backoff: Backoff, findings: &mut Findings) {
    if let Some(word) = &section.strategy {
        if backoff.jitter == Jitter::Decorrelated && word.value != Strategy::Exponential {
            findings.warning(
                &word.span,
                "`strategy` has no effect: with `jitter = \"decorrelated\"`, a backoff depends only on the previous \
                 backoff",
                "remove `strategy`, or set another `jitter`, such as \"full\"",
            );
        } else if word.value == Strategy::Constant {
            findings.warning(
                &word.span,
                "retries at a constant interval do not reduce the load on an overloaded upstream",
                "write `strategy = \"exponential\"`",
            );
        }
    }
    if let Some(jitter) = &section.jitter
        && jitter.value.0 == Jitter::None
    {
        findings.warning(
            &jitter.span,
            "without jitter, requests that fail at the same moment are retried at the same moment",
            "write `jitter = \"full\"`, or remove `jitter` to use the jitter of the preset",
        );
    }
}

/// Otherwise a request is retried only if jitter or `Retry-After` makes the wait shorter than the deadline.
fn warn_if_no_retry_fits(section: &RetrySection, policy: &RetryPolicy, findings: &mut Findings) {
    let Some(deadline) = policy.deadline else {
        return;
    };
    let of_deadline = section.deadline.span.as_ref();
    let of_base = section.base.as_ref().map(|base| &base.span);
    let (Some(span), true) = (of_deadline.or(of_base), policy.backoff.base >= deadline) else {
        return;
    };
    let shortest = shortest_first_wait(policy.backoff);
    let unless = match policy.retry_after {
        RetryAfterPolicy::Obeyed { .. } => ", unless `Retry-After` sets an earlier time",
        RetryAfterPolicy::Ignored => "",
    };
    let effect = if shortest >= deadline {
        "no request is retried"
    } else {
        "some requests are not retried"
    };
    let first = display_duration(policy.backoff.base);
    let most = display_duration(deadline);
    findings.warning(
        span,
        format!(
            "{effect}{unless}: the first backoff (`base`) is {first}, but `deadline` is {most}"
        ),
        "set a longer `deadline`, or a shorter `base`",
    );
}

/// Shortest that jitter can produce.
fn shortest_first_wait(backoff: Backoff) -> Duration {
    let base = backoff.base;
    match backoff.jitter {
        Jitter::Full => Duration::ZERO,
        Jitter::Equal => base / 2,
        Jitter::Percent(part) => base.mul_f64(1.0 - part),
        Jitter::None | Jitter::Added(_) | Jitter::Proportional(_) | Jitter::Decorrelated => base,
    }
}

fn warn_about_budget(section: &RetrySection, budget: BudgetSettings, findings: &mut Findings) {
    if let Some(span) = &section.budget.ratio.span
        && budget.ratio <= 0.0
        && budget.floor == 0
    {
        findings.warning(
            span,
            "no request is retried: `ratio` and `floor` of the retry budget are 0",
            "set `ratio` or `floor` above 0, or write `attempts = 1`",
        );
    }
}
