//! The order of commands: streams, events, the legacy default stream, and unordered commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use thalweg_driver::{Access, Code, Driver, EventFlags, HostFlags, Label};
use thalweg_sim::{SimConfig, SimDriver};

use super::sim_support::{Gate, Random, append, code, launch, number, read, sim};

#[test]
fn a_stream_keeps_its_order() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    for digit in 1..=9 {
        append(&driver, stream, value, digit);
    }
    assert_eq!(read(&driver, stream, value), 123_456_789);
}

#[test]
fn a_wait_means_the_record_before_it() {
    let driver = sim(1);
    let [first, second] = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
    let event = driver.event_create(0, EventFlags::default()).unwrap();
    let value = number(&driver, 0);
    driver.stream_wait_event(second, event).unwrap();
    let gate = Gate::close(&driver, first);
    append(&driver, first, value, 1);
    driver.event_record(event, first).unwrap();
    driver.stream_wait_event(second, event).unwrap();
    append(&driver, second, value, 2);
    assert!(!driver.event_query(event).unwrap());
    assert!(!driver.stream_query(second).unwrap());
    // A later record on a stream that is blocked forever must not affect the wait above.
    let third = driver.stream_create(0, 0).unwrap();
    let later = Gate::close(&driver, third);
    driver.event_record(event, third).unwrap();
    driver.event_destroy(event).unwrap();
    gate.open();
    assert_eq!(read(&driver, second, value), 12);
    later.open();
}

#[test]
fn an_event_holds_nothing_up_before_its_first_record() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let event = driver.event_create(0, EventFlags { timing: true, blocking_sync: true }).unwrap();
    assert!(driver.event_query(event).unwrap());
    driver.event_synchronize(event).unwrap();
    driver.stream_wait_event(stream, event).unwrap();
    assert!(driver.stream_query(stream).unwrap());
    assert_eq!(code(driver.event_elapsed_ms(event, event)), Code::InvalidHandle);
}

#[test]
fn elapsed_time_needs_timing_and_completion() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let timing = EventFlags { timing: true, blocking_sync: false };
    let [start, end] = [0; 2].map(|_| driver.event_create(0, timing).unwrap());
    let plain = driver.event_create(0, EventFlags::default()).unwrap();
    driver.event_record(start, stream).unwrap();
    driver.event_record(plain, stream).unwrap();
    let gate = Gate::close(&driver, stream);
    driver.event_record(end, stream).unwrap();
    assert_eq!(code(driver.event_elapsed_ms(start, end)), Code::NotReady);
    assert_eq!(code(driver.event_elapsed_ms(start, plain)), Code::InvalidHandle);
    gate.open();
    driver.event_synchronize(end).unwrap();
    assert!(driver.event_elapsed_ms(start, end).unwrap() > 0.0);
    assert!(driver.event_elapsed_ms(end, start).unwrap() < 0.0);
}

#[test]
fn the_default_stream_has_ties_with_blocking_streams_only() {
    let driver = sim(1);
    let legacy = driver.default_stream(0).unwrap();
    let external = driver.external_stream_create(0, 0, true).unwrap();
    let blocking = driver.stream_from_external(0, external).unwrap();
    let free = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);

    let gate = Gate::close(&driver, blocking);
    append(&driver, blocking, value, 1);
    append(&driver, legacy, value, 2);
    append(&driver, blocking, value, 3);
    assert!(driver.stream_query(free).unwrap(), "a non-blocking stream has no ties");
    assert!(!driver.stream_query(legacy).unwrap());
    gate.open();
    assert_eq!(read(&driver, blocking, value), 123);

    let gate = Gate::close(&driver, legacy);
    append(&driver, blocking, value, 4);
    assert!(!driver.stream_query(blocking).unwrap());
    append(&driver, free, value, 5);
    driver.stream_synchronize(free).unwrap();
    gate.open();
    assert_eq!(read(&driver, legacy, value), 12354);
}

#[test]
fn external_streams_are_forgotten_and_not_destroyed() {
    let driver = sim(2);
    let stream = driver.stream_create(0, -2).unwrap();
    let cuda_stream = driver.cuda_stream(stream).unwrap();
    // SAFETY: the number is a live stream of this driver.
    let external = unsafe { thalweg_driver::ExternalStream::new(cuda_stream) };
    let wrapped = driver.stream_from_external(0, external).unwrap();
    assert_eq!(driver.stream_priority(wrapped).unwrap(), -2);
    assert_eq!(driver.cuda_stream(wrapped).unwrap(), cuda_stream);
    driver.stream_destroy(wrapped).unwrap();
    assert_eq!(code(driver.stream_query(wrapped)), Code::InvalidHandle);
    assert!(driver.stream_query(stream).unwrap());
    assert_eq!(code(driver.stream_from_external(1, external)), Code::InvalidHandle);

    let made_elsewhere = driver.external_stream_create(1, 0, false).unwrap();
    let wrapped = driver.stream_from_external(1, made_elsewhere).unwrap();
    driver.external_stream_destroy(made_elsewhere).unwrap();
    assert_eq!(code(driver.stream_query(wrapped)), Code::InvalidHandle);
    // SAFETY: 0 is the legacy default stream of every device.
    let legacy = driver.stream_from_external(1, unsafe { thalweg_driver::ExternalStream::new(0) }).unwrap();
    assert_eq!(driver.cuda_stream(legacy), driver.cuda_stream(driver.default_stream(1).unwrap()));
}

#[test]
fn work_of_a_destroyed_stream_runs_on() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    let gate = Gate::close(&driver, stream);
    append(&driver, stream, value, 7);
    driver.stream_destroy(stream).unwrap();
    assert_eq!(code(driver.stream_query(stream)), Code::InvalidHandle);
    gate.open();
    driver.device_synchronize(0).unwrap();
    let other = driver.stream_create(0, 0).unwrap();
    assert_eq!(read(&driver, other, value), 7);
}

/// Two unordered kernels count up the same words in small steps and check each other's traces. If they ever ran at once,
/// one would see a value that it did not write, or an increment would be lost.
#[test]
fn racy_commands_exclude_each_other() {
    const WORDS: usize = 512;
    const LAUNCHES: u64 = 40;
    let driver = SimDriver::new(SimConfig { workers: 4, ..SimConfig::default() }).unwrap();
    let data = driver.memory_allocate(0, 8 * WORDS as u64).unwrap();
    let streams = [0; 4].map(|_| driver.stream_create(0, 0).unwrap());
    driver.copy_from_host(streams[0], data, &[0; 8 * WORDS], Label::here("zero")).unwrap();
    driver.stream_synchronize(streams[0]).unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    for number in 0..LAUNCHES {
        let inside = Arc::clone(&inside);
        // Overlapping windows: neighbours conflict although their ranges are not the same.
        let skip = 8 * (number % 3) * 64;
        let bytes = 8 * WORDS as u64 - 2 * 8 * 2 * 64;
        let start = data.offset(skip);
        let stream = streams[(number % 4) as usize];
        launch(&driver, stream, &[Access::read_write(start, bytes)], move |launch| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two conflicting commands run at once");
            for word in launch.write::<u64>(start, bytes as usize / 8)? {
                let before = *word;
                std::hint::black_box(&mut *word);
                std::thread::yield_now();
                *word = before + 1;
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
        .unwrap();
    }
    driver.device_synchronize(0).unwrap();
    assert_eq!(read(&driver, streams[0], data.offset(8 * 200)), LAUNCHES);
}

#[test]
fn readers_of_the_same_bytes_run_at_once() {
    let driver = sim(1);
    let data = number(&driver, 0);
    let streams = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
    let exchange = Arc::new(std::sync::Barrier::new(2));
    for stream in streams {
        let exchange = Arc::clone(&exchange);
        // Each waits for the other: if they excluded each other, this would hang.
        launch(&driver, stream, &[Access::read(data, 8)], move |launch| {
            launch.read::<u64>(data, 1)?;
            exchange.wait();
            Ok(())
        })
        .unwrap();
    }
    driver.device_synchronize(0).unwrap();
}

#[test]
fn the_host_waits_for_running_commands_and_not_for_queued_ones() {
    let driver = sim(1);
    let pinned = driver.host_allocate(1 << 20, HostFlags::default()).unwrap();
    let data = driver.memory_allocate(0, 1 << 20).unwrap();
    let stream = driver.stream_create(0, 0).unwrap();
    let gate = Gate::close(&driver, stream);
    let copy = thalweg_driver::Copy {
        target: thalweg_driver::Endpoint::Pinned(pinned),
        source: thalweg_driver::Endpoint::Device(data),
        bytes: 1 << 20,
        label: Label::here("copy"),
    };
    driver.copy_async(stream, &copy).unwrap();
    let mut bytes = [1; 64];
    driver.host_read(pinned, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64], "pinned memory begins as zeros, and the queued copy has not run");
    driver.host_write(pinned, &[9; 64]).unwrap();
    driver.host_read(pinned, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 64]);
    gate.open();
    driver.stream_synchronize(stream).unwrap();
}

/// Random programs over streams and events compared with a plain model: the program's own order, in which each command
/// comes after its stream's earlier work and its waits. Every word has one stream that writes it, and readers that are
/// ordered.
#[test]
fn random_programs_see_what_their_order_allows() {
    for seed in 0..40 {
        let driver = sim(1);
        let random = Random::new(seed);
        let streams = [0; 4].map(|_| driver.stream_create(0, 0).unwrap());
        let numbers = [0; 4].map(|_| number(&driver, 0));
        let mut model = [0_u64; 4];
        let event = driver.event_create(0, EventFlags::default()).unwrap();
        for _ in 0..60 {
            let [from, to] = [0; 2].map(|_| random.below(4) as usize);
            if from == to {
                let digit = 1 + random.below(9);
                model[to] = (model[to] * 10 + digit) % 1_000_003;
                let target = numbers[to];
                let accesses = [Access::read_write(target, 8)];
                launch(&driver, streams[to], &accesses, move |launch| {
                    let value = &mut launch.write::<u64>(target, 1)?[0];
                    *value = (*value * 10 + digit) % 1_000_003;
                    Ok(())
                })
                .unwrap();
            } else {
                // `to` adds the number of `from`, and `from` continues only after that was read.
                driver.event_record(event, streams[from]).unwrap();
                driver.stream_wait_event(streams[to], event).unwrap();
                model[to] = (model[to] + model[from]) % 1_000_003;
                let [source, target] = [numbers[from], numbers[to]];
                let accesses = [Access::read(source, 8), Access::read_write(target, 8)];
                launch(&driver, streams[to], &accesses, move |launch| {
                    let value = &mut launch.write::<u64>(target, 1)?[0];
                    *value = (*value + launch.read::<u64>(source, 1)?[0]) % 1_000_003;
                    Ok(())
                })
                .unwrap();
                driver.event_record(event, streams[to]).unwrap();
                driver.stream_wait_event(streams[from], event).unwrap();
            }
        }
        driver.device_synchronize(0).unwrap();
        assert_eq!(numbers.map(|pointer| read(&driver, streams[0], pointer)), model, "seed {seed}");
    }
}

#[test]
fn many_threads_submit_at_once() {
    const THREADS: u64 = 8;
    const LAUNCHES: u64 = 400;
    let driver = sim(2);
    let shared = number(&driver, 0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let driver = &driver;
            scope.spawn(move || {
                let device = (thread % 2) as u32;
                let stream = driver.stream_create(device, 0).unwrap();
                let event = driver.event_create(device, EventFlags::default()).unwrap();
                let own = number(driver, device);
                for count in 0..LAUNCHES {
                    // A racy counter: every increment must survive although nothing orders the threads.
                    let target = if device == 0 && count % 2 == 0 { shared } else { own };
                    launch(driver, stream, &[Access::read_write(target, 8)], move |launch| {
                        launch.write::<u64>(target, 1)?[0] += 1;
                        Ok(())
                    })
                    .unwrap();
                    driver.event_record(event, stream).unwrap();
                    if count % 50 == 0 {
                        driver.event_synchronize(event).unwrap();
                    }
                }
                let expected = if device == 0 { LAUNCHES / 2 } else { LAUNCHES };
                assert_eq!(read(driver, stream, own), expected);
                driver.memory_free(own).unwrap();
                driver.stream_destroy(stream).unwrap();
            });
        }
    });
    let stream = driver.stream_create(0, 0).unwrap();
    assert_eq!(read(&driver, stream, shared), THREADS / 2 * LAUNCHES / 2);
}

#[test]
fn dropping_the_driver_ends_running_work_and_forgets_queued_work() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let has_begun = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::new(AtomicBool::new(false));
    let (begun, ended) = (Arc::clone(&has_begun), Arc::clone(&has_ended));
    launch(&driver, stream, &[], move |_| {
        begun.store(true, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(20));
        ended.store(true, Ordering::SeqCst);
        Ok(())
    })
    .unwrap();
    let forgotten = Arc::new(());
    let owned = Arc::clone(&forgotten);
    launch(&driver, stream, &[], move |_| {
        let _ = &owned;
        panic!("a queued command ran after the drop");
    })
    .unwrap();
    while !has_begun.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    drop(driver);
    assert!(has_ended.load(Ordering::SeqCst));
    assert_eq!(Arc::strong_count(&forgotten), 1, "what a forgotten command owned was dropped");
}

#[test]
fn a_command_may_own_the_last_reference_to_the_driver() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let gate = Gate::close(&driver, stream);
    let (own, gone) = (Arc::clone(&driver), Arc::new(()));
    let witness = Arc::clone(&gone);
    let function = Arc::new(move || {
        let _ = (&own, &witness);
    });
    driver.host_function_async(stream, function, Label::here("owner")).unwrap();
    drop(driver);
    gate.open();
    while Arc::strong_count(&gone) > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn host_functions_of_different_streams_do_not_hold_each_other_up() {
    let driver = SimDriver::new(SimConfig { workers: 1, ..SimConfig::default() }).unwrap();
    let streams = [0; 5].map(|_| driver.stream_create(0, 0).unwrap());
    let gates = streams.map(|stream| Gate::close(&driver, stream));
    let free = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    append(&driver, free, value, 1);
    assert_eq!(read(&driver, free, value), 1);
    for (stream, gate) in streams.iter().zip(&gates).rev() {
        assert!(!driver.stream_query(*stream).unwrap());
        gate.open();
        driver.stream_synchronize(*stream).unwrap();
    }
}
