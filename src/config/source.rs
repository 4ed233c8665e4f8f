//! Source locations of configuration values.
//!
//! A value comes from the configuration file, from an environment variable or from a command-line flag. As in a
//! compiler, all texts share one range of byte offsets. A location is then a plain `Range<usize>`, which the TOML
//! parser and serde preserve. A span type with a reference to its text would need a custom deserializer.

use std::ops::Range;

/// Byte offsets in a [`SourceMap`].
pub(super) type Span = Range<usize>;

/// Location of the default of a key.
pub(super) const NOT_CONFIGURED: Span = usize::MAX..usize::MAX;

/// The texts of the file and of all overrides, one after the other.
#[derive(Debug, Default)]
pub(super) struct SourceMap {
    sources: Vec<SourceText>,
}

#[derive(Debug)]
struct SourceText {
    name: String,
    text: String,
    start: usize,
}

/// A span of several lines is cut at the end of its first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceLocation {
    /// File, environment variable or command-line flag.
    pub(super) file: String,
    /// From 1.
    pub(super) line: usize,
    /// In characters, from 1.
    pub(super) column: usize,
    pub(super) text: String,
    /// In bytes within `text`.
    pub(super) range: Range<usize>,
}

impl SourceLocation {
    pub(super) fn offending(&self) -> &str {
        &self.text[self.range.clone()]
    }

    pub(super) fn hide_after(&mut self, shown: usize) {
        let hidden = |end: usize| {
            let hidden = self.text.get(shown..end).unwrap_or_default();
            hidden.chars().count()
        };
        let column = |at: usize| at.min(shown) + hidden(at);
        self.range = column(self.range.start)..column(self.range.end);
        let mask = "*".repeat(hidden(self.text.len()));
        self.text.replace_range(shown.., &mask);
    }
}

impl SourceMap {
    /// Returns the start offset of the text. `name` is shown in problems.
    pub(super) fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> usize {
        // One offset stays unused, so that the end of a text differs from the start of the next.
        let start = self
            .sources
            .last()
            .map_or(0, |last| last.start + last.text.len() + 1);
        self.sources.push(SourceText {
            name: name.into(),
            text: text.into(),
            start,
        });
        start
    }

    pub(super) fn text(&self, span: &Span) -> &str {
        let source = self.source_of(span);
        let end = source.boundary(span.end);
        &source.text[source.boundary(span.start).min(end)..end]
    }

    /// `span` is the location of a TOML string, `text` its value, and `part` a range in `text`. Returns `span` itself
    /// if the string has escapes, because the offsets then differ.
    pub(super) fn inside(&self, span: &Span, text: &str, part: Range<usize>) -> Span {
        let written = self.text(span);
        let quote = ["\"\"\"", "'''", "\"", "'", ""].into_iter().find(|quote| {
            let unquoted = written
                .strip_prefix(quote)
                .and_then(|rest| rest.strip_suffix(quote));
            unquoted == Some(text)
        });
        match quote {
            Some(quote) if part.end <= text.len() => {
                let start = span.start + quote.len();
                start + part.start..start + part.end
            }
            _ => span.clone(),
        }
    }

    pub(super) fn redact(&mut self, span: &Span) {
        let index = self.index_of(span);
        let source = &mut self.sources[index];
        let end = source.boundary(span.end);
        let range = source.boundary(span.start).min(end)..end;
        let mask: String = source.text[range.clone()]
            .bytes()
            .map(|byte| if byte == b'\n' { '\n' } else { '*' })
            .collect();
        source.text.replace_range(range, &mask);
    }

    pub(super) fn location(&self, span: &Span) -> SourceLocation {
        let source = self.source_of(span);
        let start = source.boundary(span.start);
        let end = source.boundary(span.end).max(start);
        let line_start = source.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = source.text[start..]
            .find('\n')
            .map_or(source.text.len(), |at| start + at);
        let text = source.text[line_start..line_end].trim_end_matches('\r');
        let within = |at: usize| (at - line_start).min(text.len());
        SourceLocation {
            file: source.name.clone(),
            line: source.text[..line_start].matches('\n').count() + 1,
            column: source.text[line_start..start].chars().count() + 1,
            text: text.to_owned(),
            range: within(start)..within(end),
        }
    }

    fn source_of(&self, span: &Span) -> &SourceText {
        &self.sources[self.index_of(span)]
    }

    fn index_of(&self, span: &Span) -> usize {
        self.sources
            .partition_point(|source| source.start <= span.start)
            .saturating_sub(1)
    }
}

impl SourceText {
    /// Rounds down to the start of a character.
    fn boundary(&self, offset: usize) -> usize {
        self.text
            .floor_char_boundary(offset.saturating_sub(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_located_in_its_own_text() {
        let mut sources = SourceMap::default();
        assert_eq!(sources.add("a.toml", "one\ntwo = ü!\n"), 0);
        let start = sources.add("VARIABLE", "VARIABLE=3");

        let location = sources.location(&(12..13));
        assert_eq!(
            (location.file.as_str(), location.line, location.column),
            ("a.toml", 2, 8)
        );
        assert_eq!(location.offending(), "!");

        let location = sources.location(&(start + 9..start + 10));
        assert_eq!(
            (location.file.as_str(), location.line, location.column),
            ("VARIABLE", 1, 10)
        );
        assert_eq!(location.offending(), "3");
    }

    #[test]
    fn a_span_of_several_lines_is_cut_at_its_first_line() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "x = [\r\n 1,\r\n]\r\n");
        let location = sources.location(&(4..14));
        assert_eq!(location.offending(), "[");
        assert_eq!(location.text, "x = [");
    }

    #[test]
    fn a_span_past_the_end_is_located_at_the_end() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "x =");
        let location = sources.location(&(3..9));
        assert_eq!((location.line, location.column), (1, 4));
        assert_eq!(location.offending(), "");
    }

    #[test]
    fn the_span_of_a_part_of_a_string_skips_the_quotes() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "x = '/a(' \"/a\\\\(\"");
        assert_eq!(sources.inside(&(4..9), "/a(", 2..3), 7..8);
        assert_eq!(sources.inside(&(10..17), "/a\\(", 3..4), 10..17);
    }

    #[test]
    fn a_redacted_secret_becomes_asterisks_of_the_same_length() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "token = \"hünter\" # mine");
        sources.redact(&(8..17));
        let location = sources.location(&(8..17));
        assert_eq!(location.offending(), "*********");
        assert!(location.text.ends_with(" # mine"));
    }
}
