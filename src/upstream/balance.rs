//! Load balancing: chooses the server that an attempt sends its request to.
//!
//! The balancer draws two servers at random, in proportion to their weights, and chooses the one with fewer requests in
//! flight relative to its weight (power of two choices). The least busy of all servers would be a worse choice, because
//! all workers would choose it at the same time. On a tie the first drawn wins, so an idle upstream is used in
//! proportion to the weights.
//!
//! Servers with an open circuit and ejected servers are not drawn. If all are ejected, the ejections are ignored. If
//! all circuits are open, the circuit of one outlier closes.

use smallvec::SmallVec;

use super::breaker::{BreakerPermit, NotAdmitted};
use super::shared_state::{ServerState, UpstreamState};
use crate::clock::Moment;

pub(super) type ServerIndexes = SmallVec<[usize; 4]>;

#[derive(Debug)]
pub(super) struct ChosenServer {
    pub(super) index: usize,
    pub(super) permit: BreakerPermit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Candidates {
    Untried,
    /// If none is available, servers that were tried.
    PreferUntried,
}

impl UpstreamState {
    pub(super) fn choose(
        &self,
        tried: &[usize],
        candidates: Candidates,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Result<ChosenServer, NotAdmitted> {
        if let [only] = &*self.servers
            && tried.is_empty()
        {
            let admitted = only.breaker.admit(now);
            return admitted.map(|permit| ChosenServer { index: 0, permit });
        }
        let mut all = self.admitting(now);
        if all.is_empty() {
            self.close_outlier(now);
            all = self.admitting(now);
        }
        let ejections_apply = all.iter().any(|&index| !self.servers[index].is_ejected());
        let is_healthy = |index: usize| !ejections_apply || !self.servers[index].is_ejected();
        let of = |wanted: &dyn Fn(usize) -> bool| -> ServerIndexes {
            let all = all.iter().copied();
            all.filter(|&index| wanted(index)).collect()
        };
        let untried = of(&|index| is_healthy(index) && !tried.contains(&index));
        let choice = self.admitted(untried, now, random);
        let choice = choice.or_else(|| match candidates {
            Candidates::PreferUntried => {
                let again = of(&|index| is_healthy(index) && tried.contains(&index));
                self.admitted(again, now, random)
            }
            // A failover can also choose an ejected server as the last choice, because it can still accept the request.
            Candidates::Untried => {
                let unhealthy = of(&|index| !is_healthy(index) && !tried.contains(&index));
                self.admitted(unhealthy, now, random)
            }
        });
        choice.ok_or_else(|| self.no_server(now))
    }

    /// Assumes that no circuit breaker changes until `then`.
    pub(super) fn will_admit(&self, then: Moment) -> bool {
        let mut breakers = self.servers.iter().map(|server| &server.breaker);
        breakers.any(|breaker| breaker.may_admit(then) || breaker.is_outlier())
    }

    fn admitting(&self, now: Moment) -> ServerIndexes {
        let indexes = 0..self.servers.len();
        let admits = |index: &usize| self.servers[*index].breaker.may_admit(now);
        indexes.filter(admits).collect()
    }

    fn close_outlier(&self, now: Moment) {
        let mut servers = self.servers.iter();
        let closed = servers.find(|ServerState { breaker, .. }| {
            breaker.is_outlier() && breaker.close_outlier(now).is_some()
        });
        if let Some(server) = closed {
            tracing::info!(
                upstream = &*self.upstream.name,
                server = server.name(),
                "circuit breaker closed early, because no other server of the upstream is available"
            );
        }
    }

    fn no_server(&self, now: Moment) -> NotAdmitted {
        let waits = self.servers.iter();
        NotAdmitted {
            wait: waits.filter_map(|server| server.breaker.wait(now)).min(),
        }
    }

    /// Skips candidates whose circuit another worker opened or probed since they were listed.
    fn admitted(
        &self,
        mut candidates: ServerIndexes,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<ChosenServer> {
        while let Some(at) = pick(&self.servers, &candidates, now, random) {
            let index = candidates[at];
            if let Ok(permit) = self.servers[index].breaker.admit(now) {
                return Some(ChosenServer { index, permit });
            }
            candidates.swap_remove(at);
        }
        None
    }
}

/// Returns a position in `candidates`.
fn pick(
    servers: &[ServerState],
    candidates: &[usize],
    now: Moment,
    random: &mut fastrand::Rng,
) -> Option<usize> {
    if candidates.len() < 2 {
        return candidates.first().map(|_| 0);
    }
    let weights: SmallVec<[f64; 4]> = candidates
        .iter()
        .map(|&index| servers[index].effective_weight(now))
        .collect();
    let first = draw(&weights, None, random);
    let second = draw(&weights, Some(first), random);
    let load = |at: usize| f64::from(servers[candidates[at]].in_flight()) / weights[at];
    Some(if load(second) < load(first) {
        second
    } else {
        first
    })
}

/// Returns a position in `weights`, with a probability in proportion to the weight, and never `except`.
fn draw(weights: &[f64], except: Option<usize>, random: &mut fastrand::Rng) -> usize {
    let drawable = || {
        let all = weights.iter().copied().enumerate();
        all.filter(|&(at, _)| Some(at) != except)
    };
    let total: f64 = drawable().map(|(_, weight)| weight).sum();
    let mut left = random.f64() * total;
    let mut last = 0;
    for (at, weight) in drawable() {
        last = at;
        left -= weight;
        if left < 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::breaker::ServerFailure;
    use super::super::{
        BreakerSettings, HostHeader, Server, Timeouts, Upstream, shared_state::UpstreamState,
    };
    use super::*;

    const SLOW_START: Duration = Duration::from_secs(10);

    /// Creates the state of an upstream whose servers have these weights.
    fn state(weights: &[u32]) -> UpstreamState {
        let servers = weights.iter().enumerate().map(|(port, &weight)| Server {
            tls: false,
            authority: format!("127.0.0.1:{}", port + 1).parse().unwrap(),
            weight: NonZeroU32::new(weight).unwrap(),
        });
        let upstream = Upstream {
            name: "api".into(),
            servers: servers.collect(),
            host: HostHeader::Preserve,
            timeouts: Timeouts::default(),
            retry: None,
            breaker: BreakerSettings::default(),
            health: None,
            keep_alive: Duration::from_secs(30),
            slow_start: SLOW_START,
            concurrency: None,
            ca: None,
        };
        let first_byte = upstream.timeouts.first_byte;
        UpstreamState::new(&Arc::new(upstream), first_byte, 1)
    }

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    /// Makes 10,000 first attempts and returns how often each server was chosen.
    fn chosen(state: &UpstreamState, now: Moment) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut counts = vec![0; state.servers.len()];
        for _ in 0..10_000 {
            let choice = state.choose(&[], Candidates::PreferUntried, now, &mut random);
            counts[choice.unwrap().index] += 1;
        }
        counts
    }

    fn open(state: &UpstreamState, index: usize, now: Moment) {
        let breaker = &state.servers[index].breaker;
        let mut random = fastrand::Rng::with_seed(1);
        while breaker.is_closed() {
            let permit = breaker.admit(now).unwrap();
            let others = std::iter::empty();
            breaker.failed(permit, ServerFailure::Connect, now, &mut random, others);
        }
    }

    fn is_about(count: u32, expected: u32) -> bool {
        count.abs_diff(expected) <= 200
    }

    #[test]
    fn idle_servers_are_used_in_proportion_to_their_weights() {
        let counts = chosen(&state(&[3, 1, 1]), at(0));
        for (count, expected) in counts.iter().zip([6_000, 2_000, 2_000]) {
            assert!(is_about(*count, expected), "{counts:?}");
        }
    }

    #[test]
    fn requests_in_flight_are_compared_relative_to_the_weight() {
        let state = state(&[4, 1]);
        for _ in 0..3 {
            state.servers[0].begin_request(0);
        }
        state.servers[1].begin_request(0);
        assert_eq!(chosen(&state, at(0)), [10_000, 0]);
    }

    #[test]
    fn the_busiest_of_many_servers_is_never_chosen() {
        let state = state(&[1, 1, 1, 1]);
        state.servers[2].begin_request(0);
        let counts = chosen(&state, at(0));
        assert_eq!(counts[2], 0, "{counts:?}");
        assert!(counts.iter().filter(|&&count| count > 0).count() == 3);
    }

    #[test]
    fn a_further_attempt_prefers_an_untried_server() {
        let state = state(&[1, 1]);
        let mut random = fastrand::Rng::with_seed(3);
        let mut choose = |tried: &[usize], candidates| {
            let choice = state.choose(tried, candidates, at(0), &mut random);
            choice.map(|choice| choice.index)
        };
        assert_eq!(choose(&[0], Candidates::PreferUntried), Ok(1));
        assert_eq!(choose(&[1], Candidates::Untried), Ok(0));
        assert!(choose(&[0, 1], Candidates::PreferUntried).is_ok());
        assert_eq!(
            choose(&[0, 1], Candidates::Untried),
            Err(NotAdmitted { wait: None })
        );
    }

    #[test]
    fn open_circuits_are_not_chosen_and_the_wait_ends_with_the_first_probe() {
        let state = state(&[1, 1]);
        open(&state, 0, at(0));
        assert_eq!(chosen(&state, at(0)), [0, 10_000]);
        let later = |millis| at(0).after(Duration::from_millis(millis));
        open(&state, 1, later(400));
        let mut random = fastrand::Rng::with_seed(3);
        let none = state.choose(&[], Candidates::PreferUntried, later(600), &mut random);
        let wait = none.unwrap_err().wait.unwrap();
        // The first circuit opened 0.6 s ago, and its open time is 1 s ± 10 %. So it admits a probe in 0.3 s to 0.5 s.
        let (least, most) = (Duration::from_millis(300), Duration::from_millis(500));
        assert!((least..=most).contains(&wait), "{wait:?}");
    }

    #[test]
    fn ejected_servers_are_not_chosen_unless_all_are_ejected() {
        let state = state(&[1, 1]);
        state.servers[0].eject();
        assert_eq!(chosen(&state, at(0)), [0, 10_000]);
        state.servers[1].eject();
        assert!(chosen(&state, at(0)).iter().all(|&count| count > 4_000));
        let sole = self::state(&[1]);
        sole.servers[0].eject();
        for tried in [&[][..], &[0]] {
            let choice = sole.choose(
                tried,
                Candidates::PreferUntried,
                at(0),
                &mut fastrand::Rng::new(),
            );
            assert_eq!(choice.map(|choice| choice.index), Ok(0));
        }
    }

    #[test]
    fn a_retry_prefers_a_tried_healthy_server_over_an_ejected_one() {
        let state = state(&[1, 1]);
        state.servers[1].eject();
        let mut random = fastrand::Rng::with_seed(3);
        let mut choose = |candidates| {
            let choice = state.choose(&[0], candidates, at(0), &mut random);
            choice.map(|choice| choice.index)
        };
        assert_eq!(choose(Candidates::PreferUntried), Ok(0));
        assert_eq!(choose(Candidates::Untried), Ok(1));
    }

    #[test]
    fn the_weight_of_a_restored_server_rises_during_slow_start() {
        let state = state(&[1, 1]);
        let server = &state.servers[0];
        server.eject();
        server.restore(at(100));
        let weight = |seconds| server.effective_weight(at(seconds));
        let is = |weight: f64, expected: f64| (weight - expected).abs() < 1e-9;
        assert!(is(weight(100), 0.1) && is(weight(101), 0.1));
        assert!(is(weight(105), 0.5) && is(weight(110), 1.0) && is(weight(1_000), 1.0));
        let counts = chosen(&state, at(105));
        assert!(is_about(counts[0], 3_333), "{counts:?}");
    }
}
