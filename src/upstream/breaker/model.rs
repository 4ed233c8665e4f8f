//! The breaker once more, as slow and as plain as can be: lists of what happened, read from end to end.
//! Whatever one does to both, they have to agree at every step.

use proptest::prelude::*;

use super::super::tally::SLOTS;
use super::*;

/// How long a probe is waited for.
const PROBE: Duration = Duration::from_millis(500);

/// A breaker that remembers all and works out the rest.
struct Model {
    settings: BreakerSettings,
    phase: ModelPhase,
    since: Moment,
    /// Results of the closed phase, with their moments.
    results: Vec<(Moment, bool)>,
    /// Steps at which the phase changed.
    changes: Vec<usize>,
    /// Why it opened, each time since it was last closed.
    causes: Vec<Cause>,
    openings: u64,
    why: Option<Cause>,
    recovered: Option<Moment>,
}

#[derive(Clone, Copy, PartialEq)]
enum ModelPhase {
    Closed,
    /// `None` while held.
    Open(Option<Moment>),
    /// When its probe began, where there is one.
    HalfOpen {
        probed: Option<Moment>,
    },
}

/// The model's ticket: the step it was given out at.
#[derive(Clone, Copy)]
struct Pass {
    step: usize,
    probe: bool,
}

/// Something done to both.
#[derive(Clone, Debug)]
enum Deed {
    Admit,
    Succeed(prop::sample::Index),
    Fail(prop::sample::Index),
    Abandon(prop::sample::Index),
    Wait(Duration),
    WaitForItsTime,
    HoldOpen,
    Close,
}

impl Model {
    fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            phase: ModelPhase::Closed,
            since: Moment::default(),
            results: Vec::new(),
            changes: Vec::new(),
            causes: Vec::new(),
            openings: 0,
            why: None,
            recovered: None,
        }
    }

    /// An open phase ends by itself.
    fn pass_time(&mut self, now: Moment) {
        if let ModelPhase::Open(Some(until)) = self.phase
            && until <= now
        {
            self.phase = ModelPhase::HalfOpen { probed: None };
            self.since = until;
        }
    }

    fn admit(&mut self, step: usize, now: Moment) -> Result<Pass, Refused> {
        match self.phase {
            ModelPhase::Closed => Ok(Pass { step, probe: false }),
            ModelPhase::Open(until) => Err(Refused {
                wait: until.map(|until| until.since(now)),
            }),
            ModelPhase::HalfOpen {
                probed: Some(since),
            } if now.since(since) < PROBE => Err(Refused { wait: None }),
            ModelPhase::HalfOpen { .. } => {
                self.phase = ModelPhase::HalfOpen { probed: Some(now) };
                self.changes.push(step);
                Ok(Pass { step, probe: true })
            }
        }
    }

    fn is_late(&self, pass: Pass) -> bool {
        self.changes.iter().any(|change| *change > pass.step)
    }

    fn succeeded(&mut self, pass: Pass, step: usize, now: Moment) -> Option<Change> {
        if self.is_late(pass) {
            return None;
        }
        if pass.probe {
            self.shut(step, now);
            return Some(Change::Closed);
        }
        self.results.push((now, true));
        None
    }

    /// Why it opens, if it does.
    fn failed(&mut self, pass: Pass, now: Moment) -> Option<Cause> {
        if self.is_late(pass) {
            return None;
        }
        if pass.probe {
            return Some(Cause::FailedProbe);
        }
        self.results.push((now, false));
        if !self.settings.enabled {
            return None;
        }
        if self.in_a_row() >= self.settings.consecutive_failures.get() {
            return Some(Cause::InARow);
        }
        let (succeeded, failed) = (self.count(true, now), self.count(false, now));
        let all = succeeded + failed;
        let enough = all >= u64::from(self.settings.min_requests.get());
        // The ratio of all settings here is a half.
        (enough && failed >= succeeded).then_some(Cause::Ratio)
    }

    fn abandoned(&mut self, pass: Pass) {
        if pass.probe && !self.is_late(pass) {
            self.phase = ModelPhase::HalfOpen { probed: None };
        }
    }

    fn open(&mut self, until: Option<Moment>, why: Cause, step: usize, now: Moment) {
        self.phase = ModelPhase::Open(until);
        self.since = now;
        self.changes.push(step);
        self.causes.push(why);
        self.openings += 1;
        self.why = Some(why);
    }

    fn shut(&mut self, step: usize, now: Moment) {
        if self.phase != ModelPhase::Closed {
            self.since = now;
            self.recovered = Some(now);
        }
        self.phase = ModelPhase::Closed;
        self.changes.push(step);
        self.results.clear();
        self.causes.clear();
    }

    /// The open time as it is before it is spread.
    fn open_time(&self) -> Duration {
        let failed = self.causes.iter().filter(|why| **why == Cause::FailedProbe);
        let doubled = failed.fold(self.settings.open, |time, _| time * 2);
        doubled.min(self.settings.open_max)
    }

    fn in_a_row(&self) -> u32 {
        let failures = self.results.iter().rev().take_while(|(_, well)| !well);
        u32::try_from(failures.count()).unwrap()
    }

    fn count(&self, which: bool, now: Moment) -> u64 {
        let slot = |moment: Moment| moment.as_nanos() / (nanos(self.settings.window) / SLOTS);
        let within = |moment| slot(moment) + SLOTS > slot(now);
        let results = self.results.iter();
        results
            .filter(|(moment, well)| *well == which && within(*moment))
            .count() as u64
    }

    fn snapshot(&self, now: Moment) -> Snapshot {
        Snapshot {
            state: match self.phase {
                ModelPhase::Closed => State::Closed,
                ModelPhase::Open(until) => State::Open {
                    remaining: until.map(|until| until.since(now)),
                    held: until.is_none(),
                },
                ModelPhase::HalfOpen { .. } => State::HalfOpen,
            },
            since: self.since,
            in_a_row: match self.phase {
                ModelPhase::Closed => self.in_a_row(),
                _ => 0,
            },
            openings: self.openings,
            why: self.why,
            succeeded: self.count(true, now),
            failed: self.count(false, now),
        }
    }
}

/// Both, and the tickets that are out.
struct Pair {
    breaker: Breaker,
    model: Model,
    out: Vec<(Ticket, Pass)>,
    random: fastrand::Rng,
    now: Moment,
    step: usize,
}

impl Pair {
    fn new(settings: &BreakerSettings) -> Self {
        Self {
            breaker: Breaker::new(settings, PROBE, 3),
            model: Model::new(settings.clone()),
            out: Vec::new(),
            random: fastrand::Rng::with_seed(1),
            now: Moment::default(),
            step: 0,
        }
    }

    fn take(&mut self, index: prop::sample::Index) -> Option<(Ticket, Pass)> {
        let len = self.out.len();
        (len != 0).then(|| self.out.swap_remove(index.index(len)))
    }

    fn admit(&mut self) -> Result<(), TestCaseError> {
        let expected = self.model.admit(self.step, self.now);
        match (self.breaker.admit(self.now), expected) {
            (Ok(ticket), Ok(pass)) => {
                prop_assert_eq!(ticket.is_probe(), pass.probe);
                self.out.push((ticket, pass));
            }
            (Err(refused), Err(expected)) => prop_assert_eq!(refused, expected),
            (ticket, expected) => {
                prop_assert!(false, "{:?} but {:?}", ticket, expected.map(|_| ()));
            }
        }
        Ok(())
    }

    fn fail(&mut self, ticket: Ticket, pass: Pass) -> Result<(), TestCaseError> {
        let worker = self.step % 3;
        let change = self
            .breaker
            .failed(ticket, worker, self.now, &mut self.random);
        let expected = self.model.failed(pass, self.now);
        match (change, expected) {
            (Some(Change::Opened { for_, why }), Some(expected)) => {
                prop_assert_eq!(why, expected);
                let until = self.now.after(for_);
                self.model.open(Some(until), why, self.step, self.now);
                let time = self.model.open_time();
                prop_assert!(for_ >= time.mul_f64(0.9) && for_ <= time.mul_f64(1.1));
            }
            (change, expected) => {
                prop_assert!(change.is_none() && expected.is_none(), "{:?}", change);
            }
        }
        Ok(())
    }

    fn hold_open(&mut self) -> Result<(), TestCaseError> {
        let held = self.model.phase == ModelPhase::Open(None);
        let opened = self.breaker.hold_open(self.now);
        prop_assert_eq!(opened.is_some(), !held);
        if !held {
            self.model.open(None, Cause::ByHand, self.step, self.now);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), TestCaseError> {
        let was_closed = self.model.phase == ModelPhase::Closed;
        let change = self.breaker.close(self.now);
        prop_assert_eq!(change, (!was_closed).then_some(Change::Closed));
        self.model.shut(self.step, self.now);
        Ok(())
    }

    fn undergo(&mut self, deed: &Deed) -> Result<(), TestCaseError> {
        self.step += 1;
        match *deed {
            Deed::Admit => self.admit()?,
            Deed::Succeed(index) => {
                if let Some((ticket, pass)) = self.take(index) {
                    let change = self.breaker.succeeded(ticket, self.step % 3, self.now);
                    let expected = self.model.succeeded(pass, self.step, self.now);
                    prop_assert_eq!(change, expected);
                }
            }
            Deed::Fail(index) => {
                if let Some((ticket, pass)) = self.take(index) {
                    self.fail(ticket, pass)?;
                }
            }
            Deed::Abandon(index) => {
                if let Some((ticket, pass)) = self.take(index) {
                    self.breaker.abandoned(ticket);
                    self.model.abandoned(pass);
                }
            }
            Deed::Wait(time) => self.now = self.now.after(time),
            Deed::WaitForItsTime => {
                if let ModelPhase::Open(Some(until)) = self.model.phase {
                    self.now = until;
                }
            }
            Deed::HoldOpen => self.hold_open()?,
            Deed::Close => self.close()?,
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        self.model.pass_time(self.now);
        let Self {
            breaker,
            model,
            now,
            ..
        } = self;
        prop_assert_eq!(breaker.snapshot(*now), model.snapshot(*now));
        prop_assert_eq!(breaker.is_closed(), model.phase == ModelPhase::Closed);
        prop_assert_eq!(breaker.recovered_at(), model.recovered);
        let admits = match model.phase {
            ModelPhase::Closed => true,
            ModelPhase::Open(_) => false,
            ModelPhase::HalfOpen { probed } => probed.is_none_or(|since| now.since(since) >= PROBE),
        };
        prop_assert_eq!(breaker.may_admit(*now), admits);
        Ok(())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let deed = prop_oneof![
        30 => Just(Deed::Admit),
        12 => any::<prop::sample::Index>().prop_map(Deed::Succeed),
        20 => any::<prop::sample::Index>().prop_map(Deed::Fail),
        3 => any::<prop::sample::Index>().prop_map(Deed::Abandon),
        6 => (0_u64..400).prop_map(|millis| Deed::Wait(Duration::from_millis(millis))),
        4 => Just(Deed::WaitForItsTime),
        1 => Just(Deed::HoldOpen),
        1 => Just(Deed::Close),
    ];
    prop::collection::vec(deed, 0..300)
}

fn settings() -> impl Strategy<Value = BreakerSettings> {
    let enabled = prop::bool::weighted(0.9);
    (enabled, 2_u32..12, 2_u32..12).prop_map(|(enabled, in_a_row, volume)| BreakerSettings {
        enabled,
        consecutive_failures: NonZeroU32::new(in_a_row).unwrap(),
        failure_ratio: 0.5,
        window: Duration::from_secs(1),
        min_requests: NonZeroU32::new(volume).unwrap(),
        open: Duration::from_millis(300),
        open_max: Duration::from_secs(1),
        fallback: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn breaker_and_model_agree_at_every_step(settings in settings(), deeds in deeds()) {
        let mut pair = Pair::new(&settings);
        for deed in &deeds {
            pair.undergo(deed)?;
        }
    }
}
