//! Limits: their counts, the keys that they reject most, and the buckets of a key or a client.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::listener::AdminState;
use super::problem::AdminProblem;
use super::traffic::LimitTotals;
use super::{decode, seconds, timestamp};
use crate::clock::Moment;
use crate::pipeline::GatewayState;
use crate::request::client::ClientId;
use crate::request::log_fields::{Escaped, ShownKey};
use crate::store::{BucketStore, BucketView};
use crate::throttle::census::{Census, KeyCount, Window};
use crate::throttle::{BucketKey, BucketKind, Exceed, KeyPart, Limit, LimitState, Mode};

/// Maximum number of keys in one response.
const MAX_KEYS: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(list_limits))
        .routes(routes!(top))
        .routes(routes!(show_bucket, refill))
        .routes(routes!(show_client))
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

#[derive(Debug, Serialize, ToSchema)]
struct ClientView {
    /// The client as limits count it: an IPv4 address or an IPv6 network.
    client: String,
    /// Whether no limit applies to the client.
    exempt: bool,
    buckets: Vec<LimitKeyView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct LimitKeyView {
    limit: String,
    key: String,
    #[serde(flatten)]
    tokens: TokensView,
    /// Rejections of the last hour.
    recent: Option<CountView>,
}

/// State of a bucket.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokensView {
    tokens: u32,
    capacity: u32,
    /// Used share of the bucket.
    used: f64,
    /// Seconds until the next token.
    next_token: f64,
    /// Seconds until the bucket is full.
    full_in: f64,
    full_at: String,
    /// Whether the key has no bucket of its own, because the table of buckets is full. Other keys then use the same one.
    shared: bool,
}

/// Lists the limits
#[utoipa::path(get, path = "/admin/v1/limits", responses((status = 200, body = LimitsView)))]
async fn list_limits(
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<LimitsView>, AdminProblem> {
    let gateway = admin.gateway()?;
    let limits = gateway.limits.iter();
    let limits = limits.map(|LimitState { limit, census }| {
        let totals = LimitTotals::of(&gateway, &limit.name);
        let (age, before) = admin.traffic.lock().limit(&gateway, &limit.name);
        let used = census.as_ref().and_then(|it| used(&gateway, limit, it));
        LimitView {
            name: limit.name.to_string(),
            key: limit.key.iter().map(ToString::to_string).collect(),
            unit: "requests",
            quota: QuotaView {
                rate: limit.quota.rate().to_string(),
                burst: limit.quota.capacity().get() - 1,
                capacity: limit.quota.capacity().get(),
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
    Ok(Json(LimitsView { limits }))
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
    State(admin): State<Arc<AdminState>>,
    Path(name): Path<String>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Json<TopView>, AdminProblem> {
    let Query(query) = query.map_err(|error| AdminProblem::bad_request(error.body_text()))?;
    let max = query.max.unwrap_or(MAX_KEYS);
    if !(1..=MAX_KEYS).contains(&max) {
        return Err(AdminProblem::bad_request("`max` must be from 1 to 1000."));
    }
    let gateway = admin.gateway()?;
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
    let local = matches!(gateway.store.buckets, BucketStore::Memory(_));
    let mut keys = counted.keys;
    keys.retain(|(_, count)| query.by != By::Early || count.early > 0);
    let mut keys: Vec<_> = keys
        .into_iter()
        .map(|(bucket, count)| {
            let view = local.then(|| gateway.store.buckets.read_local(limit, bucket));
            (view.map(|view| used_share(limit, view, now)), count)
        })
        .collect();
    keys.retain(|(used, _)| query.by != By::Near || used.is_none_or(|used| used > 0.8));
    keys.sort_by(|(used_a, a), (used_b, b)| match query.by {
        By::Rejected => b.count.cmp(&a.count),
        By::Early => b.early.cmp(&a.early),
        By::Near => used_b
            .partial_cmp(used_a)
            .expect("a share is a number")
            .then(b.count.cmp(&a.count)),
    });
    let left_out = keys.len().saturating_sub(max);
    let keys = keys.iter().take(max).map(|(used, count)| TopKeyView {
        key: count.key.to_string(),
        used: *used,
        count: match query.by {
            By::Near => CountView::not_rejected(&gateway, count),
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

/// Shows the bucket of a key
///
/// `value` is the limit key itself: an address, `global` or the value of the header, percent-encoded. The parts of a
/// limit key with several are separated by slashes.
#[utoipa::path(
    get,
    path = "/admin/v1/limits/{limit}/keys/{*value}",
    params(("limit" = String, Path), ("value" = String, Path)),
    responses((status = 200, body = LimitKeyView))
)]
async fn show_bucket(
    State(admin): State<Arc<AdminState>>,
    uri: Uri,
) -> Result<Json<LimitKeyView>, AdminProblem> {
    let gateway = admin.gateway()?;
    let (state, bucket, key) = bucket_of(&gateway, &uri)?;
    let view = LimitKeyView::read(&gateway, state, bucket, &key).await?;
    Ok(Json(view))
}

/// Refills the bucket of a key
#[utoipa::path(
    delete,
    path = "/admin/v1/limits/{limit}/keys/{*value}",
    params(("limit" = String, Path), ("value" = String, Path)),
    responses((status = 204))
)]
async fn refill(
    State(admin): State<Arc<AdminState>>,
    uri: Uri,
) -> Result<StatusCode, AdminProblem> {
    let gateway = admin.gateway()?;
    let (LimitState { limit, .. }, bucket, key) = bucket_of(&gateway, &uri)?;
    let refilled = gateway.store.buckets.refill(limit, bucket).await;
    if !refilled.map_err(|error| AdminProblem::store_failed(&error))? {
        return Err(AdminProblem::plain(
            StatusCode::CONFLICT,
            "The key has no bucket of its own, because the table of buckets is full. A refill would admit requests of \
             other keys.",
        ));
    }
    let key = Escaped(&key.to_string()).to_string();
    tracing::info!(limit = &*limit.name, key, "bucket refilled by operator");
    Ok(StatusCode::NO_CONTENT)
}

/// Shows the buckets of a client
#[utoipa::path(
    get,
    path = "/admin/v1/clients/{address}",
    params(("address" = String, Path)),
    responses((status = 200, body = ClientView))
)]
async fn show_client(
    State(admin): State<Arc<AdminState>>,
    Path(address): Path<String>,
) -> Result<Json<ClientView>, AdminProblem> {
    let gateway = admin.gateway()?;
    let address = parse_address(&address)?;
    let (trust, headers) = (&gateway.policy.trust, HeaderMap::new());
    let client = trust.client_id(address);
    let mut buckets = Vec::new();
    for state in gateway.limits.iter() {
        // A limit by a header counts requests without the header by client.
        let is_global = state.limit.key.contains(&KeyPart::Global);
        if is_global {
            continue;
        }
        let bucket = gateway.bucket(&state.limit, client, &headers);
        let key = ShownKey::Client(client);
        let view = LimitKeyView::read(&gateway, state, bucket, &key).await?;
        let is_by_client = *state.limit.key == [KeyPart::Client];
        if is_by_client || view.tokens.used > 0.0 || view.recent.is_some() {
            buckets.push(view);
        }
    }
    let exempt = trust.identify(address, &headers);
    Ok(Json(ClientView {
        client: client.to_string(),
        exempt: exempt.is_ok_and(|caller| caller.exempt()),
        buckets,
    }))
}

pub(super) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
    }
}

fn find<'a>(gateway: &'a GatewayState, name: &str) -> Result<&'a LimitState, AdminProblem> {
    gateway.known_limit(name).ok_or_else(|| {
        let names: Vec<_> = gateway.limits.iter().map(|it| &*it.limit.name).collect();
        let names = names.join(", ");
        let detail = format!("The configuration has no such limit. Configured: {names}");
        AdminProblem::plain(StatusCode::NOT_FOUND, detail)
    })
}

fn parse_address(text: &str) -> Result<IpAddr, AdminProblem> {
    text.parse().map_err(|_| {
        AdminProblem::bad_request("The path does not contain an IP address, such as 192.0.2.7.")
    })
}

/// Returns the limit and the bucket that `/admin/v1/limits/NAME/keys/VALUE` names. The path is not decoded before it is
/// divided, because a value can contain slashes and any byte.
fn bucket_of<'a>(
    gateway: &'a GatewayState,
    uri: &Uri,
) -> Result<(&'a LimitState, BucketKey, ShownKey), AdminProblem> {
    let mut segments = uri.path().splitn(7, '/').skip(4);
    let name = decode(segments.next().unwrap_or_default()).unwrap_or_default();
    let state = find(gateway, &String::from_utf8_lossy(&name))?;
    let limit = &state.limit;
    let encoded = segments.nth(1).unwrap_or_default();
    let values: Vec<_> = if limit.key.len() == 1 {
        vec![encoded]
    } else {
        encoded.split('/').collect()
    };
    if values.len() != limit.key.len() {
        let parts: Vec<_> = limit.key.iter().map(ToString::to_string).collect();
        return Err(AdminProblem::bad_request(format!(
            "The limit key has the parts {}. Separate their values by slashes.",
            parts.join(", ")
        )));
    }
    let mut client = ClientId::of(Ipv4Addr::UNSPECIFIED.into(), 64);
    let mut headers = HeaderMap::new();
    for (part, value) in limit.key.iter().zip(values) {
        let value = decode(value).ok_or_else(|| {
            AdminProblem::bad_request("The path contains a `%` without two hexadecimal digits.")
        })?;
        match part {
            KeyPart::Client => {
                let address = parse_address(&String::from_utf8_lossy(&value))?;
                client = gateway.policy.trust.client_id(address);
            }
            KeyPart::Header(name) => {
                let value = HeaderValue::from_bytes(&value)
                    .ok()
                    .filter(|value| !value.is_empty());
                let value = value.ok_or_else(|| {
                    AdminProblem::bad_request("The path does not contain a header value.")
                })?;
                headers.insert(name, value);
            }
            KeyPart::Global | KeyPart::Function(_) => {}
        }
    }
    let bucket = gateway.bucket(limit, client, &headers);
    let key = limit.shown_key(bucket, client, (&headers).into());
    Ok((state, bucket, key))
}

impl GatewayState {
    /// The bucket of requests of a client with these headers.
    pub(super) fn bucket(&self, limit: &Limit, client: ClientId, headers: &HeaderMap) -> BucketKey {
        let seed = self.store.hash_keys.keys().seed;
        BucketKey::of(seed, limit, BucketKind::Main, client, headers)
    }
}

impl LimitKeyView {
    async fn read(
        gateway: &GatewayState,
        LimitState { limit, census }: &LimitState,
        bucket: BucketKey,
        key: &ShownKey,
    ) -> Result<Self, AdminProblem> {
        let view = gateway.store.buckets.read(limit, bucket).await;
        let view = view.map_err(|error| AdminProblem::store_failed(&error))?;
        let now = gateway.clock.now();
        let recent = census.as_ref().and_then(|it| it.find(bucket, now));
        Ok(Self {
            limit: limit.name.to_string(),
            key: key.to_string(),
            tokens: TokensView::of(gateway, limit, view),
            recent: recent.map(|count| CountView::of(gateway, limit, &count)),
        })
    }
}

impl TokensView {
    pub(super) fn of(gateway: &GatewayState, limit: &Limit, view: BucketView) -> Self {
        let now = gateway.clock.now();
        let reading = limit.quota.read(view.full_at, now);
        Self {
            tokens: reading.remaining,
            capacity: limit.quota.capacity().get(),
            used: used_share(limit, view, now),
            next_token: reading.next.as_secs_f64(),
            full_in: view.full_at.since(now).as_secs_f64(),
            full_at: timestamp(&gateway.clock, view.full_at.max(now)),
            shared: view.is_shared,
        }
    }
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
            since: timestamp(&gateway.clock, count.since),
            last: timestamp(&gateway.clock, count.last),
        }
    }
}

impl CountView {
    /// `count` is that of requests that left few tokens.
    fn not_rejected(gateway: &GatewayState, count: &KeyCount) -> Self {
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

fn used(gateway: &GatewayState, limit: &Limit, census: &Census) -> Option<UsedView> {
    let BucketStore::Memory(_) = &gateway.store.buckets else {
        return None;
    };
    let now = gateway.clock.now();
    let keys = census.sampled().into_iter();
    let shares =
        keys.map(|bucket| used_share(limit, gateway.store.buckets.read_local(limit, bucket), now));
    let mut shares: Vec<f64> = shares.collect();
    shares.sort_by(f64::total_cmp);
    Some(UsedView {
        p50: *shares.get(shares.len() / 2)?,
        p90: *shares.get(shares.len() * 9 / 10)?,
        max: *shares.last()?,
        sampled: shares.len(),
    })
}
