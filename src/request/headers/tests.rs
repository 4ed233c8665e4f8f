use super::*;

fn name(text: &str) -> HeaderName {
    HeaderName::from_bytes(text.as_bytes()).unwrap()
}

fn names(read: &[&str]) -> HeaderNames {
    let mut names = HeaderNames::default();
    let read: Vec<_> = read.iter().map(|text| name(text)).collect();
    names.add_route(read.iter(), [].iter(), Some(&name("x-once")));
    names
}

fn identifying(read: &[&str]) -> IdentifyingHeaders {
    let read: Vec<_> = read.iter().map(|text| name(text)).collect();
    HeaderNames::default().add_route(read.iter(), [].iter(), None)
}

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (field, value) in lines {
        headers.append(
            name(field),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    headers
}

fn caller() -> Caller {
    let trust = crate::request::client::Trust::default();
    let peer = "192.0.2.1".parse().unwrap();
    trust.identify(peer, &HeaderMap::new()).unwrap()
}

#[test]
fn a_name_that_differs_only_in_separators_from_a_significant_header_is_a_lookalike() {
    let plain = names(&["x-api-key"]);
    for lookalike in [
        "x_api_key",
        "X-Api_Key",
        "x_api-key",
        "x.api.key",
        "x~api-key",
        "x_once",
        "x_forwarded_for",
        "Transfer_Encoding",
    ] {
        assert!(plain.is_lookalike(&name(lookalike)), "{lookalike}");
    }
    for other in ["x-api-key", "x_api_keys", "xapikey", "x_api", "x_", "host"] {
        assert!(!plain.is_lookalike(&name(other)), "{other}");
    }
    let odd = names(&["x_api_key"]);
    assert!(odd.is_lookalike(&name("x-api-key")) && odd.is_lookalike(&name("x-api_key")));
    assert!(!odd.is_lookalike(&name("x_api_key")) && !odd.is_lookalike(&name("host")));
    let both = names(&["x_api_key", "x-api-key"]);
    assert!(!both.is_lookalike(&name("x-api-key")) && !both.is_lookalike(&name("x_api_key")));
    assert!(both.is_lookalike(&name("x.api.key")));
}

#[test]
fn only_leading_or_trailing_white_space_makes_a_value_padded() {
    for value in [" a", "a ", "\ta", "a\t", " ", "\t"] {
        assert!(has_padded_value(&headers(&[("x", "a"), ("x", value)])));
    }
    for value in ["", "a", "a b", "a\tb", "\u{a0}a"] {
        assert!(!has_padded_value(&headers(&[("x", value)])), "{value:?}");
    }
}

#[test]
fn headers_listed_in_connection_are_removed_unless_protected() {
    let mut normalised = headers(&[
        ("connection", "X-Api-Key, x-once, close"),
        ("connection", "cookie,\tX-Other,te , \"quoted\""),
        ("x-api-key", "a"),
        ("x-once", "a"),
        ("cookie", "a"),
        ("x-other", "a"),
        ("te", "trailers"),
        ("x-kept", "a"),
    ]);
    names(&["x-api-key"]).normalise(&mut normalised, true);
    let mut left: Vec<_> = normalised.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["connection", "cookie", "te", "x-kept", "x-once"]);
}

#[test]
fn a_repeated_counted_header_is_rejected() {
    let identifying = identifying(&["x-api-key"]);
    let check = |lines: &[(&str, &str)]| identifying.check(&mut headers(lines), &caller(), None);
    assert!(check(&[]).is_ok() && check(&[("x-api-key", "a"), ("x", "1"), ("x", "2")]).is_ok());
    for values in [["a", "a"], ["a", "b"], ["", "a"], ["", ""]] {
        let checked = check(&values.map(|value| ("x-api-key", value)));
        let Err(HeadError::Invalid(detail)) = checked else {
            panic!("{values:?}: {checked:?}");
        };
        assert!(detail.contains("x-api-key"), "{detail}");
    }
}

#[test]
fn a_credential_has_a_capitalised_scheme_and_one_space() {
    for (value, expected) in [
        ("Bearer t", "Bearer t"),
        ("bearer t", "Bearer t"),
        ("BEARER   t u", "Bearer t u"),
        ("Bearer\tt", "Bearer t"),
        ("Bearer \t t", "Bearer t"),
        ("Basic YTpi", "Basic YTpi"),
        ("basic", "basic"),
        ("seCret-Token", "seCret-Token"),
        ("", ""),
    ] {
        let canonical = canonical(&AUTHORIZATION, value.as_bytes());
        assert_eq!(str::from_utf8(&canonical), Ok(expected), "{value:?}");
        assert_eq!(matches!(canonical, Cow::Borrowed(_)), value == expected);
    }
    let other = name("x-api-key");
    assert_eq!(&*canonical(&other, b"bearer  t"), b"bearer  t");
}

#[test]
fn a_canonical_host_is_lower_case_without_port_and_final_dot() {
    for (value, expected) in [
        ("a.example", "a.example"),
        ("A.Example:8443", "a.example"),
        ("a.example.", "a.example"),
        ("a.example.:80", "a.example"),
        ("a.example:", "a.example"),
        ("[::1]:80", "[::1]"),
        ("[0:0:0:0:0:0:0:1]", "[::1]"),
        ("[2001:DB8::A]", "[2001:db8::a]"),
        ("", ""),
    ] {
        let canonical = canonical(&HOST, value.as_bytes());
        assert_eq!(str::from_utf8(&canonical), Ok(expected), "{value:?}");
    }
}
