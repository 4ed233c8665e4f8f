//! Tests with many spellings of a limited path: none of them reaches upstream uncounted, whatever upstream decodes.

use http::Method;
use proptest::prelude::*;
use tidegate::internals::{AmbiguousPaths, Matcher, PathMode, RouteMatch, read_path};

use super::decoders::DECODERS;
use super::{gateway, use_token};
use crate::support::{ClientResponse, Upstream};

const LIMITED: &str = "/o/client/register";

/// Sequences that servers can read as a slash.
const SLASHES: [&str; 65] = [
    "//",
    "///",
    "/./",
    "/%2e/",
    "/x/../",
    "/x/%2e%2e/",
    "/x/.%2E/",
    "/x//../",
    "/x///../../",
    "/x/y/../../",
    "/%2e%2e/",
    "%2f",
    "%2F",
    "/%2f",
    "\\",
    "/\\",
    "\\/",
    "%5c",
    "%5C",
    "/%5c..%5c",
    "/x\\..\\",
    "/x%5C..%5C",
    "/x%255c..%255c",
    "%252f",
    "%25252F",
    "/;/",
    "/;x/",
    ";/",
    ";x=1/",
    ";x=1;y=2//",
    "%3Bx/",
    "%253bx/",
    "/..;/",
    "/x/..;/",
    "/x/..;a=b/",
    "/x/%2e%2e;/",
    "/x/..%3b/",
    "/x;y/..;z/",
    "/.;/",
    "/%09/",
    "/%20/",
    "/%0a/",
    "/%00/",
    "/x/%252e%252e/",
    "/x/%25252e./",
    "/x%252f..%252f",
    "/x/..%2f",
    "/x/..%252F",
    "/.%00/",
    "/.../",
    "%c0%af",
    "%C0%AF",
    "%e0%80%af",
    "/x%c0%af..%c0%af",
    "/x/%c0%ae%c0%ae/",
    "/x/%25c0%25ae./",
    "%c1%9c",
    "%ef%bc%8f",
    "/%c0%ae%c0%ae/",
    "/x/.%252e;y\\",
    "/x%2F..//",
    "/./x;y//..%2f../",
    "%2f/",
    "/x/%2e%2e%5c",
    "/x/y%2f../../",
];

/// Further spellings, and paths that are not spellings of [`LIMITED`].
const OTHERS: [&str; 15] = [
    "//host/o/client/register",
    "//host\\o/client/register",
    "/\\host/o/client/register",
    "///host/o/client/register",
    "/\\/\\host/o/client/register",
    "/%2Fhost/o/client/register",
    "/x?/../o/client/register",
    "/x%3F/../o/client/register",
    "/x%3f/%2e%2e/o/client/register",
    "/%23/../o/client/register",
    "/o/client/register%3Fx",
    "/o/client/register%23x",
    "/o/client/register;x",
    "/O/client/register",
    "/o/client/regist",
];

/// Returns many spellings of [`LIMITED`]. In each of them, one character is encoded, or slashes are replaced by other
/// sequences, and an ending is appended.
fn spellings() -> Vec<String> {
    let characters = LIMITED.char_indices().flat_map(|(at, character)| {
        let code = u32::from(character);
        let (before, after) = (&LIMITED[..at], &LIMITED[at + 1..]);
        let (lead, last) = (0xC0 | code >> 6, 0x80 | code & 0x3F);
        [
            format!("%{code:02x}"),
            format!("%{code:02X}"),
            format!("%25{code:02x}"),
            format!("%2525{code:02X}"),
            format!("%25%32%35{code:02x}"),
            format!("%u00{code:02x}"),
            format!("%{code:x}%00"),
            format!("%{lead:02x}%{last:02x}"),
            format!("%E0%{:02X}%{last:02X}", 0x80 | code >> 6),
            format!("%25{lead:02x}%25{last:02x}"),
        ]
        .map(|spelling| format!("{before}{spelling}{after}"))
    });
    let at_slashes = SLASHES.into_iter().flat_map(|slash| {
        let one = LIMITED
            .match_indices('/')
            .map(move |(at, _)| format!("{}{slash}{}", &LIMITED[..at], &LIMITED[at + 1..]));
        let all = LIMITED.replace('/', slash);
        let rooted = if all.starts_with('/') {
            all
        } else {
            format!("/{all}")
        };
        one.chain([rooted])
    });
    let single = characters
        .chain(at_slashes)
        .chain(OTHERS.map(str::to_owned))
        .filter(|path| path.starts_with('/'));
    let endings = ["", "/..", ";x", "%2f%2e%2e%2Fregister"];
    single
        .flat_map(|path| endings.map(|ending| format!("{path}{ending}")))
        .collect()
}

/// Returns the name of a decoder that reads a request target as the limited path.
fn reads_as_limited(target: &str) -> Option<&'static str> {
    let path = target.split('?').next().unwrap_or_default();
    let is_limited = |read: fn(&str) -> String| read(path).starts_with(LIMITED);
    let decoder = DECODERS.iter().find(|decoder| is_limited(decoder.read));
    decoder.map(|decoder| decoder.name)
}

/// Number of spellings that were forwarded without a charge, charged to the limit, and rejected as ambiguous.
#[derive(Debug, Default)]
struct Outcomes {
    forwarded: usize,
    charged: usize,
    rejected: usize,
}

impl Outcomes {
    #[track_caller]
    fn add(&mut self, spelling: &str, response: &ClientResponse) {
        match response.status {
            200 => {
                let target = response.json()["target"].to_string();
                let target = target.trim_matches('"').replace(r"\\", r"\");
                let decoder = reads_as_limited(&target);
                assert_eq!(
                    decoder, None,
                    "{spelling} is forwarded uncounted as {target}"
                );
                self.forwarded += 1;
            }
            429 => self.charged += 1,
            400 => self.rejected += 1,
            status => panic!("{spelling} gets {status}"),
        }
    }
}

#[tokio::test]
async fn no_spelling_of_a_limited_path_is_forwarded_uncounted() {
    let spellings = spellings();
    let ambiguous = spellings
        .iter()
        .filter(|spelling| reads_as_limited(spelling).is_some())
        .count();
    assert!(
        spellings.len() >= 1_000 && ambiguous >= 500,
        "{ambiguous} of {} spellings are read as the limited path",
        spellings.len()
    );
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    use_token(&gateway).await;
    for client in [gateway.client(), gateway.client().h2()] {
        let mut connection = client.keep_alive().await;
        let mut outcomes = Outcomes::default();
        for spelling in &spellings {
            let response = connection.send(client.get(spelling)).await;
            outcomes.add(spelling, &response);
        }
        let Outcomes {
            forwarded,
            charged,
            rejected,
        } = outcomes;
        assert!(
            forwarded > 50 && charged > 50 && rejected > 500,
            "one-sided: {outcomes:?}"
        );
    }
}

/// Returns a matcher with the limited path and a route for everything else. The values are the names of the routes.
fn routes() -> Matcher<&'static str> {
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
    let routes = vec![route("limited", LIMITED), route("rest", "/")];
    Matcher::compile(routes).expect("the patterns are valid")
}

/// Generates paths whose readings are often the limited path.
fn some_path() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/o/client/register",
        "/o",
        "/client",
        "/register",
        "o",
        "/",
        "//",
        "\\",
        "%2f",
        "%5C",
        "%252F",
        "%25",
        "2f",
        "5c",
        "/.",
        "/..",
        "..",
        ".",
        "%2e",
        "%252e",
        ";",
        ";x",
        "%3b",
        "%3F",
        "%23",
        "%c0%af",
        "%c0%ae",
        "%e0%80%af",
        "x",
        "/x",
        "%6f",
        "%256f",
        "%40",
    ]);
    prop::collection::vec(piece, 1..8).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn all_servers_agree_on_the_route_of_a_forwarded_path(raw in some_path()) {
        let routes = routes();
        let Ok(path) = read_path(&raw, None) else {
            return Ok(());
        };
        let Ok(&route) = routes.select(&Method::GET, &path) else {
            return Ok(());
        };
        for decoder in &DECODERS {
            let read = (decoder.read)(path.forwarded());
            let is_limited = read.starts_with(LIMITED);
            prop_assert_eq!(is_limited, route == "limited", "{} reads {} as {}", decoder.name, raw, read);
        }
    }
}
