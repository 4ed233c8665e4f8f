//! What requests are held to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::file::{ExceedWord, LimitSection, ModeWord, OnStoreErrorWord, RetryAfterWord};
use super::super::located::{Located, Named};
use super::super::problem::Findings;
use super::super::scalar::{LimitName, Rate};
use super::timeout;
use crate::problem::RetryAfterForm;
use crate::throttle::quota::{MAX_BURST, MAX_REFILL};
use crate::throttle::{Exceed, KeyPart, Limit, LimitId, Mode, OnStoreError, Quota, QuotaError};

/// How long a delaying limit makes a request wait where nothing is said.
const DEFAULT_MAX_DELAY: Duration = Duration::from_secs(1);

/// Limits by name, in the order of their ids; `None` for one that has a fault.
pub(super) type Limits<'f> = BTreeMap<&'f str, Option<Arc<Limit>>>;

/// `remote` if the store of the buckets is somewhere it can fail to be reached.
pub(super) fn resolve<'f>(
    sections: &'f Named<LimitName, LimitSection>,
    remote: bool,
    findings: &mut Findings,
) -> Limits<'f> {
    let mut limits = Limits::new();
    for (at, (name, section)) in sections.0.iter().enumerate() {
        let limit = if let Ok(id) = u16::try_from(at) {
            if !remote {
                doubt(&section.value, findings);
            }
            limit(LimitId(id), name, &section.value, findings)
        } else {
            findings.error(
                &name.span,
                "there are too many limits",
                format!("define at most {}", u32::from(u16::MAX) + 1),
            );
            None
        };
        limits.insert(name.value.0.as_str(), limit.map(Arc::new));
    }
    limits
}

fn limit(
    id: LimitId,
    name: &Located<LimitName>,
    section: &LimitSection,
    findings: &mut Findings,
) -> Option<Limit> {
    let key = key(section);
    let exceed = exceed(section, findings);
    let quota = quota(section, findings)?;
    Some(Limit {
        id,
        name: name.value.0.as_str().into(),
        quota,
        key,
        exceed,
        mode: match section.mode.as_ref().map(|mode| mode.value) {
            Some(ModeWord::Enforce) | None => Mode::Enforce,
            Some(ModeWord::Shadow) => Mode::Shadow,
        },
        retry_after: match section.retry_after.as_ref().map(|form| form.value) {
            Some(RetryAfterWord::Seconds) | None => RetryAfterForm::Seconds,
            Some(RetryAfterWord::HttpDate) => RetryAfterForm::HttpDate,
        },
        on_store_error: match section.on_store_error.as_ref().map(|word| word.value) {
            Some(OnStoreErrorWord::Local) | None => OnStoreError::Local,
            Some(OnStoreErrorWord::Open) => OnStoreError::Open,
            Some(OnStoreErrorWord::Closed) => OnStoreError::Closed,
        },
    })
}

/// A warning and no error: a fleet may share its limits and not its store.
fn doubt(section: &LimitSection, findings: &mut Findings) {
    if let Some(word) = &section.on_store_error {
        findings.warning(
            &word.span,
            "`on_store_error` has no effect: buckets are in this process, and can always be asked",
            "set `backend = \"redis\"` in [store], or remove `on_store_error`",
        );
    }
}

fn key(section: &LimitSection) -> Box<[KeyPart]> {
    match &section.key {
        Some(parts) => parts.0.iter().map(|part| part.value.0.clone()).collect(),
        None => Box::new([KeyPart::Client]),
    }
}

fn exceed(section: &LimitSection, findings: &mut Findings) -> Exceed {
    let word = section.on_exceed.as_ref().map(|word| word.value);
    if word == Some(ExceedWord::Delay) {
        return Exceed::Delay {
            max: timeout(section.max_delay.as_ref(), DEFAULT_MAX_DELAY),
        };
    }
    if let Some(delay) = &section.max_delay {
        findings.error(
            &delay.span,
            "`max_delay` has no effect: this limit refuses, it does not delay",
            "add `on_exceed = \"delay\"`, or remove `max_delay`",
        );
    }
    Exceed::Reject
}

fn quota(section: &LimitSection, findings: &mut Findings) -> Option<Quota> {
    let Located { span, value: rate } = section.rate.as_ref()?;
    let burst = match &section.burst {
        Some(burst) => burst.value,
        None => rate.count.get() - 1,
    };
    let error = match Quota::new(rate.count, rate.period, burst) {
        Ok(quota) => return Some(quota),
        Err(error) => error,
    };
    let of_burst = section.burst.as_ref().map_or(span, |burst| &burst.span);
    let (span, help) = match error {
        QuotaError::ZeroPeriod | QuotaError::TooFast => {
            (span, "write a slower rate, such as \"1000/s\"".into())
        }
        QuotaError::BurstTooLarge => (of_burst, format!("set `burst` to at most {MAX_BURST}")),
        QuotaError::RefillTooLong => match largest_burst(rate) {
            Some(largest) => (of_burst, format!("set `burst` to at most {largest}")),
            None => (span, "write a rate of at least \"1/365d\"".into()),
        },
    };
    findings.error(span, error.to_string(), help);
    None
}

/// The largest burst that still refills in time at this rate, if any does.
fn largest_burst(rate: &Rate) -> Option<u128> {
    let interval = rate.period.as_nanos().div_ceil(rate.count.get().into());
    let tokens = MAX_REFILL.as_nanos() / interval;
    tokens.checked_sub(1)
}
