//! Plain device memory, stream-ordered pools and pinned host memory.

use super::fixture::{Fixture, equal, holds, refused, refused_argument, skip};
use super::{Arguments, Kernel, Outcome, group};
use crate::{Code, HostFlags, Label};

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
    pinned_memory_is_zeroed,
    pinned_memory_is_read_and_written,
    pinned_memory_is_bounded,
    pinned_memory_is_freed_once,
    a_pinned_free_waits_for_the_work,
    every_kind_of_pinned_memory_works,
}

fn allocations_are_aligned_and_apart(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    let sizes = [1, 3, 255, 256, 257, 4096, (1 << 20) + 3];
    let mut ranges = Vec::new();
    for bytes in sizes {
        ranges.push((driver.memory_allocate(fixture.device, bytes)?.address(), bytes));
    }
    let aligned = ranges.iter().all(|(address, _)| address.is_multiple_of(256));
    let apart = ranges.iter().enumerate().all(|(i, &(one, one_bytes))| {
        ranges[i + 1..].iter().all(|&(other, bytes)| one + one_bytes <= other || other + bytes <= one)
    });
    for &(address, _) in &ranges {
        driver.memory_free(crate::DevicePointer::new(address))?;
    }
    holds(aligned, "every allocation is aligned to 256 bytes")?;
    holds(apart, "no two allocations share a byte")
}

fn no_bytes_are_refused(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    refused(driver.memory_allocate(fixture.device, 0), &[Code::InvalidValue], "memory_allocate of 0 bytes")?;
    refused(driver.host_allocate(0, HostFlags::default()), &[Code::InvalidValue], "host_allocate of 0 bytes")
}

fn a_free_counts_once(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    let pointer = driver.memory_allocate(fixture.device, 4096)?;
    refused_argument(driver.memory_free(pointer.offset(256)), "memory_free inside an allocation")?;
    driver.memory_free(pointer)?;
    refused_argument(driver.memory_free(pointer), "memory_free twice")
}

fn running_out_is_an_error_that_passes(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    let total = driver.memory_info(fixture.device)?.total_bytes;
    for bytes in [total + 1, total * 16] {
        let result = driver.memory_allocate(fixture.device, bytes);
        refused(result, &[Code::OutOfMemory], "an allocation larger than the device")?;
    }
    let buffer = fixture.iota(64, 3)?;
    equal(buffer.words()?, (3..67).collect(), "an allocation after running out of memory")
}

fn a_free_waits_for_the_work(fixture: &Fixture) -> Outcome {
    let (stream, pinned) = (fixture.stream()?, fixture.pinned(4 << 10)?);
    let buffer = fixture.buffer(1 << 10)?;
    let slow = Arguments::new(buffer.pointer, buffer.words, 9).with_delay_us(5_000);
    fixture.launch(&stream, Kernel::Constant, slow)?;
    fixture.copy(&stream, pinned.end_at(0), buffer.end(), 4 << 10)?;
    drop(buffer);
    // What comes next may get the freed memory: it must not meet the work of before.
    let next = fixture.iota(1 << 10, 0)?;
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(next.words()?, (0..1 << 10).collect(), "memory that may be where freed memory was")?;
    equal(pinned.bytes(4 << 10)?, [9, 0, 0, 0].repeat(1 << 10), "what was copied before the free")
}

fn require_pools(fixture: &Fixture) -> Outcome {
    if fixture.driver.device_properties(fixture.device)?.memory_pools {
        return Ok(());
    }
    skip("the device has no memory pools")
}

fn pool_memory_is_ordered_by_the_stream(fixture: &Fixture) -> Outcome {
    require_pools(fixture)?;
    let driver = fixture.driver();
    let stream = fixture.stream()?;
    let pool = driver.pool_create(fixture.device)?;
    for round in 0..20 {
        let pointer = driver.memory_allocate_async(pool, 4096, stream.handle)?;
        fixture.launch(&stream, Kernel::Iota, Arguments::new(pointer, 1024, round))?;
        let seen = fixture.words_on(stream.handle, pointer, 1024)?;
        driver.memory_free_async(pointer, stream.handle)?;
        equal(seen, (round..round + 1024).collect(), "pool memory, written and read in order")?;
    }
    driver.stream_synchronize(stream.handle)?;
    driver.pool_trim(pool, 0)?;
    driver.pool_destroy(pool)?;
    Ok(())
}

fn pool_memory_moves_between_streams(fixture: &Fixture) -> Outcome {
    require_pools(fixture)?;
    let driver = fixture.driver();
    let (first, second) = (fixture.stream()?, fixture.stream()?);
    let event = fixture.event()?;
    let pool = driver.pool_create(fixture.device)?;
    let pointer = driver.memory_allocate_async(pool, 400, first.handle)?;
    fixture.launch(&first, Kernel::Iota, Arguments::new(pointer, 100, 1).with_delay_us(500))?;
    driver.event_record(event.handle, first.handle)?;
    driver.stream_wait_event(second.handle, event.handle)?;
    fixture.launch(&second, Kernel::Add, Arguments::new(pointer, 100, 1))?;
    let seen = fixture.words_on(second.handle, pointer, 100)?;
    driver.memory_free_async(pointer, second.handle)?;
    driver.stream_synchronize(second.handle)?;
    driver.pool_destroy(pool)?;
    equal(seen, (2..102).collect(), "pool memory of one stream, used and freed on another")
}

fn pool_memory_outlives_its_pool(fixture: &Fixture) -> Outcome {
    require_pools(fixture)?;
    let driver = fixture.driver();
    let stream = fixture.stream()?;
    let pool = driver.pool_create(fixture.device)?;
    let pointer = driver.memory_allocate_async(pool, 256, stream.handle)?;
    driver.pool_destroy(pool)?;
    fixture.launch(&stream, Kernel::Constant, Arguments::new(pointer, 64, 5))?;
    let seen = fixture.words_on(stream.handle, pointer, 64)?;
    driver.memory_free_async(pointer, stream.handle)?;
    driver.stream_synchronize(stream.handle)?;
    equal(seen, vec![5; 64], "memory of a pool that was given up")
}

fn a_pool_free_counts_once(fixture: &Fixture) -> Outcome {
    require_pools(fixture)?;
    let driver = fixture.driver();
    let stream = fixture.stream()?;
    let pool = driver.pool_create(fixture.device)?;
    let pointer = driver.memory_allocate_async(pool, 4096, stream.handle)?;
    driver.memory_free_async(pointer, stream.handle)?;
    let twice = driver.memory_free_async(pointer, stream.handle);
    driver.stream_synchronize(stream.handle)?;
    driver.pool_destroy(pool)?;
    refused_argument(twice, "memory_free_async twice")?;
    let plain = fixture.buffer(4)?;
    let middle = driver.memory_free_async(plain.pointer.offset(4), stream.handle);
    refused_argument(middle, "memory_free_async inside an allocation")
}

fn a_pool_is_given_up_once(fixture: &Fixture) -> Outcome {
    require_pools(fixture)?;
    let driver = fixture.driver();
    let stream = fixture.stream()?;
    let pool = driver.pool_create(fixture.device)?;
    driver.pool_destroy(pool)?;
    let no = &[Code::InvalidHandle];
    refused(driver.pool_destroy(pool), no, "pool_destroy twice")?;
    refused(driver.pool_trim(pool, 0), no, "pool_trim of a pool that was given up")?;
    let allocation = driver.memory_allocate_async(pool, 256, stream.handle);
    refused(allocation, no, "memory_allocate_async from a pool that was given up")
}

fn pinned_memory_is_zeroed(fixture: &Fixture) -> Outcome {
    for _ in 0..3 {
        let pinned = fixture.pinned(5000)?;
        equal(pinned.bytes(5000)?, vec![0; 5000], "fresh pinned memory")?;
        // So that the next one would show it, were it the same memory.
        fixture.driver.host_write(pinned.pointer, &[0xab; 5000])?;
    }
    Ok(())
}

fn pinned_memory_is_read_and_written(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    let pinned = fixture.pinned(1000)?;
    driver.host_write(pinned.pointer.offset(997), &[1, 2, 3])?;
    driver.host_write(pinned.pointer.offset(1), &[4; 5])?;
    driver.host_write(pinned.pointer.offset(1000), &[])?;
    let mut expected = vec![0; 1000];
    expected[997..].copy_from_slice(&[1, 2, 3]);
    expected[1..6].fill(4);
    equal(pinned.bytes(1000)?, expected, "pinned memory after two writes")?;
    let mut tail = [0; 2];
    driver.host_read(pinned.pointer.offset(998), &mut tail)?;
    equal(tail, [2, 3], "the last two bytes")
}

fn pinned_memory_is_bounded(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    let pinned = fixture.pinned(100)?;
    driver.host_write(pinned.pointer, &[7; 100])?;
    let no = &[Code::InvalidValue];
    refused(driver.host_write(pinned.pointer.offset(90), &[1; 11]), no, "a write over the end")?;
    refused(driver.host_read(pinned.pointer.offset(90), &mut [0; 11]), no, "a read over the end")?;
    refused(driver.host_read(pinned.pointer, &mut [0; 8192]), no, "a read of more than there is")?;
    equal(pinned.bytes(100)?, vec![7; 100], "pinned memory after writes that were refused")
}

fn pinned_memory_is_freed_once(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    let pointer = driver.host_allocate(4096, HostFlags::default())?;
    refused_argument(driver.host_free(pointer.offset(64)), "host_free inside an allocation")?;
    driver.host_free(pointer)?;
    refused_argument(driver.host_free(pointer), "host_free twice")?;
    refused_argument(driver.host_read(pointer, &mut [0; 4]), "host_read of freed memory")?;
    refused_argument(driver.host_write(pointer, &[0; 4]), "host_write of freed memory")
}

fn a_pinned_free_waits_for_the_work(fixture: &Fixture) -> Outcome {
    let stream = fixture.stream()?;
    let (buffer, pinned) = (fixture.buffer(1024)?, fixture.pinned(4096)?);
    let slow = Arguments::new(buffer.pointer, buffer.words, 9).with_delay_us(5_000);
    fixture.launch(&stream, Kernel::Constant, slow)?;
    fixture.copy(&stream, pinned.end_at(0), buffer.end(), 4096)?;
    drop(pinned);
    // What comes next may get the freed memory: the copy of before must not reach it.
    let next = fixture.pinned(4096)?;
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(next.bytes(4096)?, vec![0; 4096], "pinned memory that may be where freed memory was")
}

fn every_kind_of_pinned_memory_works(fixture: &Fixture) -> Outcome {
    let driver = fixture.driver();
    let stream = fixture.stream()?;
    let buffer = fixture.iota(16, 0)?;
    let kinds = [
        HostFlags { write_combined: true, ..HostFlags::default() },
        HostFlags { register_threads: 1, ..HostFlags::default() },
        HostFlags { register_threads: 8, ..HostFlags::default() },
    ];
    for (fill, flags) in (3..).zip(kinds) {
        let pointer = driver.host_allocate(64, flags)?;
        let mut fresh = [1; 64];
        driver.host_read(pointer, &mut fresh)?;
        driver.host_write(pointer, &[fill; 64])?;
        let copied = fixture.copy(&stream, buffer.end(), crate::Endpoint::Pinned(pointer), 64);
        driver.stream_synchronize(stream.handle)?;
        driver.host_free(pointer)?;
        copied?;
        equal(fresh, [0; 64], "new pinned memory")?;
        let mut seen = [0; 64];
        driver.copy_to_host(stream.handle, &mut seen, buffer.pointer, Label::here("read back"))?;
        equal(seen, [fill; 64], &format!("what came from pinned memory with {flags:?}"))?;
    }
    Ok(())
}
