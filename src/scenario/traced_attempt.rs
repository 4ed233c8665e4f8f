//! Guard of an attempt in flight, which completes the attempt in its trace.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::runs::AttemptId;
use super::state::ScenarioState;
use super::step::Step;
use super::trace::{Attempt, ObservedResponse, ResponseEnd};

/// If it is dropped before the response is complete, the client has closed the connection.
#[derive(Debug)]
pub(crate) struct TracedAttempt {
    state: Arc<ScenarioState>,
    /// `None` if the trace was full.
    id: Option<AttemptId>,
    has_ended: bool,
}

impl TracedAttempt {
    pub(super) fn new(state: Arc<ScenarioState>, id: Option<AttemptId>) -> Self {
        Self {
            state,
            id,
            has_ended: false,
        }
    }

    pub(crate) fn set_step(&self, step: &Arc<Step>) {
        self.update(|attempt| attempt.step = Some(Arc::clone(step)));
    }

    /// `status` is `None` if the gateway closes the connection instead.
    pub(crate) fn started(&self, status: Option<StatusCode>, headers: &HeaderMap) {
        let now = self.state.elapsed();
        self.update(|attempt| {
            attempt.response = Some(ObservedResponse {
                status,
                headers: headers.clone(),
                started: now,
                ended: now,
                end: ResponseEnd::ClientClosed,
            });
        });
    }

    pub(crate) fn ended(&mut self, end: ResponseEnd) {
        self.has_ended = true;
        let now = self.state.elapsed();
        self.update(|attempt| {
            if let Some(response) = &mut attempt.response {
                response.ended = now;
                response.end = end;
            }
        });
    }

    fn update(&self, change: impl FnOnce(&mut Attempt)) {
        if let Some(id) = &self.id {
            self.state.update(id, change);
        }
    }
}

impl Drop for TracedAttempt {
    fn drop(&mut self) {
        if !self.has_ended {
            self.ended(ResponseEnd::ClientClosed);
        }
        self.state.leave(self.id.as_ref());
    }
}
