//! Leases of the claims of this gateway. A task renews each lease while its execution runs.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::calls;
use super::claims::GatewayClaims;
use crate::clock::Moment;
use crate::idempotency::{ClaimToken, RecordId};

/// The task looks for leases to renew this often per lease.
const ROUNDS_PER_LEASE: u32 = 8;

/// Maximum number of concurrent renewals.
const BATCH: usize = 256;

/// By the number of the claim.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<u64, ClaimLease>>);

#[derive(Clone, Copy, Debug)]
struct ClaimLease {
    id: RecordId,
    /// On the clock of this gateway. In Redis the lease expires at this time or later.
    ends: Moment,
}

impl Leases {
    pub(super) fn insert(&self, token: &ClaimToken, ends: Moment) {
        let id = token.request.id;
        self.0.lock().insert(token.number, ClaimLease { id, ends });
    }

    pub(super) fn remove(&self, token: &ClaimToken) {
        self.0.lock().remove(&token.number);
    }

    /// `None` if the lease was removed.
    pub(super) fn ends(&self, token: &ClaimToken) -> Option<Moment> {
        self.0.lock().get(&token.number).map(|lease| lease.ends)
    }

    fn renewed(&self, number: u64, ends: Moment) {
        if let Some(lease) = self.0.lock().get_mut(&number) {
            lease.ends = ends;
        }
    }

    fn ending_before(&self, moment: Moment) -> Vec<(u64, RecordId)> {
        let leases = self.0.lock();
        let ending = leases.iter().filter(|(_, lease)| lease.ends < moment);
        ending.map(|(&number, lease)| (number, lease.id)).collect()
    }
}

pub(super) async fn renew(claims: std::sync::Weak<GatewayClaims>) {
    while let Some(lease) = claims.upgrade().map(|claims| claims.state().lease()) {
        tokio::time::sleep(lease / ROUNDS_PER_LEASE).await;
        let Some(claims) = claims.upgrade() else {
            return;
        };
        // Short executions need no renewal.
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
        // The script that ends the claim reports that it is lost.
        Ok(false) => {
            tracing::debug!(
                key = %id.key,
                "cannot renew lease of idempotency key, claim is no longer in Redis"
            );
        }
        // The next round renews the lease before it expires.
        Err(error) => {
            tracing::debug!(
                key = %id.key,
                %error,
                "cannot renew lease of idempotency key in Redis, will retry"
            );
        }
    }
}
