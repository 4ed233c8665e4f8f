//! Slow uploads in front of a real gunicorn with four threads. Without a buffer, four slow uploads occupy all of them.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Upload;
use crate::gateway::python_servers::PythonServer;
use crate::support::Gateway;

#[tokio::test]
async fn four_slow_uploads_do_not_occupy_a_gunicorn_with_four_threads() {
    let gunicorn = PythonServer::gunicorn("upload_app:app", 4);
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n[limit.device]\nrate = \"1/s\"\nburst = 3\n\
         [[route]]\nname = \"upload\"\npath = \"/upload\"\nlimits = [\"device\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream_url(gunicorn.url())
    .start();
    for (size, address) in [(100_000, "127.0.0.2"), (100_000_000, "127.0.0.3")] {
        let mut uploads = JoinSet::new();
        for _ in 0..4 {
            let client = gateway.client().from(address);
            let mut upload = Upload::start(&client, false, "/upload", size).await;
            upload.send(b"x").await;
            uploads.spawn(async move {
                for _ in 0..3 {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    upload.send(b"x").await;
                }
                upload.status().await
            });
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            let request = gateway.client().get("/").send();
            let response = tokio::time::timeout(Duration::from_secs(10), request).await;
            assert_eq!(response.expect("the request is served").status, 200);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(uploads.len(), 4);
        assert!(
            uploads.try_join_next().is_none(),
            "the uploads are still slow"
        );
        assert_eq!(uploads.join_all().await, [408; 4]);
    }
}
