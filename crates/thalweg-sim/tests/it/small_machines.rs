//! All ways in which the simulator accesses memory through pointers, in machines so small that Miri can run them: it
//! detects when two threads touch a byte in conflict, and when an invalid reference is used.
//!
//! ```text
//! MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --profile loom -p thalweg-sim --test it -- small_machines
//! ```

use std::sync::Arc;

use thalweg_driver::{
    Access, CaptureMode, Code, Collective, CollectiveOperation, Copy, Driver, ElementFormat, Endpoint,
    EventFlags, Fill, FillPattern, HostFlags, Label, Reduction,
};
use thalweg_sim::schedules::{Late, Random};
use thalweg_sim::{Schedule, SimConfig, SimDriver};

use super::sim_support::{append, code, launch, number, read};

const CONFIG: fn() -> SimConfig =
    || SimConfig { devices: 1, memory_bytes: 256 << 10, workers: 2, ..SimConfig::default() };

fn controlled(schedule: impl Schedule + 'static) -> Arc<SimDriver> {
    SimDriver::controlled(CONFIG(), Box::new(schedule)).unwrap()
}

/// Copies in every direction, fills memory, and runs a kernel that reads, writes and has cells.
fn copies_and_kernels(driver: &SimDriver) {
    let stream = driver.stream_create(0, 0).unwrap();
    let device = driver.memory_allocate(0, 128).unwrap();
    let pinned = driver.host_allocate(64, HostFlags::default()).unwrap();
    driver.host_write(pinned, &[7; 64]).unwrap();
    let copy = |target, source, bytes| Copy { target, source, bytes, label: Label::here("copy") };
    let fill =
        Fill { target: device, pattern: FillPattern::U16(0x0101), count: 32, label: Label::here("fill") };
    driver.fill_async(stream, &fill).unwrap();
    let upper = device.offset(64);
    driver.copy_async(stream, &copy(Endpoint::Device(upper), Endpoint::Pinned(pinned), 64)).unwrap();
    let accesses = [Access::read(device, 32), Access::read_write(upper, 64)];
    launch(driver, stream, &accesses, move |launch| {
        let (from, to) = (launch.read::<u8>(device, 32)?, launch.write::<u8>(upper, 32)?);
        to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        let half = upper.offset(32);
        let (cells, same) = (launch.cells::<u32>(half, 8)?, launch.cells::<u32>(half, 8)?);
        cells.iter().zip(same).for_each(|(cell, same)| cell.set(same.get() + 1));
        Ok(())
    })
    .unwrap();
    // Ranges that overlap.
    let last = copy(Endpoint::Device(upper.offset(8)), Endpoint::Device(upper), 48);
    driver.copy_async(stream, &last).unwrap();
    driver.copy_async(stream, &copy(Endpoint::Pinned(pinned), Endpoint::Device(upper), 64)).unwrap();
    let mut seen = [0; 64];
    driver.copy_to_host(stream, &mut seen, upper, Label::here("read")).unwrap();
    let mut same = [0; 64];
    driver.host_read(pinned, &mut same).unwrap();
    assert_eq!(seen, same);
    assert_eq!((seen[..40].to_vec(), &seen[40..44]), (vec![8; 40], &[8, 7, 7, 7][..]));
    driver.host_free(pinned).unwrap();
    driver.memory_free(device).unwrap();
}

#[test]
fn small_machines_copy_and_compute() {
    copies_and_kernels(&SimDriver::new(CONFIG()).unwrap());
    copies_and_kernels(&controlled(Late::new(0)));
}

#[test]
fn small_machines_let_no_two_commands_meet() {
    let driver = SimDriver::new(CONFIG()).unwrap();
    let streams = [0; 3].map(|_| driver.stream_create(0, 0).unwrap());
    let value = number(&driver, 0);
    // Nothing orders these, but entire commands exclude each other all the same.
    streams.iter().for_each(|&stream| append(&driver, stream, value, 0));
    let event = driver.event_create(0, EventFlags::default()).unwrap();
    for stream in streams {
        append(&driver, stream, value, 1);
        driver.event_record(event, stream).unwrap();
        streams.iter().for_each(|&other| driver.stream_wait_event(other, event).unwrap());
    }
    assert_eq!(read(&driver, streams[0], value), 111);
}

#[test]
fn small_machines_lose_updates_that_nothing_orders() {
    for seed in 0..if cfg!(miri) { 2 } else { 20 } {
        let driver = controlled(Random::new(seed));
        let streams = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
        let value = number(&driver, 0);
        append(&driver, streams[0], value, 1);
        append(&driver, streams[1], value, 2);
        driver.device_synchronize(0).unwrap();
        assert!([1, 2, 12, 21].contains(&read(&driver, streams[0], value)));
    }
}

#[test]
fn small_machines_replay() {
    let driver = SimDriver::new(CONFIG()).unwrap();
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    driver.stream_begin_capture(stream, CaptureMode::Global).unwrap();
    append(&driver, stream, value, 3);
    append(&driver, stream, value, 4);
    let graph = driver.stream_end_capture(stream).unwrap();
    let executable = driver.graph_instantiate(graph, 0).unwrap();
    driver.graph_destroy(graph).unwrap();
    (0..2).for_each(|_| driver.graph_launch(executable, stream).unwrap());
    assert_eq!(read(&driver, stream, value), 3434);
    driver.graph_exec_destroy(executable).unwrap();
}

/// A copy to the host is queued after a collective, which the other rank joins only after the caller's wait for the copy was refused.
/// The command is still queued then, and runs later without its target.
#[test]
fn small_machines_copy_nothing_to_a_caller_that_was_refused() {
    let driver = SimDriver::controlled(SimConfig { devices: 2, ..CONFIG() }, Box::new(Late::new(0))).unwrap();
    let communicators = driver.communicators_create(&[0, 1]).unwrap();
    let streams = [0, 1].map(|device| driver.stream_create(device, 0).unwrap());
    let values = [0, 1].map(|device| number(&driver, device));
    let part = |rank: usize| Collective {
        communicator: communicators[rank],
        stream: streams[rank],
        operation: CollectiveOperation::AllReduce(Reduction::Sum),
        format: ElementFormat::R_32F,
        count: 2,
        send: values[rank],
        receive: values[rank],
        label: Label::here("sum"),
    };
    driver.collectives_async(&[part(0)]).unwrap();
    let mut target = vec![0xaa; 8];
    let refused = driver.copy_to_host(streams[0], &mut target, values[0], Label::here("read"));
    assert_eq!(code(refused), Code::Timeout);
    // The memory is the caller's again, and may be freed at once.
    target.fill(0x55);
    let other: Vec<u8> = vec![0x66; 8];
    driver.collectives_async(&[part(1)]).unwrap();
    streams.iter().for_each(|&stream| driver.stream_synchronize(stream).unwrap());
    assert_eq!((target, other), (vec![0x55; 8], vec![0x66; 8]));
    assert_eq!(read(&driver, streams[0], values[0]), 0);
}
