//! A limit in front of a simulated upstream that does so many things at once and has the rest wait in line.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::num::NonZeroU32;

use super::*;

/// An upstream and its callers, for a while.
#[derive(Clone, Copy)]
struct Times {
    lasting: Duration,
    /// Requests that are worked on at once.
    capacity: usize,
    /// How long each takes, at the mean.
    service: Duration,
    /// Requests a second that come, whatever becomes of the others.
    offered: f64,
    kind: Kind,
}

/// What an upstream does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Each request takes the same time, the rest wait.
    Steady,
    /// Times are spread exponentially, the rest wait.
    Spread,
    /// The rest are sent off with a 503 at once.
    Refusing,
}

/// What was seen in the second half of some times.
struct Figures {
    /// The limit at the mean, and at most.
    limit: f64,
    most: u32,
    /// The longest latency but for one in a hundred.
    p99: Duration,
    /// Answers a second.
    goodput: f64,
}

struct Simulation<'a> {
    limit: Option<&'a Concurrency>,
    now: Moment,
    random: fastrand::Rng,
    /// When each came, and its place if it needs one.
    waiting: VecDeque<(Moment, Option<Entry>)>,
    /// When each is done, and its number.
    working: BinaryHeap<Reverse<(Moment, u64)>>,
    entries: HashMap<u64, (Moment, Option<Entry>)>,
    next_id: u64,
}

impl Figures {
    /// The limit is within a factor of two of what the upstream can do at once, and it does that.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn assert_near(&self, times: Times, case: &str) {
        let capacity = times.capacity as f64;
        let near = capacity / 2.0..=capacity * 2.0;
        assert!(near.contains(&self.limit), "{case}: {self}");
        let possible = capacity / times.service.as_secs_f64();
        assert!(self.goodput > 0.9 * possible, "{case}: {self}");
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            most,
            p99,
            goodput,
        } = self;
        write!(
            f,
            "limit {limit:.0} (at most {most}), p99 {p99:.0?}, {goodput:.0}/s"
        )
    }
}

impl<'a> Simulation<'a> {
    fn new(limit: Option<&'a Concurrency>) -> Self {
        Self {
            limit,
            now: Moment::default(),
            random: fastrand::Rng::with_seed(11),
            waiting: VecDeque::new(),
            working: BinaryHeap::new(),
            entries: HashMap::new(),
            next_id: 0,
        }
    }

    fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.random.f64()).ln())
    }

    fn run(&mut self, times: Times) -> Figures {
        let end = self.now.after(times.lasting);
        let half = self.now.after(times.lasting / 2);
        let gap = Duration::from_secs_f64(1.0 / times.offered);
        let mut arrival = self.now.after(self.exponential(gap));
        let mut latencies = Vec::new();
        let mut limits = Vec::new();
        loop {
            self.begin_work(times);
            let done = self.working.peek().map(|Reverse((done, _))| *done);
            let next = done.map_or(arrival, |done| done.min(arrival));
            if next > end {
                break;
            }
            self.now = next;
            if done == Some(next) {
                let latency = self.finish();
                if half < next {
                    latencies.push(latency);
                }
            } else {
                self.arrive(times);
                arrival = next.after(self.exponential(gap));
            }
            if let Some(limit) = self.limit
                && half < next
            {
                limits.push(limit.limit());
            }
        }
        self.now = end;
        figures(latencies, &limits, times.lasting / 2)
    }

    fn arrive(&mut self, times: Times) {
        let entry = self.limit.map(Concurrency::enter);
        if matches!(entry, Some(None)) {
            return;
        }
        let entry = entry.flatten();
        if times.kind == Kind::Refusing && self.working.len() >= times.capacity {
            if let (Some(limit), Some(entry)) = (self.limit, entry) {
                limit.left(entry, Some(Outcome::Dropped), self.now);
            }
            return;
        }
        self.waiting.push_back((self.now, entry));
    }

    fn begin_work(&mut self, times: Times) {
        while self.working.len() < times.capacity
            && let Some(request) = self.waiting.pop_front()
        {
            let takes = match times.kind {
                Kind::Spread => self.exponential(times.service),
                Kind::Steady | Kind::Refusing => times.service,
            };
            self.next_id += 1;
            self.entries.insert(self.next_id, request);
            self.working
                .push(Reverse((self.now.after(takes), self.next_id)));
        }
    }

    fn finish(&mut self) -> Duration {
        let Reverse((_, id)) = self.working.pop().expect("peeked at");
        let (arrived, entry) = self.entries.remove(&id).expect("worked on");
        let latency = self.now.since(arrived);
        if let (Some(limit), Some(entry)) = (self.limit, entry) {
            limit.left(entry, Some(Outcome::Responded { latency }), self.now);
        }
        latency
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn figures(mut latencies: Vec<Duration>, limits: &[u32], lasting: Duration) -> Figures {
    latencies.sort_unstable();
    let all: u64 = limits.iter().copied().map(u64::from).sum();
    Figures {
        limit: all as f64 / limits.len() as f64,
        most: limits.iter().copied().max().unwrap_or(0),
        p99: latencies[latencies.len() * 99 / 100],
        goodput: latencies.len() as f64 / lasting.as_secs_f64(),
    }
}

fn limit() -> Concurrency {
    Concurrency::new(ConcurrencySettings::default())
}

/// Twice as much as the upstream can do.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn overload(capacity: usize, service: Duration, kind: Kind) -> Times {
    Times {
        lasting: Duration::from_mins(1),
        capacity,
        service,
        offered: 2.0 * capacity as f64 / service.as_secs_f64(),
        kind,
    }
}

fn fixed(limit: u32) -> Concurrency {
    let limit = NonZeroU32::new(limit).unwrap();
    Concurrency::new(ConcurrencySettings {
        min: limit,
        max: limit,
        initial: limit,
    })
}

#[test]
fn no_more_enter_than_the_limit_until_one_leaves() {
    let limit = fixed(2);
    let first = limit.enter().expect("free");
    let _second = limit.enter().expect("free");
    assert!(limit.enter().is_none());
    assert_eq!((limit.in_flight(), limit.shed()), (2, 1));
    limit.left(first, None, Moment::default());
    assert_eq!(limit.in_flight(), 1);
    assert!(limit.enter().is_some());
}

#[test]
fn of_very_many_answers_a_round_notes_about_a_thousand() {
    let limit = fixed(1);
    let mut now = Moment::default();
    let mut thinned = 0;
    // A hundred thousand a second, for three seconds.
    for _ in 0..300_000 {
        now = now.after(Duration::from_nanos(9_973));
        let entry = limit.enter().expect("free");
        let latency = Duration::from_millis(1);
        limit.left(entry, Some(Outcome::Responded { latency }), now);
        thinned = limit.thinning.load(Ordering::Relaxed);
    }
    // Ten thousand in a round of 100 ms: one in eight or sixteen.
    assert!(thinned == 7 || thinned == 15, "{thinned}");
}

#[test]
fn a_place_is_free_when_its_request_left() {
    let limit = fixed(1);
    for outcome in [
        Outcome::Dropped,
        Outcome::Responded {
            latency: Duration::ZERO,
        },
    ] {
        let entry = limit.enter().expect("free");
        limit.left(entry, Some(outcome), Moment::default());
    }
    assert_eq!(limit.in_flight(), 0);
}

#[test]
fn racing_callers_never_exceed_the_limit() {
    let limit = fixed(10);
    let entries: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..100).filter_map(|_| limit.enter()).collect::<Vec<_>>()))
            .collect();
        let entries: Vec<_> = callers
            .into_iter()
            .flat_map(|caller| caller.join().unwrap())
            .collect();
        entries.len()
    });
    assert_eq!(entries, 10);
    assert_eq!((limit.shed(), limit.in_flight()), (790, 10));
}

#[test]
fn under_overload_the_limit_comes_near_what_the_upstream_can_do_at_once() {
    for kind in [Kind::Steady, Kind::Spread] {
        for (capacity, millis) in [(5, 20), (10, 50), (50, 50), (200, 20), (400, 100)] {
            let times = overload(capacity, Duration::from_millis(millis), kind);
            let bounded = Simulation::new(Some(&limit())).run(times);
            let unbounded = Simulation::new(None).run(times);
            let case = format!("{capacity} at once of {millis} ms, {kind:?}");
            println!("{case}: {bounded}; without: p99 {:.0?}", unbounded.p99);
            bounded.assert_near(times, &case);
            assert!(unbounded.p99 > Duration::from_secs(25), "{case}");
            assert!(bounded.p99 < times.service * 6, "{case}");
            assert!(bounded.goodput > 0.93 * unbounded.goodput, "{case}");
        }
    }
}

#[test]
fn a_limit_that_begins_far_too_high_comes_down() {
    let settings = ConcurrencySettings {
        initial: NonZeroU32::new(1_000).unwrap(),
        ..ConcurrencySettings::default()
    };
    let times = overload(20, Duration::from_millis(50), Kind::Spread);
    let figures = Simulation::new(Some(&Concurrency::new(settings))).run(times);
    println!("from 1000, with 20 at once: {figures}");
    figures.assert_near(times, "from 1000");
}

#[test]
fn an_overload_that_lasts_does_not_drag_the_limit_along() {
    let limit = limit();
    let mut simulation = Simulation::new(Some(&limit));
    let times = overload(20, Duration::from_millis(50), Kind::Spread);
    for minute in 1..=15 {
        let figures = simulation.run(times);
        figures.assert_near(times, &format!("minute {minute}"));
    }
}

#[test]
fn the_limit_follows_an_upstream_that_can_do_less_and_then_more_again() {
    let limit = limit();
    let mut simulation = Simulation::new(Some(&limit));
    let offered = overload(50, Duration::from_millis(50), Kind::Spread).offered;
    for capacity in [50, 10, 50] {
        let times = Times {
            offered,
            ..overload(capacity, Duration::from_millis(50), Kind::Spread)
        };
        let figures = simulation.run(times);
        println!("{capacity} at once: {figures}");
        figures.assert_near(times, &format!("{capacity} at once"));
    }
}

#[test]
fn an_upstream_that_is_slower_but_can_do_as_much_at_once_is_not_starved() {
    let limit = limit();
    let mut simulation = Simulation::new(Some(&limit));
    for millis in [20, 200, 20] {
        let times = overload(50, Duration::from_millis(millis), Kind::Spread);
        let figures = simulation.run(times);
        println!("50 at once of {millis} ms: {figures}");
        figures.assert_near(times, &format!("{millis} ms"));
    }
}

#[test]
fn an_upstream_that_refuses_what_is_too_much_is_sent_less_of_it() {
    let times = overload(50, Duration::from_millis(50), Kind::Refusing);
    let limit = limit();
    let figures = Simulation::new(Some(&limit)).run(times);
    println!("50 at once, the rest refused: {figures}");
    assert!((25.0..=100.0).contains(&figures.limit), "{figures}");
    assert!(figures.goodput > 800.0, "{figures}");
}

/// The limit after a few hundred rounds of answers that all take as long, with so many in flight out of
/// every twenty there may be, and so many failures among a hundred.
fn after_rounds(of_twenty: u32, failures: u32) -> u32 {
    let mut gradient = Gradient::new(ConcurrencySettings::default());
    let latency = Duration::from_millis(10);
    let mut now = Moment::default();
    for request in 0..100_000 {
        now = now.after(Duration::from_millis(2));
        let outcome = if request % 100 < failures {
            Outcome::Dropped
        } else {
            Outcome::Responded { latency }
        };
        gradient.note(outcome, gradient.limit() * of_twenty / 20, now);
    }
    gradient.limit()
}

#[test]
fn a_limit_that_is_not_used_up_does_not_grow() {
    assert_eq!(after_rounds(9, 0), 20);
    assert_eq!(after_rounds(20, 0), 1_000);
}

#[test]
fn a_limit_that_is_not_used_up_does_not_shrink() {
    assert_eq!(after_rounds(9, 100), 20);
}

#[test]
fn a_few_failures_do_not_shrink_the_limit_and_many_do() {
    assert_eq!(after_rounds(20, 10), 1_000);
    assert_eq!(after_rounds(20, 50), 4);
}
