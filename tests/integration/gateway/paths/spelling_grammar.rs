//! Generates spellings of the limited path from a grammar of mutations.

use std::collections::HashSet;

use super::servers::LIMITED;

/// Request whose target some server could read as [`LIMITED`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spelling {
    method: &'static str,
    pub(super) target: String,
    /// Further header lines, each with its line end.
    headers: String,
}

/// Pseudo-random numbers (`SplitMix64`), which are the same in every run with the same seed.
pub(super) struct Random(u64);

// The lists are separated by white space.

/// Sequences that a server could read as a slash.
const SLASHES: &str = r"
    // /// /./ /.// /x/../ /x//../ /x/../../ \ /\ \\ %2F %2f %5C %252F %255c %25252f /%2e/ /x/%2e%2e/ /x/%252e%252e/
    /x/..%2f /x/..;/ /.;/ ;/ ;x=1/ %3B/ %C0%AF %E0%80%AF %EF%BC%8F
";

/// Sequences that a server could ignore before the path.
const PREFIXES: &str = r"
    /. /./ /.. /x/.. /x/../ /x/y/../.. /x/..; /; /;x /x;/.. /%2e /%2e%2e /x/%2e%2e /x%2F.. /x/.%2e /\.. /x\.. /%20
    /index.php /x%3F/.. /x%23/.. /~
";

/// Slashes before an authority, of which one to five follow each other.
const AUTHORITY_SLASHES: &str = r"
    / / \ %2F %5C /%09
";
const HOSTS: &str = r"
    h h:80 h: u@h u:p@h [::1] 127.0.0.1 a.b h%2f h;x @ h%00 %68
";

/// Sequences that a server could ignore after the path or inside it.
const SUFFIXES: &str = r"
    / // /. /./ /x/.. /.. /%2e %2F %2f. \ %5C ; ;x ;x=1 ;x/y ;/ ;/../x ;x/../y %3B %3bx %3Bx/y %253Bx %0A %0a %0D
    %0D%0A %0A%0A %0Ax %250A %0A/ ;x%0A %09 %20 %20%20 %0B %0C %1F %7F %85 %C2%85 %A0 %C2%A0 %E2%80%A8 %EF%BB%BF %00
    %FF %E2%80 %ED%A0%80 %C0%80 %23 %23x %3F %3Fx=1 %253Fx %26x=1 &x=1 . %2E .json :80 ,x
";

const INSERTS: &str = r"
    %09 %0A %0D %20 %00 %7F %C2%AD %E2%80%8B %EF%BB%BF %C2%A0 \ %5C . %2E ; %3B %25 % + %08 %C3%A9 %FF %80 %E2%80
    %ED%A0%80 /
";

const QUERIES: &str = r"
    ? ?x ?x=/o/client/register ?/o/client/register ?/../x ?;x ?%0A ?a?b ?# # #x ?\
";

/// Headers from which a server could take the path. `{}` is the path.
const HEADERS: &str = r"
    SCRIPT_NAME:/x Script-Name:/x SCRIPT.NAME:/x X-Script-Name:/x X_SCRIPT_NAME:/x X-Forwarded-Prefix:/x
    X_FORWARDED_PREFIX:/x PATH_INFO:{} Path-Info:{} REQUEST_URI:{} RAW_URI:{} X-Original-URL:{} X_ORIGINAL_URL:{}
    X-Rewrite-URL:{} X.Rewrite.URL:{} X-Original-URI:{} X-Forwarded-Uri:{} X-Forwarded-Path:{}
    X-HTTP-Method-Override:POST
";

const HOST: &str = "api.example";

impl Spelling {
    pub(super) fn plain() -> Self {
        Self {
            method: "GET",
            target: LIMITED.to_owned(),
            headers: String::new(),
        }
    }

    /// Returns the head of the request. The request has no body.
    pub(super) fn head(&self) -> String {
        let Self {
            method,
            target,
            headers,
        } = self;
        format!("{method} {target} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 0\r\n{headers}\r\n")
    }

    fn some(random: &mut Random) -> Self {
        let mut path = LIMITED.to_owned();
        for _ in 0..random.pick(&[1, 1, 2, 2, 3, 4]) {
            mutate(&mut path, random);
        }
        let mut headers = String::new();
        if random.below(12) == 0 {
            let header = random.word(HEADERS);
            let value = if random.below(2) == 0 { LIMITED } else { &path };
            headers = format!("{}\r\n", header.replace("{}", value));
            path = match (header.contains("{}"), random.below(2)) {
                (true, 0) => "/".to_owned(),
                (true, _) => "/x".to_owned(),
                (false, 0) => format!("/x{LIMITED}"),
                (false, _) => format!("/x{path}"),
            };
        }
        if random.below(8) == 0 {
            path.push_str(random.word(QUERIES));
        }
        let target = match random.below(16) {
            0 => format!("http://{HOST}{path}"),
            1 => format!("{}{HOST}{path}", random.word("HTTP:// https:// http:/ //")),
            _ => path,
        };
        Self {
            method: random.word("GET GET GET POST"),
            target,
            headers,
        }
    }
}

fn mutate(path: &mut String, random: &mut Random) {
    match random.below(10) {
        0 | 1 => {
            let slashes: Vec<_> = path.match_indices('/').map(|(at, _)| at).collect();
            if !slashes.is_empty() {
                let at = random.pick(&slashes);
                path.replace_range(at..=at, random.word(SLASHES));
            }
        }
        2 => path.insert_str(0, random.word(PREFIXES)),
        3 | 4 => {
            let mut authority = String::from("/");
            for _ in 0..=random.below(5) {
                authority.push_str(random.word(AUTHORITY_SLASHES));
            }
            if random.below(12) > 0 {
                authority.push_str(random.word(HOSTS));
            }
            path.insert_str(0, &authority);
        }
        5 | 6 => path.push_str(random.word(SUFFIXES)),
        7 => {
            let at = random.below(path.len());
            let octet = path.as_bytes()[at];
            let (lead, last) = (0xC0 | octet >> 6, 0x80 | octet & 0x3F);
            let escape = match random.below(8) {
                0 => format!("%{octet:02x}"),
                1 => format!("%{octet:02X}"),
                2 => format!("%25{octet:02x}"),
                3 => format!("%2525{octet:02X}"),
                4 => format!("%u00{octet:02x}"),
                5 => format!("%{lead:02X}%{last:02X}"),
                6 => format!("%EF%BC%{:02X}", octet.wrapping_add(0x60)),
                _ => char::from(octet ^ 0x20).to_string(),
            };
            path.replace_range(at..=at, &escape);
        }
        8 => path.insert_str(random.below(path.len() + 1), random.word(INSERTS)),
        _ => {
            let letters: Vec<_> = path
                .char_indices()
                .filter(|(_, letter)| letter.is_ascii_alphabetic())
                .collect();
            let (at, letter) = random.pick(&letters);
            path.replace_range(at..=at, &letter.to_ascii_uppercase().to_string());
        }
    }
}

/// Returns `count` different spellings.
pub(super) fn spellings(mut random: Random, count: u64) -> Vec<Spelling> {
    let mut known = HashSet::new();
    let mut spellings = Vec::new();
    while (spellings.len() as u64) < count {
        let spelling = Spelling::some(&mut random);
        if spelling.target.is_ascii() && known.insert(spelling.clone()) {
            spellings.push(spelling);
        }
    }
    spellings
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let number = (mixed ^ mixed >> 31) % bound as u64;
        usize::try_from(number).expect("the number is below a usize")
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    fn word<'a>(&mut self, words: &'a str) -> &'a str {
        self.pick(&words.split_whitespace().collect::<Vec<_>>())
    }
}
