//! What the clients know of every key they ever used, and what they may be told next.

use std::collections::HashMap;

use crate::harness::Answer;
use crate::ledger::{Ledger, Print};
use crate::scene::is_unknown;

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was sent, and no answer came, yet or ever.
    Sent,
    /// This is its answer.
    Answered(Print),
    /// Nobody will ever know.
    Unknown,
}

/// Every key, and what happened to all that was asked.
#[derive(Default)]
pub(crate) struct Book {
    known: HashMap<String, Known>,
    keys: Vec<String>,
    /// Promises that were broken.
    pub(crate) violations: Vec<String>,
    pub(crate) requests: u64,
    pub(crate) replays: u64,
    pub(crate) unknowns: u64,
}

/// What was known of a key when it was sent.
pub(crate) struct Before {
    known: Known,
    executed: bool,
}

/// When a key is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// While the gateway has not been killed since all keys were last looked at.
    Load,
    /// After it was.
    Review,
}

impl Book {
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    pub(crate) fn known(&self, key: &str) -> Option<&Known> {
        self.known.get(key)
    }

    /// A key is about to be sent.
    pub(crate) fn send(&mut self, key: &str, ledger: &Ledger) -> Before {
        self.requests += 1;
        if !self.known.contains_key(key) {
            self.keys.push(key.to_owned());
        }
        let known = self.known.entry(key.to_owned()).or_insert(Known::Sent);
        Before {
            known: known.clone(),
            executed: ledger.times(key) > 0,
        }
    }

    /// A whole answer came.
    pub(crate) fn receive(
        &mut self,
        key: &str,
        before: &Before,
        answer: &Answer,
        phase: Phase,
        ledger: &Ledger,
    ) {
        let replayed = answer.header("idempotent-replayed") == "true";
        self.replays += u64::from(replayed);
        if let Some(print) = Print::of(answer) {
            self.check_answer(key, before, &print, replayed, phase, ledger);
            self.known.insert(key.to_owned(), Known::Answered(print));
        } else if is_unknown(answer) {
            self.unknowns += 1;
            let may_be = match before.known {
                Known::Sent => phase == Phase::Review,
                Known::Answered(_) => false,
                Known::Unknown => true,
            };
            if !may_be {
                let known = &before.known;
                self.violate(key, phase, &format!("unknown, though {known:?}"));
            }
            self.known.insert(key.to_owned(), Known::Unknown);
        } else {
            let (status, text) = (answer.status, answer.text());
            self.violate(key, phase, &format!("refused with {status}: {text}"));
        }
        let times = ledger.times(key);
        if times > 1 {
            self.violate(key, phase, &format!("carried out {times} times"));
        }
    }

    fn check_answer(
        &mut self,
        key: &str,
        before: &Before,
        print: &Print,
        replayed: bool,
        phase: Phase,
        ledger: &Ledger,
    ) {
        match &before.known {
            Known::Answered(first) if first != print => {
                self.violate(key, phase, &format!("{print:?} after {first:?}"));
            }
            Known::Unknown => self.violate(key, phase, "an answer to an unknown key"),
            Known::Answered(_) | Known::Sent => {}
        }
        if ledger.print(key).as_ref() != Some(print) {
            self.violate(key, phase, "an answer that is not that of its execution");
        }
        let was_done = matches!(before.known, Known::Answered(_))
            || (phase == Phase::Review && before.executed);
        if was_done && !replayed {
            self.violate(key, phase, "an answer of old that is not marked as one");
        }
    }

    pub(crate) fn violate(&mut self, key: &str, phase: Phase, what: &str) {
        self.violations.push(format!("{phase:?}: {key}: {what}"));
    }
}
