//! Models of how servers read the path of a request. They share no code with the gateway.
//!
//! Each model applies its own steps in its own order. The models are named after the servers or libraries that are
//! known for this order, or after the order itself.

use std::fmt::Write as _;

/// How one server turns the path in a request target into the path that it serves.
pub(super) struct Decoder {
    pub(super) name: &'static str,
    pub(super) read: fn(&str) -> String,
}

/// All models. Octets that are not ASCII are represented as the characters U+0080 to U+00FF.
pub(super) const DECODERS: [Decoder; 22] = [
    decoder("RFC 3986: remove dots, decode", |path| percent(&dots(path))),
    decoder("nginx: decode, merge slashes, remove dots", |path| {
        dots(&merge(&percent(path)))
    }),
    decoder("nginx without merge_slashes", |path| dots(&percent(path))),
    decoder("Tomcat: remove parameters, decode, normalise", |path| {
        dots(&merge(&percent(&parameters(path))))
    }),
    decoder("Tomcat with backslashes", |path| {
        dots(&merge(&slashes(&percent(&parameters(path)))))
    }),
    decoder("parameters removed after decoding", |path| {
        dots(&merge(&parameters(&percent(path))))
    }),
    decoder("parameters removed after dots", |path| {
        percent(&parameters(&dots(path)))
    }),
    decoder("IIS: decode twice, backslashes, normalise", |path| {
        dots(&merge(&slashes(&percent(&percent(path)))))
    }),
    decoder("IIS 5: overlong UTF-8", |path| {
        dots(&slashes(&overlong(&percent(path))))
    }),
    decoder("decode, overlong UTF-8, decode, normalise", |path| {
        dots(&merge(&percent(&overlong(&percent(path)))))
    }),
    decoder("Go: decode, path.Clean", |path| {
        let clean = dots(&merge(&percent(path)));
        match clean.strip_suffix('/') {
            Some("") | None => clean,
            Some(without) => without.to_owned(),
        }
    }),
    decoder("Node: new URL, decode", |path| {
        let path = slashes(path);
        let path = match path.strip_prefix("//") {
            Some(rest) => {
                let rest = rest.trim_start_matches('/');
                rest.find('/').map_or("/", |at| &rest[at..]).to_owned()
            }
            None => path,
        };
        percent(&dots(&path))
    }),
    decoder("Fastify 4: end at a semicolon, decode", |path| {
        percent(path.split(';').next().unwrap_or_default())
    }),
    decoder("Apache AllowEncodedSlashes NoDecode", |path| {
        let opaque = path.replace("%2F", "\u{1}").replace("%2f", "\u{1}");
        dots(&merge(&percent(&opaque))).replace('\u{1}', "%2F")
    }),
    decoder("parameters removed, %2F not decoded", |path| {
        let opaque = parameters(path).replace("%2F", "\u{1}");
        dots(&percent(&opaque)).replace('\u{1}', "%2F")
    }),
    decoder(
        "decoded again by a rewrite, cut at a question mark",
        |path| {
            let decoded = percent(path);
            let end = decoded.find(['?', '#']).unwrap_or(decoded.len());
            dots(&decoded[..end])
        },
    ),
    decoder("decode to the fixpoint, normalise", |path| {
        dots(&merge(&fixpoint(path)))
    }),
    decoder("decode to the fixpoint, backslashes, parameters", |path| {
        dots(&merge(&parameters(&slashes(&fixpoint(path)))))
    }),
    decoder("remove dots, decode three times, remove dots", |path| {
        dots(&percent(&percent(&percent(&dots(path)))))
    }),
    decoder("merge slashes, decode", |path| percent(&merge(path))),
    decoder("remove dots between decodings", |path| {
        dots(&percent(&dots(&percent(path))))
    }),
    decoder("WSGI: decode only", percent),
];

const fn decoder(name: &'static str, read: fn(&str) -> String) -> Decoder {
    Decoder { name, read }
}

/// Decodes percent escapes once. Malformed escapes stay.
fn percent(path: &str) -> String {
    let mut parts = path.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_hex = part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
        if is_hex {
            let octet = u8::from_str_radix(&part[..2], 16).expect("two hexadecimal digits");
            decoded.push(char::from(octet));
            decoded.push_str(&part[2..]);
        } else {
            write!(decoded, "%{part}").expect("a string");
        }
    }
    decoded
}

fn fixpoint(path: &str) -> String {
    let decoded = percent(path);
    if decoded == path {
        return decoded;
    }
    fixpoint(&decoded)
}

fn slashes(path: &str) -> String {
    path.replace('\\', "/")
}

fn merge(path: &str) -> String {
    let mut merged = path.to_owned();
    while merged.contains("//") {
        merged = merged.replace("//", "/");
    }
    merged
}

fn parameters(path: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for character in path.chars() {
        inside = character != '/' && (inside || character == ';');
        if !inside {
            kept.push(character);
        }
    }
    kept
}

/// Removes dot segments with the loop of RFC 3986, section 5.2.4.
fn dots(path: &str) -> String {
    let mut input = path.to_owned();
    let mut output = String::new();
    while !input.is_empty() {
        if input.starts_with("/./") {
            input.replace_range(..2, "");
        } else if input == "/." {
            input = String::from("/");
        } else if input.starts_with("/../") || input == "/.." {
            input = format!("/{}", input.get(4..).unwrap_or_default());
            output.truncate(output.rfind('/').unwrap_or(0));
        } else {
            let start = usize::from(input.starts_with('/'));
            let end = input[start..]
                .find('/')
                .map_or(input.len(), |at| start + at);
            output.push_str(&input[..end]);
            input.replace_range(..end, "");
        }
    }
    output
}

/// Decodes ASCII characters in overlong UTF-8 of two and three octets.
fn overlong(path: &str) -> String {
    let mut decoded = path.to_owned();
    for octet in 0..0x80_u8 {
        let last = char::from(0x80 | octet & 0x3F);
        let ascii = char::from(octet).to_string();
        let lead = char::from(0xC0 | octet >> 6);
        decoded = decoded.replace(&format!("{lead}{last}"), &ascii);
        let lead = char::from(0x80 | octet >> 6);
        decoded = decoded.replace(&format!("\u{E0}{lead}{last}"), &ascii);
    }
    decoded
}

#[test]
fn the_models_read_a_path_as_their_servers_do() {
    let read = |name: &str, path: &str| {
        let decoder = DECODERS
            .iter()
            .find(|decoder| decoder.name.starts_with(name));
        (decoder.expect("the model exists").read)(path)
    };
    assert_eq!(read("RFC 3986", "/a/./b/../c%2F.."), "/a/c/..");
    assert_eq!(read("nginx: ", "/a%2F..//b"), "/b");
    assert_eq!(read("nginx without", "/a//../b"), "/a/b");
    assert_eq!(read("Tomcat: ", "/a/..;x/b;y"), "/b");
    assert_eq!(read("IIS: ", "/a%255C..%255Cb"), "/b");
    assert_eq!(read("IIS 5", "/a%C0%AF..%E0%80%AFb"), "/b");
    assert_eq!(read("Go", "/a/b/"), "/a/b");
    assert_eq!(read("Node", "//host/a\\..\\b"), "/b");
    assert_eq!(read("Node", "/\\//host/b"), "/b");
    assert_eq!(read("Fastify 4", "/a;b/c"), "/a");
    assert_eq!(read("Apache", "/a%2Fb/../c"), "/c");
    assert_eq!(read("decoded again", "/a%3F/b"), "/a");
    assert_eq!(read("decode to the fixpoint, n", "/%25252e%25252E/a"), "/a");
    assert_eq!(read("WSGI", "/a%2Fb//.."), "/a/b//..");
}
