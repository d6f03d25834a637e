//! Events: the meaning of a record, a wait, a query and a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_driver::{Code, EventFlags};

use super::fixture::{Fixture, check_refused, equal, holds};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "events":
    an_event_without_a_record_is_complete,
    a_query_follows_the_record,
    synchronize_waits_for_the_record,
    a_wait_orders_two_streams,
    a_wait_before_the_record_waits_for_nothing,
    a_wait_keeps_its_record_when_the_event_is_recorded_again,
    a_query_sees_the_latest_record,
    a_wait_outlives_its_event,
    waits_chain_through_streams,
    one_stream_waits_for_many,
    a_wait_on_its_own_stream_is_harmless,
    times_do_not_run_backwards,
    times_need_timing_and_records,
    times_need_complete_events,
    blocking_events_work,
}

const TIMED: EventFlags = EventFlags { timing: true, blocking_sync: false };

fn an_event_without_a_record_is_complete(fixture: &Fixture) -> CaseResult {
    let (event, stream) = (fixture.event()?, fixture.stream()?);
    equal(fixture.event_query(event.handle)?, true, "a query before any record")?;
    fixture.event_synchronize(event.handle)?;
    fixture.stream_wait_event(stream.handle, event.handle)?;
    fixture.stream_synchronize(stream.handle)?;
    Ok(())
}

fn a_query_follows_the_record(fixture: &Fixture) -> CaseResult {
    let (event, stream) = (fixture.event()?, fixture.stream()?);
    let gate = fixture.gate(stream.handle)?;
    fixture.event_record(event.handle, stream.handle)?;
    equal(fixture.event_query(event.handle)?, false, "a query of an event behind a blocked command")?;
    gate.open();
    fixture.eventually("the event, once the stream goes on", || fixture.event_query(event.handle))
}

fn synchronize_waits_for_the_record(fixture: &Fixture) -> CaseResult {
    let (event, stream) = (fixture.event()?, fixture.stream()?);
    let opened = Arc::new(AtomicBool::new(false));
    let gate = fixture.gate(stream.handle)?;
    fixture.driver.event_record(event.handle, stream.handle)?;
    let opener = gate.open_soon(&opened);
    fixture.driver.event_synchronize(event.handle)?;
    holds(opened.load(Ordering::SeqCst), "event_synchronize returns only when the event is complete")?;
    let _ = opener.join();
    equal(fixture.driver.event_query(event.handle)?, true, "a query after synchronising")
}

fn a_wait_orders_two_streams(fixture: &Fixture) -> CaseResult {
    let (one, two) = (fixture.stream()?, fixture.stream()?);
    let (there, back) = (fixture.event()?, fixture.event()?);
    let buffer = fixture.iota(256, 0)?;
    let slow = KernelArguments::new(buffer.pointer, 256, 1).with_delay_us(200);
    for _ in 0..20 {
        fixture.launch(&one, Kernel::Add, slow)?;
        fixture.event_record(there.handle, one.handle)?;
        fixture.stream_wait_event(two.handle, there.handle)?;
        fixture.add(&two, &buffer, 1)?;
        fixture.event_record(back.handle, two.handle)?;
        fixture.stream_wait_event(one.handle, back.handle)?;
    }
    let seen = fixture.words_on(one.handle, buffer.pointer, 256)?;
    equal(seen, (40..296).collect(), "twenty rounds of adding on two streams in turn")
}

fn a_wait_before_the_record_waits_for_nothing(fixture: &Fixture) -> CaseResult {
    fixture.require_progress()?;
    let (one, two, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
    fixture.stream_wait_event(two.handle, event.handle)?;
    let gate = fixture.gate(one.handle)?;
    fixture.event_record(event.handle, one.handle)?;
    fixture.eventually("a stream whose wait came before the record", || fixture.stream_query(two.handle))?;
    equal(fixture.event_query(event.handle)?, false, "the event, whose record is blocked")?;
    gate.open();
    fixture.stream_synchronize(one.handle)?;
    Ok(())
}

fn a_wait_keeps_its_record_when_the_event_is_recorded_again(fixture: &Fixture) -> CaseResult {
    fixture.require_progress()?;
    let (blocked, waiting, other) = (fixture.stream()?, fixture.stream()?, fixture.stream()?);
    let event = fixture.event()?;
    let buffer = fixture.iota(4, 0)?;
    let gate = fixture.gate(blocked.handle)?;
    fixture.add(&blocked, &buffer, 10)?;
    fixture.event_record(event.handle, blocked.handle)?;
    fixture.stream_wait_event(waiting.handle, event.handle)?;
    fixture.add(&waiting, &buffer, 1)?;
    // The second record is on an idle stream and completes immediately; the wait refers to the first.
    fixture.event_record(event.handle, other.handle)?;
    fixture.event_synchronize(event.handle)?;
    equal(fixture.stream_query(waiting.handle)?, false, "the stream that waits for the first record")?;
    gate.open();
    fixture.stream_synchronize(waiting.handle)?;
    equal(buffer.words()?, (11..15).collect(), "work before the first record and after the wait")
}

fn a_query_sees_the_latest_record(fixture: &Fixture) -> CaseResult {
    let (one, two, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
    fixture.event_record(event.handle, one.handle)?;
    fixture.event_synchronize(event.handle)?;
    let gate = fixture.gate(two.handle)?;
    fixture.event_record(event.handle, two.handle)?;
    equal(fixture.event_query(event.handle)?, false, "an event that was complete and is recorded again")?;
    gate.open();
    fixture.event_synchronize(event.handle)?;
    equal(fixture.event_query(event.handle)?, true, "the event after synchronising")
}

fn a_wait_outlives_its_event(fixture: &Fixture) -> CaseResult {
    let (one, two, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
    let buffer = fixture.iota(4, 0)?;
    let gate = fixture.gate(one.handle)?;
    fixture.add(&one, &buffer, 100)?;
    fixture.event_record(event.handle, one.handle)?;
    fixture.stream_wait_event(two.handle, event.handle)?;
    drop(event);
    equal(fixture.stream_query(two.handle)?, false, "a stream that waits for an event that was given up")?;
    gate.open();
    let seen = fixture.words_on(two.handle, buffer.pointer, 4)?;
    equal(seen, (100..104).collect(), "what the waiting stream sees")
}

fn waits_chain_through_streams(fixture: &Fixture) -> CaseResult {
    let streams: Vec<_> = (0..6).map(|_| fixture.stream()).collect::<Result<_, _>>()?;
    let events: Vec<_> = (0..6).map(|_| fixture.event()).collect::<Result<_, _>>()?;
    let buffer = fixture.iota(16, 0)?;
    for (i, stream) in streams.iter().enumerate() {
        if i > 0 {
            fixture.stream_wait_event(stream.handle, events[i - 1].handle)?;
        }
        let slow = KernelArguments::new(buffer.pointer, 16, 1).with_delay_us(100);
        fixture.launch(stream, Kernel::Add, slow)?;
        fixture.event_record(events[i].handle, stream.handle)?;
    }
    fixture.event_synchronize(events[5].handle)?;
    equal(buffer.words()?, (6..22).collect(), "what six streams in a chain added")
}

fn one_stream_waits_for_many(fixture: &Fixture) -> CaseResult {
    let last = fixture.stream()?;
    let streams: Vec<_> = (0..8).map(|_| fixture.stream()).collect::<Result<_, _>>()?;
    let buffer = fixture.iota(8, 0)?;
    for (i, stream) in (0_u32..).zip(&streams) {
        let word = KernelArguments::new(buffer.pointer.offset(u64::from(i) * 4), 1, 50 + i)
            .with_delay_us(50 * (8 - i));
        fixture.launch(stream, Kernel::Constant, word)?;
        let event = fixture.event()?;
        fixture.event_record(event.handle, stream.handle)?;
        fixture.stream_wait_event(last.handle, event.handle)?;
    }
    let seen = fixture.words_on(last.handle, buffer.pointer, 8)?;
    equal(seen, (50..58).collect(), "what a stream sees that waits for eight others")
}

fn a_wait_on_its_own_stream_is_harmless(fixture: &Fixture) -> CaseResult {
    let (stream, event) = (fixture.stream()?, fixture.event()?);
    fixture.event_record(event.handle, stream.handle)?;
    fixture.stream_wait_event(stream.handle, event.handle)?;
    fixture.stream_synchronize(stream.handle)?;
    Ok(())
}

fn times_do_not_run_backwards(fixture: &Fixture) -> CaseResult {
    let (start, end, stream) = (fixture.event_with(TIMED)?, fixture.event_with(TIMED)?, fixture.stream()?);
    let buffer = fixture.buffer(4)?;
    fixture.event_record(start.handle, stream.handle)?;
    let slow = KernelArguments::new(buffer.pointer, 4, 1).with_delay_us(2000);
    fixture.launch(&stream, Kernel::Constant, slow)?;
    fixture.event_record(end.handle, stream.handle)?;
    fixture.stream_synchronize(stream.handle)?;
    let elapsed = fixture.event_elapsed_ms(start.handle, end.handle)?;
    holds(elapsed.is_finite() && elapsed >= 0.0, &format!("{elapsed} ms is a time"))?;
    let backwards = fixture.event_elapsed_ms(end.handle, start.handle)?;
    holds(backwards <= 0.0, &format!("{backwards} ms, from the later event to the earlier, is not positive"))
}

fn times_need_timing_and_records(fixture: &Fixture) -> CaseResult {
    let (plain, timed, fresh) = (fixture.event()?, fixture.event_with(TIMED)?, fixture.event_with(TIMED)?);
    let stream = fixture.stream()?;
    fixture.event_record(plain.handle, stream.handle)?;
    fixture.event_record(timed.handle, stream.handle)?;
    fixture.stream_synchronize(stream.handle)?;
    let no = &[Code::InvalidHandle];
    check_refused(
        fixture.event_elapsed_ms(plain.handle, timed.handle),
        no,
        "the time since an event without timing",
    )?;
    check_refused(
        fixture.event_elapsed_ms(timed.handle, plain.handle),
        no,
        "the time until an event without timing",
    )?;
    check_refused(
        fixture.event_elapsed_ms(fresh.handle, timed.handle),
        no,
        "the time since an event without a record",
    )?;
    check_refused(
        fixture.event_elapsed_ms(timed.handle, fresh.handle),
        no,
        "the time until an event without a record",
    )
}

fn times_need_complete_events(fixture: &Fixture) -> CaseResult {
    let (start, end, stream) = (fixture.event_with(TIMED)?, fixture.event_with(TIMED)?, fixture.stream()?);
    fixture.event_record(start.handle, stream.handle)?;
    let gate = fixture.gate(stream.handle)?;
    fixture.event_record(end.handle, stream.handle)?;
    let early = fixture.event_elapsed_ms(start.handle, end.handle);
    check_refused(early, &[Code::NotReady], "the time until an event that is not complete")?;
    gate.open();
    fixture.event_synchronize(end.handle)?;
    holds(fixture.event_elapsed_ms(start.handle, end.handle)? >= 0.0, "the time once both are complete")
}

fn blocking_events_work(fixture: &Fixture) -> CaseResult {
    let flags = EventFlags { timing: false, blocking_sync: true };
    let (event, stream, buffer) = (fixture.event_with(flags)?, fixture.stream()?, fixture.buffer(4)?);
    let slow = KernelArguments::new(buffer.pointer, 4, 3).with_delay_us(3000);
    fixture.launch(&stream, Kernel::Constant, slow)?;
    fixture.event_record(event.handle, stream.handle)?;
    fixture.event_synchronize(event.handle)?;
    equal(buffer.words()?, vec![3; 4], "work before an event that sleeps in its synchronisation")
}
