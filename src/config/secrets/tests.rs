use super::*;
use crate::config::{Environment, Overrides, parse};

/// Returns all problems of an invalid configuration as one text: as users see them, and in debug format.
fn problems(text: &str, env: &[(&str, &str)]) -> String {
    let env: Environment = env.iter().copied().collect();
    let errors = parse("test.toml", text, &env, &Overrides::default()).expect_err(text);
    format!("{errors}\n{errors:?}")
}

#[test]
fn a_message_without_a_password_is_unchanged() {
    let plain = "no upstream is named `a@b`: http://c:80";
    assert_eq!(masked(plain), plain);
    assert_eq!(masked("`x://u:p@h` is invalid"), "`x://u:***@h` is invalid");
}

#[test]
fn a_password_after_any_white_space_is_redacted() {
    for space in ['\u{a0}', '\u{3000}', ' '] {
        let message = format!("/{space}a:b@c");
        assert_eq!(masked(&message), format!("/{space}a:***@c"));
    }
}

#[test]
fn references_to_variables_are_not_redacted() {
    let parts = |text: &str| -> Vec<String> {
        let parts = without_variables(text, 0..text.len()).into_iter();
        parts.map(|part| text[part].to_owned()).collect()
    };
    assert!(parts("${A}").is_empty());
    assert_eq!(parts("a${B}c${D}"), ["a", "c"]);
    assert_eq!(parts("a${b"), ["a${b"]);
    assert_eq!(parts("a${B:-c}"), ["a${B:-c}"]);
    assert_eq!(parts("$${a}${B}"), ["$${a}${B}"]);
}

#[test]
fn no_problem_of_a_file_shows_a_secret() {
    for store in [
        "backend = \"redis\"\nurl = \"redis://:s3cret@h/x\"",
        "backend = \"redis\"\nurl = \"redis://:s3cret\"",
        "backend = \"redis\"\nurl = \"redis://:\\u0073s3cret@h?\"",
        "backend = \"redis\"\nurl = [\"redis://:s3cret@h/1\", 'redis://:s3cret@i/2']",
        "backend = \"redis\"\nurl = '''redis://:s3cret@h'''\nuser = \"me\"",
        "backend = \"redis://:s3cret@h\"",
        "url = \"redis://:s3cret@h\"",
        "ulr = \"redis://:s3cret@h\"",
        "backend = \"redis\"\npasword = \"s3cret\"\nurl = \"redis://h\"",
        "password = \"s3cret\"",
        "password = [\"s3cret\"]",
        "password = \"s3cret${MISSING}\"",
        "password = \"${MISSING:-s3cret}\"",
        "url = \"redis://:${MISSING:-s3cret}@h\"",
        "url = \"${MISSING:-redis://:s3cret@h}\"",
        "url = \"redis://:s3cret${MISSING}@h\"",
        "backend = \"redis\"\nurl = \"redis://h\"\npassword = \"s3cret\"\npassword_file = \"x\"",
        "path = \"redis://:s3cret@h\"",
        "url = \"redis://:s3cret@h",
        "password = s3cret",
        "\"password\" = \"s3cret",
    ] {
        let text = format!("[store]\n{store}\n[[route]]\n");
        let shown = problems(&text, &[]);
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    for text in [
        "[server]\ntoken = \"s3cret\"\n",
        "token = \"s3cret\"\n",
        "[upstream.z]\npassword = \"s3cret\"\n",
        "[admin]\nauth.token = \"s3cret\"\n",
        "[admin]\nauth = { token = [\"s3cret\"] }\n",
        "admin = [{ token = \"s3cret\" }]\n",
        "[upstream.a]\nservers = [\"gate:s3cret@host:9000\"]\n",
        "[admin]\ntokn = \"s3cret\n",
        "[admin]\nTOKEN = \"s3cret\n",
        "[admin]\ntoken: s3cret\n",
        "[admin]\ntoken s3cret\n",
        "[admin]\ntoken = \"s3\" s3cret\n",
        "[admin]\ntoken = \"\"\"\ns3cret-\\dx\n\"\"\"\n",
        "[admin]\ntoken = [\n\"s3cret\" 1\n]\n",
        "[admin]\ntoken = \"a\"\ntoken = \"s3cret\"\n",
        "[admin] token = \"s3cret\"\n",
        "[token = \"s3cret\"\n",
        "[token] \"s3cret\"\n",
        "[token s3cret]\n",
        "admin = \"s3cret\"\n",
        "[server]\npwd = \"s3cret\"\n",
        "[store]\nurl = \"redis://user:s3cret\n",
        "[upstream.a]\nservers = [\"u:s3cret@h:1\", \"u:s3cret@h:1\"\n",
        "[store]\npasswd = \"s3cret\n",
        "[store]\nurl = [\"redis:/:s3cret@a\", \"redis://:s3cret@b\"\n",
        "[store]\nurl: redis://:s3cret@a, redis://:s3cret@b\n",
        "[store]\nurl = [\n\"me:s3cret@h\" \"x\"\n]\n",
        "admin = { token_file = \"x\", token = \"s3cret\" y }\n",
        "admin:\n  token: s3cret\n",
        "token: s3cret\nother: x\n",
        "{ \"admin\": { \"token\": \"s3cret\" } }\n",
        "[admin]\ntoken = \"\"\"\ns3cret=\\q\n\"\"\"\n",
        "[admin]\ntoken = '''\ns3cret",
        "[admin]\ntoken = [s3cret, s3cret]\n",
        "[admin]\ns3cret = token = 1\n",
        "[store]\npassword = 1s3cret\n",
    ] {
        let shown = problems(text, &[]);
        assert!(!shown.contains("s3cret"), "{text}: {shown}");
    }
    let inline = problems("admin = { token = \"s3cret\", listen = }\n", &[]);
    assert!(!inline.contains("s3cret"), "{inline}");
}

#[test]
fn no_problem_of_a_variable_shows_a_secret() {
    let redis = "[store]\nbackend = \"redis\"\n";
    for (name, value) in [
        ("TIDEGATE__STORE__URL", "redis://:s3cret@h/x"),
        ("TIDEGATE__STORE__URL", "[\"redis://:s3cret@h/1\"]"),
        ("TIDEGATE__STORE__URL__0", "redis://:s3cret@h"),
        ("TIDEGATE__STORE__ULR", "redis://:s3cret@h"),
        ("TIDEGATE__STORE__PASSWORD__FILE", "s3cret"),
        ("TIDEGATE__STORE__PREFIX", "redis://:s3cret@h *"),
    ] {
        let shown = problems(redis, &[(name, value)]);
        assert!(!shown.contains("s3cret") && shown.contains(name), "{shown}");
    }
    let referred = format!("{redis}url = \"${{URL}}\"\n");
    let shown = problems(&referred, &[("URL", "redis://:s3cret@h/x")]);
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(
        shown.contains("has an invalid host, port or path"),
        "{shown}"
    );
}

#[test]
fn the_parts_of_a_url_that_are_not_secret_are_shown() {
    let text = "[store]\nbackend = \"redis\"\nurl = \"redis://me:${PASS}x@h/y\"\n";
    let shown = problems(text, &[]);
    assert!(
        shown.contains("url = \"redis://me:${PASS}*@h/y\""),
        "{shown}"
    );
}
