//! Tests of the `RateLimit` fields of responses: their order on a 429, and how the gateway merges fields from upstream.

mod member_order;
mod upstream_fields;

use http::{HeaderName, HeaderValue};

use crate::support::{ClientResponse, Gateway, GatewayBuilder, Upstream, full};

/// Builds a gateway with one route that has these rate limits, in this order. A rate limit is given as its name and the
/// lines of its section. `respond` contains additional lines for `[respond]`.
fn limited(respond: &str, limits: &[(&str, &str)]) -> GatewayBuilder {
    let names: Vec<_> = limits
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    let sections: Vec<_> = limits
        .iter()
        .map(|(name, lines)| format!("[limit.\"{name}\"]\n{lines}\n"))
        .collect();
    Gateway::with(&format!(
        "[respond]\n{respond}\n[upstream.api]\nservers = [\"{{upstream}}\"]\n{}\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [{}]\n",
        sections.concat(),
        names.join(", ")
    ))
}

/// Creates an upstream whose responses have these header lines.
fn sending(lines: &[(&'static str, &str)]) -> Upstream {
    let lines: Vec<_> = lines
        .iter()
        .map(|&(name, value)| {
            let value = HeaderValue::from_str(value).expect("the header value should be valid");
            (HeaderName::from_static(name), value)
        })
        .collect();
    Upstream::with(move |_| {
        let mut reply = full("ok");
        for (name, value) in &lines {
            reply.headers_mut().append(name.clone(), value.clone());
        }
        std::future::ready(reply)
    })
}

/// Returns the values of all lines of the header `name`, one value for each line.
fn lines(response: &ClientResponse, name: &str) -> Vec<String> {
    let values = response.headers.get_all(name).iter();
    values
        .map(|value| {
            value
                .to_str()
                .expect("the header value should be visible ASCII")
                .to_owned()
        })
        .collect()
}
