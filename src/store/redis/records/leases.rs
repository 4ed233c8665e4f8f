//! Claims that must not lapse while their executions run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::ledger::Ledger;
use super::steps;
use crate::clock::Moment;
use crate::idempotency::{ClaimToken, RecordId};

/// How often in the time a claim holds it is seen to.
const LOOKS_PER_LEASE: u32 = 8;

/// Renewed at once; the rest follows.
const BATCH: usize = 256;

/// All claims of this gateway.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<u64, Held>>);

#[derive(Clone, Copy, Debug)]
struct Held {
    id: RecordId,
    /// No later than in Redis, counted from before it was asked.
    lapses: Moment,
}

impl Leases {
    /// A claim holds until then.
    pub(super) fn hold(&self, token: &ClaimToken, lapses: Moment) {
        let id = token.request.id;
        self.0.lock().insert(token.number, Held { id, lapses });
    }

    /// A claim need not hold any more.
    pub(super) fn let_go(&self, token: &ClaimToken) {
        self.0.lock().remove(&token.number);
    }

    /// When a claim lapses, if it is held.
    pub(super) fn lapses(&self, token: &ClaimToken) -> Option<Moment> {
        self.0.lock().get(&token.number).map(|held| held.lapses)
    }

    fn renewed(&self, number: u64, lapses: Moment) {
        if let Some(held) = self.0.lock().get_mut(&number) {
            held.lapses = lapses;
        }
    }

    /// Claims that lapse before then.
    fn lapsing_before(&self, moment: Moment) -> Vec<(u64, RecordId)> {
        let held = self.0.lock();
        let lapsing = held.iter().filter(|(_, held)| held.lapses < moment);
        lapsing.map(|(&number, held)| (number, held.id)).collect()
    }
}

/// Renews claims while there is a ledger.
pub(super) async fn renew(ledger: std::sync::Weak<Ledger>, lease: Duration) {
    let mut looks = tokio::time::interval(lease / LOOKS_PER_LEASE);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(ledger) = ledger.upgrade() else {
            return;
        };
        // Those that have used up a quarter of their time: short executions are never seen to.
        let due = ledger.core().clock.now().after(lease * 3 / 4);
        let due = ledger.leases.lapsing_before(due);
        for batch in due.chunks(BATCH) {
            let renewals = batch
                .iter()
                .map(|&(number, id)| renew_one(&ledger, number, id));
            join_all(renewals).await;
        }
    }
}

async fn renew_one(ledger: &Arc<Ledger>, number: u64, id: RecordId) {
    let asked = ledger.core().clock.now();
    let lease = ledger.core().settings.lease;
    let call = steps::renew(&ledger.names(), id, ledger.owner(number), lease);
    match ledger.background.run::<bool>(&call).await {
        Ok(true) => ledger.leases.renewed(number, asked.after(lease)),
        // It will be found out when the execution ends.
        Ok(false) => tracing::debug!(key = %id.key, "a claim was lost"),
        // There is time for some more attempts.
        Err(error) => tracing::debug!(%error, "a claim could not be renewed"),
    }
}
