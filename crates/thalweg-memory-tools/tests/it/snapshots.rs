//! Snapshots as files: those of PyTorch are read, ours are read back, and broken ones are refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_memory::fake::FakeUpstream;
use thalweg_memory::{BlockState, DeviceAllocator, Settings, SizeClass, StreamId};
use thalweg_memory_tools::replay::{RecordedProgram, Replay, ReplayUpstream};
use thalweg_snapshot::{Action, Annotation, Frame, Frames, Recording, SettingValue, Snapshot, TraceEntry};

use crate::traces;

#[test]
fn what_pytorch_wrote_is_read() {
    // Counted with Python's pickle.
    let expected =
        [("gpt_train", 69, [2231, 2228, 2228, 69, 1]), ("resnet_sizes", 124, [5782, 5779, 5779, 123, 0])];
    for (name, segments, counts) in expected.into_iter().chain([("fsdp_streams", 14, [146, 145, 139, 13, 0])])
    {
        let snapshot = traces::snapshot(name);
        assert_eq!(snapshot.segments.len(), segments, "{name}");
        assert_eq!(snapshot.device_traces.len(), 1);
        let mut counted = BTreeMap::new();
        snapshot.device_traces[0].iter().for_each(|entry| *counted.entry(entry.action).or_insert(0) += 1);
        let counted: Vec<_> =
            Action::ALL[..5].iter().map(|action| *counted.get(action).unwrap_or(&0)).collect();
        assert_eq!(counted, counts, "{name}");
        for segment in &snapshot.segments {
            let sum: u64 = segment.blocks.iter().map(|block| block.size_bytes).sum();
            assert_eq!(sum, segment.total_bytes, "{name}: the blocks fill {:#x}", segment.address);
            assert_eq!((segment.device, segment.pool_id, segment.is_expandable), (0, (0, 0), false));
        }
    }
    let gpt = traces::snapshot("gpt_train");
    let innermost = &gpt.device_traces[0][1].frames.as_ref().expect("it was recorded with stacks")[0];
    assert_eq!((&*innermost.name, innermost.line), ("<lambda>", 1097));
    assert_eq!(gpt.external_annotations.len(), 16);
    assert_eq!(gpt.external_annotations[0].stage.as_ref(), "START");
    let setting =
        |name: &str| gpt.allocator_settings.iter().find(|(key, _)| **key == *name).map(|(_, value)| value);
    assert_eq!(setting("max_split_size"), Some(&SettingValue::Int(-1)));
    assert_eq!(setting("garbage_collection_threshold"), Some(&SettingValue::Float(0.0)));
    let Some(SettingValue::Table(divisions)) = setting("roundup_power2_divisions") else {
        panic!("it is a table")
    };
    assert_eq!(divisions.len(), 16);
}

#[test]
fn pytorchs_snapshots_survive_our_writer_and_shared_stacks_stay_shared() {
    for name in traces::NAMES {
        let snapshot = traces::snapshot(name);
        let written = snapshot.to_pickle();
        assert_eq!(Snapshot::from_pickle(&written).as_ref(), Ok(&snapshot), "{name}");
        let theirs = traces::pickle(name).len();
        assert!(written.len() < theirs * 5 / 4, "{name}: {} bytes, PyTorch takes {theirs}", written.len());
    }
}

/// Returns a snapshot that uses every field.
fn full() -> Snapshot {
    let allocator = DeviceAllocator::new(Arc::new(FakeUpstream::new(1 << 30)), Settings::default());
    let stream = StreamId::from_raw(u64::MAX);
    let small = allocator.allocate(1000, stream).expect("there is room");
    let large = allocator.allocate(3 << 20, stream).expect("there is room");
    large.record_stream(StreamId::from_raw(5));
    drop(large);
    let mut snapshot = Snapshot::default();
    snapshot.add_segments(3, &allocator.snapshot());
    drop(small);
    let frames: Frames = (1..=3)
        .map(|line| Frame { filename: "model.py".into(), line, name: "forward \"é\"".into() })
        .collect();
    snapshot.segments[0].frames = frames.clone();
    snapshot.segments[0].blocks[0].forward_frames = Some(frames.clone());
    let entries = Action::ALL.iter().enumerate().map(|(index, &action)| TraceEntry {
        time_us: Some(1_795_219_331_198_012 + index as i64),
        compile_context: Some("N/A".into()),
        user_metadata: Some("x".repeat(300).into()),
        pool_id: Some((0, 7)),
        internal_metadata: Some("mallocWithAddress".into()),
        frames: Some(frames.clone()),
        forward_frames: Some(Frames::default()),
        ..TraceEntry::new(action, 0x7f00_0000_0000, 1 << index, stream)
    });
    snapshot.device_traces = vec![vec![], entries.collect()];
    snapshot.host_segments = snapshot.segments[..1].to_vec();
    snapshot.host_traces = vec![TraceEntry::new(Action::Alloc, 4096, 4096, StreamId::from_raw(0))];
    snapshot.external_annotations =
        vec![Annotation { name: "step".into(), stage: "START".into(), device: -1, time_us: 1 }];
    snapshot.allocator_settings = vec![
        ("none".into(), SettingValue::None),
        ("switch".into(), SettingValue::Bool(true)),
        ("number".into(), SettingValue::Int(-70_000)),
        ("fraction".into(), SettingValue::Float(0.25)),
        ("text".into(), SettingValue::Text("expandable_segments:True".into())),
        ("table".into(), SettingValue::Table(vec![("1".into(), 8)])),
    ];
    snapshot
}

#[test]
fn everything_is_written_and_read_back() {
    let snapshot = full();
    assert_eq!(Snapshot::from_pickle(&snapshot.to_pickle()).as_ref(), Ok(&snapshot));
    let [small, large] = &snapshot.segments[..] else { panic!("there are two segments") };
    assert_eq!((small.class, small.allocated_bytes, small.requested_bytes), (SizeClass::Small, 1024, 1000));
    assert_eq!((large.allocated_bytes, large.active_bytes), (0, 3 << 20));
    assert_eq!(large.blocks[0].state, BlockState::ActivePendingFree);
}

#[test]
fn json_has_the_keys_of_the_pickle() {
    let json = full().to_json();
    for part in [
        r#"{"segments":[{"device":3,"address":"#,
        r#""stream":-1,"segment_type":"small","segment_pool_id":[0,0],"is_expandable":false,"frames":[{"filename":"model.py","#,
        r#""state":"active_pending_free""#,
        r#""device_traces":[[],[{"action":"alloc","addr":139637976727552,"size":1,"stream":-1,"time_us":1795219331198012,"#,
        r#"{"action":"oom","device_free":139637976727552,"#,
        r#""name":"forward \"é\"""#,
        r#""allocator_settings":{"none":null,"switch":true,"number":-70000,"fraction":0.25,"#,
        r#""host_traces":[{"action":"alloc","addr":4096,"size":4096,"stream":0}]}"#,
    ] {
        assert!(json.contains(part), "{json} lacks {part}");
    }
}

#[test]
fn json_is_read_back() {
    let snapshot = full();
    let read = |text: &str| Recording::read(text.as_bytes());
    assert_eq!(read(&snapshot.to_json()).expect("we wrote it").to_snapshot(), snapshot);
    let spaced = " { \"segments\" : [ ] ,\n\"device_traces\":[[{\"action\":\"oom\",\"device_free\":7,\"size\":18446744073709551615e-10}]]}";
    let error = read(spaced).expect_err("a size is whole").to_string();
    assert_eq!(
        error,
        "offset 103: an entry of a trace: size: expected a whole number of up to 64 bits, found a number with a fraction"
    );
    for (text, what) in [
        ("[", "offset 1: the file ends"),
        ("{\"a\" 1}", "offset 1: expected a colon"),
        ("[1 2]", "offset 3: expected a comma"),
        ("[] []", "offset 3: something follows"),
        ("[\"\\q\"]", "escape that JSON does not know"),
        ("[\"\\ud83d\\ude00\"]", "is not a segment"),
        ("[1e5, -7, 0x]", "expected a comma"),
        ("{}", "neither segments nor device_traces"),
    ] {
        let error = read(text).expect_err("it is broken").to_string();
        assert!(error.contains(what), "{text}: {error} lacks {what}");
    }
}

#[test]
fn a_recording_is_what_the_file_says() {
    let recording = Recording::read(&traces::pickle("gpt_train")[..]).expect("PyTorch wrote it");
    assert_eq!((recording.devices(), recording.trace_len(0), recording.trace_len(1)), (vec![0], 6757, 0));
    assert_eq!(recording.file_bytes(), 592_335);
    let alloc = recording.trace(0).nth(1).expect("there are entries");
    assert_eq!((alloc.action, alloc.pool_id), (Action::SegmentAlloc, None));
    let innermost = recording.stack(alloc.stack.expect("it has one")).next().expect("it has frames");
    assert_eq!((innermost.name, innermost.line), ("<lambda>", 1097));
    let reserved: u64 = recording.segments(0).map(|(segment, _)| segment.total_bytes).sum();
    assert_eq!(reserved, 9_401_532_416);
}

/// The bytes that Python's `pickle.dumps(value, 2)` writes.
const OLD_LIST: &[u8] = b"\x80\x02]q\x00}q\x01(X\x07\x00\x00\x00addressq\x02M\x00\x10X\n\x00\x00\x00total_sizeq\x03M\x00\x08X\
\x06\x00\x00\x00blocksq\x04]q\x05(}q\x06(X\x04\x00\x00\x00sizeq\x07M\x00\x02X\x05\x00\x00\x00stateq\x08X\x08\x00\x00\x00inactive\
q\tu}q\n(h\x07M\x00\x06h\x08X\x10\x00\x00\x00active_allocatedq\x0bX\x07\x00\x00\x00historyq\x0c]q\r}q\x0e(X\x04\x00\x00\x00addr\
q\x0fM\x00\x12X\x06\x00\x00\x00framesq\x10]q\x11}q\x12X\x04\x00\x00\x00nameq\x13X\x01\x00\x00\x00fq\x14sauaueua.";

#[test]
fn a_list_of_segments_of_an_old_version_is_a_snapshot() {
    let snapshot = Snapshot::from_pickle(OLD_LIST).expect("it is a list of segments");
    let [segment] = &snapshot.segments[..] else { panic!("there is one segment") };
    assert_eq!((segment.address, segment.total_bytes, segment.class), (0x1000, 0x800, SizeClass::Large));
    let blocks: Vec<_> = segment.blocks.iter().map(|block| (block.address, block.size_bytes)).collect();
    assert_eq!(blocks, [(0x1000, 0x200), (0x1200, 0x600)], "addresses follow from sizes");
    assert_eq!(&*segment.blocks[1].frames[0].name, "f", "the stack is that of the last owner");
}

#[test]
fn what_is_no_snapshot_is_refused_with_the_reason() {
    let error = |bytes: &[u8]| Snapshot::from_pickle(bytes).expect_err("it is none").to_string();
    assert!(error(b"\x80\x04K\x05.").contains("neither a snapshot's dictionary nor a list"));
    assert!(error(b"\x80\x04}.").contains("neither segments nor device_traces"));
    let mut snapshot = Snapshot::default();
    snapshot.device_traces.push(vec![TraceEntry::new(Action::Alloc, 512, 1 << 63, StreamId::from_raw(0))]);
    let said = error(&snapshot.to_pickle());
    assert_eq!(
        said,
        "offset 95: an entry of a trace: size: -9223372036854775808 is not a size, it is negative"
    );
}

#[test]
fn a_file_that_ends_anywhere_is_refused_with_the_offset() {
    let (pickle, json) = (full().to_pickle(), full().to_json().into_bytes());
    for whole in [&pickle[..], OLD_LIST, &json] {
        assert!(Recording::read(whole).is_ok());
        for cut in 0..whole.len() {
            let error = Recording::read(&whole[..cut]).expect_err("something is missing").to_string();
            let rest = error.strip_prefix("offset ").unwrap_or_else(|| panic!("{cut}: {error}"));
            let (offset, _) = rest.split_once(':').expect("a colon follows");
            assert!(offset.parse::<usize>().is_ok_and(|offset| offset <= cut), "{cut}: {error}");
        }
    }
}

#[test]
fn a_small_file_that_stands_for_much_is_refused() {
    // A trace of 200 entries that are one object; 200 traces that are one object.
    let entry = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x00\x8c\x04sizeK\x00u\x94";
    let mut bytes = b"\x80\x04}(\x8c\x0ddevice_traces](](".to_vec();
    bytes.extend(entry);
    bytes.extend(b"h\x00".repeat(200));
    bytes.extend(b"e\x94");
    bytes.extend(b"h\x01".repeat(200));
    bytes.extend(b"eu.");
    let error = Snapshot::from_pickle(&bytes).expect_err("it stands for 40,000 entries");
    assert!(error.to_string().contains("more entries than it has bytes"), "{error}");
}

#[test]
fn deep_nesting_costs_no_stack() {
    let mut bytes = b"\x80\x04}\x8c\x08segments".to_vec();
    bytes.extend(b"]".repeat(1_000_000));
    bytes.extend(b"a".repeat(999_999));
    bytes.extend(b"s.");
    assert!(Snapshot::from_pickle(&bytes).is_err(), "a list is not a segment");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, rng_seed: RngSeed::Fixed(6), failure_persistence: None, ..ProptestConfig::default() })]

    /// A real file with some bytes changed is either read or refused; and a file that is read can be served, as far as it goes.
    #[test]
    fn broken_files_do_no_harm(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20), cut in any::<prop::sample::Index>()) {
        let mut bytes = traces::pickle("fsdp_streams");
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let program = Snapshot::from_pickle(&bytes).and_then(|snapshot| RecordedProgram::from_snapshot(&snapshot, 0));
        if let Ok(program) = program {
            let upstream = Arc::new(ReplayUpstream::scripted(&program, 1 << 40));
            let allocator = DeviceAllocator::new(upstream.clone(), Settings::default());
            let mut replay = Replay::new(&program, allocator, upstream);
            while !matches!(replay.step(), Ok(None)) {}
        }
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(Snapshot::from_pickle(&bytes).is_err());
    }

    /// Changed JSON does no harm either.
    #[test]
    fn broken_json_does_no_harm(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20), cut in any::<prop::sample::Index>()) {
        let mut bytes = full().to_json().into_bytes();
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(Recording::read(&bytes[..]).is_err());
        for (index, byte) in changes {
            if !bytes.is_empty() {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
        }
        let _ = Recording::read(&bytes[..]);
    }

    /// Any sequence of instructions does no harm.
    #[test]
    fn random_programs_do_no_harm(codes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"(.012]})aedltusNhq\x94\x85\x86\x87\x88\x00\x01".to_vec())], 0..300)) {
        let _ = Snapshot::from_pickle(&codes);
    }
}
