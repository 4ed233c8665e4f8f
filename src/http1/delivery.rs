//! Whether a response reached the client's socket.

use std::pin::Pin;

use bytes::Bytes;

/// The body of a response that learns whether the response was sent.
pub trait ResponseBody: http_body::Body<Data = Bytes> {
    /// Called once, when the last byte of the response was written to the socket. A body that is dropped without
    /// this call belongs to a truncated response.
    fn delivered(self: Pin<&mut Self>);
}

#[cfg(test)]
mod tests {
    use http_body_util::combinators::BoxBody;
    use http_body_util::{Full, StreamBody};

    use super::*;

    impl ResponseBody for crate::http1::Body {
        fn delivered(self: Pin<&mut Self>) {}
    }

    impl ResponseBody for Full<Bytes> {
        fn delivered(self: Pin<&mut Self>) {}
    }

    impl<E> ResponseBody for BoxBody<Bytes, E> {
        fn delivered(self: Pin<&mut Self>) {}
    }

    impl<S> ResponseBody for StreamBody<S>
    where
        StreamBody<S>: http_body::Body<Data = Bytes>,
    {
        fn delivered(self: Pin<&mut Self>) {}
    }
}
