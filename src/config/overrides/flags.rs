//! Command-line flags that override the configuration file.

use std::borrow::Cow;
use std::net::SocketAddr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::problem::Findings;
use super::super::source::Span;
use super::super::tree::{TomlNode, string};

/// Command-line flags that override the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`: addresses that replace `server.listen`. If empty, `server.listen` is not replaced.
    pub listen: Vec<SocketAddr>,
    /// `--upstream`: URL that replaces the servers of the only upstream. If the file has no upstream, one is created.
    /// If the file has several, an error is reported.
    pub upstream: Option<String>,
    /// `--admin`: address that replaces `admin.listen`.
    pub admin: Option<SocketAddr>,
    /// `--limit`: rate of the limit named `client`, such as `10/s`.
    pub limit: Option<String>,
    /// `--tls-cert` and `--tls-key`: files that replace `server.tls`.
    pub tls: Option<(String, String)>,
}

pub(in super::super) fn apply_flags(
    table: &mut DeTable<'_>,
    overrides: &Overrides,
    findings: &mut Findings,
) {
    let mut flag = |name, value: String| {
        let start = findings.sources.add(name, value.as_str());
        string(start..start + value.len(), value)
    };
    let listen = overrides.listen.iter();
    let listen = listen.map(|address| flag("--listen", address.to_string()));
    set_list(table, &["server"], "listen", listen.collect());
    if let Some((cert, key)) = &overrides.tls {
        let (cert, key) = (
            flag("--tls-cert", cert.clone()),
            flag("--tls-key", key.clone()),
        );
        if let Some(server) = section(table, &["server"], &cert.span()) {
            server.remove("tls");
        }
        set(table, &["server", "tls"], "cert", cert);
        set(table, &["server", "tls"], "key", key);
    }
    if let Some(address) = overrides.admin {
        set(
            table,
            &["admin"],
            "listen",
            flag("--admin", address.to_string()),
        );
    }
    if let Some(rate) = &overrides.limit {
        set(
            table,
            &["limit", "client"],
            "rate",
            flag("--limit", rate.clone()),
        );
    }
    let Some(url) = &overrides.upstream else {
        return;
    };
    let url = flag("--upstream", url.clone());
    let upstreams = section(table, &["upstream"], &url.span());
    let names: Vec<_> = upstreams
        .iter()
        .flat_map(|all| all.keys())
        .map(ToString::to_string)
        .collect();
    match names.as_slice() {
        [] => set_list(table, &["upstream", "default"], "servers", vec![url]),
        [only] => set_list(table, &["upstream", only], "servers", vec![url]),
        several => {
            findings.error(
                &url.span(),
                format!(
                    "`--upstream` requires a configuration with at most one upstream, but this configuration has {}",
                    several.len()
                ),
                format!(
                    "remove `--upstream` and set TIDEGATE__UPSTREAM__NAME__SERVERS, where NAME is one of {}",
                    several.join(", ")
                ),
            );
        }
    }
}

/// Returns `None` if a value in the file is not a table, which validation reports.
fn section<'t, 'i>(
    table: &'t mut DeTable<'i>,
    path: &[&str],
    span: &Span,
) -> Option<&'t mut DeTable<'i>> {
    path.iter().try_fold(table, |table, name| {
        let key = Spanned::new(span.clone(), Cow::Owned((*name).to_owned()));
        let absent = || Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
        match table.entry(key).or_insert_with(absent).get_mut() {
            DeValue::Table(section) => Some(section),
            _ => None,
        }
    })
}

fn set<'i>(table: &mut DeTable<'i>, path: &[&str], key: &'static str, value: TomlNode<'i>) {
    if let Some(section) = section(table, path, &value.span()) {
        section.remove(key);
        section.insert(Spanned::new(value.span(), Cow::Borrowed(key)), value);
    }
}

fn set_list<'i>(
    table: &mut DeTable<'i>,
    path: &[&str],
    key: &'static str,
    values: Vec<TomlNode<'i>>,
) {
    if let Some(span) = values.first().map(Spanned::span) {
        let list = DeValue::Array(values.into_iter().collect());
        set(table, path, key, Spanned::new(span, list));
    }
}
