//! Memory use of a lookup through the admin API, for an idempotency key with many large responses.

use crate::crash::execution_log::KEY;
use crate::crash::setup::disk_gateway;
use crate::support::{Process, Upstream, full};

/// Number of callers that use the same idempotency key. Each caller has its own scope.
const SCOPES: usize = 300;

/// Size of each response body, in bytes.
const BODY: usize = 1_000_000;

/// Maximum growth of the gateway's resident memory during a lookup, in bytes. It allows for the block cache of the
/// storage engine (32 MiB), a few responses, and memory that the allocator does not return.
const MAX_GROWTH: usize = 96 << 20;

/// Returns the resident memory of the gateway, in bytes.
fn resident(process: &Process) -> usize {
    usize::try_from(process.memory("VmRSS")).unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lookup_of_a_key_with_300_mb_of_responses_reads_no_response_into_memory() {
    let upstream = Upstream::with(|_| async { full(vec![b'.'; BODY]) });
    let setup = disk_gateway(&upstream.url());
    let process = setup.restart();
    let mut connection = process.client().keep_alive().await;
    for scope in 0..SCOPES {
        let request = process.client().post("/").header(KEY, "shared");
        let request = request.header("authorization", &format!("Bearer caller-{scope}"));
        assert_eq!(connection.send(request).await.body.len(), BODY);
    }
    // The gateway is restarted, because a new process has no records in its caches.
    drop(connection);
    drop(process);
    let process = setup.restart();
    let admin = process.admin();
    let before = resident(&process);

    let found = admin
        .get("/admin/v1/idempotency/keys/shared")
        .send()
        .await
        .json();
    assert_eq!(found["records"].as_array().map(Vec::len), Some(100));
    assert_eq!(found["left_out"], SCOPES - 100);
    assert_eq!(found["records"][0]["status"], 200);
    assert_eq!(found["records"][0]["response_bytes"], BODY);
    let growth = resident(&process).saturating_sub(before);
    println!(
        "lookup: {} MiB before, {} MiB more after",
        before >> 20,
        growth >> 20
    );
    assert!(growth < MAX_GROWTH, "{growth} bytes");

    // A lookup can be restricted to one scope. DELETE returns 409, because only records with an unknown outcome can be
    // deleted.
    let scope = found["records"][0]["scope"].as_str().unwrap();
    let target = format!("/admin/v1/idempotency/keys/shared?scope={scope}");
    let one = admin
        .get(&format!("{target}&body=true"))
        .send()
        .await
        .json();
    assert_eq!(one["records"][0]["body"].as_str().map(str::len), Some(BODY));
    assert_eq!(admin.request("DELETE", &target).send().await.status, 409);
    let several = admin
        .request("DELETE", "/admin/v1/idempotency/keys/shared")
        .send()
        .await;
    assert_eq!(several.status, 400);
    assert_eq!(several.json()["scopes"].as_array().map(Vec::len), Some(100));

    // If `body=true` is set, the response of the admin API contains the stored response bodies. Their total size is
    // limited, so the admin API leaves out some of the records.
    let bodies = admin
        .get("/admin/v1/idempotency/keys/shared?body=true")
        .send()
        .await;
    assert!(bodies.body.len() < 32 << 20, "{} bytes", bodies.body.len());
    let bodies = bodies.json();
    let shown = bodies["records"].as_array().map_or(0, Vec::len);
    assert!(shown > 1);
    assert_eq!(bodies["left_out"], SCOPES - shown);
    let growth = resident(&process).saturating_sub(before);
    assert!(growth < 2 * MAX_GROWTH, "{growth} bytes");
}
