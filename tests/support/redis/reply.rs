//! Minimal Redis client with which tests send commands to a server.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::TEST_TIMEOUT;

/// Reply of a Redis server to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
    Error(String),
}

impl Reply {
    /// Returns the text of a status or a bulk string. Panics for other replies.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Status(text) => text,
            Self::Bulk(bytes) => String::from_utf8(bytes).expect("the value is text"),
            other => panic!("the Redis reply is not a string: {other:?}"),
        }
    }

    /// Returns an integer, also if the server sent it as text. Panics for other replies.
    pub(crate) fn int(self) -> i64 {
        match self {
            Self::Int(number) => number,
            other => other.text().parse().expect("the value is a number"),
        }
    }

    /// Returns the members of an array. Panics for other replies.
    pub(crate) fn array(self) -> Vec<Self> {
        match self {
            Self::Array(members) => members,
            other => panic!("the Redis reply is not an array: {other:?}"),
        }
    }
}

/// Connection to a Redis server.
pub(super) struct Connection(BufReader<UnixStream>);

impl Connection {
    /// Connects to the Unix socket at `path`. Reads and writes have a timeout: if the server process is stopped, the
    /// kernel still accepts the connection, but no reply arrives.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.set_write_timeout(Some(TEST_TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends one command, given as its words, and reads the reply.
    pub(super) fn call(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", command.len()).into_bytes();
        for part in command.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        read(&mut self.0)
    }
}

fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line
        .strip_suffix("\r\n")
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
    let number = || rest.parse::<i64>().map_err(io::Error::other);
    Ok(match kind {
        "+" => Reply::Status(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Int(number()?),
        "$" => match usize::try_from(number()?) {
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Reply::Bulk(bytes)
            }
            Err(_) => Reply::Nil,
        },
        "*" => match usize::try_from(number()?) {
            Ok(length) => Reply::Array((0..length).map(|_| read(from)).collect::<Result<_, _>>()?),
            Err(_) => Reply::Nil,
        },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}
