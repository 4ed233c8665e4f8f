//! The handle of the writer thread, which sends it operations.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::health_tracker::FailureChange;
use super::writer::{ClaimEnd, Op};
use super::{DiskStoreState, OPERATION_TIMEOUT};
use crate::idempotency::{ClaimToken, ExecutionOutcome, OnAbandon, Secret, StoreError};

pub(super) struct WriterHandle {
    /// `None` after the store was closed.
    pub(super) ops: RwLock<Option<mpsc::Sender<Op>>>,
    pub(super) shared: Arc<DiskStoreState>,
    pub(super) secret: Secret,
    pub(super) path: PathBuf,
    pub(super) writer: Mutex<Option<JoinHandle<()>>>,
}

impl WriterHandle {
    pub(super) fn send(&self, op: Op) {
        if let Some(ops) = &*self.ops.read() {
            // A send error means that the writer thread has stopped. The operation is dropped with its reply channel,
            // so its caller receives an error.
            drop(ops.send(op));
        }
    }

    /// Waits up to [`OPERATION_TIMEOUT`]. After a timeout, the writer thread still executes the operation, except for a
    /// claim.
    pub(super) async fn submit<T>(
        &self,
        op: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Op,
    ) -> Result<T, StoreError> {
        let (ack, reply) = oneshot::channel();
        self.send(op(ack));
        let Ok(reply) = timeout(OPERATION_TIMEOUT, reply).await else {
            return Err(self.shared.health.writer_stalled());
        };
        reply.unwrap_or_else(|_| Err(self.writer_ended()))
    }

    /// If the store was not closed, the writer thread has panicked.
    fn writer_ended(&self) -> StoreError {
        if self.ops.read().is_none() {
            return StoreError::known("the disk store is closed");
        }
        let reason = StoreError::known("the writer thread of the disk store has panicked");
        if self.shared.health.operation_failed(&reason) == FailureChange::Started {
            tracing::error!(
                %reason,
                path = %self.path.display(),
                "idempotency store failed, rejecting requests whose idempotency key is not in memory, restart the \
                 gateway"
            );
        }
        reason
    }

    pub(super) async fn read_blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&DiskStoreState) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let reading = tokio::task::spawn_blocking(move || read(&shared));
        reading.await.map_err(StoreError::new)?
    }
    /// Waits until the writer thread has closed the engine.
    pub(super) fn close(&self) {
        drop(self.ops.write().take());
        let writer = self.writer.lock().take();
        // The writer thread itself can drop the last handle, because it upgrades a weak one, and cannot join itself.
        if let Some(writer) = writer
            && writer.thread().id() != thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!(
                path = %self.path.display(),
                "writer thread of the idempotency store panicked, restart the gateway"
            );
        }
    }
}

impl OnAbandon for WriterHandle {
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome) {
        self.send(Op::End(ClaimEnd {
            token,
            outcome,
            ack: None,
        }));
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.close();
    }
}
