//! Where in the stream of requests a connection is.
//!
//! Follows heads and bodies byte by byte without keeping any, and says of each stretch how much of it
//! may be passed on and why no more. It knows nothing of sockets, buffers or time.

use super::chunked::{Chunked, Progress};
use super::head::{self, Framing, Limits};
use super::violation::Violation;

/// The place reached in a connection's requests.
#[derive(Debug)]
pub(super) struct Follower {
    limits: Limits,
    place: Place,
    upgrade: bool,
}

#[derive(Debug)]
enum Place {
    Head,
    Length(u64),
    Chunked(Chunked),
}

/// What was found in a stretch of bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// How many bytes may be passed on.
    pub(super) cleared: usize,
    /// How many heads are among them.
    pub(super) heads: u32,
    /// Why no more.
    pub(super) end: End,
}

/// Why a stretch went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// There is no more.
    Exhausted,
    /// The rest is the beginning of a head.
    Partial,
    /// The request just passed may turn the rest into another protocol.
    Upgrade,
    /// The rest is not a head.
    BadHead(Violation),
    /// The rest is not a body.
    BadBody(Violation),
}

impl Follower {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            place: Place::Head,
            upgrade: false,
        }
    }

    /// Whether the next byte belongs to a head.
    pub(super) fn at_head(&self) -> bool {
        matches!(self.place, Place::Head)
    }

    /// Follows the next bytes up to the first that cannot be passed on.
    pub(super) fn follow(&mut self, bytes: &[u8]) -> Stretch {
        let mut cleared = 0;
        let mut heads = 0;
        let end = loop {
            let rest = &bytes[cleared..];
            match &mut self.place {
                Place::Head if rest.is_empty() => break End::Exhausted,
                Place::Head => match head::read(rest, self.limits) {
                    Ok(Some(head)) => {
                        cleared += head.len;
                        heads += 1;
                        self.upgrade = head.upgrade;
                        self.place = match head.framing {
                            Framing::None => Place::Head,
                            Framing::Length(left) => Place::Length(left),
                            Framing::Chunked => Place::Chunked(Chunked::new(self.limits.bytes)),
                        };
                    }
                    Ok(None) => break End::Partial,
                    Err(violation) => break End::BadHead(violation),
                },
                Place::Length(left) => {
                    let here = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    cleared += here;
                    *left -= here as u64;
                    if *left > 0 {
                        break End::Exhausted;
                    }
                    self.place = Place::Head;
                }
                Place::Chunked(chunked) => match chunked.follow(rest) {
                    Progress::Open => {
                        cleared = bytes.len();
                        break End::Exhausted;
                    }
                    Progress::Ended(here) => {
                        cleared += here;
                        self.place = Place::Head;
                    }
                    Progress::Broken(here, violation) => {
                        cleared += here;
                        break End::BadBody(violation);
                    }
                },
            }
            if self.upgrade && self.at_head() {
                self.upgrade = false;
                break End::Upgrade;
            }
        };
        Stretch {
            cleared,
            heads,
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower() -> Follower {
        Follower::new(Limits {
            bytes: 1024,
            lines: 10,
        })
    }

    fn stretch(cleared: usize, heads: u32, end: End) -> Stretch {
        Stretch {
            cleared,
            heads,
            end,
        }
    }

    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const SIZED: &[u8] = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nGET";
    const CHUNKED: &[u8] =
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n0\r\n\r\n";
    const UPGRADE: &[u8] =
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nContent-Length: 3\r\n\r\nabc";

    #[test]
    fn bodies_are_stepped_over_to_the_next_head() {
        let stream = [GET, SIZED, CHUNKED, GET, b"GET"].concat();
        assert_eq!(
            follower().follow(&stream),
            stretch(stream.len() - 3, 4, End::Partial)
        );
    }

    #[test]
    fn nothing_after_a_bad_head_is_cleared() {
        let stream = [GET, b"GET / HTTP/1.1\n\n", GET].concat();
        assert_eq!(
            follower().follow(&stream),
            stretch(GET.len(), 1, End::BadHead(Violation::BareLf))
        );
    }

    #[test]
    fn a_body_is_cleared_up_to_where_it_breaks() {
        let stream = [&CHUNKED[..CHUNKED.len() - 2], b"\n"].concat();
        assert_eq!(
            follower().follow(&stream),
            stretch(stream.len() - 1, 1, End::BadBody(Violation::Trailer))
        );
    }

    #[test]
    fn what_follows_an_upgrade_and_its_body_waits() {
        let stream = [UPGRADE, GET].concat();
        let mut follower = follower();
        assert_eq!(
            follower.follow(&stream),
            stretch(UPGRADE.len(), 1, End::Upgrade)
        );
        assert_eq!(follower.follow(GET), stretch(GET.len(), 1, End::Exhausted));
    }
}
