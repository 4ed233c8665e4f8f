//! Tests of the distribution of requests among the servers of an upstream.

use crate::support::{Client, Gateway, Upstream};

/// Sends `times` requests one after the other on one connection.
async fn send_requests(client: &Client, times: usize) {
    let mut connection = client.keep_alive().await;
    for _ in 0..times {
        assert_eq!(connection.send(client.get("/")).await.status, 200);
    }
}

#[tokio::test]
async fn servers_get_requests_in_proportion_to_their_weights() {
    let (heavy, light) = (Upstream::replying(200), Upstream::replying(200));
    let gateway = Gateway::with(
        "[upstream.api]\n\
         servers = [{ url = \"{upstream}\", weight = 3 }, { url = \"{upstream}\", weight = 1 }]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream(&heavy)
    .upstream(&light)
    .start();
    send_requests(&gateway.client(), 800).await;
    let (heavy, light) = (heavy.count(), light.count());
    println!("the server with weight 3 got {heavy} requests, the one with weight 1 got {light}");
    assert_eq!(heavy + light, 800);
    // The server with weight 1 should get 200 of 800 requests. The accepted range is wider than six standard deviations
    // on each side.
    assert!(
        (125..=275).contains(&light),
        "weight 3 got {heavy} requests, weight 1 got {light}"
    );
}
