//! Tests of the stores of idempotency records and rate limit buckets.
//!
//! - Records, all stores: `behaviours` tests each guarantee, and `history` compares random histories with a model.
//! - Records in Redis: `needs_redis::claim_script` compares the claim script with the function that decides claims in
//!   the other stores. `needs_redis::two_gateways` tests two gateways that share one Redis server.
//! - Records on disk: `disk_damage`, `disk_space`, and `needs_mount` for a full disk.
//! - Buckets: `buckets` tests all stores, `quota_changes` compares all stores with a model of changed quotas, and
//!   `properties` tests the store in memory.
//!
//! A test that starts `redis-server` is in a module `needs_redis`, and a test that mounts a file system is in a module
//! `needs_mount`. `make quick` skips both.
//!
//! For a new store, add a variant to [`record_fixture::StoreKind`] and a line to the lists below.

mod behaviours;
mod buckets;
mod disk_damage;
mod disk_space;
mod history;
mod needs_mount;
mod needs_redis;
mod properties;
mod quota_changes;
mod record_fixture;
#[path = "../../tests/support/redis.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "other tests and a benchmark use the rest"
)]
pub(crate) mod redis;
mod server;
#[path = "../../tests/support/wait.rs"]
#[allow(dead_code, reason = "the integration tests use the rest")]
mod wait;

/// Generates a module `$store` with one test for each behaviour. Each test uses a store of the kind `$kind`.
macro_rules! on {
    ($store:ident, $kind:ident, [$($behaviour:ident,)*]) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    crate::store::tests::behaviours::$behaviour(crate::store::tests::record_fixture::StoreKind::$kind).await;
                }
            )*
        }
    };
}

/// Generates the tests of `any` for all stores, and those of `bounded` for the stores with a `StoreCapacity`. Redis has
/// no `StoreCapacity`, because its `maxmemory` bounds the records.
macro_rules! on_each_store {
    (any: $any:tt, bounded: $bounded:tt) => {
        mod any {
            on!(memory, Memory, $any);
            on!(disk, Disk, $any);

            mod needs_redis {
                on!(redis, Redis, $any);
                on!(cluster, Cluster, $any);
            }
        }

        mod bounded {
            on!(memory, Memory, $bounded);
            on!(disk, Disk, $bounded);
        }
    };
}

on_each_store! {
    any: [
        exactly_one_of_many_concurrent_claims_wins,
        a_claim_of_a_completed_key_gets_a_replay,
        the_same_key_in_two_scopes_has_two_records,
        another_request_with_a_used_key_is_a_mismatch_in_every_state,
        waiters_receive_the_response,
        a_released_key_can_be_claimed_again_and_waiters_receive_its_response,
        waiters_receive_a_tombstone_if_the_response_is_not_stored,
        a_permit_dropped_before_the_request_was_sent_frees_its_key,
        a_permit_dropped_after_the_request_was_sent_makes_its_key_unknown,
        on_unknown_decides_whether_an_unknown_key_can_be_claimed,
        a_waiter_that_stops_waiting_has_no_effect,
        records_expire_after_their_ttl_except_those_in_progress,
        a_full_scope_rejects_new_keys,
        a_scope_whose_keys_have_expired_is_not_full_while_many_others_expire,
        a_key_is_found_in_every_scope,
        only_an_unknown_key_can_be_freed,
        a_cancelled_claim_leaves_its_key_free,
        a_client_that_holds_its_share_cannot_claim_a_new_key,
        a_freed_key_does_not_count_towards_the_share,
        an_expired_key_does_not_count_towards_the_share,
        a_key_counts_for_the_client_that_claims_it_after_an_unknown_outcome,
        an_expired_key_counts_for_the_client_that_claims_it_again,
        a_claim_that_is_not_won_does_not_count_towards_the_share,
        a_cancelled_claim_does_not_count_towards_the_share,
    ],
    bounded: [
        a_full_store_rejects_new_keys_until_some_expire,
        a_full_store_forgets_the_oldest_completed_keys_older_than_min_ttl,
        concurrent_claims_in_a_full_store_replace_one_key_each,
        a_scope_that_replaces_its_own_keys_keeps_its_count,
        responses_beyond_max_bytes_become_tombstones,
        a_single_client_can_use_most_of_the_store,
        a_client_above_its_share_replaces_keys_older_than_min_ttl,
        a_tombstone_counts_towards_the_share,
    ]
}
