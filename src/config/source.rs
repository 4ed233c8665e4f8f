//! One address space for everything a configuration is made of.
//!
//! A value may come from the file, from an environment variable or from a command-line flag, and a
//! complaint has to point into the one it came from. As in a compiler, each text gets a stretch of a
//! single range of offsets, so a span is a plain `Range<usize>` that travels through the TOML parser
//! and serde untouched, and the [`SourceMap`] turns it back into a name, a line and a column. The
//! alternative, a span that carries its source, would need a deserializer of our own.

use std::ops::Range;

/// A stretch of the address space.
pub(super) type Span = Range<usize>;

/// The texts a configuration is made of, laid end to end.
#[derive(Debug, Default)]
pub(super) struct SourceMap {
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    name: String,
    text: String,
    start: usize,
}

/// A span as a person looks it up: never longer than one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The file, variable or flag.
    pub(super) file: String,
    /// Counted from 1.
    pub(super) line: usize,
    /// Counted from 1, in characters.
    pub(super) column: usize,
    /// The whole line.
    pub(super) text: String,
    /// The span within the line, in bytes.
    pub(super) range: Range<usize>,
}

impl Place {
    pub(super) fn offending(&self) -> &str {
        &self.text[self.range.clone()]
    }
}

impl SourceMap {
    /// Takes in a text and says where it starts.
    pub(super) fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> usize {
        // The gap keeps the end of one text apart from the start of the next.
        let start = self
            .sources
            .last()
            .map_or(0, |last| last.start + last.text.len() + 1);
        self.sources.push(Source {
            name: name.into(),
            text: text.into(),
            start,
        });
        start
    }

    /// The text a span covers.
    pub(super) fn text(&self, span: &Span) -> &str {
        let source = self.source_of(span);
        let end = source.boundary(span.end);
        &source.text[source.boundary(span.start).min(end)..end]
    }

    /// Where a part of a string stands, or the whole string if it was written with escapes.
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

    /// Blots out a secret, so that no complaint on its line can show it.
    pub(super) fn redact(&mut self, span: &Span) {
        let index = self.index_of(span);
        let source = &mut self.sources[index];
        let end = source.boundary(span.end);
        let range = source.boundary(span.start).min(end)..end;
        let blot: String = source.text[range.clone()]
            .bytes()
            .map(|byte| if byte == b'\n' { '\n' } else { '*' })
            .collect();
        source.text.replace_range(range, &blot);
    }

    /// Where a span is, cut to its first line.
    pub(super) fn place(&self, span: &Span) -> Place {
        let source = self.source_of(span);
        let start = source.boundary(span.start);
        let end = source.boundary(span.end).max(start);
        let line_start = source.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = source.text[start..]
            .find('\n')
            .map_or(source.text.len(), |at| start + at);
        let text = source.text[line_start..line_end].trim_end_matches('\r');
        let within = |at: usize| (at - line_start).min(text.len());
        Place {
            file: source.name.clone(),
            line: source.text[..line_start].matches('\n').count() + 1,
            column: source.text[line_start..start].chars().count() + 1,
            text: text.to_owned(),
            range: within(start)..within(end),
        }
    }

    fn source_of(&self, span: &Span) -> &Source {
        &self.sources[self.index_of(span)]
    }

    fn index_of(&self, span: &Span) -> usize {
        self.sources
            .partition_point(|source| source.start <= span.start)
            .saturating_sub(1)
    }
}

impl Source {
    /// An offset of the address space as one into this text, moved back to where a character starts.
    fn boundary(&self, offset: usize) -> usize {
        self.text
            .floor_char_boundary(offset.saturating_sub(self.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_found_in_the_text_it_came_from() {
        let mut sources = SourceMap::default();
        assert_eq!(sources.add("a.toml", "one\ntwo = ü!\n"), 0);
        let start = sources.add("VARIABLE", "VARIABLE=3");

        let place = sources.place(&(12..13));
        assert_eq!(
            (place.file.as_str(), place.line, place.column),
            ("a.toml", 2, 8)
        );
        assert_eq!(place.offending(), "!");

        let place = sources.place(&(start + 9..start + 10));
        assert_eq!(
            (place.file.as_str(), place.line, place.column),
            ("VARIABLE", 1, 10)
        );
        assert_eq!(place.offending(), "3");
    }

    #[test]
    fn a_span_over_several_lines_is_shown_on_its_first() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "x = [\r\n 1,\r\n]\r\n");
        let place = sources.place(&(4..14));
        assert_eq!(place.offending(), "[");
        assert_eq!(place.text, "x = [");
    }

    #[test]
    fn a_span_past_the_end_points_at_the_end() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "x =");
        let place = sources.place(&(3..9));
        assert_eq!((place.line, place.column), (1, 4));
        assert_eq!(place.offending(), "");
    }

    #[test]
    fn a_part_of_a_string_is_found_behind_its_quotes() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "x = '/a(' \"/a\\\\(\"");
        assert_eq!(sources.inside(&(4..9), "/a(", 2..3), 7..8);
        assert_eq!(sources.inside(&(10..17), "/a\\(", 3..4), 10..17);
    }

    #[test]
    fn a_redacted_secret_keeps_its_place_and_loses_its_text() {
        let mut sources = SourceMap::default();
        sources.add("a.toml", "token = \"hünter\" # mine");
        sources.redact(&(8..17));
        let place = sources.place(&(8..17));
        assert_eq!(place.offending(), "*********");
        assert!(place.text.ends_with(" # mine"));
    }
}
