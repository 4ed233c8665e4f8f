//! nginx as a reverse proxy, to compare its results with those of the gateway.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{KilledOnDrop, free_address};

/// Running nginx that forwards every request to one server. It stops when it is dropped.
pub(crate) struct Nginx {
    address: SocketAddr,
    _process: KilledOnDrop,
    _directory: TempDir,
}

impl Nginx {
    /// Starts nginx in front of `server`. `proxy_pass` has no path, so nginx forwards targets as received.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("the directory is created");
        let address = free_address();
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
        let mut command = Command::new("nginx");
        command
            .env("PATH", format!("{search_path}:/usr/sbin"))
            .arg("-p")
            .arg(directory.path())
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        Self {
            address,
            _process: KilledOnDrop::listening(&mut command, address),
            _directory: directory,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
