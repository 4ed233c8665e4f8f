//! Parts of a pattern that are probably mistakes, and the pattern without them.

use std::ops::Range;

/// Pattern of one segment with any text.
pub(super) const ANY: &str = "[^/]+";

/// Meaning that the author of a pattern probably gives to the text between two slashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentMeaning {
    /// `:id`, `<id>` or `{id}`: one segment of a path with any text.
    Parameter {
        /// Whether the parameter stands for the rest of the path, as in `{*rest}`.
        is_rest: bool,
    },
    /// `*` or `**`: one segment with any text, or at the end the rest of the path.
    Wildcard,
    /// `.` before another segment: the current directory.
    Current,
    /// `..`: the parent directory.
    Parent,
    /// Empty segment between two slashes.
    Empty,
    /// Any other text.
    Other,
}

/// Returns the segments of a pattern with their positions. The text before the first slash is the first segment.
pub(super) fn segments(pattern: &str) -> impl Iterator<Item = (Range<usize>, SegmentMeaning)> {
    let last = pattern.rfind('/').map_or(0, |at| at + 1);
    let mut start = 0;
    pattern.split('/').map(move |text| {
        let part = start..start + text.len();
        start = part.end + 1;
        (
            part.clone(),
            classify(text, part.start == 0, part.start == last),
        )
    })
}

fn classify(text: &str, is_first: bool, is_last: bool) -> SegmentMeaning {
    let name = text.strip_suffix('$').unwrap_or(text);
    let enclosed = |open, close| name.strip_prefix(open)?.strip_suffix(close);
    let is_name = |name: &str| {
        let name = name.trim_end_matches(['?', '*', '+']);
        !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    match text {
        "*" | "**" if !is_first => SegmentMeaning::Wildcard,
        "." if !is_last && !is_first => SegmentMeaning::Current,
        ".." => SegmentMeaning::Parent,
        "" if !is_first && !is_last => SegmentMeaning::Empty,
        _ if colon_parameter(name).is_some() => SegmentMeaning::Parameter { is_rest: false },
        _ if enclosed('<', '>').is_some_and(|name| name.split(':').all(is_name)) => {
            SegmentMeaning::Parameter { is_rest: false }
        }
        _ => match enclosed('{', '}') {
            // Braces with a number are a repetition.
            Some(name) if name.starts_with(|c: char| c.is_ascii_digit() || c == ',') => {
                SegmentMeaning::Other
            }
            Some(name) if !name.is_empty() && !name.contains(['{', '}']) => {
                SegmentMeaning::Parameter {
                    is_rest: name.starts_with('*'),
                }
            }
            _ => SegmentMeaning::Other,
        },
    }
}

/// Returns the rest of a segment after a parameter such as `:id`: a pattern as in `:id(\d+)`, or an extension as in
/// `:id.json`. Returns `None` if the segment has no such parameter.
fn colon_parameter(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix(':')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    let rest = name.trim_start_matches(is_name);
    let is_parameter = rest.len() < name.len();
    let rest = rest.strip_prefix(['?', '*', '+']).unwrap_or(rest);
    let is_rest = rest.is_empty() || rest.starts_with(['(', '.', '$']);
    (is_parameter && is_rest).then_some(rest)
}

/// Returns the position of a query in a pattern: a question mark that a parameter follows, such as `?q=`.
pub(super) fn query(pattern: &str) -> Option<Range<usize>> {
    let mut marks = pattern.match_indices('?').map(|(at, _)| at);
    let start = marks.find(|&at| {
        let after = &pattern[at + 1..];
        let name = after.find(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)));
        name.is_some_and(|end| end > 0 && after[end..].starts_with('='))
    })?;
    let start = if pattern[..start].ends_with('\\') {
        start - 1
    } else {
        start
    };
    Some(start..pattern.len())
}

/// Returns the first control character of a pattern, with its position.
pub(super) fn control_character(pattern: &str) -> Option<(Range<usize>, char)> {
    let (at, character) = pattern.char_indices().find(|(_, c)| c.is_ascii_control())?;
    Some((at..at + 1, character))
}

/// Returns the letter of the TOML escape for a control character, such as `b` for `\b`.
pub(super) fn escape_name(character: char) -> Option<char> {
    match character {
        '\u{8}' => Some('b'),
        '\t' => Some('t'),
        '\n' => Some('n'),
        '\u{c}' => Some('f'),
        '\r' => Some('r'),
        '\u{1b}' => Some('e'),
        _ => None,
    }
}

/// Returns the percent escapes of a pattern, with their positions and octets.
pub(super) fn escapes(pattern: &str) -> impl Iterator<Item = (Range<usize>, u8)> {
    pattern.match_indices('%').filter_map(|(at, _)| {
        let digits = pattern.get(at + 1..at + 3)?;
        let octet = u8::from_str_radix(digits, 16).ok()?;
        Some((at..at + 3, octet))
    })
}

/// Returns the end of the scheme and the host at the start of a pattern; `None` if it does not start with a scheme.
pub(super) fn origin_end(pattern: &str) -> Option<usize> {
    let scheme = pattern.find("://")?;
    let mut name = pattern[..scheme].bytes();
    let is_scheme = scheme > 0 && name.all(|byte| byte.is_ascii_lowercase());
    let host = scheme + 3;
    is_scheme.then(|| {
        pattern[host..]
            .find('/')
            .map_or(pattern.len(), |at| host + at)
    })
}

/// Returns a pattern without a method, white space, scheme and host at its start.
fn without_origin(pattern: &str) -> &str {
    let path = pattern.trim_start();
    let path = match path.split_once(' ') {
        Some((method, path)) if method.bytes().all(|byte| byte.is_ascii_uppercase()) => path.trim(),
        _ => path,
    };
    let path = origin_end(path).map_or(path, |end| &path[end..]);
    if matches!(path, "*" | "**") {
        "/"
    } else {
        path
    }
}

/// Returns the pattern with each probable mistake replaced by what its author probably means.
pub(super) fn rewrite(pattern: &str) -> String {
    let path = without_origin(pattern);
    let (path, has_query) = match query(path) {
        Some(part) => (&path[..part.start], true),
        None => (path, false),
    };
    let mut rewritten = rewrite_segments(path);
    rewritten = decode(&rewritten);
    rewritten = restore_escapes(&rewritten);
    rewritten = escape_inner_dollars(&rewritten);
    let is_group = rewritten.starts_with('(') && !rewritten.starts_with("(/");
    if is_group || !rewritten.starts_with(['/', '^', '(', '[', '.']) {
        rewritten.insert(0, '/');
    } else if rewritten.starts_with('^') && !rewritten.starts_with("^/") {
        rewritten.insert(1, '/');
    }
    if has_query && !rewritten.ends_with('$') {
        rewritten.push('$');
    }
    rewritten
}

fn rewrite_segments(path: &str) -> String {
    let last = path.matches('/').count();
    let mut kept: Vec<String> = Vec::new();
    for (index, (part, segment)) in segments(path).enumerate() {
        let text = &path[part];
        match segment {
            SegmentMeaning::Wildcard | SegmentMeaning::Parameter { is_rest: true }
                if index == last =>
            {
                kept.push(String::new());
            }
            SegmentMeaning::Parameter { .. } => match colon_parameter(text) {
                Some(rest) if rest.starts_with('(') => kept.push(rest.into()),
                Some(rest) => kept.push(format!("{ANY}{rest}")),
                None if text.ends_with('$') => kept.push(format!("{ANY}$")),
                None => kept.push(ANY.into()),
            },
            SegmentMeaning::Wildcard => kept.push(ANY.into()),
            SegmentMeaning::Empty | SegmentMeaning::Current => {}
            SegmentMeaning::Parent => {
                // The first segment is the text before the leading slash, which has no parent.
                if kept.len() > 1 {
                    kept.pop();
                }
            }
            SegmentMeaning::Other => kept.push(text.to_owned()),
        }
    }
    kept.join("/")
}

/// Decodes percent escapes, except those of slashes, control characters and octets that are not UTF-8. A decoded
/// character with a meaning in regular expressions is escaped.
fn decode(pattern: &str) -> String {
    let mut octets = Vec::with_capacity(pattern.len());
    let mut copied = 0;
    for (part, octet) in escapes(pattern) {
        if matches!(octet, b'/' | b'\\' | b'\x7f') || octet < b' ' {
            continue;
        }
        octets.extend(&pattern.as_bytes()[copied..part.start]);
        if octet.is_ascii() {
            let decoded = char::from(octet).to_string();
            octets.extend(regex_syntax::escape(&decoded).bytes());
        } else {
            octets.push(octet);
        }
        copied = part.end;
    }
    octets.extend(&pattern.as_bytes()[copied..]);
    String::from_utf8(octets).unwrap_or_else(|_| pattern.to_owned())
}

/// Replaces the control characters that TOML escapes stand for, such as `\b`, by these escapes.
fn restore_escapes(pattern: &str) -> String {
    let restored = pattern
        .chars()
        .flat_map(|character| match escape_name(character) {
            Some(name) => ['\\', name].into_iter().take(2),
            None => [character, ' '].into_iter().take(1),
        });
    restored.collect()
}

/// Escapes each `$` that is followed by ordinary text, because it then never matches.
fn escape_inner_dollars(pattern: &str) -> String {
    let mut escaped = String::with_capacity(pattern.len());
    for (at, character) in pattern.char_indices() {
        let before = pattern[..at].chars().next_back();
        let after = pattern[at + character.len_utf8()..].chars().next();
        let is_inner = after.is_some_and(|c| c.is_ascii_alphanumeric() || "/_-".contains(c));
        if character == '$' && is_inner && before != Some('\\') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}
