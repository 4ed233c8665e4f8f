//! Test with `huggingface_hub`. This library prefers `RateLimit` to `Retry-After` and reads only the first member of
//! `RateLimit`.

use serde_json::json;

use super::run;
use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn with_two_exhausted_limits_one_retry_succeeds() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n\
         [limit.fast]\nrate = \"1/2s\"\nburst = 0\n[limit.slow]\nrate = \"1/5s\"\nburst = 0\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"fast\", \"slow\"]\n",
    )
    .upstream(&upstream)
    .admin()
    .start();
    let url = format!("http://{}/", gateway.address());
    let running = tokio::task::spawn_blocking(move || run("huggingface_backoff.py", &[&url]));
    let statuses = running.await.expect("the task does not panic");
    assert_eq!(statuses, json!([200, 200]));
    assert_eq!(upstream.count(), 2);
    // The rejection is counted for only one of the two rate limits, so the sum of both counters is 1.
    let rejected = async |limit: &str| {
        let series = format!("rejected_total{{route=\"all\",limit=\"{limit}\"}}");
        gateway.metric(&series).await
    };
    assert!((rejected("slow").await + rejected("fast").await - 1.0).abs() < 0.1);
}
