//! The sanitizer under the runtime: buffers, pinned memory and graphs report what the driver cannot see, and the caching
//! allocator itself causes no findings.

use std::sync::Arc;

use thalweg_driver::FillPattern;
use thalweg_memory::Settings;
use thalweg_runtime::{Buffer, CaptureOptions, Device, Environment, Graph, Label, PinnedBuffer, Stream};
use thalweg_sanitizer::{FindingKind, SanitizerDriver};
use thalweg_sim::{SimConfig, SimDriver};

const BYTES: u64 = 4096;

fn checked() -> (Arc<SanitizerDriver>, Device) {
    let config = SimConfig { devices: 1, memory_bytes: 64 << 20, workers: 2, ..SimConfig::default() };
    let driver = SanitizerDriver::new(SimDriver::new(config).unwrap());
    let device = Device::all_of(driver.clone(), &Environment::default()).unwrap().remove(0);
    (driver, device)
}

#[track_caller]
fn fill(stream: &Stream, buffer: &Buffer) {
    stream.fill(buffer.pointer(), FillPattern::U8(1), BYTES, Label::here("fill")).unwrap();
}

#[track_caller]
fn expect(name: &str, expected: &[FindingKind], program: impl FnOnce(&Device, &Stream, &Stream)) {
    let (driver, device) = checked();
    let (main, side) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    program(&device, &main, &side);
    let findings = driver.findings();
    let text: Vec<_> = findings.iter().map(ToString::to_string).collect();
    let kinds: Vec<_> = findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, expected, "{name}:\n{}", text.join("\n"));
    // Reports name the lines of this file, and none of the runtime's own.
    let from_runtime = text.iter().find(|text| text.contains("src/"));
    assert_eq!(from_runtime, None, "{name}: a line of the runtime");
}

#[test]
fn buffers() {
    expect("ordered and recorded", &[], |_, main, side| {
        let buffer = Buffer::new(main, BYTES).unwrap();
        fill(main, &buffer);
        side.wait_stream(main).unwrap();
        fill(side, &buffer);
        buffer.record_stream(side);
    });
    expect("not recorded", &[FindingKind::MissingRecord], |_, main, side| {
        let buffer = Buffer::new(main, BYTES).unwrap();
        fill(main, &buffer);
        side.wait_stream(main).unwrap();
        fill(side, &buffer);
    });
    expect("recorded too early", &[FindingKind::EarlyRecord], |_, main, side| {
        let buffer = Buffer::new(main, BYTES).unwrap();
        side.wait_stream(main).unwrap();
        buffer.record_use(side);
        fill(side, &buffer);
    });
    expect("not ordered", &[FindingKind::Race], |_, main, side| {
        let buffer = Buffer::new(main, BYTES).unwrap();
        fill(main, &buffer);
        fill(side, &buffer);
        buffer.record_stream(side);
    });
    expect("read before it is written", &[FindingKind::Uninitialised], |_, main, _| {
        let buffer = Buffer::new(main, BYTES).unwrap();
        main.copy_to_host(&mut [0; 16], buffer.pointer(), Label::here("download")).unwrap();
    });
    expect("beside the buffer", &[FindingKind::OutOfBounds], |_, main, _| {
        let buffer = Buffer::new(main, 500).unwrap();
        main.fill(buffer.pointer(), FillPattern::U8(1), 501, Label::here("fill")).unwrap();
    });
}

#[test]
fn pinned_memory() {
    let copy = |device: &Device, main: &Stream, waits: bool| {
        let pinned = PinnedBuffer::new(device, BYTES).unwrap();
        pinned.write(0, &[7_u8; 64]).unwrap();
        let buffer = Buffer::new(main, BYTES).unwrap();
        main.copy_from_pinned(buffer.pointer(), &pinned, 0, 64, Label::here("upload")).unwrap();
        if waits {
            main.synchronize().unwrap();
        }
        pinned.write(0, &[8_u8; 64]).unwrap();
    };
    expect("written after the copy", &[], |device, main, _| copy(device, main, true));
    expect("written under the copy", &[FindingKind::Race], |device, main, _| copy(device, main, false));
}

#[test]
fn graphs() {
    expect("an input that died is refused before the sanitizer sees it", &[], |device, main, _| {
        let _current = main.make_current();
        let input = Buffer::new(main, BYTES).unwrap();
        let (graph, ()) = Graph::capture(device, CaptureOptions::default(), || {
            fill(&device.current_stream(), &input);
            Ok(())
        })
        .unwrap();
        graph.replay().unwrap();
        drop(input);
        assert!(graph.replay().unwrap_err().is_invalid_argument());
    });
    expect("an output before the first replay", &[FindingKind::OutputBeforeLaunch], |device, main, _| {
        let _current = main.make_current();
        let (graph, output) = Graph::capture(device, CaptureOptions::default(), || {
            let output = Buffer::new(&device.current_stream(), BYTES)?;
            fill(&device.current_stream(), &output);
            Ok(output)
        })
        .unwrap();
        main.copy_to_host(&mut [0; 16], output.pointer(), Label::here("download")).unwrap();
        graph.replay().unwrap();
        main.copy_to_host(&mut [0; 16], output.pointer(), Label::here("download")).unwrap();
    });
}

/// Buffers of all sizes are allocated and freed on three streams that wait for one another where they must: whatever the
/// allocator does with them (splitting, merging, releasing), the sanitizer finds nothing.
#[test]
fn the_allocator_keeps_the_rules() {
    for expandable_segments in [false, true] {
        let config = SimConfig { devices: 1, memory_bytes: 64 << 20, workers: 2, ..SimConfig::default() };
        let driver = SanitizerDriver::new(SimDriver::new(config).unwrap());
        let allocator = Settings::default().with_expandable_segments(expandable_segments);
        let environment = Environment { allocator, ..Environment::default() };
        let device = Device::all_of(driver.clone(), &environment).unwrap().remove(0);
        let streams: Vec<_> = (0..3).map(|_| Stream::new(&device).unwrap()).collect();
        let mut held: Vec<(Buffer, usize)> = Vec::new();
        let mut random = 1_u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (choice, number) = ((random >> 33) % 8, (random >> 40) as usize);
            let (own, other) = (number % 3, (number + 1) % 3);
            if choice < 4 || held.is_empty() {
                let bytes = 512 << (number % 12);
                let Ok(buffer) = Buffer::new(&streams[own], bytes) else { continue };
                let label = Label::here("fill");
                streams[own].fill(buffer.pointer(), FillPattern::U8(1), bytes, label).unwrap();
                held.push((buffer, own));
            } else if choice == 4 {
                let (buffer, own) = &held[number % held.len()];
                let user = &streams[(own + 1) % 3];
                user.wait_stream(&streams[*own]).unwrap();
                user.copy_to_host(&mut [0; 64], buffer.pointer(), Label::here("download")).unwrap();
            } else if choice == 5 {
                let (buffer, own) = held.swap_remove(number % held.len());
                let user = &streams[(own + 1) % 3];
                user.wait_stream(&streams[own]).unwrap();
                user.fill(buffer.pointer(), FillPattern::U8(2), 256, Label::here("fill")).unwrap();
                buffer.record_stream(user);
            } else {
                held.swap_remove(number % held.len());
            }
            if number % 211 == 0 {
                device.empty_cache().unwrap();
            }
            streams[other].query().unwrap();
        }
        let text: Vec<_> = driver.findings().iter().map(ToString::to_string).collect();
        assert!(text.is_empty(), "expandable: {expandable_segments}\n{}", text.join("\n"));
    }
}
