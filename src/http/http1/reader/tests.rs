use std::future::poll_fn;

use proptest::prelude::*;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 512,
    lines: 10,
};

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
const EMPTY_LINE_FIRST: &[u8] = b"\r\nGET /b HTTP/1.0\r\n\r\n";
const SIZED: &[u8] = b"POST /c HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nGET / HTTP\r\n";
const CHUNKED: &[u8] =
    b"POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6;x\r\n\r\n0\r\n\r\r\n0\r\nt: r\r\n\r\n";

/// Targets and bodies of the requests that the reader returned, and the violation that ended reading, if any.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReadResult {
    requests: Vec<(String, Vec<u8>)>,
    violation: Option<Violation>,
}

/// Reads requests until the client closes its side or a violation occurs.
async fn read_all(reader: &mut Reader, mut io: DuplexStream) -> ReadResult {
    let mut read = ReadResult::default();
    while let Some(message) = poll_fn(|cx| reader.poll_head(&mut io, cx)).await.unwrap() {
        let message = match message {
            Ok(message) => message,
            Err(violation) => {
                read.violation = Some(violation);
                break;
            }
        };
        let target = message.request.uri().to_string();
        let (body, end) = match message.pending {
            None => (complete(message.request.into_body()), Ok(())),
            Some(pending) => read_body(reader, pending.decoder, &mut io).await,
        };
        read.requests.push((target, body));
        if let Err(violation) = end {
            read.violation = violation;
            break;
        }
    }
    read
}

fn complete(body: Http1Body) -> Vec<u8> {
    body.into_complete().unwrap().to_vec()
}

async fn read_body(
    reader: &mut Reader,
    mut decoder: Decoder,
    io: &mut DuplexStream,
) -> (Vec<u8>, Result<(), Option<Violation>>) {
    let mut all = Vec::new();
    loop {
        let part = poll_fn(|cx| reader.poll_body(&mut decoder, io, cx)).await;
        match part.unwrap() {
            Ok(Some(data)) => all.extend_from_slice(&data),
            Ok(None) => return (all, Ok(())),
            Err(IncompleteBody::Invalid(violation)) => return (all, Err(Some(violation))),
            Err(IncompleteBody::Disconnected) => return (all, Err(None)),
        }
    }
}

/// Lets a reader read `pieces`, each of which arrives on its own. Returns the result and the reader.
fn read_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (ReadResult, Reader) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let pieces: Vec<Vec<u8>> = pieces.into_iter().map(<[u8]>::to_vec).collect();
    runtime.unwrap().block_on(async move {
        let (gateway, mut client) = duplex(1 << 20);
        tokio::spawn(async move {
            for piece in pieces {
                if client.write_all(&piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        let mut reader = Reader::new(BytesMut::new(), LIMITS);
        let read = read_all(&mut reader, gateway).await;
        (read, reader)
    })
}

fn violation(pieces: &[&[u8]]) -> Option<Violation> {
    read_pieces(pieces.iter().copied()).0.violation
}

#[test]
fn an_idle_connection_holds_no_buffer() {
    for size in [7, 1000] {
        let stream = [GET, SIZED, CHUNKED, GET].concat();
        let (read, reader) = read_pieces(stream.chunks(size));
        assert_eq!(read.requests.len(), 4);
        assert_eq!(reader.buffer.capacity(), 0, "{size}");
    }
}

#[test]
fn early_bytes_are_parsed_first() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let (gateway, mut client) = duplex(1024);
        client.write_all(&GET[9..]).await.unwrap();
        drop(client);
        let mut reader = Reader::new(GET[..9].into(), LIMITS);
        let read = read_all(&mut reader, gateway).await;
        assert_eq!(read.requests, [("/a".to_owned(), Vec::new())]);
    });
}

#[test]
fn a_body_that_arrives_with_its_head_is_complete() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(async {
        let (mut gateway, mut client) = duplex(1024);
        client.write_all(SIZED).await.unwrap();
        let mut reader = Reader::new(BytesMut::new(), LIMITS);
        let message = poll_fn(|cx| reader.poll_head(&mut gateway, cx)).await;
        let message = message.unwrap().unwrap().unwrap();
        assert_eq!(complete(message.request.into_body()), b"GET / HTTP\r\n");
    });
}

#[test]
fn nothing_is_read_after_an_invalid_head() {
    let bad = b"GET / HTTP/1.1\nHost: a\n\n";
    for size in [1, 5, 1000] {
        let stream = [GET, bad, GET].concat();
        let (read, _) = read_pieces(stream.chunks(size));
        assert_eq!(read.requests.len(), 1);
        assert_eq!(read.violation, Some(Violation::BareLf));
    }
}

#[test]
fn a_bare_line_feed_is_rejected_before_the_head_is_complete() {
    assert_eq!(
        violation(&[b"GET / HT", b"TP/1.1\n"]),
        Some(Violation::BareLf)
    );
}

#[test]
fn an_endless_head_is_rejected_at_the_byte_limit() {
    let endless = vec![b"x"; LIMITS.bytes - 1];
    let mut pieces: Vec<&[u8]> = endless.iter().map(|piece| &piece[..]).collect();
    assert_eq!(violation(&pieces), None);
    pieces.push(b"x");
    assert_eq!(violation(&pieces), Some(Violation::HeadTooLarge));
}

#[test]
fn a_target_that_is_not_a_url_is_rejected() {
    let head = b"GET http://[ HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(violation(&[head]), Some(Violation::Target));
}

/// Generates sequences of up to five valid requests.
fn streams() -> impl Strategy<Value = Vec<&'static [u8]>> {
    let request = prop::sample::select(vec![GET, EMPTY_LINE_FIRST, SIZED, CHUNKED]);
    prop::collection::vec(request, 0..6)
}

proptest! {
    #[test]
    fn splitting_a_stream_does_not_change_its_requests(
        requests in streams(),
        sizes in prop::collection::vec(1usize..60, 1..8),
    ) {
        let stream = requests.concat();
        let (mut pieces, mut rest) = (Vec::new(), &stream[..]);
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let (read, _) = read_pieces(pieces);
        prop_assert_eq!(read.violation, None);
        let expected = requests.iter().map(|request| match *request {
            GET => ("/a", ""),
            EMPTY_LINE_FIRST => ("/b", ""),
            SIZED => ("/c", "GET / HTTP\r\n"),
            _ => ("/d", "\r\n0\r\n\r"),
        });
        let expected: Vec<_> = expected
            .map(|(target, body)| (target.to_owned(), body.as_bytes().to_vec()))
            .collect();
        prop_assert_eq!(read.requests, expected);
    }

    #[test]
    fn splitting_a_damaged_stream_does_not_change_its_requests(
        requests in streams(),
        damage in any::<prop::sample::Index>(),
        octet in any::<u8>(),
        size in 1usize..60,
    ) {
        let mut stream = [&requests.concat(), GET].concat();
        let at = damage.index(stream.len());
        stream[at] = octet;
        // If a head arrives in pieces, an error in it can stay undetected until the head is complete. So a valid
        // request is appended, whose empty line completes the invalid head.
        stream.extend_from_slice(GET);
        let (whole, _) = read_pieces([&stream[..]]);
        let (split, _) = read_pieces(stream.chunks(size));
        prop_assert_eq!(split, whole);
    }

    #[test]
    fn splitting_arbitrary_bytes_does_not_change_their_requests(
        mut pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..20),
    ) {
        // As above, a valid request completes an invalid head.
        pieces.push(GET.to_vec());
        let (whole, _) = read_pieces([&pieces.concat()[..]]);
        let (split, _) = read_pieces(pieces.iter().map(|piece| &piece[..]));
        prop_assert_eq!(split, whole);
    }
}
