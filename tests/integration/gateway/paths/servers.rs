//! Campaign with real servers: no spelling of a limited path is executed uncounted. `make paths` installs the servers
//! and runs it.
//!
//! Each server executes [`LIMITED`] and marks the response. A gateway limits this path to one request per hour and
//! forwards everything else. So after the first request, every marked response shows an evasion.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use http::Method;
use tempfile::TempDir;
use tidegate::internals::{AmbiguousPaths, Matcher, PathMode, RouteMatch, read_path};

use super::spelling_grammar::{Random, Spelling, spellings};
use crate::gateway::client_libraries::environment;
use crate::support::raw_http::RawClient;
use crate::support::{Gateway, KilledOnDrop, env_number, free_address};

pub(super) const LIMITED: &str = "/o/client/register";

const NODE: [&str; 10] = [
    "node-url",
    "node-url-decoded",
    "node-url-parse",
    "node-split",
    "express4",
    "express5",
    "fastify4",
    "fastify5",
    "koa",
    "hapi",
];
const PYTHON: [&str; 8] = [
    "wsgi", "flask", "django", "bottle", "cherrypy", "fastapi", "aiohttp", "tornado",
];

/// Running server, which stops when it is dropped.
struct Server {
    address: SocketAddr,
    _process: KilledOnDrop,
    _directory: TempDir,
}

impl Server {
    fn start(name: &str) -> Self {
        let directory = tempfile::tempdir().expect("the directory is created");
        let address = free_address();
        let installed = environment().join("paths");
        assert!(
            installed.join("installed").exists(),
            "run this test with `make paths`"
        );
        let script = |file: &str| script(file).into_os_string();
        let port = address.port().to_string();
        let mut command = if name == "nginx" {
            let config = fs::read_to_string(script("nginx.conf")).expect("the file exists");
            let config = config
                .replace("DIRECTORY", &directory.path().display().to_string())
                .replace("ADDRESS", &address.to_string());
            let file = directory.path().join("nginx.conf");
            fs::write(&file, config).expect("the file is written");
            let mut command = Command::new("nginx");
            command.arg("-p").arg(directory.path()).arg("-c").arg(file);
            command
        } else if name == "php" {
            let mut command = Command::new("php");
            command.args(["-S", &address.to_string()]);
            command.arg(script("server.php"));
            command
        } else if NODE.contains(&name) {
            let mut command = Command::new(environment().join("node/bin/node"));
            command.args([script("servers.cjs"), name.into(), port.into()]);
            command
        } else {
            let mut command = Command::new(installed.join("bin/python"));
            command.args([script("servers.py"), name.into(), port.into()]);
            command
        };
        command
            .env("NODE_PATH", installed.join("node_modules"))
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            address,
            _process: KilledOnDrop::listening(&mut command, address),
            _directory: directory,
        }
    }
}

fn script(file: &str) -> PathBuf {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/paths");
    scripts.join(file)
}

/// Settings of a gateway: its name, further lines of `[server]`, and further lines of the route without a limit.
struct Mode(&'static str, &'static str, &'static str);

const COMPATIBLE: Mode = Mode("compatible", "", "");
const STRICT: Mode = Mode("strict", "paths = \"strict\"", "");
/// Without the checks of the gateway. It shows how many spellings a server executes.
const UNCHECKED: Mode = Mode(
    "unchecked",
    "underscores_in_headers = true",
    "ambiguous_paths = \"allow\"",
);

/// Sends the spellings through a gateway, and returns those that the server executed beyond the limit.
fn evasions<'a>(
    server: SocketAddr,
    pattern: &str,
    mode: &Mode,
    spellings: &'a [Spelling],
) -> Vec<&'a Spelling> {
    let Mode(_, settings, rest) = mode;
    let gateway = Gateway::with(&format!(
        r#"
        [server]
        workers = 1
        {settings}
        [log]
        access = false
        [upstream.api]
        servers = ["http://{server}"]
        [limit.hourly]
        rate = "1/h"
        [[route]]
        name = "limited"
        path = "{pattern}"
        limits = ["hourly"]
        [[route]]
        name = "rest"
        path = "/"
        {rest}
        "#
    ))
    .start();
    let plain = Spelling::plain();
    assert!(is_executed(&mut None, &gateway, &plain), "{server}");
    assert!(!is_executed(&mut None, &gateway, &plain), "{server}");
    let mut connection = None;
    let evades = |spelling: &&Spelling| is_executed(&mut connection, &gateway, spelling);
    spellings.iter().filter(evades).collect()
}

/// Whether the server executes the limited path for this spelling. The connection is kept for further requests.
fn is_executed(connection: &mut Option<RawClient>, gateway: &Gateway, spelling: &Spelling) -> bool {
    let mut client = connection
        .take()
        .unwrap_or_else(|| RawClient::connect(gateway.address()));
    let response = client.send(spelling.head()).response();
    assert!(
        response.header("x-executed").is_none() || response.status == 200,
        "{}",
        response.head
    );
    let closes = response
        .header("connection")
        .is_some_and(|it| it.eq_ignore_ascii_case("close"));
    if !closes {
        *connection = Some(client);
    }
    response.header("x-executed").is_some()
}

/// Whether docs/http.md lists this evasion: letter case, or slashes at the end. The gateway would count or reject the
/// path in lower case without these slashes.
fn is_documented(spelling: &Spelling, pattern: &str) -> bool {
    let route = |name: &'static str, pattern: &str| {
        let matches = RouteMatch {
            name: name.into(),
            patterns: vec![pattern.to_owned()],
            methods: None,
            ambiguous_paths: AmbiguousPaths::Reject,
            paths: PathMode::Compatible,
        };
        (matches, name)
    };
    let routes = Matcher::compile(vec![route("limited", pattern), route("rest", "/")]);
    let routes = routes.expect("the patterns are valid");
    let path = spelling.target.split('?').next().unwrap_or_default();
    let path = match path.split_once("://") {
        Some((_, rest)) => &rest[rest.find('/').unwrap_or(0)..],
        None => path,
    };
    let Ok(unified) = read_path(path, None) else {
        return false;
    };
    let path = unified.forwarded().to_ascii_lowercase();
    let Ok(path) = read_path(path.trim_end_matches('/'), None) else {
        return false;
    };
    routes.select(&Method::GET, &path) != Ok(&"rest")
}

#[test]
#[ignore = "needs servers that `make paths` installs"]
fn real_servers_execute_no_spelling_of_a_limited_path_uncounted() {
    let count = env_number("PATHS_SPELLINGS").unwrap_or(10_000);
    let seed = env_number("PATHS_SEED").unwrap_or(1);
    let spellings = spellings(Random::new(seed), count);
    let selected = std::env::var("PATHS_SERVERS").unwrap_or_default();
    let all = NODE.into_iter().chain(PYTHON).chain(["nginx", "php"]);
    let is_selected =
        |name: &&str| selected.is_empty() || selected.split(',').any(|it| it == *name);
    let mut undocumented = BTreeSet::new();
    for name in all.filter(is_selected) {
        let server = Server::start(name);
        let closed = format!("{LIMITED}$");
        let runs = [
            (&*closed, UNCHECKED),
            (LIMITED, COMPATIBLE),
            (&*closed, COMPATIBLE),
            (LIMITED, STRICT),
            (&*closed, STRICT),
        ];
        let found = thread::scope(|scope| {
            let spellings = &spellings;
            let runs = runs.each_ref().map(|(pattern, mode)| {
                scope.spawn(move || evasions(server.address, pattern, mode, spellings))
            });
            runs.map(|run| run.join().expect("the run does not panic"))
        });
        for ((pattern, Mode(mode, ..)), evasions) in runs.iter().zip(found) {
            let executed = evasions.len();
            println!("{name:<17} {pattern:<20} {mode:<11} {executed:>5} of {count} executed");
            if *mode != UNCHECKED.0 {
                let others = evasions.iter().filter(|it| !is_documented(it, pattern));
                let others = others.map(|it| format!("{name} {pattern} {mode}: {it:?}"));
                undocumented.extend(others);
            }
        }
    }
    for evasion in &undocumented {
        println!("{evasion}");
    }
    assert!(
        undocumented.is_empty(),
        "{} evasions that docs/http.md does not list",
        undocumented.len()
    );
}
