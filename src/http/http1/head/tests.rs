use proptest::prelude::*;

use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 4096,
    lines: 20,
};

fn parse(bytes: &[u8], limits: HeadLimits) -> Result<Option<Head>, Violation> {
    super::parse(bytes, limits, &mut Vec::new())
}

fn accepted(head: &str) -> Head {
    let outcome = parse(head.as_bytes(), LIMITS);
    let Ok(Some(parsed)) = outcome else {
        panic!("{head:?} gave {outcome:?}");
    };
    assert_eq!(parsed.len, head.len(), "{head:?}");
    parsed
}

fn rejected(head: &str, violation: Violation) {
    assert_eq!(parse(head.as_bytes(), LIMITS), Err(violation), "{head:?}");
}

/// Returns a `POST` request head with `Host` and these header lines.
fn with(lines: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n")
}

#[test]
fn an_ordinary_head_is_accepted() {
    let head = accepted(
        "GET /o/client/token?a=b HTTP/1.1\r\nHost: api.example\r\nAccept:*/*\r\nX:\t a\tb \r\nEmpty:\r\n\r\n",
    );
    assert_eq!(head.framing, Framing::None);
    assert!(!head.upgrade);
}

#[test]
fn bytes_after_the_head_are_not_parsed() {
    let stream = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n\n\0 more";
    let head = parse(stream, LIMITS).unwrap().unwrap();
    assert_eq!(head.len, stream.len() - 7);
}

#[test]
fn one_empty_line_before_the_head_is_accepted_and_a_second_is_rejected() {
    accepted("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    rejected(
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        Violation::RequestLine,
    );
    rejected("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Violation::BareLf);
}

#[test]
fn the_framing_follows_the_headers() {
    assert_eq!(
        accepted(&with("Content-Length: 5")).framing,
        Framing::Length(5)
    );
    assert_eq!(
        accepted(&with("content-length:\t007 ")).framing,
        Framing::Length(7)
    );
    assert_eq!(accepted(&with("Content-Length: 0")).framing, Framing::None);
    assert_eq!(
        accepted(&with("Transfer-Encoding: chunked")).framing,
        Framing::Chunked
    );
    assert_eq!(
        accepted(&with("transfer-encoding: Chunked ")).framing,
        Framing::Chunked
    );
}

#[test]
fn a_content_length_beside_a_transfer_encoding_is_rejected_in_both_orders() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked\r\nX: y\r\nContent-Length: 0",
    ] {
        rejected(&with(lines), Violation::BothFramings);
    }
}

#[test]
fn a_second_content_length_is_rejected_even_if_equal() {
    rejected(
        &with("Content-Length: 5\r\nContent-Length: 5"),
        Violation::ContentLengthRepeated,
    );
    rejected(
        &with("Content-Length: 5\r\ncontent-length: 6"),
        Violation::ContentLengthRepeated,
    );
}

#[test]
fn a_content_length_that_is_not_plain_digits_is_rejected() {
    for value in [
        "+5",
        "-0",
        "-1",
        "0x5",
        "5 5",
        "5,5",
        "5, 5",
        "5;",
        "5.0",
        "",
        " ",
        "five",
        "18446744073709551616",
        "18446744073709551615",
        "99999999999999999999999",
        "10000000000000000000",
        "00000000000000000007",
    ] {
        rejected(
            &with(&format!("Content-Length: {value}")),
            Violation::ContentLength,
        );
    }
    assert_eq!(
        accepted(&with("Content-Length: 9999999999999999999")).framing,
        Framing::Length(9_999_999_999_999_999_999)
    );
}

#[test]
fn a_transfer_encoding_other_than_chunked_is_rejected() {
    for value in [
        "gzip, chunked",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "xchunked",
        "chunked;q=1",
        "\"chunked\"",
        "identity",
        "gzip",
        "",
        "chunked x",
        "\u{b}chunked",
    ] {
        let violation = if value.contains('\u{b}') {
            Violation::Control
        } else {
            Violation::TransferEncoding
        };
        rejected(&with(&format!("Transfer-Encoding: {value}")), violation);
    }
    rejected(
        &with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        Violation::TransferEncodingRepeated,
    );
}

#[test]
fn a_transfer_encoding_on_http_1_0_is_rejected() {
    rejected(
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        Violation::TransferEncodingOnHttp10,
    );
}

#[test]
fn a_bare_line_feed_is_rejected_everywhere() {
    for head in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\nZ: w\r\n\r\n",
        "GET / HTTP/1.1\r\nHost\n: a\r\n\r\n",
        "GET\n/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\n HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\n\n",
    ] {
        rejected(head, Violation::BareLf);
    }
}

#[test]
fn a_bare_carriage_return_is_rejected_everywhere() {
    for head in [
        "GET / HTTP/1.1\rHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\rX: y\r\n\r\n",
    ] {
        rejected(head, Violation::BareCr);
    }
    rejected("GET / HTTP/1.1\r\nHo\rst: a\r\n\r\n", Violation::Name);
}

#[test]
fn a_folded_header_is_rejected() {
    rejected(&with("X: a\r\n b"), Violation::Folded);
    rejected(&with("X: a\r\n\tb"), Violation::Folded);
    rejected("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Violation::Folded);
}

#[test]
fn white_space_before_a_colon_is_rejected() {
    rejected(&with("X : a"), Violation::SpaceBeforeColon);
    rejected(&with("Content-Length\t: 5"), Violation::SpaceBeforeColon);
}

#[test]
fn a_header_name_that_is_not_a_token_is_rejected() {
    rejected(&with(": a"), Violation::EmptyName);
    rejected(&with("X\0Y: a"), Violation::Name);
    rejected(&with("X(Y): a"), Violation::Name);
    rejected(&with("Xé: a"), Violation::Name);
    rejected(&with("nocolon"), Violation::Name);
    accepted(&with("!#$%&'*+-.^_`|~09az: a"));
}

#[test]
fn a_control_character_other_than_tab_in_a_header_value_is_rejected() {
    for octet in (0u8..0x20).chain([0x7f]) {
        let line = format!("X: a{}b", char::from(octet));
        match octet {
            b'\t' => {
                accepted(&with(&line));
            }
            b'\r' => rejected(&with(&line), Violation::BareCr),
            b'\n' => rejected(&with(&line), Violation::BareLf),
            _ => rejected(&with(&line), Violation::Control),
        }
    }
    accepted(&with("X: naïve"));
}

#[test]
fn a_request_line_without_three_parts_and_single_spaces_is_rejected() {
    for line in [
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET /",
        "GET / ",
        "GET",
        "G(T / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET / HTTP/1.1\t",
        "GET / http/1.1",
        "GET / HTTP/1",
        "GET / HTTP/1.1.1",
        "GET / HTTP/11",
        "GET / HTTP",
        "GET /a b HTTP/1.1",
    ] {
        rejected(
            &format!("{line}\r\nHost: a\r\n\r\n"),
            Violation::RequestLine,
        );
    }
}

#[test]
fn a_target_with_control_characters_or_invalid_utf_8_is_rejected() {
    for (target, octet, at) in [
        ("/\0", 0, 1),
        ("/\t", b'\t', 1),
        ("/a\u{7f}b", 0x7f, 2),
        ("/a\u{1b}", 0x1b, 2),
    ] {
        rejected(
            &format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
            Violation::TargetCharacter { octet, at },
        );
    }
    assert_eq!(
        parse(b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", LIMITS),
        Err(Violation::Target)
    );
    accepted("GET /é HTTP/1.1\r\nHost: a\r\n\r\n");
}

#[test]
fn unsupported_and_malformed_versions_are_different_violations() {
    rejected("GET / HTTP/2.0\r\nHost: a\r\n\r\n", Violation::Version);
    rejected("GET / HTTP/1.2\r\nHost: a\r\n\r\n", Violation::Version);
    rejected("GET / HTTP/0.9\r\n\r\n", Violation::Version);
    rejected("GET / HTTQ/1.1\r\n\r\n", Violation::RequestLine);
}

#[test]
fn http_1_1_requires_one_host_and_http_1_0_allows_at_most_one() {
    rejected("GET / HTTP/1.1\r\n\r\n", Violation::HostMissing);
    rejected(
        "GET / HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n",
        Violation::HostRepeated,
    );
    accepted("GET / HTTP/1.0\r\n\r\n");
    accepted("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    rejected(
        "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
        Violation::HostRepeated,
    );
}

#[test]
fn only_an_http_1_1_request_with_an_upgrade_header_is_an_upgrade() {
    assert!(accepted(&with("Connection: upgrade\r\nUpgrade: websocket")).upgrade);
    assert!(!accepted("GET / HTTP/1.0\r\nUpgrade: websocket\r\n\r\n").upgrade);
}

#[test]
fn keep_alive_follows_the_version_and_the_connection_header() {
    let stays = |lines: &str, version: &str| {
        accepted(&format!("GET / {version}\r\nHost: a\r\n{lines}\r\n")).keep_alive
    };
    for (lines, old, new) in [
        ("", false, true),
        ("Connection: close\r\n", false, false),
        ("Connection: Keep-Alive\r\n", true, true),
        ("Connection: te , CLOSE\r\n", false, false),
        (
            "Connection: close\r\nConnection: keep-alive\r\n",
            false,
            false,
        ),
        ("Connection: keep-alive, close\r\n", false, false),
        ("Connection: closed\r\n", false, true),
    ] {
        assert_eq!(stays(lines, "HTTP/1.0"), old, "{lines:?}");
        assert_eq!(stays(lines, "HTTP/1.1"), new, "{lines:?}");
    }
}

#[test]
fn only_http_1_1_expects_continue_or_accepts_trailers() {
    let lines = "Host: a\r\nExpect: 100-Continue\r\nTE: gzip, Trailers\r\n\r\n";
    let new = accepted(&format!("GET / HTTP/1.1\r\n{lines}"));
    assert!(new.expects_continue && new.accepts_trailers);
    let old = accepted(&format!("GET / HTTP/1.0\r\n{lines}"));
    assert!(!old.expects_continue && !old.accepts_trailers);
    let neither = accepted(&with("Expect: 100\r\nTE: trailersx"));
    assert!(!neither.expects_continue && !neither.accepts_trailers);
}

#[test]
fn a_head_over_its_byte_limit_is_rejected() {
    let head = with("X: y");
    let limits = |bytes| HeadLimits { bytes, lines: 20 };
    assert!(matches!(
        parse(head.as_bytes(), limits(head.len())),
        Ok(Some(_))
    ));
    assert_eq!(
        parse(head.as_bytes(), limits(head.len() - 1)),
        Err(Violation::HeadTooLarge)
    );
    let endless = "x".repeat(1 << 20);
    rejected(&endless, Violation::HeadTooLarge);
    rejected(&with(&format!("X: {endless}")), Violation::HeadTooLarge);
}

#[test]
fn a_head_over_its_line_limit_is_rejected() {
    let lines = |count: usize| "X: y\r\n".repeat(count) + "X: y";
    accepted(&with(&lines(LIMITS.lines - 2)));
    rejected(&with(&lines(LIMITS.lines - 1)), Violation::TooManyHeaders);
}

/// Generates request heads, some of which have defects.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let method = prop::sample::select(vec!["GET", "POST", "CONNECT", "x!~", "", "G T"]);
    let target = prop::sample::select(vec!["/", "/a?b", "*", "http://a/", "/é", "", "/\u{7f}"]);
    let version = prop::sample::select(vec!["HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/1."]);
    let name = prop::sample::select(vec![
        "Host",
        "host",
        "Content-Length",
        "Transfer-Encoding",
        "Upgrade",
        "Connection",
        "X",
        "x_y",
        "",
        "a b",
    ]);
    let value = prop::sample::select(vec![
        "a",
        "",
        "5",
        "05",
        "chunked",
        "gzip, chunked",
        " \t b \t ",
        "\u{1}",
        "é",
        "a\tb",
    ]);
    let colon = prop::sample::select(vec![":", ": ", ":\t", " :", ""]);
    let end = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r"]);
    let line = (name, colon, value, end.clone())
        .prop_map(|(name, colon, value, end)| format!("{name}{colon}{value}{end}"));
    let lines = prop::collection::vec(line, 0..5);
    let lead = prop::sample::select(vec!["", "", "\r\n", "\r\n\r\n", "\n"]);
    (lead, method, target, version, end.clone(), lines, end).prop_map(
        |(lead, method, target, version, end, lines, last)| {
            let lines = lines.concat();
            format!("{lead}{method} {target} {version}{end}Host: h\r\n{lines}{last}").into_bytes()
        },
    )
}

/// If the gateway's parser accepts the head in `bytes`, checks that the crate `httparse` finds the same method, target
/// and headers in it.
fn agrees_with_httparse(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut lines = Vec::new();
    let Ok(Some(head)) = super::parse(bytes, LIMITS, &mut lines) else {
        return Ok(());
    };
    let mut headers = [httparse::EMPTY_HEADER; 20];
    let mut request = httparse::Request::new(&mut headers);
    prop_assert_eq!(
        request.parse(bytes),
        Ok(httparse::Status::Complete(head.len))
    );
    prop_assert_eq!(request.method.unwrap().as_bytes(), &bytes[head.method]);
    prop_assert_eq!(request.path.unwrap().as_bytes(), &bytes[head.target]);
    let minor = u8::from(head.version == Version::Http11);
    prop_assert_eq!(request.version, Some(minor));
    let parts = |line: &HeaderLine| {
        let [name, value] = [&line.name, &line.value].map(|part| bytes[part.clone()].to_vec());
        (name, value)
    };
    let theirs = request.headers.iter();
    let theirs = theirs.map(|header| (header.name.as_bytes().to_vec(), header.value.to_vec()));
    prop_assert_eq!(
        lines.iter().map(parts).collect::<Vec<_>>(),
        theirs.collect::<Vec<_>>()
    );
    agrees_on_framing(head.framing, request.headers)
}

fn agrees_on_framing(
    framing: Framing,
    headers: &[httparse::Header<'_>],
) -> Result<(), TestCaseError> {
    let all = |name: &str| -> Vec<&[u8]> {
        let named = headers.iter();
        named
            .filter(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value)
            .collect()
    };
    match framing {
        Framing::Chunked => {
            prop_assert_eq!(all("transfer-encoding").len(), 1);
            prop_assert!(all("content-length").is_empty());
        }
        Framing::Length(length) => {
            let [value] = all("content-length")[..] else {
                return Err(TestCaseError::fail("not one content-length"));
            };
            prop_assert_eq!(str::from_utf8(value).unwrap().parse(), Ok(length));
            prop_assert!(all("transfer-encoding").is_empty());
        }
        Framing::None => {
            prop_assert!(all("transfer-encoding").is_empty());
            let zero =
                |value: &&[u8]| !value.is_empty() && value.iter().all(|&digit| digit == b'0');
            prop_assert!(all("content-length").iter().all(zero));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn httparse_parses_an_accepted_head_into_the_same_parts(head in heads()) {
        agrees_with_httparse(&head)?;
    }

    #[test]
    fn httparse_parses_an_accepted_damaged_head_into_the_same_parts(
        mut head in heads(),
        damage in any::<prop::sample::Index>(),
        octet in any::<u8>(),
    ) {
        let at = damage.index(head.len());
        head[at] = octet;
        agrees_with_httparse(&head)?;
    }

    #[test]
    fn httparse_parses_accepted_arbitrary_bytes_into_the_same_parts(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        agrees_with_httparse(&bytes)?;
    }

    #[test]
    fn a_prefix_of_a_valid_head_is_incomplete(head in heads()) {
        if let Ok(Some(whole)) = parse(&head, LIMITS) {
            for part in 0..whole.len {
                prop_assert_eq!(parse(&head[..part], LIMITS), Ok(None));
            }
        }
    }
}
