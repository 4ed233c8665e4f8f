//! Two servers that cut a connection where they are told to, and otherwise answer every request alike.
//!
//! They keep account of what reached them. A request counts as soon as a byte of it is read, be it only to
//! be thrown away; which one it is they see before that.

use std::io::Read as _;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::wire_raw::Conversation;

/// Where a connection ends, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) at: At,
    pub(super) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// As soon as it stands.
    Accepted,
    /// When so many bytes of the request were read.
    Request(usize),
    /// When so many bytes of the answer were sent.
    Answer(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Close,
    Reset,
    /// It does not end, and nothing more comes.
    Stall,
}

/// What a request is sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    /// A connection of its own.
    Fresh,
    /// One that carried a request before.
    KeptAlive,
}

impl Cut {
    /// Whether not a byte of the request is read, not even to be thrown away.
    fn leaves_all_unread(self) -> bool {
        self.at == At::Request(0) && self.how == How::Reset
    }
}

impl On {
    /// The head of the answer to every request.
    pub(super) fn head(self) -> &'static str {
        match self {
            Self::Fresh => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n",
            Self::KeptAlive => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
        }
    }

    pub(super) fn answer(self) -> String {
        format!("{}done", self.head())
    }

    /// Whether an answer that is cut here was begun: its head may be on its way to the client, and cannot be taken
    /// back.
    pub(super) fn is_begun(self, cut: Cut) -> bool {
        let body = self.head().len()..self.answer().len();
        matches!(cut.at, At::Answer(sent) if body.contains(&sent))
    }
}

/// Two servers, as they share it.
pub(super) struct Stage {
    pub(super) on: On,
    /// Awaits the next connection or request, whichever server gets it.
    pub(super) cut: Mutex<Option<Cut>>,
    pub(super) arrivals: Mutex<Vec<Arrival>>,
    /// Connections of each that wait for another request.
    pub(super) waiting: [AtomicUsize; 2],
    /// Bytes of the last request that was read whole.
    pub(super) request_len: AtomicUsize,
}

/// Which request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// One that only gets a connection used.
    WarmUp,
    /// The one with this number.
    Case(usize),
}

/// A request of which at least a byte was read.
pub(super) struct Arrival {
    pub(super) asked: Asked,
    /// Whether its connection carried one before.
    pub(super) reused: bool,
}

impl Stage {
    /// Where nothing has happened yet.
    pub(super) fn new(on: On) -> Self {
        Self {
            on,
            cut: Mutex::default(),
            arrivals: Mutex::default(),
            waiting: Default::default(),
            request_len: AtomicUsize::new(0),
        }
    }

    /// Serves one connection of a server.
    pub(super) fn serve(&self, server: usize, conversation: &mut Conversation) {
        if let Some(cut) = self.take_if(|cut| cut.at == At::Accepted) {
            if half_close(conversation, cut.how)
                && let Some(asked) = begins(conversation)
            {
                // It was sent all the same, to where somebody reads it.
                self.arrived(asked, false);
                conversation.until_closed();
            }
            return;
        }
        let mut reused = false;
        while let Some(asked) = begins(conversation) {
            if reused {
                self.waiting[server].fetch_sub(1, Ordering::SeqCst);
            }
            let cut = self.take_if(|_| true);
            if !cut.is_some_and(Cut::leaves_all_unread) {
                self.arrived(asked, reused);
            }
            if let Some(cut) = cut {
                self.carry_out(cut, conversation);
                return;
            }
            if self.read(conversation).is_none() {
                return;
            }
            reused = true;
            self.waiting[server].fetch_add(1, Ordering::SeqCst);
            conversation.send(self.on.answer());
            if self.on == On::Fresh {
                self.waiting[server].fetch_sub(1, Ordering::SeqCst);
                return;
            }
        }
        if reused {
            self.waiting[server].fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn arrived(&self, asked: Asked, reused: bool) {
        self.arrivals.lock().push(Arrival { asked, reused });
    }

    fn take_if(&self, wanted: impl FnOnce(&Cut) -> bool) -> Option<Cut> {
        self.cut.lock().take_if(|cut| wanted(cut))
    }

    /// Reads a request whole.
    fn read(&self, conversation: &mut Conversation) -> Option<()> {
        let request = conversation.request()?;
        let len = request.head.len() + request.body.len();
        self.request_len.store(len, Ordering::SeqCst);
        Some(())
    }

    fn carry_out(&self, cut: Cut, conversation: &mut Conversation) {
        match cut.at {
            At::Accepted => {}
            At::Request(bytes) => {
                let mut read = vec![0; bytes];
                let whole = conversation.stream.read_exact(&mut read);
                whole.expect("a request is sent whole");
            }
            At::Answer(bytes) => {
                self.read(conversation);
                conversation.send(&self.on.answer()[..bytes]);
            }
        }
        if half_close(conversation, cut.how) {
            conversation.until_closed();
        }
    }
}

/// Waits for a request to begin, without reading any of it.
fn begins(conversation: &Conversation) -> Option<Asked> {
    let mut line = [0; 64];
    let peeked = conversation.stream.peek(&mut line).ok();
    let line = &line[..peeked.filter(|&bytes| bytes > 0)?];
    let line = std::str::from_utf8(line).expect("a request line");
    let target = line.split(' ').nth(1).expect("the head comes in one piece");
    Some(match target.strip_prefix("/case/") {
        Some(case) => Asked::Case(case.parse().expect("a number")),
        None => Asked::WarmUp,
    })
}

/// Ends what is sent on a connection, and says whether to read on: to close with something unread would be to
/// reset.
fn half_close(conversation: &Conversation, how: How) -> bool {
    match how {
        How::Reset => conversation.will_reset(),
        How::Stall => {}
        How::Close => {
            // The gateway may have been faster.
            let _ = conversation.stream.shutdown(Shutdown::Write);
        }
    }
    how != How::Reset
}
