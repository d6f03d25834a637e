//! Threads of the standard library under the race checker: the order between them, as far as it is visible, and the reports of other
//! races.

use std::sync::{Arc, mpsc};
use std::thread;

use thalweg_driver::FillPattern;
use thalweg_runtime::sim::{Check, Failure, Gpu, Problem};
use thalweg_runtime::{Buffer, Label, Result, Stream};
use thalweg_sanitizer::{Finding, FindingKind};

const BYTES: u64 = 1024;

fn fill(stream: &Stream, buffer: &Buffer) -> Result<()> {
    stream.fill(buffer.pointer(), FillPattern::U8(7), BYTES, Label::here("fill"))
}

fn finding(failure: &Failure) -> &Finding {
    match failure.problem() {
        Problem::Finding(finding) => finding,
        other => panic!("{other}"),
    }
}

/// Submits work on one thread that another thread relies on. It was seen complete on a stream that the second thread's stream does
/// not wait for.
fn produce(side: &Stream, buffer: &Buffer) -> Result<()> {
    fill(side, buffer)?;
    side.synchronize()
}

fn consume(gpu: &Gpu, buffer: &Buffer) -> Result<()> {
    fill(&gpu.device().current_stream(), buffer)?;
    gpu.device().synchronize()
}

/// Launches a host function in the order of a stream.
fn call(stream: &Stream, function: impl Fn() + Send + Sync + 'static) -> Result<()> {
    let driver = stream.device().driver().clone();
    Ok(driver.host_function_async(stream.handle(), Arc::new(function), Label::here("call"))?)
}

fn made(gpu: &Gpu) -> Result<(Stream, Buffer)> {
    let side = Stream::new(gpu.device())?;
    let buffer = Buffer::new(&gpu.device().current_stream(), BYTES)?;
    gpu.device().synchronize()?;
    Ok((side, buffer))
}

/// Runs two unordered threads on one buffer.
fn two_writers(gpu: &Gpu) -> Result<()> {
    let buffer = Buffer::new(&gpu.device().current_stream(), BYTES)?;
    gpu.device().synchronize()?;
    let write = || -> Result<()> {
        let stream = Stream::new(gpu.device())?;
        produce(&stream, &buffer)
    };
    thread::scope(|scope| {
        let both = [scope.spawn(write), scope.spawn(write)];
        both.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

#[test]
fn two_threads_that_race_are_found() {
    let failure = Check::new().without_shrinking().find(two_writers).unwrap_err();
    assert_eq!(finding(&failure).kind, FindingKind::Race, "{failure}");
}

/// If one thread makes its first call after the other has finished, it may have seen all that the other did, so the race is not
/// reported. That must be rare. (The race is also missed if the schedule lets the younger thread end first, because the older may
/// have joined it.)
#[test]
fn threads_that_race_are_found_under_most_seeds() {
    let check = |seed: u64| Check::new().seeds(seed..seed + 1).without_shrinking().deny_possible_races();
    let found = (0..40).filter(|&seed| check(seed).find(two_writers).is_err()).count();
    assert!(found > 8, "{found} of 40");
}

#[test]
fn a_value_may_come_from_a_thread_that_the_machine_has_not_seen() {
    let program = |gpu: &Gpu| -> Result<()> {
        let (sender, receiver) = gpu.channel();
        let (go, wait) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let _ = wait.recv_timeout(std::time::Duration::from_millis(100));
            sender.send(7).unwrap();
        });
        let received = receiver.receive();
        drop(go);
        thread.join().unwrap();
        assert_eq!(received?, Some(7));
        Ok(())
    };
    Check::new().seeds(0..3).run(program);
}

#[test]
fn who_joins_a_thread_knows_what_it_knew() {
    let by_handle = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        thread::scope(|scope| scope.spawn(|| produce(&side, &buffer)).join().unwrap())?;
        consume(gpu, &buffer)
    };
    let by_scope = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        thread::scope(|scope| {
            scope.spawn(|| produce(&side, &buffer).unwrap());
        });
        consume(gpu, &buffer)
    };
    // The thread in between has not called the driver when its child does.
    let by_another = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        thread::scope(|outer| {
            let parent = outer.spawn(|| -> Result<()> {
                thread::scope(|inner| {
                    let child = inner.spawn(|| produce(&side, &buffer));
                    gpu.device().current_stream().synchronize()?;
                    child.join().unwrap()
                })?;
                consume(gpu, &buffer)
            });
            parent.join().unwrap()
        })
    };
    let check = || Check::new().seeds(0..50);
    check().find(by_handle).unwrap_or_else(|failure| panic!("{failure}"));
    check().find(by_scope).unwrap_or_else(|failure| panic!("{failure}"));
    check().find(by_another).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn what_the_instrument_is_told_orders_threads() {
    let by_mutex = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        let is_done = gpu.mutex(false);
        thread::scope(|scope| {
            let producer = scope.spawn(|| -> Result<()> {
                produce(&side, &buffer)?;
                *is_done.lock()? = true;
                Ok(())
            });
            while !*is_done.lock()? {}
            consume(gpu, &buffer)?;
            producer.join().unwrap()
        })
    };
    let by_flag = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        let flag = gpu.flag();
        thread::scope(|scope| {
            let producer = scope.spawn(|| produce(&side, &buffer).map(|()| flag.set()));
            flag.wait()?;
            consume(gpu, &buffer)?;
            producer.join().unwrap()
        })
    };
    let by_host_function = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        let flag = gpu.flag();
        fill(&side, &buffer)?;
        let own = flag.clone();
        call(&side, move || own.set())?;
        while !flag.is_set() {}
        consume(gpu, &buffer)
    };
    let check = || Check::new().seeds(0..30);
    check().find(by_mutex).unwrap_or_else(|failure| panic!("{failure}"));
    check().find(by_flag).unwrap_or_else(|failure| panic!("{failure}"));
    check().find(by_host_function).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_flag_that_is_set_too_early_orders_nothing() {
    let program = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        let flag = gpu.flag();
        let own = flag.clone();
        call(&side, move || own.set())?;
        fill(&side, &buffer)?;
        flag.wait()?;
        consume(gpu, &buffer)
    };
    let failure = Check::new().seeds(0..1).without_shrinking().find(program).unwrap_err();
    assert_eq!(finding(&failure).kind, FindingKind::Race, "{failure}");
    assert!(finding(&failure).is_certain, "no thread has seen it complete: {failure}");
}

#[test]
fn what_orders_threads_unseen_may_be_a_race() {
    let program = |gpu: &Gpu| -> Result<()> {
        let (side, buffer) = made(gpu)?;
        let (sender, receiver) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        thread::scope(|scope| {
            let (side, buffer) = (&side, &buffer);
            let producer = scope.spawn(move || -> Result<()> {
                produce(side, buffer)?;
                sender.send(()).unwrap();
                // A thread that is over may have been joined.
                is_done.recv().unwrap();
                Ok(())
            });
            receiver.recv().unwrap();
            consume(gpu, buffer)?;
            done.send(()).unwrap();
            producer.join().unwrap()
        })
    };
    let check = || Check::new().seeds(0..10).without_shrinking();
    let summary = check().find(program).unwrap_or_else(|failure| panic!("a right program: {failure}"));
    assert_eq!(summary.possible_races, 1, "nothing was told, and that is said");
    let failure = check().deny_possible_races().find(program).unwrap_err();
    let found = finding(&failure);
    assert!(found.is_between_threads && !found.is_certain, "{failure}");
    let text = failure.to_string();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["may race", "not told of any synchronisation between these two threads", "`gpu.mutex`"] {
        assert!(text.contains(part), "{part}: {failure}");
    }
}

#[test]
fn a_host_function_that_calls_the_driver_is_reported() {
    let program = |gpu: &Gpu| -> Result<()> {
        let device = gpu.device().clone();
        // The program ignores the result of the call.
        call(&gpu.device().current_stream(), move || drop(device.synchronize()))?;
        gpu.device().synchronize()
    };
    let failure = Check::new().seeds(0..2).find(program).unwrap_err();
    let Problem::HostFunction(text) = failure.problem() else { panic!("{failure}") };
    assert!(text.contains("`call at ") && text.contains("cuCtxSynchronize"), "{text}");
}
