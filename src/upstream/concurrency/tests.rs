//! Tests of the adaptive concurrency limit with simulated upstreams of a fixed capacity.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::num::NonZeroU32;

use super::*;

/// A simulated upstream and the rate of requests that it gets.
#[derive(Clone, Copy)]
struct SimulatedLoad {
    /// How long the simulation runs, in simulated time.
    duration: Duration,
    /// Number of requests that the upstream processes in parallel.
    capacity: usize,
    /// Mean processing time of a request.
    service: Duration,
    /// Number of requests per second that arrive, however slow the responses are.
    offered: f64,
    behaviour: UpstreamBehaviour,
}

/// How long the upstream takes for a request, and what it does with requests above its capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UpstreamBehaviour {
    /// Each request takes the same time. Requests above the capacity wait in a queue.
    ConstantTime,
    /// Processing times are distributed exponentially. Requests above the capacity wait in a queue.
    ExponentialTime,
    /// Requests above the capacity get a 503 response immediately.
    RejectsExcess,
}

/// Measurements of the second half of a simulation.
struct Measurements {
    /// Mean concurrency limit.
    limit: f64,
    /// Highest concurrency limit.
    max_limit: u32,
    /// 99th percentile of the latency, including the time in the queue.
    p99: Duration,
    /// Number of successful responses per second.
    goodput: f64,
}

struct Simulation<'a> {
    limit: Option<&'a Concurrency>,
    now: Moment,
    random: fastrand::Rng,
    /// Arrival time and slot of each request in the queue. The slot is `None` if there is no concurrency limit.
    waiting: VecDeque<(Moment, Option<ConcurrencySlot>)>,
    /// Completion time and ID of each request in progress.
    working: BinaryHeap<Reverse<(Moment, u64)>>,
    /// Arrival time and slot of each request in progress, by ID.
    in_progress: HashMap<u64, (Moment, Option<ConcurrencySlot>)>,
    next_id: u64,
}

impl Measurements {
    /// Asserts that the concurrency limit is between half and twice the capacity. Also asserts that the goodput is
    /// above 90 % of what the upstream can process.
    #[expect(clippy::cast_precision_loss, reason = "the numbers are far below 2^52")]
    fn assert_near(&self, load: SimulatedLoad, case: &str) {
        let capacity = load.capacity as f64;
        let near = capacity / 2.0..=capacity * 2.0;
        assert!(near.contains(&self.limit), "{case}: {self}");
        let possible = capacity / load.service.as_secs_f64();
        assert!(self.goodput > 0.9 * possible, "{case}: {self}");
    }
}

impl fmt::Display for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            max_limit,
            p99,
            goodput,
        } = self;
        write!(
            f,
            "limit {limit:.0} (at most {max_limit}), p99 {p99:.0?}, {goodput:.0}/s"
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
            in_progress: HashMap::new(),
            next_id: 0,
        }
    }

    fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.random.f64()).ln())
    }

    fn run(&mut self, load: SimulatedLoad) -> Measurements {
        let end = self.now.after(load.duration);
        let half = self.now.after(load.duration / 2);
        let gap = Duration::from_secs_f64(1.0 / load.offered);
        let mut arrival = self.now.after(self.exponential(gap));
        let mut latencies = Vec::new();
        let mut limits = Vec::new();
        loop {
            self.begin_work(load);
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
                self.arrive(load);
                arrival = next.after(self.exponential(gap));
            }
            if let Some(limit) = self.limit
                && half < next
            {
                limits.push(limit.limit());
            }
        }
        self.now = end;
        measurements(latencies, &limits, load.duration / 2)
    }

    fn arrive(&mut self, load: SimulatedLoad) {
        let slot = self.limit.map(Concurrency::acquire);
        if matches!(slot, Some(None)) {
            return;
        }
        let slot = slot.flatten();
        if load.behaviour == UpstreamBehaviour::RejectsExcess && self.working.len() >= load.capacity
        {
            if let (Some(limit), Some(slot)) = (self.limit, slot) {
                limit.release(slot, Some(LoadSample::Dropped), self.now);
            }
            return;
        }
        self.waiting.push_back((self.now, slot));
    }

    fn begin_work(&mut self, load: SimulatedLoad) {
        while self.working.len() < load.capacity
            && let Some(request) = self.waiting.pop_front()
        {
            let takes = match load.behaviour {
                UpstreamBehaviour::ExponentialTime => self.exponential(load.service),
                UpstreamBehaviour::ConstantTime | UpstreamBehaviour::RejectsExcess => load.service,
            };
            self.next_id += 1;
            self.in_progress.insert(self.next_id, request);
            self.working
                .push(Reverse((self.now.after(takes), self.next_id)));
        }
    }

    fn finish(&mut self) -> Duration {
        let Reverse((_, id)) = self.working.pop().expect("a request in progress");
        let (arrived, slot) = self.in_progress.remove(&id).expect("a request in progress");
        let latency = self.now.since(arrived);
        if let (Some(limit), Some(slot)) = (self.limit, slot) {
            limit.release(slot, Some(LoadSample::Responded { latency }), self.now);
        }
        latency
    }
}

#[expect(clippy::cast_precision_loss, reason = "the numbers are far below 2^52")]
fn measurements(mut latencies: Vec<Duration>, limits: &[u32], duration: Duration) -> Measurements {
    latencies.sort_unstable();
    let all: u64 = limits.iter().copied().map(u64::from).sum();
    Measurements {
        limit: all as f64 / limits.len() as f64,
        max_limit: limits.iter().copied().max().unwrap_or(0),
        p99: latencies[latencies.len() * 99 / 100],
        goodput: latencies.len() as f64 / duration.as_secs_f64(),
    }
}

fn limit() -> Concurrency {
    Concurrency::new(ConcurrencySettings::default())
}

/// Returns an upstream that gets twice as many requests as it can process, for one minute.
#[expect(clippy::cast_precision_loss, reason = "the numbers are far below 2^52")]
fn overload(capacity: usize, service: Duration, behaviour: UpstreamBehaviour) -> SimulatedLoad {
    SimulatedLoad {
        duration: Duration::from_mins(1),
        capacity,
        service,
        offered: 2.0 * capacity as f64 / service.as_secs_f64(),
        behaviour,
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
fn at_the_limit_no_slot_is_free_until_one_is_released() {
    let limit = fixed(2);
    let first = limit.acquire().expect("free");
    let _second = limit.acquire().expect("free");
    assert!(limit.acquire().is_none());
    assert_eq!((limit.in_flight(), limit.shed()), (2, 1));
    limit.release(first, None, Moment::default());
    assert_eq!(limit.in_flight(), 1);
    assert!(limit.acquire().is_some());
}

#[test]
fn concurrent_callers_never_exceed_the_limit() {
    let limit = fixed(10);
    let slots: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..100).filter_map(|_| limit.acquire()).collect::<Vec<_>>()))
            .collect();
        let slots: Vec<_> = callers
            .into_iter()
            .flat_map(|caller| caller.join().unwrap())
            .collect();
        slots.len()
    });
    assert_eq!(slots, 10);
    assert_eq!((limit.shed(), limit.in_flight()), (790, 10));
}

#[test]
fn under_overload_the_limit_approaches_the_capacity() {
    for behaviour in [
        UpstreamBehaviour::ConstantTime,
        UpstreamBehaviour::ExponentialTime,
    ] {
        for (capacity, millis) in [(5, 20), (10, 50), (50, 50), (200, 20), (400, 100)] {
            let load = overload(capacity, Duration::from_millis(millis), behaviour);
            let bounded = Simulation::new(Some(&limit())).run(load);
            let unbounded = Simulation::new(None).run(load);
            let case = format!("capacity {capacity} at {millis} ms, {behaviour:?}");
            println!("{case}: {bounded}; without: p99 {:.0?}", unbounded.p99);
            bounded.assert_near(load, &case);
            assert!(unbounded.p99 > Duration::from_secs(25), "{case}");
            assert!(bounded.p99 < load.service * 6, "{case}");
            assert!(bounded.goodput > 0.93 * unbounded.goodput, "{case}");
        }
    }
}

#[test]
fn the_limit_does_not_drift_during_a_long_overload() {
    let limit = limit();
    let mut simulation = Simulation::new(Some(&limit));
    let load = overload(
        20,
        Duration::from_millis(50),
        UpstreamBehaviour::ExponentialTime,
    );
    for minute in 1..=15 {
        let measurements = simulation.run(load);
        measurements.assert_near(load, &format!("minute {minute}"));
    }
}

#[test]
fn the_limit_follows_a_capacity_that_falls_and_rises_again() {
    let limit = limit();
    let mut simulation = Simulation::new(Some(&limit));
    let offered = overload(
        50,
        Duration::from_millis(50),
        UpstreamBehaviour::ExponentialTime,
    )
    .offered;
    for capacity in [50, 10, 50] {
        let load = SimulatedLoad {
            offered,
            ..overload(
                capacity,
                Duration::from_millis(50),
                UpstreamBehaviour::ExponentialTime,
            )
        };
        let measurements = simulation.run(load);
        println!("capacity {capacity}: {measurements}");
        measurements.assert_near(load, &format!("capacity {capacity}"));
    }
}

#[test]
fn a_higher_latency_with_the_same_capacity_does_not_reduce_the_limit() {
    let limit = limit();
    let mut simulation = Simulation::new(Some(&limit));
    for millis in [20, 200, 20] {
        let load = overload(
            50,
            Duration::from_millis(millis),
            UpstreamBehaviour::ExponentialTime,
        );
        let measurements = simulation.run(load);
        println!("capacity 50 at {millis} ms: {measurements}");
        measurements.assert_near(load, &format!("{millis} ms"));
    }
}

#[test]
fn the_limit_approaches_the_capacity_of_an_upstream_that_rejects_excess() {
    let load = overload(
        50,
        Duration::from_millis(50),
        UpstreamBehaviour::RejectsExcess,
    );
    let limit = limit();
    let measurements = Simulation::new(Some(&limit)).run(load);
    println!("capacity 50, excess rejected: {measurements}");
    assert!(
        (25.0..=100.0).contains(&measurements.limit),
        "{measurements}"
    );
    assert!(measurements.goodput > 800.0, "{measurements}");
}

/// Returns the concurrency limit after a few hundred rounds with a latency of 10 ms. `used` of every 20 slots are in
/// use, and `failures` of every 100 requests fail.
fn limit_after_rounds(used: u32, failures: u32) -> u32 {
    let mut gradient = Gradient::new(ConcurrencySettings::default());
    let latency = Duration::from_millis(10);
    let mut now = Moment::default();
    for request in 0..100_000 {
        now = now.after(Duration::from_millis(2));
        let sample = if request % 100 < failures {
            LoadSample::Dropped
        } else {
            LoadSample::Responded { latency }
        };
        gradient.record(sample, gradient.limit() * used / 20, now);
    }
    gradient.limit()
}

#[test]
fn a_limit_that_is_less_than_half_used_does_not_grow() {
    assert_eq!(limit_after_rounds(9, 0), 20);
    assert_eq!(limit_after_rounds(20, 0), 1_000);
}

#[test]
fn a_limit_that_is_less_than_half_used_does_not_shrink() {
    assert_eq!(limit_after_rounds(9, 100), 20);
}

#[test]
fn one_failure_in_ten_does_not_shrink_the_limit_and_one_in_two_does() {
    assert_eq!(limit_after_rounds(20, 10), 1_000);
    assert_eq!(limit_after_rounds(20, 50), 4);
}
