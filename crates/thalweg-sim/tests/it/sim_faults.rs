//! Asynchronous errors: kernels that fault, panic, or touch undeclared memory.

use thalweg_driver::{Access, Code, Driver, EventFlags, HostFault, HostFlags, Label, PhysicalFlags};
use thalweg_sim::{Fault, SimConfig, SimDriver};

use super::sim_support::{Gate, append, code, launch, number, read, sim};

#[test]
fn a_fault_is_asynchronous_sticky_and_names_its_command() {
    let driver = sim(2);
    let [stream, other] = [0, 1].map(|device| driver.stream_create(device, 0).unwrap());
    let event = driver.event_create(0, EventFlags::default()).unwrap();
    let [lost, sound] = [0, 1].map(|device| number(&driver, device));
    let gate = Gate::close(&driver, stream);
    launch(&driver, stream, &[], |_| Err(HostFault("the sky fell".to_owned()))).unwrap();
    append(&driver, stream, lost, 1);
    driver.event_record(event, stream).unwrap();
    driver.stream_wait_event(other, event).unwrap();
    append(&driver, other, sound, 1);
    gate.open();

    let error = driver.stream_synchronize(stream).unwrap_err();
    assert_eq!((error.code(), error.call()), (Code::LaunchFailed, "cuStreamSynchronize"));
    assert!(error.is_asynchronous() && error.is_device_lost());
    for part in ["the sky fell", "closure", "sim_support.rs"] {
        assert!(error.detail().contains(part), "{error}");
    }
    assert_eq!(code(driver.event_query(event)), Code::LaunchFailed);
    assert_eq!(code(driver.memory_allocate(0, 8)), Code::LaunchFailed);
    assert_eq!(code(driver.stream_create(0, 0)), Code::LaunchFailed);
    assert_eq!(code(launch(&driver, stream, &[], |_| Ok(()))), Code::LaunchFailed);
    // Work of the other device that waited for the lost one continues, and memory can still be freed.
    assert_eq!(read(&driver, other, sound), 1);
    driver.memory_free(lost).unwrap();
    driver.event_destroy(event).unwrap();
    driver.stream_destroy(stream).unwrap();
}

#[test]
fn panics_are_failed_launches() {
    let driver = sim(2);
    let [stream, other] = [0, 1].map(|device| driver.stream_create(device, 0).unwrap());
    launch(&driver, stream, &[], |_| panic!("kernel panic {}", 1)).unwrap();
    let error = driver.device_synchronize(0).unwrap_err();
    assert!(error.detail().contains("kernel panic 1"), "{error}");
    let host = std::sync::Arc::new(|| panic!("host function panic"));
    driver.host_function_async(other, host, Label::here("callback")).unwrap();
    let error = driver.stream_synchronize(other).unwrap_err();
    assert_eq!(error.code(), Code::LaunchFailed);
    assert!(error.detail().contains("host function panic") && error.detail().contains("callback"), "{error}");
}

#[test]
fn undeclared_and_dead_memory_is_out_of_reach() {
    let driver = sim(4);
    let streams = [0, 1, 2, 3].map(|device| driver.stream_create(device, 0).unwrap());
    let data = [0, 1, 2, 3].map(|device| driver.memory_allocate(device, 64).unwrap());

    // A declared range that is larger than the allocation, and one that is freed by then, are illegal addresses.
    launch(&driver, streams[0], &[Access::read(data[0], 65)], |_| Ok(())).unwrap();
    assert_eq!(code(driver.device_synchronize(0)), Code::IllegalAddress);
    driver.memory_free(data[1]).unwrap();
    launch(&driver, streams[1], &[Access::write(data[1], 8)], |_| Ok(())).unwrap();
    assert_eq!(code(driver.device_synchronize(1)), Code::IllegalAddress);

    // A touch outside the declared range, or a write where a read was declared, is a fault of the kernel.
    let target = data[2];
    launch(&driver, streams[2], &[Access::read(target, 8)], move |launch| {
        assert!(launch.read::<u64>(target, 1).is_ok());
        assert!(launch.read::<u64>(target.offset(8), 1).is_err());
        assert!(launch.read::<u64>(target, 2).is_err());
        assert!(launch.read::<u64>(target.offset(4), 1).is_err());
        launch.write::<u32>(target, 1).map(|_| ())
    })
    .unwrap();
    assert_eq!(code(driver.device_synchronize(2)), Code::LaunchFailed);

    // Mutable slices are exclusive, cells may alias.
    let target = data[3];
    launch(&driver, streams[3], &[Access::read_write(target, 64)], move |launch| {
        let first = launch.write::<u32>(target, 4)?;
        assert!(launch.read::<u32>(target.offset(12), 1).is_err());
        first[0] = launch.read::<u32>(target.offset(16), 1)?[0];
        let cells = launch.cells::<u32>(target.offset(32), 4)?;
        launch.cells::<u32>(target.offset(36), 2)?[0].set(5);
        assert_eq!(cells[1].get(), 5);
        assert!(launch.read::<u32>(target.offset(32), 1).is_err());
        Ok(())
    })
    .unwrap();
    driver.device_synchronize(3).unwrap();
}

#[test]
fn handles_end_with_their_objects_and_mean_nothing_elsewhere() {
    let [driver, stranger] = [sim(1), sim(1)];
    let stream = driver.stream_create(0, 0).unwrap();
    let event = driver.event_create(0, EventFlags::default()).unwrap();
    assert_eq!(code(stranger.stream_query(stream)), Code::InvalidHandle);
    assert_eq!(code(stranger.event_query(event)), Code::InvalidHandle);
    driver.stream_destroy(stream).unwrap();
    driver.event_destroy(event).unwrap();
    let next = driver.stream_create(0, 0).unwrap();
    assert_ne!(next, stream);
    assert_eq!(code(driver.stream_query(stream)), Code::InvalidHandle);
    assert_eq!(code(driver.stream_destroy(stream)), Code::InvalidHandle);
    assert_eq!(code(driver.event_destroy(event)), Code::InvalidHandle);
    let legacy = driver.default_stream(0).unwrap();
    assert_eq!(code(driver.stream_destroy(legacy)), Code::InvalidHandle);
}

#[test]
fn injected_faults_strike_once_and_leave_the_state_valid() {
    let driver = sim(1);
    let bytes = 2 << 20;
    driver.inject(&[
        Fault::OutOfMemory { request: 1 },
        Fault::MapFails { call: 0 },
        Fault::PinnedOutOfMemory { request: 0 },
    ]);
    let first = driver.memory_allocate(0, 64).unwrap();
    let free_bytes = driver.memory_info(0).unwrap().free_bytes;
    let error = driver.memory_allocate(0, 64).unwrap_err();
    assert_eq!(error.code(), Code::OutOfMemory);
    assert!(error.detail().contains("injected fault: request 1"), "{error}");
    assert_eq!(driver.memory_info(0).unwrap().free_bytes, free_bytes, "nothing was taken");

    let range = driver.address_reserve(0, bytes).unwrap();
    let physical = driver.physical_create(0, bytes, PhysicalFlags::default()).unwrap();
    assert_eq!(code(driver.memory_map(range, bytes, physical, 0)), Code::MapFailed);
    driver.memory_map(range, bytes, physical, 0).expect("the range and the pages are as they were");
    assert_eq!(code(driver.host_allocate(64, HostFlags::default())), Code::OutOfMemory);
    driver.host_allocate(64, HostFlags::default()).expect("once");
    driver.memory_free(first).unwrap();
}

#[test]
fn an_injected_failure_of_a_command_loses_its_device_alone() {
    for (by_hardware, expected) in [(false, Code::LaunchFailed), (true, Code::EccUncorrectable)] {
        let driver = sim(2);
        let [stream, other] = [0, 1].map(|device| driver.stream_create(device, 0).unwrap());
        let [lost, sound] = [0, 1].map(|device| number(&driver, device));
        driver.device_synchronize(0).unwrap();
        driver.device_synchronize(1).unwrap();
        driver.inject(&[Fault::CommandFails { command: 1, by_hardware }]);
        append(&driver, stream, lost, 1);
        driver.stream_synchronize(stream).expect("the first command is well");
        append(&driver, stream, lost, 2);
        let error = driver.stream_synchronize(stream).unwrap_err();
        assert_eq!(error.code(), expected);
        assert!(error.is_device_lost() && error.detail().contains("injected fault: command 1"), "{error}");
        append(&driver, other, sound, 1);
        assert_eq!(read(&driver, other, sound), 1);
        driver.memory_free(lost).expect("memory of a lost device can be given back");
    }
}

#[test]
fn the_child_of_a_fork_is_refused() {
    let driver = SimDriver::new(SimConfig { memory_bytes: 1 << 20, ..SimConfig::default() }).unwrap();
    let inherited = driver.clone();
    let refused = move || {
        let stream = inherited.default_stream(0).is_err_and(|error| error.code() == Code::Forked);
        let waited = inherited.device_synchronize(0).is_err_and(|error| error.code() == Code::Forked);
        drop(inherited);
        stream && waited
    };
    assert!(thalweg_conformance::holds_in_child(refused), "the child was refused");
    driver.device_synchronize(0).expect("the parent goes on");
    assert_eq!(std::sync::Arc::strong_count(&driver), 1);
}
