//! `RateLimit` fields of responses: the order on a 429, and what becomes of fields that upstream sends.

mod order;
mod upstream;

use http::{HeaderName, HeaderValue};

use crate::harness::{Answer, Gateway, Plan, Upstream, full};

/// A gateway with these limits on its only route, in this order, and `respond` under `[respond]`. A limit is its name
/// and the lines of its section.
fn limited(respond: &str, limits: &[(&str, &str)]) -> Plan {
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

/// An upstream whose responses have these header lines.
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

/// The lines of a header, each by itself.
fn lines(answer: &Answer, name: &str) -> Vec<String> {
    let values = answer.headers.get_all(name).iter();
    values
        .map(|value| value.to_str().expect("visible ASCII").to_owned())
        .collect()
}
