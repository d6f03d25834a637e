//! Streams: order within one, independence between two, the default stream, host functions, streams made elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_driver::{ExternalStream, Label};
use thalweg_lock::Mutex;

use super::fixture::{Fixture, equal, holds, refused_argument};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "streams":
    commands_run_in_order,
    a_query_sees_pending_work,
    synchronize_waits_for_the_stream,
    synchronize_waits_for_the_device,
    work_outlives_its_stream,
    priorities_are_clamped,
    a_stream_knows_its_device,
    the_default_stream_is_a_stream,
    the_default_stream_cannot_be_destroyed,
    the_default_stream_has_no_ties_to_others,
    streams_are_independent,
    host_functions_run_in_order,
    later_work_waits_for_host_functions,
    a_stream_made_elsewhere_is_used,
    many_streams_live_at_once,
}

fn commands_run_in_order(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(1000, 0)?;
    // Each round adds, copies out and shifts: swapping any two commands changes the numbers.
    let copy = fixture.buffer(1000)?;
    let mut expected: Vec<u32> = (0..1000).collect();
    for round in 0..8 {
        fixture.add(&stream, &buffer, 1)?;
        let source = buffer.pointer;
        let apart = KernelArguments::new(copy.pointer, 1000, round).with_source(source).with_delay_us(20);
        fixture.launch(&stream, Kernel::Copy, apart)?;
        fixture.copy(&stream, buffer.end_at(4), copy.end(), 3996)?;
        expected.iter_mut().for_each(|word| *word += 1);
        let shifted: Vec<u32> = expected[..999].iter().map(|word| word + round).collect();
        expected[1..].copy_from_slice(&shifted);
    }
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, expected, "eight rounds of a kernel, a kernel and a copy")
}

fn a_query_sees_pending_work(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    equal(fixture.driver.stream_query(stream.handle)?, true, "a query of a stream that never worked")?;
    let gate = fixture.gate(stream.handle)?;
    equal(fixture.driver.stream_query(stream.handle)?, false, "a query of a blocked stream")?;
    gate.open();
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(fixture.driver.stream_query(stream.handle)?, true, "a query after synchronising")
}

fn synchronize_waits_for_the_stream(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let opened = Arc::new(AtomicBool::new(false));
    let gate = fixture.gate(stream.handle)?;
    let opener = gate.open_soon(&opened);
    fixture.driver.stream_synchronize(stream.handle)?;
    holds(opened.load(Ordering::SeqCst), "stream_synchronize returns only when the stream is done")?;
    let _ = opener.join();
    Ok(())
}

fn synchronize_waits_for_the_device(fixture: &Fixture) -> CaseResult {
    let (stream, _other) = (fixture.stream()?, fixture.stream()?);
    let opened = Arc::new(AtomicBool::new(false));
    let gate = fixture.gate(stream.handle)?;
    let opener = gate.open_soon(&opened);
    fixture.driver.device_synchronize(fixture.device)?;
    holds(opened.load(Ordering::SeqCst), "device_synchronize returns only when every stream is done")?;
    let _ = opener.join();
    Ok(())
}

fn work_outlives_its_stream(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(8, 0)?;
    let stream = fixture.stream()?;
    let gate = fixture.gate(stream.handle)?;
    fixture.add(&stream, &buffer, 10)?;
    drop(stream);
    gate.open();
    fixture.driver.device_synchronize(fixture.device)?;
    equal(buffer.words()?, (10..18).collect(), "what a stream still did after it was given up")
}

fn priorities_are_clamped(fixture: &Fixture) -> CaseResult {
    let (least, greatest) = fixture.device_properties(fixture.device)?.stream_priority_range;
    for asked in [i32::MIN, greatest, 0, least, i32::MAX] {
        let stream = fixture.stream_create(fixture.device, asked)?;
        let given = fixture.stream_priority(stream);
        fixture.stream_destroy(stream)?;
        equal(given?, asked.clamp(greatest, least), &format!("the priority where {asked} was asked for"))?;
    }
    Ok(())
}

fn a_stream_knows_its_device(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let default = fixture.default_stream(fixture.device)?;
    equal(fixture.stream_device(stream.handle)?, fixture.device, "the device of a stream")?;
    equal(fixture.stream_device(default)?, fixture.device, "the device of the default stream")
}

fn the_default_stream_is_a_stream(fixture: &Fixture) -> CaseResult {
    let driver = fixture.driver();
    let default = driver.default_stream(fixture.device)?;
    let buffer = fixture.iota(8, 0)?;
    for _ in 0..10 {
        fixture.kernels.launch(driver, default, Kernel::Add, KernelArguments::new(buffer.pointer, 8, 1))?;
    }
    let event = fixture.event()?;
    driver.event_record(event.handle, default)?;
    driver.event_synchronize(event.handle)?;
    equal(fixture.words_on(default, buffer.pointer, 8)?, (10..18).collect(), "work on the default stream")?;
    driver.stream_synchronize(default)?;
    equal(driver.stream_query(default)?, true, "the default stream after synchronising")
}

fn the_default_stream_cannot_be_destroyed(fixture: &Fixture) -> CaseResult {
    let default = fixture.default_stream(fixture.device)?;
    refused_argument(fixture.stream_destroy(default), "stream_destroy of the default stream")?;
    fixture.stream_synchronize(default)?;
    Ok(())
}

fn the_default_stream_has_no_ties_to_others(fixture: &Fixture) -> CaseResult {
    fixture.require_progress()?;
    let driver = fixture.driver();
    let default = driver.default_stream(fixture.device)?;
    let (stream, buffer) = (fixture.stream()?, fixture.buffer(4)?);
    let arguments = KernelArguments::new(buffer.pointer, 4, 1);
    let gate = fixture.gate(stream.handle)?;
    fixture.kernels.launch(driver, default, Kernel::Constant, arguments)?;
    fixture.eventually("the default stream, while a non-blocking stream is blocked", || {
        driver.stream_query(default)
    })?;
    gate.open();
    driver.stream_synchronize(stream.handle)?;
    let gate = fixture.gate(default)?;
    fixture.set(&stream, &buffer, 2)?;
    fixture.eventually("a non-blocking stream, while the default stream is blocked", || {
        driver.stream_query(stream.handle)
    })?;
    gate.open();
    driver.stream_synchronize(default)?;
    Ok(())
}

fn streams_are_independent(fixture: &Fixture) -> CaseResult {
    fixture.require_progress()?;
    let (blocked, free) = (fixture.stream()?, fixture.stream()?);
    let (one, two) = (fixture.iota(64, 0)?, fixture.iota(64, 0)?);
    let gate = fixture.gate(blocked.handle)?;
    fixture.add(&blocked, &one, 1)?;
    fixture.add(&free, &two, 2)?;
    fixture.driver.stream_synchronize(free.handle)?;
    equal(two.words()?, (2..66).collect(), "work of a stream beside a blocked one")?;
    equal(fixture.driver.stream_query(blocked.handle)?, false, "a query of the blocked stream")?;
    gate.open();
    fixture.driver.stream_synchronize(blocked.handle)?;
    equal(one.words()?, (1..65).collect(), "work of the stream that was blocked")
}

fn host_functions_run_in_order(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let log = Arc::new(Mutex::new(Vec::new()));
    for number in 0..50 {
        let log = Arc::clone(&log);
        let append = move || log.lock().push(number);
        fixture.driver.host_function_async(stream.handle, Arc::new(append), Label::here("append"))?;
    }
    fixture.driver.stream_synchronize(stream.handle)?;
    let log = log.lock().clone();
    equal(log, (0..50).collect(), "the order of host functions on one stream")
}

fn later_work_waits_for_host_functions(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(4, 0)?;
    let pinned = fixture.pinned(16)?;
    let gate = fixture.gate(stream.handle)?;
    fixture.copy(&stream, pinned.end_at(0), buffer.end_at(0), 16)?;
    equal(pinned.bytes(16)?, vec![0; 16], "the target of a copy behind a host function that still runs")?;
    gate.open();
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(pinned.bytes(8)?, vec![0, 0, 0, 0, 1, 0, 0, 0], "the target of the copy afterwards")
}

fn a_stream_made_elsewhere_is_used(fixture: &Fixture) -> CaseResult {
    let driver = fixture.driver();
    let stream = fixture.stream()?;
    let buffer = fixture.iota(4, 0)?;
    let cuda_stream = driver.cuda_stream(stream.handle)?;
    // SAFETY: `cuda_stream` is the driver's own number for `stream`, which lives until the end of this function, longer than
    // the handle that is made here.
    let external = unsafe { ExternalStream::new(cuda_stream) };
    let wrapped = driver.stream_from_external(fixture.device, external)?;
    equal(driver.stream_device(wrapped)?, fixture.device, "the device of an external stream")?;
    // Both handles name one queue: order holds across them.
    for _ in 0..10 {
        fixture.add(&stream, &buffer, 1)?;
        fixture.kernels.launch(driver, wrapped, Kernel::Add, KernelArguments::new(buffer.pointer, 4, 1))?;
    }
    driver.stream_synchronize(wrapped)?;
    equal(buffer.words()?, (20..24).collect(), "work through both handles of one stream")?;
    driver.stream_destroy(wrapped)?;
    fixture.add(&stream, &buffer, 1)?;
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (21..25).collect(), "the stream after the wrapped handle was forgotten")
}

fn many_streams_live_at_once(fixture: &Fixture) -> CaseResult {
    let buffers: Vec<_> = (0..64).map(|_| fixture.iota(32, 0)).collect::<Result<_, _>>()?;
    let streams: Vec<_> = (0..64).map(|_| fixture.stream()).collect::<Result<_, _>>()?;
    for round in 1..=5 {
        for (stream, buffer) in streams.iter().zip(&buffers) {
            fixture.add(stream, buffer, round)?;
        }
    }
    fixture.driver.device_synchronize(fixture.device)?;
    for buffer in &buffers {
        equal(buffer.words()?, (15..47).collect(), "a buffer of one of 64 streams")?;
    }
    Ok(())
}
