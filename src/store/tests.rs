//! Tests that every store passes.
//!
//! Records of idempotency keys: `behaviours` has the guarantees one by one, `history` compares random histories with a
//! model that does not know how a store works, `claims` compares the scripts of Redis with the function that decides for
//! the other stores, `fleet` has several gateways on one store, and `damage`, `full_disk` and `space` are about the store
//! on disk. Buckets: `buckets` runs against every store, and `properties` against the one in memory. A new store is one
//! more line in [`bench::Kind`] and in the lists below.

mod behaviours;
mod bench;
mod buckets;
mod claims;
mod damage;
mod fleet;
mod full_disk;
mod history;
mod properties;
#[path = "../../tests/support/redis.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "other tests and a bench use the rest"
)]
pub(crate) mod redis;
mod server;
mod space;

/// Makes a test of each behaviour for a store.
macro_rules! on {
    ($store:ident, $kind:ident, [$($behaviour:ident,)*]) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    crate::store::tests::behaviours::$behaviour(crate::store::tests::bench::Kind::$kind).await;
                }
            )*
        }
    };
}

/// The promises of stores of any kind, and of those that bound themselves how much they hold: in Redis it is
/// Redis that does that.
macro_rules! on_each_store {
    (any: $any:tt, bounded: $bounded:tt) => {
        mod any {
            on!(memory, Memory, $any);
            on!(disk, Disk, $any);
            on!(redis, Redis, $any);
            on!(cluster, Cluster, $any);
        }

        mod bounded {
            on!(memory, Memory, $bounded);
            on!(disk, Disk, $bounded);
        }
    };
}

on_each_store! {
    any: [
        of_any_number_of_claims_exactly_one_wins,
        a_completed_key_is_answered_from_its_record,
        one_key_is_another_in_another_scope,
        a_key_stands_for_one_request_whatever_became_of_it,
        those_who_wait_are_told_the_answer,
        a_released_key_can_be_claimed_again_and_those_who_wait_get_its_answer,
        those_who_wait_for_an_answer_that_is_not_kept_are_told_so,
        a_permit_dropped_before_the_request_was_sent_frees_its_key,
        a_permit_dropped_afterwards_leaves_its_key_unknown,
        an_unknown_key_is_held_or_released_as_the_route_says,
        whoever_stops_waiting_leaves_nothing_behind,
        every_record_expires_after_its_time_and_none_in_progress_does,
        a_scope_has_so_many_keys_and_no_more,
        a_scope_whose_keys_have_expired_is_not_full_whatever_else_has,
        a_key_is_found_in_every_scope,
        only_an_unknown_key_can_be_freed,
        a_request_whose_caller_left_claims_nothing,
        a_client_with_its_share_claims_no_new_key,
        a_freed_key_is_no_longer_part_of_the_share,
        an_expired_key_is_no_longer_part_of_the_share,
        a_key_counts_for_the_client_that_takes_it_over,
        an_expired_key_counts_for_the_client_that_claims_it_again,
        a_claim_that_is_not_won_is_not_part_of_the_share,
        a_claim_whose_caller_left_is_not_part_of_the_share,
    ],
    bounded: [
        a_full_store_takes_no_new_keys_until_some_expire,
        answers_that_do_not_fit_leave_tombstones,
        a_client_that_is_alone_uses_most_of_the_store,
        a_tombstone_is_part_of_the_share,
    ]
}
