//! One scenario of a lab run: its gateway on a free port, and the command that sends requests to it.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::header::CONTENT_TYPE;
use rustix::process::WaitStatus;
use tokio::time::{Instant, interval};

use super::child::{ClientCommand, ClientProcess};
use super::tls::Certificates;
use crate::cli::serve::Signals;
use crate::clock::Clock;
use crate::config::Environment;
use crate::config::lab::{LabOptions, ScenarioFile};
use crate::lab::report::ScenarioResult;
use crate::pipeline::GatewayState;
use crate::scenario::trace::Trace;
use crate::scenario::{Scenario, ScenarioState};
use crate::server::Gateway;

/// Time limit of a command in addition to the waits of its scenario.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum time limit of a command. A scenario can state waits that are longer than the clock can represent.
const MAX_TIMEOUT: Duration = Duration::from_hours(365 * 24);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A command has settled if it has ended and no request was in flight for this time.
const QUIET: Duration = Duration::from_millis(100);

/// How long the lab waits at most for a command that has ended to settle.
const MAX_SETTLE: Duration = Duration::from_secs(2);

pub(super) struct Session<'a> {
    pub(super) file: ScenarioFile<'a>,
    pub(super) scenario: Arc<Scenario>,
    pub(super) command: &'a [OsString],
    pub(super) upstream: Option<&'a str>,
    pub(super) timeout: Option<Duration>,
    pub(super) certificates: Option<&'a Certificates>,
    pub(super) include_secrets: bool,
}

/// It is stopped when this value is dropped.
struct LabGateway {
    /// `None` after the gateway was stopped.
    gateway: Option<Gateway>,
    state: Arc<ScenarioState>,
    url: String,
}

enum CommandEnd {
    Exited(WaitStatus),
    TimedOut,
    Interrupted,
}

impl Session<'_> {
    pub(super) fn limit(&self) -> Duration {
        let default = || DEFAULT_TIMEOUT.saturating_add(self.scenario.longest_wait());
        self.timeout.unwrap_or_else(default).min(MAX_TIMEOUT)
    }

    /// Returns `false` if further scenarios cannot run, because the command does not start or a signal has interrupted
    /// it.
    pub(super) async fn run(
        &self,
        env: &Environment,
        signals: &mut Signals,
    ) -> anyhow::Result<(ScenarioResult, bool)> {
        let gateway = self.start_gateway(env)?;
        let (name, limit) = (&self.scenario.name, readable(self.limit()));
        eprintln!("scenario {name}: running the command, at most {limit}");
        let url = gateway.url.clone();
        let ca_file = self.certificates.map(Certificates::ca_file);
        let command = ClientCommand {
            words: self.command,
            url: &url,
            ca_file: ca_file.as_deref(),
        };
        let mut client = match command.start() {
            Ok(client) => client,
            Err(error) => {
                let trace = gateway.stop().await?;
                let mut result = self.judge(Duration::ZERO, trace, false);
                result.failure = Some(format!("{error:#}"));
                return Ok((result, false));
            }
        };
        let began = Instant::now();
        let end = self.watch(&gateway, &mut client, signals).await;
        let duration = began.elapsed();
        let terminated = client.end(signals).await?;
        let trace = gateway.stop().await?;
        let has_ended = matches!(end, CommandEnd::Exited(_)) && terminated == 0;
        let mut result = self.judge(duration, trace, has_ended);
        self.explain(&end, terminated, &url, &mut result);
        let can_continue = !matches!(end, CommandEnd::Interrupted);
        Ok((result, can_continue))
    }

    fn start_gateway(&self, env: &Environment) -> anyhow::Result<LabGateway> {
        let files = self
            .certificates
            .map(|files| (files.cert_file(), files.key_file()));
        let options = LabOptions {
            upstream: self.upstream,
            tls: files.as_ref().map(|(cert, key)| (&**cert, &**key)),
        };
        let loaded = self.file.policy(&self.scenario.name, options, env)?;
        let shared = GatewayState::open(Arc::new(loaded.policy), Clock::real())?;
        if self.include_secrets {
            shared.scenarios.include_bodies();
        }
        let state = shared.scenarios.get(&self.scenario.name).map(Arc::clone);
        let state = state.context("the scenario is not part of the gateway")?;
        let (gateway, refusal) = Gateway::start_with_refusal(shared)
            .map_err(|error| anyhow::Error::msg(error.to_string()))?;
        state.set_refusal(move |time| refusal.refuse_for(time));
        let scheme = if files.is_some() { "https" } else { "http" };
        Ok(LabGateway {
            url: format!("{scheme}://{}", gateway.addresses()[0]),
            gateway: Some(gateway),
            state,
        })
    }

    /// Waits until the command has ended and no request is in flight.
    async fn watch(
        &self,
        gateway: &LabGateway,
        client: &mut ClientProcess,
        signals: &mut Signals,
    ) -> CommandEnd {
        let deadline = Instant::now() + self.limit();
        let mut polls = interval(POLL_INTERVAL);
        let mut quiet_since = Instant::now();
        let mut exited_at = None;
        loop {
            tokio::select! {
                _ = signals.next() => return CommandEnd::Interrupted,
                _ = polls.tick() => {}
            }
            let now = Instant::now();
            if gateway.state.in_flight() > 0 {
                quiet_since = now;
            }
            if let Some(status) = client.status() {
                let exited_at = *exited_at.get_or_insert(now);
                let is_quiet = now - quiet_since.max(exited_at) >= QUIET;
                if is_quiet || now - exited_at >= MAX_SETTLE {
                    return CommandEnd::Exited(status);
                }
            } else if now >= deadline {
                return CommandEnd::TimedOut;
            }
        }
    }

    fn explain(&self, end: &CommandEnd, terminated: usize, url: &str, result: &mut ScenarioResult) {
        match end {
            CommandEnd::Exited(status) => {
                result.notes.extend(exit_note(*status));
                if terminated > 0 {
                    result.notes.push(format!(
                        "processes that the command left running were terminated: {terminated}"
                    ));
                }
            }
            CommandEnd::TimedOut => {
                let limit = readable(self.limit());
                result.failure = Some(format!(
                    "the command did not end within {limit} and was terminated (--timeout sets the limit)"
                ));
            }
            CommandEnd::Interrupted => {
                result.failure = Some(
                    "the run was interrupted by a signal, and the command was terminated".into(),
                );
            }
        }
        if result.trace.attempts.is_empty() {
            let sent_none = no_request(url, self.scenario.refuses_connections());
            result.failure = Some(match result.failure.take() {
                Some(failure) => format!("{failure}, and {sent_none}"),
                None => sent_none,
            });
        }
    }

    fn judge(&self, duration: Duration, trace: Trace, has_ended: bool) -> ScenarioResult {
        let note = self.upstream_note(&trace);
        let mut result = ScenarioResult::of(&self.scenario, trace, has_ended);
        result.notes.extend(note);
        result.duration = duration;
        result
    }

    /// Distinguishes failures of the upstream from those of the scenario.
    fn upstream_note(&self, trace: &Trace) -> Option<String> {
        let url = self.upstream?;
        let failed = trace.attempts.iter().filter(|attempt| {
            let response = attempt.response.as_ref();
            response.is_some_and(|response| {
                let is_problem = response.headers.get(CONTENT_TYPE);
                let is_problem = is_problem.is_some_and(|it| it == "application/problem+json");
                let status = response.status.map_or(0, |status| status.as_u16());
                is_problem && matches!(status, 502..=504)
            })
        });
        let number = failed.count();
        (number > 0)
            .then(|| format!("requests that failed because of the upstream {url}: {number}"))
    }
}

impl LabGateway {
    /// All clients have ended, so the gateway only has to notice that their connections are closed.
    async fn stop(mut self) -> anyhow::Result<Trace> {
        let deadline = Instant::now() + MAX_SETTLE;
        while self.state.in_flight() > 0 && Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.halt()?;
        Ok(self.state.trace())
    }

    fn halt(&mut self) -> anyhow::Result<()> {
        if let Some(gateway) = self.gateway.take() {
            gateway.stopper().halt();
            gateway.join()?;
        }
        Ok(())
    }
}

impl Drop for LabGateway {
    fn drop(&mut self) {
        // An error is ignored: another error is already being reported.
        let _ = self.halt();
    }
}

/// Without fractions of a second if the limit is long.
fn readable(limit: Duration) -> humantime::FormattedDuration {
    let rounded = match limit.as_secs() {
        0..10 => Duration::new(limit.as_secs(), limit.subsec_millis() * 1_000_000),
        seconds => Duration::from_secs(seconds),
    };
    humantime::format_duration(rounded)
}

fn no_request(url: &str, refuses_connections: bool) -> String {
    let proxy = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"];
    let proxy = proxy.into_iter().find(|it| std::env::var_os(it).is_some());
    let proxy = proxy.map(|name| format!("; {name} is set, so add 127.0.0.1 to NO_PROXY"));
    format!(
        "the command sent no request to {url}; it gets this URL in the environment variable TIDEGATE_URL and instead \
         of {{url}} in its arguments{}{}",
        proxy.unwrap_or_default(),
        if refuses_connections {
            "; connections that the step `refuse` refuses are not in the trace"
        } else {
            ""
        }
    )
}

fn exit_note(status: WaitStatus) -> Option<String> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("the command exited with status {code}")),
        (None, Some(signal)) => Some(format!("the command was ended by signal {signal}")),
        (None, None) => Some("the command ended in an unknown way".into()),
    }
}
