//! Common mistakes in configurations. For each mistake, the message has a location and a remedy, and the remedy works
//! when it is pasted into the file. The messages are compared with the file `mistakes.txt`.
//!
//! `make docs` writes the file. Read the difference before you commit it.

use std::fmt::Write as _;
use std::path::Path;

use super::super::{Environment, Overrides, parse};

/// Configuration without mistakes. A mistake replaces one of its lines.
const CORRECT: &str = "\
[server]
listen = \"127.0.0.1:8080\"
idle_timeout = \"75s\"

[admin]
listen = \"127.0.0.1:9090\"

[log]
access = true

[upstream.api]
servers = [\"http://127.0.0.1:9000\"]

[limit.device]
key = \"client\"
rate = \"10/s\"

[[route]]
name = \"all\"
path = \"/\"
methods = [\"GET\", \"POST\"]
limits = [\"device\"]
";

/// A line with a mistake, the correct line that it replaces, and the part of the message that is pasted over the
/// mistake: the complete line, or its value.
const MISTAKES: &[(&str, &str, &str)] = &[
    ("path = \"/\"", "path = \"v1/payments\"", "\"/v1/payments\""),
    ("path = \"/\"", "path = \"/users/:id\"", "\"/users/[^/]+\""),
    ("path = \"/\"", "path = \"/items/<id>\"", "\"/items/[^/]+\""),
    ("path = \"/\"", "path = \"/users/{id}\"", "\"/users/[^/]+\""),
    ("path = \"/\"", "path = \"/v2/*\"", "\"/v2/\""),
    ("path = \"/\"", "path = \"/a$b\"", r"'/a\$b'"),
    ("path = \"/\"", "path = \"//x\"", "\"/x\""),
    ("path = \"/\"", "path = \"/a/../b\"", "\"/b\""),
    ("path = \"/\"", "path = \"/users/%40me\"", "\"/users/@me\""),
    ("path = \"/\"", "path = \"/search?q=.*\"", "\"/search$\""),
    (
        "path = \"/\"",
        "path = \"https://api.example/v1\"",
        "\"/v1\"",
    ),
    ("path = \"/\"", r#"path = "/v1/\d+""#, r"path = '/v1/\d+'"),
    ("path = \"/\"", r#"path = "/users\b""#, r"'/users\b'"),
    ("access = true", "access = yes", "access = true"),
    ("access = true", "access = \"false\"", "access = false"),
    (
        "idle_timeout = \"75s\"",
        "idle_timeout = 75",
        "idle_timeout = \"75s\"",
    ),
    (
        "idle_timeout = \"75s\"",
        "idle_timeout = 75s",
        "idle_timeout = \"75s\"",
    ),
    (
        "idle_timeout = \"75s\"",
        "idle_timeout = \"75 seconds\"",
        "\"75s\"",
    ),
    (
        "idle_timeout = \"75s\"",
        "idle_timout = \"75s\"",
        "idle_timeout",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = 8080",
        "listen = \"127.0.0.1:8080\"",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = \":8080\"",
        "\"127.0.0.1:8080\"",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = \"localhost:8080\"",
        "\"127.0.0.1:8080\"",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen: 127.0.0.1:8080",
        "listen = \"127.0.0.1:8080\"",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = “127.0.0.1:8080”",
        "listen = \"127.0.0.1:8080\"",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = \"127.0.0.1:8080",
        "listen = \"127.0.0.1:8080\"",
    ),
    (
        "servers = [\"http://127.0.0.1:9000\"]",
        "servers = [\"127.0.0.1:9000\"]",
        "\"http://127.0.0.1:9000\"",
    ),
    (
        "servers = [\"http://127.0.0.1:9000\"]",
        "servers = [\"http://127.0.0.1:9000/api\"]",
        "\"http://127.0.0.1:9000\"",
    ),
    (
        "servers = [\"http://127.0.0.1:9000\"]",
        "servers = \"http://127.0.0.1:9000\"",
        "servers = [\"http://127.0.0.1:9000\"]",
    ),
    ("rate = \"10/s\"", "rate = 10", "rate = \"10/s\""),
    ("rate = \"10/s\"", "rate = \"10rps\"", "\"10/s\""),
    ("rate = \"10/s\"", "rate = \"10/min\"", "\"10/m\""),
    ("key = \"client\"", "key = \"ip\"", "\"client\""),
    ("key = \"client\"", "key = client", "key = \"client\""),
    (
        "methods = [\"GET\", \"POST\"]",
        "methods = [GET, POST]",
        "methods = [\"GET\", \"POST\"]",
    ),
    (
        "methods = [\"GET\", \"POST\"]",
        "methods = [\"get\", \"POST\"]",
        "\"GET\"",
    ),
    (
        "limits = [\"device\"]",
        "limits = \"device\"",
        "limits = [\"device\"]",
    ),
    ("limits = [\"device\"]", "limits = [\"devise\"]", "device"),
    ("[[route]]", "[route]", "[[route]]"),
    ("[[route]]", "[[route]", "[[route]]"),
    ("[limit.device]", "[limits.device]", "limit"),
];

/// Returns all problems of a configuration as they are shown. The empty list means that it is valid.
fn messages(text: &str, env: &Environment) -> Vec<String> {
    match parse("tidegate.toml", text, env, &Overrides::default()) {
        Ok(loaded) => loaded.warnings.iter().map(ToString::to_string).collect(),
        Err(errors) => errors.problems().iter().map(ToString::to_string).collect(),
    }
}

/// Replaces the mistake in a file by the text from the remedy: a header, a line, a value or a name.
fn pasted(mistake: &str, remedy: &str) -> String {
    if remedy.starts_with('[') || remedy.contains(" = ") {
        return remedy.to_owned();
    }
    let (key, value) = mistake.split_once(" = ").unwrap_or((mistake, ""));
    match remedy.chars().next() {
        Some('"' | '\'') if value.starts_with('[') => {
            let entry = value[1..].find([',', ']']).map_or(value.len(), |at| at + 1);
            format!("{key} = [{remedy}{}", &value[entry..])
        }
        Some('"' | '\'') => format!("{key} = {remedy}"),
        // A name replaces the misspelt name, which has a similar start.
        _ => {
            let start = mistake.find(&remedy[..4]).expect("a similar name");
            let end = mistake[start..].find([' ', '"', '.']).expect("an end");
            format!("{}{remedy}{}", &mistake[..start], &mistake[start + end..])
        }
    }
}

#[test]
fn the_remedy_of_a_common_mistake_works_when_pasted() {
    let env = Environment::default();
    assert_eq!(messages(CORRECT, &env), [""; 0]);
    for (correct, mistake, remedy) in MISTAKES {
        let found = messages(&CORRECT.replacen(correct, mistake, 1), &env);
        assert_eq!(found.len(), 1, "{mistake}: {found:#?}");
        let (_, help) = found[0].split_once("= help: ").expect("a remedy");
        assert!(
            found[0].contains(" --> tidegate.toml:"),
            "{mistake}: {}",
            found[0]
        );
        assert!(
            help.contains(remedy),
            "{mistake}: {remedy} is not in {help}"
        );
        let fixed = CORRECT.replacen(correct, &pasted(mistake, remedy), 1);
        assert_eq!(
            messages(&fixed, &env),
            [""; 0],
            "{mistake} becomes\n{fixed}"
        );
    }
}

/// One mistake never causes a second message about something that the mistake hides.
#[test]
fn a_mistake_causes_one_message() {
    let two_routes = "[[route]]\nname = \"b\"\npath = \"/\"\n";
    let two_upstreams = "[upstream.other]\nservers = [\"http://127.0.0.1:9001\"]\n";
    for (correct, mistake, added) in [
        (
            "methods = [\"GET\", \"POST\"]",
            "methods = [POST]",
            two_routes,
        ),
        (
            "methods = [\"GET\", \"POST\"]",
            "method = [\"POST\"]",
            two_routes,
        ),
        (
            "name = \"all\"",
            "name = \"all\"\nupstream = api",
            two_upstreams,
        ),
        (
            "name = \"all\"",
            "name = \"all\"\nupstrem = \"api\"",
            two_upstreams,
        ),
        (
            "limits = [\"device\"]",
            "limits = [\"device\"]\ncost = 5\n[limit.other]\nrate = 10",
            "",
        ),
        (
            "rate = \"10/s\"",
            "rate = \"1/s\"\nburst = \"10\"",
            "cost = 5\n",
        ),
        ("listen = \"127.0.0.1:8080\"", "listen = 0.0.0.0:80", ""),
        (
            "servers = [\"http://127.0.0.1:9000\"]",
            "servers = [\"http://127.0.0.1:9000\"",
            "",
        ),
        (
            "servers = [\"http://127.0.0.1:9000\"]",
            "servers = [\n\"127.0.0.1:9000\",\n]",
            "",
        ),
        (
            "idle_timeout = \"75s\"",
            "max_buffered = 10\nmax_buffered_per_client = \"5GiB\"",
            "",
        ),
        (
            "servers = [\"http://127.0.0.1:9000\"]",
            "servers = [\"http://127.0.0.1:9000\"]\nhealth = { path = \"/\", interval = \"60sec\", timeout = \"50s\" }",
            "",
        ),
        ("[limit.device]", "[limit]", ""),
        ("[limit.device]", "[[limit]]", ""),
        ("[limit.device]", "[limit device]", ""),
        ("[upstream.api]", "[upstream]", ""),
        ("path = \"/\"", "path = \"/\", # all", ""),
    ] {
        let text = CORRECT.replacen(correct, mistake, 1) + added;
        let found = messages(&text, &Environment::default());
        assert_eq!(found.len(), 1, "{mistake}: {found:#?}");
        assert!(found[0].starts_with("error"), "{mistake}: {found:#?}");
    }
}

/// A random mistake changes, adds or removes one character. A corrected line in the help is valid in the file.
#[test]
fn a_corrected_line_is_valid_in_the_file() {
    let mut pasted = 0;
    for (index, line) in CORRECT.lines().enumerate() {
        let with = |line: &str| {
            let lines = CORRECT.lines().enumerate();
            let lines = lines.map(|(at, other)| if at == index { line } else { other });
            lines.collect::<Vec<_>>().join("\n") + "\n"
        };
        for (at, character) in line.char_indices() {
            let rest = &line[at + character.len_utf8()..];
            let changed =
                ["", " ", "#", "\"", "\\", "]", "["].map(|c| format!("{}{c}{rest}", &line[..at]));
            for mistake in changed {
                let env = Environment::default();
                let Err(errors) = parse("a", &with(&mistake), &env, &Overrides::default()) else {
                    continue;
                };
                for problem in errors.problems() {
                    let is_syntax =
                        problem.title.starts_with("syntax error") && problem.help.ends_with('`');
                    let corrected = problem.help.rsplit_once("write `");
                    let Some((_, corrected)) =
                        corrected.filter(|_| is_syntax && problem.line == index + 1)
                    else {
                        continue;
                    };
                    let corrected = corrected.trim_end_matches('`');
                    if problem.help.contains("for example") {
                        continue;
                    }
                    pasted += 1;
                    let shown = messages(&with(corrected), &env);
                    let location = format!("--> tidegate.toml:{}:", index + 1);
                    // The changed character can be part of a name or a pattern, which then has another mistake.
                    let is_expected = |shown: &str| {
                        shown.contains("there is no rate limit named")
                            || (line.starts_with("path") && !shown.contains("syntax error:"))
                    };
                    let mut shown = shown
                        .iter()
                        .filter(|shown| shown.contains(&location) && !is_expected(shown));
                    assert_eq!(shown.next(), None, "{mistake} becomes {corrected}");
                }
            }
        }
    }
    assert!(pasted > 150, "{pasted}");
}

#[test]
fn the_messages_of_common_mistakes_are_as_reviewed() {
    let mut shown = String::new();
    let mut show = |name: &str, messages: Vec<String>| {
        writeln!(shown, "## {name}\n\n{}\n", messages.join("\n\n")).expect("a string");
    };
    let none = Environment::default();
    for (correct, mistake, _) in MISTAKES {
        show(
            mistake,
            messages(&CORRECT.replacen(correct, mistake, 1), &none),
        );
    }
    let yaml = "server:\n  listen: 127.0.0.1:8080\nroute:\n  - name: all\n    path: /\n";
    show("a YAML file", messages(yaml, &none));
    show(
        "a JSON file",
        messages("{ \"server\": { \"workers\": 2 } }", &none),
    );
    let variable = [("TIDEGATE_SERVER_LISTEN", "127.0.0.1:80")];
    let variable = variable.into_iter().collect();
    show(
        "a variable with single underscores",
        messages(CORRECT, &variable),
    );
    for (name, text) in certificates() {
        show(name, messages(&text, &none));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/tests/mistakes.txt");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &shown).expect("the file is written");
    }
    let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        reviewed == shown,
        "run `make docs` and read the difference:\n{shown}"
    );
}

/// Returns configurations with unusable certificates. The messages contain the file names, so these are the same on
/// every machine.
fn certificates() -> [(&'static str, String); 3] {
    let with = |cert: &str, key: &str| {
        let tls = format!("[server]\ntls = {{ cert = \"{cert}\", key = \"{key}\" }}");
        CORRECT.replacen("[server]", &tls, 1)
    };
    [
        (
            "a missing certificate",
            with("/nonexistent/gateway.crt", "/nonexistent/gateway.key"),
        ),
        (
            "a file without a certificate",
            with("/dev/null", "/dev/null"),
        ),
        ("a CA file of an upstream without TLS", {
            let ca = "[upstream.api]\nca_file = \"/nonexistent/ca.pem\"";
            CORRECT.replacen("[upstream.api]", ca, 1)
        }),
    ]
}
