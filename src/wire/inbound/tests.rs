use proptest::prelude::*;

use super::super::exchange::Exchanges;
use super::*;

const LIMITS: Limits = Limits {
    bytes: 512,
    lines: 10,
};

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
const EMPTY_LINE_FIRST: &[u8] = b"\r\nGET /b HTTP/1.0\r\n\r\n";
const SIZED: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\nGET / HTTP\r\n";
const CHUNKED: &[u8] =
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6;x\r\n\r\n0\r\n\r\r\n0\r\nt: r\r\n\r\n";
const UPGRADE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\n\r\n";

/// A connection whose client's bytes are written by the test, and what hyper has read of it.
struct Connection {
    inbound: Inbound,
    shared: Arc<Shared>,
    read: Vec<u8>,
}

impl Connection {
    fn new() -> Self {
        let shared = Arc::new(Shared::default());
        Self {
            inbound: Inbound::new(BytesMut::new(), LIMITS, Arc::clone(&shared)),
            shared,
            read: Vec::new(),
        }
    }

    fn send(&mut self, piece: &[u8]) -> &mut Self {
        let mut room = vec![0; piece.len()];
        let mut buf = ReadBuf::new(&mut room);
        buf.put_slice(piece);
        self.inbound.take_up(&mut buf, 0);
        self.read.extend_from_slice(buf.filled());
        self.drain();
        self
    }

    fn drain(&mut self) {
        let mut room = [0; 7];
        let mut buf = ReadBuf::new(&mut room);
        while self.inbound.deliver(&mut buf) {
            self.read.extend_from_slice(buf.filled());
            buf.clear();
        }
    }
}

#[tokio::test]
async fn whole_heads_are_never_moved_aside() {
    let mut connection = Connection::new();
    connection.send(&[GET, SIZED, CHUNKED].concat());
    assert_eq!(connection.inbound.aside.capacity(), 0);
}

#[tokio::test]
async fn a_head_is_passed_on_once_it_is_whole_and_leaves_no_buffer() {
    let mut connection = Connection::new();
    connection.send(&GET[..20]);
    assert!(connection.read.is_empty());
    connection.send(&GET[20..]);
    assert_eq!(connection.read, GET);
    assert_eq!(connection.inbound.aside.capacity(), 0);
}

#[tokio::test]
async fn a_refused_head_is_replaced_and_nothing_follows_it() {
    let bad = b"GET / HTTP/1.1\nHost: a\n\n";
    for size in [1, 5, 1000] {
        let mut connection = Connection::new();
        for piece in [GET, bad, GET].concat().chunks(size) {
            connection.send(piece);
        }
        assert_eq!(connection.read, [GET, STAND_IN].concat());
        assert_eq!(connection.inbound.want(), Want::Nothing);
        let exchanges = Exchanges::new(connection.shared);
        assert_eq!(exchanges.begin().violation(), None);
        assert_eq!(exchanges.begin().violation(), Some(Violation::BareLf));
    }
}

#[tokio::test]
async fn a_bare_line_feed_is_refused_at_once_and_not_when_the_head_is_whole() {
    let mut connection = Connection::new();
    connection.send(b"GET / HT").send(b"TP/1.1\n");
    assert_eq!(connection.read, STAND_IN);
}

#[tokio::test]
async fn an_endless_head_is_refused_at_its_limit() {
    let mut connection = Connection::new();
    for _ in 0..LIMITS.bytes - 1 {
        connection.send(b"x");
    }
    assert!(connection.read.is_empty());
    connection.send(b"x");
    assert_eq!(connection.read, STAND_IN);
    let violation = Exchanges::new(connection.shared).begin().violation();
    assert_eq!(violation, Some(Violation::HeadTooLarge));
}

#[tokio::test]
async fn a_broken_body_is_an_error_after_its_last_good_byte() {
    for size in [1, 9, 1000] {
        let mut connection = Connection::new();
        let good = &CHUNKED[..CHUNKED.len() - 2];
        for piece in [good, b"\n", GET].concat().chunks(size) {
            connection.send(piece);
        }
        assert_eq!(connection.read, good);
        assert_eq!(connection.inbound.want(), Want::Error(Violation::Trailer));
    }
}

#[tokio::test]
async fn what_follows_a_refused_upgrade_is_read_as_requests() {
    let mut connection = Connection::new();
    connection.send(&[UPGRADE, GET, b"GET"].concat());
    assert_eq!(connection.read, UPGRADE);
    drop(Exchanges::new(Arc::clone(&connection.shared)).begin());
    connection.drain();
    assert_eq!(connection.read, [UPGRADE, GET].concat());
    connection.send(b" / HTTP/1.1\n");
    assert_eq!(connection.read, [UPGRADE, GET, STAND_IN].concat());
}

#[tokio::test]
async fn what_follows_an_upgrade_that_is_made_is_passed_on_as_it_is() {
    let mut connection = Connection::new();
    connection.send(UPGRADE).send(b"\0\n");
    assert_eq!(connection.read, UPGRADE);
    let exchange = Exchanges::new(Arc::clone(&connection.shared)).begin();
    exchange.tunnel();
    drop(exchange);
    connection.drain();
    connection.send(b"anything");
    assert_eq!(connection.read, [UPGRADE, b"\0\nanything"].concat());
}

/// Valid requests, one after the other, none of which asks for an upgrade.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let request = prop::sample::select(vec![GET, EMPTY_LINE_FIRST, SIZED, CHUNKED]);
    prop::collection::vec(request, 0..6).prop_map(|requests| requests.concat())
}

proptest! {
    #[test]
    fn however_a_valid_stream_is_split_all_of_it_is_passed_on(
        stream in streams(),
        sizes in prop::collection::vec(1usize..60, 1..8),
    ) {
        let mut connection = Connection::new();
        let mut rest = &stream[..];
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            connection.send(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(connection.read, stream);
    }

    #[test]
    fn however_a_damaged_stream_is_split_the_same_of_it_is_passed_on(
        stream in streams(),
        damage in any::<prop::sample::Index>(),
        octet in any::<u8>(),
        size in 1usize..60,
    ) {
        let mut stream = [&stream, GET].concat();
        let at = damage.index(stream.len());
        stream[at] = octet;
        // In pieces a bad head may be refused only where a whole one would end.
        stream.extend_from_slice(GET);
        let mut whole = Connection::new();
        whole.send(&stream);
        let mut split = Connection::new();
        for piece in stream.chunks(size) {
            split.send(piece);
        }
        prop_assert_eq!(split.read, whole.read);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..20),
    ) {
        let mut connection = Connection::new();
        for piece in &pieces {
            connection.send(piece);
        }
    }
}
