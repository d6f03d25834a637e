//! Snapshots of every family of versions, byte by byte as Python writes them.
//!
//! The values are those of PyTorch 2.0: a trace without times, no settings, and the requests of a block in its history.
//! Each was written by `pickle.dumps(value, protocol)`; protocols 3 and 5 write plain data as 2 and 4 do, except for the number
//! in front.

use thalweg_memory_tools::replay::{RecordedProgram, StartState};
use thalweg_snapshot::{Action, BlockState, Recording};

/// `{'segments': [segment], 'device_traces': [trace]}`, protocol 2.
const WHOLE_2: &[u8] = b"\x80\x02}q\x00(X\x08\x00\x00\x00segmentsq\x01]q\x02}q\x03(X\x06\x00\x00\x00deviceq\x04K\x00X\x07\x00\x00\
\x00addressq\x05J\x00\x00 \x00X\x0a\x00\x00\x00total_sizeq\x06J\x00\x00 \x00X\x0e\x00\x00\x00allocated_s\
izeq\x07M\x00\x02X\x0b\x00\x00\x00active_sizeq\x08M\x00\x02X\x06\x00\x00\x00streamq\x09K\x00X\x0c\x00\
\x00\x00segment_typeq\x0aX\x05\x00\x00\x00smallq\x0bX\x06\x00\x00\x00blocksq\x0c]q\x0d(}q\x0e(X\x04\x00\
\x00\x00sizeq\x0fM\x00\x02X\x05\x00\x00\x00stateq\x10X\x10\x00\x00\x00active_allocatedq\x11X\x07\x00\x00\
\x00historyq\x12]q\x13}q\x14(X\x04\x00\x00\x00addrq\x15J\x00\x00 \x00X\x09\x00\x00\x00real_sizeq\x16M\
\xf4\x01X\x06\x00\x00\x00framesq\x17]q\x18}q\x19(X\x08\x00\x00\x00filenameq\x1aX\x04\x00\x00\x00a.pyq\
\x1bX\x04\x00\x00\x00lineq\x1cK\x03X\x04\x00\x00\x00nameq\x1dX\x01\x00\x00\x00fq\x1euauau}q\x1f(h\x0fJ\
\x00\xfe\x1f\x00h\x10X\x08\x00\x00\x00inactiveq ueuaX\x0d\x00\x00\x00device_tracesq!]q\"]q#(}q$(X\x06\
\x00\x00\x00actionq%X\x0d\x00\x00\x00segment_allocq&h\x15J\x00\x00 \x00h\x0fJ\x00\x00 \x00h\x09K\x00h\
\x17]q'u}q((h%X\x05\x00\x00\x00allocq)h\x15J\x00\x00 \x00h\x0fM\xf4\x01h\x09K\x00h\x17]q*}q+(h\x1ah\x1bh\
\x1cK\x03h\x1dh\x1euaueau.";

/// `{'segments': [segment], 'device_traces': [trace]}`, protocol 4.
const WHOLE_4: &[u8] = b"\x80\x04\x95\xb7\x01\x00\x00\x00\x00\x00\x00}\x94(\x8c\x08segments\x94]\x94}\x94(\x8c\x06device\x94K\x00\
\x8c\x07address\x94J\x00\x00 \x00\x8c\x0atotal_size\x94J\x00\x00 \x00\x8c\x0eallocated_size\x94M\x00\x02\
\x8c\x0bactive_size\x94M\x00\x02\x8c\x06stream\x94K\x00\x8c\x0csegment_type\x94\x8c\x05small\x94\x8c\x06\
blocks\x94]\x94(}\x94(\x8c\x04size\x94M\x00\x02\x8c\x05state\x94\x8c\x10active_allocated\x94\x8c\x07hist\
ory\x94]\x94}\x94(\x8c\x04addr\x94J\x00\x00 \x00\x8c\x09real_size\x94M\xf4\x01\x8c\x06frames\x94]\x94}\
\x94(\x8c\x08filename\x94\x8c\x04a.py\x94\x8c\x04line\x94K\x03\x8c\x04name\x94\x8c\x01f\x94uauau}\x94(h\
\x0fJ\x00\xfe\x1f\x00h\x10\x8c\x08inactive\x94ueua\x8c\x0ddevice_traces\x94]\x94]\x94(}\x94(\x8c\x06acti\
on\x94\x8c\x0dsegment_alloc\x94h\x15J\x00\x00 \x00h\x0fJ\x00\x00 \x00h\x09K\x00h\x17]\x94u}\x94(h%\x8c\
\x05alloc\x94h\x15J\x00\x00 \x00h\x0fM\xf4\x01h\x09K\x00h\x17]\x94}\x94(h\x1ah\x1bh\x1cK\x03h\x1dh\x1eua\
ueau.";

/// `[segment]`, protocol 2.
const LIST_2: &[u8] =
    b"\x80\x02]q\x00}q\x01(X\x06\x00\x00\x00deviceq\x02K\x00X\x07\x00\x00\x00addressq\x03J\x00\x00 \x00X\x0a\
\x00\x00\x00total_sizeq\x04J\x00\x00 \x00X\x0e\x00\x00\x00allocated_sizeq\x05M\x00\x02X\x0b\x00\x00\x00a\
ctive_sizeq\x06M\x00\x02X\x06\x00\x00\x00streamq\x07K\x00X\x0c\x00\x00\x00segment_typeq\x08X\x05\x00\x00\
\x00smallq\x09X\x06\x00\x00\x00blocksq\x0a]q\x0b(}q\x0c(X\x04\x00\x00\x00sizeq\x0dM\x00\x02X\x05\x00\x00\
\x00stateq\x0eX\x10\x00\x00\x00active_allocatedq\x0fX\x07\x00\x00\x00historyq\x10]q\x11}q\x12(X\x04\x00\
\x00\x00addrq\x13J\x00\x00 \x00X\x09\x00\x00\x00real_sizeq\x14M\xf4\x01X\x06\x00\x00\x00framesq\x15]q\
\x16}q\x17(X\x08\x00\x00\x00filenameq\x18X\x04\x00\x00\x00a.pyq\x19X\x04\x00\x00\x00lineq\x1aK\x03X\x04\
\x00\x00\x00nameq\x1bX\x01\x00\x00\x00fq\x1cuauau}q\x1d(h\x0dJ\x00\xfe\x1f\x00h\x0eX\x08\x00\x00\x00inac\
tiveq\x1eueua.";

/// `[segment]`, protocol 4.
const LIST_4: &[u8] = b"\x80\x04\x95+\x01\x00\x00\x00\x00\x00\x00]\x94}\x94(\x8c\x06device\x94K\x00\x8c\x07address\x94J\x00\x00 \
\x00\x8c\x0atotal_size\x94J\x00\x00 \x00\x8c\x0eallocated_size\x94M\x00\x02\x8c\x0bactive_size\x94M\x00\
\x02\x8c\x06stream\x94K\x00\x8c\x0csegment_type\x94\x8c\x05small\x94\x8c\x06blocks\x94]\x94(}\x94(\x8c\
\x04size\x94M\x00\x02\x8c\x05state\x94\x8c\x10active_allocated\x94\x8c\x07history\x94]\x94}\x94(\x8c\x04\
addr\x94J\x00\x00 \x00\x8c\x09real_size\x94M\xf4\x01\x8c\x06frames\x94]\x94}\x94(\x8c\x08filename\x94\
\x8c\x04a.py\x94\x8c\x04line\x94K\x03\x8c\x04name\x94\x8c\x01f\x94uauau}\x94(h\x0dJ\x00\xfe\x1f\x00h\x0e\
\x8c\x08inactive\x94ueua.";

/// `{'segments': [segment]}`, protocol 2.
const NO_TRACE_2: &[u8] = b"\x80\x02}q\x00X\x08\x00\x00\x00segmentsq\x01]q\x02}q\x03(X\x06\x00\x00\x00deviceq\x04K\x00X\x07\x00\x00\
\x00addressq\x05J\x00\x00 \x00X\x0a\x00\x00\x00total_sizeq\x06J\x00\x00 \x00X\x0e\x00\x00\x00allocated_s\
izeq\x07M\x00\x02X\x0b\x00\x00\x00active_sizeq\x08M\x00\x02X\x06\x00\x00\x00streamq\x09K\x00X\x0c\x00\
\x00\x00segment_typeq\x0aX\x05\x00\x00\x00smallq\x0bX\x06\x00\x00\x00blocksq\x0c]q\x0d(}q\x0e(X\x04\x00\
\x00\x00sizeq\x0fM\x00\x02X\x05\x00\x00\x00stateq\x10X\x10\x00\x00\x00active_allocatedq\x11X\x07\x00\x00\
\x00historyq\x12]q\x13}q\x14(X\x04\x00\x00\x00addrq\x15J\x00\x00 \x00X\x09\x00\x00\x00real_sizeq\x16M\
\xf4\x01X\x06\x00\x00\x00framesq\x17]q\x18}q\x19(X\x08\x00\x00\x00filenameq\x1aX\x04\x00\x00\x00a.pyq\
\x1bX\x04\x00\x00\x00lineq\x1cK\x03X\x04\x00\x00\x00nameq\x1dX\x01\x00\x00\x00fq\x1euauau}q\x1f(h\x0fJ\
\x00\xfe\x1f\x00h\x10X\x08\x00\x00\x00inactiveq ueuas.";

/// `{'segments': [segment]}`, protocol 4.
const NO_TRACE_4: &[u8] = b"\x80\x04\x959\x01\x00\x00\x00\x00\x00\x00}\x94\x8c\x08segments\x94]\x94}\x94(\x8c\x06device\x94K\x00\x8c\
\x07address\x94J\x00\x00 \x00\x8c\x0atotal_size\x94J\x00\x00 \x00\x8c\x0eallocated_size\x94M\x00\x02\x8c\
\x0bactive_size\x94M\x00\x02\x8c\x06stream\x94K\x00\x8c\x0csegment_type\x94\x8c\x05small\x94\x8c\x06bloc\
ks\x94]\x94(}\x94(\x8c\x04size\x94M\x00\x02\x8c\x05state\x94\x8c\x10active_allocated\x94\x8c\x07history\
\x94]\x94}\x94(\x8c\x04addr\x94J\x00\x00 \x00\x8c\x09real_size\x94M\xf4\x01\x8c\x06frames\x94]\x94}\x94(\
\x8c\x08filename\x94\x8c\x04a.py\x94\x8c\x04line\x94K\x03\x8c\x04name\x94\x8c\x01f\x94uauau}\x94(h\x0fJ\
\x00\xfe\x1f\x00h\x10\x8c\x08inactive\x94ueuas.";

/// Returns recordings of both protocols, and of the one after each.
fn families(two: &[u8], four: &[u8]) -> [Recording; 4] {
    [(two, 2), (two, 3), (four, 4), (four, 5)].map(|(bytes, protocol)| {
        let mut bytes = bytes.to_vec();
        bytes[1] = protocol;
        Recording::read(&bytes[..]).unwrap_or_else(|error| panic!("protocol {protocol}: {error}"))
    })
}

fn check_segment(recording: &Recording) {
    let (segment, blocks) = recording.segments(0).next().expect("there is one");
    assert_eq!((segment.address, segment.total_bytes, segment.is_expandable), (2 << 20, 2 << 20, false));
    let blocks: Vec<_> = blocks.collect();
    let places = blocks.iter().map(|block| (block.address, block.size_bytes, block.state));
    let expected = [
        (2 << 20, 512, BlockState::ActiveAllocated),
        ((2 << 20) + 512, (2 << 20) - 512, BlockState::Inactive),
    ];
    assert_eq!(places.collect::<Vec<_>>(), expected);
    let frames: Vec<_> = recording.stack(blocks[0].stack.expect("its history has one")).collect();
    assert_eq!((frames.len(), frames[0].filename, frames[0].line, frames[0].name), (1, "a.py", 3, "f"));
    assert!(recording.settings().is_empty() && recording.annotations().is_empty());
}

#[test]
fn traces_without_times_and_settings() {
    for recording in families(WHOLE_2, WHOLE_4) {
        check_segment(&recording);
        let trace: Vec<_> = recording.trace(0).collect();
        let seen = trace.iter().map(|event| (event.action, event.size_bytes, event.time_us, event.pool_id));
        let expected = [(Action::SegmentAlloc, 2 << 20, None, None), (Action::Alloc, 500, None, None)];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
        let program = RecordedProgram::from_recording(&recording, 0).expect("it has a trace");
        assert_eq!((program.steps().len(), program.older_blocks()), (1, 0));
        assert!(program.start_steps(StartState::Recorded).is_empty());
    }
}

#[test]
fn lists_of_segments_and_snapshots_without_a_trace() {
    for recording in families(LIST_2, LIST_4).iter().chain(&families(NO_TRACE_2, NO_TRACE_4)) {
        check_segment(recording);
        assert_eq!((recording.devices(), recording.trace_len(0)), (vec![0], 0));
        let error = RecordedProgram::from_recording(recording, 0).expect_err("there is no trace");
        assert!(error.to_string().contains("no trace of device 0"), "{error}");
    }
}

/// If a file ends early, the error contains the offset.
#[test]
fn files_that_end_early_say_where() {
    for bytes in [WHOLE_2, WHOLE_4, LIST_2, LIST_4, NO_TRACE_2, NO_TRACE_4] {
        for length in 0..bytes.len() {
            let error = Recording::read(&bytes[..length]).expect_err("it is not whole").to_string();
            assert!(error.starts_with("offset "), "{length}: {error}");
        }
    }
}
