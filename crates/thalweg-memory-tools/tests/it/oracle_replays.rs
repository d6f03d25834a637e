//! Replays compared with the oracle, a second implementation of PyTorch's allocator, on random programs.

use std::sync::Arc;

use thalweg_memory::{BlockState, DeviceAllocator, Policy, SizeClass, StreamId};
use thalweg_memory_tools::analysis::what_if::{self, ReplayFigures};
use thalweg_memory_tools::replay::{RecordedProgram, Replay, ReplayUpstream, StartState};
use thalweg_snapshot::Action::{SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};
use thalweg_snapshot::{Recording, Segment, SegmentBlock, SettingValue, Snapshot, TraceEntry};

use crate::oracle::driver::Driver;
use crate::oracle::program::{Kind, Op, program};
use crate::oracle::{Cell, Conf, Figures, MIB, Oracle, State};

/// Larger than any program here needs.
const GPU_BYTES: u64 = 16 << 30;

const KINDS: [Kind; 4] = [
    Kind { streams: 1, pools: 0, empties: false, operations: 600 },
    Kind { streams: 1, pools: 0, empties: true, operations: 600 },
    Kind { streams: 3, pools: 0, empties: true, operations: 600 },
    Kind { streams: 2, pools: 2, empties: true, operations: 600 },
];

/// Returns the oracle after it has run a program as PyTorch would.
fn run(program: &[Op], conf: &Conf, driver: Driver, gpu: u64, fraction: f64) -> Oracle {
    let mut oracle = Oracle::new(conf, driver, gpu, fraction);
    oracle.run(program);
    oracle
}

/// Returns the segments as PyTorch shows them: for expandable ones, each mapped range.
fn segments(oracle: &Oracle, device: i32) -> Vec<Segment> {
    let mut segments: Vec<(u64, Segment)> = Vec::new();
    for (&address, cell) in oracle.cells.iter().filter(|(_, cell)| cell.state != State::Unmapped) {
        let joins = segments.last().is_some_and(|(segment, last)| {
            *segment == cell.segment && last.address + last.total_bytes == address
        });
        if !joins {
            segments.push((cell.segment, segment(address, cell, device)));
        }
        let (_, segment) = segments.last_mut().expect("one was just added");
        segment.total_bytes += cell.size;
        let state = match cell.state {
            State::Live(_) => BlockState::ActiveAllocated,
            State::Pending(_) => BlockState::ActivePendingFree,
            State::Free(_) | State::Unmapped => BlockState::Inactive,
        };
        let (size_bytes, requested_bytes) = (cell.size, cell.requested);
        let (frames, forward_frames) = (Vec::new().into(), None);
        segment.blocks.push(SegmentBlock {
            address,
            size_bytes,
            requested_bytes,
            state,
            frames,
            forward_frames,
        });
    }
    segments.into_iter().map(|(_, segment)| segment).collect()
}

fn segment(address: u64, cell: &Cell, device: i32) -> Segment {
    Segment {
        device,
        address,
        total_bytes: 0,
        allocated_bytes: 0,
        active_bytes: 0,
        requested_bytes: 0,
        stream: StreamId::from_raw(cell.place.stream),
        class: if cell.place.small { SizeClass::Small } else { SizeClass::Large },
        pool_id: (0, cell.place.pool.map_or(0, |pool| pool as u64 + 1)),
        is_expandable: cell.is_expandable,
        frames: Vec::new().into(),
        blocks: Vec::new(),
    }
}

/// Returns the recording of the file that PyTorch would have written, with the last `kept` entries of each device.
fn recording(oracles: &[Oracle], conf: &Conf, kept: usize) -> Recording {
    let mut snapshot = Snapshot::default();
    for (oracle, device) in oracles.iter().zip(0..) {
        snapshot.segments.extend(segments(oracle, device));
        let from = oracle.trace.len().saturating_sub(kept);
        snapshot.device_traces.push(oracle.trace[from..].to_vec());
    }
    let settings = ("PYTORCH_CUDA_ALLOC_CONF".into(), SettingValue::Text(conf.text.into()));
    snapshot.allocator_settings.push(settings);
    Recording::read(&snapshot.to_pickle()[..]).expect("we wrote it")
}

fn replay(program: &RecordedProgram, conf: &Conf, start: StartState) -> ReplayFigures {
    let settings = what_if::settings(Policy::PyTorch, conf.text).expect("PyTorch takes it");
    what_if::run(program, settings, start, None, |_| {}).expect("there is room")
}

/// Under the settings of the recording every block has its recorded address, whatever addresses the driver had chosen for the
/// segments.
#[test]
fn a_recording_is_replayed_exactly_under_its_own_settings() {
    for conf in Conf::all() {
        for (seed, kind) in (0..24).zip(KINDS.into_iter().cycle()) {
            let what = format!("{:?}, seed {seed}", conf.text);
            let program = program(seed, kind);
            let oracles = [0, 1, 2].map(|device| {
                let ops = &program[..program.len() * (3 - device) / 3];
                run(ops, &conf, Driver::anywhere(seed + device as u64), GPU_BYTES, 1.0)
            });
            let recording = recording(&oracles, &conf, usize::MAX);
            for (device, oracle) in oracles.iter().enumerate() {
                let program =
                    RecordedProgram::from_recording(&recording, device).expect("the trace is whole");
                let outcome = replay(&program, &conf, StartState::Recorded);
                assert_eq!(outcome.address_mismatches, 0, "{what}, device {device}");
                assert_figures(&outcome, &oracle.figures, &what);
            }
        }
    }
}

/// A ring that has lost its beginning: the memory that was live and reserved then is determined from the end, and open questions
/// on the way. One of the cuts is right after an entry that takes memory, which then exists for a later request.
#[test]
fn a_recording_without_its_beginning_is_replayed_exactly() {
    for conf in Conf::all() {
        for (seed, kind) in (200..232).zip(KINDS.into_iter().cycle()) {
            let ops = program(seed, kind);
            let oracle = [run(&ops, &conf, Driver::anywhere(seed), GPU_BYTES, 1.0)];
            let trace = &oracle[0].trace;
            let takes = |entry: &TraceEntry| matches!(entry.action, SegmentAlloc | SegmentMap);
            let behind_a_segment = trace.iter().rev().skip(trace.len() / 3).position(takes);
            let behind_a_segment = behind_a_segment.map(|at| at + trace.len() / 3);
            let parts = [3, 2, 1].map(|quarters| trace.len() * quarters / 4);
            for kept in parts.into_iter().chain([trace.len() / 8]).chain(behind_a_segment) {
                let what = format!("{:?}, seed {seed}, {kept} of {} entries", conf.text, trace.len());
                let program = RecordedProgram::from_recording(&recording(&oracle, &conf, kept), 0);
                let program = program.expect("what is left is a trace");
                let outcome = replay(&program, &conf, StartState::Recorded);
                let last = outcome.reserved.last().map_or(0, |(_, bytes)| *bytes);
                let ours = (outcome.address_mismatches, last, outcome.peak_reserved_bytes);
                let (reserved, peak) = reserved_over(&oracle[0], kept);
                assert_eq!(ours, (0, reserved, peak), "{what}");
            }
        }
    }
}

/// Returns the reserved memory at the end, and its peak in the last entries of the trace.
fn reserved_over(oracle: &Oracle, kept: usize) -> (u64, u64) {
    let mut reserved = oracle.figures.reserved;
    let mut peak = reserved;
    for entry in oracle.trace.iter().rev().take(kept) {
        match entry.action {
            SegmentAlloc | SegmentMap => reserved -= entry.size_bytes,
            SegmentFree | SegmentUnmap => reserved += entry.size_bytes,
            _ => {}
        }
        peak = reserved.max(peak);
    }
    (oracle.figures.reserved, peak)
}

fn assert_figures(outcome: &ReplayFigures, figures: &Figures, what: &str) {
    let ours = Figures {
        reserved: outcome.reserved.last().map_or(0, |(_, bytes)| *bytes),
        reserved_peak: outcome.peak_reserved_bytes,
        allocations: outcome.driver_allocations,
        frees: outcome.driver_frees,
        retries: outcome.retries,
        died: outcome.out_of_memory,
    };
    assert_eq!(ours, *figures, "{what}");
}

/// A recording under default settings predicts the result of every other setting, with and without a limit: the same figures, and
/// in the end the same blocks at the same addresses.
#[test]
fn other_settings_and_limits_do_what_pytorch_would() {
    let (mut died, mut retried, mut collected) = (0, 0, 0);
    for (seed, kind) in (100..124).zip(KINDS.into_iter().cycle()) {
        let ops = program(seed, kind);
        let recorded = run(&ops, &Conf::DEFAULT, Driver::as_invented(), GPU_BYTES, 1.0);
        let peak = recorded.figures.reserved_peak;
        let program = RecordedProgram::from_recording(&recording(&[recorded], &Conf::DEFAULT, usize::MAX), 0);
        let program = program.expect("the trace is whole");
        for conf in Conf::all() {
            for percent in [200, 90, 75, 65] {
                // A limit below the peak has an effect.
                let allowed = (peak / 100 * percent).next_multiple_of(MIB);
                let fraction = if percent > 100 { 1.0 } else { allowed as f64 / GPU_BYTES as f64 };
                let oracle = run(&ops, &conf, Driver::as_invented(), GPU_BYTES, fraction);
                let what = format!("{:?}, seed {seed}, {percent} % of the peak", conf.text);
                assert_same_run(&program, &conf, fraction, &oracle, &what);
                died += u64::from(oracle.figures.died);
                retried += oracle.figures.retries;
                collected += u64::from(percent < 100 && conf.collect_above > 0.0 && oracle.figures.frees > 0);
            }
        }
    }
    assert!(died > 20 && retried > 40 && collected > 20, "{died}, {retried}, {collected}");
}

/// Serves a program with invented addresses, and compares everything with the oracle.
fn assert_same_run(program: &RecordedProgram, conf: &Conf, fraction: f64, oracle: &Oracle, what: &str) {
    let upstream = Arc::new(ReplayUpstream::unscripted(GPU_BYTES));
    let settings = what_if::settings(Policy::PyTorch, conf.text).expect("PyTorch takes it");
    let allocator = DeviceAllocator::new(upstream.clone(), settings);
    allocator.set_memory_fraction(fraction).expect("it is in range");
    let mut replay = Replay::new(program, allocator, upstream);
    let outcome = replay.run();
    let statistics = replay.allocator().statistics();
    let ours = Figures {
        reserved: statistics.reserved_bytes.all.current,
        reserved_peak: statistics.reserved_bytes.all.peak,
        allocations: statistics.num_device_alloc,
        frees: statistics.num_device_free,
        retries: statistics.num_alloc_retries,
        died: outcome.is_err(),
    };
    assert_eq!(ours, oracle.figures, "{what}: {outcome:?}");
    let blocks = replay.allocator().snapshot().into_iter().flat_map(|segment| segment.blocks);
    let ours: Vec<_> = blocks.map(|block| (block.address, block.size_bytes, block.state.name())).collect();
    let theirs = segments(oracle, 0).into_iter().flat_map(|segment| segment.blocks);
    let theirs: Vec<_> = theirs.map(|block| (block.address, block.size_bytes, block.state.name())).collect();
    assert_eq!(ours, theirs, "{what}");
}
