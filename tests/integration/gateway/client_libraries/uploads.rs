//! Test with the official client of `OpenAI`, which encodes an upload with a new multipart boundary for each attempt.

use std::collections::HashSet;

use serde_json::json;

use super::{responding_on_permit, spawn_script};
use crate::support::Gateway;

#[tokio::test]
async fn an_upload_repeated_with_a_new_boundary_gets_the_response_to_the_first_attempt() {
    let (upstream, permits) = responding_on_permit(|number| {
        json!({
            "id": format!("file-{number}"), "object": "file", "bytes": 14, "created_at": 0,
            "filename": "orders.jsonl", "purpose": "batch", "status": "processed",
        })
    });
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    let uploading = spawn_script("openai_upload.py", &gateway, "2");
    gateway.wait_for_outcome("waited", 1).await;
    permits.add_permits(1);
    let result = uploading.await.expect("the task does not panic");
    assert_eq!(result["id"], "file-1", "{result}");
    assert_eq!(result["replayed"], "true", "{result}");
    assert_eq!(upstream.count(), 1);

    let types = result["types"].as_array().expect("the member is a list");
    let distinct: HashSet<_> = types
        .iter()
        .map(|text| text.as_str().expect("the value is text"))
        .collect();
    assert!(types.len() > 1, "the client did not retry: {result}");
    assert_eq!(distinct.len(), types.len(), "{result}");
    let sent = upstream.last();
    assert!(
        sent.header("content-type")
            .starts_with("multipart/form-data; boundary=")
    );
    let body = String::from_utf8_lossy(&sent.body).into_owned();
    assert!(
        body.contains("{\"order\": 17}"),
        "the upload does not contain the file: {body}"
    );
}
