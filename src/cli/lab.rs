//! `tidegate lab`: runs a client command against scenarios and judges how it retries.

mod child;
mod output;
mod session;
mod tls;

use std::ffi::OsString;
use std::io::stderr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};

use self::output::{Format, Output};
use self::session::Session;
use self::tls::Certificates;
use super::serve::{SignalEffect, Signals, install_tls_provider, raise_file_limit};
use crate::config::lab::ScenarioFile;
use crate::config::{ConfigErrors, Environment, LogSettings, suggest};
use crate::lab::report::Report;
use crate::lab::report::baseline::{Baseline, Comparison};
use crate::lab::report::document::Document;
use crate::lab::verdict::Verdict;
use crate::pipeline::log;
use crate::scenario::Scenario;

const FAILED: u8 = 1;

const NOT_JUDGED: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  tidegate lab --scenario retry-after -- curl --retry 3 {url}/
  tidegate lab --scenario three-rejections -- sh -c 'curl --retry 5 \"$TIDEGATE_URL/orders\"'
  tidegate lab --suite standard --junit lab.xml --html lab.html -- python3 client.py
  tidegate lab --config scenarios.toml --scenario flaky --json - -- node client.js
  tidegate lab --tls --scenario outage -- sh -c 'curl --cacert \"$TIDEGATE_CA_FILE\" --retry 9 {url}/'
  tidegate lab list

Exit codes: 0 if no rule failed, 1 if a rule failed or a verdict is worse than in the baseline, 2 if the client could
not be judged.";

/// Run a client command against scripted failures and judge how it retries.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Option<LabCommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, clap::Subcommand)]
enum LabCommand {
    /// List the scenarios, one per line
    List {
        /// File with further scenarios
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

#[derive(Debug, clap::Args)]
#[expect(
    clippy::doc_markdown,
    reason = "the comments are the help text of the command"
)]
struct RunArgs {
    /// File with further scenarios. Only its sections [scenario.NAME], and [limit.NAME] with the name of a scenario,
    /// are used
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Scenario to run; can be repeated
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "suite",
        conflicts_with = "suite"
    )]
    scenario: Vec<String>,
    /// Suite of scenarios to run in sequence
    #[arg(long, value_name = "NAME", value_enum)]
    suite: Option<Suite>,
    /// URL of the server that receives the requests that a scenario passes. Without it, they get 200
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Name of the client in reports. Default: the name of the command
    #[arg(long)]
    name: Option<String>,
    /// Version of the client in reports
    #[arg(long, value_name = "VERSION")]
    client_version: Option<String>,
    /// Earlier report of --json. The exit code is 1 if a verdict is worse than in this report
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Time limit of the command in each scenario, such as 90s. Default: 60s and the waits of the scenario
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    timeout: Option<Duration>,
    /// Use https with a generated certificate. The path of the CA certificate is in TIDEGATE_CA_FILE
    #[arg(long)]
    tls: bool,
    /// Write the report as JSON to a file, or to standard output if FILE is -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as JUnit XML, for CI systems
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the report as Markdown, for pull requests
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write the report as a web page in one file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Include credentials and bodies in reports
    #[arg(long)]
    include_secrets: bool,
    /// Command of the client. {url} in an argument is replaced by the URL of the gateway, which is also in TIDEGATE_URL
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Named list of scenarios for `--suite`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Suite {
    /// All scenarios that are part of the program
    Standard,
}

type Selected<'a> = (ScenarioFile<'a>, Arc<Scenario>);

/// Errors go to standard error, with the exit code [`NOT_JUDGED`].
pub(super) fn run(args: &Args) -> ExitCode {
    let result = match &args.action {
        Some(LabCommand::List { config }) => list(config.as_deref()),
        None => args.run.run(),
    };
    result.unwrap_or_else(|error| {
        match error.downcast_ref::<ConfigErrors>() {
            Some(errors) => eprintln!("{}", errors.render(output::has_colour(&stderr()))),
            None => eprintln!("error: {error:#}"),
        }
        ExitCode::from(NOT_JUDGED)
    })
}

fn list(config: Option<&Path>) -> anyhow::Result<ExitCode> {
    let text = read_config(config)?;
    let mut scenarios = all_scenarios(config, text.as_deref())?;
    scenarios.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    scenarios.dedup_by(|(_, later), (_, first)| later.name == first.name);
    let names = scenarios.iter().map(|(_, scenario)| scenario.name.len());
    let width = names.max().unwrap_or(0);
    let lines = scenarios.iter().map(|(_, scenario)| {
        let summary = scenario.summary.as_deref().unwrap_or_default();
        let line = format!("{:width$}  {summary}", scenario.name);
        format!("{}\n", line.trim_end())
    });
    output::print(&lines.collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

impl RunArgs {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let config = self.config.as_deref();
        let text = read_config(config)?;
        let scenarios = self.select(all_scenarios(config, text.as_deref())?)?;
        let mut outputs = self.open_outputs()?;
        let baseline = self.baseline.as_deref().map(read_baseline).transpose()?;
        install_tls_provider();
        raise_file_limit();
        let _log = log::start(LogSettings::WARNINGS)?;
        let report = self.run_scenarios(scenarios)?;
        let document = Document::of(&report);
        output::print_table(&document, &outputs)?;
        for output in &mut outputs {
            output.write(&document)?;
        }
        let comparison = baseline.map(|old| old.compare(&document));
        let code = exit_code(&report, comparison.as_ref());
        Ok(ExitCode::from(code))
    }

    fn select<'a>(&self, known: Vec<Selected<'a>>) -> anyhow::Result<Vec<Selected<'a>>> {
        if self.suite.is_some() {
            let shipped = ScenarioFile::shipped();
            let is_shipped = |(file, _): &Selected<'_>| file.name == shipped.name;
            return Ok(known.into_iter().filter(is_shipped).collect());
        }
        let mut selected: Vec<Selected<'a>> = Vec::new();
        for name in &self.scenario {
            if selected.iter().any(|(_, it)| *it.name == **name) {
                bail!("the scenario `{name}` is selected twice");
            }
            let Some(found) = known.iter().find(|(_, it)| *it.name == **name) else {
                let names = known.iter().map(|(_, it)| &*it.name);
                bail!(
                    "unknown scenario `{name}`: {}",
                    suggest::remedy(name, names)
                );
            };
            selected.push(found.clone());
        }
        Ok(selected)
    }

    fn open_outputs(&self) -> anyhow::Result<Vec<Output>> {
        let files = [
            (Format::Json, &self.json),
            (Format::Junit, &self.junit),
            (Format::Markdown, &self.markdown),
            (Format::Html, &self.html),
        ];
        output::open_all(files, self.include_secrets)
    }

    fn run_scenarios(&self, scenarios: Vec<Selected<'_>>) -> anyhow::Result<Report> {
        let certificates = self.tls.then(Certificates::generate).transpose()?;
        let env = Environment::of_process();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let started = SystemTime::now();
        let results = runtime.block_on(async {
            let mut signals = Signals::new(SignalEffect::Shutdown)?;
            let mut results = Vec::with_capacity(scenarios.len());
            for (file, scenario) in scenarios {
                let session = Session {
                    file,
                    scenario,
                    command: &self.command,
                    upstream: self.upstream.as_deref(),
                    timeout: self.timeout,
                    certificates: certificates.as_ref(),
                    include_secrets: self.include_secrets,
                };
                let (result, can_continue) = session.run(&env, &mut signals).await?;
                results.push(result);
                if !can_continue {
                    break;
                }
            }
            anyhow::Ok(results)
        })?;
        Ok(Report {
            client: self.name.clone().unwrap_or_else(|| self.program_name()),
            client_version: self.client_version.clone(),
            started,
            scenarios: results,
            include_secrets: self.include_secrets,
        })
    }

    fn program_name(&self) -> String {
        let program = self.command.first().map(Path::new);
        let name = program.and_then(Path::file_name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Writes the reason to standard error unless the code is 0.
fn exit_code(report: &Report, comparison: Option<&Comparison>) -> u8 {
    for scenario in &report.scenarios {
        if let Some(failure) = &scenario.failure {
            eprintln!("error: scenario {}: {failure}", scenario.name);
        }
    }
    let regressions = comparison.map_or(&[][..], |it| &it.regressions);
    for regression in regressions {
        eprintln!("error: worse than the baseline: {regression}");
    }
    for name in comparison.iter().flat_map(|it| &it.missing) {
        eprintln!("warning: the scenario {name} of the baseline did not run");
    }
    let is_incomparable = comparison.is_some_and(|it| it.compared == 0);
    match comparison {
        Some(_) if is_incomparable => {
            eprintln!("error: the baseline has no scenario in common with this run");
        }
        Some(it) if it.regressions.is_empty() => {
            eprintln!("baseline: {} rules compared, none is worse", it.compared);
        }
        _ => {}
    }
    match report.verdict() {
        Verdict::Fail => FAILED,
        _ if !regressions.is_empty() => FAILED,
        _ if is_incomparable => NOT_JUDGED,
        Verdict::NotEnoughData => {
            if report.scenarios.iter().all(|it| it.failure.is_none()) {
                eprintln!("error: no rule had enough data to judge the client");
            }
            NOT_JUDGED
        }
        Verdict::Pass | Verdict::Warn => 0,
    }
}

fn read_config(path: Option<&Path>) -> anyhow::Result<Option<String>> {
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path);
        text.with_context(|| format!("cannot read {}", path.display()))
    };
    path.map(read).transpose()
}

/// Scenarios of the file, then the shipped ones. A name refers to the first scenario that has it.
fn all_scenarios<'a>(
    config: Option<&'a Path>,
    text: Option<&'a str>,
) -> anyhow::Result<Vec<Selected<'a>>> {
    let name = config.and_then(Path::to_str).unwrap_or("--config");
    let own = text.map(|text| ScenarioFile { name, text });
    let env = Environment::of_process();
    let mut all = Vec::new();
    for file in own.into_iter().chain([ScenarioFile::shipped()]) {
        let scenarios = file.scenarios(&env)?;
        all.extend(scenarios.into_iter().map(|scenario| (file, scenario)));
    }
    Ok(all)
}

fn read_baseline(path: &Path) -> anyhow::Result<Baseline> {
    let failed = || format!("cannot use the baseline {}", path.display());
    let text = std::fs::read_to_string(path).with_context(failed)?;
    // Only the text of the error is kept, because it contains the cause.
    Baseline::parse(&text)
        .map_err(|error| anyhow::Error::msg(error.to_string()))
        .with_context(failed)
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("the time limit must be longer than 0".into()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write a duration such as 90s or 5m")),
    }
}
