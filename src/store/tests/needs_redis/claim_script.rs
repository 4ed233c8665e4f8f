//! Compares the claim script of Redis with the function `decide_claim`, which decides for all other stores.
//!
//! The test runs random histories of three gateways on a real server. It computes the idempotency record that the
//! scripts should have stored, and passes this record to `decide_claim` for every claim. Each claim uses a gateway that
//! has no execution of the same idempotency key. Otherwise the table of executions in flight would decide instead of
//! the script. The histories include leases that expire while their executions run, and claims that replace a claim
//! whose execution is still in flight.
//!
//! The module `history` compares all stores with an independent model. It covers neither leases nor the maximum number
//! of keys in a scope.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::idempotency::claim::{ClaimDecision, RecordView, StateView, decide_claim};
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ExecutionOutcome, Fingerprint, OnUnknown, Permit,
    RecordId, RecordState, Records,
};
use crate::store::redis::Redis;
use crate::store::redis::records::RedisRecords;
use crate::store::redis::settings::RedisSettings;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::store::tests::history::cases;
use crate::store::tests::record_fixture::{StoreKind, TTL, claim_request, id, numbered_response};
use crate::store::tests::server::StoreServer;

/// Duration of a lease. It is longer than the TTL of a record, and not a multiple of it.
const LEASE: Duration = Duration::from_mins(100);

const GATEWAYS: usize = 3;

/// Maximum number of idempotency keys of the scope. The histories use three keys, so claims can exceed this maximum.
const MAX_KEYS: u32 = 2;

#[derive(Clone, Debug)]
enum ClaimEvent {
    Claim {
        key: u16,
        fingerprint: Fingerprint,
        on_unknown: OnUnknown,
    },
    /// An execution ends. The number selects one of the executions in flight.
    End(usize, Ending),
    /// An operator frees the idempotency key with this number, if its outcome is unknown.
    Free(u16),
    /// The clocks of the test and of Redis advance.
    Pass(Duration),
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Completed,
    Tombstone,
    Released,
    Unknown,
}

fn any_event() -> impl Strategy<Value = ClaimEvent> {
    let fingerprint = (0_u8..5, 0_u8..5).prop_map(|(request, credentials)| Fingerprint {
        // The division makes the fingerprints equal in most cases, so that few claims are mismatches.
        request: [request / 4; 16],
        credentials: [credentials / 4; 16],
    });
    let on_unknown = prop_oneof![Just(OnUnknown::Hold), Just(OnUnknown::Release)];
    let ending = prop_oneof![
        3 => Just(Ending::Completed),
        1 => Just(Ending::Tombstone),
        1 => Just(Ending::Released),
        2 => Just(Ending::Unknown),
    ];
    // Durations are often multiples of ten minutes, so that leases and records also expire exactly at the time of a
    // claim.
    let minutes = prop_oneof![1_u64..=70, (1_u64..=7).prop_map(|tens| 10 * tens)];
    prop_oneof![
        12 => (0_u16..3, fingerprint, on_unknown).prop_map(
            |(key, fingerprint, on_unknown)| ClaimEvent::Claim { key, fingerprint, on_unknown }
        ),
        6 => (any::<usize>(), ending).prop_map(|(which, ending)| ClaimEvent::End(which, ending)),
        1 => (0_u16..3).prop_map(ClaimEvent::Free),
        4 => minutes.prop_map(|minutes| ClaimEvent::Pass(Duration::from_mins(minutes))),
    ]
}

/// An idempotency record as the scripts should have stored it.
#[derive(Clone, Copy, Debug)]
struct ExpectedRecord {
    state: RecordState,
    fingerprint: Fingerprint,
    lease_ends: Option<Moment>,
    expires: Moment,
    /// The number of the claim that wrote this record.
    claim: usize,
}

impl ExpectedRecord {
    /// The outcome is unknown from the end of the lease on. Only Redis has leases.
    fn view(&self, now: Moment) -> RecordView<Moment, (), usize> {
        let state = match self.state {
            RecordState::InProgress if !self.is_unknown(now) => StateView::InFlight(()),
            state => StateView::ended(state, Some(self.claim)),
        };
        RecordView {
            state,
            fingerprint: self.fingerprint,
            expires: Some(self.expires),
        }
    }

    fn is_unknown(&self, now: Moment) -> bool {
        self.state == RecordState::Unknown || self.lease_ends.is_some_and(|ends| ends <= now)
    }
}

struct RunningExecution {
    gateway: usize,
    claim: usize,
    permit: Permit,
}

struct ScriptComparison<'a> {
    server: &'a StoreServer,
    clock: Clock,
    gateways: [RedisRecords; GATEWAYS],
    executions: Vec<RunningExecution>,
    records: HashMap<RecordId, ExpectedRecord>,
    claims: usize,
}

impl<'a> ScriptComparison<'a> {
    fn new(server: &'a StoreServer) -> Self {
        let clock = Clock::virtual_from(std::time::SystemTime::now());
        // No lease is renewed in this test, because the test takes less real time than a renewal interval.
        let settings = RedisSettings {
            lease: LEASE,
            ..server.settings()
        };
        let join = |_| {
            let redis = Redis::open(settings.clone(), true, clock.clone()).unwrap();
            redis.records()
        };
        Self {
            server,
            gateways: std::array::from_fn(join),
            clock,
            executions: Vec::new(),
            records: HashMap::new(),
            claims: 0,
        }
    }

    async fn step(&mut self, event: &ClaimEvent) {
        let now = self.clock.now();
        self.records.retain(|_, record| record.expires > now);
        match *event {
            ClaimEvent::Claim {
                key,
                fingerprint,
                on_unknown,
            } => {
                let mut claim_request = claim_request(key);
                claim_request.at = now;
                claim_request.fingerprint = fingerprint;
                claim_request.settings.on_unknown = on_unknown;
                claim_request.settings.max_keys_per_scope = NonZeroU32::new(MAX_KEYS).unwrap();
                self.claim(&claim_request).await;
            }
            ClaimEvent::End(which, ending) => {
                if let Some(which) = which.checked_rem(self.executions.len()) {
                    let execution = self.executions.swap_remove(which);
                    self.end(execution, ending).await;
                }
            }
            ClaimEvent::Free(key) => {
                let id = id(key, 1);
                let Some(gateway) = self.idle_gateway(id) else {
                    return;
                };
                let record = self.records.get(&id);
                let unknown = record.is_some_and(|record| record.is_unknown(now));
                let freed = self.gateways[gateway].free_unknown(id).await.unwrap();
                assert_eq!(freed, unknown, "{record:?} at {now:?}");
                if freed {
                    self.records.remove(&id);
                }
            }
            ClaimEvent::Pass(time) => {
                self.clock.advance(time);
                // The server advances 2 ms further, because Redis expires a record in the millisecond after its expiry.
                self.server.advance(time + Duration::from_millis(2));
            }
        }
    }

    /// Returns a gateway that has no execution of `id`, so that the script decides. Returns `None` if all gateways have
    /// one.
    fn idle_gateway(&self, id: RecordId) -> Option<usize> {
        let executes = |gateway| {
            let mut executions = self.executions.iter();
            executions.any(|it| it.gateway == gateway && it.permit.token().request.id == id)
        };
        (0..GATEWAYS).find(|&gateway| !executes(gateway))
    }

    async fn claim(&mut self, claim_request: &ClaimRequest) {
        let Some(gateway) = self.idle_gateway(claim_request.id) else {
            return;
        };
        let claimed = self.gateways[gateway].claim(claim_request).await.unwrap();
        let record = self.records.get(&claim_request.id);
        let now = claim_request.at;
        let decision = record.map(|record| decide_claim(record.view(now), claim_request, now));
        let keys = u32::try_from(self.records.len()).unwrap();
        let is_full = claim_request.settings.is_scope_full(keys);
        match (decision, claimed) {
            (None, Claim::Rejected(ClaimRejection::ScopeFull { min_wait })) if is_full => {
                let expiries = self.records.values().map(|record| record.expires);
                let next = expiries.min().unwrap().since(claim_request.at);
                // `min_wait` can be up to 30 s shorter than `next`, because real time also passes on the server.
                assert!(
                    min_wait <= next && min_wait + Duration::from_secs(30) >= next,
                    "{min_wait:?} instead of {next:?} for {:?}",
                    self.records
                );
            }
            (None | Some(ClaimDecision::Available), Claim::Won(permit)) => {
                assert!(record.is_some() || !is_full);
                let lease_ends = claim_request.at.after(LEASE);
                self.claims += 1;
                let record = ExpectedRecord {
                    state: RecordState::InProgress,
                    fingerprint: claim_request.fingerprint,
                    lease_ends: Some(lease_ends),
                    expires: lease_ends.after(TTL),
                    claim: self.claims,
                };
                self.records.insert(claim_request.id, record);
                self.executions.push(RunningExecution {
                    gateway,
                    claim: self.claims,
                    permit,
                });
            }
            (Some(ClaimDecision::Replay(number)), Claim::Replay(replayed)) => {
                let number = u16::try_from(number).unwrap();
                assert_eq!(replayed, numbered_response(number));
            }
            (Some(ClaimDecision::Rejected(expected)), Claim::Rejected(got)) => {
                assert_eq!(got, expected);
            }
            (Some(ClaimDecision::InFlight(())), Claim::InFlight(_)) => {}
            (decision, claimed) => panic!("{claimed:?} instead of {decision:?} for {record:?}"),
        }
    }

    /// Ends an execution. Another claim can have replaced its claim in the meantime.
    async fn end(&mut self, execution: RunningExecution, ending: Ending) {
        let RunningExecution {
            gateway,
            claim,
            permit,
        } = execution;
        let (claim_request, now) = (permit.token().request, self.clock.now());
        let number = u16::try_from(claim).unwrap();
        let outcome = match ending {
            Ending::Completed => ExecutionOutcome::Completed(numbered_response(number)),
            Ending::Tombstone => ExecutionOutcome::Tombstone,
            Ending::Released => ExecutionOutcome::Released(None),
            Ending::Unknown => ExecutionOutcome::Unknown,
        };
        let stored = outcome.record().map(|(state, _)| state);
        let is_executed = outcome.is_executed();
        let record = self.records.get(&claim_request.id);
        let is_replaced = record.is_some_and(|record| record.claim != claim);
        let ended = self.gateways[gateway].end(permit, outcome).await;
        assert_eq!(ended.is_err(), is_executed && is_replaced, "{ended:?}");
        if is_replaced {
            return;
        }
        let Some(state) = stored else {
            self.records.remove(&claim_request.id);
            return;
        };
        let record = ExpectedRecord {
            state,
            fingerprint: claim_request.fingerprint,
            lease_ends: None,
            // The script stores the outcome even if the record that the claim wrote has expired.
            expires: now.after(TTL),
            claim,
        };
        self.records.insert(claim_request.id, record);
    }
}

/// Runs a history on a server and compares the result of each claim with `decide_claim`.
fn check(server: &StoreServer, events: &[ClaimEvent]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let mut comparison = ScriptComparison::new(server);
        for event in events {
            comparison.step(event).await;
        }
    });
}

#[test]
fn the_claim_script_and_decide_claim_agree_on_every_claim() {
    let server = Arc::new(StoreServer::start(StoreKind::Redis));
    let histories = proptest::collection::vec(any_event(), 1..60);
    let outcome = TestRunner::new(cases(500)).run(&histories, |events| {
        check(&server, &events);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
