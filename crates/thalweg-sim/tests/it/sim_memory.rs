//! Simulated memory: allocations, mappings, and the devices that may touch them.

use thalweg_driver::{
    Access, Code, Copy, DevicePointer, Driver, Endpoint, Fill, FillPattern, HostFlags, Label, MemoryAccess,
    PhysicalFlags, StreamHandle,
};
use thalweg_sim::{SimConfig, SimDriver};

use super::sim_support::{Gate, append, code, launch, number, read, sim};

const MIB: u64 = 1 << 20;

fn copy_bytes(driver: &SimDriver, stream: StreamHandle, from: DevicePointer, to: DevicePointer, bytes: u64) {
    let (source, target) = (Endpoint::Device(from), Endpoint::Device(to));
    driver.copy_async(stream, &Copy { target, source, bytes, label: Label::here("copy") }).unwrap();
}

fn fill(driver: &SimDriver, stream: StreamHandle, target: DevicePointer, value: u32, count: u64) {
    let pattern = FillPattern::U32(value);
    driver.fill_async(stream, &Fill { target, pattern, count, label: Label::here("fill") }).unwrap();
}

#[test]
fn memory_ends_exactly_where_it_was_said_to() {
    let driver = sim(2);
    let halves = [0; 2].map(|_| driver.memory_allocate(0, 32 * MIB).unwrap());
    assert_eq!(driver.memory_info(0).unwrap().free_bytes, 0);
    let error = driver.memory_allocate(0, 1).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(driver.memory_info(1).unwrap().free_bytes, 64 * MIB, "devices do not share memory");
    driver.memory_free(halves[0]).unwrap();
    assert_eq!(code(driver.memory_allocate(0, 32 * MIB + 1)), Code::OutOfMemory);
    driver.memory_allocate(0, 32 * MIB).unwrap();
    assert_eq!(code(driver.memory_allocate(0, 0)), Code::InvalidValue);
    assert_eq!(code(driver.memory_allocate(0, u64::MAX)), Code::OutOfMemory);
    assert_eq!(code(driver.memory_allocate(2, 1)), Code::InvalidDevice);
}

/// Physical memory in scattered pieces still makes one allocation with contiguous addresses.
#[test]
fn fragmented_memory_is_mapped_together() {
    let driver = sim(1);
    let pieces: Vec<_> = (0..64).map(|_| driver.memory_allocate(0, MIB).unwrap()).collect();
    for piece in pieces.iter().step_by(2) {
        driver.memory_free(*piece).unwrap();
    }
    let stream = driver.stream_create(0, 0).unwrap();
    fill(&driver, stream, pieces[1], 7, MIB / 4);
    let whole = driver.memory_allocate(0, 32 * MIB).unwrap();
    assert_eq!(driver.memory_info(0).unwrap().free_bytes, 0);
    fill(&driver, stream, whole, 0xabcd, 8 * MIB);
    assert_eq!(read(&driver, stream, whole.offset(17 * MIB - 4)), 0x0000_abcd_0000_abcd);
    assert_eq!(read(&driver, stream, pieces[1]), 0x0000_0007_0000_0007, "the neighbours are untouched");
    launch(&driver, stream, &[Access::read_write(whole, 32 * MIB)], move |launch| {
        assert!(launch.read::<u32>(whole, 8 << 20)?.iter().all(|word| *word == 0xabcd));
        Ok(())
    })
    .unwrap();
    driver.memory_free(whole).unwrap();
    driver.memory_allocate(0, 32 * MIB).unwrap();
    driver.device_synchronize(0).unwrap();
}

#[test]
fn freeing_waits_for_the_work_that_may_use_the_memory() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let value = number(&driver, 0);
    let gate = Gate::close(&driver, stream);
    append(&driver, stream, value, 1);
    let opener = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        gate.open();
    });
    driver.memory_free(value).unwrap();
    assert!(driver.stream_query(stream).unwrap());
    opener.join().unwrap();
    assert_eq!(code(driver.memory_free(value)), Code::InvalidValue);
    driver.device_synchronize(0).unwrap();
}

#[test]
fn wrong_pointers_of_copies_and_fills_are_refused_at_once() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let data = driver.memory_allocate(0, 1000).unwrap();
    let pinned = driver.host_allocate(1000, HostFlags::default()).unwrap();
    let copy = |source, target, bytes| {
        driver.copy_async(stream, &Copy { source, target, bytes, label: Label::here("copy") })
    };
    let (device, host) = (Endpoint::Device(data), Endpoint::Pinned(pinned));
    copy(device, host, 1000).unwrap();
    copy(host, device, 0).unwrap();
    assert_eq!(code(copy(device, host, 1001)), Code::InvalidValue);
    assert_eq!(code(copy(Endpoint::Device(data.offset(900)), host, 101)), Code::InvalidValue);
    assert_eq!(code(copy(Endpoint::Device(DevicePointer::new(u64::MAX)), host, 8)), Code::InvalidValue);
    assert_eq!(code(driver.host_read(pinned.offset(1), &mut [0; 1000])), Code::InvalidValue);
    let odd =
        Fill { target: data.offset(1), pattern: FillPattern::U16(1), count: 1, label: Label::here("fill") };
    assert_eq!(code(driver.fill_async(stream, &odd)), Code::InvalidValue);
    driver.host_free(pinned).unwrap();
    assert_eq!(code(driver.host_free(pinned)), Code::InvalidValue);
    assert_eq!(code(driver.host_write(pinned, &[1])), Code::InvalidValue);
    driver.device_synchronize(0).unwrap();
}

#[test]
fn overlapping_copies_move() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let data = driver.memory_allocate(0, 256).unwrap();
    let content: Vec<u8> = (0..=255).collect();
    driver.copy_from_host(stream, data, &content, Label::here("in")).unwrap();
    copy_bytes(&driver, stream, data, data.offset(3), 200);
    let mut seen = [0; 256];
    driver.copy_to_host(stream, &mut seen, data, Label::here("out")).unwrap();
    assert_eq!(seen[3..203], content[..200]);
}

#[test]
fn mapped_memory_can_be_moved_and_aliased() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let page = driver.device_properties(0).unwrap().virtual_memory_granularity_bytes;
    let range = driver.address_reserve(0, 4 * page).unwrap();
    assert_eq!(driver.memory_info(0).unwrap().free_bytes, 64 * MIB, "addresses cost no memory");
    let physical = driver.physical_create(0, 2 * page, PhysicalFlags::default()).unwrap();
    driver.memory_map(range, page, physical, 0).unwrap();
    driver.memory_map(range.offset(page), page, physical, page).unwrap();
    driver.memory_map(range.offset(2 * page), page, physical, 0).unwrap();
    assert_eq!(code(driver.memory_map(range, page, physical, 0)), Code::AlreadyMapped);
    driver.memory_set_access(range, 3 * page, 0, MemoryAccess::ReadWrite).unwrap();

    // One access crosses the boundary of two mappings; the third mapping is the first memory again.
    fill(&driver, stream, range.offset(page - 4), 5, 2);
    assert_eq!(read(&driver, stream, range.offset(page - 4)), 0x0000_0005_0000_0005);
    fill(&driver, stream, range.offset(2 * page), 6, 2);
    assert_eq!(read(&driver, stream, range), 0x0000_0006_0000_0006, "an alias is the same memory");

    // The handle is released; the mapped memory stays, and moves to another address with its content.
    driver.device_synchronize(0).unwrap();
    driver.memory_unmap(range, 2 * page).unwrap();
    driver.memory_map(range.offset(3 * page), page, physical, 0).unwrap();
    driver.physical_release(physical).unwrap();
    driver.memory_set_access(range.offset(3 * page), page, 0, MemoryAccess::Read).unwrap();
    assert_eq!(read(&driver, stream, range.offset(3 * page)), 0x0000_0006_0000_0006);
    assert_eq!(driver.memory_info(0).unwrap().free_bytes, 64 * MIB - 2 * page);
    assert_eq!(code(driver.address_free(range, 4 * page)), Code::InvalidValue);
    driver.memory_unmap(range.offset(2 * page), 2 * page).unwrap();
    assert_eq!(driver.memory_info(0).unwrap().free_bytes, 64 * MIB);
    driver.address_free(range, 4 * page).unwrap();
    assert_eq!(code(driver.memory_map(range, page, physical, 0)), Code::InvalidHandle);
}

/// Two kernels write the same physical bytes through different addresses: the range lock must detect this.
#[test]
fn aliases_are_one_memory_to_the_range_lock() {
    let driver = SimDriver::new(SimConfig { workers: 4, ..SimConfig::default() }).unwrap();
    let page = driver.device_properties(0).unwrap().virtual_memory_granularity_bytes;
    let range = driver.address_reserve(0, 2 * page).unwrap();
    let physical = driver.physical_create(0, page, PhysicalFlags::default()).unwrap();
    for offset in [0, page] {
        driver.memory_map(range.offset(offset), page, physical, 0).unwrap();
    }
    driver.memory_set_access(range, 2 * page, 0, MemoryAccess::ReadWrite).unwrap();
    let streams = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
    fill(&driver, streams[0], range, 0, 256);
    driver.stream_synchronize(streams[0]).unwrap();
    for count in 0..40 {
        let start = range.offset(page * (count % 2));
        let stream = streams[count as usize % 2];
        launch(&driver, stream, &[Access::read_write(start, 1024)], move |launch| {
            for word in launch.write::<u32>(start, 256)? {
                let before = *word;
                std::thread::yield_now();
                *word = before + 1;
            }
            Ok(())
        })
        .unwrap();
    }
    driver.device_synchronize(0).unwrap();
    assert_eq!(read(&driver, streams[0], range), 40 << 32 | 40);

    // And one kernel cannot borrow both addresses mutably.
    let accesses = [Access::read_write(range, 8), Access::read_write(range.offset(page), 8)];
    launch(&driver, streams[0], &accesses, move |launch| {
        let first = launch.write::<u32>(range, 2)?;
        assert!(launch.write::<u32>(range.offset(page), 2).is_err());
        assert!(launch.read::<u32>(range.offset(page + 4), 1).is_err());
        first[0] = 1;
        Ok(())
    })
    .unwrap();
    driver.device_synchronize(0).unwrap();
}

#[test]
fn mapped_memory_is_closed_until_access_is_set() {
    let driver = sim(1);
    let page = driver.device_properties(0).unwrap().virtual_memory_granularity_bytes;
    let range = driver.address_reserve(0, page).unwrap();
    let physical = driver.physical_create(0, page, PhysicalFlags::default()).unwrap();
    assert_eq!(code(driver.memory_map(range.offset(4096), page, physical, 0)), Code::InvalidValue);
    assert_eq!(code(driver.memory_map(range, 2 * page, physical, 0)), Code::InvalidValue);
    driver.memory_map(range, page, physical, 0).unwrap();
    let stream = driver.stream_create(0, 0).unwrap();
    let write = Fill { target: range, pattern: FillPattern::U8(1), count: 8, label: Label::here("fill") };
    assert_eq!(code(driver.fill_async(stream, &write)), Code::InvalidValue);
    driver.memory_set_access(range, page, 0, MemoryAccess::Read).unwrap();
    assert_eq!(code(driver.fill_async(stream, &write)), Code::InvalidValue);
    driver.memory_set_access(range, page, 0, MemoryAccess::ReadWrite).unwrap();
    driver.fill_async(stream, &write).unwrap();
    launch(&driver, stream, &[Access::read(range, 8)], |_| Ok(())).unwrap();
    driver.stream_synchronize(stream).unwrap();
    driver.memory_unmap(range, page).unwrap();
    launch(&driver, stream, &[Access::read(range, 8)], |_| Ok(())).unwrap();
    assert_eq!(code(driver.stream_synchronize(stream)), Code::IllegalAddress);
}

#[test]
fn peer_memory_needs_access() {
    let driver = sim(3);
    assert!(driver.can_access_peer(0, 1).unwrap());
    assert!(!driver.can_access_peer(1, 1).unwrap());
    let there = number(&driver, 1);
    let streams = [0, 1, 2].map(|device| driver.stream_create(device, 0).unwrap());
    driver.enable_peer_access(0, 1).unwrap();
    assert_eq!(code(driver.enable_peer_access(0, 1)), Code::PeerAccessAlreadyEnabled);
    assert_eq!(code(driver.disable_peer_access(1, 0)), Code::PeerAccessNotEnabled);
    append(&driver, streams[0], there, 4);
    driver.stream_synchronize(streams[0]).unwrap();
    assert_eq!(read(&driver, streams[1], there), 4);

    // Copies go between any two devices; a kernel without access is lost, and only its own device with it.
    let here = number(&driver, 2);
    copy_bytes(&driver, streams[2], there, here, 8);
    assert_eq!(read(&driver, streams[2], here), 4);
    append(&driver, streams[2], there, 5);
    let error = driver.stream_synchronize(streams[2]).unwrap_err();
    assert_eq!(error.code(), Code::IllegalAddress);
    assert!(error.detail().contains("enable_peer_access"), "{error}");
    append(&driver, streams[0], there, 6);
    driver.stream_synchronize(streams[0]).unwrap();
    assert_eq!(read(&driver, streams[1], there), 46);
    driver.disable_peer_access(0, 1).unwrap();
    append(&driver, streams[0], there, 7);
    assert_eq!(code(driver.device_synchronize(0)), Code::IllegalAddress);
}

#[test]
fn pools_allocate_in_stream_order() {
    let driver = sim(1);
    let [first, second] = [0; 2].map(|_| driver.stream_create(0, 0).unwrap());
    let pool = driver.pool_create(0).unwrap();
    let pointer = driver.memory_allocate_async(pool, 1000, first).unwrap();
    let gate = Gate::close(&driver, first);
    driver.memory_free_async(pointer, first).unwrap();
    assert_eq!(code(driver.memory_free_async(pointer, first)), Code::InvalidValue);
    let other = driver.memory_allocate_async(pool, 1000, second).unwrap();
    assert_ne!(other, pointer, "the free has not been reached");
    gate.open();
    driver.device_synchronize(0).unwrap();
    assert_eq!(driver.memory_allocate_async(pool, 1000, second).unwrap(), pointer);

    // The pool keeps its memory until it is trimmed, and a destroyed pool until its last allocation is freed.
    let large = driver.memory_allocate_async(pool, 16 * MIB, second).unwrap();
    driver.memory_free_async(large, second).unwrap();
    driver.stream_synchronize(second).unwrap();
    let held = 64 * MIB - driver.memory_info(0).unwrap().free_bytes;
    assert!(held >= 18 * MIB);
    driver.pool_trim(pool, 0).unwrap();
    let held = 64 * MIB - driver.memory_info(0).unwrap().free_bytes;
    assert!((1000..=2 * MIB).contains(&held), "{held}");
    driver.pool_destroy(pool).unwrap();
    assert_eq!(code(driver.memory_allocate_async(pool, 8, first)), Code::InvalidHandle);
    driver.memory_free_async(pointer, first).unwrap();
    driver.memory_free_async(other, first).unwrap();
    driver.stream_synchronize(first).unwrap();
    assert_eq!(driver.memory_info(0).unwrap().free_bytes, 64 * MIB);
}

#[test]
fn a_full_pool_waits_for_frees_that_are_queued() {
    let driver = sim(1);
    let stream = driver.stream_create(0, 0).unwrap();
    let pool = driver.pool_create(0).unwrap();
    for _ in 0..8 {
        let pointer = driver.memory_allocate_async(pool, 40 * MIB, stream).unwrap();
        fill(&driver, stream, pointer, 1, MIB);
        driver.memory_free_async(pointer, stream).unwrap();
    }
    let error = driver.memory_allocate_async(pool, 65 * MIB, stream).unwrap_err();
    assert!(error.is_out_of_memory());
    driver.device_synchronize(0).unwrap();
}

#[test]
fn a_configuration_out_of_bounds_is_refused() {
    for config in [
        SimConfig { devices: 0, ..SimConfig::default() },
        SimConfig { devices: 65, ..SimConfig::default() },
        SimConfig { workers: 0, ..SimConfig::default() },
        SimConfig { memory_bytes: 100, ..SimConfig::default() },
    ] {
        assert_eq!(code(SimDriver::new(config)), Code::InvalidValue);
    }
}
