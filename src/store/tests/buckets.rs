//! Tests of stores of rate limit buckets. `behaviours` runs on every store. The other modules test the buckets in
//! Redis.

mod behaviours;
mod fixture;
mod outages;
mod redis_buckets;
mod traces;

/// Generates one test for each behaviour and each store.
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
                    super::behaviours::$behaviour(super::fixture::BucketStoreKind::$kind).await;
                }
            )*
        }
    };
}

on_each_store! {
    a_burst_is_admitted_immediately_and_the_next_request_waits_for_a_token,
    a_client_that_waits_as_long_as_its_rejection_requires_is_admitted,
    limits_are_charged_only_if_all_of_them_admit,
    each_limit_that_rejects_has_its_own_wait,
    a_request_takes_as_many_tokens_as_it_costs,
    a_cost_beyond_the_size_of_the_bucket_is_never_admitted,
    a_delaying_limit_assigns_slots_in_order,
    a_shadow_limit_is_charged_independently,
    gateways_share_a_bucket,
    concurrent_clients_get_no_more_than_the_quota,
}
