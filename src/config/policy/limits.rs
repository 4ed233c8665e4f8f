//! `[limit.NAME]`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::file::{LimitSection, OnExceed};
use super::super::located::{Located, Named};
use super::super::problem::Findings;
use super::super::scalar::{LimitName, RateText};
use crate::throttle::quota::{MAX_BURST, MAX_REFILL};
use crate::throttle::rate::Rate;
use crate::throttle::{Exceed, Limit, Quota, QuotaError, QuotaSince};

/// `None` marks an invalid rate limit, whose error was reported.
pub(super) type Limits<'f> = BTreeMap<&'f str, Option<Arc<Limit>>>;

/// `remote` means that the store can be unavailable, such as Redis.
pub(super) fn resolve<'f>(
    sections: &'f Named<LimitName, LimitSection>,
    remote: bool,
    findings: &mut Findings,
) -> Limits<'f> {
    let mut limits = Limits::new();
    for (name, section) in &sections.entries {
        if !remote {
            warn(&section.value, findings);
        }
        let limit = limit(&name.value, &section.value, findings);
        limits.insert(name.value.as_str(), limit.map(Arc::new));
    }
    limits
}

fn limit(name: &str, section: &LimitSection, findings: &mut Findings) -> Option<Limit> {
    let exceed = exceed(section, findings);
    let quota = quota(section, findings)?;
    Some(Limit {
        name: name.into(),
        quota,
        quota_since: QuotaSince::default(),
        key: section
            .key
            .0
            .iter()
            .map(|part| part.value.0.clone())
            .collect(),
        exceed,
        mode: section.mode,
        retry_after: section.retry_after,
        on_store_error: section.on_store_error.value,
        log_key: section.log_key,
    })
}

/// Not an error, so that gateways with different stores can share `[limit.NAME]` sections.
fn warn(section: &LimitSection, findings: &mut Findings) {
    if let Some(span) = &section.on_store_error.span {
        findings.warning(
            span,
            "`on_store_error` has no effect: without Redis, the buckets are in the memory of the gateway, which is \
             always available",
            "set `backend = \"redis\"` in [store], or remove `on_store_error`",
        );
    }
}

fn exceed(section: &LimitSection, findings: &mut Findings) -> Exceed {
    if section.on_exceed == OnExceed::Delay {
        return Exceed::Delay {
            max: section.max_delay.value.0,
        };
    }
    if let Some(span) = &section.max_delay.span {
        findings.error(
            span,
            "`max_delay` has no effect: `on_exceed` of this rate limit is \"reject\", so requests are not delayed",
            "add `on_exceed = \"delay\"`, or remove `max_delay`",
        );
    }
    Exceed::Reject
}

fn quota(section: &LimitSection, findings: &mut Findings) -> Option<Quota> {
    let Located {
        span,
        value: RateText(rate),
    } = section.rate.as_ref()?;
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
            (span, "write a lower rate, such as \"1000/s\"".into())
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

/// Largest `burst` with which an empty bucket becomes full within [`MAX_REFILL`]. A full bucket has `burst` + 1
/// tokens. `None` means that the refill of one token takes longer.
fn largest_burst(rate: &Rate) -> Option<u128> {
    let interval = rate.period.as_nanos().div_ceil(rate.count.get().into());
    let tokens = MAX_REFILL.as_nanos() / interval;
    tokens.checked_sub(1)
}
