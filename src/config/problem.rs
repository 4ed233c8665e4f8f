//! What is wrong with a configuration, and how it is said.
//!
//! All problems of a configuration are collected and shown together: a person who fixes a file wants
//! to read it once. Each carries the remedy beside the complaint, and is rendered the way rustc
//! renders its own, because that is how people have learnt to read located errors.

use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::secrets;
use super::source::{Place, SourceMap, Span};

/// Whether a problem keeps the configuration from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It does.
    Error,
    /// It does not, but somebody should look.
    Warning,
}

/// One thing that is wrong, where it is, and what would be right.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Whether the configuration can still be used.
    pub severity: Severity,
    /// What is wrong.
    pub title: String,
    /// What would be right.
    pub help: String,
    /// The file, or the environment variable or flag that overrides it.
    pub file: String,
    /// Counted from 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// Counted from 1, in characters; 0 where the file as a whole is meant.
    pub column: usize,
    /// The text that is wrong.
    pub offending: String,
    order: usize,
    place: Option<Place>,
    note: Option<(Place, String)>,
}

impl Problem {
    /// A problem with a file as a whole.
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
            place: None,
            note: None,
        }
    }

    /// The problem as rustc would show it, with terminal colours if asked for.
    pub fn render(&self, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let group = Group::with_title(level.primary_title(self.title.as_str()));
        let mut group = match &self.place {
            Some(place) => group.element(excerpt(place, AnnotationKind::Primary, None)),
            None => group.element(Origin::path(self.file.as_str())),
        };
        if let Some((place, label)) = &self.note {
            group = group.element(excerpt(place, AnnotationKind::Context, Some(label)));
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
    place: &'a Place,
    kind: AnnotationKind,
    label: Option<&'a str>,
) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
    Snippet::source(place.text.as_str())
        .path(place.file.as_str())
        .line_start(place.line)
        .annotation(kind.span(place.range.clone()).label(label))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

/// Everything that keeps a configuration from being used, in the order of the file.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    problems: Vec<Problem>,
}

impl ConfigErrors {
    /// The errors, and the warnings found along with them.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// All of them, one after the other, with terminal colours if asked for.
    pub fn render(&self, colour: bool) -> String {
        let rendered: Vec<_> = self.problems.iter().map(|p| p.render(colour)).collect();
        rendered.join("\n\n")
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for ConfigErrors {}

impl From<Problem> for ConfigErrors {
    fn from(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
        }
    }
}

/// The problems found so far, and the texts they point into.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) sources: SourceMap,
    problems: Vec<Problem>,
}

impl Findings {
    /// Reports what makes the configuration unusable.
    pub(super) fn error(
        &mut self,
        span: &Span,
        title: impl Into<String>,
        help: impl Into<String>,
    ) -> &mut Self {
        self.push(Severity::Error, span, &title.into(), help.into())
    }

    /// Reports what somebody should look at.
    pub(super) fn warning(
        &mut self,
        span: &Span,
        title: impl Into<String>,
        help: impl Into<String>,
    ) -> &mut Self {
        self.push(Severity::Warning, span, &title.into(), help.into())
    }

    /// Shows a second place along with the problem just reported.
    pub(super) fn note(&mut self, span: &Span, label: impl Into<String>) {
        let place = self.sources.place(span);
        if let Some(problem) = self.problems.last_mut() {
            problem.note = Some((place, label.into()));
        }
    }

    fn push(&mut self, severity: Severity, span: &Span, title: &str, help: String) -> &mut Self {
        let place = self.sources.place(span);
        self.problems.push(Problem {
            severity,
            title: secrets::masked(title).into_owned(),
            help,
            file: place.file.clone(),
            line: place.line,
            column: place.column,
            offending: place.offending().to_owned(),
            order: span.start,
            place: Some(place),
            note: None,
        });
        self
    }

    /// Whether something within the span was already reported.
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

    /// Everything found, in the order of the file.
    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| problem.order);
        self.problems
    }

    /// Everything found, as what keeps the configuration from being used.
    pub(super) fn into_errors(self) -> ConfigErrors {
        ConfigErrors {
            problems: self.into_problems(),
        }
    }
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
    fn a_problem_reads_like_one_of_rustc() {
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
    fn colour_is_used_only_when_asked_for() {
        let mut findings = findings();
        findings.warning(&(0..9), "title", "help");
        let warnings = findings.into_problems();
        assert!(!warnings[0].render(false).contains('\u{1b}'));
        assert!(warnings[0].render(true).contains('\u{1b}'));
    }

    #[test]
    fn problems_come_in_the_order_of_the_file() {
        let mut findings = findings();
        findings.error(&(17..24), "second", "");
        findings.error(&(0..9), "first", "").note(&(10..14), "here");
        let errors = findings.into_errors();
        let titles: Vec<_> = errors.problems().iter().map(|p| &p.title).collect();
        assert_eq!(titles, ["first", "second"]);
        assert!(errors.to_string().contains("here"));
    }
}
