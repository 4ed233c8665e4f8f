//! Errors and warnings about a configuration.
//!
//! All problems of a configuration are collected and shown together, so that a user can fix them in one pass. Each
//! problem has a help text with the remedy. Problems are rendered in the format of rustc, which many users know.

use std::collections::BTreeSet;
use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::schema::{self, SCHEMA};
use super::secrets;
use super::source::{SourceLocation, SourceMap, Span};

/// Whether a problem makes a configuration unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used but probably does not do what was intended.
    Warning,
}

/// Error or warning about a configuration, with its location in the file and its remedy.
#[derive(Clone, Debug)]
pub struct ConfigProblem {
    /// Whether the problem is an error or a warning.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub title: String,
    /// How to fix the problem.
    pub help: String,
    /// Name of the file, or of the environment variable or command-line flag that contains the problem.
    pub file: String,
    /// Line number, from 1. It is 0 if the problem concerns the complete file.
    pub line: usize,
    /// Column in characters, from 1. It is 0 if the problem concerns the complete file.
    pub column: usize,
    /// Text of the file at the location, cut at the end of the line. Secrets in it are replaced by asterisks.
    pub offending: String,
    /// Problems are sorted by it, an offset in the [`SourceMap`].
    order: usize,
    location: Option<SourceLocation>,
    note: Option<(SourceLocation, String)>,
}

impl ConfigProblem {
    /// Such as a file that cannot be read.
    pub(super) fn of_file(file: impl Into<String>, title: String, help: String) -> Self {
        Self {
            severity: Severity::Error,
            title,
            help,
            file: file.into(),
            line: 0,
            column: 0,
            offending: String::new(),
            order: 0,
            location: None,
            note: None,
        }
    }

    /// Renders the problem in the format of rustc, with terminal colours if `colour` is set.
    pub fn render(&self, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let group = Group::with_title(level.primary_title(self.title.as_str()));
        let mut group = match &self.location {
            Some(location) => group.element(excerpt(location, AnnotationKind::Primary, None)),
            None => group.element(Origin::path(self.file.as_str())),
        };
        if let Some((location, label)) = &self.note {
            group = group.element(excerpt(location, AnnotationKind::Context, Some(label)));
        }
        group = group.element(Level::HELP.message(self.help.as_str()));
        let renderer = if colour {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        renderer.render(&[group])
    }
}

fn excerpt<'a>(
    location: &'a SourceLocation,
    kind: AnnotationKind,
    label: Option<&'a str>,
) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
    Snippet::source(location.text.as_str())
        .path(location.file.as_str())
        .line_start(location.line)
        .annotation(kind.span(location.range.clone()).label(label))
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

/// Errors and warnings of a configuration that cannot be used, in the order of the file. At least one is an error.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    problems: Vec<ConfigProblem>,
    /// Further problems.
    omitted: usize,
}

impl ConfigErrors {
    /// Returns the errors and warnings, in the order of the file.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }

    /// Renders all problems, separated by empty lines, with terminal colours if `colour` is set.
    pub fn render(&self, colour: bool) -> String {
        let mut rendered: Vec<_> = self.problems.iter().map(|p| p.render(colour)).collect();
        if self.omitted > 0 {
            rendered.push(format!("{} more problems are not shown", self.omitted));
        }
        rendered.join("\n\n")
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigProblem> for ConfigErrors {
    fn from(problem: ConfigProblem) -> Self {
        Self {
            problems: vec![problem],
            omitted: 0,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) sources: SourceMap,
    /// Such as `store.url`. A problem that a removed value could cause is not reported.
    removed: BTreeSet<String>,
    problems: Vec<ConfigProblem>,
    /// Problems above [`MAX_PROBLEMS`].
    omitted: usize,
    is_last_omitted: bool,
}

/// Of errors, and of warnings. A large file can have an error per line.
const MAX_PROBLEMS: usize = 100;

impl Findings {
    /// `title` says what is wrong, and `help` how to fix it.
    pub(super) fn error(
        &mut self,
        span: &Span,
        title: impl Into<String>,
        help: impl Into<String>,
    ) -> &mut Self {
        self.push(Severity::Error, span, &title.into(), &help.into())
    }

    /// Adds an error about a missing table or list, unless it was removed. `path` is its path, such as `limit.device`.
    pub(super) fn missing(
        &mut self,
        path: &str,
        span: &Span,
        title: impl Into<String>,
        help: impl Into<String>,
    ) {
        if !self.was_removed(path) {
            self.error(span, title, help);
        }
    }

    pub(super) fn warning(
        &mut self,
        span: &Span,
        title: impl Into<String>,
        help: impl Into<String>,
    ) -> &mut Self {
        self.push(Severity::Warning, span, &title.into(), &help.into())
    }

    /// Adds a second location to the problem that was added last.
    pub(super) fn note(&mut self, span: &Span, label: impl Into<String>) {
        let location = self.sources.location(span);
        let last = self.problems.last_mut();
        if let Some(problem) = last.filter(|_| !self.is_last_omitted) {
            problem.note = Some((location, label.into()));
        }
    }

    /// Of a line that cannot be parsed, only a known key at its start is shown, because any other part can be a
    /// secret, also in a line that continues a value.
    pub(super) fn syntax_error(&mut self, span: &Span, title: impl Into<String>, help: &str) {
        let title = title.into();
        self.add(Severity::Error, span, &title, help, |location| {
            let bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            let before =
                location.text.len() - location.text.trim_start_matches(['[', ' ', '\t']).len();
            let rest = location.text[before..].trim_start_matches(bare);
            let key = &location.text[before..location.text.len() - rest.len()];
            let rest = rest.trim_start_matches([' ', '\t', '=', ':']);
            let shown = location.text.len() - rest.len();
            location.hide_after(if schema::has_key(&SCHEMA, key) {
                shown
            } else {
                0
            });
        });
    }

    fn push(&mut self, severity: Severity, span: &Span, title: &str, help: &str) -> &mut Self {
        self.add(severity, span, title, help, |_| ())
    }

    fn add(
        &mut self,
        severity: Severity,
        span: &Span,
        title: &str,
        help: &str,
        hide: impl FnOnce(&mut SourceLocation),
    ) -> &mut Self {
        self.is_last_omitted = self.is_full(severity);
        if self.is_last_omitted {
            self.omitted += 1;
            return self;
        }
        let mut location = self.sources.location(span);
        hide(&mut location);
        self.problems.push(ConfigProblem {
            severity,
            title: secrets::masked(title).into_owned(),
            help: secrets::masked_urls(help).into_owned(),
            file: location.file.clone(),
            line: location.line,
            column: location.column,
            offending: location.offending().to_owned(),
            order: span.start,
            location: Some(location),
            note: None,
        });
        self
    }

    fn is_full(&self, severity: Severity) -> bool {
        let stored = self.problems.iter();
        let stored = stored.filter(|problem| problem.severity == severity);
        stored.count() >= MAX_PROBLEMS
    }

    /// Records that the invalid value at `path`, such as `store.url`, was reported and removed.
    pub(super) fn remove(&mut self, path: &str) {
        self.removed.insert(path.to_owned());
    }

    /// Whether the value at `path`, a part of it, or a table around it was removed.
    pub(super) fn was_removed(&self, path: &str) -> bool {
        self.removed
            .iter()
            .any(|removed| is_within(path, removed) || is_within(removed, path))
    }

    pub(super) fn has_removed(&self) -> bool {
        !self.removed.is_empty()
    }

    pub(super) fn has_any_within(&self, span: &Span) -> bool {
        self.problems
            .iter()
            .any(|problem| span.contains(&problem.order))
    }

    pub(super) fn has_errors(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.severity == Severity::Error)
    }

    /// In the order of the file.
    pub(super) fn into_problems(mut self) -> Vec<ConfigProblem> {
        self.problems.sort_by_key(|problem| problem.order);
        self.problems
    }

    pub(super) fn into_errors(self) -> ConfigErrors {
        ConfigErrors {
            omitted: self.omitted,
            problems: self.into_problems(),
        }
    }
}

fn is_within(path: &str, table: &str) -> bool {
    let rest = path.strip_prefix(table);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let mut findings = Findings::default();
        findings
            .sources
            .add("gate.toml", "[limit.a]\nrate = \"often\"\n");
        findings
    }

    #[test]
    fn a_problem_is_rendered_in_the_format_of_rustc() {
        let mut findings = findings();
        findings.error(&(17..24), "`often` is not a rate", "write \"10/s\"");
        let errors = findings.into_errors();
        assert_eq!(
            errors.to_string(),
            "\
error: `often` is not a rate
 --> gate.toml:2:8
  |
2 | rate = \"often\"
  |        ^^^^^^^
  |
  = help: write \"10/s\""
        );
    }

    #[test]
    fn colours_are_rendered_only_on_request() {
        let mut findings = findings();
        findings.warning(&(0..9), "title", "help");
        let warnings = findings.into_problems();
        assert!(!warnings[0].render(false).contains('\u{1b}'));
        assert!(warnings[0].render(true).contains('\u{1b}'));
    }

    #[test]
    fn problems_are_sorted_by_location() {
        let mut findings = findings();
        findings.error(&(17..24), "second", "");
        findings.error(&(0..9), "first", "").note(&(10..14), "here");
        let errors = findings.into_errors();
        let titles: Vec<_> = errors.problems().iter().map(|p| &p.title).collect();
        assert_eq!(titles, ["first", "second"]);
        assert!(errors.to_string().contains("here"));
    }
}
