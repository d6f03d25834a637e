//! The queue of a stream: its size, the threads that wait for room, and waits that the program interrupts.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_driver::{
    CaptureMode, Code, DevicePointer, Driver, EventFlags, Fill, FillPattern, Label, StreamHandle,
    set_interruption,
};
use thalweg_lock::Mutex;
use thalweg_sim::schedules::{Late, Random};
use thalweg_sim::{Schedule, SimConfig, SimDriver};

use super::sim_support::{Gate, append, code, number, read, sim};

/// The number of commands that a stream's queue has room for, according to the simulator's documentation.
const ROOM: usize = 1024;

fn fill(driver: &SimDriver, stream: StreamHandle, target: DevicePointer) {
    let fill = Fill { target, pattern: FillPattern::U8(1), count: 8, label: Label::here("fill") };
    driver.fill_async(stream, &fill).unwrap();
}

fn controlled(schedule: impl Schedule + 'static) -> Arc<SimDriver> {
    let config = SimConfig { memory_bytes: 4 << 20, ..SimConfig::default() };
    SimDriver::controlled(config, Box::new(schedule)).unwrap()
}

#[test]
fn a_thread_that_submits_more_than_a_stream_takes_waits_for_room() {
    let driver = sim(1);
    let streams = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
    let value = number(&driver, 0);
    let gate = Gate::close(&driver, streams[0]);
    let submitted = Arc::new(AtomicUsize::new(0));
    let submitter = {
        let (driver, submitted) = (Arc::clone(&driver), Arc::clone(&submitted));
        std::thread::spawn(move || {
            for _ in 0..3 * ROOM {
                fill(&driver, streams[0], value);
                submitted.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    while driver.queued_commands() < ROOM && !submitter.is_finished() {
        std::thread::yield_now();
    }
    // Another stream has a queue of its own, and commands that are captured on a full one are not queued.
    assert_eq!(read(&driver, streams[1], value), 0);
    let event = driver.event_create(0, EventFlags::default()).unwrap();
    (0..ROOM / 2).for_each(|_| driver.event_record(event, streams[1]).unwrap());
    assert!(submitted.load(Ordering::SeqCst) < ROOM, "the gate is a command, too");
    assert_eq!(driver.queued_commands(), ROOM);
    driver.stream_begin_capture(streams[0], CaptureMode::Relaxed).unwrap();
    (0..10).for_each(|_| fill(&driver, streams[0], value));
    driver.graph_destroy(driver.stream_end_capture(streams[0]).unwrap()).unwrap();
    gate.open();
    submitter.join().unwrap();
    driver.device_synchronize(0).unwrap();
    assert_eq!((submitted.load(Ordering::SeqCst), driver.queued_commands()), (3 * ROOM, 0));
}

#[test]
fn a_graph_finds_room_when_it_comes_and_is_queued_whole() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    driver.stream_begin_capture(stream, CaptureMode::Global).unwrap();
    (0..2 * ROOM).for_each(|_| fill(&driver, stream, value));
    let graph = driver.stream_end_capture(stream).unwrap();
    let executable = driver.graph_instantiate(graph, 0).unwrap();
    (0..3).for_each(|_| driver.graph_launch(executable, stream).unwrap());
    driver.stream_synchronize(stream).unwrap();
    assert_eq!(read(&driver, stream, value), 0x0101_0101_0101_0101);
}

fn keeps_room(driver: &SimDriver) {
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(driver, 0);
    for _ in 0..2 * ROOM {
        fill(driver, stream, value);
        assert!(driver.queued_commands() <= ROOM);
    }
    append(driver, stream, value, 3);
    assert_eq!(read(driver, stream, value), 0x0101_0101_0101_0101_u64.wrapping_mul(10).wrapping_add(3));
}

#[test]
fn schedules_keep_to_the_room_of_a_queue() {
    keeps_room(&controlled(Late::new(0)));
    keeps_room(&controlled(Random::new(3)));
}

#[test]
fn a_queue_that_its_own_thread_holds_up_is_a_deadlock_of_the_schedule() {
    let driver = controlled(Late::new(0));
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock();
    let own = Arc::clone(&lock);
    driver.host_function_async(stream, Arc::new(move || drop(own.lock())), Label::here("held up")).unwrap();
    let filled = Fill { target: value, pattern: FillPattern::U8(1), count: 8, label: Label::here("fill") };
    let refused = (0..2 * ROOM).find_map(|_| driver.fill_async(stream, &filled).err()).unwrap();
    assert_eq!(refused.code(), Code::Timeout);
    assert!(refused.detail().contains("room in the queue of"), "{refused}");
    assert!(refused.detail().contains("`held up at "), "{refused}");
    drop(held);
    driver.stream_synchronize(stream).unwrap();
}

thread_local! {
    static GIVES_UP: Cell<bool> = const { Cell::new(false) };
}

/// Interrupts a wait of this thread, and checks that its memory and the machine are unchanged.
fn interrupt(driver: &Arc<SimDriver>) {
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(driver, 0);
    let event = driver.event_create(0, EventFlags::default()).unwrap();
    let gate = Gate::close(driver, stream);
    append(driver, stream, value, 7);
    driver.event_record(event, stream).unwrap();
    set_interruption(|| GIVES_UP.get());
    GIVES_UP.set(true);
    let mut target = vec![0xee; 8];
    assert_eq!(code(driver.copy_to_host(stream, &mut target, value, Label::here("read"))), Code::NotReady);
    assert_eq!(code(driver.stream_synchronize(stream)), Code::NotReady);
    assert_eq!(code(driver.event_synchronize(event)), Code::NotReady);
    assert_eq!(code(driver.device_synchronize(0)), Code::NotReady);
    GIVES_UP.set(false);
    gate.open();
    driver.device_synchronize(0).unwrap();
    assert_eq!(target, [0xee; 8], "a copy whose wait was given up has written");
    assert_eq!(read(driver, stream, value), 7);
    driver.event_synchronize(event).unwrap();
}

#[test]
fn a_wait_that_the_program_gives_up_leaves_its_memory_alone() {
    interrupt(&sim(1));
    interrupt(&controlled(Late::new(0)));
    interrupt(&controlled(Random::new(1)));
}

#[test]
fn a_host_function_may_not_call_the_driver_on_any_machine() {
    for driver in [sim(1), controlled(Late::new(0))] {
        assert_eq!(driver.misuse(), None);
        let stream = driver.stream_create(0, 0).unwrap();
        let (own, answers) = (Arc::clone(&driver), Arc::new(Mutex::new(Vec::new())));
        let slot = Arc::clone(&answers);
        let call = move || {
            let mut answers = slot.lock();
            answers.push(code(own.device_synchronize(0)));
            answers.push(code(own.memory_allocate(0, 8)));
        };
        driver.host_function_async(stream, Arc::new(call), Label::here("call")).unwrap();
        driver.stream_synchronize(stream).unwrap();
        assert_eq!(*answers.lock(), [Code::NotPermitted; 2]);
        let misuse = driver.misuse().expect("it is noted");
        assert!(misuse.contains("`call at ") && misuse.contains("(cuCtxSynchronize)"), "{misuse}");
    }
}
