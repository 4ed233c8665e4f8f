//! Rejects request methods that differ from a known method only in case.
//!
//! Methods are case-sensitive (RFC 9110, section 9.1), so `post` does not match a route for `POST`. A server that
//! treats both as the same method would execute a request that passed neither the limits nor the idempotency rule of
//! its route. The method is not changed instead, because a strict server would reject it, too. Other unknown methods
//! are forwarded, because HTTP allows new methods.

use http::Method;

use super::head::HeadError;

/// The IANA registry, without `*`, which has no case.
const REGISTERED: [&str; 40] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// The registered methods, and those that the configuration names.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownMethods {
    configured: Vec<Method>,
}

impl KnownMethods {
    pub(crate) fn new<'a>(configured: impl IntoIterator<Item = &'a Method>) -> Self {
        let mut methods: Vec<Method> = Vec::new();
        for method in configured {
            if !methods.contains(method) {
                methods.push(method.clone());
            }
        }
        Self {
            configured: methods,
        }
    }

    pub(super) fn check(&self, method: &Method) -> Result<(), HeadError> {
        // A fast path for almost all requests.
        if matches!(
            *method,
            Method::GET
                | Method::HEAD
                | Method::POST
                | Method::PUT
                | Method::PATCH
                | Method::DELETE
                | Method::OPTIONS
        ) || self.configured.contains(method)
        {
            return Ok(());
        }
        let is_other_case = |known: &&str| is_other_case(known, method.as_str());
        let mut configured = self.configured.iter().map(Method::as_str);
        match registered_spelling(method.as_str()).or_else(|| configured.find(is_other_case)) {
            None => Ok(()),
            Some(known) => Err(HeadError::Invalid(
                format!("The request method differs from {known} only in case. Use {known}.")
                    .into(),
            )),
        }
    }
}

/// Returns `None` also if `method` is itself registered.
pub(crate) fn registered_spelling(method: &str) -> Option<&'static str> {
    let mut registered = REGISTERED.into_iter();
    registered.find(|known| is_other_case(known, method))
}

fn is_other_case(known: &str, method: &str) -> bool {
    known != method && known.eq_ignore_ascii_case(method)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(known: &KnownMethods, method: &str) -> Option<String> {
        match known.check(&method.parse().unwrap()) {
            Ok(()) => None,
            Err(HeadError::Invalid(detail)) => Some(detail.into_owned()),
            Err(other) => panic!("unexpected error {other:?}"),
        }
    }

    #[test]
    fn a_registered_method_in_another_case_is_rejected_with_the_method_to_use() {
        let known = KnownMethods::default();
        for method in REGISTERED {
            assert_eq!(detail(&known, method), None, "{method}");
            let lower = method.to_ascii_lowercase();
            let reason = detail(&known, &lower).unwrap_or_default();
            assert!(
                reason.ends_with(&format!(" Use {method}.")),
                "{lower}: {reason}"
            );
        }
        assert!(detail(&known, "Post").is_some());
        assert!(detail(&known, "pROPFIND").is_some());
    }

    #[test]
    fn an_unknown_method_is_accepted() {
        let known = KnownMethods::default();
        for method in ["PURGE", "purge", "POSTS", "pos", "get-object"] {
            assert_eq!(detail(&known, method), None, "{method}");
        }
    }

    #[test]
    fn a_configured_method_in_another_case_is_rejected() {
        let methods: [Method; 3] = ["PURGE", "ban", "Ban"].map(|name| name.parse().unwrap());
        let known = KnownMethods::new(&methods);
        for method in ["PURGE", "ban", "Ban", "REFRESH"] {
            assert_eq!(detail(&known, method), None, "{method}");
        }
        let reason = detail(&known, "purge").unwrap_or_default();
        assert!(reason.ends_with(" Use PURGE."), "{reason}");
        assert!(detail(&known, "BAN").is_some());
    }
}
