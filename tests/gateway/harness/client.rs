//! HTTP client of the tests.

use std::net::{IpAddr, SocketAddr};

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

/// Request that is not sent yet.
#[must_use]
pub(crate) struct ClientRequest {
    client: Client,
    method: Method,
    target: String,
    headers: HeaderMap,
    body: Bytes,
}

/// Connection for several requests. It closes when it is dropped.
pub(crate) struct PersistentConnection {
    sender: Sender,
    /// Task that drives the connection. It ends when the connection is dropped.
    _driver: AbortOnDropHandle<hyper::Result<()>>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Handle to send one more stream on an HTTP/2 connection.
pub(crate) struct Stream(http2::SendRequest<Full<Bytes>>);

/// Reason why a request got no complete response.
pub(crate) type SendError = Box<dyn std::error::Error + Send + Sync>;

/// Complete response.
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

    /// Connects from another source address, such as 127.0.0.9.
    pub(crate) fn from(mut self, source: &str) -> Self {
        self.source = Some(source.parse().expect("an address"));
        self
    }

    /// Uses HTTP/2: with prior knowledge, or as negotiated by TLS.
    pub(crate) fn h2(mut self) -> Self {
        self.h2 = true;
        self
    }

    pub(super) fn tls(mut self, connector: TlsConnector) -> Self {
        self.tls = Some(connector);
        self
    }

    pub(crate) fn get(&self, target: &str) -> ClientRequest {
        self.request("GET", target)
    }

    pub(crate) fn post(&self, target: &str) -> ClientRequest {
        self.request("POST", target)
    }

    /// Builds a request with `method` exactly as written.
    pub(crate) fn request(&self, method: &str, target: &str) -> ClientRequest {
        ClientRequest {
            client: self.clone(),
            method: method.parse().expect("a method"),
            target: target.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Sends `bytes` unchanged and returns everything that is received until the gateway closes.
    pub(crate) async fn send_raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await.expect("a connection");
        stream.write_all(bytes.as_ref()).await.expect("sent");
        let mut response = Vec::new();
        let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await;
        // A gateway that closes with unread bytes resets the connection. The bytes received before that count.
        drop(read.expect("the gateway closes"));
        String::from_utf8_lossy(&response).into_owned()
    }

    /// Opens a cleartext connection for several requests.
    pub(crate) async fn keep_alive(&self) -> PersistentConnection {
        self.try_keep_alive().await.expect("a connection")
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
    /// Adds a header line.
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    /// Adds a header line whose value may be any bytes that HTTP allows.
    pub(crate) fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
        let value = HeaderValue::from_bytes(value).expect("a header's value");
        self.headers.append(name, value);
        self
    }

    /// Adds an `Idempotency-Key` header.
    pub(crate) fn key(self, key: &str) -> Self {
        self.header("Idempotency-Key", key)
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Returns the response, or panics after [`TEST_TIMEOUT`]. Dropping the future closes the connection.
    pub(crate) async fn send(self) -> ClientResponse {
        let what = format!("{} {}", self.method, self.target);
        match tokio::time::timeout(TEST_TIMEOUT, self.try_send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => panic!("{what}: {error:?}"),
            Err(elapsed) => panic!("{what}: no response, {elapsed}"),
        }
    }

    /// Returns the response or the error.
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
            // HTTP/2 carries the host in `:authority` only.
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
    /// Opens another stream on this connection, which must be HTTP/2 and must outlive the stream.
    pub(crate) fn open_stream(&self) -> Stream {
        match &self.sender {
            Sender::Http1(_) => panic!("HTTP/1.1 has no streams"),
            Sender::Http2(sender) => Stream(sender.clone()),
        }
    }

    /// Sends one more request on this connection and returns the response.
    pub(crate) async fn send(&mut self, request: ClientRequest) -> ClientResponse {
        let what = format!("{} {}", request.method, request.target);
        match tokio::time::timeout(TEST_TIMEOUT, self.try_send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => panic!("{what}: {error:?}"),
            Err(elapsed) => panic!("{what}: no response, {elapsed}"),
        }
    }

    /// Sends one more request on this connection and returns the response or the error.
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

    /// Returns the body of the response as a stream, which can be read while upstream still sends.
    pub(crate) async fn response_body(&mut self, request: ClientRequest) -> Incoming {
        let response = self.begin(request, "http").await.expect("a response");
        response.into_body()
    }
}

impl Stream {
    pub(crate) async fn send(&mut self, request: ClientRequest) -> ClientResponse {
        self.try_send(request).await.expect("a complete response")
    }

    /// Returns the response, or the error that ended the stream.
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

    /// Returns the lines of a header, joined with `, `, or an empty string if there are none.
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
            other => panic!("Idempotent-Replayed: {other}"),
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// Returns the last part of the problem type, such as `rate-limited`, and checks the members of the document.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json");
        let document = self.json();
        let text = |path: &str| document.pointer(path).and_then(|value| value.as_str());
        let kind = text("/type").expect("a type");
        let code = kind.strip_prefix("urn:tidegate:problem:");
        let category = match self.status {
            429 => "rate_limit_error",
            409 | 422 => "idempotency_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        };
        let [title, detail] = ["/title", "/detail"].map(|path| text(path).expect("a text"));
        assert_eq!(text("/error/type"), Some(category), "{document}");
        assert_eq!(text("/error/code"), code, "{document}");
        assert_eq!(text("/error/message"), Some(&*format!("{title}: {detail}")));
        code.unwrap_or(kind).to_owned()
    }

    /// Returns `Retry-After` in seconds.
    pub(crate) fn retry_after(&self) -> u64 {
        self.header("retry-after").parse().expect("whole seconds")
    }
}
