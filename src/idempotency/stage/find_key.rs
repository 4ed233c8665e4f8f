//! Finds the idempotency key of a request in its header or in its JSON body.

use std::sync::Arc;

use http::request::Parts;
use http::{Request, Version};

use super::super::body_key::{self, BodyKeyError};
use super::super::{IdempotencyError, IdempotencyKey, Requirement, Scope};
use super::RouteKeys;
use crate::request::headers::asks_for_upgrade;

#[derive(Debug)]
pub(crate) struct KeyedRequest {
    /// In the header. `search` sets it to the key in the body.
    pub(super) key: Option<IdempotencyKey<'static>>,
    /// Replaces the scope of the rule. The gateway never sets it.
    pub(super) caller: Option<String>,
    /// The body is JSON, and the route has a `body_field`.
    is_searched: bool,
}

impl RouteKeys {
    /// `None` if the rule does not apply to the method, or if there is no key, the body cannot contain one, and the
    /// route does not require one.
    pub(crate) fn inspect<B>(
        &self,
        request: &Request<B>,
    ) -> Result<Option<KeyedRequest>, IdempotencyError> {
        let rule = &self.rule;
        if !rule.methods.contains(request.method()) {
            return Ok(None);
        }
        let headers = request.headers();
        let is_searched = rule.body_field.is_some() && body_key::is_json(headers);
        let key = match IdempotencyKey::of(&headers.get_all(&rule.header)) {
            Ok(Some(_)) if switches_protocols(request) => return Err(IdempotencyError::Upgrade),
            Ok(Some(key)) => Some(key.into_owned()),
            Ok(None) if is_searched => None,
            Ok(None) if rule.requirement == Requirement::Optional => return Ok(None),
            Ok(None) => return Err(self.missing()),
            Err(error) => {
                self.metrics.keyed.invalid.inc();
                let header = rule.header.clone();
                return Err(IdempotencyError::KeyInvalid { header, error });
            }
        };
        Ok(Some(KeyedRequest {
            key,
            caller: None,
            is_searched,
        }))
    }

    pub(crate) fn name_caller(&self, keyed: &mut KeyedRequest, request: &Parts) {
        if let Scope::Function(function) = &self.rule.scope {
            keyed.caller = function.name_caller(request);
        }
    }

    /// Fails if the key in the body is invalid or differs from that in the header, or if the route requires one and
    /// there is none.
    pub(super) fn search<B>(
        &self,
        keyed: &mut KeyedRequest,
        request: &Request<B>,
        body: &[u8],
    ) -> Result<(), IdempotencyError> {
        let Some(field) = self.rule.body_field.as_ref().filter(|_| keyed.is_searched) else {
            return Ok(());
        };
        let invalid = |error| {
            self.metrics.keyed.invalid.inc();
            let field = Arc::clone(field);
            IdempotencyError::BodyKeyInvalid { field, error }
        };
        match (body_key::key_in(body, field).map_err(invalid)?, &keyed.key) {
            (Some(found), Some(sent)) if found != *sent => Err(invalid(BodyKeyError::Differs)),
            (Some(_), None) if switches_protocols(request) => Err(IdempotencyError::Upgrade),
            (Some(found), None) => {
                keyed.key = Some(found);
                Ok(())
            }
            (None, None) if self.rule.requirement == Requirement::Required => Err(self.missing()),
            _ => Ok(()),
        }
    }

    fn missing(&self) -> IdempotencyError {
        self.metrics.keyed.invalid.inc();
        IdempotencyError::KeyMissing {
            header: self.rule.header.clone(),
            field: self.rule.body_field.clone(),
        }
    }
}

/// Only HTTP/1.1 can.
fn switches_protocols<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11 && asks_for_upgrade(request.headers())
}
