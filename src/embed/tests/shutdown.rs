//! Tests of `Embedded::finish` and of an `Embedded` that is dropped.

use tokio::time::timeout;

use super::*;

/// Starts a payment, and waits until the bank has received it.
async fn start_payment(app: &Router, bank: &Bank) -> tokio::task::JoinHandle<Response> {
    let (app, payments) = (app.clone(), bank.made());
    let sending = tokio::spawn(async move { send(&app, payment(CLIENT)).await });
    while bank.made() == payments {
        tokio::task::yield_now().await;
    }
    sending
}

#[tokio::test]
async fn finish_waits_for_an_execution_whose_client_disconnected() {
    let (embedded, bank) = (Embedded::new(), Bank::default());
    let app = app(layer(&embedded), &bank);
    let sending = start_payment(&app, &bank).await;
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    bank.open.notify_one();
    embedded.finish().await;
    let metrics = embedded.metrics().text();
    let completed = "tidegate_idempotency_records{state=\"completed\"} 1";
    assert!(metrics.contains(completed), "{metrics}");
}

/// The time is virtual. It advances only while nothing else can run, so the timeout expires only if `finish` waits.
#[tokio::test(start_paused = true)]
async fn finish_waits_for_an_execution_whose_client_is_connected() {
    let (embedded, bank) = (Embedded::new(), Bank::default());
    let app = app(layer(&embedded), &bank);
    let sending = start_payment(&app, &bank).await;
    let early = timeout(Duration::from_mins(1), embedded.finish()).await;
    assert!(early.is_err(), "`finish` did not wait");
    bank.open.notify_one();
    embedded.finish().await;
    assert_eq!(text(sending.await.unwrap()).await, "payment 1");
}

#[tokio::test]
async fn requests_with_a_key_get_503_after_finish_and_are_not_executed() {
    let (embedded, bank) = (Embedded::new(), Bank::open());
    let app = app(layer(&embedded), &bank);
    assert_eq!(status(&app, payment(CLIENT)).await, 200);
    embedded.finish().await;
    for key in ["k", "late"] {
        let response = send(&app, with_key(payment(CLIENT), key)).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "5");
        let problem = text(response).await;
        let kind = "urn:tidegate:problem:store-unavailable";
        assert!(problem.contains(kind), "{problem}");
    }
    assert_eq!(bank.made(), 1);
    // Requests without a key need no record.
    assert_eq!(status(&app, plain("/payments", CLIENT)).await, 200);
}

#[tokio::test]
async fn a_layer_saves_its_buckets_on_disk_after_embedded_is_dropped() {
    let dir = tempfile::TempDir::new().unwrap();
    for expected in [200, 429] {
        let embedded = Embedded::on_disk(dir.path()).unwrap();
        let layer = embedded.layer("payments", [hourly("hourly", 1)], None);
        drop(embedded);
        let app = app(layer.unwrap(), &Bank::open());
        let request = plain("/payments", CLIENT);
        assert_eq!(status(&app, request).await, expected);
    }
}
