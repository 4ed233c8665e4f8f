//! Which server a request goes to.
//!
//! Of two servers, drawn by their shares of the load, the one with less underway for its share. Two are
//! enough to keep away from a slow one, and unlike the least busy of all they are not what every worker
//! finds at the same moment. Where nothing tells them apart the first drawn is taken, so that an idle
//! upstream is used by its weights.
//!
//! A server with an open circuit is not drawn, nor one that health checks ejected. If health checks ejected all
//! servers, they are ignored. If no server is left, a circuit that was opened because its server was an outlier
//! closes. Other open circuits always hold.

use std::time::Duration;

use smallvec::SmallVec;

use super::breaker::Ticket;
use super::state::{ServerState, UpstreamState};
use crate::clock::Moment;

/// Servers as their places in their upstream.
pub(super) type Places = SmallVec<[usize; 4]>;

/// A server that takes a request.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) place: usize,
    pub(super) ticket: Ticket,
}

/// No server takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoServer {
    /// When one may, where that is known.
    pub(super) wait: Option<Duration>,
}

/// What a server has to be besides healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// None of those tried.
    Untried,
    /// None of those tried, if there is another.
    PreferUntried,
}

impl UpstreamState {
    /// Chooses the server of the next attempt. `tried` are those of earlier attempts.
    pub(super) fn choose(
        &self,
        tried: &[usize],
        among: Among,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Result<Choice, NoServer> {
        if let [only] = &*self.servers
            && tried.is_empty()
        {
            return match only.breaker.admit(now) {
                Ok(ticket) => Ok(Choice { place: 0, ticket }),
                Err(refused) => Err(NoServer { wait: refused.wait }),
            };
        }
        let mut all = self.admitting(now);
        if all.is_empty() {
            self.close_outlier(now);
            all = self.admitting(now);
        }
        let believed = all.iter().any(|&place| !self.servers[place].is_ejected());
        let is_healthy = |place: usize| !believed || !self.servers[place].is_ejected();
        let of = |wanted: &dyn Fn(usize) -> bool| -> Places {
            let all = all.iter().copied();
            all.filter(|&place| wanted(place)).collect()
        };
        let untried = of(&|place| is_healthy(place) && !tried.contains(&place));
        let choice = self.admitted(untried, now, random);
        let choice = choice.or_else(|| match among {
            Among::PreferUntried => {
                let again = of(&|place| is_healthy(place) && tried.contains(&place));
                self.admitted(again, now, random)
            }
            // What checks took out may still be better than nothing.
            Among::Untried => {
                let unhealthy = of(&|place| !is_healthy(place) && !tried.contains(&place));
                self.admitted(unhealthy, now, random)
            }
        });
        choice.ok_or_else(|| self.no_server(now))
    }

    /// Whether a server will admit an attempt at `then`, in its current state.
    pub(super) fn will_admit(&self, then: Moment) -> bool {
        let mut breakers = self.servers.iter().map(|server| &server.breaker);
        breakers.any(|breaker| breaker.may_admit(then) || breaker.is_outlier())
    }

    /// Returns the servers whose breakers admit an attempt.
    fn admitting(&self, now: Moment) -> Places {
        let places = 0..self.servers.len();
        let admits = |place: &usize| self.servers[*place].breaker.may_admit(now);
        places.filter(admits).collect()
    }

    /// Closes the circuit of an outlier, if there is one.
    fn close_outlier(&self, now: Moment) {
        let mut servers = self.servers.iter();
        let closed = servers.find(|ServerState { breaker, .. }| {
            breaker.is_outlier() && breaker.close_outlier(now).is_some()
        });
        if let Some(server) = closed {
            tracing::info!(
                upstream = &*self.upstream.name,
                server = server.name(),
                "circuit breaker closed, no other server is available"
            );
        }
    }

    fn no_server(&self, now: Moment) -> NoServer {
        let waits = self.servers.iter();
        NoServer {
            wait: waits.filter_map(|server| server.breaker.wait(now)).min(),
        }
    }

    /// One of `candidates` that does take the request: its breaker may have opened a moment ago, or given its
    /// only probe to another worker.
    fn admitted(
        &self,
        mut candidates: Places,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<Choice> {
        while let Some(at) = pick(&self.servers, &candidates, now, random) {
            let place = candidates[at];
            if let Ok(ticket) = self.servers[place].breaker.admit(now) {
                return Some(Choice { place, ticket });
            }
            candidates.swap_remove(at);
        }
        None
    }
}

/// Where among `candidates` the better of two is.
fn pick(
    servers: &[ServerState],
    candidates: &[usize],
    now: Moment,
    random: &mut fastrand::Rng,
) -> Option<usize> {
    if candidates.len() < 2 {
        return candidates.first().map(|_| 0);
    }
    let shares: SmallVec<[f64; 4]> = candidates
        .iter()
        .map(|&place| servers[place].share(now))
        .collect();
    let first = draw(&shares, None, random);
    let second = draw(&shares, Some(first), random);
    let load = |at: usize| f64::from(servers[candidates[at]].in_flight()) / shares[at];
    Some(if load(second) < load(first) {
        second
    } else {
        first
    })
}

/// One of `shares`, drawn in their proportion, but not `except`.
fn draw(shares: &[f64], except: Option<usize>, random: &mut fastrand::Rng) -> usize {
    let taking_part = || {
        let all = shares.iter().copied().enumerate();
        all.filter(|&(at, _)| Some(at) != except)
    };
    let total: f64 = taking_part().map(|(_, share)| share).sum();
    let mut left = random.f64() * total;
    let mut last = 0;
    for (at, share) in taking_part() {
        last = at;
        left -= share;
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

    use super::super::breaker::Failure;
    use super::super::{
        BreakerSettings, HostHeader, Server, Timeouts, Upstream, UpstreamId, state::UpstreamState,
    };
    use super::*;

    const SLOW_START: Duration = Duration::from_secs(10);

    /// An upstream whose servers have these weights.
    fn state(weights: &[u32]) -> UpstreamState {
        let servers = weights.iter().enumerate().map(|(port, &weight)| Server {
            tls: false,
            authority: format!("127.0.0.1:{}", port + 1).parse().unwrap(),
            weight: NonZeroU32::new(weight).unwrap(),
        });
        let upstream = Upstream {
            id: UpstreamId(0),
            name: "api".into(),
            servers: servers.collect(),
            host: HostHeader::Preserve,
            timeouts: Timeouts::default(),
            retry: None,
            breaker: BreakerSettings::default(),
            health: None,
            slow_start: SLOW_START,
            concurrency: None,
            ca_file: None,
        };
        UpstreamState::new(&Arc::new(upstream), 1)
    }

    fn at(seconds: u64) -> Moment {
        Moment::default().after(Duration::from_secs(seconds))
    }

    /// How often each server is chosen first, of ten thousand times, with nothing underway.
    fn chosen(state: &UpstreamState, now: Moment) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut counts = vec![0; state.servers.len()];
        for _ in 0..10_000 {
            let choice = state.choose(&[], Among::PreferUntried, now, &mut random);
            counts[choice.unwrap().place] += 1;
        }
        counts
    }

    fn open(state: &UpstreamState, place: usize, now: Moment) {
        let breaker = &state.servers[place].breaker;
        let mut random = fastrand::Rng::with_seed(1);
        while breaker.is_closed() {
            let ticket = breaker.admit(now).unwrap();
            let others = std::iter::empty();
            breaker.failed(ticket, Failure::Connect, (0, now), &mut random, others);
        }
    }

    fn is_about(count: u32, expected: u32) -> bool {
        count.abs_diff(expected) <= 200
    }

    #[test]
    fn idle_servers_are_used_by_their_weights() {
        let counts = chosen(&state(&[3, 1, 1]), at(0));
        for (count, expected) in counts.iter().zip([6_000, 2_000, 2_000]) {
            assert!(is_about(*count, expected), "{counts:?}");
        }
    }

    #[test]
    fn the_busier_of_two_is_left_aside() {
        let state = state(&[1, 1]);
        state.servers[0].enter(0);
        assert_eq!(chosen(&state, at(0)), [0, 10_000]);
    }

    #[test]
    fn a_heavier_server_is_as_busy_as_a_lighter_one_with_more_underway() {
        let state = state(&[4, 1]);
        for _ in 0..3 {
            state.servers[0].enter(0);
        }
        state.servers[1].enter(0);
        assert_eq!(chosen(&state, at(0)), [10_000, 0]);
    }

    #[test]
    fn of_many_the_busiest_is_never_chosen() {
        let state = state(&[1, 1, 1, 1]);
        state.servers[2].enter(0);
        let counts = chosen(&state, at(0));
        assert_eq!(counts[2], 0, "{counts:?}");
        assert!(counts.iter().filter(|&&count| count > 0).count() == 3);
    }

    #[test]
    fn another_attempt_goes_to_another_server_while_there_is_one() {
        let state = state(&[1, 1]);
        let mut random = fastrand::Rng::with_seed(3);
        let mut choose = |tried: &[usize], among| {
            let choice = state.choose(tried, among, at(0), &mut random);
            choice.map(|choice| choice.place)
        };
        assert_eq!(choose(&[0], Among::PreferUntried), Ok(1));
        assert_eq!(choose(&[1], Among::Untried), Ok(0));
        assert!(choose(&[0, 1], Among::PreferUntried).is_ok());
        assert_eq!(
            choose(&[0, 1], Among::Untried),
            Err(NoServer { wait: None })
        );
    }

    #[test]
    fn an_open_circuit_is_not_chosen_and_all_open_ones_say_when_the_first_is_over() {
        let state = state(&[1, 1]);
        open(&state, 0, at(0));
        assert_eq!(chosen(&state, at(0)), [0, 10_000]);
        let later = |millis| at(0).after(Duration::from_millis(millis));
        open(&state, 1, later(400));
        let mut random = fastrand::Rng::with_seed(3);
        let none = state.choose(&[], Among::PreferUntried, later(600), &mut random);
        let wait = none.unwrap_err().wait.unwrap();
        // One second from the first opening, ±10 %.
        let (least, most) = (Duration::from_millis(300), Duration::from_millis(500));
        assert!((least..=most).contains(&wait), "{wait:?}");
    }

    #[test]
    fn what_checks_took_out_is_not_chosen_unless_they_took_out_all() {
        let state = state(&[1, 1]);
        state.servers[0].eject();
        assert_eq!(chosen(&state, at(0)), [0, 10_000]);
        state.servers[1].eject();
        assert!(chosen(&state, at(0)).iter().all(|&count| count > 4_000));
    }

    #[test]
    fn another_attempt_goes_to_a_well_server_again_before_it_goes_to_an_ill_one() {
        let state = state(&[1, 1]);
        state.servers[1].eject();
        let mut random = fastrand::Rng::with_seed(3);
        let mut choose = |among| {
            let choice = state.choose(&[0], among, at(0), &mut random);
            choice.map(|choice| choice.place)
        };
        assert_eq!(choose(Among::PreferUntried), Ok(0));
        assert_eq!(choose(Among::Untried), Ok(1));
    }

    #[test]
    fn a_server_that_came_back_gets_its_share_little_by_little() {
        let state = state(&[1, 1]);
        let server = &state.servers[0];
        server.eject();
        server.readmit(at(100));
        let share = |seconds| server.share(at(seconds));
        let is = |share: f64, expected: f64| (share - expected).abs() < 1e-9;
        assert!(is(share(100), 0.1) && is(share(101), 0.1));
        assert!(is(share(105), 0.5) && is(share(110), 1.0) && is(share(1_000), 1.0));
        let counts = chosen(&state, at(105));
        assert!(is_about(counts[0], 3_333), "{counts:?}");
    }
}
