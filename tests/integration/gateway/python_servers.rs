//! Real Python servers behind the gateway: gunicorn and uvicorn with an application of `tests/clients`.

use rustix::process::Signal;

use crate::gateway::client_libraries::environment;
use crate::support::Process;

/// Server process, which is stopped when it is dropped.
pub(crate) struct PythonServer {
    process: Process,
    url: String,
}

impl PythonServer {
    /// Starts gunicorn with one worker process of several threads, and its other defaults.
    pub(crate) fn gunicorn(app: &str, threads: usize) -> Self {
        let threads = threads.to_string();
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
        let arguments = ["gunicorn", "--chdir", directory, "--bind", "127.0.0.1:0"];
        let process = start(&[&arguments[..], &["--threads", &threads, app]].concat());
        process.wait_for_line("Booting worker");
        Self::listening(process, "Listening at: ")
    }

    /// Starts uvicorn with its defaults.
    pub(crate) fn uvicorn(app: &str) -> Self {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
        let arguments = [
            "uvicorn",
            "--app-dir",
            directory,
            "--port",
            "0",
            "--no-access-log",
            app,
        ];
        Self::listening(start(&arguments), "Uvicorn running on ")
    }

    fn listening(process: Process, before_url: &str) -> Self {
        let line = process.wait_for_line(before_url);
        let url = line.split(before_url).nth(1);
        let url = url.and_then(|rest| rest.split(' ').next());
        let url = url.expect("the line contains the URL").to_owned();
        Self { process, url }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

fn start(arguments: &[&str]) -> Process {
    Process::with(&[&["-m"], arguments].concat())
        .binary(environment().join("bin/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .start()
}

impl Drop for PythonServer {
    fn drop(&mut self) {
        // The process is killed later. The signal ends its worker processes as well.
        self.process.signal(Signal::TERM);
        if !std::thread::panicking() {
            self.process.wait_for_exit();
        }
    }
}
