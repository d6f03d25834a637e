//! Histories with something missing, or unknown, in their middle.

use proptest::prelude::*;
use thalweg_memory::Policy;
use thalweg_memory::StreamId;
use thalweg_memory_tools::analysis::forecast::Forecast;
use thalweg_memory_tools::analysis::{lives, summarise, what_if};
use thalweg_memory_tools::replay::RecordedProgram;
use thalweg_snapshot::{Action, Recording, Snapshot, TraceEntry};

use crate::traces;

fn read(snapshot: &Snapshot) -> Recording {
    Recording::read(&snapshot.to_pickle()[..]).expect("we wrote it")
}

/// The history was off for a while: frees and allocations in that time are found, and the replay continues.
#[test]
fn a_gap_is_found_and_bridged() {
    for name in ["gpt_train", "resnet_sizes"] {
        let mut snapshot = traces::snapshot(name);
        let whole = summarise(&read(&snapshot), 0);
        let trace = &mut snapshot.device_traces[0];
        let (from, to) = (trace.len() / 2, trace.len() * 6 / 10);
        trace.drain(from..to);
        let recording = read(&snapshot);
        let gap = recording.gap(0).expect("something is missing");
        assert!(gap.is_one && gap.freed_blocks > 0 && gap.allocated_blocks > 0, "{name}: {gap:?}");
        assert!(gap.entry.abs_diff(from) < 200, "{name}: {gap:?}, where {from} is");
        let summary = summarise(&recording, 0);
        assert_eq!(summary.doubts.gap, Some(gap), "{name}");
        assert!(
            summary.peak_live_bytes <= whole.peak_live_bytes * 11 / 10,
            "{name}: {}",
            summary.peak_live_bytes
        );
        assert_eq!(summary.at_end.live_bytes, whole.at_end.live_bytes, "{name}");
        let program = RecordedProgram::from_recording(&recording, 0).expect("the gap is bridged");
        let settings = what_if::settings(Policy::PyTorch, "").expect("it is the default");
        let forecast = Forecast::of(&program, &settings, true, None, |_| {}).expect("there is room");
        assert!(forecast.nearest().peak_live_bytes <= whole.peak_live_bytes * 11 / 10, "{name}");
    }
    for name in traces::NAMES {
        assert_eq!(read(&traces::snapshot(name)).gap(0), None, "{name} is whole");
    }
}

/// Checks a recording without `free_completed`: a block is then free when its free is requested.
#[test]
fn without_ends_of_frees_a_request_is_the_end() {
    let mut snapshot = traces::snapshot("gpt_train");
    let whole = summarise(&read(&snapshot), 0);
    snapshot.device_traces[0].retain(|entry| entry.action != Action::FreeCompleted);
    let recording = read(&snapshot);
    let summary = summarise(&recording, 0);
    assert!(summary.doubts.leaves_out_ends && !whole.doubts.leaves_out_ends);
    assert_eq!(summary.peak_live_bytes, whole.peak_live_bytes);
}

/// Entries that only a later version may write are left out, and counted.
#[test]
fn what_is_not_known_is_left_out() {
    let entry =
        |what: &str| format!("{{\"action\":\"alloc\",\"addr\":1024,\"size\":512,\"stream\":0,{what}}}");
    let text = format!(
        "{{\"segments\":[],\"device_traces\":[[{},{},{},{}]]}}",
        r#"{"action":"teleport","addr":1024,"size":512,"stream":0}"#,
        entry(r#""time_us":12.75"#),
        r#"{"action":"teleport"}"#,
        entry(r#""time_us":13,"user_metadata":{"a":1}"#).replace("1024", "4096"),
    );
    let recording = Recording::read(text.as_bytes()).expect("the rest is known");
    let times: Vec<_> = recording.trace(0).map(|event| (event.address, event.time_us)).collect();
    assert_eq!(times, [(1024, Some(12)), (4096, Some(13))]);
    let left_out = [
        ("entries with the action \"teleport\"".to_owned(), 2),
        ("user_metadata that is a list or a dictionary".to_owned(), 1),
    ];
    assert_eq!(recording.left_out(), left_out);
}

#[test]
fn what_is_something_else_is_named() {
    for (bytes, what) in [
        (&b"PK\x03\x04\x14\x00"[..], "a zip archive, as torch.save writes"),
        (b"\x93NUMPY\x01\x00", "numpy.save"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>", "an HTML page"),
        (b"<HTML>", "an HTML page"),
        (b"\x1f\x8b\x08", "packed with gzip twice"),
    ] {
        let error = Recording::read(bytes).expect_err("it is not a snapshot").to_string();
        assert!(error.contains(what), "{error} lacks {what}");
    }
}

/// Checks a recording in which one dictionary is referred to once per key.
#[test]
fn a_dictionary_that_stands_in_many_places_is_paid_for() {
    const TIMES: u32 = 20_000;
    let mut pickle = b"\x80\x04}(\x8c\x08segments]\x8c\x14external_annotations](}\x94(".to_vec();
    for key in 0..TIMES {
        pickle.extend([b'J']);
        pickle.extend(key.to_le_bytes());
        pickle.extend(b"N");
    }
    pickle.extend(b"u");
    (0..TIMES).for_each(|_| pickle.extend(b"h\x00"));
    pickle.extend(b"eu.");
    let error = Recording::read(&pickle[..]).expect_err("that is 400 million pairs").to_string();
    assert!(error.contains("more entries than it has bytes"), "{error}");
}

/// Checks that the sum of sizes that no memory has does not overflow.
#[test]
fn sums_of_huge_sizes_are_huge() {
    let mut snapshot = traces::snapshot("fsdp_streams");
    let stream = StreamId::from_raw(0);
    let huge = |address| TraceEntry::new(Action::Alloc, address, 1 << 62, stream);
    snapshot.device_traces[0].extend((1..9).map(|block| huge(block << 9)));
    let recording = read(&snapshot);
    let summary = summarise(&recording, 0);
    assert_eq!(summary.peak_live_bytes, u64::MAX);
    assert!(summary.doubts.excess_bytes > 1 << 62);
    replay(&recording);
}

/// More streams than any real program has: the time of a replay is nearly linear in their number.
#[test]
fn thousands_of_streams_are_served() {
    let snapshot = |streams: u64| {
        let entries = (0..streams).map(|stream| {
            TraceEntry::new(Action::Alloc, (1 << 40) + (stream << 21), 1000, StreamId::from_raw(stream))
        });
        Snapshot { device_traces: vec![entries.collect()], ..Snapshot::default() }
    };
    let program = RecordedProgram::from_recording(&read(&snapshot(20_000)), 0).expect("that can be");
    let settings = what_if::settings(Policy::PyTorch, "expandable_segments:True").expect("PyTorch takes it");
    let forecast = Forecast::of(&program, &settings, false, None, |_| {}).expect("there is room");
    assert_eq!(forecast.tidy.peak_reserved_bytes, 20_000 << 21);
}

/// Runs everything that the toolbox does with a recording. Errors are fine, panics are not.
fn replay(recording: &Recording) {
    for device in recording.devices() {
        summarise(recording, device);
        lives(recording, device);
        let Ok(program) = RecordedProgram::from_recording(recording, device) else { continue };
        for (policy, conf, is_recorded, gpu) in [
            (Policy::PyTorch, "", true, None),
            (Policy::PyTorch, "", true, Some(1 << 29)),
            (Policy::PyTorch, "expandable_segments:True", false, Some(1 << 30)),
            (Policy::PyTorch, "max_split_size_mb:64,roundup_power2_divisions:4", false, None),
            (Policy::Thalweg, "expandable_segments:True", false, None),
        ] {
            let settings = what_if::settings(policy, conf).expect("they are settings");
            let _ = Forecast::of(&program, &settings, is_recorded, gpu, |_| {});
        }
    }
}

/// Returns a trace of a few hundred entries, with live blocks before it.
fn small(name: &str, from: usize) -> Snapshot {
    let mut snapshot = traces::snapshot(name);
    let trace = &mut snapshot.device_traces[0];
    let from = from % (trace.len() - 300);
    *trace = trace[from..from + 300].to_vec();
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Entries are lost, duplicated, or changed.
    #[test]
    fn broken_traces_do_not_break_the_replay(
        name in 0..3_usize,
        from in 0..6000_usize,
        changes in prop::collection::vec((0..300_usize, 0..6_u8, any::<u64>()), 1..60),
    ) {
        let mut snapshot = small(traces::NAMES[name], from % if name == 2 { 143 } else { 6000 });
        let trace = &mut snapshot.device_traces[0];
        for (at, change, value) in changes {
            let at = at % trace.len();
            match change {
                0 => drop(trace.remove(at)),
                1 => trace.insert(at, trace[at].clone()),
                2 => trace[at].size_bytes = value >> (value % 64).max(1),
                3 => trace[at].address = value,
                4 => trace[at].action = Action::ALL[value as usize % Action::ALL.len()],
                _ => trace[at].stream = StreamId::from_raw(value % 5),
            }
            if trace.is_empty() {
                break;
            }
        }
        replay(&read(&snapshot));
    }

    /// A segment or a block at the end is changed.
    #[test]
    fn broken_segments_do_not_break_the_replay(
        from in 0..6000_usize,
        changes in prop::collection::vec((any::<usize>(), 0..7_u8, any::<u64>()), 1..30),
    ) {
        let mut snapshot = small("gpt_train", from);
        for (at, change, value) in changes {
            let at = at % snapshot.segments.len();
            let segment = &mut snapshot.segments[at];
            let block = value as usize % segment.blocks.len().max(1);
            match change {
                0 => segment.address = value & !511,
                1 => segment.total_bytes = value >> (value % 64).max(1),
                2 => segment.is_expandable = !segment.is_expandable,
                3 => segment.pool_id = (0, value % 3),
                4 if !segment.blocks.is_empty() => segment.blocks[block].size_bytes = value >> (value % 64).max(1),
                5 if !segment.blocks.is_empty() => segment.blocks[block].requested_bytes = value >> (value % 64).max(1),
                6 if !segment.blocks.is_empty() => segment.blocks[block].address = value,
                _ => {}
            }
        }
        replay(&read(&snapshot));
    }

    /// Bytes of the file are changed.
    #[test]
    fn broken_files_are_read_or_refused(
        from in 0..6000_usize,
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..12),
    ) {
        let mut pickle = small("gpt_train", from).to_pickle();
        for (at, byte) in changes {
            let at = at % pickle.len();
            pickle[at] = byte;
        }
        if let Ok(recording) = Recording::read(&pickle[..]) {
            replay(&recording);
        }
    }
}
