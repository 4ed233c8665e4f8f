//! Tests of valid configurations that cause warnings.

use super::*;

#[test]
fn unused_limits_and_keys_and_an_open_admin_listener_get_a_warning() {
    assert!(warnings(MINIMAL).is_empty());

    let unused = MINIMAL.replace("limits = [\"client\"]", "");
    assert_eq!(warnings(&unused), ["no route uses the limit `client`"]);

    for word in ["local", "open", "closed"] {
        let text = MINIMAL.replace("rate =", &format!("on_store_error = \"{word}\"\nrate ="));
        let [warning] = warnings(&text).try_into().expect("one warning");
        assert!(warning.starts_with("`on_store_error` has no effect"));
        let redis = format!("{text}\n[store]\nbackend = \"redis\"\nurl = \"redis://h\"\n");
        assert!(warnings(&redis).is_empty());
    }

    let open = format!("{MINIMAL}\n[admin]\nlisten = \"0.0.0.0:9\"\n");
    assert!(warnings(&open)[0].contains("has no token"));
    assert!(warnings(&format!("{open}token = \"t0p\"\n")).is_empty());
    assert!(warnings(&open.replace("0.0.0.0", "[::1]")).is_empty());
}

#[test]
fn a_first_byte_timeout_of_a_route_above_the_retry_deadline_gets_a_warning() {
    let with = |timeout: &str| {
        let retry = "[upstream.api.retry]\ndeadline = \"20s\"\n";
        format!("{retry}{MINIMAL}").replace(
            "limits =",
            &format!("first_byte_timeout = \"{timeout}\"\nlimits ="),
        )
    };
    let [warning] = warnings(&with("20s")).try_into().expect("one warning");
    assert!(
        warning.contains("never retried after a `first_byte_timeout`"),
        "{warning}"
    );
    assert!(warnings(&with("19s")).is_empty());
}

#[test]
fn a_route_whose_limits_all_have_a_header_in_their_key_gets_a_warning() {
    let with = |key: &str, other: &str| {
        format!(
            "[upstream.api]\nservers = [\"http://127.0.0.1:9\"]\n[limit.a]\nrate = \"1/m\"\nkey = {key}\n\
             [limit.b]\nrate = \"1/m\"\n{other}\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"a\", \"b\"]\n"
        )
    };
    let header = "\"header:x-api-key\"";
    let client = "[\"header:x-api-key\", \"client\"]";
    let global = "[\"global\", \"header:x-api-key\"]";
    for (key, other) in [
        (header, "key = \"header:x-tenant\""),
        (client, "key = \"header:x-tenant\""),
        (client, "key = \"client\"\nmode = \"shadow\""),
        (global, "key = [\"header:x-tenant\", \"client\"]"),
    ] {
        let loaded = load_with(&with(key, other), &[], &Overrides::default());
        let warnings = loaded.expect("a valid configuration").warnings;
        let [warning] = <[ConfigProblem; 1]>::try_from(warnings).expect("one warning");
        assert!(warning.title.contains("new bucket"), "{warning}");
        assert_eq!(warning.offending, "\"a\"");
        assert!(
            warning
                .help
                .contains("`key = \"client\"` or `key = \"global\"`")
        );
        assert!(!warning.help.contains("add \"client\" to"));
    }
    for (key, other) in [
        (header, ""),
        (header, "key = \"global\""),
        (client, "key = \"client\"\non_exceed = \"delay\""),
        ("\"client\"", "key = \"header:x-tenant\"\nmode = \"shadow\""),
    ] {
        assert!(warnings(&with(key, other)).is_empty(), "{key} {other}");
    }
}

#[test]
fn networks_that_contain_all_public_addresses_get_a_warning() {
    for (networks, families, offending) in [
        ("\"0.0.0.0/0\"", "IPv4", "\"0.0.0.0/0\""),
        ("\"10.0.0.0/8\", \"0.0.0.0/0\"", "IPv4", "\"0.0.0.0/0\""),
        ("\"0.0.0.0/1\", \"128.0.0.0/1\"", "IPv4", "\"0.0.0.0/1\""),
        ("\"::/0\"", "IPv6", "\"::/0\""),
        ("\"::/0\", \"0.0.0.0/0\"", "IPv4 and IPv6", "\"::/0\""),
    ] {
        for (key, effect) in [
            ("exempt", "no rate limit applies"),
            ("trusted_proxies", "choose its own address"),
        ] {
            let text = format!("{MINIMAL}\n[client]\n{key} = [{networks}]\n");
            let loaded = load_with(&text, &[], &Overrides::default());
            let warnings = loaded.expect("a valid configuration").warnings;
            let [warning] = <[ConfigProblem; 1]>::try_from(warnings).expect("one warning");
            let start = format!("`{key}` contains every public {families} address: ");
            assert!(warning.title.starts_with(&start), "{warning}");
            assert!(warning.title.contains(effect), "{warning}");
            assert_eq!(warning.offending, offending);
        }
    }
    let some = "exempt = [\"0.0.0.0/1\"]\ntrusted_proxies = [\"10.0.0.0/8\", \"fd00::/8\"]";
    assert!(warnings(&format!("{MINIMAL}\n[client]\n{some}\n")).is_empty());
}

#[test]
fn a_scenario_beside_limits_or_keys_and_an_unused_scenario_get_a_warning() {
    let with = |line: &str| {
        format!(
            "[limit.l]\nrate = \"1/s\"\n[scenario.s]\nsteps = [\"503\"]\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nscenario = \"s\"\n{line}\n\
             [[route]]\nname = \"limited\"\npath = \"/\"\nmethods = \"PUT\"\nscenario = \"s\"\nlimits = [\"l\"]\n"
        )
        .replace("path = \"/\"\nscenario", "path = \"/\"\nmethods = \"GET\"\nscenario")
    };
    assert_eq!(warnings(&with("")).len(), 1);
    let keys = warnings(&with("idempotency = {}")).remove(0);
    assert!(
        keys.contains("a scenario and idempotency settings"),
        "{keys}"
    );
    let limits = warnings(&with("limits = [\"l\"]")).remove(0);
    assert!(limits.contains("a scenario and rate limits"), "{limits}");

    let unused = format!("{MINIMAL}\n[scenario.s]\nsteps = [\"503\"]\n");
    assert_eq!(warnings(&unused), ["no route uses the scenario `s`"]);
}
