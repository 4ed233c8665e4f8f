//! Tests of the commands `check` and `explain` with rate limits and idempotency scopes that use a header field.

use std::path::Path;

use crate::support::Process;

const LIMITED: &str = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
    [limit.tenant]\nkey = [\"client\", \"header:X-Api-Key\"]\nrate = \"1/m\"\n\
    [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"tenant\"]\n\
    idempotency = { scope = \"header:X-Tenant\" }\n";

fn write(directory: &Path, config: &str) -> String {
    let path = directory.join("gate.toml");
    std::fs::write(&path, config).expect("the file is written");
    path.to_str().expect("the path is UTF-8").to_owned()
}

fn warnings(config: &str) -> String {
    let directory = tempfile::tempdir().expect("the directory is created");
    let output = Process::run(&["check", &write(directory.path(), config)]);
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn check_recommends_a_limit_without_a_header() {
    let printed = warnings(LIMITED);
    for part in [
        "warning: clients can evade the rate limits of this route",
        "gate.toml:9:11",
        "add a rate limit with `key = \"client\"` or `key = \"global\"`",
    ] {
        assert!(
            printed.contains(part),
            "the output does not contain {part:?}:\n{printed}"
        );
    }
    // If the configuration has the rate limit that the warning recommends, there is no warning.
    let remedied = LIMITED.replace("[\"tenant\"]", "[\"tenant\", \"each\"]");
    let remedied = format!("{remedied}[limit.each]\nkey = \"client\"\nrate = \"1/m\"\n");
    assert_eq!(warnings(&remedied), "");
}

#[test]
fn check_warns_about_networks_that_contain_every_client() {
    let open = "[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
                [client]\nexempt = [\"0.0.0.0/1\", \"128.0.0.0/1\"]\ntrusted_proxies = [\"::/0\"]\n\
                [[route]]\nname = \"all\"\npath = \"/\"\n";
    let printed = warnings(open);
    for part in [
        "gate.toml:4:11",
        "`exempt` contains every public IPv4 address: no rate limit applies",
        "gate.toml:5:20",
        "`trusted_proxies` contains every public IPv6 address",
        "X-Forwarded-For",
    ] {
        assert!(
            printed.contains(part),
            "the output does not contain {part:?}:\n{printed}"
        );
    }
}

#[test]
fn explain_shows_the_outcome_of_every_spelling() {
    let directory = tempfile::tempdir().expect("the directory is created");
    let file = write(directory.path(), LIMITED);
    for (lines, parts) in [
        (
            &["X-Api-Key: a"][..],
            &["counted by client and header x-api-key"][..],
        ),
        (
            &["X-Api-Key: a", "X-Api-Key: b"],
            &["outcome    400, The request has more than one x-api-key header. Send it once."],
        ),
        (
            &["X-Api-Key: a", "X-Api-Key: b", "Connection: x-api-key"],
            &[
                "dropped    x-api-key, named in Connection",
                "because header x-api-key is missing",
                "otherwise 429",
            ],
        ),
        (
            &["X_Api_Key: a"],
            &[
                "dropped    x_api_key, which servers can read as another header",
                "because header x-api-key is missing",
            ],
        ),
        (
            &["SCRIPT_NAME: /x", "X-Original-URL: /y"],
            &[
                "script_name, because of the underscore",
                "x-original-url, which servers can read instead of the path",
            ],
        ),
        (&["X-Api-Key:"], &["because header x-api-key is missing"]),
        (
            &["Idempotency-Key: k", "X-Tenant: a", "X-Tenant: a"],
            &["outcome    400, The request has more than one x-tenant header. Send it once."],
        ),
        (
            &[
                "Idempotency-Key: k",
                "X-Tenant: a",
                "Connection: X-Tenant, Idempotency-Key",
            ],
            &[
                "dropped    x-tenant, named in Connection",
                "this client, because header x-tenant is missing",
            ],
        ),
    ] {
        let mut arguments = vec!["explain", "--config", &*file, "--method", "POST"];
        arguments.extend(["--path", "/"]);
        for line in lines {
            arguments.extend(["--header", line]);
        }
        let output = Process::run(&arguments);
        assert!(output.status.success());
        let shown = String::from_utf8_lossy(&output.stdout);
        for part in parts {
            assert!(
                shown.contains(part),
                "the output does not contain {part:?}:\n{shown}"
            );
        }
    }
}
