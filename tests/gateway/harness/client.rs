//! Somebody who asks the gateway.

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

use super::PATIENCE;
use super::upstream::joined;

/// A client; every request is made on a new connection.
#[derive(Clone)]
pub(crate) struct Client {
    server: SocketAddr,
    source: Option<IpAddr>,
    tls: Option<TlsConnector>,
    h2: bool,
}

/// A request that is still to be sent.
#[must_use]
pub(crate) struct Asking {
    client: Client,
    method: Method,
    target: String,
    headers: HeaderMap,
    body: Bytes,
}

/// One connection; dropped, it hangs up.
pub(crate) struct KeptAlive {
    sender: Sender,
    /// The connection is driven beside its requests and falls with them.
    _driver: AbortOnDropHandle<hyper::Result<()>>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One stream beside others of an HTTP/2 connection.
pub(crate) struct Stream(http2::SendRequest<Full<Bytes>>);

/// Why there is no answer.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
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

    /// The same client calling from another address, such as 127.0.0.9.
    pub(crate) fn from(mut self, source: &str) -> Self {
        self.source = Some(source.parse().expect("an address"));
        self
    }

    /// The same client speaking HTTP/2, with prior knowledge or by what its TLS agrees on.
    pub(crate) fn h2(mut self) -> Self {
        self.h2 = true;
        self
    }

    pub(super) fn tls(mut self, connector: TlsConnector) -> Self {
        self.tls = Some(connector);
        self
    }

    pub(crate) fn get(&self, target: &str) -> Asking {
        self.request("GET", target)
    }

    pub(crate) fn post(&self, target: &str) -> Asking {
        self.request("POST", target)
    }

    /// A request whose method is taken as it is written.
    pub(crate) fn request(&self, method: &str, target: &str) -> Asking {
        Asking {
            client: self.clone(),
            method: method.parse().expect("a method"),
            target: target.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Sends these bytes as they are and reads until the gateway closes.
    pub(crate) async fn raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await.expect("a connection");
        stream.write_all(bytes.as_ref()).await.expect("sent");
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        // A gateway that closes on unread bytes resets the connection: what came before counts.
        drop(read.expect("the gateway closes"));
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A connection that takes several requests, in cleartext.
    pub(crate) async fn keep_alive(&self) -> KeptAlive {
        self.try_keep_alive().await.expect("a connection")
    }

    /// Such a connection, or why there is none.
    pub(crate) async fn try_keep_alive(&self) -> Result<KeptAlive, Failure> {
        let stream = self.connect().await?;
        self.speak(stream).await
    }

    async fn speak<IO>(&self, stream: IO) -> Result<KeptAlive, Failure>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(stream);
        if self.h2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            Ok(KeptAlive {
                sender: Sender::Http2(sender),
                _driver: AbortOnDropHandle::new(tokio::spawn(connection)),
            })
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            Ok(KeptAlive {
                sender: Sender::Http1(sender),
                _driver: AbortOnDropHandle::new(tokio::spawn(connection)),
            })
        }
    }

    /// A connection to the gateway and nothing more.
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

impl Asking {
    /// Adds a header line.
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    /// Adds a header line whose value need not be text.
    pub(crate) fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
        let value = HeaderValue::from_bytes(value).expect("a header's value");
        self.headers.append(name, value);
        self
    }

    /// Gives it this idempotency key.
    pub(crate) fn key(self, key: &str) -> Self {
        self.header("Idempotency-Key", key)
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// The answer; none within [`PATIENCE`] fails the test. Dropped, it hangs up.
    pub(crate) async fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.target);
        match tokio::time::timeout(PATIENCE, self.try_send()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => panic!("{what}: {error:?}"),
            Err(elapsed) => panic!("{what}: no answer, {elapsed}"),
        }
    }

    /// The answer, or why there is none.
    pub(crate) async fn try_send(self) -> Result<Answer, Failure> {
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

    async fn exchange<IO>(self, stream: IO, scheme: &str) -> Result<Answer, Failure>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut connection = self.client.speak(stream).await?;
        connection.exchange(self, scheme).await
    }

    fn into_request(self, scheme: &str) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut authority = self.client.server.to_string();
        let mut request = Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.headers_mut() = self.headers;
        if self.client.h2 {
            // HTTP/2 names its host in `:authority` alone.
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

impl KeptAlive {
    /// Another stream of this connection, which has to be an HTTP/2 one and must not be dropped before it.
    pub(crate) fn stream_beside(&self) -> Stream {
        match &self.sender {
            Sender::Http1(_) => panic!("HTTP/1.1 has no streams"),
            Sender::Http2(sender) => Stream(sender.clone()),
        }
    }

    /// The answer to one more request on this connection.
    pub(crate) async fn send(&mut self, asking: Asking) -> Answer {
        let what = format!("{} {}", asking.method, asking.target);
        match tokio::time::timeout(PATIENCE, self.try_send(asking)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => panic!("{what}: {error:?}"),
            Err(elapsed) => panic!("{what}: no answer, {elapsed}"),
        }
    }

    /// The answer to one more request on this connection, or why there is none.
    pub(crate) async fn try_send(&mut self, asking: Asking) -> Result<Answer, Failure> {
        self.exchange(asking, "http").await
    }

    async fn exchange(&mut self, asking: Asking, scheme: &str) -> Result<Answer, Failure> {
        Answer::read(self.begin(asking, scheme).await?).await
    }

    async fn begin(&mut self, asking: Asking, scheme: &str) -> Result<Response<Incoming>, Failure> {
        let request = asking.into_request(scheme)?;
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => sender.send_request(request).await?,
        };
        Ok(response)
    }

    /// The answer's body as it comes, to be read while upstream still writes it.
    pub(crate) async fn body_of(&mut self, asking: Asking) -> Incoming {
        let response = self.begin(asking, "http").await.expect("an answer");
        response.into_body()
    }
}

impl Stream {
    pub(crate) async fn send(&mut self, asking: Asking) -> Answer {
        self.try_send(asking).await.expect("a whole response")
    }

    /// Returns the response, or the error that ended the stream.
    pub(crate) async fn try_send(&mut self, asking: Asking) -> Result<Answer, Failure> {
        let request = asking.into_request("http")?;
        Answer::read(self.0.send_request(request).await?).await
    }
}

impl Answer {
    async fn read(response: Response<Incoming>) -> Result<Self, Failure> {
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

    /// The lines of a header, joined by a comma and a blank; empty where there is none.
    pub(crate) fn header(&self, name: &str) -> String {
        joined(&self.headers, name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.headers.contains_key(name)
    }

    /// Whether it was given before, as it says.
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

    /// The name of the problem the gateway reports: `rate-limited`.
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

    /// How long it says to wait, in seconds.
    pub(crate) fn retry_after(&self) -> u64 {
        self.header("retry-after").parse().expect("whole seconds")
    }
}
