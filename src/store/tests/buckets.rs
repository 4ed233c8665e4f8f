//! What every store of buckets promises, asked of each of them; and what only one in Redis has to.

mod behaviours;
mod bench;
mod outages;
mod shared;
mod traces;

/// Makes a test of each behaviour for each store.
macro_rules! on_each_store {
    ($($behaviour:ident,)*) => {
        on_each_store!(@ memory, Memory, $($behaviour,)*);
        on_each_store!(@ redis, Redis, $($behaviour,)*);
        on_each_store!(@ cluster, Cluster, $($behaviour,)*);
    };
    (@ $store:ident, $kind:ident, $($behaviour:ident,)*) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $behaviour() {
                    super::behaviours::$behaviour(super::bench::Kind::$kind).await;
                }
            )*
        }
    };
}

on_each_store! {
    a_burst_passes_at_once_and_what_follows_waits_for_its_token,
    whoever_waits_as_told_is_admitted,
    all_limits_admit_or_none_is_charged,
    each_limit_that_rejects_states_its_own_wait,
    a_request_takes_what_it_costs,
    a_cost_beyond_the_bucket_is_never_met,
    a_delaying_limit_hands_out_slots_in_order,
    a_watched_limit_is_counted_by_itself,
    gateways_share_a_bucket,
    a_crowd_gets_no_more_than_the_quota,
}
