//! Tests with servers that end their connections to the gateway, once at every byte of a request and of its response.
//!
//! The retry policy is as permissive as possible. Even so, a POST without an idempotency key must never reach a server
//! twice. The gateway retries it only if no server has read a byte of it. A GET must get its complete response,
//! because only one of the two servers ends its connection. The exception is a loss during the response body: then the
//! client can get an incomplete response.
//!
//! If a connection closes before the server reads anything, the gateway cannot always know whether the server received
//! the request. In this case the tests also accept that the POST fails and no server has received it.

mod closing_servers;
mod fixture;
mod reused_connections;

use std::sync::atomic::Ordering;
use std::thread;

use closing_servers::{ConnectionKind, Loss, LossKind, LossPoint};
use fixture::{ClientResult, Fixture};

/// Returns every way in which a connection can end: at each byte of a request of `request_len` bytes and of its
/// response.
fn losses(connection: ConnectionKind, request_len: usize) -> Vec<Loss> {
    let response_len = connection.response().len();
    let accepted = (connection == ConnectionKind::Fresh).then_some(LossPoint::Accepted);
    let points = accepted
        .into_iter()
        .chain((0..=request_len).map(LossPoint::Request))
        .chain((0..=response_len).map(LossPoint::Response));
    let losses = points.flat_map(|point| {
        [LossKind::Close, LossKind::Reset, LossKind::Stall].map(|kind| Loss { point, kind })
    });
    // Stalls during the request are left out. The whole request fits into socket buffers, so the gateway cannot
    // distinguish such a stall from a stall before the response.
    losses
        .filter(|loss| loss.kind != LossKind::Stall || matches!(loss.point, LossPoint::Response(_)))
        .collect()
}

/// Sends one request for each kind of connection and each [`Loss`], which is a way in which a server ends the
/// connection. Calls `check` with the kind of connection, the loss, the client's result, and how often a server
/// received the request.
fn check_every_loss(
    method: &str,
    check: impl Fn(ConnectionKind, Loss, &ClientResult, usize) + Sync,
) {
    let check = &check;
    let groups = [ConnectionKind::Fresh, ConnectionKind::Reused]
        .into_iter()
        .flat_map(|connection| {
            let probe = Fixture::start(connection, "20s");
            assert_eq!(
                probe.send(method, "/case/000000"),
                ClientResult::Complete(200, "done".into())
            );
            let request_len = probe.servers.request_len.load(Ordering::SeqCst);
            let (stalls, ends): (Vec<_>, Vec<_>) = losses(connection, request_len)
                .into_iter()
                .partition(|loss| loss.kind == LossKind::Stall);
            // Stalls last until the gateway's timeout expires. They therefore get a short timeout and run in more
            // parallel groups than the other losses.
            let stalls = split(stalls, 12)
                .into_iter()
                .map(move |losses| (connection, "1s", losses));
            let ends = split(ends, 2)
                .into_iter()
                .map(move |losses| (connection, "20s", losses));
            stalls.chain(ends)
        });
    let groups: Vec<_> = groups.collect();
    let tried: usize = groups.iter().map(|(_, _, losses)| losses.len()).sum();
    thread::scope(|scope| {
        for (connection, timeout, losses) in groups {
            scope.spawn(move || {
                let fixture = Fixture::start(connection, timeout);
                let cases = losses.into_iter().enumerate();
                let cases: Vec<_> = cases
                    .map(|(case, loss)| (case, loss, fixture.run(method, case, loss)))
                    .collect();
                let copies = fixture.copies();
                for (case, loss, result) in cases {
                    check(
                        connection,
                        loss,
                        &result,
                        copies.get(&case).copied().unwrap_or(0),
                    );
                }
            });
        }
    });
    println!("{method}: a server ended the connection in {tried} different ways");
    assert!(tried > 500, "only {tried} losses were tested");
}

/// Distributes `losses` evenly over `count` groups.
fn split(losses: Vec<Loss>, count: usize) -> Vec<Vec<Loss>> {
    let mut groups_of_losses = vec![Vec::new(); count];
    for (number, loss) in losses.into_iter().enumerate() {
        groups_of_losses[number % count].push(loss);
    }
    groups_of_losses
}

#[test]
fn a_post_without_a_key_never_arrives_twice_wherever_its_connection_ends() {
    check_every_loss("POST", |connection, loss, result, copies| {
        assert!(
            copies <= 1,
            "the servers received {copies} copies: {loss:?} on {connection:?}"
        );
        match result {
            ClientResult::Complete(200, _) => assert_eq!(copies, 1, "{loss:?} on {connection:?}"),
            ClientResult::Complete(status, _) => {
                assert!(
                    [502, 504].contains(status),
                    "the client got {result:?} after {loss:?}"
                );
            }
            ClientResult::Incomplete => {
                assert!(
                    connection.has_begun_response(loss),
                    "the client got an incomplete response after {loss:?} on a connection {connection:?}"
                );
            }
        }
        if let LossPoint::Request(1..) = loss.point {
            assert!(
                matches!(result, ClientResult::Complete(502, _)),
                "the client got {result:?} after {loss:?} on a connection {connection:?}"
            );
        }
    });
}

#[test]
fn a_get_gets_a_response_wherever_its_connection_ends() {
    let complete = ClientResult::Complete(200, "done".into());
    check_every_loss("GET", |connection, loss, result, _| {
        let is_truncated =
            connection.has_begun_response(loss) && *result == ClientResult::Incomplete;
        assert!(
            *result == complete || is_truncated,
            "the client got {result:?} after {loss:?} on a connection {connection:?}"
        );
    });
}
