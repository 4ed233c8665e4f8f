//! nginx as a reverse proxy, to compare its results with those of the gateway.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::wait_until;

/// Running nginx that forwards every request to one server. It stops when it is dropped.
pub(crate) struct Nginx {
    address: SocketAddr,
    child: Child,
    _directory: TempDir,
}

impl Nginx {
    /// Starts nginx in front of `server`. `proxy_pass` has no path, so nginx forwards targets as received.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("the directory is created");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = free.local_addr().expect("the listener has an address");
        drop(free);
        let path = directory.path().display();
        let config = format!(
            "daemon off; master_process off; pid {path}/pid; error_log stderr;
             events {{}}
             http {{
                 access_log off;
                 client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;
                 uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;
                 server {{
                     listen {address};
                     client_max_body_size 0;
                     location / {{
                         proxy_pass http://{server};
                         proxy_http_version 1.1;
                         proxy_set_header Host $http_host;
                     }}
                 }}
             }}"
        );
        let file = directory.path().join("nginx.conf");
        std::fs::write(&file, config).expect("the file is written");
        // Debian installs nginx in /usr/sbin, which is not in the PATH of every user.
        let search_path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new("nginx")
            .env("PATH", format!("{search_path}:/usr/sbin"))
            .arg("-p")
            .arg(directory.path())
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("`nginx` is installed: install the package `nginx`, or run `make test`");
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        Self {
            address,
            child,
            _directory: directory,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Errors are ignored: they mean that the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
