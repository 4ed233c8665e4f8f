//! Decides from the head of a request whether it has a key, and finds a key in its body.

use std::sync::Arc;

use http::{Request, Version};

use super::super::field::{self, FieldError};
use super::super::{IdempotencyKey, Records, Requirement, Rule};
use super::Shared;
use crate::access_log::Notes;
use crate::client::ClientId;
use crate::respond::Rejection;
use crate::route::RouteId;
use crate::throttle::Passage;
use crate::upstream::headers::asks_for_upgrade;

/// The decision from the head of a request.
pub(super) enum Look {
    /// The request has no key, or its key has no effect.
    Pass,
    /// The request has a key, or a JSON body that can have one.
    Keyed(Keyed),
    /// The request is rejected.
    Refuse(Rejection),
}

/// A request that has a key, or whose body can have one.
pub(super) struct Keyed {
    /// The key in the header. `find_key` replaces `None` with the key in the body.
    pub(super) key: Option<IdempotencyKey<'static>>,
    /// Whether the body can have a key: it is JSON, and the route has a `body_field`.
    is_searched: bool,
    pub(super) client: ClientId,
    pub(super) rule: Arc<Rule>,
    pub(super) route: RouteId,
    /// The notes for the access log, if the request is logged.
    pub(super) notes: Option<Arc<Notes>>,
}

impl<S: Records> Shared<S> {
    /// Decides from the head of a request how it is served.
    pub(super) fn look<B>(&self, request: &Request<B>) -> Look {
        let Some(passage) = request.extensions().get::<Passage>() else {
            return Look::Pass;
        };
        let route = passage.route;
        let Some(rule) = &self.rules[route.0] else {
            return Look::Pass;
        };
        if !rule.methods.contains(request.method()) {
            return Look::Pass;
        }
        let headers = request.headers();
        let is_searched = rule.body_field.is_some() && field::is_json(headers);
        let key = match IdempotencyKey::of(&headers.get_all(&rule.header)) {
            Ok(Some(_)) if switches_protocols(request) => return Look::Refuse(no_upgrade()),
            Ok(Some(key)) => Some(key.into_owned()),
            Ok(None) if is_searched => None,
            Ok(None) if rule.requirement == Requirement::Optional => return Look::Pass,
            Ok(None) => return Look::Refuse(self.missing(route, rule)),
            Err(error) => {
                self.metrics(route).invalid.inc();
                let header = rule.header.clone();
                return Look::Refuse(Rejection::KeyInvalid { header, error });
            }
        };
        Look::Keyed(Keyed {
            key,
            is_searched,
            client: passage.caller.id(),
            rule: Arc::clone(rule),
            route,
            notes: passage.notes().cloned(),
        })
    }

    /// Searches the body of a request for its key. Rejects the request if the body has no valid key, another key than
    /// the header, or none although the route requires one.
    pub(super) fn find_key<B>(
        &self,
        request: &Request<B>,
        keyed: &mut Keyed,
        body: &[u8],
    ) -> Result<(), Rejection> {
        let Some(field) = keyed.rule.body_field.as_ref().filter(|_| keyed.is_searched) else {
            return Ok(());
        };
        let invalid = |error| {
            self.metrics(keyed.route).invalid.inc();
            let field = Arc::clone(field);
            Rejection::FieldInvalid { field, error }
        };
        match (field::key_in(body, field).map_err(invalid)?, &keyed.key) {
            (Some(found), Some(sent)) if found != *sent => Err(invalid(FieldError::Differs)),
            (Some(_), None) if switches_protocols(request) => Err(no_upgrade()),
            (Some(found), None) => {
                keyed.key = Some(found);
                Ok(())
            }
            (None, None) if keyed.rule.requirement == Requirement::Required => {
                Err(self.missing(keyed.route, &keyed.rule))
            }
            _ => Ok(()),
        }
    }

    fn missing(&self, route: RouteId, rule: &Rule) -> Rejection {
        self.metrics(route).invalid.inc();
        Rejection::KeyMissing {
            header: rule.header.clone(),
            field: rule.body_field.clone(),
        }
    }
}

/// Whether a request is an upgrade to another protocol. HTTP/2 has no such upgrade.
fn switches_protocols<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11 && asks_for_upgrade(request.headers())
}

fn no_upgrade() -> Rejection {
    Rejection::bad_request(
        "A request with an idempotency key cannot switch protocols, because the gateway cannot replay what follows. \
         Remove the key or the Upgrade header.",
    )
}
