//! Plain device memory, stream-ordered pools and pinned host memory.

use thalweg_driver::{
    Code, DevicePointer, Endpoint, HostFlags, HostMethod, Label, MemoryAdvice, MemoryLocation, PoolAttributes,
};

use super::fixture::{Fixture, check_refused, equal, holds, refused_argument, skip};
use super::{CaseResult, Kernel, KernelArguments, group};

group! {
    "memory":
    allocations_are_aligned_and_apart,
    no_bytes_are_refused,
    a_free_counts_once,
    running_out_is_an_error_that_passes,
    a_free_waits_for_the_work,
    pool_memory_is_ordered_by_the_stream,
    pool_memory_moves_between_streams,
    pool_memory_outlives_its_pool,
    a_pool_free_counts_once,
    a_pool_is_given_up_once,
    a_pool_says_what_it_holds,
    a_pool_keeps_its_attributes,
    managed_memory_is_memory,
    only_managed_memory_is_advised,
    pinned_memory_is_zeroed,
    pinned_memory_is_read_and_written,
    pinned_memory_is_bounded,
    pinned_memory_is_freed_once,
    a_pinned_free_waits_for_the_work,
    every_kind_of_pinned_memory_works,
    registered_memory_is_pinned_memory,
    a_registered_free_waits_for_the_work,
    registered_memory_is_not_write_combined,
}

fn allocations_are_aligned_and_apart(fixture: &Fixture) -> CaseResult {
    let sizes = [1, 3, 255, 256, 257, 4096, (1 << 20) + 3];
    let mut ranges = Vec::new();
    for bytes in sizes {
        ranges.push((fixture.memory_allocate(fixture.device, bytes)?.address(), bytes));
    }
    let aligned = ranges.iter().all(|(address, _)| address.is_multiple_of(256));
    let apart = ranges.iter().enumerate().all(|(i, &(one, one_bytes))| {
        ranges[i + 1..].iter().all(|&(other, bytes)| one + one_bytes <= other || other + bytes <= one)
    });
    for &(address, _) in &ranges {
        fixture.memory_free(thalweg_driver::DevicePointer::new(address))?;
    }
    holds(aligned, "every allocation is aligned to 256 bytes")?;
    holds(apart, "no two allocations share a byte")
}

fn no_bytes_are_refused(fixture: &Fixture) -> CaseResult {
    check_refused(
        fixture.memory_allocate(fixture.device, 0),
        &[Code::InvalidValue],
        "memory_allocate of 0 bytes",
    )?;
    check_refused(
        fixture.host_allocate(0, HostFlags::default()),
        &[Code::InvalidValue],
        "host_allocate of 0 bytes",
    )
}

fn a_free_counts_once(fixture: &Fixture) -> CaseResult {
    let pointer = fixture.memory_allocate(fixture.device, 4096)?;
    refused_argument(fixture.memory_free(pointer.offset(256)), "memory_free inside an allocation")?;
    fixture.memory_free(pointer)?;
    refused_argument(fixture.memory_free(pointer), "memory_free twice")
}

fn running_out_is_an_error_that_passes(fixture: &Fixture) -> CaseResult {
    let total = fixture.memory_info(fixture.device)?.total_bytes;
    for bytes in [total + 1, total * 16] {
        let result = fixture.memory_allocate(fixture.device, bytes);
        check_refused(result, &[Code::OutOfMemory], "an allocation larger than the device")?;
    }
    let buffer = fixture.iota(64, 3)?;
    equal(buffer.words()?, (3..67).collect(), "an allocation after running out of memory")
}

fn a_free_waits_for_the_work(fixture: &Fixture) -> CaseResult {
    let (stream, pinned) = (fixture.stream()?, fixture.pinned(4 << 10)?);
    let buffer = fixture.buffer(1 << 10)?;
    let slow = KernelArguments::new(buffer.pointer, buffer.words, 9).with_delay_us(5_000);
    fixture.launch(&stream, Kernel::Constant, slow)?;
    fixture.copy(&stream, pinned.end_at(0), buffer.end(), 4 << 10)?;
    drop(buffer);
    // The next allocation may get the freed memory: earlier work must not reach it.
    let next = fixture.iota(1 << 10, 0)?;
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(next.words()?, (0..1 << 10).collect(), "memory that may be where freed memory was")?;
    equal(pinned.bytes(4 << 10)?, [9, 0, 0, 0].repeat(1 << 10), "what was copied before the free")
}

fn require_pools(fixture: &Fixture) -> CaseResult {
    if fixture.driver.device_properties(fixture.device)?.memory_pools {
        return Ok(());
    }
    skip("the device has no memory pools")
}

fn pool_memory_is_ordered_by_the_stream(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let stream = fixture.stream()?;
    let pool = fixture.pool_create(fixture.device)?;
    for round in 0..20 {
        let pointer = fixture.memory_allocate_async(pool, 4096, stream.handle)?;
        fixture.launch(&stream, Kernel::Iota, KernelArguments::new(pointer, 1024, round))?;
        let seen = fixture.words_on(stream.handle, pointer, 1024)?;
        fixture.memory_free_async(pointer, stream.handle)?;
        equal(seen, (round..round + 1024).collect(), "pool memory, written and read in order")?;
    }
    fixture.stream_synchronize(stream.handle)?;
    fixture.pool_trim(pool, 0)?;
    fixture.pool_destroy(pool)?;
    Ok(())
}

fn pool_memory_moves_between_streams(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let (first, second) = (fixture.stream()?, fixture.stream()?);
    let event = fixture.event()?;
    let pool = fixture.pool_create(fixture.device)?;
    let pointer = fixture.memory_allocate_async(pool, 400, first.handle)?;
    fixture.launch(&first, Kernel::Iota, KernelArguments::new(pointer, 100, 1).with_delay_us(500))?;
    fixture.event_record(event.handle, first.handle)?;
    fixture.stream_wait_event(second.handle, event.handle)?;
    fixture.launch(&second, Kernel::Add, KernelArguments::new(pointer, 100, 1))?;
    let seen = fixture.words_on(second.handle, pointer, 100)?;
    fixture.memory_free_async(pointer, second.handle)?;
    fixture.stream_synchronize(second.handle)?;
    fixture.pool_destroy(pool)?;
    equal(seen, (2..102).collect(), "pool memory of one stream, used and freed on another")
}

fn pool_memory_outlives_its_pool(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let stream = fixture.stream()?;
    let pool = fixture.pool_create(fixture.device)?;
    let pointer = fixture.memory_allocate_async(pool, 256, stream.handle)?;
    fixture.pool_destroy(pool)?;
    fixture.launch(&stream, Kernel::Constant, KernelArguments::new(pointer, 64, 5))?;
    let seen = fixture.words_on(stream.handle, pointer, 64)?;
    fixture.memory_free_async(pointer, stream.handle)?;
    fixture.stream_synchronize(stream.handle)?;
    equal(seen, vec![5; 64], "memory of a pool that was given up")
}

fn a_pool_free_counts_once(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let stream = fixture.stream()?;
    let pool = fixture.pool_create(fixture.device)?;
    let pointer = fixture.memory_allocate_async(pool, 4096, stream.handle)?;
    fixture.memory_free_async(pointer, stream.handle)?;
    let twice = fixture.memory_free_async(pointer, stream.handle);
    fixture.stream_synchronize(stream.handle)?;
    fixture.pool_destroy(pool)?;
    refused_argument(twice, "memory_free_async twice")?;
    let plain = fixture.buffer(4)?;
    let middle = fixture.memory_free_async(plain.pointer.offset(4), stream.handle);
    refused_argument(middle, "memory_free_async inside an allocation")
}

fn a_pool_is_given_up_once(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let stream = fixture.stream()?;
    let pool = fixture.pool_create(fixture.device)?;
    fixture.pool_destroy(pool)?;
    let no = &[Code::InvalidHandle];
    check_refused(fixture.pool_destroy(pool), no, "pool_destroy twice")?;
    check_refused(fixture.pool_trim(pool, 0), no, "pool_trim of a pool that was given up")?;
    let allocation = fixture.memory_allocate_async(pool, 256, stream.handle);
    check_refused(allocation, no, "memory_allocate_async from a pool that was given up")
}

fn a_pool_says_what_it_holds(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let stream = fixture.stream()?;
    let pool = fixture.pool_create(fixture.device)?;
    let fresh = fixture.pool_usage(pool)?;
    equal((fresh.reserved_bytes, fresh.used_bytes), (0, 0), "what a new pool holds and uses")?;
    let (one, two) = (1 << 20, 3 << 20);
    let pointers = [one, two].map(|bytes| fixture.memory_allocate_async(pool, bytes, stream.handle));
    fixture.stream_synchronize(stream.handle)?;
    let full = fixture.pool_usage(pool)?;
    fixture.pool_reset_peaks(pool)?;
    let full_again = fixture.pool_usage(pool)?;
    for pointer in pointers {
        fixture.memory_free_async(pointer?, stream.handle)?;
    }
    fixture.stream_synchronize(stream.handle)?;
    let freed = fixture.pool_usage(pool)?;
    fixture.pool_trim(pool, 0)?;
    let trimmed = fixture.pool_usage(pool)?;
    fixture.pool_reset_peaks(pool)?;
    let reset = fixture.pool_usage(pool)?;
    fixture.pool_destroy(pool)?;
    holds(full.used_bytes >= one + two, "what is allocated counts as used")?;
    holds(full.reserved_bytes >= full.used_bytes, "a pool holds what it uses")?;
    equal(full_again, full, "the peaks of a pool that is as full as it ever was, reset")?;
    equal(freed.used_bytes, 0, "what is used once all is freed")?;
    equal(freed.reserved_bytes, full.reserved_bytes, "what is held once all is freed: it is kept")?;
    equal(trimmed.reserved_bytes, 0, "what is held after a trim")?;
    let peaks = (trimmed.used_peak_bytes, trimmed.reserved_peak_bytes);
    equal(peaks, (full.used_bytes, full.reserved_bytes), "the peaks after a trim")?;
    equal((reset.used_peak_bytes, reset.reserved_peak_bytes), (0, 0), "the peaks of an empty pool, reset")?;
    check_refused(fixture.pool_reset_peaks(pool), &[Code::InvalidHandle], "pool_reset_peaks of such a pool")?;
    check_refused(fixture.pool_usage(pool), &[Code::InvalidHandle], "pool_usage of a pool that was given up")
}

fn a_pool_keeps_its_attributes(fixture: &Fixture) -> CaseResult {
    require_pools(fixture)?;
    let pool = fixture.pool_create(fixture.device)?;
    equal(fixture.pool_attributes(pool)?, PoolAttributes::default(), "the attributes of a new pool")?;
    let changed = PoolAttributes {
        release_threshold_bytes: 5 << 32,
        reuse_allow_opportunistic: false,
        reuse_allow_internal_dependencies: false,
        ..PoolAttributes::default()
    };
    fixture.pool_set_attributes(pool, changed)?;
    equal(fixture.pool_attributes(pool)?, changed, "attributes that were changed")?;
    fixture.pool_destroy(pool)?;
    let codes = &[Code::InvalidHandle];
    check_refused(fixture.pool_attributes(pool), codes, "pool_attributes of a pool that was given up")?;
    check_refused(fixture.pool_set_attributes(pool, changed), codes, "pool_set_attributes of such a pool")
}

/// Returns 256 KiB of managed memory, or skips the case with the reason.
fn managed(fixture: &Fixture) -> CaseResult<DevicePointer> {
    if !fixture.driver.device_properties(fixture.device)?.managed_memory {
        skip("the device has no managed memory")?;
    }
    Ok(fixture.driver.memory_allocate_managed(fixture.device, 256 << 10)?)
}

fn managed_memory_is_memory(fixture: &Fixture) -> CaseResult {
    let pointer = managed(fixture)?;
    let stream = fixture.stream()?;
    if fixture.device_properties(fixture.device)?.concurrent_managed_access {
        let here = MemoryLocation::Device(fixture.device);
        for advice in [
            MemoryAdvice::PreferredLocation(Some(here)),
            MemoryAdvice::AccessedBy(here),
            MemoryAdvice::AccessedBy(MemoryLocation::Host),
            MemoryAdvice::NotAccessedBy(MemoryLocation::Host),
            MemoryAdvice::ReadMostly(true),
            MemoryAdvice::ReadMostly(false),
            MemoryAdvice::PreferredLocation(Some(MemoryLocation::Host)),
            MemoryAdvice::PreferredLocation(None),
        ] {
            fixture.memory_advise(pointer, 256 << 10, advice)?;
        }
    }
    let pinned = fixture.pinned(4096)?;
    fixture.launch(&stream, Kernel::Iota, KernelArguments::new(pointer, 1024, 3))?;
    fixture.copy(&stream, pinned.end_at(0), Endpoint::Device(pointer), 4096)?;
    let seen = fixture.words_on(stream.handle, pointer, 1024)?;
    fixture.memory_free(pointer)?;
    equal(seen, (3..1027).collect(), "managed memory, written by a kernel")?;
    let copied: Vec<u8> = (3..1027_u32).flat_map(u32::to_le_bytes).collect();
    equal(pinned.bytes(4096)?, copied, "what was copied from managed memory")?;
    refused_argument(fixture.memory_free(pointer), "memory_free of managed memory, twice")
}

fn only_managed_memory_is_advised(fixture: &Fixture) -> CaseResult {
    let pointer = managed(fixture)?;
    let advise = |pointer, bytes| fixture.memory_advise(pointer, bytes, MemoryAdvice::ReadMostly(true));
    let plain = fixture.buffer(1024)?;
    let answers = [
        refused_argument(advise(plain.pointer, 4096), "memory_advise of plain memory"),
        refused_argument(advise(pointer, (256 << 10) + 1), "memory_advise of more than there is"),
        refused_argument(advise(pointer, 0), "memory_advise of no bytes"),
        refused_argument(
            fixture.memory_advise(pointer, 4096, MemoryAdvice::AccessedBy(MemoryLocation::Device(u32::MAX))),
            "memory_advise for no device",
        ),
        refused_argument(fixture.memory_allocate_managed(fixture.device, 0), "managed memory of 0 bytes"),
    ];
    fixture.memory_free(pointer)?;
    answers.into_iter().collect::<CaseResult>()?;
    refused_argument(advise(pointer, 4096), "memory_advise of memory that was freed")
}

fn pinned_memory_is_zeroed(fixture: &Fixture) -> CaseResult {
    for _ in 0..3 {
        let pinned = fixture.pinned(5000)?;
        equal(pinned.bytes(5000)?, vec![0; 5000], "fresh pinned memory")?;
        // So that the next allocation would show these bytes if it were the same memory.
        fixture.driver.host_write(pinned.pointer, &[0xab; 5000])?;
    }
    Ok(())
}

fn pinned_memory_is_read_and_written(fixture: &Fixture) -> CaseResult {
    let pinned = fixture.pinned(1000)?;
    fixture.host_write(pinned.pointer.offset(997), &[1, 2, 3])?;
    fixture.host_write(pinned.pointer.offset(1), &[4; 5])?;
    fixture.host_write(pinned.pointer.offset(1000), &[])?;
    let mut expected = vec![0; 1000];
    expected[997..].copy_from_slice(&[1, 2, 3]);
    expected[1..6].fill(4);
    equal(pinned.bytes(1000)?, expected, "pinned memory after two writes")?;
    let mut tail = [0; 2];
    fixture.host_read(pinned.pointer.offset(998), &mut tail)?;
    equal(tail, [2, 3], "the last two bytes")
}

fn pinned_memory_is_bounded(fixture: &Fixture) -> CaseResult {
    let pinned = fixture.pinned(100)?;
    fixture.host_write(pinned.pointer, &[7; 100])?;
    let no = &[Code::InvalidValue];
    check_refused(fixture.host_write(pinned.pointer.offset(90), &[1; 11]), no, "a write over the end")?;
    check_refused(fixture.host_read(pinned.pointer.offset(90), &mut [0; 11]), no, "a read over the end")?;
    check_refused(fixture.host_read(pinned.pointer, &mut [0; 8192]), no, "a read of more than there is")?;
    equal(pinned.bytes(100)?, vec![7; 100], "pinned memory after writes that were refused")
}

fn pinned_memory_is_freed_once(fixture: &Fixture) -> CaseResult {
    let pointer = fixture.host_allocate(4096, HostFlags::default())?;
    refused_argument(fixture.host_free(pointer.offset(64)), "host_free inside an allocation")?;
    fixture.host_free(pointer)?;
    refused_argument(fixture.host_free(pointer), "host_free twice")?;
    refused_argument(fixture.host_read(pointer, &mut [0; 4]), "host_read of freed memory")?;
    refused_argument(fixture.host_write(pointer, &[0; 4]), "host_write of freed memory")
}

fn a_pinned_free_waits_for_the_work(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let (buffer, pinned) = (fixture.buffer(1024)?, fixture.pinned(4096)?);
    let slow = KernelArguments::new(buffer.pointer, buffer.words, 9).with_delay_us(5_000);
    fixture.launch(&stream, Kernel::Constant, slow)?;
    fixture.copy(&stream, pinned.end_at(0), buffer.end(), 4096)?;
    drop(pinned);
    // The next allocation may get the freed memory: the earlier copy must not reach it.
    let next = fixture.pinned(4096)?;
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(next.bytes(4096)?, vec![0; 4096], "pinned memory that may be where freed memory was")
}

fn every_kind_of_pinned_memory_works(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(16, 0)?;
    let kinds = [
        HostFlags { write_combined: true, ..HostFlags::default() },
        registered(fixture, 1)?,
        registered(fixture, 8)?,
    ];
    for (fill, flags) in (3..).zip(kinds) {
        let pointer = fixture.host_allocate(64, flags)?;
        let mut fresh = [1; 64];
        fixture.host_read(pointer, &mut fresh)?;
        fixture.host_write(pointer, &[fill; 64])?;
        let copied = fixture.copy(&stream, buffer.end(), Endpoint::Pinned(pointer), 64);
        fixture.stream_synchronize(stream.handle)?;
        fixture.host_free(pointer)?;
        copied?;
        equal(fresh, [0; 64], "new pinned memory")?;
        let mut seen = [0; 64];
        fixture.copy_to_host(stream.handle, &mut seen, buffer.pointer, Label::here("read back"))?;
        equal(seen, [fill; 64], &format!("what came from pinned memory with {flags:?}"))?;
    }
    Ok(())
}

/// Returns the flags for memory that some threads touch before it is pinned, or skips the case with the reason.
fn registered(fixture: &Fixture, prefault_threads: u32) -> CaseResult<HostFlags> {
    if !fixture.driver.device_properties(fixture.device)?.host_register {
        skip("the device cannot pin memory where it is")?;
    }
    Ok(HostFlags { method: HostMethod::Register { prefault_threads }, ..HostFlags::default() })
}

fn registered_memory_is_pinned_memory(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    for (threads, bytes) in [(0, 1), (1, 4096), (3, 40_001), (16, 1 << 20)] {
        let pointer = fixture.host_allocate(bytes, registered(fixture, threads)?)?;
        let mut content = vec![1; bytes as usize];
        fixture.host_read(pointer, &mut content)?;
        equal(content.iter().all(|byte| *byte == 0), true, "fresh registered memory is zeroed")?;
        let buffer = fixture.buffer(bytes.div_ceil(4))?;
        fixture.host_write(pointer.offset(bytes - 1), &[77])?;
        fixture.copy(&stream, buffer.end(), Endpoint::Pinned(pointer), bytes)?;
        fixture.host_write(pointer, &[0])?;
        fixture.stream_synchronize(stream.handle)?;
        fixture.host_write(pointer.offset(bytes - 1), &[0])?;
        fixture.copy(&stream, Endpoint::Pinned(pointer), buffer.end(), bytes)?;
        fixture.stream_synchronize(stream.handle)?;
        fixture.host_read(pointer.offset(bytes - 1), &mut content[..1])?;
        fixture.host_free(pointer)?;
        if bytes > 1 {
            equal(content[0], 77, "the last byte, to the device and back")?;
        }
        refused_argument(fixture.host_free(pointer), "host_free of registered memory, twice")?;
    }
    Ok(())
}

fn a_registered_free_waits_for_the_work(fixture: &Fixture) -> CaseResult {
    let flags = registered(fixture, 1)?;
    let stream = fixture.stream()?;
    let buffer = fixture.buffer(1 << 20)?;
    let pointer = fixture.host_allocate(4 << 20, flags)?;
    fixture.host_write(pointer, &[5; 64])?;
    let slow = KernelArguments::new(buffer.pointer, buffer.words, 9).with_delay_us(5_000);
    fixture.launch(&stream, Kernel::Constant, slow)?;
    fixture.copy(&stream, buffer.end(), Endpoint::Pinned(pointer), 4 << 20)?;
    fixture.host_free(pointer)?;
    // The memory may have another owner by now: the copy must have read it before.
    let next = fixture.host_allocate(4 << 20, flags)?;
    fixture.host_write(next, &[8; 64])?;
    fixture.stream_synchronize(stream.handle)?;
    fixture.host_free(next)?;
    equal(
        buffer.words()?[..16].to_vec(),
        vec![0x0505_0505; 16],
        "what was copied from memory freed meanwhile",
    )
}

fn registered_memory_is_not_write_combined(fixture: &Fixture) -> CaseResult {
    let flags = HostFlags { write_combined: true, ..registered(fixture, 1)? };
    refused_argument(fixture.driver.host_allocate(4096, flags), "registered write-combined memory")
}
