//! Tests of the documents: runs the terminal sessions of README.md, docs/quickstart.md and docs/lab.md, compares their
//! output, and checks the links and the complete configurations of every document.
//!
//! The `console` blocks of a document run in order in one bash shell, in an empty directory:
//!
//! - A line that starts with `$ ` is a command, and a line that starts with `> ` continues it. The lines below the
//!   command are its expected standard output. `…` matches any text within a line. A line that is only `…` matches any
//!   number of lines.
//! - A `toml`, `python` or `javascript` block that starts with a comment such as `# tidegate.toml` or `// client.mjs` is
//!   written to the file of that name.
//! - The command `tidegate` runs the binary under test.
//! - `tidegate demo` and `tidegate serve` run in the background until the next of them starts.
//! - The ports of the documents are replaced by free ports.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::free_address;

const PORTS: [&str; 4] = ["8080", "8443", "9090", "9000"];
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
const README_LINES: usize = 250;

#[test]
fn terminal_sessions_of_the_readme_run_as_shown() {
    run("README.md");
}

#[test]
fn terminal_sessions_of_the_quickstart_run_as_shown() {
    run("docs/quickstart.md");
}

#[test]
fn terminal_sessions_of_the_lab_run_as_shown() {
    run("docs/lab.md");
}

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let root = root();
    let mut checked = 0;
    let mut broken = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(root.join(&document)).expect("a readable document");
        for (line, target) in links(&text) {
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = match path {
                "" => root.join(&document),
                path => root.join(document.parent().expect("a folder")).join(path),
            };
            checked += 1;
            let found = match fs::read_to_string(&file) {
                _ if anchor.is_empty() => file.exists(),
                Ok(text) => anchors(&text).contains(anchor),
                Err(_) => false,
            };
            if !found {
                broken.push(format!("{}:{line}: {target}", document.display()));
            }
        }
    }
    assert!(checked > 20, "only {checked} links found");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn complete_configurations_are_valid() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("tidegate.toml");
    let mut checked = 0;
    for document in documents() {
        let text = fs::read_to_string(root().join(&document)).expect("a readable document");
        for (language, line, lines) in code_blocks(&text) {
            let has = |section| lines.iter().any(|line| line.starts_with(section));
            if language != "toml" || !has("[upstream.") || !has("[[route]]") {
                continue;
            }
            fs::write(&file, lines.join("\n")).expect("a writable folder");
            let mut check = Command::new(crate::support::TIDEGATE);
            let output = check.args(["check", "--no-files"]).arg(&file).output();
            let output = output.expect("the gateway runs");
            let errors = String::from_utf8_lossy(&output.stderr);
            let document = document.display();
            assert!(output.status.success(), "{document}:{line}: {errors}");
            checked += 1;
        }
    }
    assert!(checked > 3, "only {checked} complete configurations found");
}

#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).expect("a readable document");
    let lines = text.lines().count();
    assert!(
        lines <= README_LINES,
        "README.md has {lines} lines, at most {README_LINES} are allowed: move details to docs/"
    );
}

#[test]
fn wildcards_match_text_within_a_line_and_whole_lines() {
    assert!(text_matches("a … c\n…\nz", "a b c\n1\n2\nz"));
    assert!(text_matches("a\n…\nz", "a\nz"));
    assert!(!text_matches("a … c", "a b d"));
    assert!(!text_matches("a", "a\nb"));
    assert!(!text_matches("a\nb", "a"));
    assert!(!text_matches("ab…bc", "abc"));
}

#[test]
fn anchors_are_those_of_rendered_headings() {
    let anchors = anchors("# A `b.c`: d_e\n```sh\n# no heading\n```\n## Twice\n## Twice\n");
    let expected = ["a-bc-d_e", "twice", "twice-1"];
    assert_eq!(anchors, expected.map(String::from).into());
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the paths of all Markdown files in the root of the project and in `docs`, relative to the root.
fn documents() -> Vec<PathBuf> {
    let folders = ["", "docs"];
    let mut documents = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(root().join(folder)).expect("a folder of the project") {
            let name = PathBuf::from(entry.expect("an entry").file_name());
            if name.extension().is_some_and(|extension| extension == "md") {
                documents.push(Path::new(folder).join(name));
            }
        }
    }
    documents
}

/// Returns the lines of a Markdown text that are outside code blocks, with their line numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((index + 1, line))
    })
}

/// Returns the targets of the relative links in a Markdown text, with their line numbers.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in prose(text) {
        for (start, _) in line.match_indices("](") {
            let target = &line[start + 2..];
            let target = &target[..target.find(')').unwrap_or(target.len())];
            if !target.contains("://") && !target.starts_with("mailto:") {
                links.push((number, target.to_owned()));
            }
        }
    }
    links
}

/// Returns the link anchors of the headings in a Markdown text, by the rules of common Markdown renderers: lower case,
/// `-` for a space, and a number if a heading occurs again.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut uses: HashMap<String, usize> = HashMap::new();
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let anchor: String = heading
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect();
            let earlier = uses.entry(anchor.clone()).or_default();
            *earlier += 1;
            match *earlier {
                1 => anchor,
                n => format!("{anchor}-{}", n - 1),
            }
        })
        .collect()
}

/// Action of a reader who follows a document.
enum Step {
    WriteFile {
        name: PathBuf,
        text: String,
    },
    Run {
        line: usize,
        command: String,
        expected: String,
    },
}

/// Returns the code blocks of a document: the language, the line number of the first line of code, and the lines.
fn code_blocks(text: &str) -> Vec<(&str, usize, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let code = lines.by_ref().map(|(_, line)| line);
            let code = code.take_while(|line| *line != "```").collect();
            blocks.push((language, index + 2, code));
        }
    }
    blocks
}

/// Returns the steps that the code blocks of a document describe: files to write and commands to run.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for (language, first_line, lines) in code_blocks(text) {
        match (language, &lines[..]) {
            ("toml" | "python" | "javascript", [first, ..]) => {
                let comment = first.strip_prefix("# ");
                let name = comment.or_else(|| first.strip_prefix("// "));
                let name = name.map(Path::new);
                if let Some(name) = name.filter(|name| name.extension().is_some()) {
                    let name = name.to_path_buf();
                    let text = lines.join("\n");
                    steps.push(Step::WriteFile { name, text });
                }
            }
            ("console", lines) => steps.extend(session(first_line, lines)),
            _ => {}
        }
    }
    steps
}

/// Returns the commands of a terminal session with their expected output. `first_line` is the line number of the
/// session in the document.
fn session(first_line: usize, lines: &[&str]) -> Vec<Step> {
    let mut starts: Vec<_> = (0..lines.len())
        .filter(|index| lines[*index].starts_with("$ "))
        .collect();
    assert_eq!(
        starts.first(),
        Some(&0),
        "line {first_line}: no command in the first line of a session"
    );
    starts.push(lines.len());
    let commands = starts.windows(2).map(|bounds| {
        let lines = &lines[bounds[0]..bounds[1]];
        let continued = lines[1..].iter().take_while(|line| line.starts_with("> "));
        let (command, expected) = lines.split_at(1 + continued.count());
        let command: Vec<_> = command.iter().map(|line| &line[2..]).collect();
        Step::Run {
            line: first_line + bounds[0],
            command: command.join("\n"),
            expected: expected.join("\n"),
        }
    });
    commands.collect()
}

/// Runs the terminal sessions of a document. Panics if an output differs from the document, or if a command without
/// expected output fails.
fn run(document: &str) {
    let text = fs::read_to_string(root().join(document)).expect("a readable document");
    let ports = PORTS.map(|port| (port, free_port()));
    let text = (ports.iter()).fold(text, |text, (old, new)| text.replace(old, new));
    let steps = steps(&text);
    let commands = steps.iter().filter(|step| matches!(step, Step::Run { .. }));
    assert!(commands.count() > 3, "{document} has no terminal session");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut shell = Shell::start(folder.path());
    for step in steps {
        match step {
            Step::WriteFile { name, text } => {
                fs::write(folder.path().join(name), text).expect("a writable folder");
            }
            Step::Run {
                line,
                command,
                expected,
            } => {
                let mut words = command.split_whitespace();
                if let (Some("tidegate"), Some("demo" | "serve")) = (words.next(), words.next()) {
                    shell.start_gateway(&command, &ports);
                    continue;
                }
                let (output, status) = shell.run(&command);
                let holds = match expected.as_str() {
                    "" => status == "0",
                    expected => text_matches(expected, &output),
                };
                assert!(
                    holds,
                    "{document}:{line}: {command}\nexpected:\n{expected}\nactual (exit status {status}):\n\
                     {output}\nstandard error:\n{}",
                    shell.errors(),
                );
            }
        }
    }
}

/// Returns a free port. Its digits do not contain any port number of the documents, because the replacement of that
/// port number would then also change the digits of the free port.
fn free_port() -> String {
    loop {
        let port = free_address().port().to_string();
        if !PORTS.iter().any(|used| port.contains(used)) {
            return port;
        }
    }
}

fn text_matches(expected: &str, actual: &str) -> bool {
    let [expected, actual] = [expected, actual].map(|text| text.lines().collect::<Vec<_>>());
    lines_match(&expected, &actual)
}

fn lines_match(expected: &[&str], actual: &[&str]) -> bool {
    match (expected, actual) {
        ([], []) => true,
        (["…", rest @ ..], _) => (0..=actual.len()).any(|n| lines_match(rest, &actual[n..])),
        ([pattern, expected @ ..], [line, actual @ ..]) => {
            line_matches(pattern, line) && lines_match(expected, actual)
        }
        _ => false,
    }
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('…') else {
        return pattern == line;
    };
    let Some(line) = line.strip_prefix(first) else {
        return false;
    };
    let mut starts = line.char_indices().map(|(start, _)| start);
    rest.is_empty() || starts.any(|start| line_matches(rest, &line[start..]))
}

/// bash shell that runs the commands of a document, and the gateway in its background.
struct Shell {
    process: Child,
    input: ChildStdin,
    output: Receiver<String>,
    folder: PathBuf,
    runs_gateway: bool,
}

impl Shell {
    /// Start of the line that the shell prints after each command. The exit status of the command follows.
    const END: &str = "-- end of the output, exit status ";

    fn start(folder: &Path) -> Self {
        let bin = Path::new(crate::support::TIDEGATE);
        let path = std::env::var("PATH").expect("a search path");
        let bin = bin.parent().expect("a folder").display().to_string();
        // Some sessions use a client library of Python, or Node.
        let clients = crate::gateway::client_libraries::environment();
        let [python, node] =
            ["bin", "node/bin"].map(|name| clients.join(name).display().to_string());
        let errors = fs::File::create(folder.join("stderr.log")).expect("a writable folder");
        let mut process = Command::new("bash")
            .args(["--norc", "--noprofile"])
            .current_dir(folder)
            .process_group(0)
            .env("PATH", format!("{bin}:{python}:{node}:{path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("bash is installed");
        let (sender, output) = mpsc::channel();
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            input: process.stdin.take().expect("a pipe"),
            process,
            output,
            folder: folder.to_path_buf(),
            runs_gateway: false,
        }
    }

    /// Runs a command, and returns its standard output and its exit status. The standard input of the command is empty.
    /// Otherwise the command could consume the following commands, which the shell reads from its own standard input.
    fn run(&mut self, command: &str) -> (String, String) {
        let end = format!("printf '\\n%s%d\\n' '{}' $?", Self::END);
        let script = format!("{{ {command}\n}} </dev/null; {end}\n");
        self.input.write_all(script.as_bytes()).expect("bash reads");
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let mut output: Vec<String> = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.output.recv_timeout(left);
            let line = line.unwrap_or_else(|error| panic!("{command}: {error}\n{output:#?}"));
            if let Some(status) = line.strip_prefix(Self::END) {
                return (output.join("\n").trim_end().to_owned(), status.to_owned());
            }
            output.push(line);
        }
    }

    /// Stops the running gateway, starts a gateway with `command` in the background, and waits until it accepts
    /// connections.
    fn start_gateway(&mut self, command: &str, ports: &[(&str, String)]) {
        self.stop_gateway();
        let has_file = command.contains("--config") || command.contains(".toml");
        let listen = if has_file {
            String::new()
        } else {
            let [(_, gateway), _, (_, admin), _] = ports else {
                unreachable!("four ports are replaced")
            };
            format!(
                "TIDEGATE__SERVER__LISTEN=127.0.0.1:{gateway} TIDEGATE__ADMIN__LISTEN=127.0.0.1:{admin} "
            )
        };
        self.run(&format!("{listen}{command} >gateway.log 2>&1 & gateway=$!"));
        self.runs_gateway = true;
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        let accepts = |(_, port): &(&str, String)| {
            let address = format!("127.0.0.1:{port}");
            TcpStream::connect(address).is_ok()
        };
        while !ports[..2].iter().any(accepts) {
            assert!(
                Instant::now() < deadline && self.run("kill -0 $gateway").1 == "0",
                "{command}: the gateway does not listen\n{}",
                self.run("cat gateway.log").0,
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop_gateway(&mut self) {
        if self.runs_gateway {
            self.run("kill $gateway; wait $gateway");
            self.runs_gateway = false;
        }
    }

    /// Returns what all commands so far have written to standard error.
    fn errors(&self) -> String {
        fs::read_to_string(self.folder.join("stderr.log")).unwrap_or_default()
    }
}

impl Drop for Shell {
    /// Kills the shell and all processes that it started. They are in the process group of the shell, because a shell
    /// without job control creates no other groups.
    fn drop(&mut self) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.process.wait();
    }
}
