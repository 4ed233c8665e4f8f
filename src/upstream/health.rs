//! Asking servers whether they are well, where the configuration wants that.
//!
//! One task asks all servers of an upstream, each over a connection of its own: a server that no longer
//! accepts is not well, however lively its old connections are. What fails three times in a row is taken
//! out, and let in again when it answers twice. Never more than `max_ejected` of them are out: when most
//! servers seem to be ill, it is likelier the checks that are. The breaker knows nothing of this, nor this of
//! the breaker; a server gets requests if neither minds.

use std::sync::Arc;

use futures_util::future::join_all;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::body::UpstreamBody;
use super::connect::{Connector, ConnectorError};
use super::state::{ServerState, UpstreamState};
use super::target;
use super::{HealthSettings, HostHeader};
use crate::clock::Clock;

/// Checks in a row that a server fails before it is taken out.
const FALL: u32 = 3;

/// Checks in a row that it passes before it is let in again.
const RISE: u32 = 2;

/// The checks of one upstream.
#[derive(Debug)]
pub(crate) struct Checks {
    state: Arc<UpstreamState>,
    settings: HealthSettings,
    connectors: Vec<Connector>,
    clock: Clock,
}

/// What checks have found a server to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Finding {
    ill: bool,
    /// Checks in a row that said otherwise.
    against: u32,
}

impl Finding {
    /// Takes another check into account; whether that changed anything.
    fn note(&mut self, well: bool) -> bool {
        if well != self.ill {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let enough = if self.ill { RISE } else { FALL };
        let changed = self.against >= enough;
        if changed {
            *self = Self {
                ill: !self.ill,
                against: 0,
            };
        }
        changed
    }
}

impl Checks {
    /// The checks of an upstream that stands like this, if it is to have any.
    pub(crate) fn of(
        state: &Arc<UpstreamState>,
        clock: &Clock,
    ) -> Result<Option<Self>, ConnectorError> {
        let Some(settings) = state.upstream.health.clone() else {
            return Ok(None);
        };
        Ok(Some(Self {
            connectors: target::connectors(&state.upstream)?,
            state: Arc::clone(state),
            settings,
            clock: clock.clone(),
        }))
    }

    /// Asks again and again, until dropped.
    pub(crate) async fn run(self) {
        let mut findings = vec![Finding::default(); self.connectors.len()];
        let mut ticks = interval(self.settings.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let asked = (0..self.connectors.len()).map(|place| self.is_well(place));
            let answers = join_all(asked).await;
            for (place, (finding, well)) in findings.iter_mut().zip(answers).enumerate() {
                if finding.note(well) {
                    self.tell(place, finding.ill);
                }
            }
            self.apply(&findings);
        }
    }

    async fn is_well(&self, place: usize) -> bool {
        let asked = timeout(self.settings.timeout, self.ask(place)).await;
        let why = match asked {
            Ok(Ok(())) => return true,
            Ok(Err(why)) => why,
            Err(_) => "no answer in time".to_owned(),
        };
        let server = self.state.servers[place].name();
        tracing::debug!(
            upstream = &*self.state.upstream.name,
            server,
            why,
            "a check failed"
        );
        false
    }

    async fn ask(&self, place: usize) -> Result<(), String> {
        let server = &self.state.servers[place];
        let host = match &self.state.upstream.host {
            HostHeader::Literal(host) => host.clone(),
            HostHeader::Preserve | HostHeader::Server => {
                HeaderValue::from_str(server.name()).expect("an authority is visible ASCII")
            }
        };
        let request = Request::get(self.settings.path.as_str())
            .header(HOST, host)
            .header(USER_AGENT, "tidegate-health")
            .body(UpstreamBody::none())
            .expect("a path and two headers make a request");
        let connecting = self.connectors[place].connect();
        let mut link = connecting.await.map_err(|error| error.to_string())?;
        let answer = link.sender().send_request(request).await;
        let status = answer.map_err(|error| error.to_string())?.status();
        if status.is_success() || status.is_redirection() {
            Ok(())
        } else {
            Err(format!("it responded {}", status.as_u16()))
        }
    }

    fn tell(&self, place: usize, ill: bool) {
        let upstream = &*self.state.upstream.name;
        let server = self.state.servers[place].name();
        if ill {
            tracing::warn!(upstream, server, "the server fails its health checks");
        } else {
            tracing::info!(
                upstream,
                server,
                "the server passes its health checks again"
            );
        }
    }

    /// Takes out those that are ill, as many as may be, and lets in those that are not.
    fn apply(&self, findings: &[Finding]) {
        let judged = || self.state.servers.iter().zip(findings);
        for (server, _) in judged().filter(|(server, finding)| server.is_ejected() && !finding.ill)
        {
            server.readmit(self.clock.now());
        }
        let out = judged().filter(|(server, _)| server.is_ejected()).count();
        let room = most_ejected(findings.len(), self.settings.max_ejected).saturating_sub(out);
        judged()
            .filter(|(server, finding)| finding.ill && !server.is_ejected())
            .take(room)
            .for_each(|(server, _)| ServerState::eject(server));
    }
}

/// How many of so many servers may be out at once.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a number of servers, which is small"
)]
fn most_ejected(servers: usize, part: f64) -> usize {
    // A hair more, or a third of three would be none.
    (servers as f64 * part + 1e-9) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failed_checks_make_a_server_ill_and_two_passed_ones_well() {
        let mut finding = Finding::default();
        let mut note = |checks: &[bool]| -> Vec<bool> {
            checks.iter().map(|&well| finding.note(well)).collect()
        };
        assert_eq!(note(&[true, false, false, true]), [false; 4]);
        assert_eq!(note(&[false, false, false]), [false, false, true]);
        assert_eq!(note(&[false, true, false, true]), [false; 4]);
        assert_eq!(note(&[true]), [true]);
        assert_eq!(finding, Finding::default());
    }

    #[test]
    fn the_part_that_may_be_out_is_rounded_down() {
        let cases = [
            (1, 0.5, 0),
            (2, 0.5, 1),
            (3, 0.5, 1),
            (3, 1.0 / 3.0, 1),
            (4, 1.0, 4),
            (4, 0.0, 0),
        ];
        for (servers, part, most) in cases {
            assert_eq!(most_ejected(servers, part), most, "{part} of {servers}");
        }
    }
}
