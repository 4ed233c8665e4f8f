//! Tests of buckets in Redis.

mod outages;
mod redis_buckets;
mod traces;

test_behaviours!(redis, Redis);
test_behaviours!(cluster, Cluster);
