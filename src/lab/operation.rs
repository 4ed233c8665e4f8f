//! Groups the requests of a record into operations.

use crate::client::ClientId;

/// A first request and its retries.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// Client that sent all requests of the operation.
    pub(crate) client: ClientId,
    /// Indices of the attempts in the record, in the order of their arrival.
    pub(crate) attempts: Vec<usize>,
}
