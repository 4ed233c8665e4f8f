//! Breakers of three servers and their [models](super::super::model) agree after every step, whatever the steps are.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::super::super::settings::{FailureStatuses, OpensOn};
use super::super::model::{Model, ModelPhase, PROBE, Pass};
use super::super::*;

const SERVERS: usize = 3;
const WORKERS: usize = 3;

/// Something done to a breaker and its model. A ticket knows its server.
#[derive(Clone, Debug)]
enum Deed {
    Admit(usize),
    Succeed(prop::sample::Index),
    Fail(prop::sample::Index, Failure),
    Abandon(prop::sample::Index),
    /// An attempt whose result arrives at once; `None` is a success.
    Attempt(usize, Option<Failure>),
    Wait(Duration),
    WaitForItsTime(usize),
    HoldOpen(usize),
    Close(usize),
    CloseOutlier(usize),
}

/// A ticket in use, and its model.
struct InUse {
    server: usize,
    ticket: Ticket,
    pass: Pass,
}

/// Breakers, models and the tickets in use.
struct Fleet {
    breakers: Vec<Breaker>,
    models: Vec<Model>,
    tickets: Vec<InUse>,
    random: fastrand::Rng,
    now: Moment,
    step: usize,
}

impl Fleet {
    fn new(settings: &BreakerSettings) -> Self {
        let breaker = |_| Breaker::new(settings, PROBE, WORKERS);
        let model = |_| Model::new(settings.clone());
        Self {
            breakers: (0..SERVERS).map(breaker).collect(),
            models: (0..SERVERS).map(model).collect(),
            tickets: Vec::new(),
            random: fastrand::Rng::with_seed(1),
            now: Moment::default(),
            step: 0,
        }
    }

    fn take(&mut self, index: prop::sample::Index) -> Option<InUse> {
        let len = self.tickets.len();
        (len != 0).then(|| self.tickets.swap_remove(index.index(len)))
    }

    fn admit(&mut self, server: usize) -> Result<Option<InUse>, TestCaseError> {
        let expected = self.models[server].admit(self.step, self.now);
        match (self.breakers[server].admit(self.now), expected) {
            (Ok(ticket), Ok(pass)) => {
                prop_assert_eq!(ticket.is_probe(), pass.probe);
                prop_assert_eq!(ticket.probes_connection(), pass.connection_only);
                Ok(Some(InUse {
                    server,
                    ticket,
                    pass,
                }))
            }
            (Err(refused), Err(expected)) => {
                prop_assert_eq!(refused, expected);
                Ok(None)
            }
            (ticket, expected) => {
                prop_assert!(false, "{:?} but {:?}", ticket, expected.map(|_| ()));
                Ok(None)
            }
        }
    }

    fn succeed(&mut self, used: InUse) -> Result<(), TestCaseError> {
        let worker = self.step % WORKERS;
        let change = self.breakers[used.server].succeeded(used.ticket, worker, self.now);
        let expected = self.models[used.server].succeeded(used.pass, self.step, self.now);
        prop_assert_eq!(change, expected);
        Ok(())
    }

    fn fail(&mut self, used: InUse, failure: Failure) -> Result<(), TestCaseError> {
        let server = used.server;
        let others = self.breakers.iter().enumerate();
        let others = others.filter(|(other, _)| *other != server);
        let change = self.breakers[server].failed(
            used.ticket,
            failure,
            (self.step % WORKERS, self.now),
            &mut self.random,
            others.map(|(_, other)| other),
        );
        if used.pass.connection_only && failure == Failure::Response {
            // There is a connection, which is all that the probe has to establish.
            let expected = self.models[server].succeeded(used.pass, self.step, self.now);
            prop_assert_eq!(change, expected);
            return Ok(());
        }
        let (before, rest) = self.models.split_at_mut(server);
        let (model, after) = rest.split_first_mut().expect("the server's own");
        let others: Vec<&Model> = before.iter().chain(after.iter()).collect();
        match (change, model.failed(used.pass, failure, self.now, &others)) {
            (Some(Change::Opened { for_, why }), Some(expected)) => {
                prop_assert_eq!(why, expected);
                let until = self.now.after(for_);
                model.open(Some(until), why, self.step, self.now);
                let time = model.open_time();
                prop_assert!(for_ >= time.mul_f64(0.9) && for_ <= time.mul_f64(1.1));
            }
            (change, expected) => {
                prop_assert_eq!(change, None);
                prop_assert_eq!(expected, None);
            }
        }
        Ok(())
    }

    fn hold_open(&mut self, server: usize) -> Result<(), TestCaseError> {
        let model = &mut self.models[server];
        let held = model.phase == ModelPhase::Open(None);
        let opened = self.breakers[server].hold_open(self.now);
        prop_assert_eq!(opened.is_some(), !held);
        if !held {
            model.open(None, Cause::ByHand, self.step, self.now);
        }
        Ok(())
    }

    fn close(&mut self, server: usize) -> Result<(), TestCaseError> {
        let model = &mut self.models[server];
        let was_closed = model.phase == ModelPhase::Closed;
        let change = self.breakers[server].close(self.now);
        prop_assert_eq!(change, (!was_closed).then_some(Change::Closed));
        model.shut(self.step, self.now);
        Ok(())
    }

    fn close_outlier(&mut self, server: usize) -> Result<(), TestCaseError> {
        let model = &mut self.models[server];
        let is_outlier = model.is_outlier();
        let change = self.breakers[server].close_outlier(self.now);
        prop_assert_eq!(change, is_outlier.then_some(Change::Closed));
        if is_outlier {
            model.shut(self.step, self.now);
        }
        Ok(())
    }

    fn undergo(&mut self, deed: &Deed) -> Result<(), TestCaseError> {
        self.step += 1;
        match *deed {
            Deed::Admit(server) => {
                let admitted = self.admit(server)?;
                self.tickets.extend(admitted);
            }
            Deed::Succeed(index) => {
                if let Some(used) = self.take(index) {
                    self.succeed(used)?;
                }
            }
            Deed::Fail(index, failure) => {
                if let Some(used) = self.take(index) {
                    self.fail(used, failure)?;
                }
            }
            Deed::Abandon(index) => {
                if let Some(used) = self.take(index) {
                    drop(used.ticket);
                    self.models[used.server].abandoned(used.pass);
                }
            }
            Deed::Attempt(server, result) => {
                if let Some(used) = self.admit(server)? {
                    self.step += 1;
                    match result {
                        None => self.succeed(used)?,
                        Some(failure) => self.fail(used, failure)?,
                    }
                }
            }
            Deed::Wait(time) => self.now = self.now.after(time),
            Deed::WaitForItsTime(server) => {
                if let ModelPhase::Open(Some(until)) = self.models[server].phase {
                    self.now = until.max(self.now);
                }
            }
            Deed::HoldOpen(server) => self.hold_open(server)?,
            Deed::Close(server) => self.close(server)?,
            Deed::CloseOutlier(server) => self.close_outlier(server)?,
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        let now = self.now;
        for (breaker, model) in self.breakers.iter().zip(&mut self.models) {
            model.pass_time(now);
            prop_assert_eq!(breaker.snapshot(now), model.snapshot(now));
            prop_assert_eq!(breaker.is_closed(), model.phase == ModelPhase::Closed);
            prop_assert_eq!(breaker.is_outlier(), model.is_outlier());
            prop_assert_eq!(breaker.recovered_at(), model.recovered);
            let admits = match model.phase {
                ModelPhase::Closed => true,
                ModelPhase::Open(_) => false,
                ModelPhase::HalfOpen { probed } => {
                    probed.is_none_or(|since| now.since(since) >= PROBE)
                }
            };
            prop_assert_eq!(breaker.may_admit(now), admits);
        }
        let outliers = self.models.iter().filter(|model| model.is_outlier());
        prop_assert!(outliers.count() <= 1);
        Ok(())
    }
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![1 => Just(Failure::Connect), 2 => Just(Failure::Response)]
}

/// Attempts of which those at the first server fail more often, so that it is an outlier in many cases.
fn attempt() -> impl Strategy<Value = Deed> {
    let rarely = || prop_oneof![9 => Just(None), 1 => failure().prop_map(Some)];
    prop_oneof![
        2 => prop_oneof![1 => Just(None), 3 => failure().prop_map(Some)]
            .prop_map(|result| Deed::Attempt(0, result)),
        3 => (1..SERVERS, rarely()).prop_map(|(server, result)| Deed::Attempt(server, result)),
    ]
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let index = any::<prop::sample::Index>;
    let deed = prop_oneof![
        30 => (0..SERVERS).prop_map(Deed::Admit),
        12 => index().prop_map(Deed::Succeed),
        20 => (index(), failure()).prop_map(|(index, failure)| Deed::Fail(index, failure)),
        3 => index().prop_map(Deed::Abandon),
        60 => attempt(),
        6 => (0_u64..400).prop_map(|millis| Deed::Wait(Duration::from_millis(millis))),
        4 => (0..SERVERS).prop_map(Deed::WaitForItsTime),
        1 => (0..SERVERS).prop_map(Deed::HoldOpen),
        1 => (0..SERVERS).prop_map(Deed::Close),
        1 => (0..SERVERS).prop_map(Deed::CloseOutlier),
    ];
    prop::collection::vec(deed, 0..300)
}

fn settings() -> impl Strategy<Value = BreakerSettings> {
    let opens_on = prop_oneof![
        1 => Just(OpensOn::Nothing),
        6 => Just(OpensOn::Outliers),
        5 => Just(OpensOn::AllFailures),
    ];
    (opens_on, 2_u32..12, 2_u32..12).prop_map(|(opens_on, in_a_row, volume)| BreakerSettings {
        opens_on,
        consecutive_failures: NonZeroU32::new(in_a_row).unwrap(),
        failures: FailureStatuses::default(),
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
    fn breakers_and_models_agree_at_every_step(settings in settings(), deeds in deeds()) {
        let mut fleet = Fleet::new(&settings);
        for deed in &deeds {
            fleet.undergo(deed)?;
        }
    }
}
