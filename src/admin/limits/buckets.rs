//! The buckets of a limit key or a client: their tokens, and refills.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{CountView, find, used_share};
use crate::admin::listener::{AdminState, Running};
use crate::admin::problem::AdminProblem;
use crate::admin::{decode, timestamp};
use crate::pipeline::GatewayState;
use crate::request::client::ClientId;
use crate::request::log_fields::{Escaped, ShownKey};
use crate::store::BucketView;
use crate::throttle::{BucketKey, BucketKind, KeyPart, Limit, LimitState};

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(show_bucket, refill))
        .routes(routes!(show_client))
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
pub(in crate::admin) struct TokensView {
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
    Running(gateway): Running,
    uri: Uri,
) -> Result<Json<LimitKeyView>, AdminProblem> {
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
async fn refill(Running(gateway): Running, uri: Uri) -> Result<StatusCode, AdminProblem> {
    let (LimitState { limit, .. }, bucket, key) = bucket_of(&gateway, &uri)?;
    if !gateway.store.buckets.refill(limit, bucket).await? {
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
    Running(gateway): Running,
    Path(address): Path<String>,
) -> Result<Json<ClientView>, AdminProblem> {
    let address = parse_address(&address)?;
    let (trust, headers) = (&gateway.policy.trust, HeaderMap::new());
    let client = trust.client_id(address);
    let mut buckets = Vec::new();
    for state in gateway.limits.iter() {
        // A limit by a header counts requests without the header by client.
        if state.limit.key.contains(&KeyPart::Global) {
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
                let value = HeaderValue::from_bytes(&value).ok();
                let value = value.filter(|value| !value.is_empty()).ok_or_else(|| {
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
    pub(in crate::admin) fn bucket(
        &self,
        limit: &Limit,
        client: ClientId,
        headers: &HeaderMap,
    ) -> BucketKey {
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
        let view = gateway.store.buckets.read(limit, bucket).await?;
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
    pub(in crate::admin) fn of(gateway: &GatewayState, limit: &Limit, view: BucketView) -> Self {
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
