//! The program of a recording under other settings.

use std::sync::Arc;

use crate::replay::{
    DRIVER_PIECE_BYTES, MOST_BYTES, RecordedProgram, Replay, ReplayError, ReplayUpstream, StartState,
    stream_ordered_estimate,
};
use thalweg_memory::{
    DeviceAllocator, settings::Backend, settings::Policy, settings::Settings, settings::SettingsError,
};
use thalweg_snapshot::{Recording, SettingValue};

/// The size of the GPU in replays without a limit, as a multiple of the peak of live memory: no reasonable request fails on it.
/// It is not larger than needed, since expandable segments reserve addresses for all of it.
const ENDLESS_TIMES: u64 = 64;
/// The smallest size of the GPU in replays without a limit.
const LEAST_ENDLESS_BYTES: u64 = 1 << 38;
/// The greatest number of steps of a curve, approximately: more than a screen has columns.
const CURVE_STEPS: usize = 4096;

/// A curve of bytes: a value from each given entry of a trace on (`None`: before the first).
pub type ReservedSteps = Vec<(Option<u32>, u64)>;

/// The figures of a program under some settings.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplayFigures {
    /// The peak of live and pending memory, by requested size, in bytes.
    pub peak_live_bytes: u64,
    /// The peak of reserved memory, in bytes.
    pub peak_reserved_bytes: u64,
    /// The number of successful requests to the driver for memory.
    pub driver_allocations: u64,
    /// The number of times that memory was returned to the driver.
    pub driver_frees: u64,
    /// The number of times that a request succeeded only after memory was returned, or failed.
    pub retries: u64,
    /// Whether a request failed for lack of memory; all figures are those up to that moment.
    pub out_of_memory: bool,
    /// The number of blocks at other addresses than in the recording. 0 if the settings are those of the recording and the rules
    /// are the same; under other settings addresses need not agree.
    pub address_mismatches: u64,
    /// Whether the figures are an estimate: for `cudaMallocAsync`, whose rules are not public.
    pub is_estimate: bool,
    /// The reserved memory over time. A curve with many changes is reduced to some thousand steps, each of which is the maximum
    /// of its interval.
    pub reserved: ReservedSteps,
}

impl ReplayFigures {
    /// Returns the peak of reserved memory divided by the peak of live memory; 1 is perfect.
    pub fn reserved_over_live(&self) -> f64 {
        self.peak_reserved_bytes as f64 / self.peak_live_bytes as f64
    }
}

/// Returns the configuration text of a recording; empty if it was the default or is not known.
pub fn recorded_conf(recording: &Recording) -> &str {
    let setting = recording.settings().iter().find(|(name, _)| &**name == "PYTORCH_CUDA_ALLOC_CONF");
    match setting {
        Some((_, SettingValue::Text(text))) => text,
        _ if maps_segments(recording) => "expandable_segments:True",
        _ => "",
    }
}

/// Returns whether there are expandable segments, whatever the settings in the file.
fn maps_segments(recording: &Recording) -> bool {
    let mut devices = recording.devices().into_iter();
    devices.any(|device| recording.segments(device).any(|(segment, _)| segment.is_expandable))
}

/// Returns settings that follow `policy` except where `conf` sets a key.
///
/// # Errors
/// If `conf` is not a configuration.
pub fn settings(policy: Policy, conf: &str) -> Result<Settings, SettingsError> {
    Ok(Settings::parse(conf)?.with_policy(policy))
}

/// Replays `program` under `settings` on a GPU of `gpu_bytes`, or on one that is never full. `start` determines how the state
/// before the trace is recreated. `progress` is called now and then with the number of steps served.
///
/// # Errors
/// If the allocator fails for a different reason than lack of memory, its message: this would be an error of ours, or of the trace.
pub fn run(
    program: &RecordedProgram,
    settings: Settings,
    start: StartState,
    gpu_bytes: Option<u64>,
    progress: impl FnMut(usize),
) -> Result<ReplayFigures, String> {
    if settings.backend() == Backend::CudaMallocAsync {
        return estimate(program, gpu_bytes, progress);
    }
    // On a GPU without a limit, requests that failed in the recording give no information.
    let mut replay = begin(program, settings, start, gpu_bytes, gpu_bytes.is_some());
    let (reserved, out_of_memory) = serve(&mut replay, progress)?;
    let statistics = replay.allocator().memory_stats();
    let statistic = |key: &str| {
        let value = statistics.iter().find(|(name, _)| name == key).map_or(0, |(_, value)| *value);
        u64::try_from(value).unwrap_or(0)
    };
    let figures = replay.figures();
    Ok(ReplayFigures {
        peak_live_bytes: figures.requested_peak_bytes,
        peak_reserved_bytes: figures.reserved_peak_bytes,
        driver_allocations: statistic("num_device_alloc"),
        driver_frees: statistic("num_device_free"),
        retries: statistic("num_alloc_retries"),
        out_of_memory,
        address_mismatches: replay.mismatches(),
        is_estimate: false,
        reserved: thin(reserved, program),
    })
}

fn begin(
    program: &RecordedProgram,
    settings: Settings,
    start: StartState,
    gpu_bytes: Option<u64>,
    attempts: bool,
) -> Replay<'_> {
    let gpu_bytes = gpu_bytes.unwrap_or_else(|| endless_bytes(program));
    let upstream = Arc::new(ReplayUpstream::scripted(program, gpu_bytes));
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    let replay = Replay::without_tags(program, allocator, upstream).starting_with(start);
    if attempts { replay.with_attempts() } else { replay }
}

/// Returns a GPU that is never full.
fn endless_bytes(program: &RecordedProgram) -> u64 {
    let needed = program.peak_live_bytes().saturating_mul(ENDLESS_TIMES).max(program.recorded_bytes());
    needed.clamp(LEAST_ENDLESS_BYTES, MOST_BYTES)
}

/// Returns whether the program runs to its end on a GPU, including the requests that failed in the recording, and the program's
/// peak of reserved memory.
pub(super) fn fits(
    program: &RecordedProgram,
    settings: Settings,
    start: StartState,
    gpu_bytes: Option<u64>,
) -> Result<(bool, u64), String> {
    let mut replay = begin(program, settings, start, gpu_bytes, true);
    match replay.run() {
        Ok(()) => Ok((true, replay.figures().reserved_peak_bytes)),
        Err(error) => out_of_memory(&error).map(|()| (false, replay.figures().reserved_peak_bytes)),
    }
}

/// Serves all steps, up to the first request that fails for lack of memory. Returns each change of the reserved memory, and
/// whether a request failed.
fn serve(replay: &mut Replay<'_>, mut progress: impl FnMut(usize)) -> Result<(ReservedSteps, bool), String> {
    if let Err(error) = replay.begin() {
        return out_of_memory(&error).map(|()| (vec![(None, replay.reserved_bytes())], true));
    }
    let mut last_bytes = replay.reserved_bytes();
    let mut reserved: ReservedSteps = vec![(None, last_bytes)];
    for step in 0.. {
        if step % 65_536 == 0 {
            progress(step);
        }
        match replay.step() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => return out_of_memory(&error).map(|()| (reserved, true)),
        }
        let bytes = replay.reserved_bytes();
        if bytes != last_bytes {
            last_bytes = bytes;
            let entry = replay.entry();
            match reserved.last_mut() {
                Some(last) if last.0 == entry => last.1 = bytes,
                _ => reserved.push((entry, bytes)),
            }
        }
    }
    Ok((reserved, false))
}

/// Checks that an error is lack of memory; otherwise returns the error.
fn out_of_memory(error: &ReplayError) -> Result<(), String> {
    if error.is_out_of_memory() { Ok(()) } else { Err(error.to_string()) }
}

/// Returns a curve of at most about [`CURVE_STEPS`] steps: the maximum of each interval of the trace.
fn thin(steps: ReservedSteps, program: &RecordedProgram) -> ReservedSteps {
    if steps.len() <= CURVE_STEPS {
        return steps;
    }
    let entries = program.steps().len().checked_sub(1).map_or(0, |last| program.entry_of(last));
    let stretch = entries / (CURVE_STEPS as u32 / 2) + 1;
    let mut thinned: ReservedSteps = Vec::new();
    let mut now = 0;
    for group in steps
        .chunk_by(|one, other| one.0.map(|entry| entry / stretch) == other.0.map(|entry| entry / stretch))
    {
        let begins = group[0].0.map(|entry| entry / stretch * stretch);
        // The last value of the previous interval lasts until this one begins, unless the intervals are adjacent.
        if let (Some((Some(last), bytes)), Some(begins)) = (thinned.last().copied(), begins)
            && bytes != now
            && last + stretch < begins
        {
            thinned.push((Some(last + stretch), now));
        }
        let most = group.iter().map(|(_, bytes)| *bytes).fold(now, u64::max);
        thinned.push((begins, most));
        now = group[group.len() - 1].1;
    }
    if let Some(&(Some(last), bytes)) = thinned.last()
        && bytes != now
        && last + stretch <= entries
    {
        thinned.push((Some(last + stretch), now));
    }
    thinned
}

/// Returns the known figures of the driver's own allocator: its peak, but not its calls.
fn estimate(
    program: &RecordedProgram,
    gpu_bytes: Option<u64>,
    progress: impl FnMut(usize),
) -> Result<ReplayFigures, String> {
    let mut replay = stream_ordered_estimate(program, endless_bytes(program));
    let (mut reserved, out_of_memory) = serve(&mut replay, progress)?;
    reserved.iter_mut().for_each(|(_, bytes)| *bytes = bytes.next_multiple_of(DRIVER_PIECE_BYTES));
    let peak_reserved_bytes = replay.figures().reserved_peak_bytes.next_multiple_of(DRIVER_PIECE_BYTES);
    Ok(ReplayFigures {
        peak_live_bytes: program.peak_live_bytes(),
        peak_reserved_bytes,
        driver_allocations: 0,
        driver_frees: 0,
        retries: 0,
        out_of_memory: out_of_memory || gpu_bytes.is_some_and(|gpu| peak_reserved_bytes > gpu),
        address_mismatches: 0,
        is_estimate: true,
        reserved: thin(reserved, program),
    })
}

/// The settings that a search tries, as texts: each one is known to help some programs.
pub const CANDIDATES: &[&str] = &[
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8",
    "garbage_collection_threshold:0.8,max_split_size_mb:128",
];
