//! Random histories, compared with a model that knows nothing of how a store works.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::idempotency::{
    Claim, ClaimRequest, ExecutionOutcome, Fingerprint, OnUnknown, Permit, RecordCounts, RecordId,
    RecordState, Records, Waiter,
};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

use super::bench::{Bench, Kind, TTL, answer, claim_request, id};
use super::server::Server;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    /// A request claims a key.
    Claim {
        key: u16,
        scope: u8,
        request: u8,
        on_unknown: OnUnknown,
    },
    /// One of the executions underway goes on its way.
    Send(usize),
    /// One of the executions underway ends.
    End(usize, How),
    /// An operator frees a key.
    Free { key: u16, scope: u8 },
    /// Time passes.
    Pass(Duration),
    /// The process dies and is started again.
    Crash,
}

/// How an execution ends.
#[derive(Clone, Copy, Debug)]
enum How {
    Completes,
    Entombed,
    Released,
    Unknown,
    Dropped,
}

fn any_event() -> impl Strategy<Value = Event> {
    let key = 0_u16..3;
    let scope = 1_u8..3;
    let on_unknown = prop_oneof![4 => Just(OnUnknown::Hold), 1 => Just(OnUnknown::Release)];
    let how = prop_oneof![
        4 => Just(How::Completes),
        1 => Just(How::Entombed),
        2 => Just(How::Released),
        2 => Just(How::Unknown),
        2 => Just(How::Dropped),
    ];
    prop_oneof![
        12 => (key.clone(), scope.clone(), 0_u8..2, on_unknown).prop_map(
            |(key, scope, request, on_unknown)| Event::Claim { key, scope, request, on_unknown }
        ),
        4 => any::<usize>().prop_map(Event::Send),
        8 => (any::<usize>(), how).prop_map(|(which, how)| Event::End(which, how)),
        1 => (key, scope).prop_map(|(key, scope)| Event::Free { key, scope }),
        3 => (0_u64..=70).prop_map(|minutes| Event::Pass(Duration::from_mins(minutes))),
        1 => Just(Event::Crash),
    ]
}

/// What the model knows of a key.
#[derive(Clone, Debug)]
enum Known {
    InProgress(u8),
    /// In this state until then; completed with this answer.
    Ended(u8, RecordState, Option<u16>, Moment),
}

#[derive(Default)]
struct Model(HashMap<RecordId, Known>);

/// The result that a claim must have.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Won,
    InFlight,
    Mismatch,
    Replay(u16),
    Unknown,
    Tombstone,
}

impl Model {
    fn expire(&mut self, now: Moment) {
        self.0.retain(|_, known| match known {
            Known::InProgress(_) => true,
            Known::Ended(.., until) => *until > now,
        });
    }

    fn claim(&mut self, claim_request: &ClaimRequest) -> Expected {
        let asked = claim_request.fingerprint.request[0];
        let expected = match self.0.get(&claim_request.id) {
            None => Expected::Won,
            Some(Known::InProgress(request) | Known::Ended(request, ..)) if *request != asked => {
                Expected::Mismatch
            }
            Some(Known::InProgress(_)) => Expected::InFlight,
            Some(Known::Ended(_, RecordState::Completed, number, _)) => {
                Expected::Replay(number.expect("completed with an answer"))
            }
            Some(Known::Ended(_, RecordState::Tombstone, ..)) => Expected::Tombstone,
            Some(Known::Ended(..)) if claim_request.settings.on_unknown == OnUnknown::Release => {
                Expected::Won
            }
            Some(Known::Ended(..)) => Expected::Unknown,
        };
        if expected == Expected::Won {
            self.0.insert(claim_request.id, Known::InProgress(asked));
        }
        expected
    }

    fn end(
        &mut self,
        claim_request: &ClaimRequest,
        state: RecordState,
        number: Option<u16>,
        now: Moment,
    ) {
        let until = now.after(claim_request.settings.ttl);
        let known = Known::Ended(claim_request.fingerprint.request[0], state, number, until);
        self.0.insert(claim_request.id, known);
    }

    /// What is left after the process died.
    fn crash(&mut self, durable: bool, now: Moment) {
        if !durable {
            self.0.clear();
        }
        for known in self.0.values_mut() {
            if let Known::InProgress(request) = *known {
                *known = Known::Ended(request, RecordState::Unknown, None, now.after(TTL));
            }
        }
    }

    fn counts(&self) -> [u64; 4] {
        RecordState::ALL.map(|state| {
            let known = self.0.values().filter(|known| match known {
                Known::InProgress(_) => state == RecordState::InProgress,
                Known::Ended(_, ended, ..) => *ended == state,
            });
            known.count() as u64
        })
    }
}

fn counts(counts: &RecordCounts) -> [u64; 4] {
    RecordState::ALL.map(|state| counts.of(state))
}

/// A store and its model, side by side.
struct Trial {
    kind: Kind,
    bench: Bench,
    model: Model,
    underway: Vec<Permit>,
    waiting: Vec<(RecordId, Waiter)>,
    /// Numbers answers, so that no two are the same.
    answers: u16,
}

impl Trial {
    async fn step(&mut self, event: &Event) {
        let now = self.bench.clock.now();
        self.model.expire(now);
        match *event {
            Event::Claim {
                key,
                scope,
                request,
                on_unknown,
            } => self.claim(key, scope, request, on_unknown).await,
            Event::Send(which) => {
                if let Some(which) = self.pick(which) {
                    self.underway[which].mark_sent();
                }
            }
            Event::End(which, how) => {
                if let Some(which) = self.pick(which) {
                    self.end(which, how, now).await;
                }
            }
            Event::Free { key, scope } => {
                let id = id(key, scope);
                let unknown = matches!(
                    self.model.0.get(&id),
                    Some(Known::Ended(_, RecordState::Unknown, ..))
                );
                assert_eq!(self.bench.records.free_unknown(id).await.unwrap(), unknown);
                if unknown {
                    self.model.0.remove(&id);
                }
            }
            Event::Pass(time) => self.bench.advance(time),
            // There it is another gateway that takes over, when the claims have lapsed: a story of its own.
            Event::Crash if self.kind.is_shared() => {}
            Event::Crash => {
                self.waiting.clear();
                self.bench.crash(std::mem::take(&mut self.underway));
                self.model.crash(self.kind.is_durable(), now);
            }
        }
        self.model.expire(self.bench.clock.now());
        assert_eq!(counts(&self.bench.counts().await), self.model.counts());
    }

    fn pick(&self, which: usize) -> Option<usize> {
        which.checked_rem(self.underway.len())
    }

    async fn claim(&mut self, key: u16, scope: u8, request: u8, on_unknown: OnUnknown) {
        let mut claim_request = claim_request(key);
        claim_request.id = id(key, scope);
        claim_request.fingerprint = Fingerprint {
            request: [request; 16],
            credentials: [request; 16],
        };
        claim_request.settings.on_unknown = on_unknown;
        let expected = self.model.claim(&claim_request);
        let got = match self.bench.claim(claim_request).await {
            Claim::Won(permit) => {
                self.underway.push(permit);
                Expected::Won
            }
            Claim::InFlight(waiting) => {
                self.waiting.push((claim_request.id, waiting));
                Expected::InFlight
            }
            Claim::Replay(replayed) => {
                let number = replayed
                    .lines()
                    .find(|(name, _)| *name == "x-number")
                    .and_then(|(_, value)| std::str::from_utf8(&value).ok()?.parse().ok())
                    .unwrap();
                assert_eq!(replayed, answer(number));
                Expected::Replay(number)
            }
            Claim::Mismatch(_) => Expected::Mismatch,
            Claim::Unknown => Expected::Unknown,
            Claim::Tombstone => Expected::Tombstone,
            full @ (Claim::ScopeFull { .. } | Claim::ClientFull { .. } | Claim::StoreFull) => {
                panic!("{full:?}")
            }
        };
        assert_eq!(got, expected);
    }

    async fn end(&mut self, which: usize, how: How, now: Moment) {
        let permit = self.underway.swap_remove(which);
        let claim_request = permit.token().request;
        let records = &self.bench.records;
        self.answers += 1;
        let number = self.answers;
        match how {
            How::Completes => {
                let outcome = ExecutionOutcome::Completed(answer(number));
                records.end(permit, outcome).await.unwrap();
                self.model
                    .end(&claim_request, RecordState::Completed, Some(number), now);
            }
            How::Entombed => {
                records
                    .end(permit, ExecutionOutcome::Tombstone)
                    .await
                    .unwrap();
                self.model
                    .end(&claim_request, RecordState::Tombstone, None, now);
            }
            How::Released => {
                records
                    .end(permit, ExecutionOutcome::Released(Some(Ok(answer(number)))))
                    .await
                    .unwrap();
                self.model.0.remove(&claim_request.id);
            }
            How::Unknown => {
                records
                    .end(permit, ExecutionOutcome::Unknown)
                    .await
                    .unwrap();
                self.model
                    .end(&claim_request, RecordState::Unknown, None, now);
            }
            How::Dropped => {
                let sent = permit.is_sent();
                drop(permit);
                self.bench.settle().await;
                if sent {
                    self.model
                        .end(&claim_request, RecordState::Unknown, None, now);
                } else {
                    self.model.0.remove(&claim_request.id);
                }
            }
        }
        self.tell(claim_request.id, number).await;
    }

    /// Those who waited are told what became of it, at once.
    async fn tell(&mut self, id: RecordId, number: u16) {
        let (told, others) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(waited, _)| *waited == id);
        self.waiting = others;
        for (_, waiting) in told {
            match (waiting.ended().await, self.model.0.get(&id)) {
                (
                    ExecutionOutcome::Completed(told),
                    Some(Known::Ended(_, RecordState::Completed, ..)),
                ) => {
                    assert_eq!(told, answer(number));
                }
                (ExecutionOutcome::Released(told), None) => {
                    assert!(told.is_none_or(|received| received.unwrap() == answer(number)));
                }
                (ExecutionOutcome::Unknown, Some(Known::Ended(_, RecordState::Unknown, ..)))
                | (
                    ExecutionOutcome::Tombstone,
                    Some(Known::Ended(_, RecordState::Tombstone, ..)),
                ) => {}
                unexpected => panic!("{unexpected:?}"),
            }
        }
    }
}

fn holds(kind: Kind, events: &[Event]) {
    holds_on(Bench::new(kind), events);
}

fn holds_on(bench: Bench, events: &[Event]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let mut trial = Trial {
            kind: bench.kind,
            bench,
            model: Model::default(),
            underway: Vec::new(),
            waiting: Vec::new(),
            answers: 0,
        };
        for event in events {
            trial.step(event).await;
        }
    });
}

pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let regressions = FileFailurePersistence::Direct("tests/regressions/stores.txt");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(regressions)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(2_000))]
    #[test]
    fn every_history_in_memory_is_as_the_model_has_it(
        events in proptest::collection::vec(any_event(), 1..80)
    ) {
        holds(Kind::Memory, &events);
    }
}

proptest! {
    #![proptest_config(cases(100))]
    #[test]
    fn every_history_on_disk_is_as_the_model_has_it(
        events in proptest::collection::vec(any_event(), 1..80)
    ) {
        holds(Kind::Disk, &events);
    }
}

/// Histories on one server, each under names of its own.
fn every_history_is_as_the_model_has_it(kind: Kind) {
    let server = Arc::new(Server::start(kind));
    let mut runner = TestRunner::new(cases(40));
    let histories = proptest::collection::vec(any_event(), 1..80);
    let outcome = runner.run(&histories, |events| {
        holds_on(Bench::on(Arc::clone(&server)), &events);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn every_history_in_redis_is_as_the_model_has_it() {
    every_history_is_as_the_model_has_it(Kind::Redis);
}

/// The model ends a record at its TTL; Redis ends it in the millisecond after.
#[test]
fn a_record_in_redis_ends_with_its_ttl() {
    let server = Arc::new(Server::start(Kind::Redis));
    let events = [
        Event::Claim {
            key: 1,
            scope: 1,
            request: 0,
            on_unknown: OnUnknown::Hold,
        },
        Event::End(0, How::Completes),
        Event::Pass(TTL),
    ];
    for _ in 0..100 {
        holds_on(Bench::on(Arc::clone(&server)), &events);
    }
}

#[test]
fn every_history_in_a_cluster_is_as_the_model_has_it() {
    every_history_is_as_the_model_has_it(Kind::Cluster);
}
