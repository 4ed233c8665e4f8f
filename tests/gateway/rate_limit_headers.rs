//! `RateLimit` fields of responses: their order on a 429, and how fields from upstream are merged.

mod member_order;
mod upstream_fields;

use http::{HeaderName, HeaderValue};

use crate::harness::{ClientResponse, Gateway, GatewayBuilder, Upstream, full};

/// Prepares a gateway with these limits on its only route, in this order, and additional lines in `[respond]`. A limit
/// is given as its name and the lines of its section.
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

/// Upstream whose responses have these header lines.
fn sending(lines: &[(&'static str, &str)]) -> Upstream {
    let lines: Vec<_> = lines
        .iter()
        .map(|&(name, value)| {
            let value = HeaderValue::from_str(value).expect("a header value");
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

/// Returns the lines of a header separately.
fn lines(response: &ClientResponse, name: &str) -> Vec<String> {
    let values = response.headers.get_all(name).iter();
    values
        .map(|value| value.to_str().expect("visible ASCII").to_owned())
        .collect()
}
