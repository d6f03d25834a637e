//! `thalweg memory replay`: the results that other settings would have had.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use thalweg::memory::{Policy, Settings};
use thalweg::memory_tools::analysis::forecast::{self, Answer, Forecast, Recommendation};
use thalweg::memory_tools::analysis::what_if::{self, CANDIDATES};
use thalweg::memory_tools::analysis::{Categories, Summary, summarise};
use thalweg::memory_tools::replay::RecordedProgram;
use thalweg::memory_tools::report::Curve;
use thalweg::progress::Progress;
use thalweg::snapshot::Recording;

use super::files;
use super::page::{GpuBytes, Pages, refuse_input};
use super::places::printable;
use super::show::doubts;
use super::size::{self, count, size};
use super::table::Table;
use crate::output::{Failure, Output};

/// On a terminal with fewer columns the table leaves the counts of calls out.
const NARROW: usize = 76;

/// The former name of `--gpu-memory`, which scripts may use.
const FORMER_OPTION: &str = "ca\x72d";

/// Replays the recorded requests under other settings: what would have been reserved, and whether it would have fit
#[derive(Args)]
#[command(after_help = "\
--search tries what is known to help some programs:
  the default
  expandable_segments:True
      segments that grow: no free rests between segments
  max_split_size_mb:64, :128, :256, :512
      large blocks are not cut, and stay whole for large requests
  roundup_power2_divisions:4, :8, :16
      sizes that vary a little become equal, and fit where others were
  garbage_collection_threshold:0.6, :0.8, and :0.8 with max_split_size_mb:128
      old cached segments go back before the GPU is full; with --gpu-memory only,
      since without one nothing is collected
It recommends the one that fits and reserves least; of those within 1 % of that,
the one that calls the driver least. Of a trace that lost its beginning only
what is certain to save is recommended. cudaMallocAsync is not tried: of that
there is only an estimate (--conf backend:cudaMallocAsync).

Examples:
  thalweg memory replay snapshot.pickle --search --gpu-memory 24GiB
  thalweg memory replay snapshot.pickle --conf max_split_size_mb:128")]
pub struct ReplayArgs {
    #[command(flatten)]
    what_if: WhatIf,
    /// Tries a list of settings too, and recommends one (see below)
    #[arg(long)]
    search: bool,
}

/// The recordings to replay, and the settings to replay them under.
#[derive(Args)]
pub struct WhatIf {
    /// Files that _dump_snapshot wrote, of one rank or several
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub snapshots: Vec<PathBuf>,
    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF; may be repeated [default: those of the recording]
    #[arg(long, value_name = "KEY:VALUE,...")]
    pub conf: Vec<String>,
    /// pytorch: decides as PyTorch 2.11 does; thalweg: as this project's own allocator does
    #[arg(long, value_name = "NAME", default_value = "pytorch", hide_possible_values = true)]
    policy: PolicyName,
    /// The memory of the GPU, with its unit: 24GiB, 24GB
    #[arg(long = "gpu-memory", alias = FORMER_OPTION, value_name = "SIZE", value_parser = size::parse_gpu)]
    pub gpu: Option<u64>,
    /// Writes the same and more as a page for a browser, in one file; each --conf is a curve on it
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    Pytorch,
    Thalweg,
}

impl PolicyName {
    fn name(self) -> &'static str {
        match self {
            Self::Pytorch => "pytorch",
            Self::Thalweg => "thalweg",
        }
    }

    fn policy(self) -> Policy {
        match self {
            Self::Pytorch => Policy::PyTorch,
            Self::Thalweg => Policy::Thalweg,
        }
    }
}

impl WhatIf {
    /// # Errors
    /// If a setting makes no sense, or the page would be in the place of a snapshot.
    pub fn check(&self) -> Result<(), Failure> {
        self.html.as_deref().map_or(Ok(()), |html| refuse_input(html, &self.snapshots))?;
        self.conf.iter().try_for_each(|conf| self.settings(conf).map(drop)).map_err(Failure)
    }

    fn settings(&self, conf: &str) -> Result<Settings, String> {
        let settings = what_if::settings(self.policy.policy(), conf)
            .map_err(|error| format!("--conf {conf}: {error}"))?;
        if settings.per_process_memory_fraction() < 1.0 && self.gpu.is_none() {
            return Err(format!("--conf {conf}: a fraction of which memory? give --gpu-memory"));
        }
        Ok(settings)
    }

    /// Returns the settings to try for one recording. The first settings are the ones that the others are compared with.
    fn confs_for(&self, recorded: &str, search: bool) -> Vec<String> {
        let mut confs = self.conf.clone();
        if confs.is_empty() {
            confs.push(recorded.to_owned());
        }
        if search {
            // Garbage collection depends on how full the GPU is.
            let helps = |conf: &&&str| self.gpu.is_some() || !conf.contains("garbage_collection");
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

pub fn run(arguments: &ReplayArgs) -> Result<ExitCode, Failure> {
    let ReplayArgs { what_if: question, search } = arguments;
    question.check()?;
    let categories = Categories::default();
    let mut pages = Pages::new(&question.snapshots, &categories);
    let output = Output::standard();
    let mut replayed = 0;
    files::each(&question.snapshots, |path, recording| {
        for device in recording.devices().into_iter().filter(|&device| recording.trace_len(device) > 0) {
            if replayed > 0 && !question.json {
                output.text("\n");
            }
            let summary = summarise(recording, device);
            let curves = replay(question, *search, &output, path, recording, &summary)?;
            if question.html.is_some() {
                let least_gpu = least_gpu(question, path, recording, &summary)?;
                let gpus = GpuBytes { gpu: question.gpu, least_gpu };
                pages.add(path, recording, &summary, gpus, curves);
            }
            replayed += 1;
        }
        Ok(())
    })?;
    if replayed == 0 {
        return Err(Failure(
            "there is no trace to replay; switch the history on before the work begins: \
             torch.cuda.memory._record_memory_history()"
                .into(),
        ));
    }
    if let Some(html) = &question.html {
        pages.write(html, &question.snapshots)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The results of one setting.
struct Trial {
    conf: String,
    /// The forecast, or the reason why there is no forecast.
    forecast: Result<Forecast, &'static str>,
}

/// Returns the result of each setting for one device.
fn trials(
    question: &WhatIf,
    path: &str,
    recording: &Recording,
    device: usize,
    confs: &[String],
    finds_gpu: bool,
    mut seen: impl FnMut(&Trial),
) -> Result<Vec<Trial>, Failure> {
    let complain = |what: &dyn std::fmt::Display| Failure(format!("{path}: device {device}: {what}"));
    let recorded = what_if::recorded_conf(recording);
    let program = RecordedProgram::from_recording(recording, device).map_err(|error| complain(&error))?;
    let mut trials = Vec::new();
    for conf in confs {
        let settings = question.settings(conf).map_err(|error| complain(&error))?;
        // Only the recording's own settings lead to the state in which the trace begins.
        let as_recorded =
            || what_if::settings(question.policy.policy(), recorded).is_ok_and(|those| those == settings);
        let is_recorded = question.policy == PolicyName::Pytorch && as_recorded();
        let forecast = match forecast::unknown(&program, &settings) {
            Some(why) => Err(why),
            None => {
                let steps = program.steps().len() as u64;
                let mut progress = Progress::transient(format!("replaying {}", name(conf)), steps);
                let show = |step| progress.advance(step as u64);
                let forecast = Forecast::of(&program, &settings, is_recorded, question.gpu, show);
                let mut forecast = forecast.map_err(|error| complain(&error))?;
                if finds_gpu {
                    forecast.find_gpu(&program, &settings).map_err(|error| complain(&error))?;
                }
                Ok(forecast)
            }
        };
        let trial = Trial { conf: conf.clone(), forecast };
        seen(&trial);
        trials.push(trial);
    }
    Ok(trials)
}

/// Returns the smallest GPU that would have been enough under the settings of the recording; `None` if that is not known.
pub fn least_gpu(
    question: &WhatIf,
    path: &str,
    recording: &Recording,
    summary: &Summary,
) -> Result<Option<u64>, Failure> {
    if summary.out_of_memory.is_empty() {
        return Ok(None);
    }
    let recorded = [what_if::recorded_conf(recording).to_owned()];
    let trials = trials(question, path, recording, summary.device, &recorded, true, |_| {})?;
    Ok(trials.into_iter().find_map(|trial| trial.forecast.ok()?.fits_from_bytes))
}

/// Returns the curves of what the settings of `question` would have reserved, for a page.
pub fn curves(
    question: &WhatIf,
    path: &str,
    recording: &Recording,
    device: usize,
) -> Result<Vec<Curve>, Failure> {
    let trials = trials(question, path, recording, device, &question.conf, false, |_| {})?;
    Ok(trials.into_iter().filter_map(curve).collect())
}

fn curve(trial: Trial) -> Option<Curve> {
    let forecast = trial.forecast.ok()?;
    let part = match forecast.is_partial() && !forecast.is_recorded {
        true => ", if it had begun with what was reserved then",
        false => "",
    };
    // From the latest begin of the curves, so that all have the same range.
    let outcome = forecast.worn.unwrap_or(forecast.tidy);
    let died = if outcome.out_of_memory { ", until it dies" } else { "" };
    Some(Curve {
        name: format!("reserved with {}{part}{died}", name(&trial.conf)),
        is_estimate: outcome.is_estimate,
        steps: outcome.reserved,
    })
}

/// Replays one device and prints the results. Returns the curves for a page.
fn replay(
    question: &WhatIf,
    search: bool,
    output: &Output,
    path: &str,
    recording: &Recording,
    summary: &Summary,
) -> Result<Vec<Curve>, Failure> {
    let device = summary.device;
    let recorded = what_if::recorded_conf(recording);
    let confs = question.confs_for(recorded, search);
    let trials = trials(question, path, recording, device, &confs, true, |trial| {
        if question.json {
            output.json(&describe(question, path, device, trial));
        }
    })?;
    let doubts = doubts(recording, summary, question.gpu);
    let report = Report { question, trials: &trials, summary, doubts };
    if !question.json {
        output.line(2, &format!("{path}, device {device}, policy {}", question.policy.name()));
        output.text(&report.table(output.width() < NARROW).render(output.width(), 2));
        report.notes(output);
        if search {
            report.recommend(output);
        }
    } else if search {
        output.json(&report.json_recommendation(device));
    }
    Ok(trials.into_iter().filter_map(curve).collect())
}

fn name(conf: &str) -> String {
    if conf.is_empty() { "(default)".into() } else { printable(conf) }
}

fn describe(question: &WhatIf, path: &str, device: usize, trial: &Trial) -> Value {
    let mut object = json!({ "settings": trial.conf, "policy": question.policy.name(), "device": device });
    let forecast = match &trial.forecast {
        Ok(forecast) => forecast,
        Err(why) => {
            object["peak_reserved_bytes"] = Value::Null;
            object["why_unknown"] = (*why).into();
            return object;
        }
    };
    let outcome = forecast.nearest();
    let answer = forecast.out_of_memory();
    let is_bound = forecast.is_partial() && answer == Answer::No;
    let peak = if is_bound { forecast.least_reserved_bytes } else { outcome.peak_reserved_bytes };
    let mut add = |members: Value| {
        if let (Value::Object(object), Value::Object(members)) = (&mut object, members) {
            object.extend(members);
        }
    };
    add(json!({
        "peak_live_bytes": outcome.peak_live_bytes,
        "peak_reserved_bytes": peak,
        "driver_allocations": outcome.driver_allocations,
        "driver_frees": outcome.driver_frees,
        "retries": outcome.retries,
        "out_of_memory": answer == Answer::Yes,
        "address_mismatches": outcome.address_mismatches,
        "fits_from_bytes": forecast.fits_from_bytes,
    }));
    if outcome.is_estimate {
        add(json!({ "is_estimate": true }));
    }
    if forecast.is_partial() {
        let (least, most) = forecast.recorded_part_bytes();
        let bound =
            if is_bound { "peak_live_bytes,peak_reserved_bytes,out_of_memory" } else { "out_of_memory" };
        add(json!({
            "is_lower_bound": true,
            "lower_bound_of": bound,
            "out_of_memory_perhaps": answer == Answer::Perhaps,
            "recorded_part_least_bytes": least,
            "recorded_part_most_bytes": most,
        }));
    }
    if question.snapshots.len() > 1 {
        add(json!({ "snapshot": path }));
    }
    object
}

/// The output for one device.
struct Report<'r> {
    question: &'r WhatIf,
    trials: &'r [Trial],
    summary: &'r Summary,
    doubts: Vec<String>,
}

impl Report<'_> {
    fn forecasts(&self) -> impl Iterator<Item = &Forecast> {
        self.trials.iter().filter_map(|trial| trial.forecast.as_ref().ok())
    }

    fn is_partial(&self) -> bool {
        self.forecasts().any(Forecast::is_partial)
    }

    fn table(&self, is_narrow: bool) -> Table {
        let is_partial = self.is_partial();
        let names: &[&'static str] = match is_partial {
            true => &["settings", "reserved", "in the recorded part", "died", "fits from"],
            false if is_narrow => &["settings", "reserved", "/live", "died", "fits from"],
            false => &["settings", "reserved", "/live", "allocs", "frees", "retries", "died", "fits from"],
        };
        let mut table = Table::new(names, 0);
        for Trial { conf, forecast } in self.trials {
            let mut cells = vec![name(conf)];
            match forecast {
                Ok(forecast) if is_partial => cells.extend(partial_cells(forecast)),
                Ok(forecast) => cells.extend(whole_cells(forecast, is_narrow)),
                Err(_) => {
                    cells.push("unknown".into());
                    cells.resize(names.len(), "-".into());
                }
            }
            table.row(cells);
        }
        table
    }

    fn notes(&self, output: &Output) {
        let note = |text: &str| output.line(2, &format!("  {text}"));
        for trial in self.trials {
            if let Err(why) = trial.forecast {
                note(&format!("{}: {why}", name(&trial.conf)));
            }
        }
        self.doubts.iter().for_each(|doubt| note(doubt));
        let nearest = || self.forecasts().map(Forecast::nearest);
        let live = nearest().map(|outcome| outcome.peak_live_bytes).max().unwrap_or(0);
        let is_whole = nearest().any(|outcome| !outcome.out_of_memory);
        let scope = match (is_whole, self.is_partial()) {
            (false, _) => "up to where it died",
            (true, true) => "in the recorded part; before it can have been more",
            (true, false) => "whatever the settings",
        };
        note(&format!("live at most: {}, {scope}", size(live)));
        if let Some(recorded) = self.forecasts().find(|forecast| forecast.is_recorded) {
            let mismatches = count(recorded.nearest().address_mismatches);
            note(&format!("{mismatches} blocks are elsewhere than in the recording, under its own settings"));
        }
        match self.question.gpu {
            Some(gpu) => note(&format!(
                "on a GPU of {}, of which a real process has less: what is outside the allocator (context, libraries, other \
                 processes) is in no snapshot",
                size(gpu)
            )),
            None => note("on a GPU without end; with --gpu-memory the replay says whether the run fits"),
        }
        if self.is_partial() {
            self.partial_notes(&note);
        }
        if nearest().any(|outcome| outcome.is_estimate) {
            note(
                "~ is an estimate: what cudaMallocAsync reserves is decided by rules that only the driver knows",
            );
        }
        if self.forecasts().any(|forecast| forecast.out_of_memory() != Answer::No) {
            note("died: a request failed for lack of memory; the figures are those up to then");
        }
    }

    fn partial_notes(&self, note: &dyn Fn(&str)) {
        let start = self.summary.start;
        note(&format!(
            "the beginning is not in the trace ({} in {} blocks were live before it): figures with >= are a lower bound, of \
             what is live at once",
            size(start.live_bytes),
            count(start.live_blocks as u64)
        ));
        note(
            "in the recorded part: from a tidy beginning, its live blocks packed, to one with all that was reserved then; where \
             the settings themselves would have begun is not known",
        );
    }

    fn recommend(&self, output: &Output) {
        let line = |text: &str| output.line(2, text);
        let forecasts: Vec<Forecast> = self.forecasts().cloned().collect();
        let known: Vec<&Trial> = self.trials.iter().filter(|trial| trial.forecast.is_ok()).collect();
        let conf = |index: usize| known[index].conf.as_str();
        let advise = |index: usize| line(&format!("\nRecommended: PYTORCH_CUDA_ALLOC_CONF={}", conf(index)));
        match forecast::recommend(&forecasts) {
            Recommendation::NoneFits => {
                line(
                    "\nNone of these settings fits the GPU. What helps is to need less: see `thalweg memory show`.",
                );
                let smallest =
                    (0..known.len()).filter_map(|index| Some((forecasts[index].fits_from_bytes?, index)));
                if let Some((bytes, index)) = smallest.min() {
                    line(&format!(
                        "The smallest GPU that is enough has {}, with {}.",
                        size(bytes),
                        name(conf(index))
                    ));
                }
                return;
            }
            Recommendation::NoChange if self.is_partial() => {
                line(
                    "\nRecommended: no change; of a trace without its beginning nothing is certain to reserve less. Record from \
                     the start of the program to know.",
                );
                return;
            }
            Recommendation::NoChange => {
                line("\nRecommended: no change; none of the others reserves less.");
                return;
            }
            Recommendation::Fits { index } => {
                advise(index);
                let (_, most) = forecasts[index].recorded_part_bytes();
                line(&format!(
                    "  it fits, with {} reserved at most, where {} dies",
                    size(most),
                    name(conf(0))
                ));
            }
            Recommendation::Saves { index, least_bytes, most_bytes } => {
                advise(index);
                let whole = forecasts[0].nearest().peak_reserved_bytes;
                let saved = match size(least_bytes) == size(most_bytes) {
                    true => size(least_bytes),
                    false => format!("{} to {}", size(least_bytes), size(most_bytes)),
                };
                let part = if self.is_partial() { " in the recorded part" } else { "" };
                line(&format!(
                    "  it reserves {saved} less than {} ({}){part}",
                    name(conf(0)),
                    size::share(least_bytes, whole)
                ));
            }
        }
        line("  Speed is not known from a trace: try it.");
    }

    fn json_recommendation(&self, device: usize) -> Value {
        let forecasts: Vec<Forecast> = self.forecasts().cloned().collect();
        let known: Vec<&Trial> = self.trials.iter().filter(|trial| trial.forecast.is_ok()).collect();
        let (index, least, most) = match forecast::recommend(&forecasts) {
            Recommendation::NoneFits => {
                return json!({ "device": device, "recommended": null, "saved_bytes": 0 });
            }
            Recommendation::NoChange => (0, 0, 0),
            Recommendation::Fits { index } => (index, 0, 0),
            Recommendation::Saves { index, least_bytes, most_bytes } => (index, least_bytes, most_bytes),
        };
        json!({
            "device": device,
            "recommended": known[index].conf,
            "saved_bytes": least,
            "saved_bytes_at_most": most,
        })
    }
}

fn whole_cells(forecast: &Forecast, is_narrow: bool) -> Vec<String> {
    let outcome = forecast.nearest();
    let estimate = if outcome.is_estimate { "~" } else { "" };
    let mut cells = vec![
        format!("{estimate}{}", size(outcome.peak_reserved_bytes)),
        match outcome.peak_live_bytes {
            0 => "-".into(),
            _ => format!("{:.3}", outcome.reserved_over_live()),
        },
    ];
    if !is_narrow {
        let calls = [outcome.driver_allocations, outcome.driver_frees, outcome.retries];
        cells.extend(calls.map(count));
    }
    cells.extend([died(forecast).into(), fits_from(forecast)]);
    cells
}

fn partial_cells(forecast: &Forecast) -> Vec<String> {
    let (least, most) = forecast.recorded_part_bytes();
    let (least, most) = (size(least), size(most));
    let estimate = if forecast.tidy.is_estimate { "~" } else { "" };
    vec![
        // The memory that the lost beginning reserved under these settings is unknown.
        format!(">={}", size(forecast.least_reserved_bytes)),
        if least == most { format!("{estimate}{least}") } else { format!("{estimate}{least} to {most}") },
        died(forecast).into(),
        fits_from(forecast),
    ]
}

fn died(forecast: &Forecast) -> &'static str {
    match forecast.out_of_memory() {
        Answer::No => "no",
        Answer::Perhaps => "perhaps",
        Answer::Yes => "yes",
    }
}

fn fits_from(forecast: &Forecast) -> String {
    forecast.fits_from_bytes.map_or_else(|| "-".into(), size)
}
