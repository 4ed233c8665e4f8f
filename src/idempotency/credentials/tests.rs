use proptest::prelude::*;

use super::*;

#[test]
fn credentials_are_recognised_by_their_header_name() {
    for name in [
        "cookie",
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "apikey",
        "x-auth-user",
        "x-amz-security-token",
        "x-session-id",
        "client-secret",
        "x-goog-authenticated-user-email",
    ] {
        assert!(is_credential(&HeaderName::from_static(name)), "{name}");
    }
    for name in [
        "host",
        "accept",
        "content-type",
        "user-agent",
        "idempotency-key",
        "x-amz-date",
        "traceparent",
        "amz-sdk-request",
        "sec-fetch-site",
        "x-api",
        "api-keys-are-not-ap",
        "x-request-id",
        "a",
        "s",
        "t",
    ] {
        let expected = name.starts_with("api-key");
        assert_eq!(
            is_credential(&HeaderName::from_static(name)),
            expected,
            "{name}"
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "the test is a table of cases")]
fn the_identity_of_a_signed_request_excludes_its_signature() {
    let of = |value: &'static str| {
        SignedIdentity::parse(value.as_bytes()).map(|signed| {
            let texts = signed.identity.iter();
            let texts = texts.map(|text| str::from_utf8(text).unwrap());
            format!("{} {}", signed.scheme, texts.collect::<Vec<_>>().join(" "))
        })
    };
    for (value, identity) in [
        (
            "AWS4-HMAC-SHA256 Credential=AKID/20261117/us-east-1/sqs/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature=1f",
            "credential AKID",
        ),
        (
            "aws4-ecdsa-p256-sha256 Credential=AKID/20261117/sqs/aws4_request,SignedHeaders=host,Signature=1f",
            "credential AKID",
        ),
        (
            "OAuth realm=\"a, b\", oauth_nonce=\"1\", oauth_consumer_key=\"me\", oauth_token=\"t\", \
             oauth_signature=\"x%3D\"",
            "oauth me t",
        ),
        (
            "OAuth oauth_consumer_key=\"me\",oauth_signature=\"x\"",
            "oauth me ",
        ),
        (
            "Digest username=\"Mu \\\"f\\\"\", realm=\"r\", nonce=\"n\", uri=\"/a,b=c\", nc=00000002, \
             response=\"1\"",
            "digest Mu \\\"f\\\" r",
        ),
        (
            "Digest username*=UTF-8''J%C3%A4, realm=\"r\", response=\"1\"",
            "digest UTF-8''J%C3%A4 r",
        ),
        (
            "Hawk id=\"dh37\", ts=\"1\", nonce=\"j\", mac=\"m\"",
            "hawk dh37",
        ),
        (
            "Signature keyId=\"k1\",algorithm=\"hmac\",signature=\"x=\"",
            "signature k1",
        ),
        (
            "Digest\tusername=\"a\",\trealm = \"r\",, nc=00000001 ,",
            "digest a r",
        ),
        ("Hawk id=a", "hawk a"),
        (
            "GOOG4-HMAC-SHA256 Credential=me@p/20261117/auto/storage/goog4_request, Signature=1f",
            "credential me@p",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/b/20261117/r/s/aws4_request, Signature=1f",
            "credential a/b",
        ),
        ("AWS AKID:frJIUN8DYpKDtOLCwo//yllqDzg=", "id AKID"),
        (
            "AWS test:tester:frJIUN8DYpKDtOLCwo//yllqDzg=",
            "id test:tester",
        ),
        (
            "SharedKey account:ctzMq410TV3wS7upTBcunJTDLEJwMAZuFPfr0mrrA08=",
            "id account",
        ),
        (
            "OAuth oauth_consumer_key=\"me\", oauth_token=\"\", oauth_signature=\"x\"",
            "oauth me ",
        ),
    ] {
        assert_eq!(of(value).as_deref(), Some(identity), "{value}");
    }
    for value in [
        "Bearer abc",
        "AWS :sig",
        "AWS AKID",
        "HMAC key:sig",
        "HMAC Credential=app, User=alice, Signature=1",
        "ACS3-HMAC-SHA256 Credential=id,SignedHeaders=host,Signature=1f",
        "AWS4-HMAC-SHA256 Credential=AKID, Signature=1f",
        "AWS4-HMAC-SHA256 Credential=A/20261117/r/s/aws4_request",
        "AWS4-HMAC-SHA256 Credential=&a",
        "Basic dXNlcjpwdw==",
        "Token token=\"abc\"",
        "OAuth 00D50000000IZ3Z!AQ0AQDp",
        "OAuth oauth_consumer_key=\"me\"",
        "AWS4-HMAC-SHA256 SignedHeaders=host, Signature=1f",
        "AWS4-HMAC-SHA256 Credential=A/1, Credential=B/1",
        "Digest username=\"\", realm=\"r\"",
        "Digest username=\"open",
        "Hawk",
        "Signature keyid",
        // A server can parse each of the following values differently from the gateway, and get another user name.
        "Digest username='Doe, John', realm=\"r\"",
        "Digest username=\"ann\"b, realm=\"r\"",
        "Hawk id=\"ann\"b, ts=\"1\"",
        "Hawk id=a\"b,c\", ts=\"1\"",
        "Hawk id=\"\\",
        "AWS4-HMAC-SHA256 Credential=/20261117/r/s/aws4_request, Signature=1f",
        "OAuth oauth_consumer_key=\"me\", oauth_token=\"a\", oauth_token=\"b\", oauth_signature=\"x\"",
        "OAuth oauth_consumer_key=\"me\", oauth_token='a', oauth_signature=\"x\"",
    ] {
        assert_eq!(of(value), None, "{value}");
    }
}

#[test]
fn cookies_of_load_balancers_and_analytics_are_ignored() {
    for name in [
        "AWSALB",
        "AWSALBCORS",
        "_ga",
        "_ga_X1",
        "_gat",
        "_gat_UA-1",
        "_hjid",
        "_pk_ses.1.fff",
        "AWSALBTGCORS",
        "AWSALBAPP-0",
        "AWSELB",
        "bm_sz",
        "incap_ses_1_2",
        "GCLB",
        "__utmz",
        "BIGipServerpool",
    ] {
        assert!(is_ignored(name.as_bytes(), b"1"), "{name}");
    }
    for name in [
        "session",
        "sid",
        "GCLB2",
        "_g",
        "awsalb",
        "",
        // AWS load balancers and NetScaler set these cookies for the login sessions of users.
        "AWSELBAuthSessionCookie-0",
        "AWSALBAuthNonce",
        "NSC_AAAC",
        "NSC_TMAS",
        // These are session cookies of Rails applications: an underscore, the name of the application, and `_session`.
        "_gallery_session",
        "_ga_session",
        "_pk_session",
        "_hjelp_session",
        "bm_user",
        "SERVERIDENTITY",
        "_gidgets",
    ] {
        assert!(!is_ignored(name.as_bytes(), b"1"), "{name}");
    }
    for name in ["_ga_Session", "_pk_SESSION", "_pk_token", "_hjAuth"] {
        assert!(!is_ignored(name.as_bytes(), b"1"), "{name}");
    }
    // Cookies with these values are not ignored, because some servers accept a comma, a quote or white space as a
    // separator between cookies.
    for value in ["1, sid=a", "1 sid=a", "1\tsid=a", "\"1\""] {
        assert!(!is_ignored(b"_ga", value.as_bytes()), "{value}");
    }
    let pairs: Vec<_> = cookies(b"a=1; b=x=y;; flag ;=v").collect();
    assert_eq!(
        pairs,
        [
            (&b"a"[..], &b"1"[..]),
            (b"b", b"x=y"),
            (b"flag", b""),
            (b"", b"v")
        ]
    );
}
proptest! {
    #[test]
    fn identities_and_cookies_of_any_value_are_parts_of_it(
        value in prop::collection::vec(any::<u8>(), 0..80),
        scheme in prop::sample::select(vec!["Digest", "OAuth", "Hawk", "Signature", "AWS4-X"]),
        params in "[a-zA-Z*_=,\"'\\\\/ \t]{0,60}",
    ) {
        let signed = format!("{scheme} {params}");
        for value in [&value[..], signed.as_bytes()] {
            let identity = SignedIdentity::parse(value).map(|signed| signed.identity);
            for part in identity.into_iter().flatten() {
                let is_part = part.is_empty() || value.windows(part.len()).any(|window| window == part);
                prop_assert!(is_part, "{}", part.escape_ascii());
            }
        }
        for (name, content) in cookies(&value) {
            prop_assert!(!name.contains(&b';') && !name.contains(&b'=') && !content.contains(&b';'));
            prop_assert!(!is_ignored(&[name, b"session"].concat(), content));
        }
    }

    #[test]
    fn the_identity_is_independent_of_other_parameters_and_their_order(
        user in "[ -~]{1,12}",
        others in prop::collection::vec("[ -~]{0,12}", 4),
        turn in 0_usize..6,
    ) {
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let value = |others: &[String]| {
            let mut params = [
                format!("username={}", quoted(&user)),
                format!("realm={}", quoted("r")),
                format!("nonce={}", quoted(&others[0])),
                format!("uri={}", quoted(&others[1])),
                "nc=00000001".to_owned(),
                "qop=auth".to_owned(),
            ];
            params.rotate_left(turn);
            format!("Digest {}", params.join(", "))
        };
        let (one, other) = (value(&others[..2]), value(&others[2..]));
        let (one, other) = (SignedIdentity::parse(one.as_bytes()), SignedIdentity::parse(other.as_bytes()));
        prop_assert!(one.is_some());
        prop_assert_eq!(&one, &other);
        let name = quoted(&user);
        prop_assert_eq!(one.unwrap().identity[0], &name.as_bytes()[1..name.len() - 1]);
    }
}
