//! `[respond]`: headers of the responses that the gateway creates itself.

use std::time::Duration;

use http::HeaderValue;

use super::super::file::{CorsSection, DialectWord, HintWord, RespondSection};
use super::super::located::Located;
use super::super::problem::Findings;
use super::super::scalar::{HeaderText, Origin};
use super::{duration, plain};
use crate::respond::{Cors, Dialect, Hint, Hints, RespondSettings};

/// Default of `max_age` in `[respond.cors]`.
const DEFAULT_MAX_AGE: Duration = Duration::from_mins(10);

pub(super) fn resolve(section: &RespondSection, findings: &mut Findings) -> RespondSettings {
    let headers = section.headers.iter().flat_map(|headers| &headers.0);
    RespondSettings {
        rate_limit: match section.rate_limit.as_ref().map(|dialect| dialect.value) {
            Some(DialectWord::Draft | DialectWord::Draft11) | None => Dialect::Draft,
            Some(DialectWord::Legacy) => Dialect::Legacy,
            Some(DialectWord::X) => Dialect::X,
            Some(DialectWord::Off) => Dialect::Off,
        },
        hints: match &section.hints {
            Some(hints) => hints.iter().map(|hint| resolve_hint(hint.value)).collect(),
            None => Hints::default(),
        },
        docs: section.docs.as_ref().map(|docs| {
            let link = format!("<{}>; rel=\"describedby\"", docs.value.0);
            HeaderValue::try_from(link).expect("a URL is visible ASCII")
        }),
        headers: headers
            .map(|(name, value)| (name.value.0.name(), value.value.0.clone()))
            .collect(),
        cors: section
            .cors
            .as_ref()
            .map(|cors| resolve_cors(cors, findings)),
    }
}

fn resolve_hint(word: HintWord) -> Hint {
    match word {
        HintWord::Ms => Hint::Ms,
        HintWord::ShouldRetry => Hint::ShouldRetry,
        HintWord::Stripe => Hint::Stripe,
        HintWord::Amz => Hint::Amz,
    }
}

fn resolve_cors(section: &CorsSection, findings: &mut Findings) -> Cors {
    let origins = section.origins.as_deref().unwrap_or_default();
    let any = origins.iter().find(|origin| origin.value == Origin::Any);
    if let (Some(any), Some(credentials)) = (any, &section.credentials)
        && credentials.value
    {
        findings
            .error(
                &credentials.span,
                "`credentials` cannot be combined with the origin \"*\": browsers reject such responses",
                "list the allowed origins in `origins`, or remove `credentials`",
            )
            .note(&any.span, "\"*\" allows every origin");
    }
    let exact = origins.iter().filter_map(|origin| match &origin.value {
        Origin::Any => None,
        Origin::Exactly(origin) => Some(origin.clone()),
    });
    let names = |list: &[Located<HeaderText>]| list.iter().map(|name| name.value.name()).collect();
    Cors {
        origins: any.is_none().then(|| exact.collect()),
        methods: section.methods.as_ref().map(|methods| {
            methods
                .iter()
                .map(|method| method.value.0.clone())
                .collect()
        }),
        headers: section.headers.as_deref().map(names),
        expose: section.expose.as_deref().map(names).unwrap_or_default(),
        credentials: plain(section.credentials.as_ref(), false),
        max_age: duration(section.max_age.as_ref(), DEFAULT_MAX_AGE),
    }
}
