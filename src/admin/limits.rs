//! Limits: their counts, and the keys that they reject most.

pub(super) mod buckets;

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::listener::{AdminState, Running};
use super::problem::AdminProblem;
use super::traffic::LimitTotals;
use super::{not_found, seconds, timestamp};
use crate::clock::Moment;
use crate::pipeline::GatewayState;
use crate::store::{BucketStore, BucketView};
use crate::throttle::census::{Census, KeyCount, Window};
use crate::throttle::{BucketKey, Exceed, KeyPart, Limit, LimitState, Mode};

/// Maximum number of keys in one response.
const MAX_KEYS: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(list_limits))
        .routes(routes!(top))
        .merge(buckets::routes())
}

#[derive(Debug, Serialize, ToSchema)]
struct LimitsView {
    limits: Vec<LimitView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct LimitView {
    name: String,
    /// What the limit counts by: `client`, `global` or `header:NAME`.
    key: Vec<String>,
    unit: &'static str,
    quota: QuotaView,
    mode: &'static str,
    on_exceed: &'static str,
    #[serde(flatten)]
    totals: LimitTotals,
    /// Counts of the last five minutes.
    recent: RecentCounts,
    /// Used share of the buckets of sampled keys. Null without requests, and on Redis.
    used: Option<UsedView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct QuotaView {
    rate: String,
    burst: u32,
    /// Number of tokens in a full bucket.
    capacity: u32,
}

#[derive(Debug, Serialize, ToSchema)]
struct RecentCounts {
    seconds: f64,
    #[serde(flatten)]
    totals: LimitTotals,
}

#[derive(Debug, Serialize, ToSchema)]
struct UsedView {
    p50: f64,
    p90: f64,
    max: f64,
    /// Number of keys.
    sampled: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopQuery {
    #[serde(default)]
    by: By,
    #[serde(default)]
    window: WindowName,
    max: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum By {
    #[default]
    Rejected,
    Near,
    Early,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
enum WindowName {
    #[default]
    #[serde(rename = "5m")]
    FiveMinutes,
    #[serde(rename = "1h")]
    Hour,
}

#[derive(Debug, Serialize, ToSchema)]
struct TopView {
    limit: String,
    by: By,
    /// Length of the window in seconds.
    window: f64,
    /// Start of the counted time, between half of the window and the window ago.
    since: String,
    keys: Vec<TopKeyView>,
    /// Number of further keys.
    left_out: usize,
}

#[derive(Debug, Serialize, ToSchema)]
struct TopKeyView {
    /// The client address, `global`, or a hash; with `log_key`, the limit key itself.
    key: String,
    /// Used share of the bucket now. Null on Redis.
    used: Option<f64>,
    #[serde(flatten)]
    count: CountView,
}

/// Rejections of a key.
#[derive(Debug, Serialize, ToSchema)]
struct CountView {
    /// The true number is at most `error` higher.
    rejected: u64,
    error: u64,
    /// Rejections of requests that came before the time stated by an earlier rejection.
    early: u64,
    /// Average number of attempts until a rejected request is admitted. Null for limits in shadow mode, for global ones,
    /// and for keys that were not rejected.
    attempts_per_admission: Option<f64>,
    /// Of one of the last 16 rejections.
    user_agent: Option<String>,
    since: String,
    last: String,
}

/// Lists the limits
#[utoipa::path(get, path = "/admin/v1/limits", responses((status = 200, body = LimitsView)))]
async fn list_limits(
    State(admin): State<Arc<AdminState>>,
    Running(gateway): Running,
) -> Json<LimitsView> {
    let limits = gateway.limits.iter();
    let limits = limits.map(|LimitState { limit, census }| {
        let totals = LimitTotals::of(&gateway, &limit.name);
        let (age, before) = admin.traffic.lock().limit(&gateway, &limit.name);
        let used = census.as_ref().and_then(|it| used(&gateway, limit, it));
        let capacity = limit.quota.capacity().get();
        LimitView {
            name: limit.name.to_string(),
            key: limit.key.iter().map(ToString::to_string).collect(),
            unit: "requests",
            quota: QuotaView {
                rate: limit.quota.rate().to_string(),
                burst: capacity - 1,
                capacity,
            },
            mode: mode_name(limit.mode),
            on_exceed: match limit.exceed {
                Exceed::Reject => "reject",
                Exceed::Delay { .. } => "delay",
            },
            recent: RecentCounts {
                seconds: seconds(age),
                totals: totals.since(&before),
            },
            totals,
            used,
        }
    });
    let limits = limits.collect();
    Json(LimitsView { limits })
}

/// Lists keys of a limit that are rejected, return early, or are near their quota
#[utoipa::path(
    get,
    path = "/admin/v1/limits/{limit}/top",
    params(
        ("limit" = String, Path),
        ("by" = Option<By>, Query, description = "`near`: keys with few tokens that were not rejected"),
        ("window" = inline(Option<WindowName>), Query),
        ("max" = Option<usize>, Query, minimum = 1, maximum = 1000, description = "Default: 1000")
    ),
    responses((status = 200, body = TopView))
)]
async fn top(
    Running(gateway): Running,
    Path(name): Path<String>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Json<TopView>, AdminProblem> {
    let Query(query) = query?;
    let max = query.max.unwrap_or(MAX_KEYS);
    if !(1..=MAX_KEYS).contains(&max) {
        return Err(AdminProblem::bad_request("`max` must be from 1 to 1000."));
    }
    let LimitState { limit, census } = find(&gateway, &name)?;
    let now = gateway.clock.now();
    let (window, length) = match query.window {
        WindowName::FiveMinutes => (Window::FiveMinutes, 300.0),
        WindowName::Hour => (Window::Hour, 3600.0),
    };
    let census = census
        .as_ref()
        .expect("each limit of a gateway has a census");
    let counted = match query.by {
        By::Near => census.nearest(window, now),
        By::Rejected | By::Early => census.most_rejected(window, now),
    };
    let mut keys: Vec<_> = counted
        .keys
        .into_iter()
        .map(|(bucket, count)| (used_now(&gateway, limit, bucket), count))
        .filter(|(used, count)| match query.by {
            By::Rejected => true,
            By::Early => count.early > 0,
            By::Near => used.is_none_or(|used| used > 0.8),
        })
        .collect();
    keys.sort_by(|(used_a, a), (used_b, b)| match query.by {
        By::Rejected => b.count.cmp(&a.count),
        By::Early => b.early.cmp(&a.early),
        By::Near => {
            let share = |used: &Option<f64>| used.unwrap_or_default();
            let by_share = share(used_b).total_cmp(&share(used_a));
            by_share.then(b.count.cmp(&a.count))
        }
    });
    let left_out = keys.len().saturating_sub(max);
    let keys = keys.iter().take(max).map(|(used, count)| TopKeyView {
        key: count.key.to_string(),
        used: *used,
        count: match query.by {
            By::Near => CountView::without_rejections(&gateway, count),
            By::Rejected | By::Early => CountView::of(&gateway, limit, count),
        },
    });
    Ok(Json(TopView {
        limit: name,
        by: query.by,
        window: length,
        since: timestamp(&gateway.clock, counted.since),
        keys: keys.collect(),
        left_out,
    }))
}

pub(super) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
    }
}

fn find<'a>(gateway: &'a GatewayState, name: &str) -> Result<&'a LimitState, AdminProblem> {
    let names = gateway.limits.iter().map(|it| &*it.limit.name);
    let found = gateway.known_limit(name);
    found.ok_or_else(|| not_found("limit", names))
}

impl CountView {
    fn of(gateway: &GatewayState, limit: &Limit, count: &KeyCount) -> Self {
        let attempts = count.attempts_per_admission();
        let is_judged = limit.mode == Mode::Enforce && !limit.key.contains(&KeyPart::Global);
        Self {
            rejected: count.count,
            error: count.error,
            early: count.early,
            attempts_per_admission: is_judged.then_some(attempts),
            user_agent: count.user_agent.as_deref().map(Into::into),
            ..Self::without_rejections(gateway, count)
        }
    }

    /// `count` can be that of requests that left few tokens.
    fn without_rejections(gateway: &GatewayState, count: &KeyCount) -> Self {
        Self {
            rejected: 0,
            error: 0,
            early: 0,
            attempts_per_admission: None,
            user_agent: None,
            since: timestamp(&gateway.clock, count.since),
            last: timestamp(&gateway.clock, count.last),
        }
    }
}

fn used_share(limit: &Limit, view: BucketView, now: Moment) -> f64 {
    let debt = view.full_at.since(now).as_secs_f64();
    (debt / limit.quota.refill().as_secs_f64()).min(1.0)
}

/// The used share of a bucket; `None` on Redis.
fn used_now(gateway: &GatewayState, limit: &Limit, bucket: BucketKey) -> Option<f64> {
    let buckets = &gateway.store.buckets;
    let is_local = matches!(buckets, BucketStore::Memory(_));
    is_local.then(|| {
        used_share(
            limit,
            buckets.read_local(limit, bucket),
            gateway.clock.now(),
        )
    })
}

fn used(gateway: &GatewayState, limit: &Limit, census: &Census) -> Option<UsedView> {
    let keys = census.sampled().into_iter();
    let shares = keys.filter_map(|bucket| used_now(gateway, limit, bucket));
    let mut shares: Vec<f64> = shares.collect();
    shares.sort_by(f64::total_cmp);
    Some(UsedView {
        p50: *shares.get(shares.len() / 2)?,
        p90: *shares.get(shares.len() * 9 / 10)?,
        max: *shares.last()?,
        sampled: shares.len(),
    })
}
