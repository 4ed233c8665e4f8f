//! State of every idempotency key as the clients see it, and checks of the responses that the clients receive.

use std::collections::HashMap;

use crate::crash::execution_log::{ExecutionLog, ResponseDigest};
use crate::support::{ClientResponse, is_unknown};

/// State of an idempotency key, as the clients know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// A request with the idempotency key was sent, but no response was received.
    Sent,
    /// A response of the upstream with this digest was received.
    Completed(ResponseDigest),
    /// The gateway responded that the outcome of the request is unknown.
    Unknown,
}

/// The states of all idempotency keys, with counts of requests and the violations that were found.
#[derive(Default)]
pub(crate) struct KeyTracker {
    states: HashMap<String, KeyState>,
    /// All idempotency keys, in the order in which they were first sent.
    keys: Vec<String>,
    /// Descriptions of responses that violate a guarantee of the gateway.
    pub(crate) violations: Vec<String>,
    pub(crate) requests: u64,
    pub(crate) replays: u64,
    pub(crate) unknowns: u64,
}

/// State of an idempotency key immediately before a request with this key is sent.
pub(crate) struct StateBeforeSend {
    state: KeyState,
    /// Whether the upstream has already executed a request with the idempotency key.
    executed: bool,
}

/// Phase of a test round in which a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The gateway is under load until it is killed.
    Load,
    /// The gateway was restarted, and the idempotency keys are checked.
    Review,
}

impl KeyTracker {
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    pub(crate) fn state(&self, key: &str) -> Option<&KeyState> {
        self.states.get(key)
    }

    /// Records that a request with the idempotency key `key` is about to be sent. Returns the state of the key before
    /// this request.
    pub(crate) fn send(&mut self, key: &str, executions: &ExecutionLog) -> StateBeforeSend {
        self.requests += 1;
        if !self.states.contains_key(key) {
            self.keys.push(key.to_owned());
        }
        let state = self.states.entry(key.to_owned()).or_insert(KeyState::Sent);
        StateBeforeSend {
            state: state.clone(),
            executed: executions.count_of(key) > 0,
        }
    }

    /// Records a complete response to a request with the idempotency key `key`, and checks it against `before`,
    /// the state of the key before the request.
    pub(crate) fn receive(
        &mut self,
        key: &str,
        before: &StateBeforeSend,
        response: &ClientResponse,
        phase: Phase,
        executions: &ExecutionLog,
    ) {
        let replayed = response.header("idempotent-replayed") == "true";
        self.replays += u64::from(replayed);
        if let Some(digest) = ResponseDigest::of(response) {
            self.check_response(key, before, &digest, replayed, phase, executions);
            self.states
                .insert(key.to_owned(), KeyState::Completed(digest));
        } else if is_unknown(response) {
            self.unknowns += 1;
            let is_expected = match before.state {
                KeyState::Sent => phase == Phase::Review,
                KeyState::Completed(_) => false,
                KeyState::Unknown => true,
            };
            if !is_expected {
                let state = &before.state;
                self.violate(
                    key,
                    phase,
                    &format!("unknown outcome after state {state:?}"),
                );
            }
            self.states.insert(key.to_owned(), KeyState::Unknown);
        } else {
            let (status, text) = (response.status, response.text());
            self.violate(key, phase, &format!("rejected with {status}: {text}"));
        }
        let times = executions.count_of(key);
        if times > 1 {
            self.violate(key, phase, &format!("executed {times} times"));
        }
    }

    fn check_response(
        &mut self,
        key: &str,
        before: &StateBeforeSend,
        digest: &ResponseDigest,
        replayed: bool,
        phase: Phase,
        executions: &ExecutionLog,
    ) {
        match &before.state {
            KeyState::Completed(first) if first != digest => {
                self.violate(
                    key,
                    phase,
                    &format!("response {digest:?} differs from the first, {first:?}"),
                );
            }
            KeyState::Unknown => {
                self.violate(key, phase, "response although the outcome was unknown");
            }
            KeyState::Completed(_) | KeyState::Sent => {}
        }
        if executions.digest(key).as_ref() != Some(digest) {
            self.violate(key, phase, "response differs from that of the execution");
        }
        let is_replay = matches!(before.state, KeyState::Completed(_))
            || (phase == Phase::Review && before.executed);
        if is_replay && !replayed {
            self.violate(key, phase, "replay without the header Idempotent-Replayed");
        }
    }

    pub(crate) fn violate(&mut self, key: &str, phase: Phase, what: &str) {
        self.violations.push(format!("{phase:?}: {key}: {what}"));
    }
}
