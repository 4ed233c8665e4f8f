use http::{HeaderMap, HeaderValue, StatusCode};

use super::*;
use crate::lab::simulated::{attempt, client};
use crate::request::test_id::TestId;
use crate::scenario::trace::ObservedResponse;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns a GET request with a response of this status, or without response. The response starts `after` milliseconds
/// after the arrival.
fn get(arrived: u64, status: Option<u16>, after: u64) -> Attempt {
    let response = status.map(|status| ObservedResponse {
        status: Some(StatusCode::from_u16(status).unwrap()),
        headers: HeaderMap::new(),
        started: millis(arrived + after),
        ended: millis(arrived + after),
        end: ResponseEnd::Complete,
    });
    Attempt {
        response,
        ..attempt(client(1), millis(arrived), Method::GET, "/")
    }
}

fn keyed(key: &str, attempt: Attempt) -> Attempt {
    Attempt {
        key: Some(key.into()),
        ..attempt
    }
}

/// Groups attempts. Returns the indices of each operation, and those that are not attributed.
fn grouped(attempts: &[Attempt]) -> (Vec<Vec<usize>>, Vec<usize>) {
    let grouping = group(attempts, SystemTime::UNIX_EPOCH);
    let operations = grouping.operations.into_iter();
    (
        operations.map(|operation| operation.attempts).collect(),
        grouping.unattributed,
    )
}

#[test]
fn an_identical_request_after_a_failure_is_a_retry_and_after_a_success_a_new_operation() {
    let attempts = [
        get(0, Some(503), 1),
        get(1_000, Some(200), 1),
        get(2_000, Some(200), 1),
    ];
    assert_eq!(grouped(&attempts), (vec![vec![0, 1], vec![2]], vec![]));
}

#[test]
fn an_immediate_request_after_delayed_retries_is_a_new_operation() {
    let failed = |arrived| get(arrived, Some(503), 1);
    let attempts = [
        failed(0),
        failed(500),
        failed(1_500),
        failed(1_503),
        failed(2_003),
    ];
    let expected = vec![vec![0, 1, 2], vec![3, 4]];
    assert_eq!(grouped(&attempts), (expected, vec![]));
    // A client that retries immediately, or whose first retry is immediate, continues its operation.
    let attempts = [failed(0), failed(3), failed(500), failed(1_500)];
    assert_eq!(grouped(&attempts), (vec![vec![0, 1, 2, 3]], vec![]));
    // A stated time makes an immediate request early, so it must not be hidden in a new operation.
    let mut attempts = [failed(0), failed(500), failed(503)];
    let response = attempts[1].response.as_mut().unwrap();
    response
        .headers
        .insert("retry-after", HeaderValue::from_static("1"));
    assert_eq!(grouped(&attempts), (vec![vec![0, 1, 2]], vec![]));
    // A header with a similar name states no time.
    let mut attempts = [failed(0), failed(500), failed(503)];
    let response = attempts[1].response.as_mut().unwrap();
    response
        .headers
        .insert("x-retry-after-policy", HeaderValue::from_static("none"));
    assert_eq!(grouped(&attempts), (vec![vec![0, 1], vec![2]], vec![]));
}

/// Returns the attempt on another connection.
fn on(connection: u64, attempt: Attempt) -> Attempt {
    Attempt {
        connection,
        ..attempt
    }
}

#[test]
fn early_identical_requests_on_interleaved_connections_are_unattributed() {
    let attempts = |interval: u64, connections: &[u64]| -> Vec<_> {
        let times = (0..).map(|number| number * interval);
        let failed = times.map(|arrived| get(arrived, Some(503), 1));
        let connections = connections.iter();
        let attempts = connections.zip(failed);
        attempts
            .map(|(connection, failed)| on(*connection, failed))
            .collect()
    };
    let concurrent = attempts(20, &[1, 2, 1, 3]);
    assert_eq!(grouped(&concurrent), (vec![], vec![0, 1, 2, 3]));
    let pooled = attempts(500, &[1, 2, 1, 3]);
    assert_eq!(grouped(&pooled), (vec![vec![0, 1, 2, 3]], vec![]));
    let reconnected = attempts(20, &[1, 1, 2, 2, 3]);
    assert_eq!(grouped(&reconnected), (vec![vec![0, 1, 2, 3, 4]], vec![]));
    // A stated time makes a request early.
    let mut limited = pooled;
    for attempt in &mut limited {
        let response = attempt.response.as_mut().unwrap();
        let seconds = HeaderValue::from_static("1");
        response.headers.insert("retry-after", seconds);
    }
    assert_eq!(grouped(&limited), (vec![], vec![0, 1, 2, 3]));
    // Other requests can use the connections in any order.
    let mut others = attempts(20, &[1, 2, 1]);
    others[1].target = "/other".into();
    assert_eq!(grouped(&others), (vec![vec![0, 2], vec![1]], vec![]));
}

#[test]
fn an_immediate_request_on_another_connection_is_concurrent() {
    let attempts = [
        get(0, Some(429), 1),
        on(2, get(3, Some(200), 1)),
        on(3, get(1_001, Some(200), 1)),
    ];
    assert_eq!(grouped(&attempts), (vec![vec![0, 2], vec![1]], vec![]));
    // Without a later retry, the second request can also be the retry of the first one.
    assert_eq!(grouped(&attempts[..2]), (vec![], vec![0, 1]));
    let later = [get(0, Some(429), 1), on(2, get(6, Some(200), 1))];
    assert_eq!(grouped(&later), (vec![vec![0, 1]], vec![]));
}

#[test]
fn an_immediate_request_on_another_connection_after_a_reset_is_a_retry() {
    let mut reset = get(0, Some(503), 1);
    let response = reset.response.as_mut().unwrap();
    response.status = None;
    response.end = ResponseEnd::Aborted;
    let attempts = [reset, on(2, get(3, Some(200), 1))];
    assert_eq!(grouped(&attempts), (vec![vec![0, 1]], vec![]));
}

#[test]
fn requests_of_other_clients_or_with_other_contents_are_other_operations() {
    let first = get(0, Some(503), 1);
    let body = ObservedBody {
        length: 1,
        ..ObservedBody::default()
    };
    let mut test = get(1_000, Some(200), 1);
    test.headers
        .insert(X_TIDEGATE_TEST, HeaderValue::from_static("2"));
    let others = [
        Attempt {
            client: client(2),
            ..get(1_000, Some(200), 1)
        },
        Attempt {
            method: Method::PUT,
            ..get(1_000, Some(200), 1)
        },
        Attempt {
            target: "/other".into(),
            ..get(1_000, Some(200), 1)
        },
        Attempt {
            body,
            ..get(1_000, Some(200), 1)
        },
        Attempt {
            test: TestId::parse("2"),
            ..get(1_000, Some(200), 1)
        },
        test,
    ];
    for other in others {
        let operations = grouped(&[first.clone(), other]).0;
        assert_eq!(operations, [vec![0], vec![1]]);
    }
}

#[test]
fn requests_with_the_same_key_are_one_operation_until_it_succeeds() {
    let attempts = [
        keyed("a", get(0, Some(503), 1)),
        keyed("b", get(10, Some(503), 1)),
        keyed("a", get(1_000, Some(400), 1)),
        keyed("a", get(2_000, Some(200), 1)),
        keyed("a", get(3_000, Some(200), 1)),
        get(4_000, Some(200), 1),
    ];
    let expected = vec![vec![0, 2, 3], vec![1], vec![4], vec![5]];
    assert_eq!(grouped(&attempts), (expected, vec![]));
}

#[test]
fn a_request_with_the_key_of_an_attempt_in_flight_belongs_to_its_operation() {
    let attempts = [
        keyed("a", get(0, Some(200), 5_000)),
        keyed("a", get(1_000, Some(200), 1)),
    ];
    assert_eq!(grouped(&attempts).0, [vec![0, 1]]);
}

#[test]
fn a_request_while_an_identical_one_is_in_flight_is_a_new_operation() {
    let attempts = [
        get(0, Some(503), 500),
        get(100, Some(503), 100),
        get(300, Some(200), 1),
    ];
    assert_eq!(grouped(&attempts), (vec![vec![0], vec![1, 2]], vec![]));
}

#[test]
fn a_request_after_the_client_stopped_waiting_is_a_retry() {
    let mut closed = get(0, Some(200), 9_000);
    closed.response.as_mut().unwrap().end = ResponseEnd::ClientClosed;
    for first in [get(0, None, 0), closed] {
        let attempts = [first.clone(), get(1_000, Some(200), 1)];
        assert_eq!(grouped(&attempts).0, [vec![0, 1]]);
        let concurrent = [first, get(19, Some(200), 1)];
        assert_eq!(grouped(&concurrent).0, [vec![0], vec![1]]);
    }
}

#[test]
fn retries_of_concurrent_identical_requests_are_unattributed_with_their_operations() {
    let other = Attempt {
        target: "/other".into(),
        ..get(0, Some(503), 10)
    };
    let attempts = [
        get(0, Some(503), 10),
        get(1, Some(503), 10),
        other,
        get(1_000, Some(200), 1),
        get(1_001, Some(200), 1),
    ];
    assert_eq!(grouped(&attempts), (vec![vec![2]], vec![0, 1, 3, 4]));
}

#[test]
fn concurrent_requests_that_succeed_are_attributed() {
    let attempts = [
        get(0, Some(200), 10),
        get(1, Some(503), 10),
        get(1_000, Some(200), 1),
    ];
    assert_eq!(grouped(&attempts), (vec![vec![0], vec![1, 2]], vec![]));
}
