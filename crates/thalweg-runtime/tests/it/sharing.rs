//! Memory that is shared: within one process as the simulator does it, and with another process as a GPU does.

use std::fmt::Write;
use std::process::Command;

use thalweg_memory::{Backend, MemoryHandle, PageHandle, Settings};
use thalweg_runtime::{Buffer, Device, Environment, Error, Label, SharedBuffer, SharedHandle, Stream};

use crate::support::{buffer_of, device, read, sim, sim_in, write};

const MIB: u64 = 1 << 20;

/// Returns a simulated device whose segments are plain, or grow.
fn device_with(expandable_segments: bool) -> Device {
    let allocator = Settings::default().with_expandable_segments(expandable_segments);
    sim_in(&Environment { allocator, ..Environment::default() }, 1).1.remove(0)
}

fn read_shared(stream: &Stream, shared: &SharedBuffer) -> Vec<f32> {
    let mut values = vec![0.0_f32; shared.size_bytes() as usize / 4];
    let bytes = bytemuck::cast_slice_mut(&mut values);
    stream.copy_to_host(bytes, shared.pointer(), Label::here("read")).unwrap();
    values
}

fn write_shared(stream: &Stream, shared: &SharedBuffer, values: &[f32]) {
    stream.copy_from_host(shared.pointer(), bytemuck::cast_slice(values), Label::here("write")).unwrap();
}

/// Returns whether the machine allows a process to fetch its own descriptors by number; if not, no page can be received.
fn can_receive_pages() -> bool {
    let file = std::fs::File::open("/dev/null").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    match thalweg_driver::descriptor_of_process(std::process::id(), number) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: pages by their descriptors: {error}");
            false
        }
    }
}

/// Checks the content of both buffers. Another buffer of the segment comes first, so that the offset matters.
fn check_content_through_both(device: &Device) {
    let stream = Stream::new(device).unwrap();
    let neighbour = buffer_of(&stream, &[9.0; 1000]);
    let values: Vec<f32> = (0..2000).map(|value| value as f32).collect();
    let buffer = buffer_of(&stream, &values);
    stream.synchronize().unwrap();
    let handle = buffer.share().unwrap();
    assert_eq!((handle.size_bytes, buffer.size_bytes()), (8000, 8000), "not what it was rounded up to");
    assert!(handle.offset_bytes > 0, "the neighbour lies before it");
    let shared = device.open_shared(&handle).unwrap();
    assert_ne!(shared.pointer(), buffer.pointer(), "it is mapped a second time");
    assert_eq!((shared.size_bytes(), shared.device()), (8000, device));
    assert_eq!(read_shared(&stream, &shared), values, "what was written before");
    write(&stream, &buffer, &[1.0; 2000]);
    assert_eq!(read_shared(&stream, &shared), [1.0; 2000], "what is written there is seen here");
    write_shared(&stream, &shared, &[2.0; 2000]);
    assert_eq!(read(&stream, &buffer), [2.0; 2000], "and what is written here is seen there");
    assert_eq!(read(&stream, &neighbour), [9.0; 1000], "nothing else was touched");
    // Memory that is already open is not opened again, and stays open while it is held.
    let again = device.open_shared(&handle).unwrap();
    assert_eq!(again.pointer(), shared.pointer());
    let pointer = again.pointer();
    again.record_stream(&stream);
    drop(shared);
    assert_eq!(read_shared(&stream, &again), [2.0; 2000]);
    drop(again);
    let error = stream.copy_to_host(&mut [0; 4], pointer, Label::here("read")).unwrap_err();
    assert!(error.is_invalid_argument(), "it is closed: {error}");
    drop((buffer, neighbour));
    device.empty_cache().unwrap();
    assert_eq!(device.memory_reserved(), 0, "it is no longer held");
    let info = device.driver().memory_info(0).unwrap();
    assert_eq!(info.free_bytes, info.total_bytes);
}

#[test]
fn a_buffer_of_a_plain_segment_is_seen_through_both() {
    let device = device_with(false);
    let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
    let handle = buffer.share().unwrap();
    assert!(matches!(MemoryHandle::decode(&handle.bytes), Ok(MemoryHandle::Allocation(_))));
    drop(buffer);
    check_content_through_both(&device);
}

#[test]
fn a_buffer_of_a_growing_segment_is_seen_through_both() {
    let device = device_with(true);
    let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
    let handle = buffer.share().unwrap();
    let Ok(MemoryHandle::Pages { process, page_bytes, handles, .. }) = MemoryHandle::decode(&handle.bytes)
    else {
        panic!("a growing segment is shared by its pages");
    };
    assert_eq!((process, page_bytes, handles.len()), (std::process::id(), 2 * MIB, 1));
    drop(buffer);
    if can_receive_pages() {
        check_content_through_both(&device);
    }
}

#[test]
fn several_pages_are_opened_side_by_side() {
    if !can_receive_pages() {
        return;
    }
    let device = device_with(true);
    let stream = Stream::new(&device).unwrap();
    let values: Vec<f32> = (0..5 * MIB / 4).map(|value| value as f32).collect();
    let buffer = buffer_of(&stream, &values);
    stream.synchronize().unwrap();
    let shared = device.open_shared(&buffer.share().unwrap()).unwrap();
    assert!(read_shared(&stream, &shared) == values, "5 MiB over at least three pages");
}

#[test]
fn opened_memory_is_in_no_statistic() {
    let device = device_with(false);
    let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
    let before = (device.memory_allocated(), device.memory_reserved());
    let _shared = device.open_shared(&buffer.share().unwrap()).unwrap();
    assert_eq!((device.memory_allocated(), device.memory_reserved()), before);
}

#[test]
fn plain_memory_is_opened_and_closed_while_another_stream_captures() {
    let device = device_with(false);
    let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
    let handle = buffer.share().unwrap();
    let driver = device.driver();
    let capturing = driver.stream_create(0, 0).unwrap();
    driver.stream_begin_capture(capturing, thalweg_runtime::CaptureMode::Global).unwrap();
    drop(device.open_shared(&handle).unwrap());
    driver.stream_end_capture(capturing).expect("the capture is whole");
}

/// Returns the error, which names the device and the remedy.
fn refused(device: &Device, handle: &SharedHandle) -> Error {
    let error = device.open_shared(handle).expect_err("a hostile handle");
    assert!(error.to_string().starts_with("sim:0: "), "{error}");
    error
}

#[test]
fn hostile_bytes_are_errors_and_open_nothing() {
    for expandable_segments in [false, true] {
        let device = device_with(expandable_segments);
        let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
        let good = buffer.share().unwrap();
        let free_bytes = device.driver().memory_info(0).unwrap().free_bytes;
        let with = |bytes: Vec<u8>| SharedHandle { bytes, ..good.clone() };
        for length in 0..good.bytes.len() {
            let error = refused(&device, &with(good.bytes[..length].to_vec()));
            assert!(error.is_invalid_argument() && error.to_string().contains("export the block again"));
        }
        assert!(refused(&device, &with([&good.bytes[..], &[0]].concat())).is_invalid_argument());
        // Any byte may be replaced by any other: an error, or (in the gaps of the format) the same memory; never a panic.
        for index in 0..good.bytes.len() {
            let mut bytes = good.bytes.clone();
            bytes[index] ^= 0x55;
            if let Err(error) = device.open_shared(&with(bytes)) {
                assert!(error.to_string().starts_with("sim:0: "), "{error}");
            }
        }
        assert_eq!(device.driver().memory_info(0).unwrap().free_bytes, free_bytes);
        assert!(!expandable_segments || !can_receive_pages() || device.open_shared(&good).is_ok());
    }
}

#[test]
fn handles_of_what_is_no_memory_are_errors() {
    let device = device_with(true);
    let pages = |process, page_bytes, handles| SharedHandle {
        bytes: MemoryHandle::Pages { process, serial: 0, page_bytes, handles }.encode(),
        offset_bytes: 0,
        size_bytes: 512,
    };
    let file = std::fs::File::open("/dev/null").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    let own = std::process::id();
    // A file that is not memory, no file at all, a process that does not exist, an invalid fabric handle.
    refused(&device, &pages(own, 2 * MIB, vec![PageHandle::Descriptor(number)]));
    refused(&device, &pages(own, 2 * MIB, vec![PageHandle::Descriptor(i32::MAX)]));
    refused(&device, &pages(i32::MAX as u32, 2 * MIB, vec![PageHandle::Descriptor(number)]));
    refused(&device, &pages(own, 2 * MIB, vec![PageHandle::Fabric(Box::new([7; 64]))]));
    // Pages larger than the device has, and more of them than there are addresses.
    assert!(refused(&device, &pages(own, 512, vec![PageHandle::Descriptor(number)])).is_invalid_argument());
    refused(&device, &pages(own, 1 << 62, vec![PageHandle::Descriptor(number)]));
    let nonsense = MemoryHandle::Allocation(Box::new([7; 64])).encode();
    let error = refused(&device, &SharedHandle { bytes: nonsense, offset_bytes: 0, size_bytes: 512 });
    assert!(error.is_invalid_argument(), "{error}");
}

#[test]
fn a_buffer_outside_what_was_shared_is_an_error() {
    let device = device_with(true);
    let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
    let good = buffer.share().unwrap();
    if can_receive_pages() {
        for (offset_bytes, size_bytes) in [(2 * MIB, 1), (1, 2 * MIB), (u64::MAX, 2), (2, u64::MAX)] {
            let error = refused(&device, &SharedHandle { offset_bytes, size_bytes, ..good.clone() });
            assert!(
                error.is_invalid_argument() && error.to_string().contains("2097152 bytes that were shared")
            );
        }
        device
            .open_shared(&SharedHandle { offset_bytes: 0, size_bytes: 2 * MIB, ..good })
            .expect("all of it");
    }
    // A plain handle does not contain the size of its memory, but the driver knows it. The segment is 2 MiB.
    let device = device_with(false);
    let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
    let good = buffer.share().unwrap();
    for (offset_bytes, size_bytes) in
        [(2 * MIB, 1), (1, 2 * MIB), (u64::MAX, 2), (u64::MAX, 0), (1, u64::MAX - 1)]
    {
        let error = refused(&device, &SharedHandle { offset_bytes, size_bytes, ..good.clone() });
        let figures = format!("{size_bytes} bytes at offset {offset_bytes} are not within the 2097152 bytes");
        assert!(error.is_invalid_argument() && error.to_string().contains(&figures), "{error}");
    }
    device.open_shared(&SharedHandle { offset_bytes: 0, size_bytes: 2 * MIB, ..good }).expect("all of it");
}

#[test]
fn memory_that_is_gone_or_elsewhere_is_an_error() {
    for expandable_segments in [false, true] {
        let device = device_with(expandable_segments);
        let buffer = Buffer::new(&device.default_stream(), 4096).unwrap();
        let handle = buffer.share().unwrap();
        // The devices of another simulated machine stand in for those of another process.
        let error = refused(&sim(1).remove(0), &handle);
        if !expandable_segments || can_receive_pages() {
            assert!(error.driver_error().unwrap().is_not_supported(), "{error}");
        }
        drop(buffer);
        device.empty_cache().unwrap();
        refused(&device, &handle);
    }
    let devices = sim_in(&Environment::default(), 2).1;
    let buffer = Buffer::new(&devices[0].default_stream(), 4096).unwrap();
    devices[1].open_shared(&buffer.share().unwrap()).expect_err("it is on the other device");
}

#[test]
fn what_cannot_be_shared_says_so() {
    let device = device_with(true);
    let error = Buffer::new(&device.default_stream(), 0).unwrap().share().unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("sim:0: sharing a buffer of 0 bytes"));
    let allocator = Settings::default().with_backend(Backend::CudaMallocAsync);
    let device = sim_in(&Environment { allocator, ..Environment::default() }, 1).1.remove(0);
    let error = Buffer::new(&device.default_stream(), 4096).unwrap().share().unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains("stream-ordered"), "{error}");
}

/// The message to the other process: offset, size, and the bytes in hexadecimal digits, of one buffer after the other.
const SHARED: &str = "THALWEG_TEST_SHARED_BUFFERS";

/// The other process of the test below; without the variable it does nothing.
#[test]
fn child_process_that_opens() {
    let Ok(reported) = std::env::var(SHARED) else { return };
    let device = device();
    let stream = Stream::new(&device).unwrap();
    for buffer in reported.split_terminator(';') {
        let [offset, size, digits] = buffer.split(' ').collect::<Vec<_>>()[..] else { panic!("{buffer}") };
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let handle = SharedHandle {
            bytes: (0..digits.len()).step_by(2).map(byte).collect(),
            offset_bytes: offset.parse().unwrap(),
            size_bytes: size.parse().unwrap(),
        };
        let by_pages = matches!(MemoryHandle::decode(&handle.bytes), Ok(MemoryHandle::Pages { .. }));
        match device.open_shared(&handle) {
            Ok(shared) => {
                assert!(!device.is_simulated(), "the simulator opens no memory of another process");
                assert_eq!(read_shared(&stream, &shared), [1.0; 1000], "what the parent wrote");
                write_shared(&stream, &shared, &[2.0; 1000]);
                stream.synchronize().unwrap();
            }
            Err(error) => {
                let driver_error = error.driver_error().expect("the handle is a good one");
                let is_forbidden = by_pages && driver_error.call().starts_with("pidfd");
                assert!(is_forbidden || device.is_simulated() && driver_error.is_not_supported(), "{error}");
                println!("skipped: {error}");
            }
        }
    }
}

/// On a GPU the other process can access both kinds of memory. On the simulator it gets `NotSupported`.
#[test]
fn another_process_opens_the_memory_of_a_gpu() {
    let device = device();
    let stream = Stream::new(&device).unwrap();
    // The same driver, with caches of its own.
    let allocator = Settings::default().with_expandable_segments(false);
    let environment = Environment { allocator, ..Environment::default() };
    let plain_device = Device::all_of(device.driver().clone(), &environment).unwrap().remove(0);
    let plain = buffer_of(&Stream::new(&plain_device).unwrap(), &[1.0; 1000]);
    plain_device.synchronize().unwrap();
    let growing = buffer_of(&stream, &[1.0; 1000]);
    stream.synchronize().unwrap();
    let mut reported = String::new();
    for buffer in [&plain, &growing] {
        let SharedHandle { bytes, offset_bytes, size_bytes } = buffer.share().unwrap();
        write!(reported, "{offset_bytes} {size_bytes} ").unwrap();
        bytes.iter().for_each(|byte| write!(reported, "{byte:02x}").unwrap());
        reported.push(';');
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["sharing::child_process_that_opens", "--exact", "--nocapture"])
        .env(SHARED, reported)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    println!("{said}");
    assert!(child.status.success() && said.contains("1 passed"), "the child failed: {said}");
    if !device.is_simulated() {
        assert_eq!(read(&stream, &plain), [2.0; 1000], "what the child wrote to plain memory");
    }
    let growing_value = if said.contains("skipped: ") { 1.0 } else { 2.0 };
    assert_eq!(read(&stream, &growing), [growing_value; 1000]);
}
