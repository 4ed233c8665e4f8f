//! Tests of stores of rate limit buckets. `behaviours` runs on every store. `needs_redis` tests the buckets in Redis.

mod behaviours;
pub(super) mod fixture;

/// Generates a module `$store` with one test for each behaviour. Each test uses a store of the kind `$kind`.
macro_rules! test_behaviours {
    ($store:ident, $kind:ident) => {
        test_behaviours! {
            @ $store, $kind,
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
    };
    (@ $store:ident, $kind:ident, $($behaviour:ident,)*) => {
        mod $store {
            use crate::store::tests::buckets::{behaviours, fixture::BucketStoreKind};

            $(
                #[tokio::test]
                async fn $behaviour() {
                    behaviours::$behaviour(BucketStoreKind::$kind).await;
                }
            )*
        }
    };
}

test_behaviours!(memory, Memory);

mod needs_redis;
