//! Operations that share a sync: what each of them changes, and who is told afterwards.
//!
//! A batch's changes become visible all at once, when it is committed; so no two operations on the same
//! record are in one batch.

mod after;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::after::{After, Landing};
use super::admission::Admission;
use super::engine::{Changes, Due, Durability, Engine};
use super::record::{Claimed, Ended, Outcome, Record};
use super::tally::Tally;
use super::writer::{Ack, Completion, Op};
use super::{Common, Handle, Recent, Room, Stamp, millis};
use crate::idempotency::{
    Answer, Bid, Claim, ClientHash, Ending, Flight, Kept, OnUnknown, Permit, RecordId, ScopeHash,
    StoreError, Ticket,
};
use crate::store::share::{ClientCounts, Share};

/// Operations in the making.
pub(super) struct Batch<'a> {
    engine: &'a Engine,
    common: &'a Common,
    owner: &'a Weak<Handle>,
    tokens: &'a mut u64,
    admission: &'a mut Admission,
    room: Room,
    /// No record is left before this.
    swept: Option<Due>,
    now: Stamp,
    changes: Changes<'a>,
    durability: Durability,
    tally: Tally,
    /// Scopes' counts as they will be.
    scopes: HashMap<ScopeHash, u32>,
    /// Keys of each client, with those of this batch. If the batch fails, the writer counts them again.
    clients: &'a mut ClientCounts,
    touched: HashSet<RecordId>,
    bytes: usize,
    after: After,
}

/// A batch that was written, or was not.
pub(super) struct Written {
    pub(super) outcome: Result<Tally, StoreError>,
    pub(super) after: After,
}

impl<'a> Batch<'a> {
    #[expect(clippy::too_many_arguments, reason = "parts of the writer, each once")]
    pub(super) fn new(
        engine: &'a Engine,
        common: &'a Common,
        tally: Tally,
        room: Room,
        swept: Option<Due>,
        tokens: &'a mut u64,
        clients: &'a mut ClientCounts,
        admission: &'a mut Admission,
        owner: &'a Weak<Handle>,
    ) -> Self {
        Self {
            engine,
            common,
            owner,
            tokens,
            admission,
            room,
            swept,
            now: common.timeline.now(),
            changes: engine.changes(),
            durability: Durability::Engine,
            tally,
            scopes: HashMap::new(),
            clients,
            touched: HashSet::new(),
            bytes: 0,
            after: After::default(),
        }
    }

    /// Whether an operation must wait for this batch to be committed.
    pub(super) fn has_touched(&self, op: &Op) -> bool {
        match op {
            Op::Claim(Bid { id, .. }, _) | Op::Free(id, _) => self.touched.contains(id),
            Op::Complete(completion) => self.touched.contains(&completion.ticket.bid.id),
            Op::Release(ticket, ..) | Op::Lose(ticket, _) => self.touched.contains(&ticket.bid.id),
            Op::Sweep(_) => true,
        }
    }

    /// Bytes of answers in it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an operation to the batch. Returns it if it can succeed only after expired records are dropped.
    pub(super) fn take(&mut self, op: Op) -> Option<Op> {
        self.now = self.common.timeline.now();
        match op {
            // The caller no longer waits, so nothing is claimed.
            Op::Claim(_, ack) if ack.is_closed() => {}
            Op::Claim(bid, ack) => match self.claim(&bid) {
                Ok(Claim::ScopeFull { .. } | Claim::ClientFull { .. } | Claim::StoreFull)
                    if self.has_expired() =>
                {
                    return Some(Op::Claim(bid, ack));
                }
                Ok(Claim::Won(permit)) => self.after.won.push((ack, permit)),
                // The claim changes nothing, so its reply does not wait for the disk.
                other => drop(ack.send(other)),
            },
            Op::Complete(completion) => self.complete(completion),
            Op::Lose(ticket, ack) => {
                let ending = Ending::Unknown;
                self.end(&ticket, Outcome::Unknown, ending, ack);
                self.durability = self.durability.max(Durability::System);
            }
            Op::Release(ticket, answer, ack) => self.release(&ticket, answer, ack),
            Op::Free(id, ack) => match self.free(id) {
                Ok(true) => self.after.freed.push((id, ack)),
                other => drop(ack.send(other)),
            },
            Op::Sweep(_) => unreachable!("a sweep is never part of a batch"),
        }
        None
    }

    fn claim(&mut self, bid: &Bid) -> Result<Claim, StoreError> {
        if let Some(claim) = self.common.flights.meet(bid) {
            return Ok(claim);
        }
        let replaced = match self.engine.record(bid.id)? {
            None => None,
            Some((record, weight)) if record.expires <= self.now => Some((record, weight)),
            Some((record, weight)) => match record.outcome {
                _ if let Some(mismatch) = bid.fingerprint.differs_from(&record.fingerprint) => {
                    return Ok(Claim::Mismatch(mismatch));
                }
                Outcome::Completed(answer) => {
                    let recent = Recent {
                        fingerprint: record.fingerprint,
                        expires: record.expires,
                        answer: Arc::clone(&answer),
                    };
                    self.common.recent.insert(bid.id, recent);
                    return Ok(Claim::Replay(answer));
                }
                Outcome::Tombstone => return Ok(Claim::Tombstone),
                Outcome::Unknown if bid.terms.on_unknown == OnUnknown::Hold => {
                    return Ok(Claim::Unknown);
                }
                Outcome::Unknown => Some((record, weight)),
            },
        };
        let Some(owner) = self.owner.upgrade() else {
            return Err(StoreError::new("the store is being closed"));
        };
        if let Some((record, weight)) = replaced {
            self.admission.admit(Instant::now())?;
            self.remove(bid.id, record.expires, record.outcome.ended(), weight);
            self.clients.remove(record.client);
            self.clients.add(bid.client);
            return Ok(self.win(bid, owner));
        }
        let keys = self.keys_of(bid.id.scope)?;
        if keys >= bid.terms.max_keys_per_scope.get() {
            return Ok(Claim::ScopeFull {
                no_sooner: self.next_expiry()?,
            });
        }
        let share = Share::of(self.room.max_keys);
        if share.is_exceeded(self.tally.keys, self.clients.held(bid.client)) {
            return Ok(Claim::ClientFull {
                limit: share.limit,
                no_sooner: self.next_expiry()?,
            });
        }
        if self.tally.keys >= self.room.max_keys as u64 {
            return Ok(Claim::StoreFull);
        }
        self.admission.admit(Instant::now())?;
        self.scopes.insert(bid.id.scope, keys + 1);
        self.tally.keys += 1;
        self.clients.add(bid.client);
        Ok(self.win(bid, owner))
    }

    fn win(&mut self, bid: &Bid, owner: Arc<Handle>) -> Claim {
        *self.tokens += 1;
        let ticket = Ticket {
            bid: *bid,
            token: *self.tokens,
        };
        let claimed = Claimed {
            fingerprint: bid.fingerprint.to_bytes(),
            client: bid.client.0,
            since: self.now.0,
            ttl: millis(bid.terms.ttl),
        };
        self.changes.put_claim(bid.id, &claimed);
        self.touched.insert(bid.id);
        self.durability = Durability::Disk;
        let since = self.common.timeline.clock.now();
        self.common.flights.take_off(Flight::new(ticket, since));
        Claim::Won(Permit::new(ticket, owner))
    }

    /// Records the end of an execution. What is on disk decides how: the completion may have been part of a batch
    /// that failed and still reached the disk, or its claim may have been settled as unknown.
    fn complete(&mut self, completion: Completion) {
        let Completion { ticket, kept, ack } = completion;
        let id = ticket.bid.id;
        let replaced = match self.stored_end(&ticket) {
            Ok(replaced) => replaced,
            Err(reason) => {
                let now = self.common.timeline.clock.now();
                self.common.flights.lose(&ticket, now);
                drop(ack.send(Err(reason)));
                return;
            }
        };
        if let Some((record, weight)) = replaced {
            let ending = match record.outcome {
                Outcome::Completed(answer) => Some(Ending::Completed(answer)),
                Outcome::Tombstone => Some(Ending::Tombstone),
                Outcome::Unknown => None,
            };
            if let Some(ending) = ending {
                // The batch that failed has reached the disk. It was synced when the store was reopened.
                self.after.landings.push(Landing {
                    ticket,
                    ending,
                    ack: Some(ack),
                    expires: record.expires,
                });
                return;
            }
            self.tally.remove(Ended::Unknown, weight);
            self.clients.remove(record.client);
            self.clients.add(ticket.bid.client);
            // `end` overwrites the record, and the index entry if it has the same time.
            if record.expires != self.now.after(ticket.bid.terms.ttl) {
                let expires = record.expires;
                self.changes.remove_expiry(Due { expires, id });
            }
        }
        let (outcome, ending) = match kept {
            Kept::Answer(answer) => {
                self.bytes += answer.weight();
                let outcome = Outcome::Completed(Arc::clone(&answer));
                (outcome, Ending::Completed(answer))
            }
            Kept::Tombstone => (Outcome::Tombstone, Ending::Tombstone),
        };
        self.end(&ticket, outcome, ending, Some(ack));
        self.durability = Durability::Disk;
    }

    /// Returns the record and weight that are stored as the end of an execution, or `None` if its claim is
    /// stored. Fails if neither is.
    fn stored_end(&self, ticket: &Ticket) -> Result<Option<(Record, u64)>, StoreError> {
        let id = ticket.bid.id;
        if self.engine.is_claimed(id)? {
            return Ok(None);
        }
        match self.engine.record(id)? {
            Some(stored) if stored.0.fingerprint == ticket.bid.fingerprint => Ok(Some(stored)),
            _ => Err(StoreError::new("the claim of the execution is not stored")),
        }
    }

    /// Puts a record in the place of a claim.
    fn end(&mut self, ticket: &Ticket, outcome: Outcome, ending: Ending, ack: Option<Ack<()>>) {
        let id = ticket.bid.id;
        let record = Record {
            outcome,
            fingerprint: ticket.bid.fingerprint,
            client: ticket.bid.client,
            since: self.now,
            expires: self.now.after(ticket.bid.terms.ttl),
        };
        self.changes.remove_claim(id);
        let weight = self.changes.put_record(id, &record);
        self.tally.add(record.outcome.ended(), weight);
        self.touched.insert(id);
        self.after.landings.push(Landing {
            ticket: *ticket,
            ending,
            ack,
            expires: record.expires,
        });
    }

    fn release(&mut self, ticket: &Ticket, answer: Option<Arc<Answer>>, ack: Option<Ack<()>>) {
        let id = ticket.bid.id;
        self.changes.remove_claim(id);
        self.forget_key(id.scope, ticket.bid.client);
        self.touched.insert(id);
        self.durability = self.durability.max(Durability::System);
        self.after.landings.push(Landing {
            ticket: *ticket,
            ending: Ending::Released(answer),
            ack,
            expires: self.now,
        });
    }

    fn free(&mut self, id: RecordId) -> Result<bool, StoreError> {
        match self.engine.record(id)? {
            Some((record, weight))
                if record.outcome == Outcome::Unknown && record.expires > self.now =>
            {
                self.remove(id, record.expires, Ended::Unknown, weight);
                self.forget_key(id.scope, record.client);
                self.durability = Durability::Disk;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn remove(&mut self, id: RecordId, expires: Stamp, ended: Ended, weight: u64) {
        self.changes.remove_record(Due { expires, id });
        self.tally.remove(ended, weight);
        self.touched.insert(id);
        self.durability = self.durability.max(Durability::System);
    }

    /// Counts one key less, in total, in its scope and of its client.
    fn forget_key(&mut self, scope: ScopeHash, client: ClientHash) {
        self.tally.keys = self.tally.keys.saturating_sub(1);
        self.clients.remove(client);
        // A count that cannot be read stays as it is: the scope may use one key less.
        if let Ok(keys) = self.keys_of(scope) {
            self.scopes.insert(scope, keys.saturating_sub(1));
        }
    }

    fn keys_of(&self, scope: ScopeHash) -> Result<u32, StoreError> {
        match self.scopes.get(&scope) {
            Some(&keys) => Ok(keys),
            None => self.engine.keys_of(scope),
        }
    }

    fn next_expiry(&self) -> Result<Duration, StoreError> {
        match self.engine.expiries(self.swept).next() {
            None => Ok(Duration::ZERO),
            Some(next) => Ok(next?.0.expires.since(self.now)),
        }
    }

    /// Whether there is a record that could be dropped.
    fn has_expired(&self) -> bool {
        let next = self.engine.expiries(self.swept).next();
        matches!(next, Some(Ok((due, _))) if due.expires <= self.now)
    }

    /// Makes all changes, as durably as the most demanding of them asks for.
    pub(super) fn commit(mut self) -> Written {
        if self.touched.is_empty() {
            let (outcome, after) = (Ok(self.tally), self.after);
            return Written { outcome, after };
        }
        for (&scope, &keys) in &self.scopes {
            self.changes.put_scope(scope, keys);
        }
        if !self.admission.is_unlimited() {
            // The end of the first execution after a failure counts only when it is on disk.
            self.durability = Durability::Disk;
        }
        if self.durability == Durability::Disk {
            self.tally.batches += 1;
        }
        let timeline = &self.common.timeline;
        Written {
            outcome: self.changes.commit(self.tally, timeline, self.durability),
            after: self.after,
        }
    }
}
