//! Where requests go.

use std::sync::Arc;
use std::time::Duration;

use super::super::file::UpstreamSection;
use super::super::located::Named;
use super::super::scalar::Label;
use super::timeout;
use crate::upstream::{BreakerSettings, HostHeader, Timeouts, Upstream, UpstreamId};

/// How long a server that came back takes to get its full share, where nothing is said.
const DEFAULT_SLOW_START: Duration = Duration::from_secs(10);

/// Upstreams in the order of their names, which is the order of their ids.
pub(super) fn resolve(sections: &Named<Label, UpstreamSection>) -> Vec<Arc<Upstream>> {
    let numbered = sections.0.iter().enumerate();
    numbered
        .map(|(id, (name, section))| {
            Arc::new(upstream(UpstreamId(id), &name.value.0, &section.value))
        })
        .collect()
}

fn upstream(id: UpstreamId, name: &str, section: &UpstreamSection) -> Upstream {
    let default = Timeouts::default();
    let servers = section.servers.as_deref().unwrap_or_default();
    Upstream {
        id,
        name: name.into(),
        servers: servers
            .iter()
            .map(|server| server.value.0.clone())
            .collect(),
        host: match &section.host {
            Some(host) => host.value.0.clone(),
            None => HostHeader::Preserve,
        },
        timeouts: Timeouts {
            connect: timeout(section.connect_timeout.as_ref(), default.connect),
            first_byte: timeout(section.first_byte_timeout.as_ref(), default.first_byte),
            idle: timeout(section.idle_timeout.as_ref(), default.idle),
            total: section.timeout.as_ref().map(|total| total.value.0),
        },
        retry: None,
        breaker: BreakerSettings::default(),
        health: None,
        slow_start: DEFAULT_SLOW_START,
        concurrency: None,
        ca_file: section.ca_file.as_ref().map(|file| file.value.clone()),
    }
}
