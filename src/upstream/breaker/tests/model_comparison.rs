//! Compares the circuit breakers of three servers with the reference [model](super::super::model) after each step of
//! random sequences of actions.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::super::super::settings::{FailureStatuses, OpensOn};
use super::super::model::{BreakerModel, ModelPermit, ModelPhase, PROBE};
use super::super::*;

const SERVERS: usize = 3;

/// A random action, applied to a circuit breaker and to its model. A `usize` is the index of the server.
#[derive(Clone, Debug)]
enum Action {
    Admit(usize),
    Succeed(prop::sample::Index),
    Fail(prop::sample::Index, ServerFailure),
    Abandon(prop::sample::Index),
    /// An attempt at this server whose result arrives immediately. `None` stands for a success.
    Attempt(usize, Option<ServerFailure>),
    Wait(Duration),
    WaitForOpenTime(usize),
    HoldOpen(usize),
    Close(usize),
    CloseOutlier(usize),
}

/// A permit whose attempt has no result yet, and the corresponding permit of the model.
struct PermitInUse {
    server: usize,
    permit: BreakerPermit,
    model_permit: ModelPermit,
}

/// The circuit breakers of the servers, their models, and the permits of attempts without a result.
struct ModelledBreakers {
    breakers: Vec<Breaker>,
    models: Vec<BreakerModel>,
    permits: Vec<PermitInUse>,
    random: fastrand::Rng,
    now: Moment,
    step: usize,
}

impl ModelledBreakers {
    fn new(settings: &BreakerSettings) -> Self {
        let breaker = |_| Breaker::new(settings, PROBE);
        let model = |_| BreakerModel::new(settings.clone());
        Self {
            breakers: (0..SERVERS).map(breaker).collect(),
            models: (0..SERVERS).map(model).collect(),
            permits: Vec::new(),
            random: fastrand::Rng::with_seed(1),
            now: Moment::default(),
            step: 0,
        }
    }

    fn take(&mut self, index: prop::sample::Index) -> Option<PermitInUse> {
        let len = self.permits.len();
        (len != 0).then(|| self.permits.swap_remove(index.index(len)))
    }

    fn admit(&mut self, server: usize) -> Result<Option<PermitInUse>, TestCaseError> {
        let expected = self.models[server].admit(self.step, self.now);
        match (self.breakers[server].admit(self.now), expected) {
            (Ok(permit), Ok(model_permit)) => {
                prop_assert_eq!(permit.is_probe(), model_permit.probe);
                prop_assert_eq!(permit.probes_connection(), model_permit.connection_only);
                Ok(Some(PermitInUse {
                    server,
                    permit,
                    model_permit,
                }))
            }
            (Err(not_admitted), Err(expected)) => {
                prop_assert_eq!(not_admitted, expected);
                Ok(None)
            }
            (permit, expected) => {
                prop_assert!(false, "{:?} but {:?}", permit, expected.map(|_| ()));
                Ok(None)
            }
        }
    }

    fn succeed(&mut self, in_use: PermitInUse) -> Result<(), TestCaseError> {
        let change = self.breakers[in_use.server].succeeded(in_use.permit, self.now);
        let expected =
            self.models[in_use.server].succeeded(in_use.model_permit, self.step, self.now);
        prop_assert_eq!(change, expected);
        Ok(())
    }

    fn fail(&mut self, in_use: PermitInUse, failure: ServerFailure) -> Result<(), TestCaseError> {
        let server = in_use.server;
        let others = self.breakers.iter().enumerate();
        let others = others.filter(|(other, _)| *other != server);
        let change = self.breakers[server].failed(
            in_use.permit,
            failure,
            self.now,
            &mut self.random,
            others.map(|(_, other)| other),
        );
        if in_use.model_permit.connection_only && !self.models[server].counts_alone(failure) {
            // This probe tests only the connection. It succeeds although the response is a failure, because the
            // connection was established, or did not time out.
            let expected = self.models[server].succeeded(in_use.model_permit, self.step, self.now);
            prop_assert_eq!(change, expected);
            return Ok(());
        }
        let (before, rest) = self.models.split_at_mut(server);
        let (model, after) = rest.split_first_mut().expect("the model of the server");
        let others: Vec<&BreakerModel> = before.iter().chain(after.iter()).collect();
        match (
            change,
            model.failed(in_use.model_permit, failure, self.now, &others),
        ) {
            (Some(PhaseChange::Opened { open_time, why }), Some(expected)) => {
                prop_assert_eq!(why, expected);
                let until = self.now.after(open_time);
                model.open(Some(until), why, self.step, self.now);
                let time = model.open_time(failure);
                prop_assert!(open_time >= time.mul_f64(0.9) && open_time <= time.mul_f64(1.1));
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
            model.open(None, OpenCause::Operator, self.step, self.now);
        }
        Ok(())
    }

    fn close(&mut self, server: usize) -> Result<(), TestCaseError> {
        let model = &mut self.models[server];
        let was_closed = model.phase == ModelPhase::Closed;
        let change = self.breakers[server].close(self.now);
        prop_assert_eq!(change, (!was_closed).then_some(PhaseChange::Closed));
        model.close_circuit(self.step, self.now);
        Ok(())
    }

    fn close_outlier(&mut self, server: usize) -> Result<(), TestCaseError> {
        let model = &mut self.models[server];
        let is_outlier = model.is_outlier();
        let change = self.breakers[server].close_outlier(self.now);
        prop_assert_eq!(change, is_outlier.then_some(PhaseChange::Closed));
        if is_outlier {
            model.close_circuit(self.step, self.now);
        }
        Ok(())
    }

    fn perform(&mut self, action: &Action) -> Result<(), TestCaseError> {
        self.step += 1;
        match *action {
            Action::Admit(server) => {
                let admitted = self.admit(server)?;
                self.permits.extend(admitted);
            }
            Action::Succeed(index) => {
                if let Some(in_use) = self.take(index) {
                    self.succeed(in_use)?;
                }
            }
            Action::Fail(index, failure) => {
                if let Some(in_use) = self.take(index) {
                    self.fail(in_use, failure)?;
                }
            }
            Action::Abandon(index) => {
                if let Some(in_use) = self.take(index) {
                    drop(in_use.permit);
                    self.models[in_use.server].abandoned(in_use.model_permit);
                }
            }
            Action::Attempt(server, result) => {
                if let Some(in_use) = self.admit(server)? {
                    self.step += 1;
                    match result {
                        None => self.succeed(in_use)?,
                        Some(failure) => self.fail(in_use, failure)?,
                    }
                }
            }
            Action::Wait(time) => self.now = self.now.after(time),
            Action::WaitForOpenTime(server) => {
                if let ModelPhase::Open(Some(until)) = self.models[server].phase {
                    self.now = until.max(self.now);
                }
            }
            Action::HoldOpen(server) => self.hold_open(server)?,
            Action::Close(server) => self.close(server)?,
            Action::CloseOutlier(server) => self.close_outlier(server)?,
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        let now = self.now;
        for (breaker, model) in self.breakers.iter().zip(&mut self.models) {
            model.advance_to(now);
            prop_assert_eq!(breaker.snapshot(now), model.snapshot(now));
            prop_assert_eq!(breaker.is_closed(), model.phase == ModelPhase::Closed);
            prop_assert_eq!(breaker.is_outlier(), model.is_outlier());
            prop_assert_eq!(breaker.recovered_at(), model.recovered);
            let admits = match model.phase {
                ModelPhase::Closed => true,
                ModelPhase::Open(_) => false,
                ModelPhase::HalfOpen { blocked } => blocked.is_none_or(|until| now >= until),
            };
            prop_assert_eq!(breaker.may_admit(now), admits);
        }
        let outliers = self.models.iter().filter(|model| model.is_outlier());
        prop_assert!(outliers.count() <= 1);
        Ok(())
    }
}

fn failure() -> impl Strategy<Value = ServerFailure> {
    prop_oneof![
        1 => Just(ServerFailure::Connect),
        1 => Just(ServerFailure::ConnectTimeout),
        3 => Just(ServerFailure::Response),
    ]
}

/// Generates attempts at all servers. Attempts at the first server fail more often, so that it is an outlier in many
/// cases.
fn attempt() -> impl Strategy<Value = Action> {
    let rarely = || prop_oneof![9 => Just(None), 1 => failure().prop_map(Some)];
    prop_oneof![
        2 => prop_oneof![1 => Just(None), 3 => failure().prop_map(Some)]
            .prop_map(|result| Action::Attempt(0, result)),
        3 => (1..SERVERS, rarely()).prop_map(|(server, result)| Action::Attempt(server, result)),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let index = any::<prop::sample::Index>;
    let action = prop_oneof![
        30 => (0..SERVERS).prop_map(Action::Admit),
        12 => index().prop_map(Action::Succeed),
        20 => (index(), failure()).prop_map(|(index, failure)| Action::Fail(index, failure)),
        3 => index().prop_map(Action::Abandon),
        60 => attempt(),
        6 => (0_u64..400).prop_map(|millis| Action::Wait(Duration::from_millis(millis))),
        1 => Just(Action::Wait(CONNECT_OPEN)),
        4 => (0..SERVERS).prop_map(Action::WaitForOpenTime),
        1 => (0..SERVERS).prop_map(Action::HoldOpen),
        1 => (0..SERVERS).prop_map(Action::Close),
        1 => (0..SERVERS).prop_map(Action::CloseOutlier),
    ];
    prop::collection::vec(action, 0..300)
}

fn settings() -> impl Strategy<Value = BreakerSettings> {
    let opens_on = prop_oneof![
        1 => Just(OpensOn::Nothing),
        4 => Just(OpensOn::ConnectTimeouts),
        6 => Just(OpensOn::Outliers),
        5 => Just(OpensOn::AllFailures),
    ];
    (opens_on, 2_u32..12, 2_u32..12).prop_map(|(opens_on, consecutive_failures, min_requests)| {
        BreakerSettings {
            opens_on,
            consecutive_failures: NonZeroU32::new(consecutive_failures).unwrap(),
            failures: FailureStatuses::default(),
            failure_ratio: 0.5,
            window: Duration::from_secs(1),
            min_requests: NonZeroU32::new(min_requests).unwrap(),
            open: Duration::from_millis(300),
            open_max: Duration::from_secs(1),
            fallback: None,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn breakers_and_models_have_the_same_state_after_every_action(settings in settings(), actions in actions()) {
        let mut breakers = ModelledBreakers::new(&settings);
        for action in &actions {
            breakers.perform(action)?;
        }
    }
}
