//! Several host threads at the same time: the trait guarantees that every method may be called from each of them.

use thalweg_driver::CaptureMode;

use super::fixture::{Fixture, equal};
use super::{CaseResult, Kernel, KernelArguments, Stop, group};

group! {
    "threads":
    threads_work_on_their_own_streams,
    threads_share_a_stream,
    threads_hand_work_over_by_events,
    threads_make_and_give_up_objects,
    threads_capture_at_once,
}

const THREADS: u32 = 4;

/// Runs the function on several threads and returns the first failure.
fn together(run: impl Fn(u32) -> CaseResult + Sync) -> CaseResult {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let run = &run;
                scope.spawn(move || run(number))
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        outcomes.into_iter().try_for_each(|outcome| {
            outcome.unwrap_or_else(|_| Err(Stop::Failed("a call panicked on its thread".into())))
        })
    })
}

fn threads_work_on_their_own_streams(fixture: &Fixture) -> CaseResult {
    together(|number| {
        let stream = fixture.stream()?;
        let (buffer, copy) = (fixture.iota(256, number)?, fixture.buffer(256)?);
        for round in 1..=50 {
            fixture.add(&stream, &buffer, 1)?;
            fixture.copy(&stream, copy.end(), buffer.end(), 1024)?;
            let seen = fixture.words_on(stream.handle, copy.pointer, 256)?;
            let start = number + round;
            equal(seen, (start..start + 256).collect(), "a thread's own buffer")?;
        }
        Ok(())
    })
}

fn threads_share_a_stream(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(64, 0)?;
    together(|_| (0..100).try_for_each(|_| Ok(fixture.add(&stream, &buffer, 1)?)))?;
    let seen = fixture.words_on(stream.handle, buffer.pointer, 64)?;
    equal(seen, (400..464).collect(), "additions of four threads on one stream")
}

fn threads_hand_work_over_by_events(fixture: &Fixture) -> CaseResult {
    let (producer, consumer) = (fixture.stream()?, fixture.stream()?);
    let (buffer, copy) = (fixture.iota(16, 0)?, fixture.buffer(16)?);
    let (ready, taken) = (fixture.event()?, fixture.event()?);
    std::thread::scope(|scope| {
        // The channels order the calls on the host; the events order the work on the device.
        let (to_consumer, from_producer) = std::sync::mpsc::sync_channel::<u32>(0);
        let (to_producer, from_consumer) = std::sync::mpsc::sync_channel::<()>(0);
        let (ready, taken, buffer, copy) = (&ready, &taken, &buffer, &copy);
        let (producer, consumer) = (&producer, &consumer);
        let consuming = scope.spawn(move || -> CaseResult {
            while let Ok(round) = from_producer.recv() {
                fixture.stream_wait_event(consumer.handle, ready.handle)?;
                fixture.copy(consumer, copy.end(), buffer.end(), 64)?;
                fixture.event_record(taken.handle, consumer.handle)?;
                let _ = to_producer.send(());
                let seen = fixture.words_on(consumer.handle, copy.pointer, 16)?;
                equal(seen, (round..round + 16).collect(), "what one thread hands to another")?;
            }
            Ok(())
        });
        for round in 1..=30 {
            fixture.stream_wait_event(producer.handle, taken.handle)?;
            let slow = KernelArguments::new(buffer.pointer, 16, round).with_delay_us(100);
            fixture.launch(producer, Kernel::Iota, slow)?;
            fixture.event_record(ready.handle, producer.handle)?;
            if to_consumer.send(round).is_err() || from_consumer.recv().is_err() {
                break;
            }
        }
        drop(to_consumer);
        consuming.join().unwrap_or_else(|_| Err(Stop::Failed("a call panicked on its thread".into())))
    })
}

fn threads_make_and_give_up_objects(fixture: &Fixture) -> CaseResult {
    together(|number| {
        for round in 0..40 {
            let (one, two, event) = (fixture.stream()?, fixture.stream()?, fixture.event()?);
            let buffer = fixture.buffer(32 + u64::from(round))?;
            fixture.set(&one, &buffer, number)?;
            fixture.driver.event_record(event.handle, one.handle)?;
            fixture.driver.stream_wait_event(two.handle, event.handle)?;
            drop((one, event));
            fixture.add(&two, &buffer, round)?;
            let seen = fixture.words_on(two.handle, buffer.pointer, buffer.words)?;
            equal(seen, vec![number + round; buffer.words as usize], "a short-lived buffer")?;
        }
        Ok(())
    })
}

fn threads_capture_at_once(fixture: &Fixture) -> CaseResult {
    together(|number| {
        for _ in 0..10 {
            let buffer = fixture.iota(16, number)?;
            let stream = fixture.stream()?;
            let graph = fixture.capture(&stream, CaptureMode::ThreadLocal, || {
                (0..3).try_for_each(|_| Ok(fixture.add(&stream, &buffer, 1)?))
            })?;
            graph.replay(&stream, 2)?;
            equal(buffer.words()?, (number + 6..number + 22).collect(), "a buffer of a thread's own graph")?;
        }
        Ok(())
    })
}
