//! HTTP/1 or HTTP/2? Without TLS there is nobody to ask but the first bytes.
//!
//! A client with prior knowledge of HTTP/2 begins with a fixed preface, and no HTTP/1 request that
//! would be accepted begins so. The decision falls at the first byte that differs, so a client of
//! HTTP/1 is never waited for longer than its own request takes.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

/// RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Room for the first bytes: an ordinary request, so that it is read once.
const ROOM: usize = 1_024;

/// What a client turned out to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 or 1.1, or nothing known.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
}

/// Why nothing can be said about a connection. Each is a reason to close it without a word.
#[derive(Debug, Error)]
pub enum Unsniffed {
    /// The client closed first.
    #[error("the client closed the connection before it said anything of use")]
    Closed,
    /// The client was silent.
    #[error("the client did not say in time what it speaks")]
    Timeout,
    /// Reading failed.
    #[error("reading the first bytes failed")]
    Io(#[from] io::Error),
}

/// Reads the first bytes, as many as it takes to know the protocol or more, and hands them back: whoever speaks the
/// protocol must read them first.
pub async fn sniff<IO>(io: &mut IO, within: Duration) -> Result<(Protocol, BytesMut), Unsniffed>
where
    IO: AsyncRead + Unpin,
{
    let mut early = BytesMut::with_capacity(ROOM);
    let decided = async {
        loop {
            if io.read_buf(&mut early).await? == 0 {
                return Err(Unsniffed::Closed);
            }
            if early.starts_with(PREFACE) {
                return Ok(Protocol::Http2);
            }
            if !PREFACE.starts_with(&early) {
                return Ok(Protocol::Http1);
            }
        }
    };
    let protocol = timeout(within, decided)
        .await
        .map_err(|_elapsed| Unsniffed::Timeout)??;
    Ok((protocol, early))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn sniffed(sent: &[u8]) -> Result<(Protocol, BytesMut), Unsniffed> {
        let (mut gateway, mut client) = duplex(64);
        client.write_all(sent).await.unwrap();
        sniff(&mut gateway, SECOND).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_preface_is_http_2() {
        let sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0";
        let (protocol, early) = sniffed(sent).await.unwrap();
        assert_eq!(protocol, Protocol::Http2);
        assert_eq!(&early[..], sent);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_byte_that_differs_makes_it_http_1() {
        for sent in ["G", "PU", "PRI * HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\nSX"] {
            let (protocol, early) = sniffed(sent.as_bytes()).await.unwrap();
            assert_eq!(protocol, Protocol::Http1);
            assert_eq!(&early[..], sent.as_bytes());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_amid_the_preface_is_given_up() {
        assert!(matches!(sniffed(b"PRI *").await, Err(Unsniffed::Timeout)));
        assert!(matches!(sniffed(b"").await, Err(Unsniffed::Timeout)));
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_told_apart() {
        let (mut gateway, client) = duplex(64);
        drop(client);
        assert!(matches!(
            sniff(&mut gateway, SECOND).await,
            Err(Unsniffed::Closed)
        ));
    }
}
