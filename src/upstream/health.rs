//! Active health checks of the servers of an upstream.
//!
//! Each check opens a new connection, because a server that accepts none is unhealthy even if its old connections work.
//! At most the fraction `max_ejected` of the servers is ejected, because the check itself is probably wrong if most
//! seem unhealthy. Health checks and circuit breakers are independent: a server receives requests only if neither
//! excludes it.

use std::sync::Arc;

use futures_util::future::join_all;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::body::UpstreamBody;
use super::connect::Connector;
use super::shared_state::{ServerState, UpstreamState};
use super::target;
use super::{HealthSettings, HostHeader};
use crate::clock::Clock;

const FAILURES_TO_EJECT: u32 = 3;

const SUCCESSES_TO_RESTORE: u32 = 2;

#[derive(Debug)]
pub(crate) struct HealthChecks {
    state: Arc<UpstreamState>,
    settings: HealthSettings,
    connectors: Vec<Connector>,
    clock: Clock,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ServerHealth {
    is_unhealthy: bool,
    /// Consecutive checks whose result contradicts `is_unhealthy`.
    contrary: u32,
}

impl ServerHealth {
    /// Returns whether `is_unhealthy` has changed.
    fn record(&mut self, passed: bool) -> bool {
        if passed != self.is_unhealthy {
            self.contrary = 0;
            return false;
        }
        self.contrary += 1;
        let enough = if self.is_unhealthy {
            SUCCESSES_TO_RESTORE
        } else {
            FAILURES_TO_EJECT
        };
        let changed = self.contrary >= enough;
        if changed {
            *self = Self {
                is_unhealthy: !self.is_unhealthy,
                contrary: 0,
            };
        }
        changed
    }
}

impl HealthChecks {
    pub(crate) fn of(state: &Arc<UpstreamState>, clock: &Clock) -> Option<Self> {
        let settings = state.upstream.health.clone()?;
        Some(Self {
            connectors: target::connectors(state),
            state: Arc::clone(state),
            settings,
            clock: clock.clone(),
        })
    }

    pub(crate) async fn run(self) {
        // A task can have checked the servers before a reload of the configuration.
        let healths = self.state.servers.iter().map(|server| ServerHealth {
            is_unhealthy: server.is_ejected(),
            contrary: 0,
        });
        let mut healths: Vec<_> = healths.collect();
        let mut ticks = interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let checks = (0..self.connectors.len()).map(|index| self.passes_check(index));
            let results = join_all(checks).await;
            for (index, (health, passed)) in healths.iter_mut().zip(results).enumerate() {
                if health.record(passed) {
                    self.log_change(index, health.is_unhealthy);
                }
            }
            self.apply(&healths);
        }
    }

    async fn passes_check(&self, index: usize) -> bool {
        let result = timeout(self.settings.timeout, self.send_check(index)).await;
        let why = match result {
            Ok(Ok(())) => return true,
            Ok(Err(why)) => why,
            Err(_) => "no response within the timeout of the health check".to_owned(),
        };
        let server = self.state.servers[index].name();
        tracing::debug!(
            upstream = &*self.state.upstream.name,
            server,
            reason = why,
            "health check of upstream server failed"
        );
        false
    }

    async fn send_check(&self, index: usize) -> Result<(), String> {
        let server = &self.state.servers[index];
        let host = match &self.state.upstream.host {
            HostHeader::Literal(host) => host.clone(),
            HostHeader::Preserve | HostHeader::Server => {
                HeaderValue::from_str(server.name()).expect("an authority is visible ASCII")
            }
        };
        let request = Request::get(self.settings.path.as_str())
            .header(HOST, host)
            .header(USER_AGENT, "tidegate-health")
            .body(UpstreamBody::Empty)
            .expect("path and headers are valid");
        let connecting = self.connectors[index].connect();
        let mut connection = connecting.await.map_err(|error| error.to_string())?;
        let response = connection.sender().send_request(request).await;
        let status = response.map_err(|error| error.to_string())?.status();
        if status.is_success() || status.is_redirection() {
            Ok(())
        } else {
            Err(format!("response has status {}", status.as_u16()))
        }
    }

    fn log_change(&self, index: usize, is_unhealthy: bool) {
        let upstream = &*self.state.upstream.name;
        let server = self.state.servers[index].name();
        if is_unhealthy {
            tracing::warn!(
                upstream,
                server,
                "upstream server is unhealthy after failed health checks"
            );
        } else {
            tracing::info!(
                upstream,
                server,
                "upstream server is healthy again after successful health checks"
            );
        }
    }

    fn apply(&self, healths: &[ServerHealth]) {
        let servers = || self.state.servers.iter().zip(healths);
        for (server, _) in
            servers().filter(|(server, health)| server.is_ejected() && !health.is_unhealthy)
        {
            server.restore(self.clock.now());
        }
        let ejected = servers().filter(|(server, _)| server.is_ejected()).count();
        let allowed =
            max_ejected_servers(healths.len(), self.settings.max_ejected).saturating_sub(ejected);
        servers()
            .filter(|(server, health)| health.is_unhealthy && !server.is_ejected())
            .take(allowed)
            .for_each(|(server, _)| ServerState::eject(server));
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number of servers is small"
)]
fn max_ejected_servers(servers: usize, part: f64) -> usize {
    // Without 1e-9, rounding could make 1/3 of 3 servers 0 instead of 1.
    (servers as f64 * part + 1e-9) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failed_checks_make_a_server_unhealthy_and_two_passed_ones_healthy() {
        let mut health = ServerHealth::default();
        let mut note = |checks: &[bool]| -> Vec<bool> {
            checks.iter().map(|&passed| health.record(passed)).collect()
        };
        assert_eq!(note(&[true, false, false, true]), [false; 4]);
        assert_eq!(note(&[false, false, false]), [false, false, true]);
        assert_eq!(note(&[false, true, false, true]), [false; 4]);
        assert_eq!(note(&[true]), [true]);
        assert_eq!(health, ServerHealth::default());
    }

    #[test]
    fn the_maximum_of_ejected_servers_is_rounded_down() {
        let cases = [
            (1, 0.5, 0),
            (2, 0.5, 1),
            (3, 0.5, 1),
            (3, 1.0 / 3.0, 1),
            (4, 1.0, 4),
            (4, 0.0, 0),
        ];
        for (servers, part, most) in cases {
            assert_eq!(
                max_ejected_servers(servers, part),
                most,
                "{part} of {servers}"
            );
        }
    }
}
