//! The `OpenAPI` document of the admin API, which is generated from its handlers.

use std::fmt::Write as _;

use utoipa::OpenApi as _;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, ResponseBuilder, SecurityRequirement};

use super::problem::AdminProblem;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tidegate admin API",
        description = "Times are RFC 3339 in UTC, durations are in seconds. Errors are problem documents (RFC 9457).",
    ),
    components(schemas(AdminProblem))
)]
struct Base;

pub(super) fn base() -> OpenApi {
    let mut api = Base::openapi();
    let token = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("Required if `[admin]` has a token."))
        .build();
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(token));
    let none = SecurityRequirement::default();
    let required = SecurityRequirement::new("token", [""; 0]);
    api.security = Some(vec![none, required]);
    api
}

/// Adds what all operations have in common.
pub(super) fn complete(api: &mut OpenApi) {
    let problem = ResponseBuilder::new()
        .description("The request was rejected")
        .content(
            "application/problem+json",
            ContentBuilder::new()
                .schema(Some(Ref::from_schema_name("ProblemView")))
                .build(),
        )
        .build();
    let paths = std::mem::take(&mut api.paths.paths);
    for (path, mut item) in paths {
        let operations = [&mut item.get, &mut item.post, &mut item.delete];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            responses.insert("default".into(), problem.clone().into());
        }
        // The router marks a parameter that can contain slashes.
        api.paths.paths.insert(path.replace("{*", "{"), item);
    }
}

pub(super) fn summary(api: &OpenApi) -> String {
    let mut operations = vec![
        ("GET", "/livez", "200 while the process runs".to_owned()),
        (
            "GET",
            "/readyz",
            "200, or 503 while the gateway drains; names a store that fails".to_owned(),
        ),
        ("GET", "/metrics", "Metrics for Prometheus".to_owned()),
        (
            "GET",
            "/admin/v1/openapi.json",
            "Describes the operations below (OpenAPI 3.1)".to_owned(),
        ),
    ];
    for (path, item) in &api.paths.paths {
        let methods = [
            ("GET", &item.get),
            ("POST", &item.post),
            ("DELETE", &item.delete),
        ];
        for (method, operation) in methods {
            if let Some(operation) = operation {
                let summary = operation.summary.clone().unwrap_or_default();
                operations.push((method, path, summary));
            }
        }
    }
    let width = operations.iter().map(|(_, path, _)| path.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    for (method, path, summary) in operations {
        writeln!(text, "{method:<6}  {path:width$}  {summary}").expect("a String accepts all text");
    }
    text
}
