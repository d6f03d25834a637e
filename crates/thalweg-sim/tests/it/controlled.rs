//! The controlled simulator: choices, traces, host threads, deadlocks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use thalweg_driver::{Access, Code, Driver, EventFlags, Label, StreamHandle};
use thalweg_lock::Mutex;
use thalweg_sim::schedules::{Eager, Exhaustive, Late, PriorityChange, Random, Replay, RoundRobin};
use thalweg_sim::{Schedule, SimConfig, SimDriver, Trace};

use super::sim_support::{append, code, launch, number, read};

fn controlled(schedule: impl Schedule + 'static) -> Arc<SimDriver> {
    let config = SimConfig { memory_bytes: 16 << 20, ..SimConfig::default() };
    SimDriver::controlled(config, Box::new(schedule)).unwrap()
}

/// Returns every schedule that takes a seed.
fn schedules(seed: u64) -> Vec<Box<dyn Schedule>> {
    vec![
        Box::new(Eager::new(seed)),
        Box::new(Late::new(seed)),
        Box::new(RoundRobin::new(seed)),
        Box::new(Random::new(seed)),
        Box::new(PriorityChange::new(seed, 3, 60)),
    ]
}

#[test]
fn every_schedule_keeps_the_order_that_was_asked_for() {
    for schedule in (0..20).flat_map(schedules) {
        let driver = controlled(schedule);
        let [first, second] = [0, -3].map(|priority| driver.stream_create(0, priority).unwrap());
        let event = driver.event_create(0, EventFlags::default()).unwrap();
        let value = number(&driver, 0);
        for digit in 1..=3 {
            append(&driver, first, value, 2 * digit - 1);
            driver.event_record(event, first).unwrap();
            driver.stream_wait_event(second, event).unwrap();
            append(&driver, second, value, 2 * digit);
            driver.event_record(event, second).unwrap();
            driver.stream_wait_event(first, event).unwrap();
        }
        assert_eq!(read(&driver, first, value), 123_456);
    }
}

#[test]
fn late_and_eager_are_the_two_ends() {
    let probe = |driver: &SimDriver| {
        let stream = driver.stream_create(0, 0).unwrap();
        let event = driver.event_create(0, EventFlags::default()).unwrap();
        let value = number(driver, 0);
        append(driver, stream, value, 1);
        driver.event_record(event, stream).unwrap();
        driver.event_query(event).unwrap()
    };
    assert!(probe(&controlled(Eager::new(0))), "the kernel has run before the query");
    assert!(!probe(&controlled(Late::new(0))), "nothing needs the kernel");
}

#[test]
fn who_polls_gets_ahead() {
    for schedule in (0..5).flat_map(schedules) {
        let driver = controlled(schedule);
        let [stream, side] = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
        let event = driver.event_create(0, EventFlags::default()).unwrap();
        let value = number(&driver, 0);
        (0..5).for_each(|_| append(&driver, side, value, 0));
        append(&driver, stream, value, 1);
        driver.event_record(event, stream).unwrap();
        while !driver.event_query(event).unwrap() {}
        while !driver.stream_query(side).unwrap() {}
    }
}

/// Runs a program of two host threads and the main one, with events, queries and host functions. Returns the values that it
/// saw.
fn threads(driver: &Arc<SimDriver>) -> Vec<u64> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let value = number(driver, 0);
    let workers: Vec<_> = (1..=2_u64)
        .map(|worker| {
            let (own, seen) = (Arc::clone(driver), Arc::clone(&seen));
            driver
                .spawn(&format!("worker {worker}"), move || {
                    let stream = own.stream_create(0, 0).unwrap();
                    let event = own.event_create(0, EventFlags::default()).unwrap();
                    for step in 0..3 {
                        append(&own, stream, value, worker);
                        own.event_record(event, stream).unwrap();
                        let is_done = own.event_query(event).unwrap();
                        seen.lock().push(worker * 100 + step * 10 + u64::from(is_done));
                    }
                    let reported = Arc::clone(&seen);
                    let tell = move || reported.lock().push(worker);
                    own.host_function_async(stream, Arc::new(tell), Label::here("tell")).unwrap();
                    own.stream_synchronize(stream).unwrap();
                })
                .unwrap()
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let stream = driver.stream_create(0, 0).unwrap();
    let last = read(driver, stream, value);
    let mut seen = seen.lock().clone();
    seen.push(last);
    seen
}

#[test]
fn one_seed_is_one_run() {
    let mut hashes = BTreeSet::new();
    for seed in 0..40 {
        for kind in 0..schedules(0).len() {
            let run = || {
                let driver = controlled(schedules(seed).swap_remove(kind));
                let seen = threads(&driver);
                (seen, driver.trace().unwrap())
            };
            let (first, again) = (run(), run());
            assert_eq!(first, again, "seed {seed}, schedule {kind}");
            assert!(first.1.is_controlled);
            hashes.insert(first.1.hash);

            // The deviations suffice for a replay.
            let replayed = controlled(Replay::new(&first.1.deviations, seed));
            assert_eq!(threads(&replayed), first.0, "seed {seed}, schedule {kind}");
            assert_eq!(replayed.trace().unwrap(), first.1);
        }
    }
    assert!(hashes.len() > 60, "{} different runs: the seed has no effect", hashes.len());
}

#[test]
fn a_thread_that_blocks_outside_of_the_driver_hangs_nothing() {
    let traces: Vec<Trace> = (0..2)
        .map(|_| {
            let driver = controlled(RoundRobin::new(0));
            let lock = Arc::new(Mutex::new(0));
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let (own, lock) = (Arc::clone(&driver), Arc::clone(&lock));
                    let body = move || {
                        let mut count = lock.lock();
                        // Parked while it holds the lock: the others block on it.
                        own.pass().unwrap();
                        own.pass().unwrap();
                        *count += 1;
                    };
                    driver.spawn("worker", body).unwrap()
                })
                .collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert_eq!(*lock.lock(), 3);
            driver.trace().unwrap()
        })
        .collect();
    assert_eq!(traces[0], traces[1]);
}

#[test]
fn a_deadlock_is_answered_with_who_waits_for_what() {
    let driver = controlled(Late::new(0));
    let own = Arc::clone(&driver);
    let stuck = driver.spawn("loader", move || own.wait_until("the second batch", || false)).unwrap();
    let waited = stuck.join();
    let text = waited.unwrap_err().to_string();
    assert!(text.contains("deadlock") && text.contains("the end of host thread 1 `loader`"), "{text}");
    assert!(text.contains("waits in SimDriver::wait_until for the second batch"), "{text}");
}

#[test]
fn a_panic_comes_out_of_join() {
    let driver = controlled(Late::new(0));
    let thread = driver.spawn("careless", || -> u32 { std::panic::panic_any(7_u32) }).unwrap();
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| thread.join())).unwrap_err();
    assert_eq!(payload.downcast_ref::<u32>(), Some(&7));
    driver.device_synchronize(0).unwrap();
}

#[test]
fn parked_threads_do_not_hold_the_end_up() {
    let driver = controlled(Late::new(0));
    let begun = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&begun);
    let never = driver.spawn("never begun", move || own.store(1, Ordering::SeqCst)).unwrap();
    let (inner, own) = (Arc::clone(&driver), Arc::clone(&begun));
    let parked = driver
        .spawn("parked", move || {
            let answer = inner.wait_until("what never comes", || false);
            own.fetch_add(10, Ordering::SeqCst);
            code(answer)
        })
        .unwrap();
    driver.end_run();
    assert_eq!(code(driver.device_synchronize(0)), Code::Deinitialized);
    drop(driver);
    assert_eq!(code(never.join()), Code::Deinitialized);
    drop(parked);
    assert_eq!(begun.load(Ordering::SeqCst) % 10, 0);
}

#[test]
fn a_command_may_not_call_the_driver() {
    let driver = controlled(Eager::new(0));
    let stream = driver.stream_create(0, 0).unwrap();
    let (own, answer) = (Arc::clone(&driver), Arc::new(Mutex::new(None)));
    let slot = Arc::clone(&answer);
    let call = move || *slot.lock() = Some(own.stream_query(stream));
    driver.host_function_async(stream, Arc::new(call), Label::here("call")).unwrap();
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(code(answer.lock().take().unwrap()), Code::NotPermitted);
}

#[test]
fn unknown_threads_are_served_and_the_trace_says_so() {
    let driver = controlled(Late::new(0));
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    append(&driver, stream, value, 4);
    let own = Arc::clone(&driver);
    let seen = std::thread::spawn(move || read(&own, stream, value)).join().unwrap();
    assert_eq!(seen, 4);
    assert!(!driver.trace().unwrap().is_controlled);
}

/// Checks that a thread which has not called yet does not count as a deadlock if the other threads end while the simulator reads the system's list of threads.
#[test]
fn a_thread_that_has_not_called_yet_is_no_deadlock_while_others_end() {
    for round in 0..20 {
        let (stop, stopped): (Vec<_>, Vec<_>) = (0..200)
            .map(|_| {
                let (stop, wait) = std::sync::mpsc::channel::<()>();
                (stop, std::thread::spawn(move || wait.recv().is_err()))
            })
            .unzip();
        let driver = controlled(Late::new(round));
        let (own, has_called) = (Arc::clone(&driver), Arc::new(AtomicBool::new(false)));
        let flag = Arc::clone(&has_called);
        // This thread sleeps outside of the driver, and makes its first call when all the others are gone.
        let newcomer = std::thread::spawn(move || {
            drop(stop);
            stopped.into_iter().for_each(|thread| assert!(thread.join().unwrap()));
            own.pass().unwrap();
            flag.store(true, Ordering::SeqCst);
        });
        driver.wait_until("the call", move || has_called.load(Ordering::SeqCst)).unwrap();
        newcomer.join().unwrap();
        assert_eq!(driver.stuck(), None, "round {round}");
    }
}

#[test]
fn exhaustive_finds_all_orders_and_ends() {
    let mut search = Exhaustive::new();
    let mut seen = BTreeSet::new();
    let driver = controlled(Late::new(0));
    let streams = [0; 3].map(|_| driver.stream_create(0, 0).unwrap());
    let value = number(&driver, 0);
    while let Some(schedule) = search.next_run() {
        driver.copy_from_host(streams[0], value, &[0; 8], Label::here("zero")).unwrap();
        driver.device_synchronize(0).unwrap();
        driver.begin_run(Box::new(schedule)).unwrap();
        streams.iter().zip(1..).for_each(|(&stream, digit)| append(&driver, stream, value, digit));
        driver.device_synchronize(0).unwrap();
        seen.insert(read(&driver, streams[0], value));
        driver.begin_run(Box::new(Late::new(0))).unwrap();
    }
    // The kernels are unordered updates: they may run in any order, and each update may be lost to another.
    let all = [1, 2, 3, 12, 13, 21, 23, 31, 32, 123, 132, 213, 231, 312, 321];
    assert_eq!(seen, BTreeSet::from(all));
    assert!(search.runs() < 10_000, "{} runs", search.runs());
}

#[test]
fn memory_reads_as_fresh_in_every_driver() {
    for round in 0..3 {
        let driver = controlled(Late::new(0));
        let stream = driver.stream_create(0, 0).unwrap();
        let pointer = driver.memory_allocate(0, 1 << 20).unwrap();
        let mut bytes = vec![1; 1 << 20];
        driver.copy_to_host(stream, &mut bytes, pointer, Label::here("read")).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "round {round}");
        let accesses = [Access::write(pointer.offset(4096), 64 << 10)];
        launch(&driver, stream, &accesses, move |launch| {
            launch.write::<u8>(pointer.offset(4096), 64 << 10)?.fill(7);
            Ok(())
        })
        .unwrap();
        driver.stream_synchronize(stream).unwrap();
    }
}

#[test]
fn a_freed_address_does_not_come_back_at_once() {
    let driver = controlled(Late::new(0));
    let first = driver.memory_allocate(0, 1 << 20).unwrap();
    driver.memory_free(first).unwrap();
    let second = driver.memory_allocate(0, 1 << 20).unwrap();
    assert_ne!(first, second);
    driver.memory_free(second).unwrap();
    // All memory is still there.
    let all = driver.memory_allocate(0, 16 << 20).unwrap();
    driver.memory_free(all).unwrap();
}

/// A type with a greater alignment than any number.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

// SAFETY: a line of zeros is eight numbers.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: it is eight numbers without padding.
unsafe impl bytemuck::Pod for Line {}

#[test]
fn elements_that_are_rounder_than_memory_are_refused_under_every_schedule() {
    for schedule in (0..10).flat_map(schedules) {
        let driver = controlled(schedule);
        let stream = driver.stream_create(0, 0).unwrap();
        let line = driver.memory_allocate(0, 64).unwrap();
        launch(&driver, stream, &[Access::read_write(line, 64)], move |launch| {
            launch.write::<Line>(line, 1)?[0].0[0] += 1;
            Ok(())
        })
        .unwrap();
        let error = driver.stream_synchronize(stream).expect_err("the kernel failed");
        assert_eq!(error.code(), Code::LaunchFailed);
        assert!(error.detail().contains("aligned to 64 bytes"), "{error}");
    }
}

/// Returns a flag that a host function after some work sets.
fn flag_behind_work(driver: &Arc<SimDriver>) -> (StreamHandle, Arc<AtomicBool>) {
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(driver, 0);
    append(driver, stream, value, 1);
    let flag = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&flag);
    let set = move || own.store(true, Ordering::SeqCst);
    driver.host_function_async(stream, Arc::new(set), Label::here("set")).unwrap();
    (stream, flag)
}

#[test]
fn the_device_goes_on_while_a_program_polls() {
    type Poll = fn(&SimDriver, StreamHandle);
    let polls: [Poll; 4] = [
        |driver, _| driver.pass().unwrap(),
        |driver, idle| assert!(driver.stream_query(idle).unwrap(), "it has no work"),
        |_, _| std::thread::yield_now(),
        |_, _| std::thread::sleep(Duration::from_millis(1)),
    ];
    // The machine sees polls without a call of the driver only after a while.
    for (poll, count) in polls.into_iter().zip([5, 5, 2, 2]) {
        for schedule in schedules(3).into_iter().take(count) {
            let driver = controlled(schedule);
            let idle = driver.stream_create(0, 0).unwrap();
            let (_, flag) = flag_behind_work(&driver);
            while !flag.load(Ordering::SeqCst) {
                poll(&driver, idle);
            }
            assert!(driver.stuck().is_none());
        }
    }
}

#[test]
fn threads_that_poll_for_one_another_get_ahead() {
    for schedule in (0..4).flat_map(schedules) {
        let driver = controlled(schedule);
        let turn = Arc::new(AtomicU32::new(0));
        let players: Vec<_> = (0..3)
            .map(|player| {
                let (own, turn) = (Arc::clone(&driver), Arc::clone(&turn));
                let body = move || {
                    for round in 0..3 {
                        while turn.load(Ordering::SeqCst) != round * 3 + player {
                            own.pass().unwrap();
                        }
                        turn.fetch_add(1, Ordering::SeqCst);
                    }
                };
                driver.spawn("player", body).unwrap()
            })
            .collect();
        players.into_iter().for_each(|player| player.join().unwrap());
    }
}

#[test]
fn polling_for_what_never_comes_is_a_livelock() {
    let driver = controlled(Late::new(0));
    let refused = loop {
        if let Err(error) = driver.pass() {
            break error;
        }
    };
    assert_eq!(refused.code(), Code::Timeout);
    let text = refused.to_string();
    assert!(text.contains("livelock") && text.contains("waits in SimDriver::pass"), "{text}");
    assert!(driver.stuck().is_some_and(|stuck| text.contains(&stuck)));
}

#[test]
fn a_host_function_may_wait_for_its_submitter() {
    // Finding a deadlock takes seconds.
    let with = |unlocks, count| schedules(1).into_iter().take(count).map(move |schedule| (unlocks, schedule));
    for (unlocks, schedule) in with(true, 5).chain(with(false, 2)) {
        let driver = controlled(schedule);
        let stream = driver.stream_create(0, 0).unwrap();
        let lock = Arc::new(Mutex::new(0));
        let guard = lock.lock();
        let own = Arc::clone(&lock);
        let count = move || *own.lock() += 1;
        driver.host_function_async(stream, Arc::new(count), Label::here("count")).unwrap();
        for _ in 0..3 {
            driver.pass().unwrap();
        }
        let kept = if unlocks {
            drop(guard);
            None
        } else {
            Some(guard)
        };
        let waited = driver.stream_synchronize(stream);
        match kept {
            None => {
                waited.unwrap();
                assert_eq!(*lock.lock(), 1);
            }
            Some(_) => {
                let text = waited.unwrap_err().to_string();
                assert!(text.contains("deadlock") && text.contains("The host function `count at"), "{text}");
            }
        }
    }
}

#[test]
fn a_run_that_takes_too_long_is_ended_and_says_what_it_was_doing() {
    let driver = controlled(Late::new(0));
    driver.set_time_limit(Duration::from_millis(50), |_| panic!("the run is over in time")).unwrap();
    let refused = loop {
        if let Err(error) = driver.memory_info(0) {
            break error;
        }
    };
    assert_eq!(refused.code(), Code::Timeout);
    assert!(driver.stuck().unwrap().contains("time limit: the run is not over after 0.05 s"), "{refused}");
}

#[test]
fn unknown_threads_take_turns_like_others() {
    for schedule in (0..4).flat_map(schedules) {
        let driver = controlled(schedule);
        let stream = driver.stream_create(0, 0).unwrap();
        let value = number(&driver, 0);
        let lock = Arc::new(Mutex::new(()));
        let threads: Vec<_> = (1..=3)
            .map(|digit| {
                let (own, lock) = (Arc::clone(&driver), Arc::clone(&lock));
                std::thread::spawn(move || {
                    for _ in 0..4 {
                        let _guard = lock.lock();
                        append(&own, stream, value, digit);
                        own.pass().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let digits = format!("{}", read(&driver, stream, value));
        assert_eq!(digits.len(), 12, "{digits}");
    }
}

#[test]
fn leaving_a_deviation_out_leaves_the_others_what_they_were() {
    // Much happens earlier than necessary, and only one thing matters: the read precedes the write of another stream.
    let program = |driver: &Arc<SimDriver>| {
        let streams = [0; 3].map(|_| driver.stream_create(0, 0).unwrap());
        let [noise, value] = [0; 2].map(|_| number(driver, 0));
        for round in 0..40 {
            append(driver, streams[0], noise, 0);
            if round == 20 {
                append(driver, streams[1], value, 7);
            }
        }
        let seen = read(driver, streams[2], value);
        driver.device_synchronize(0).unwrap();
        seen
    };
    let seed = (0..).find(|&seed| program(&controlled(Random::new(seed))) == 7).unwrap();
    let driver = controlled(Random::new(seed));
    program(&driver);
    let all = driver.trace().unwrap().deviations;
    assert!(all.len() > 20, "{}", all.len());
    let needed: Vec<_> = (0..all.len())
        .filter(|&left_out| {
            let mut rest = all.clone();
            rest.remove(left_out);
            program(&controlled(Replay::new(&rest, seed))) != 7
        })
        .collect();
    assert_eq!(needed.len(), 1, "{needed:?}");
    assert_eq!(program(&controlled(Replay::new(&[all[needed[0]]], seed))), 7, "it is all that it takes");
}
