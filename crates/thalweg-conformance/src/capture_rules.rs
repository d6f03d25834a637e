//! The rules of capture: the error of each forbidden call, and that the streams are usable afterwards.
//!
//! If CUDA's documentation does not define whether a refused call also breaks the capture, a case accepts both and documents it.
//! In either case it must be possible to end the capture, and the streams must work again.
//!
//! One code is missing here: the default stream returns [`StreamCaptureImplicit`](thalweg_driver::Code::StreamCaptureImplicit)
//! only while a *blocking* stream captures, and the trait makes none.

use thalweg_driver::{CaptureMode, CaptureStatus, Code, DependencyUpdate, Label, Result};

use super::fixture::{Event, Fixture, Stream, check_refused, equal, fail, skip};
use super::{CaseResult, group};

group! {
    "capture_rules":
    the_default_stream_does_not_capture,
    a_stream_captures_once_at_a_time,
    an_end_needs_a_beginning,
    an_end_belongs_to_the_origin,
    a_fork_must_be_joined,
    a_capturing_stream_is_not_waited_for,
    ordinary_memory_is_not_copied,
    the_device_is_not_waited_for,
    allocation_breaks_a_global_capture,
    a_global_capture_binds_other_threads,
    a_thread_local_capture_leaves_other_threads_alone,
    a_relaxed_thread_is_not_bound,
    captures_do_not_merge,
    a_capture_does_not_depend_on_the_outside,
    a_captured_event_is_not_asked,
    a_capture_ends_on_its_thread,
    a_relaxed_capture_ends_anywhere,
    a_broken_capture_stays_broken_until_it_ends,
    a_graph_under_construction_is_not_destroyed,
    dependencies_need_a_capture,
}

const UNSUPPORTED: &[Code] = &[Code::StreamCaptureUnsupported];
const INVALIDATED: &[Code] = &[Code::StreamCaptureInvalidated];

/// Ends a capture that may or may not be broken, and checks that the stream works again.
#[track_caller]
fn end_either_way(fixture: &Fixture, stream: &Stream<'_>, codes: &[Code]) -> CaseResult {
    match fixture.driver.stream_end_capture(stream.handle) {
        Ok(graph) => fixture.driver.graph_destroy(graph)?,
        Err(error) if codes.contains(&error.code()) => {}
        Err(error) => {
            return fail(format!("the end of the capture: expected a graph or {codes:?}, got {error}"));
        }
    }
    usable(fixture, stream)
}

/// Ends a capture that an error broke, and checks that the stream works again.
#[track_caller]
fn end_broken(fixture: &Fixture, stream: &Stream<'_>) -> CaseResult {
    check_refused(
        fixture.driver.stream_end_capture(stream.handle),
        INVALIDATED,
        "the end of a broken capture",
    )?;
    usable(fixture, stream)
}

#[track_caller]
fn usable(fixture: &Fixture, stream: &Stream<'_>) -> CaseResult {
    let info = fixture.driver.stream_capture_info(stream.handle)?;
    equal(info.status, CaptureStatus::None, "the status of a stream after its capture was ended")?;
    let buffer = fixture.iota(4, 0)?;
    fixture.add(stream, &buffer, 1)?;
    let seen = fixture.words_on(stream.handle, buffer.pointer, 4)?;
    equal(seen, vec![1, 2, 3, 4], "work on a stream after its capture was ended")
}

/// Returns a stream that captures, with one kernel in it.
fn capturing<'f>(
    fixture: &'f Fixture,
    buffer: &super::fixture::Buffer<'_>,
    mode: CaptureMode,
) -> Result<Stream<'f>> {
    let stream = fixture.stream()?;
    fixture.driver.stream_begin_capture(stream.handle, mode)?;
    fixture.add(&stream, buffer, 1)?;
    Ok(stream)
}

/// Makes a second stream join the capture of the first.
fn forked<'f>(fixture: &'f Fixture, origin: &Stream<'_>) -> Result<(Stream<'f>, Event<'f>)> {
    let (stream, event) = (fixture.stream()?, fixture.event()?);
    fixture.driver.event_record(event.handle, origin.handle)?;
    fixture.driver.stream_wait_event(stream.handle, event.handle)?;
    Ok((stream, event))
}

/// Runs a function on a thread of its own.
fn elsewhere<T: Send>(run: impl FnOnce() -> T + Send) -> CaseResult<T> {
    std::thread::scope(|scope| {
        scope.spawn(run).join().map_err(|_| super::Stop::Failed("a call panicked on its thread".into()))
    })
}

fn the_default_stream_does_not_capture(fixture: &Fixture) -> CaseResult {
    let default = fixture.default_stream(fixture.device)?;
    // The documentation forbids it without naming the code.
    let codes = &[Code::StreamCaptureUnsupported, Code::StreamCaptureImplicit, Code::InvalidValue];
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal, CaptureMode::Relaxed] {
        check_refused(fixture.stream_begin_capture(default, mode), codes, "a capture of the default stream")?;
    }
    fixture.stream_synchronize(default)?;
    Ok(())
}

fn a_stream_captures_once_at_a_time(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    let again = fixture.driver.stream_begin_capture(stream.handle, CaptureMode::Global);
    let codes = &[Code::IllegalState, Code::StreamCaptureUnsupported, Code::InvalidValue];
    check_refused(again, codes, "a capture of a stream that captures")?;
    end_either_way(fixture, &stream, INVALIDATED)
}

fn an_end_needs_a_beginning(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let codes = &[Code::IllegalState, Code::StreamCaptureUnmatched, Code::InvalidValue];
    check_refused(fixture.driver.stream_end_capture(stream.handle), codes, "the end of no capture")?;
    usable(fixture, &stream)
}

fn an_end_belongs_to_the_origin(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let origin = capturing(fixture, &buffer, CaptureMode::Global)?;
    let (fork, _event) = forked(fixture, &origin)?;
    let result = fixture.driver.stream_end_capture(fork.handle);
    check_refused(
        result,
        &[Code::StreamCaptureUnmatched],
        "the end of a capture on a stream that it was forked to",
    )?;
    end_either_way(fixture, &origin, &[Code::StreamCaptureUnjoined, Code::StreamCaptureInvalidated])?;
    usable(fixture, &fork)
}

fn a_fork_must_be_joined(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let origin = capturing(fixture, &buffer, CaptureMode::Global)?;
    let (fork, _event) = forked(fixture, &origin)?;
    fixture.add(&fork, &buffer, 1)?;
    let end = fixture.driver.stream_end_capture(origin.handle);
    check_refused(
        end,
        &[Code::StreamCaptureUnjoined],
        "the end of a capture with a fork that was not joined",
    )?;
    usable(fixture, &origin)?;
    usable(fixture, &fork)?;
    equal(buffer.words()?, (0..4).collect(), "memory: nothing of the capture ran")
}

fn a_capturing_stream_is_not_waited_for(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    for mode in [CaptureMode::Global, CaptureMode::Relaxed] {
        let stream = capturing(fixture, &buffer, mode)?;
        check_refused(
            fixture.stream_synchronize(stream.handle),
            UNSUPPORTED,
            "stream_synchronize of a capturing stream",
        )?;
        end_broken(fixture, &stream)?;
        let stream = capturing(fixture, &buffer, mode)?;
        check_refused(
            fixture.stream_query(stream.handle),
            UNSUPPORTED,
            "stream_query of a capturing stream",
        )?;
        end_broken(fixture, &stream)?;
    }
    Ok(())
}

fn ordinary_memory_is_not_copied(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let label = Label::here("copy of ordinary memory");
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    let copy = fixture.copy_from_host(stream.handle, buffer.pointer, &[1; 16], label);
    check_refused(copy, UNSUPPORTED, "copy_from_host on a capturing stream")?;
    end_broken(fixture, &stream)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    let copy = fixture.copy_to_host(stream.handle, &mut [0; 16], buffer.pointer, label);
    check_refused(copy, UNSUPPORTED, "copy_to_host on a capturing stream")?;
    end_broken(fixture, &stream)?;
    equal(buffer.words()?, (0..4).collect(), "memory after copies that were refused")
}

fn the_device_is_not_waited_for(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    let result = fixture.driver.device_synchronize(fixture.device);
    check_refused(result, UNSUPPORTED, "device_synchronize during a global capture")?;
    end_broken(fixture, &stream)
}

/// The calls that CUDA documents as potentially unsafe, by name.
type Unsafe =
    (&'static str, fn(&Fixture, thalweg_driver::DevicePointer, thalweg_driver::HostPointer) -> Result<()>);

const UNSAFE_CALLS: [Unsafe; 4] = [
    ("memory_allocate", |fixture, _, _| {
        let pointer = fixture.driver.memory_allocate(fixture.device, 4096)?;
        fixture.driver.memory_free(pointer)
    }),
    ("memory_free", |fixture, pointer, _| fixture.driver.memory_free(pointer)),
    ("host_allocate", |fixture, _, _| {
        let pointer = fixture.driver.host_allocate(4096, thalweg_driver::HostFlags::default())?;
        fixture.driver.host_free(pointer)
    }),
    ("host_free", |fixture, _, pinned| fixture.driver.host_free(pinned)),
];

fn allocation_breaks_a_global_capture(fixture: &Fixture) -> CaseResult {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal] {
        for (name, call) in UNSAFE_CALLS {
            let (buffer, pinned) = (fixture.iota(4, 0)?, fixture.pinned(64)?);
            let stream = capturing(fixture, &buffer, mode)?;
            let result = call(fixture, buffer.pointer, pinned.pointer);
            check_refused(result, UNSUPPORTED, &format!("{name} on the thread of a {mode:?} capture"))?;
            end_broken(fixture, &stream)?;
            equal(buffer.words()?, (0..4).collect(), "memory that a refused call did not free")?;
        }
    }
    Ok(())
}

fn a_global_capture_binds_other_threads(fixture: &Fixture) -> CaseResult {
    for (name, call) in UNSAFE_CALLS {
        let (buffer, pinned) = (fixture.iota(4, 0)?, fixture.pinned(64)?);
        let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
        let result = elsewhere(|| call(fixture, buffer.pointer, pinned.pointer))?;
        check_refused(result, UNSUPPORTED, &format!("{name} on another thread during a global capture"))?;
        end_broken(fixture, &stream)?;
    }
    Ok(())
}

fn a_thread_local_capture_leaves_other_threads_alone(fixture: &Fixture) -> CaseResult {
    // These two free the memory that they allocate; the others would free memory that the guards here still own.
    for (name, call) in UNSAFE_CALLS.into_iter().filter(|(name, _)| name.ends_with("allocate")) {
        let (buffer, pinned) = (fixture.iota(4, 0)?, fixture.pinned(64)?);
        let stream = capturing(fixture, &buffer, CaptureMode::ThreadLocal)?;
        if let Err(error) = elsewhere(|| call(fixture, buffer.pointer, pinned.pointer))? {
            return fail(format!("{name} and its free on another thread: expected success, got {error}"));
        }
        let graph = fixture.driver.stream_end_capture(stream.handle)?;
        fixture.driver.graph_destroy(graph)?;
        usable(fixture, &stream)?;
    }
    Ok(())
}

fn a_relaxed_thread_is_not_bound(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    let result = elsewhere(|| {
        let before = fixture.driver.thread_exchange_capture_mode(CaptureMode::Relaxed)?;
        let pointer = fixture.driver.memory_allocate(fixture.device, 4096)?;
        fixture.driver.memory_free(pointer)?;
        fixture.driver.thread_exchange_capture_mode(before)
    })?;
    equal(result?, CaptureMode::Relaxed, "the mode that was set")?;
    let graph = fixture.driver.stream_end_capture(stream.handle)?;
    fixture.driver.graph_destroy(graph)?;
    usable(fixture, &stream)
}

fn captures_do_not_merge(fixture: &Fixture) -> CaseResult {
    let (buffer, event) = (fixture.iota(4, 0)?, fixture.event()?);
    let one = capturing(fixture, &buffer, CaptureMode::Relaxed)?;
    let two = capturing(fixture, &buffer, CaptureMode::Relaxed)?;
    fixture.event_record(event.handle, one.handle)?;
    let wait = fixture.stream_wait_event(two.handle, event.handle);
    check_refused(wait, &[Code::StreamCaptureMerge], "a capture that waits for an event of another")?;
    end_either_way(fixture, &one, INVALIDATED)?;
    end_either_way(fixture, &two, INVALIDATED)
}

fn a_capture_does_not_depend_on_the_outside(fixture: &Fixture) -> CaseResult {
    let (buffer, outside, event) = (fixture.iota(4, 0)?, fixture.stream()?, fixture.event()?);
    fixture.event_record(event.handle, outside.handle)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Relaxed)?;
    let wait = fixture.stream_wait_event(stream.handle, event.handle);
    check_refused(wait, &[Code::StreamCaptureIsolation], "a capture that waits for an event from before it")?;
    end_either_way(fixture, &stream, INVALIDATED)
}

fn a_captured_event_is_not_asked(fixture: &Fixture) -> CaseResult {
    let (buffer, event) = (fixture.iota(4, 0)?, fixture.event()?);
    let captured = &[Code::CapturedEvent];
    for _ in 0..2 {
        let stream = capturing(fixture, &buffer, CaptureMode::Relaxed)?;
        fixture.event_record(event.handle, stream.handle)?;
        check_refused(fixture.event_query(event.handle), captured, "event_query of a captured event")?;
        end_either_way(fixture, &stream, INVALIDATED)?;
        let stream = capturing(fixture, &buffer, CaptureMode::Relaxed)?;
        fixture.event_record(event.handle, stream.handle)?;
        check_refused(
            fixture.event_synchronize(event.handle),
            captured,
            "event_synchronize of a captured event",
        )?;
        end_either_way(fixture, &stream, INVALIDATED)?;
    }
    Ok(())
}

fn a_capture_ends_on_its_thread(fixture: &Fixture) -> CaseResult {
    for mode in [CaptureMode::Global, CaptureMode::ThreadLocal] {
        let buffer = fixture.iota(4, 0)?;
        let stream = capturing(fixture, &buffer, mode)?;
        let end = elsewhere(|| fixture.driver.stream_end_capture(stream.handle))?;
        check_refused(
            end,
            &[Code::StreamCaptureWrongThread],
            &format!("the end of a {mode:?} capture elsewhere"),
        )?;
        // A GPU ends the capture nevertheless, so that there is nothing left to end.
        let over = &[Code::StreamCaptureInvalidated, Code::IllegalState];
        end_either_way(fixture, &stream, over)?;
    }
    Ok(())
}

fn a_relaxed_capture_ends_anywhere(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Relaxed)?;
    let graph = elsewhere(|| fixture.driver.stream_end_capture(stream.handle))??;
    let nodes = fixture.driver.graph_describe(graph).map(|description| description.nodes.len());
    fixture.driver.graph_destroy(graph)?;
    equal(nodes?, 1, "the nodes of a capture that was ended on another thread")?;
    usable(fixture, &stream)
}

fn a_broken_capture_stays_broken_until_it_ends(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    check_refused(
        fixture.stream_synchronize(stream.handle),
        UNSUPPORTED,
        "stream_synchronize of a capturing stream",
    )?;
    let status = fixture.stream_capture_info(stream.handle)?.status;
    equal(status, CaptureStatus::Invalidated, "the status of a broken capture")?;
    check_refused(fixture.add(&stream, &buffer, 1), INVALIDATED, "a launch in a broken capture")?;
    check_refused(fixture.set(&stream, &buffer, 1), INVALIDATED, "another launch in a broken capture")?;
    end_broken(fixture, &stream)?;
    equal(buffer.words()?, (0..4).collect(), "memory: nothing of the capture ran")?;
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    let graph = fixture.stream_end_capture(stream.handle)?;
    let nodes = fixture.graph_describe(graph).map(|description| description.nodes.len());
    fixture.graph_destroy(graph)?;
    equal(nodes?, 1, "the nodes of a capture after a broken one")
}

fn a_graph_under_construction_is_not_destroyed(fixture: &Fixture) -> CaseResult {
    let buffer = fixture.iota(4, 0)?;
    let stream = capturing(fixture, &buffer, CaptureMode::Global)?;
    let Some(graph) = fixture.stream_capture_info(stream.handle)?.graph else {
        return skip("the driver does not show the graph under construction");
    };
    if fixture.graph_destroy(graph).is_ok() {
        return fail("graph_destroy of a graph under construction: expected an error, and it succeeded");
    }
    let ended = fixture.stream_end_capture(stream.handle)?;
    let nodes = fixture.graph_describe(ended).map(|description| description.nodes.len());
    fixture.graph_destroy(ended)?;
    equal(nodes?, 1, "the nodes of the graph that was not destroyed")
}

fn dependencies_need_a_capture(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let update = DependencyUpdate::Set;
    let result = fixture.driver.stream_update_capture_dependencies(stream.handle, &[], update);
    let codes = &[Code::IllegalState, Code::InvalidValue, Code::StreamCaptureUnmatched];
    check_refused(result, codes, "an update of the dependencies of a stream that does not capture")?;
    usable(fixture, &stream)
}
