//! The entry of a request: from its head to its client and its route.
//!
//! The pipeline and `explain` call [`enter`]. It changes only the request, so that `explain` shows what the pipeline
//! decides. An application that embeds the stages has its own server and routes, and uses
//! [`identify`](super::head::identify).

use std::net::IpAddr;

use http::uri::PathAndQuery;
use http::{Method, Request, Uri};

use super::client::{Caller, Trust};
use super::head::{self, HeadError};
use super::headers::{HeaderNames, IdentifyingHeaders};
use super::methods::KnownMethods;
use super::path;
use super::route::{MatchBy, Matcher, RouteError};
use super::test_id::TestId;
use crate::respond::Problem;
use crate::respond::cors::preflight_method;

pub(crate) struct EntrySettings<'a, R> {
    pub(crate) max_body: u64,
    pub(crate) names: &'a HeaderNames,
    pub(crate) methods: &'a KnownMethods,
    pub(crate) trust: &'a Trust,
    pub(crate) routes: &'a Matcher<R>,
    /// Neither limits nor idempotency keys apply to preflights that the gateway responds to.
    pub(crate) responds_to_preflights: bool,
    /// Whether any route takes test ids.
    pub(crate) takes_test_ids: bool,
}

pub(crate) trait EntryRule {
    fn identifying_headers(&self) -> &IdentifyingHeaders;

    /// The prefix `/t/ID/` of a path names a test and is not part of the path.
    fn takes_test_ids(&self) -> bool;
}

#[derive(Debug)]
pub(crate) struct Entered<'a, R> {
    pub(crate) caller: Caller,
    pub(crate) is_preflight: bool,
    /// The prefix is no longer in the path.
    pub(crate) test: Option<TestId>,
    pub(crate) route: &'a R,
}

#[derive(Debug)]
pub(crate) enum Rejected<'a, R> {
    /// The client is unknown.
    Head(HeadError),
    Route(Caller, RouteError),
    /// The request repeats a header that a limit or an idempotency scope of the route reads.
    IdentifyingHeaders(Caller, &'a R, HeadError),
}

impl<'a, R> Rejected<'a, R> {
    /// The client and the route, as far as they were found.
    pub(crate) fn found(&self) -> (Option<&Caller>, Option<&'a R>) {
        match self {
            Self::Head(_) => (None, None),
            Self::Route(caller, _) => (Some(caller), None),
            Self::IdentifyingHeaders(caller, route, _) => (Some(caller), Some(route)),
        }
    }
}

impl<R> From<Rejected<'_, R>> for Problem {
    fn from(rejected: Rejected<'_, R>) -> Self {
        match rejected {
            Rejected::Head(error) | Rejected::IdentifyingHeaders(_, _, error) => error.into(),
            Rejected::Route(_, error) => error.into(),
        }
    }
}

/// Checks and normalises the head, identifies the client, finds the route, and checks the headers that limits and
/// idempotency scopes of the route read. Afterwards the target of the request is the one that is forwarded, unless it
/// is invalid.
pub(crate) fn enter<'a, R: EntryRule, B>(
    settings: &EntrySettings<'a, R>,
    peer: IpAddr,
    request: &mut Request<B>,
) -> Result<Entered<'a, R>, Box<Rejected<'a, R>>> {
    let caller = head::check(request, settings.max_body, settings.names, settings.methods)
        .and_then(|()| Ok(settings.trust.identify(peer, request.headers())?))
        .map_err(Rejected::Head)?;
    let preflight = preflight_method(request.method(), request.headers());
    let test = if settings.takes_test_ids {
        take_test_id(settings, preflight.as_ref(), request)
    } else {
        None
    };
    let route = match find_route(settings.routes, preflight.as_ref(), request) {
        Ok(route) => route,
        Err(error) => return Err(Rejected::Route(caller, error).into()),
    };
    let is_preflight = preflight.is_some();
    if !(is_preflight && settings.responds_to_preflights)
        && let Err(error) = route
            .identifying_headers()
            .check(request.headers_mut(), &caller, None)
    {
        return Err(Rejected::IdentifyingHeaders(caller, route, error).into());
    }
    Ok(Entered {
        caller,
        is_preflight,
        test,
        route,
    })
}

/// Also unifies the spelling of the target.
fn find_route<'a, R, B>(
    routes: &'a Matcher<R>,
    preflight: Option<&Method>,
    request: &mut Request<B>,
) -> Result<&'a R, RouteError> {
    let path = path::read(request.uri().path(), request.uri().query())?;
    let selected = routes.select(MatchBy::new(request.method(), preflight), &path);
    if let Some(target) = path.rewritten() {
        let uri = with_target(request.uri(), target)?;
        *request.uri_mut() = uri;
    }
    selected
}

/// Only if the rest of the path belongs to a route that takes test ids.
fn take_test_id<R: EntryRule, B>(
    settings: &EntrySettings<'_, R>,
    preflight: Option<&Method>,
    request: &mut Request<B>,
) -> Option<TestId> {
    let target = request.uri().path_and_query()?;
    let (id, rest) = TestId::split(target.as_str())?;
    let uri = with_target(request.uri(), rest.to_owned()).ok()?;
    let path = path::read(uri.path(), uri.query()).ok()?;
    let by = MatchBy::new(request.method(), preflight);
    let route = settings.routes.select(by, &path).ok()?;
    if !route.takes_test_ids() {
        return None;
    }
    *request.uri_mut() = uri;
    Some(id)
}

/// The host in the URI is preserved: an HTTP/2 request has its host only there, and the host is part of the request's
/// fingerprint.
fn with_target(uri: &Uri, target: String) -> Result<Uri, RouteError> {
    let target = PathAndQuery::try_from(target).map_err(|_| RouteError::TargetTooLong)?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target);
    Uri::from_parts(parts).map_err(|_| RouteError::TargetTooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_with_a_new_target_has_the_same_host() {
        let uri: Uri = "https://api.example:81/%61?x".parse().unwrap();
        let changed = with_target(&uri, "/a?x".to_owned()).unwrap();
        assert_eq!(changed, "https://api.example:81/a?x");
        let changed = with_target(&"/%61".parse().unwrap(), "/a".to_owned()).unwrap();
        assert_eq!(changed, "/a");
    }

    #[test]
    fn a_target_that_is_too_long_is_rejected() {
        let target = format!("/{}", "%7B".repeat(22_000));
        let error = with_target(&Uri::from_static("/"), target).unwrap_err();
        assert_eq!(Problem::from(error).status, 400);
    }
}
