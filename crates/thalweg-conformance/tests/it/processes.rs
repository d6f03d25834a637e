//! Memory that two processes share on a GPU, and that the simulator reports as not shareable.

use std::fmt::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;

use thalweg_conformance::simulator;
use thalweg_driver::{
    Code, DevicePointer, Driver, Fill, FillPattern, HandleType, IpcHandle, Label, MemoryAccess,
    PhysicalFlags, ShareableHandle, descriptor_of_process,
};

use super::conformance::gpu;

/// The message to the other process: the kind of device, the number of this process and of its descriptor, and an IPC handle.
const SHARED: &str = "THALWEG_TEST_SHARED_MEMORY";

fn page_bytes(driver: &dyn Driver) -> u64 {
    driver.device_properties(0).expect("properties").virtual_memory_granularity_bytes
}

fn map_page(driver: &dyn Driver, physical: thalweg_driver::PhysicalHandle) -> DevicePointer {
    let page = page_bytes(driver);
    let range = driver.address_reserve(0, page).expect("addresses");
    driver.memory_map(range, page, physical, 0).expect("mapped");
    driver.memory_set_access(range, page, 0, MemoryAccess::ReadWrite).expect("open");
    range
}

fn fill(driver: &dyn Driver, target: DevicePointer, value: u8) {
    let stream = driver.default_stream(0).expect("a stream");
    let pattern = FillPattern::U8(value);
    driver
        .fill_async(stream, &Fill { target, pattern, count: 4096, label: Label::here("fill") })
        .expect("a fill");
    driver.stream_synchronize(stream).expect("it runs");
}

fn is_filled(driver: &dyn Driver, source: DevicePointer, value: u8) -> bool {
    let mut seen = [!value; 4096];
    let stream = driver.default_stream(0).expect("a stream");
    driver.copy_to_host(stream, &mut seen, source, Label::here("read")).expect("a read");
    seen == [value; 4096]
}

/// The other process of the tests below; without the variable it does nothing.
#[test]
fn child_process_that_receives() {
    let Ok(shared) = std::env::var(SHARED) else { return };
    let mut fields = shared.split(' ');
    let mut field = || fields.next().expect("four fields");
    let (kind, process, descriptor, ipc) = (field(), field(), field(), field());
    let driver: Arc<dyn Driver> =
        if kind == "cuda" { gpu().expect("the parent has one") } else { simulator(1, 1) };
    let mut handle = IpcHandle([0; 64]);
    for (byte, digits) in handle.0.iter_mut().zip(ipc.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).expect("digits"), 16).expect("digits");
    }
    let opened = driver.ipc_open(0, handle);
    if kind == "cuda" {
        let opened = opened.expect("plain memory of the parent");
        assert!(is_filled(&*driver, opened, 1), "what the parent wrote to plain memory");
        fill(&*driver, opened, 3);
        driver.ipc_close(opened).expect("it was open");
    } else {
        assert_eq!(opened.expect_err("another process").code(), Code::NotSupported);
    }
    let process = process.parse().expect("a number");
    let file = match descriptor_of_process(process, descriptor.parse().expect("a number")) {
        Ok(file) => ShareableHandle::FileDescriptor(file),
        Err(error) => return println!("skipped: physical memory by its descriptor: {error}"),
    };
    let imported = driver.physical_import(0, page_bytes(&*driver), &file);
    if kind == "cuda" {
        let range = map_page(&*driver, imported.expect("physical memory of the parent"));
        assert!(is_filled(&*driver, range, 2), "what the parent wrote to mapped memory");
        fill(&*driver, range, 4);
        println!("received");
    } else {
        assert_eq!(imported.expect_err("another process").code(), Code::NotSupported);
    }
}

/// Shares plain and mapped memory with a child that writes to both; returns the child's output.
fn share_with_child(driver: &dyn Driver) -> (DevicePointer, DevicePointer, String) {
    let plain = driver.memory_allocate(0, 4096).expect("memory");
    let flags = PhysicalFlags { share_as: Some(HandleType::FileDescriptor), ..PhysicalFlags::default() };
    let physical = driver.physical_create(0, page_bytes(driver), flags).expect("a page");
    let range = map_page(driver, physical);
    fill(driver, plain, 1);
    fill(driver, range, 2);
    let ShareableHandle::FileDescriptor(file) = driver.physical_export(physical).expect("exported") else {
        panic!("a file was asked for");
    };
    let mut message = format!("{} {} {} ", driver.name(), std::process::id(), file.as_raw_fd());
    for byte in driver.ipc_export(plain).expect("exported").0 {
        write!(message, "{byte:02x}").expect("a string takes everything");
    }
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["processes::child_process_that_receives", "--exact", "--nocapture"])
        .env(SHARED, message)
        .output()
        .expect("a child");
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    println!("{said}");
    assert!(child.status.success(), "the child failed: {said}");
    assert!(said.contains("1 passed"), "the child ran its part: {said}");
    (plain, range, said)
}

#[test]
fn two_processes_share_memory_of_a_gpu() {
    let Some(driver) = gpu() else { return };
    let (plain, range, said) = share_with_child(&*driver);
    assert!(is_filled(&*driver, plain, 3), "what the child wrote to plain memory");
    assert!(said.contains("skipped: ") || is_filled(&*driver, range, 4), "what it wrote to mapped memory");
    driver.memory_free(plain).expect("no thread has it open any more");
}

#[test]
fn the_simulator_shares_nothing_with_another_process() {
    let driver = simulator(1, 1);
    let (plain, range, _) = share_with_child(&*driver);
    assert!(is_filled(&*driver, plain, 1) && is_filled(&*driver, range, 2), "nothing wrote there");
}
