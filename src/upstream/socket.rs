//! TCP socket of an upstream connection that reports a failed write only after all received bytes are read.
//!
//! A server can respond and close the connection before it has read the request, for example with 413. Its kernel then
//! resets the connection, and the next write of the gateway fails. Linux keeps received bytes readable after a reset,
//! but hyper ends a connection at the first failed write and drops the response. So a failed write stays pending until
//! a read reports the end of the stream or an error, which follows a reset at once.
//!
//! This wraps the TCP socket and not the TLS stream, because only the socket distinguishes a reset from an orderly
//! close. Bytes that the server had not transmitted before the reset are lost.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    write_error: Option<io::Error>,
    read_ended: bool,
    /// Task of the failed write, to be woken when `read_ended` becomes true.
    writer: Option<Waker>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            write_error: None,
            read_ended: false,
            writer: None,
        }
    }

    /// Stays pending if the write failed and the read side has not ended.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        result: io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        match result {
            Err(error) if !self.read_ended => {
                self.write_error = Some(error);
                self.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            result => Poll::Ready(result),
        }
    }

    /// Repeats the result of an earlier failed write without a system call.
    fn poll_failed(&mut self, cx: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        let error = repeated(self.write_error.as_ref()?);
        Some(self.written(cx, Err(error)))
    }

    fn end_of_reads(&mut self) {
        self.read_ended = true;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }
}

/// `io::Error` cannot be cloned.
fn repeated(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        let is_end = result.is_err() || (buf.filled().len() == before && buf.remaining() > 0);
        if !is_end {
            return Poll::Ready(result);
        }
        self.end_of_reads();
        // The kernel reports a reset only once. If a write received the report, the next read returns 0 as after an
        // orderly close, and a response without a length would look complete. A write fails with EPIPE also after an
        // orderly close.
        Poll::Ready(match &self.write_error {
            Some(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(repeated(error)),
            _ => result,
        })
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(failed) = self.poll_failed(cx) {
            return failed;
        }
        let result = std::task::ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.written(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(failed) = self.poll_failed(cx) {
            return failed;
        }
        let result = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, pieces));
        self.written(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// Returns the gateway's end and the server's end of a TCP connection. The server's end is blocking.
    async fn connected() -> (Socket, std::net::TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(client, listener.accept());
        let server = server.unwrap().0.into_std().unwrap();
        server.set_nonblocking(false).unwrap();
        (Socket::new(client.unwrap()), server)
    }

    /// Writes until a write stays pending. Only a failed write stays pending, because the socket withholds its error.
    async fn write_until_pending(socket: &mut Socket) {
        let stalled = Duration::from_millis(100);
        while let Ok(written) = timeout(stalled, socket.write(&[0; 100])).await {
            written.expect("the error is withheld");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(socket.write_error.is_some(), "no write failed");
    }

    #[tokio::test]
    async fn after_a_reset_the_response_is_readable_before_the_error() {
        let (mut socket, mut server) = connected().await;
        socket.write_all(b"request").await.unwrap();
        server.write_all(b"response").unwrap();
        // The kernel resets the connection, because the server has not read the request.
        drop(server);
        write_until_pending(&mut socket).await;
        let mut received = [0; 100];
        assert_eq!(socket.read(&mut received).await.unwrap(), 8);
        assert_eq!(&received[..8], b"response");
        let end = socket.read(&mut received).await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
        let write = socket.write(b"more").await.unwrap_err();
        assert_eq!(write.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn after_a_close_the_response_is_readable_to_its_end() {
        let (mut socket, mut server) = connected().await;
        socket.write_all(b"request").await.unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
        server.write_all(b"response").unwrap();
        drop(server);
        write_until_pending(&mut socket).await;
        let mut received = Vec::new();
        socket.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"response");
        let write = socket.write(b"more").await.unwrap_err();
        assert_eq!(write.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_pending_write_reports_its_error_when_the_read_side_ends() {
        let (mut socket, server) = connected().await;
        socket.write_all(b"request").await.unwrap();
        drop(server);
        write_until_pending(&mut socket).await;
        let (mut reader, mut writer) = tokio::io::split(socket);
        let write = tokio::spawn(async move { writer.write(b"more").await });
        tokio::task::yield_now().await;
        let read = reader.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(read.kind(), io::ErrorKind::ConnectionReset);
        let write = timeout(Duration::from_secs(5), write).await.unwrap();
        let write = write.unwrap().unwrap_err();
        assert_eq!(write.kind(), io::ErrorKind::ConnectionReset);
    }
}
