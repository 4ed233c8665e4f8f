use super::*;

fn node(text: &str) -> RedisNode {
    match redis_url(text) {
        Ok(node) => node,
        Err(error) => panic!("{text}: {error}"),
    }
}

fn parse_error(text: &str) -> RedisUrlError {
    redis_url(text).expect_err(text)
}

#[test]
fn all_parts_of_a_url_are_parsed() {
    let plain = RedisNode {
        host: "redis.example".into(),
        port: 6379,
        tls: false,
        database: 0,
        user: None,
        password: None,
    };
    assert_eq!(node("redis://redis.example"), plain);
    assert_eq!(node("redis://redis.example:6379/0"), plain);
    assert_eq!(node("redis://redis.example/"), plain);
    let all = RedisNode {
        host: "10.0.0.1".into(),
        port: 6390,
        tls: true,
        database: 3,
        user: Some("gate".into()),
        password: Some("s3cret".into()),
    };
    assert_eq!(node("rediss://gate:s3cret@10.0.0.1:6390/3"), all);
    let nameless = RedisNode { user: None, ..all };
    assert_eq!(node("rediss://:s3cret@10.0.0.1:6390/3"), nameless);
}

#[test]
fn an_ipv6_address_needs_brackets() {
    let six = node("redis://[2001:db8::7]:7000");
    assert_eq!((&*six.host, six.port), ("2001:db8::7", 7000));
    assert_eq!(node("redis://[::1]").port, 6379);
    for text in ["redis://::1", "redis://2001:db8::7:7000"] {
        assert!(parse_error(text).help.contains("in brackets"), "{text}");
    }
    for text in [
        "redis://[::1",
        "redis://[a]",
        "redis://[::1]6379",
        "redis://[10.0.0.1]",
    ] {
        assert!(redis_url(text).is_err(), "{text}");
    }
}

#[test]
fn escapes_in_user_and_password_are_decoded() {
    let node = node("redis://g%2Fte:p%40s%3As%25%C3%BC+@h");
    assert_eq!(node.user.as_deref(), Some("g/te"));
    let password = node.password.expect("a password");
    assert_eq!(password.reveal(), "p@s:s%ü+");
    for text in [
        "redis://:a%@h",
        "redis://:a%4@h",
        "redis://:a%4x@h",
        "redis://:%FF@h",
    ] {
        assert!(
            parse_error(text).title.contains("invalid percent escape"),
            "{text}"
        );
    }
}

#[test]
fn a_user_without_a_password_is_an_error() {
    for text in [
        "redis://gate@h",
        "redis://gate:@h",
        "redis://:@h",
        "redis://@h",
    ] {
        let error = parse_error(text);
        assert!(
            error.title.contains("without a password"),
            "{}",
            error.title
        );
    }
    assert!(parse_error("redis://a%20b:c@h").title.contains("spaces"));
}

#[test]
fn malformed_urls_are_reported_with_a_remedy() {
    for (text, title) in [
        ("", "not the URL"),
        ("localhost:6379", "not the URL"),
        ("redis:/h", "not the URL"),
        ("http://h", "does not begin"),
        ("redis+unix:///run/redis.sock", "does not begin"),
        ("REDIS://h", "does not begin"),
        ("redis://", "no valid host"),
        ("redis:///1", "no valid host"),
        ("redis://:6379", "no valid host"),
        ("redis://a b", "no valid host"),
        ("redis://größe", "no valid host"),
        ("redis://10.0.0.256", "no valid host"),
        ("redis://h:", "invalid port"),
        ("redis://h:0", "invalid port"),
        ("redis://h:+1", "invalid port"),
        ("redis://h:65536", "invalid port"),
        ("redis://h/db", "a path"),
        ("redis://h/+1", "a path"),
        ("redis://h/1/", "a path"),
        ("redis://h/4294967296", "a path"),
        ("redis://h?db=1", "a query"),
        ("redis://h#1", "a fragment"),
        ("redis://h/1?protocol=3", "a path"),
    ] {
        let error = parse_error(text);
        assert!(error.title.contains(title), "{text}: {}", error.title);
        assert!(error.help.starts_with("write "), "{text}: {}", error.help);
    }
}

#[test]
fn no_error_contains_the_password() {
    for text in [
        "http://gate:s3cret@h",
        "gate:s3cret@h",
        "gate:s3cret@redis://h",
        ":s3cret@h:6379",
        "redis://s3cret@h",
        "redis://:s3cret",
        "redis://gate:s3cret/0",
        "redis://:s3/cret@h",
        "redis://:s3#cret@h",
        "redis://:s3?cret@h",
        "redis://:s3@cret@h",
        "redis://:s3cret%@h",
        "redis://a%20b:s3cret@h",
        "redis://:s3cret@",
        "redis://:s3cret@h:x",
        "redis://:s3cret@h/x",
        "redis://:s3cret@h?x",
    ] {
        let shown = parse_error(text).to_string();
        assert!(!shown.contains("s3") && !shown.contains("cret"), "{shown}");
    }
    assert!(
        parse_error("redis://gate:s3cret@h/x")
            .title
            .contains("`redis://gate:***@h/x`")
    );
}

#[test]
fn debug_output_omits_the_password() {
    let url = redis_url("redis://gate:s3cret@h").expect("a URL");
    let shown = format!("{url:?}");
    assert!(
        shown.contains("gate") && !shown.contains("s3cret"),
        "{shown}"
    );
}

proptest::proptest! {
    #[test]
    fn any_password_can_be_escaped(password in "\\PC{1,20}") {
        let octets: Vec<_> = password.bytes().map(|octet| format!("{octet:02x}")).collect();
        let escaped = format!("%{}", octets.join("%"));
        let node = node(&format!("redis://:{escaped}@h"));
        proptest::prop_assert_eq!(node.password.as_ref().map(Password::reveal), Some(&*password));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(redis://)?[ -~ü]{0,40}") {
        let _ = redis_url(&text);
    }
}

#[test]
fn passwords_are_masked_in_malformed_urls() {
    for (url, shown) in [
        ("redis://h:6379/1", "redis://h:6379/1"),
        ("redis://[::1]", "redis://[::1]"),
        ("redis://[fe80::ab]:6379", "redis://[fe80::ab]:6379"),
        ("redis://u:p@h:6379", "redis://u:***@h:6379"),
        ("redis://:p@h", "redis://:***@h"),
        ("redis://p@h", "redis://***@h"),
        ("redis://:p:q/r@s@h", "redis://:***@h"),
        ("u:p@h", "u:***@h"),
        ("u:p@redis://h", "u:***@redis://h"),
        ("redis://:p", "redis://:***"),
        ("redis://:6p/0", "redis://:***"),
        ("redis://@h", "redis://@h"),
        ("h:6379", "h:6379"),
        ("", ""),
    ] {
        assert_eq!(masked_url(url), shown, "{url}");
    }
}
