//! What is to be done with a request, as far as its head tells.

use std::sync::Arc;

use http::{Request, Version};

use super::super::{IdempotencyKey, Records, Requirement, Rule};
use super::Shared;
use crate::access_log::Notes;
use crate::client::ClientId;
use crate::respond::Rejection;
use crate::route::RouteId;
use crate::throttle::Passage;
use crate::upstream::headers::asks_for_upgrade;

/// What is to be done with a request.
pub(super) enum Look {
    /// It is none of ours.
    Pass,
    /// It has a key.
    Keyed(Keyed),
    /// It is refused.
    Refuse(Rejection),
}

/// What is known of a request with a key before its body is read.
pub(super) struct Keyed {
    pub(super) key: IdempotencyKey<'static>,
    pub(super) client: ClientId,
    pub(super) rule: Arc<Rule>,
    pub(super) route: RouteId,
    /// The notes for the access log, if the request is logged.
    pub(super) notes: Option<Arc<Notes>>,
}

impl<S: Records> Shared<S> {
    /// What is to be done with a request, as far as its head tells.
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
        let key = match IdempotencyKey::of(&headers.get_all(&rule.header)) {
            Ok(Some(key)) => key,
            Ok(None) if rule.requirement == Requirement::Optional => return Look::Pass,
            Ok(None) => {
                self.metrics(route).invalid.inc();
                let header = rule.header.clone();
                return Look::Refuse(Rejection::KeyMissing { header });
            }
            Err(error) => {
                self.metrics(route).invalid.inc();
                let header = rule.header.clone();
                return Look::Refuse(Rejection::KeyInvalid { header, error });
            }
        };
        if request.version() == Version::HTTP_11 && asks_for_upgrade(headers) {
            return Look::Refuse(Rejection::bad_request(
                "A request with an idempotency key cannot switch protocols: what follows could not be \
                 replayed. Leave out the key or the Upgrade header.",
            ));
        }
        Look::Keyed(Keyed {
            key: key.into_owned(),
            client: passage.caller.id(),
            rule: Arc::clone(rule),
            route,
            notes: passage.notes().cloned(),
        })
    }
}
