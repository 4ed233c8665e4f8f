//! `[respond]`: headers of the responses that the gateway creates itself.

use super::super::file::{CorsSection, RespondSection};
use super::super::problem::Findings;
use super::super::scalar::{HeaderText, OriginPattern, ResponseHeader};
use crate::respond::{Cors, RespondSettings};

pub(super) fn resolve(section: &RespondSection, findings: &mut Findings) -> RespondSettings {
    let headers = section.headers.entries.iter();
    RespondSettings {
        rate_limit: section.rate_limit,
        hints: section.hints.iter().copied().collect(),
        docs: section.docs.as_ref().map(|docs| docs.0.clone()),
        headers: headers
            .filter_map(|(name, value)| {
                let ResponseHeader(name) = name.value.parse().ok()?;
                Some((name, value.value.0.clone()))
            })
            .collect(),
        cors: section
            .cors
            .as_ref()
            .map(|cors| resolve_cors(cors, findings)),
    }
}

fn resolve_cors(section: &CorsSection, findings: &mut Findings) -> Cors {
    let origins = section.origins.as_deref().unwrap_or_default();
    let any = origins
        .iter()
        .find(|origin| origin.value.0 == OriginPattern::Any);
    if let (Some(any), Some((true, credentials))) = (any, section.credentials.configured()) {
        findings
            .error(
                credentials,
                "`credentials` cannot be combined with the origin \"*\": browsers reject such responses",
                "list the allowed origins in `origins`, or remove `credentials`",
            )
            .note(&any.span, "\"*\" allows every origin");
    }
    let exact = origins.iter().filter_map(|origin| match &origin.value.0 {
        OriginPattern::Any => None,
        OriginPattern::Exactly(origin) => Some(origin.clone()),
    });
    let names = |list: &[HeaderText]| list.iter().map(|name| name.0.clone()).collect();
    let methods = section.methods.as_ref();
    Cors {
        origins: any.is_none().then(|| exact.collect()),
        methods: methods.map(|methods| methods.iter().map(|method| method.0.clone()).collect()),
        headers: section.headers.as_deref().map(names),
        expose: names(&section.expose),
        credentials: section.credentials.value,
        max_age: section.max_age.0,
    }
}
