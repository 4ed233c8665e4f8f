//! Function of an embedding application that names the caller of a request.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;

/// Function that returns the name of the caller of a request, for example of the user that an authentication layer has
/// stored in the request extensions.
///
/// Clones are equal. Two functions that were created separately are never equal, because their code cannot be compared.
#[derive(Clone)]
pub struct KeyFunction(Arc<NameCaller>);

type NameCaller = dyn Fn(&Parts) -> Option<String> + Send + Sync;

impl KeyFunction {
    /// Wraps a function that returns the name of the caller, or `None` if the caller is unknown.
    pub fn new(function: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(function))
    }

    /// Returns `None` also if the name is empty.
    pub(crate) fn name_caller(&self, request: &Parts) -> Option<String> {
        self.0(request).filter(|name| !name.is_empty())
    }
}

impl PartialEq for KeyFunction {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for KeyFunction {}

impl fmt::Debug for KeyFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFunction(..)")
    }
}
