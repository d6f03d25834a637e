//! `thalweg memory replay`: what other settings would have done.

use std::process::ExitCode;

use thalweg::memory::analysis::what_if::{self, CANDIDATES, Outcome};
use thalweg::memory::analysis::{Start, summarise};
use thalweg::memory::replay::{Program, StartState};
use thalweg::memory::snapshot::Recording;
use thalweg::memory::{Policy, Settings};
use thalweg_page::Curve;

use super::arguments::Arguments;
use super::page::Pages;
use super::size::{self, count, size};
use super::table::Table;
use super::{Failure, files};
use crate::UsageError;
use crate::output::{Object, Output};
use crate::progress::Progress;

/// What was asked for.
pub struct Question {
    policy: Policy,
    policy_name: &'static str,
    card_bytes: Option<u64>,
    /// The settings to try; those of the recording, if there are none.
    confs: Vec<String>,
    search: bool,
    json: bool,
    /// Whether an object says which file it is about.
    names_files: bool,
}

impl Question {
    /// # Errors
    /// If an option has a value that it does not take.
    pub fn of(arguments: &Arguments) -> Result<Self, Failure> {
        let (policy, policy_name) = match arguments.value("--policy") {
            None | Some("pytorch") => (Policy::PyTorch, "pytorch"),
            Some("thalweg") => (Policy::Thalweg, "thalweg"),
            Some(other) => {
                return Err(UsageError(format!("--policy takes pytorch or thalweg, not `{other}`")).into());
            }
        };
        let this = Self {
            policy,
            policy_name,
            card_bytes: arguments.read("--card", "a size such as 24GiB", size::parse)?,
            confs: arguments.values("--conf").map(str::to_owned).collect(),
            search: arguments.has("--search"),
            json: arguments.has("--json"),
            names_files: arguments.files()?.len() > 1,
        };
        for conf in &this.confs {
            this.settings(conf).map_err(UsageError)?;
        }
        Ok(this)
    }

    fn settings(&self, conf: &str) -> Result<Settings, String> {
        let settings =
            what_if::settings(self.policy, conf).map_err(|error| format!("--conf {conf}: {error}"))?;
        if settings.per_process_memory_fraction() < 1.0 && self.card_bytes.is_none() {
            return Err(format!("--conf {conf}: a fraction of which memory? give --card"));
        }
        Ok(settings)
    }

    /// The settings for one recording, the first of which the others are compared with.
    fn confs_for(&self, recorded: &str) -> Vec<String> {
        let mut confs = self.confs.clone();
        if confs.is_empty() {
            confs.push(recorded.to_owned());
        }
        if self.search {
            // What is collected depends on how full the card is.
            let helps = |conf: &&&str| self.card_bytes.is_some() || !conf.contains("garbage_collection");
            confs.extend(CANDIDATES.iter().filter(helps).map(|conf| conf.to_string()));
        }
        let mut unique = Vec::new();
        for conf in confs {
            if !unique.contains(&conf) {
                unique.push(conf);
            }
        }
        unique
    }
}

pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    arguments.only(&["--conf", "--policy", "--card", "--search", "--html"])?;
    let question = Question::of(&arguments)?;
    let html = arguments.value("--html");
    let mut pages = Pages::new(arguments.files()?);
    let output = Output::standard();
    let mut replayed = 0;
    files::each(arguments.files()?, |path, recording| {
        for device in recording.devices().into_iter().filter(|&device| recording.trace_len(device) > 0) {
            if replayed > 0 && !question.json {
                output.text("\n");
            }
            let curves = replay(&question, &output, path, recording, device)?;
            if html.is_some() {
                pages.add(path, recording, &summarise(recording, device), question.card_bytes, curves);
            }
            replayed += 1;
        }
        Ok(())
    })?;
    if replayed == 0 {
        return Err(Failure::File(
            "there is no trace to replay; switch the history on before the work begins: \
             torch.cuda.memory._record_memory_history()"
                .into(),
        ));
    }
    if let Some(html) = html {
        pages.write(html)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The outcome of each setting for one device.
fn outcomes(
    question: &Question,
    path: &str,
    recording: &Recording,
    device: usize,
    confs: &[String],
    mut seen: impl FnMut(&str, &Outcome),
) -> Result<Vec<Outcome>, Failure> {
    let complain = |what: &dyn std::fmt::Display| Failure::File(format!("{path}: device {device}: {what}"));
    let recorded = what_if::recorded_conf(recording);
    let program = Program::from_recording(recording, device).map_err(|error| complain(&error))?;
    let mut outcomes = Vec::new();
    for conf in confs {
        let settings = question.settings(conf).map_err(|error| complain(&error))?;
        // Only the recording's own settings lead to the state in which the trace begins.
        let as_recorded =
            || what_if::settings(question.policy, recorded).is_ok_and(|those| those == settings);
        let is_recorded = question.policy == Policy::PyTorch && as_recorded();
        let start = if is_recorded { StartState::Recorded } else { StartState::LiveBlocks };
        let mut progress = Progress::new(format!("replaying {}", name(conf)), program.steps().len() as u64);
        let show = |step| progress.show(step as u64);
        let outcome = what_if::run(&program, settings, start, question.card_bytes, show);
        drop(progress);
        let outcome = outcome.map_err(|error| complain(&error))?;
        seen(conf, &outcome);
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// The curves of what the settings of `question` would have reserved, for a page.
pub fn curves(
    question: &Question,
    path: &str,
    recording: &Recording,
    device: usize,
) -> Result<Vec<Curve>, Failure> {
    let outcomes = outcomes(question, path, recording, device, &question.confs, |_, _| {})?;
    Ok(question.confs.iter().zip(outcomes).map(|(conf, outcome)| curve(conf, outcome)).collect())
}

fn curve(conf: &str, outcome: Outcome) -> Curve {
    let died = if outcome.out_of_memory { ", until it dies" } else { "" };
    let bound = if outcome.is_lower_bound { ", at least" } else { "" };
    Curve {
        name: format!("reserved with {}{bound}{died}", name(conf)),
        is_estimate: outcome.is_estimate,
        steps: outcome.reserved,
    }
}

/// Replays one device and prints what came of it. Returns the curves for a page.
fn replay(
    question: &Question,
    output: &Output,
    path: &str,
    recording: &Recording,
    device: usize,
) -> Result<Vec<Curve>, Failure> {
    let recorded = what_if::recorded_conf(recording);
    let confs = question.confs_for(recorded);
    let outcomes = outcomes(question, path, recording, device, &confs, |conf, outcome| {
        if question.json {
            output.text(&object(question, path, device, conf, outcome).finish());
        }
    })?;
    let start = summarise(recording, device).start;
    let report = Report { question, recorded, confs: &confs, outcomes: &outcomes, start };
    if !question.json {
        output.line(2, &format!("{path}, device {device}, policy {}", question.policy_name));
        output.text(&report.table().render(output.width(), 2));
        report.notes(output);
        if question.search {
            report.recommend(output);
        }
    } else if question.search {
        output.text(&report.json_recommendation(device).finish());
    }
    Ok(confs.iter().zip(outcomes).map(|(conf, outcome)| curve(conf, outcome)).collect())
}

fn name(conf: &str) -> String {
    if conf.is_empty() { "(default)".into() } else { conf.into() }
}

fn object(question: &Question, path: &str, device: usize, conf: &str, outcome: &Outcome) -> Object {
    let object = Object::new()
        .string("settings", conf)
        .string("policy", question.policy_name)
        .integer("device", device as u64)
        .integer("peak_live_bytes", outcome.peak_live_bytes)
        .integer("peak_reserved_bytes", outcome.peak_reserved_bytes)
        .integer("driver_allocations", outcome.driver_allocations)
        .integer("driver_frees", outcome.driver_frees)
        .integer("retries", outcome.retries)
        .boolean("out_of_memory", outcome.out_of_memory)
        .integer("address_mismatches", outcome.address_mismatches);
    let object = match outcome.is_estimate {
        true => object.boolean("is_estimate", true),
        false => object,
    };
    let object = match outcome.is_lower_bound {
        true => object
            .boolean("is_lower_bound", true)
            .string("lower_bound_of", "peak_reserved_bytes,driver_allocations"),
        false => object,
    };
    if question.names_files { object.string("snapshot", path) } else { object }
}

/// What is printed of one device.
struct Report<'r> {
    question: &'r Question,
    recorded: &'r str,
    confs: &'r [String],
    outcomes: &'r [Outcome],
    start: Start,
}

impl Report<'_> {
    fn table(&self) -> Table {
        let mut table =
            Table::new(&["settings", "reserved", "/live", "allocs", "frees", "retries", "died"], 0);
        for (conf, outcome) in self.confs.iter().zip(self.outcomes) {
            // What the lost beginning reserved under these settings cannot be known.
            let bound = if outcome.is_lower_bound { ">=" } else { "" };
            let estimate = if outcome.is_estimate { "~" } else { "" };
            table.row(vec![
                name(conf),
                format!("{bound}{estimate}{}", size(outcome.peak_reserved_bytes)),
                format!("{:.3}", outcome.reserved_over_live()),
                count(outcome.driver_allocations),
                count(outcome.driver_frees),
                count(outcome.retries),
                if outcome.out_of_memory { "yes" } else { "no" }.into(),
            ]);
        }
        table
    }

    fn notes(&self, output: &Output) {
        let note = |text: &str| output.line(2, &format!("  {text}"));
        let live = self.outcomes.iter().map(|outcome| outcome.peak_live_bytes).max().unwrap_or(0);
        let is_whole = self.outcomes.iter().any(|outcome| !outcome.out_of_memory);
        let scope = if is_whole { "whatever the settings" } else { "up to where it died" };
        note(&format!("live at most: {}, {scope}", size(live)));
        let recorded = self.confs.iter().position(|conf| conf == self.recorded);
        if let Some(at) = recorded.filter(|_| self.question.policy == Policy::PyTorch) {
            let mismatches = count(self.outcomes[at].address_mismatches);
            note(&format!("{mismatches} blocks are elsewhere than in the recording, under its own settings"));
        }
        match self.question.card_bytes {
            Some(card) => note(&format!(
                "on a card of {}, of which a real process has less: what is outside the allocator (context, libraries, other \
                 processes) is in no snapshot",
                size(card)
            )),
            None => note("on a card without end; with --card the replay says whether the run fits"),
        }
        if !self.start.is_complete() {
            note(&format!(
                "the beginning is not in the trace ({} in {} blocks were live before it): figures with >= are a lower bound",
                size(self.start.live_bytes),
                count(self.start.live_blocks as u64)
            ));
        }
        if self.outcomes.iter().any(|outcome| outcome.is_estimate) {
            note(
                "~ is an estimate: what cudaMallocAsync reserves is decided by rules that only the driver knows",
            );
        }
        if self.outcomes.iter().any(|outcome| outcome.out_of_memory) {
            note("died: a request failed for want of memory; the figures are those up to then");
        }
    }

    fn recommend(&self, output: &Output) {
        let Some(best) = what_if::best(self.outcomes) else {
            output.line(2, "\nNone of these settings fits the card. What helps is to need less: see `thalweg memory show`.");
            return;
        };
        let (first, chosen) = (&self.outcomes[0], &self.outcomes[best]);
        let saved = first.peak_reserved_bytes.saturating_sub(chosen.peak_reserved_bytes);
        if best == 0 || (saved == 0 && !first.out_of_memory) {
            output.line(2, "\nRecommended: no change; none of the others reserves less.");
            return;
        }
        output.line(2, &format!("\nRecommended: PYTORCH_CUDA_ALLOC_CONF={}", self.confs[best]));
        output.line(
            2,
            &if first.out_of_memory {
                format!(
                    "  it fits, with {} reserved at most, where {} dies",
                    size(chosen.peak_reserved_bytes),
                    name(&self.confs[0])
                )
            } else {
                format!(
                    "  it reserves {} less than {} ({})",
                    size(saved),
                    name(&self.confs[0]),
                    size::share(saved, first.peak_reserved_bytes)
                )
            },
        );
        output.line(2, "  Speed is not known from a trace: try it.");
    }

    fn json_recommendation(&self, device: usize) -> Object {
        let object = Object::new().integer("device", device as u64);
        match what_if::best(self.outcomes) {
            Some(best) => {
                let saved = self.outcomes[0]
                    .peak_reserved_bytes
                    .saturating_sub(self.outcomes[best].peak_reserved_bytes);
                object.string("recommended", &self.confs[best]).integer("saved_bytes", saved)
            }
            None => object.null("recommended").integer("saved_bytes", 0),
        }
    }
}
