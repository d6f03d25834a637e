//! Tests of the race checker: correct programs pass, each kind of mistake is found, and the report is small and reproducible.

use thalweg_driver::FillPattern;
use thalweg_memory::PoolOptions;
use thalweg_runtime::sim::{Check, Failure, Gpu, Problem};
use thalweg_runtime::{Buffer, CaptureOptions, Device, Event, Graph, Label, MemPool, Result, Stream};
use thalweg_sanitizer::FindingKind;

const BYTES: u64 = 1024;

fn fill(stream: &Stream, buffer: &Buffer, value: u8) -> Result<()> {
    stream.fill(buffer.pointer(), FillPattern::U8(value), BYTES, Label::here("fill"))
}

fn read(stream: &Stream, buffer: &Buffer) -> Result<u8> {
    let mut bytes = [0; BYTES as usize];
    stream.copy_to_host(&mut bytes, buffer.pointer(), Label::here("read"))?;
    Ok(bytes[0])
}

fn kind(failure: &Failure) -> Option<FindingKind> {
    match failure.problem() {
        Problem::Finding(finding) => Some(finding.kind),
        _ => None,
    }
}

/// Hands work of a side stream to the main one, with or without the wait.
fn hand_over(gpu: &Gpu, waits: bool) -> Result<()> {
    let main = gpu.device().current_stream();
    let side = Stream::new(gpu.device())?;
    let buffer = Buffer::new(&side, BYTES)?;
    fill(&side, &buffer, 7)?;
    if waits {
        main.wait_stream(&side)?;
    }
    let seen = read(&main, &buffer)?;
    buffer.record_use(&main);
    assert!(!waits || seen == 7, "the wait orders the read after the fill");
    Ok(())
}

#[test]
fn a_right_program_passes_under_every_schedule() {
    let summary = Check::new().find(|gpu| hand_over(gpu, true)).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(summary.runs, 100);
    assert!(summary.commands >= 200, "a fill and a read each: {summary:?}");
    let again = Check::new().find(|gpu| hand_over(gpu, true)).unwrap();
    assert_eq!(again, summary, "the same seeds do the same");
}

#[test]
fn a_missing_wait_is_found_at_once_with_both_lines() {
    let failure = Check::new().find(|gpu| hand_over(gpu, false)).unwrap_err();
    assert_eq!(kind(&failure), Some(FindingKind::Race), "{failure}");
    assert_eq!(failure.seed(), 0, "the order is missing in every run");
    assert_eq!(failure.size(), (0, 0), "and needs no special schedule: {failure}");
    assert!(failure.is_deterministic());
    let report = failure.to_string();
    for part in ["`fill` at", "`read` at", "sim_check.rs", "THALWEG_SEED=0"] {
        assert!(report.contains(part), "{report}");
    }
    assert!(report.lines().all(|line| line.chars().count() <= 140), "{report}");
}

#[test]
fn an_assertion_that_depends_on_the_schedule_is_found_and_shrunk() {
    // A poll that gives up too early: correct only if the device is fast.
    let program = |gpu: &Gpu| -> Result<()> {
        let side = Stream::new(gpu.device())?;
        let other = Stream::new(gpu.device())?;
        let (buffer, noise) = (Buffer::new(&side, BYTES)?, Buffer::new(&other, BYTES)?);
        let event = Event::new();
        fill(&side, &buffer, 1)?;
        event.record(&side)?;
        for value in 0..4 {
            fill(&other, &noise, value)?;
        }
        assert!(!event.query()?, "nothing has waited, so it cannot be done");
        gpu.device().synchronize()
    };
    let failure = Check::new().find(program).unwrap_err();
    assert!(
        matches!(failure.problem(), Problem::Panic { location, .. } if location.contains("sim_check.rs"))
    );
    assert_eq!(failure.size(), (1, 0), "one command early is all it takes: {failure}");
    assert!(failure.to_string().contains("`fill at"), "{failure}");
}

#[test]
fn the_report_of_a_use_after_the_drop_names_the_line_of_the_drop() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let buffer = Buffer::new(&main, BYTES)?;
        let pointer = buffer.pointer();
        drop(buffer);
        main.fill(pointer, FillPattern::U8(1), BYTES, Label::here("fill"))
    };
    let dropped = line!() - 3;
    let failure = Check::new().find(program).unwrap_err();
    let Problem::Finding(finding) = failure.problem() else { panic!("{failure}") };
    assert_eq!(finding.kind, FindingKind::UseAfterFree, "{failure}");
    let freed = finding.history.freed.and_then(|freed| freed.location).expect("the line is looked up");
    assert!(freed.file.ends_with("sim_check.rs") && freed.line == dropped, "{failure}");
}

/// Uses a raw pointer to memory that was dropped, after the next request of the stream got the same memory.
fn stale_pointer(gpu: &Gpu) -> Result<()> {
    let main = gpu.device().current_stream();
    let buffer = Buffer::new(&main, BYTES)?;
    let stale = buffer.pointer();
    drop(buffer);
    let next = Buffer::new(&main, BYTES)?;
    fill(&main, &next, 1)?;
    main.fill(stale, FillPattern::U8(2), BYTES, Label::here("stale fill"))
}

#[test]
fn a_stale_pointer_to_memory_that_another_has_is_found() {
    let plain = Check::new().quarantine(false).find(stale_pointer);
    assert!(plain.is_ok(), "the bytes are the next owner's, and the order is right for it");
    let failure = Check::new().find(stale_pointer).unwrap_err();
    assert_eq!(kind(&failure), Some(FindingKind::UseAfterFree), "{failure}");
    let report = failure.to_string();
    for part in ["seed 0 fails", "`stale fill` at", "held back", "freed by `drop` at", "sim_check.rs"] {
        assert!(report.contains(part), "{report}");
    }
}

/// A raw pointer to the output of a graph that was dropped, used after another capture into the pool got the same memory.
fn stale_pointer_into_a_pool(gpu: &Gpu) -> Result<()> {
    let main = gpu.device().current_stream();
    let capture = |pool| {
        let options = CaptureOptions { pool, ..CaptureOptions::default() };
        Graph::capture(gpu.device(), options, || {
            let stream = gpu.device().current_stream();
            let temporary = Buffer::new(&stream, BYTES)?;
            fill(&stream, &temporary, 1)?;
            drop(temporary);
            let output = Buffer::new(&stream, BYTES)?;
            fill(&stream, &output, 2)?;
            Ok(output)
        })
    };
    let (first, output) = capture(None)?;
    first.replay_on(&main)?;
    let stale = output.pointer();
    drop(output);
    let (second, other) = capture(Some(first.pool().clone()))?;
    second.replay_on(&main)?;
    assert_eq!(read(&main, &other)?, 2);
    main.fill(stale, FillPattern::U8(3), BYTES, Label::here("stale fill"))
}

#[test]
fn a_stale_pointer_to_memory_that_another_capture_got_is_found() {
    let plain = Check::new().quarantine(false).find(stale_pointer_into_a_pool);
    assert!(plain.is_ok(), "the bytes are the next capture's, and the order is right for it: {plain:?}");
    let failure = Check::new().find(stale_pointer_into_a_pool).unwrap_err();
    assert_eq!(kind(&failure), Some(FindingKind::UseAfterFree), "{failure}");
    let report = failure.to_string();
    for part in ["seed 0 fails", "`stale fill` at", "held back", "`drop` at"] {
        assert!(report.contains(part), "{report}");
    }
}

/// Uses up nearly all memory repeatedly, and queries the free memory, which must be as if nothing were held back.
#[test]
fn memory_that_is_held_back_is_there_when_it_is_needed() {
    const MEMORY: u64 = 64 << 20;
    let rounds = std::cell::Cell::new(0);
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        for round in 0..8u64 {
            let sizes = [(10 + round) << 20, (14 - round) << 20, 12 << 20, 12 << 20, 10 << 20];
            let buffers = sizes.map(|bytes| Buffer::new(&main, bytes));
            for buffer in buffers {
                fill(&main, &buffer?, 1)?;
            }
            rounds.set(rounds.get() + 1);
        }
        Ok(())
    };
    let summary = Check::new().seeds(0..1).memory_bytes(MEMORY).run(program);
    assert_eq!((summary.runs, rounds.get()), (1, 16), "the run that holds memory back gets to its end, too");
}

#[test]
fn an_allocators_figures_fail_no_right_program() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let before = gpu.device().memory_reserved();
        for _ in 0..64 {
            fill(&main, &Buffer::new(&main, 1 << 20)?, 1)?;
        }
        assert!(gpu.device().memory_reserved() - before <= 32 << 20, "one block serves all");
        Ok(())
    };
    Check::new().seeds(0..2).run(program);
}

#[test]
fn a_graph_refuses_an_input_that_was_dropped_though_its_memory_is_held_back() {
    let refusals = std::cell::Cell::new(0);
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let input = Buffer::new(&main, BYTES)?;
        let (graph, ()) = Graph::capture(gpu.device(), CaptureOptions::default(), || {
            fill(&gpu.device().current_stream(), &input, 1)
        })?;
        graph.replay_on(&main)?;
        drop(input);
        refusals.set(refusals.get() + u32::from(graph.replay_on(&main).is_err()));
        Ok(())
    };
    Check::new().seeds(0..1).run(program);
    assert_eq!(refusals.get(), 2, "in the run of the seed, and in the one that holds memory back");
}

#[test]
fn what_is_not_given_back_is_a_leak() {
    let program = |gpu: &Gpu| -> Result<()> {
        let buffer = Buffer::new(&gpu.device().current_stream(), BYTES)?;
        std::mem::forget(buffer);
        Ok(())
    };
    let failure = Check::new().find(program).unwrap_err();
    assert!(matches!(failure.problem(), Problem::Leak { blocks: 1, .. }), "{failure}");
    Check::new().allow_leaks().find(program).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn host_threads_know_only_what_they_are_told() {
    // The buffer is sent through a channel; its use on another stream is ordered by an event, or not at all.
    let program = |orders: bool| {
        move |gpu: &Gpu| -> Result<()> {
            let (sender, receiver) = gpu.channel::<(Buffer, Event)>();
            let device = gpu.device().clone();
            let producer = gpu.spawn("producer", move || -> Result<()> {
                let stream = Stream::new(&Device::current()?)?;
                let buffer = Buffer::new(&stream, BYTES)?;
                fill(&stream, &buffer, 9)?;
                let event = stream.record_event()?;
                assert!(sender.send((buffer, event)).is_ok(), "the receiver waits");
                Ok(())
            });
            let (buffer, event) = receiver.receive()?.expect("one value is sent");
            let main = device.current_stream();
            if orders {
                event.wait(&main)?;
            }
            let seen = read(&main, &buffer)?;
            assert!(!orders || seen == 9);
            buffer.record_use(&main);
            producer.join()?
        }
    };
    Check::new().find(program(true)).unwrap_or_else(|failure| panic!("{failure}"));
    let failure = Check::new().find(program(false)).unwrap_err();
    assert_eq!(kind(&failure), Some(FindingKind::Race), "{failure}");
}

#[test]
fn faults_are_errors_and_leave_nothing_behind() {
    let summary = Check::new().seeds(0..300).with_faults().find(|gpu| hand_over(gpu, true));
    summary.unwrap_or_else(|failure| panic!("{failure}"));
    // A program that does not handle a failed allocation.
    let careless = |gpu: &Gpu| {
        let buffer = Buffer::new(&gpu.device().current_stream(), BYTES).expect("there is always memory");
        drop(buffer);
    };
    let failure = Check::new().seeds(0..300).with_faults().find(careless).unwrap_err();
    assert!(matches!(failure.problem(), Problem::Panic { .. }), "{failure}");
    assert_eq!(failure.size(), (0, 1), "one refusal is all it takes: {failure}");
}

#[test]
fn a_program_that_is_not_decided_by_the_seed_is_told_so() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let runs = AtomicU64::new(0);
    let failure = Check::new()
        .find(|gpu: &Gpu| -> Result<()> {
            let run = runs.fetch_add(1, Ordering::Relaxed);
            let stream = gpu.device().current_stream();
            let buffer = Buffer::new(&stream, BYTES)?;
            for value in 0..run {
                fill(&stream, &buffer, value as u8)?;
            }
            hand_over(gpu, false)
        })
        .unwrap_err();
    assert!(!failure.is_deterministic());
    assert!(failure.to_string().contains("went another way"), "{failure}");
}

/// The memory of a graph is returned to the driver when its replays are over, whichever stream they run on: the stream that
/// captured it does not matter.
#[test]
fn the_memory_of_a_graph_is_given_back_behind_its_replays() {
    let program = |gpu: &Gpu| -> Result<()> {
        let stream = Stream::new(gpu.device())?;
        let (graph, buffer) = Graph::capture(gpu.device(), CaptureOptions::default(), || {
            let buffer = Buffer::new(&gpu.device().current_stream(), BYTES)?;
            fill(&gpu.device().current_stream(), &buffer, 1)?;
            Ok(buffer)
        })?;
        {
            let _current = stream.make_current();
            graph.replay()?;
        }
        drop((graph, buffer));
        gpu.device().empty_cache()
    };
    Check::new().seeds(0..50).run(program);
}

/// Restoring a pool waits for its freed blocks, including those of streams that the checkpoint does not know.
#[test]
fn a_pool_is_put_back_behind_the_uses_of_what_was_freed() {
    let program = |gpu: &Gpu| -> Result<()> {
        let (main, side) = (gpu.device().current_stream(), Stream::new(gpu.device())?);
        let pool = MemPool::new(gpu.device(), PoolOptions::default());
        let _scope = pool.enter()?;
        let allocator = gpu.device().allocator();
        let empty = allocator.checkpoint_pool(pool.id()).expect("nothing is in the way");
        let first = Buffer::new(&main, BYTES)?;
        side.wait_stream(&main)?;
        fill(&side, &first, 1)?;
        first.record_stream(&side);
        drop(first);
        drop(allocator.restore_pool(pool.id(), &empty).expect("nothing is in the way"));
        let second = Buffer::new(&main, BYTES)?;
        fill(&main, &second, 2)?;
        assert_eq!(read(&main, &second)?, 2);
        Ok(())
    };
    Check::new().seeds(0..50).run(program);
}

/// A fault makes a program return early, while it holds memory whose use on another stream is not recorded yet.
#[test]
fn what_an_injected_fault_leaves_unrecorded_is_no_alarm() {
    let program = |gpu: &Gpu| -> Result<()> {
        let (main, side) = (gpu.device().current_stream(), Stream::new(gpu.device())?);
        let buffer = Buffer::new(&side, BYTES)?;
        fill(&side, &buffer, 1)?;
        main.wait_stream(&side)?;
        fill(&main, &buffer, 2)?;
        let _other = Buffer::new(&main, 1 << 24)?;
        buffer.record_use(&main);
        Ok(())
    };
    let summary = Check::new().seeds(0..300).with_faults().run(program);
    assert!(summary.unrecorded_after_fault > 0, "{summary:?}");
    // A program that ends normally, or returns early on its own, has no such excuse.
    let forgets = |gpu: &Gpu| -> Result<()> { hand_over_without_record(gpu) };
    for check in [Check::new(), Check::new().seeds(0..300).with_faults()] {
        let failure = check.find(forgets).unwrap_err();
        assert_eq!(kind(&failure), Some(FindingKind::MissingRecord), "{failure}");
    }
}

fn hand_over_without_record(gpu: &Gpu) -> Result<()> {
    let (main, side) = (gpu.device().current_stream(), Stream::new(gpu.device())?);
    let buffer = Buffer::new(&side, BYTES)?;
    fill(&side, &buffer, 1)?;
    main.wait_stream(&side)?;
    fill(&main, &buffer, 2)
}

/// A fault that strikes when the program is over is not the program's.
#[test]
fn a_fault_at_the_very_end_does_not_count_against_the_program() {
    let program = |gpu: &Gpu| -> Result<()> {
        let stream = Stream::new(gpu.device())?;
        let buffer = Buffer::new(&stream, BYTES)?;
        (0..32).try_for_each(|value| fill(&stream, &buffer, value))
    };
    Check::new().seeds(0..300).with_faults().run(program);
}

#[test]
fn all_that_is_wrong_with_a_run_is_said() {
    let program = |gpu: &Gpu| -> Result<()> {
        hand_over(gpu, false)?;
        hand_over_without_record(gpu)?;
        Err(thalweg_runtime::Error::invalid("the program's own error"))
    };
    let failure = Check::new().find(program).unwrap_err();
    let report = failure.to_string();
    for part in ["1 of 4: data race", "2 of 4: missing record_stream", "4 of 4: ", "the program's own error"]
    {
        assert!(report.contains(part), "`{part}` is not in:\n{report}");
    }
    // The third follows from the second: the memory is returned to the driver while it is used.
    assert_eq!(failure.problems().len(), 4);
}

#[test]
fn a_deadlock_comes_before_what_it_brings_about() {
    let program = |gpu: &Gpu| -> Result<()> {
        let (_sender, receiver) = gpu.channel::<u32>();
        hand_over_without_record(gpu)?;
        receiver.receive().map(drop)
    };
    let failure = Check::new().find(program).unwrap_err();
    let Problem::Stuck(text) = failure.problem() else { panic!("{failure}") };
    assert!(text.contains("deadlock") && text.contains("a value from a channel"), "{text}");
    assert!(failure.problems().iter().any(|problem| matches!(problem, Problem::Finding(_))), "{failure}");
}

#[test]
fn a_livelock_is_reported_with_its_line() {
    let polls = |gpu: &Gpu| -> Result<()> {
        let (stream, event) = (gpu.device().current_stream(), Event::new());
        event.record(&stream)?;
        loop {
            event.query()?;
        }
    };
    let failure = Check::new().without_shrinking().find(polls).unwrap_err();
    let Problem::Stuck(text) = failure.problem() else { panic!("{failure}") };
    assert!(text.contains("livelock") && text.contains("sim_check.rs:"), "{text}");
    let passes = |gpu: &Gpu| loop {
        gpu.pass();
    };
    let failure = Check::new().without_shrinking().find::<()>(passes).unwrap_err();
    let Problem::Panic { message, location } = failure.problem() else { panic!("{failure}") };
    assert!(message.contains("livelock") && location.contains("sim_check.rs:"), "{failure}");
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let program = |gpu: &Gpu| -> Result<()> {
        loop {
            gpu.device().synchronize()?;
        }
    };
    let failure = Check::new().time_limit(std::time::Duration::from_millis(20)).find(program).unwrap_err();
    assert!(matches!(failure.problem(), Problem::Stuck(text) if text.contains("time limit")), "{failure}");
}

/// The one step that matters is found among thousands that do not, within the limit on shrinking runs.
#[test]
fn shrinking_finds_its_way_through_thousands_of_steps() {
    let program = |gpu: &Gpu| -> Result<()> {
        let side = Stream::new(gpu.device())?;
        let buffer = Buffer::new(&side, BYTES)?;
        // A stream with more commands than it can queue would wait, so the steps are on several.
        let noise = |_| {
            let other = Stream::new(gpu.device())?;
            Ok((Buffer::new(&other, BYTES)?, other))
        };
        let others = (0..6).map(noise).collect::<Result<Vec<_>>>()?;
        for (step, (noise, other)) in others.iter().cycle().enumerate().take(5000) {
            fill(other, noise, step as u8)?;
        }
        let event = Event::new();
        fill(&side, &buffer, 1)?;
        event.record(&side)?;
        fill(&others[0].1, &others[0].0, 0)?;
        assert!(!event.query()?, "nothing has waited, so it cannot be done");
        Ok(())
    };
    let failure = Check::new().seeds(3..100).find(program).unwrap_err();
    assert_eq!(failure.size(), (1, 0), "{failure}");
}

#[test]
fn an_order_only_check_computes_nothing_and_stops_early() {
    let program = |gpu: &Gpu| -> Result<()> {
        let main = gpu.device().current_stream();
        let buffer = Buffer::new(&main, BYTES)?;
        fill(&main, &buffer, 7)?;
        assert_eq!(read(&main, &buffer)?, 0, "nothing was written");
        Ok(())
    };
    assert_eq!(Check::new().order_only().run(program).runs, 1, "no other seed can go otherwise");
    let asks = |gpu: &Gpu| -> Result<()> {
        let side = Stream::new(gpu.device())?;
        let buffer = Buffer::new(&side, BYTES)?;
        fill(&side, &buffer, 7)?;
        side.query()?;
        side.synchronize()
    };
    assert_eq!(Check::new().order_only().run(asks).runs, 100);
    let failure = Check::new().order_only().find(|gpu| hand_over(gpu, false)).unwrap_err();
    assert_eq!(kind(&failure), Some(FindingKind::Race), "{failure}");
}

/// Checks that the simplest mistake is found. Without this, no result of the race checker can be trusted.
#[test]
#[should_panic(expected = "THALWEG_SEED=")]
fn the_canary_sings() {
    thalweg_runtime::sim::check(|gpu| hand_over(gpu, false));
}
