//! HTTP client with which the tests send requests to the gateway.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::TEST_TIMEOUT;
use super::upstream::joined_lines;

/// Client that sends every request on a new connection.
#[derive(Clone)]
pub(crate) struct Client {
    server: SocketAddr,
    source: Option<IpAddr>,
    tls: Option<TlsConnector>,
    h2: bool,
}

/// Request that a [`Client`] can send.
#[must_use]
pub(crate) struct ClientRequest {
    client: Client,
    method: Method,
    target: String,
    headers: HeaderMap,
    body: Bytes,
}

/// Connection to the gateway that carries several requests. It closes when it is dropped.
pub(crate) struct PersistentConnection {
    sender: Sender,
    /// Task that reads from and writes to the socket. It is aborted when this connection is dropped.
    _driver: AbortOnDropHandle<hyper::Result<()>>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Handle that sends requests as new streams of an HTTP/2 connection.
pub(crate) struct Stream(http2::SendRequest<Full<Bytes>>);

/// Reason why a request got no complete response.
pub(crate) type SendError = Box<dyn std::error::Error + Send + Sync>;

/// Response that the client has received completely.
#[derive(Clone, Debug)]
pub(crate) struct ClientResponse {
    pub(crate) status: u16,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Client {
    pub(crate) fn of(server: SocketAddr) -> Self {
        Self {
            server,
            source: None,
            tls: None,
            h2: false,
        }
    }

    /// Returns the address that the client connects to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server
    }

    /// Sets the source address of all connections, for example 127.0.0.9.
    pub(crate) fn from(mut self, source: &str) -> Self {
        self.source = Some(source.parse().expect("the address is valid"));
        self
    }

    /// Switches the client to HTTP/2. Cleartext connections use HTTP/2 with prior knowledge.
    pub(crate) fn h2(mut self) -> Self {
        self.h2 = true;
        self
    }

    pub(crate) fn tls(mut self, connector: TlsConnector) -> Self {
        self.tls = Some(connector);
        self
    }

    pub(crate) fn get(&self, target: &str) -> ClientRequest {
        self.request("GET", target)
    }

    pub(crate) fn post(&self, target: &str) -> ClientRequest {
        self.request("POST", target)
    }

    /// Creates a request. The case of `method` is not changed.
    pub(crate) fn request(&self, method: &str, target: &str) -> ClientRequest {
        ClientRequest {
            client: self.clone(),
            method: method.parse().expect("the method is valid"),
            target: target.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Sends `bytes` unchanged on a new connection. Returns all bytes received until the gateway closes the connection.
    pub(crate) async fn send_raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await.expect("the connection is open");
        stream
            .write_all(bytes.as_ref())
            .await
            .expect("the bytes are sent");
        let mut response = Vec::new();
        let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await;
        // A read error is ignored: a gateway that closes with unread bytes resets the connection. The bytes received
        // before the reset are in `response`.
        drop(read.expect("the gateway closes the connection"));
        String::from_utf8_lossy(&response).into_owned()
    }

    /// Opens a cleartext connection for several requests. Panics if this fails.
    pub(crate) async fn keep_alive(&self) -> PersistentConnection {
        self.try_keep_alive().await.expect("the connection is open")
    }

    /// Opens a cleartext connection for several requests, or returns the error.
    pub(crate) async fn try_keep_alive(&self) -> Result<PersistentConnection, SendError> {
        let stream = self.connect().await?;
        self.handshake(stream).await
    }

    async fn handshake<IO>(&self, stream: IO) -> Result<PersistentConnection, SendError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        if self.h2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            Ok(PersistentConnection {
                sender: Sender::Http2(sender),
                _driver: AbortOnDropHandle::new(tokio::spawn(connection)),
            })
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            Ok(PersistentConnection {
                sender: Sender::Http1(sender),
                _driver: AbortOnDropHandle::new(tokio::spawn(connection)),
            })
        }
    }

    /// Returns the value of one series of `/metrics` of an admin listener. `series` is its name without `tidegate_`, for
    /// example `rejected_total{limit="device"}`. Panics if the series is missing.
    pub(crate) async fn metric<N: FromStr<Err: Debug>>(&self, series: &str) -> N {
        let text = self.get("/metrics").send().await.text();
        let prefix = format!("tidegate_{series} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&prefix));
        value
            .unwrap_or_else(|| panic!("/metrics has no series tidegate_{series}:\n{text}"))
            .parse()
            .expect("the value is a number")
    }

    /// Opens a TCP connection to the gateway without sending anything.
    pub(crate) async fn connect(&self) -> std::io::Result<TcpStream> {
        let socket = match self.server {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if let Some(source) = self.source {
            socket.bind((source, 0).into())?;
        }
        let stream = socket.connect(self.server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl ClientRequest {
    /// Adds a header field line. Lines that already exist remain, so a field can be sent several times.
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    /// Adds a header field line whose value can contain all bytes that HTTP allows, also non-ASCII ones.
    pub(crate) fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("the header name is valid");
        let value = HeaderValue::from_bytes(value).expect("the header value is valid");
        self.headers.append(name, value);
        self
    }

    /// Adds an `Idempotency-Key` header field.
    pub(crate) fn key(self, key: &str) -> Self {
        self.header("Idempotency-Key", key)
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the request on a new connection and returns the response. Panics on an error and after [`TEST_TIMEOUT`].
    /// Dropping the future closes the connection.
    pub(crate) async fn send(self) -> ClientResponse {
        let what = format!("{} {}", self.method, self.target);
        match tokio::time::timeout(TEST_TIMEOUT, self.try_send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => panic!("{what} failed: {error:?}"),
            Err(elapsed) => panic!("{what} got no response within {TEST_TIMEOUT:?}: {elapsed}"),
        }
    }

    /// Sends the request on a new connection. Returns an error if no complete response arrives. There is no timeout.
    pub(crate) async fn try_send(self) -> Result<ClientResponse, SendError> {
        let stream = self.client.connect().await?;
        match self.client.tls.clone() {
            None => self.exchange(stream, "http").await,
            Some(tls) => {
                let name = ServerName::try_from("localhost")?;
                let stream = tls.connect(name, stream).await?;
                self.exchange(stream, "https").await
            }
        }
    }

    async fn exchange<IO>(self, stream: IO, scheme: &str) -> Result<ClientResponse, SendError>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut connection = self.client.handshake(stream).await?;
        connection.exchange(self, scheme).await
    }

    fn into_request(self, scheme: &str) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut authority = self.client.server.to_string();
        let mut request = Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.headers_mut() = self.headers;
        if self.client.h2 {
            // Over HTTP/2, this client sends the host in `:authority` and not in `Host`.
            if let Some(host) = request.headers_mut().remove(HOST) {
                authority = String::from_utf8_lossy(host.as_bytes()).into_owned();
            }
            *request.uri_mut() = Uri::builder()
                .scheme(scheme)
                .authority(authority)
                .path_and_query(self.target)
                .build()?;
            *request.version_mut() = Version::HTTP_2;
        } else {
            *request.uri_mut() = self.target.parse()?;
            request
                .headers_mut()
                .entry(HOST)
                .or_insert(authority.parse()?);
        }
        Ok(request)
    }
}

impl PersistentConnection {
    /// Returns a handle for further streams of this connection. Panics if the connection is not HTTP/2. The connection
    /// must outlive the handle.
    pub(crate) fn open_stream(&self) -> Stream {
        match &self.sender {
            Sender::Http1(_) => panic!("HTTP/1.1 has no streams"),
            Sender::Http2(sender) => Stream(sender.clone()),
        }
    }

    /// Sends a request on this connection and returns the response. Panics on an error and after [`TEST_TIMEOUT`].
    pub(crate) async fn send(&mut self, request: ClientRequest) -> ClientResponse {
        let what = format!("{} {}", request.method, request.target);
        match tokio::time::timeout(TEST_TIMEOUT, self.try_send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => panic!("{what} failed: {error:?}"),
            Err(elapsed) => panic!("{what} got no response within {TEST_TIMEOUT:?}: {elapsed}"),
        }
    }

    /// Sends a request on this connection. Returns an error if no complete response arrives. There is no timeout.
    pub(crate) async fn try_send(
        &mut self,
        request: ClientRequest,
    ) -> Result<ClientResponse, SendError> {
        self.exchange(request, "http").await
    }

    async fn exchange(
        &mut self,
        request: ClientRequest,
        scheme: &str,
    ) -> Result<ClientResponse, SendError> {
        ClientResponse::read(self.begin(request, scheme).await?).await
    }

    async fn begin(
        &mut self,
        request: ClientRequest,
        scheme: &str,
    ) -> Result<Response<Incoming>, SendError> {
        let request = request.into_request(scheme)?;
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => sender.send_request(request).await?,
        };
        Ok(response)
    }

    /// Sends a request and returns the body of the response as a stream. The body can be read while the upstream still
    /// sends it.
    pub(crate) async fn response_body(&mut self, request: ClientRequest) -> Incoming {
        let response = self
            .begin(request, "http")
            .await
            .expect("a response arrives");
        response.into_body()
    }
}

impl Stream {
    pub(crate) async fn send(&mut self, request: ClientRequest) -> ClientResponse {
        self.try_send(request)
            .await
            .expect("the response is complete")
    }

    /// Sends a request as a new stream. Returns an error if the stream ends without a complete response.
    pub(crate) async fn try_send(
        &mut self,
        request: ClientRequest,
    ) -> Result<ClientResponse, SendError> {
        let request = request.into_request("http")?;
        ClientResponse::read(self.0.send_request(request).await?).await
    }
}

impl ClientResponse {
    async fn read(response: Response<Incoming>) -> Result<Self, SendError> {
        let (parts, body) = response.into_parts();
        let collected = body.collect().await?;
        Ok(Self {
            status: parts.status.as_u16(),
            version: parts.version,
            headers: parts.headers,
            trailers: collected.trailers().cloned().unwrap_or_default(),
            body: collected.to_bytes(),
        })
    }

    /// Returns the values of all lines of a header field, joined with `, `. Returns an empty string if there are none.
    pub(crate) fn header(&self, name: &str) -> String {
        joined_lines(&self.headers, name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Whether `Idempotent-Replayed: true` marks the response as a replay.
    pub(crate) fn is_replay(&self) -> bool {
        match &*self.header("idempotent-replayed") {
            "" => false,
            "true" => true,
            other => panic!("Idempotent-Replayed has the invalid value {other:?}"),
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("the response body is not JSON ({error}): {}", self.text())
        })
    }

    /// Returns the last part of the problem type, for example `rate-limited`. Panics unless the other members of the
    /// problem document match this type and the status.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json");
        let document = self.json();
        let text = |path: &str| document.pointer(path).and_then(|value| value.as_str());
        let kind = text("/type").expect("the problem document has a type");
        let code = kind.strip_prefix("urn:tidegate:problem:");
        let category = match self.status {
            429 => "rate_limit_error",
            409 | 422 => "idempotency_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        };
        let [title, detail] =
            ["/title", "/detail"].map(|path| text(path).expect("the value is text"));
        assert_eq!(text("/error/type"), Some(category), "{document}");
        assert_eq!(text("/error/code"), code, "{document}");
        assert_eq!(text("/error/message"), Some(&*format!("{title}: {detail}")));
        code.unwrap_or(kind).to_owned()
    }

    /// Returns the value of `Retry-After` in seconds. Panics if the header field is missing.
    pub(crate) fn retry_after(&self) -> u64 {
        self.header("retry-after")
            .parse()
            .expect("Retry-After is a number of seconds")
    }
}

/// Returns whether the response is a problem document (RFC 9457) of the type `kind`.
pub(crate) fn is_problem(response: &ClientResponse, kind: &str) -> bool {
    response.header("content-type") == "application/problem+json" && response.problem() == kind
}

/// Returns whether a request was rejected because the outcome of its idempotency key is unknown.
pub(crate) fn is_unknown(response: &ClientResponse) -> bool {
    response.status == 409 && is_problem(response, "idempotency-outcome-unknown")
}
