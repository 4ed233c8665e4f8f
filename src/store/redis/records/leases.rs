//! Leases of the claims of this gateway. A task renews each lease while the execution of its claim runs.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::calls;
use super::claims::GatewayClaims;
use crate::clock::Moment;
use crate::idempotency::{ClaimToken, RecordId};

/// The interval at which the task looks for leases to renew is the duration of a lease divided by this number.
const ROUNDS_PER_LEASE: u32 = 8;

/// Maximum number of renewals that run at the same time.
const BATCH: usize = 256;

/// The leases of this gateway, by the number of the claim.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<u64, ClaimLease>>);

#[derive(Clone, Copy, Debug)]
struct ClaimLease {
    id: RecordId,
    /// When the lease expires, on the clock of this gateway. In Redis it expires at this time or later.
    ends: Moment,
}

impl Leases {
    pub(super) fn insert(&self, token: &ClaimToken, ends: Moment) {
        let id = token.request.id;
        self.0.lock().insert(token.number, ClaimLease { id, ends });
    }

    /// Removes the lease of a claim, so that it is no longer renewed.
    pub(super) fn remove(&self, token: &ClaimToken) {
        self.0.lock().remove(&token.number);
    }

    /// Returns when the lease of a claim expires, or `None` if the lease was removed.
    pub(super) fn ends(&self, token: &ClaimToken) -> Option<Moment> {
        self.0.lock().get(&token.number).map(|lease| lease.ends)
    }

    fn renewed(&self, number: u64, ends: Moment) {
        if let Some(lease) = self.0.lock().get_mut(&number) {
            lease.ends = ends;
        }
    }

    /// Returns number and record id of each claim whose lease expires before `moment`.
    fn ending_before(&self, moment: Moment) -> Vec<(u64, RecordId)> {
        let leases = self.0.lock();
        let ending = leases.iter().filter(|(_, lease)| lease.ends < moment);
        ending.map(|(&number, lease)| (number, lease.id)).collect()
    }
}

/// Renews leases until `claims` is dropped.
pub(super) async fn renew(claims: std::sync::Weak<GatewayClaims>) {
    while let Some(lease) = claims.upgrade().map(|claims| claims.state().lease()) {
        tokio::time::sleep(lease / ROUNDS_PER_LEASE).await;
        let Some(claims) = claims.upgrade() else {
            return;
        };
        // A lease is renewed after a quarter of its duration, so short executions need no renewal.
        let due = claims.state().clock.now().after(lease * 3 / 4);
        let due = claims.leases.ending_before(due);
        for batch in due.chunks(BATCH) {
            let renewals = batch
                .iter()
                .map(|&(number, id)| renew_one(&claims, number, id));
            join_all(renewals).await;
        }
    }
}

async fn renew_one(claims: &Arc<GatewayClaims>, number: u64, id: RecordId) {
    let called = claims.state().clock.now();
    let lease = claims.state().lease();
    let call = calls::renew(&claims.names(), id, claims.owner(number), lease);
    match claims.background.run::<bool>(&call).await {
        Ok(true) => claims.leases.renewed(number, called.after(lease)),
        // The request is not informed here that its claim is lost, because the script that ends the claim reports this.
        Ok(false) => {
            tracing::debug!(
                key = %id.key,
                "cannot renew lease of idempotency key, claim is no longer in Redis"
            );
        }
        // There is no retry here, because the next round renews the lease before it expires.
        Err(error) => {
            tracing::debug!(
                key = %id.key,
                %error,
                "cannot renew lease of idempotency key in Redis, will retry"
            );
        }
    }
}
