//! Copies in all directions, fills, and their bounds.

use thalweg_driver::{Code, Fill, FillPattern, Label};

use super::fixture::{Fixture, check_refused, equal, refused_argument};
use super::{CaseResult, group};

group! {
    "copies":
    bytes_travel_through_all_directions,
    ordinary_memory_is_copied,
    the_source_may_change_after_the_call,
    copies_are_ordered_with_kernels,
    large_copies_arrive_whole,
    fills_write_their_pattern,
    misaligned_fills_are_refused,
    copies_are_bounded,
    fills_are_bounded,
    no_bytes_change_nothing,
}

/// Returns bytes that differ from their neighbours.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn bytes_travel_through_all_directions(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let (source, target) = (fixture.pinned(300)?, fixture.pinned(300)?);
    let (first, second) = (fixture.buffer(100)?, fixture.buffer(100)?);
    for (offset, bytes) in [(0, 300), (1, 1), (3, 17), (13, 250), (299, 1)] {
        let content: Vec<u8> = pattern(300).into_iter().map(|byte| byte ^ offset as u8).collect();
        fixture.driver.host_write(source.pointer, &content)?;
        fixture.driver.host_write(target.pointer, &[0; 300])?;
        fixture.copy(&stream, first.end_at(offset), source.end_at(offset), bytes)?;
        fixture.copy(&stream, second.end_at(7), first.end_at(offset), bytes)?;
        fixture.copy(&stream, target.end_at(300 - bytes), second.end_at(7), bytes)?;
        fixture.driver.stream_synchronize(stream.handle)?;
        let mut expected = vec![0; 300];
        let (from, length) = (offset as usize, bytes as usize);
        expected[300 - length..].copy_from_slice(&content[from..from + length]);
        equal(target.bytes(300)?, expected, &format!("{bytes} bytes from offset {offset}, host to host"))?;
    }
    Ok(())
}

fn ordinary_memory_is_copied(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let label = Label::here("copy of ordinary memory");
    let buffer = fixture.buffer((1 << 19) + 64)?;
    for (offset, bytes) in [(0, 1), (1, 3), (255, 4), (3, (64 << 10) + 1), (5, (1 << 20) + 7)] {
        let content = pattern(bytes);
        let pointer = buffer.pointer.offset(offset);
        let mut seen = vec![0; bytes];
        driver.copy_from_host(stream.handle, pointer, &content, label)?;
        driver.copy_to_host(stream.handle, &mut seen, pointer, label)?;
        equal(
            seen == content,
            true,
            &format!("whether {bytes} bytes at offset {offset} came back the same"),
        )?;
    }
    Ok(())
}

fn the_source_may_change_after_the_call(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let label = Label::here("copy of ordinary memory");
    for bytes in [4, 4096, 1 << 20] {
        let buffer = fixture.buffer(bytes as u64 / 4)?;
        let mut content = vec![1_u8; bytes];
        fixture.driver.copy_from_host(stream.handle, buffer.pointer, &content, label)?;
        content.fill(2);
        fixture.driver.stream_synchronize(stream.handle)?;
        let seen = fixture.bytes(buffer.pointer, bytes)?;
        equal(
            seen.iter().all(|&byte| byte == 1),
            true,
            "whether the bytes are those of the time of the call",
        )?;
    }
    Ok(())
}

fn copies_are_ordered_with_kernels(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let (one, two) = (fixture.buffer(64)?, fixture.buffer(64)?);
    let pinned = fixture.pinned(256)?;
    for value in 0..25 {
        fixture.set(&stream, &one, value)?;
        fixture.copy(&stream, two.end(), one.end(), 256)?;
        fixture.set(&stream, &one, 1000)?;
        fixture.add(&stream, &two, 1)?;
        fixture.copy(&stream, pinned.end_at(0), two.end(), 256)?;
        fixture.set(&stream, &two, 2000)?;
        fixture.driver.stream_synchronize(stream.handle)?;
        let expected = (value + 1).to_le_bytes().repeat(64);
        equal(pinned.bytes(256)?, expected, "what arrived after kernels and copies in one stream")?;
    }
    Ok(())
}

fn large_copies_arrive_whole(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let bytes = 3 << 20;
    let (pinned, buffer) = (fixture.pinned(bytes)?, fixture.buffer(bytes / 4)?);
    let content = pattern(bytes as usize);
    fixture.driver.host_write(pinned.pointer, &content)?;
    fixture.copy(&stream, buffer.end(), pinned.end_at(0), bytes)?;
    let mut seen = vec![0; bytes as usize];
    fixture.driver.copy_to_host(stream.handle, &mut seen, buffer.pointer, Label::here("read back"))?;
    equal(seen == content, true, "whether 3 MiB came back the same")
}

fn fills_write_their_pattern(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let patterns = [
        (FillPattern::U8(0xa5), vec![0xa5]),
        (FillPattern::U16(0x1234), vec![0x34, 0x12]),
        (FillPattern::U32(0xdead_beef), vec![0xef, 0xbe, 0xad, 0xde]),
    ];
    for (pattern, unit) in patterns {
        for count in [1, 2, 3, 7, 64, 1021] {
            let buffer = fixture.buffer(1100)?;
            let all = Fill {
                target: buffer.pointer,
                pattern: FillPattern::U8(0x11),
                count: 4400,
                label: Label::here("fill"),
            };
            let some = Fill { target: buffer.pointer.offset(pattern.bytes() * 3), pattern, count, ..all };
            fixture.driver.fill_async(stream.handle, &all)?;
            fixture.driver.fill_async(stream.handle, &some)?;
            let mut seen = vec![0; 4400];
            fixture.driver.copy_to_host(stream.handle, &mut seen, buffer.pointer, all.label)?;
            let mut expected = vec![0x11; 4400];
            let (start, bytes) = (unit.len() * 3, unit.len() * count as usize);
            expected[start..start + bytes].copy_from_slice(&unit.repeat(count as usize));
            equal(
                seen == expected,
                true,
                &format!("whether {count} times {pattern:?} stands there, and only there"),
            )?;
        }
    }
    Ok(())
}

fn misaligned_fills_are_refused(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(16, 0)?;
    for (offset, pattern) in [(1, FillPattern::U16(1)), (1, FillPattern::U32(1)), (2, FillPattern::U32(1))] {
        let fill = Fill {
            target: buffer.pointer.offset(offset),
            pattern,
            count: 1,
            label: Label::here("a misaligned fill"),
        };
        let result = fixture.driver.fill_async(stream.handle, &fill);
        check_refused(result, &[Code::InvalidValue], &format!("{pattern:?} at offset {offset}"))?;
    }
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (0..16).collect(), "memory after fills that were refused")
}

/// Far beyond the end: CUDA rounds allocations up, and does not guarantee to detect a copy that ends inside the rounding.
const TOO_MANY: u64 = 1 << 42;

fn copies_are_bounded(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let (buffer, pinned) = (fixture.iota(16, 0)?, fixture.pinned(64)?);
    let to_host = fixture.copy(&stream, pinned.end_at(0), buffer.end(), TOO_MANY);
    refused_argument(to_host, "a copy to pinned memory of more than there is")?;
    let to_device = fixture.copy(&stream, buffer.end(), pinned.end_at(0), TOO_MANY);
    refused_argument(to_device, "a copy from pinned memory of more than there is")?;
    let between = fixture.copy(&stream, buffer.end(), buffer.end_at(32), TOO_MANY);
    refused_argument(between, "a copy inside the device of more than there is")?;
    let wrapping = fixture.copy(&stream, buffer.end(), buffer.end_at(32), u64::MAX - 8);
    refused_argument(wrapping, "a copy that runs around the end of the addresses")?;
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (0..16).collect(), "memory after copies that were refused")
}

fn fills_are_bounded(fixture: &Fixture) -> CaseResult {
    let stream = fixture.stream()?;
    let buffer = fixture.iota(16, 0)?;
    for (pattern, count) in [(FillPattern::U8(1), TOO_MANY), (FillPattern::U32(1), u64::MAX / 2)] {
        let label = Label::here("a fill over the end");
        let fill = Fill { target: buffer.pointer, pattern, count, label };
        let result = fixture.driver.fill_async(stream.handle, &fill);
        refused_argument(result, &format!("{count} times {pattern:?}"))?;
    }
    fixture.driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (0..16).collect(), "memory after fills that were refused")
}

/// The contract does not define whether a copy of 0 bytes is allowed. In either case nothing changes.
fn no_bytes_change_nothing(fixture: &Fixture) -> CaseResult {
    let (driver, stream) = (fixture.driver(), fixture.stream()?);
    let label = Label::here("nothing");
    let (buffer, other) = (fixture.iota(16, 0)?, fixture.iota(16, 100)?);
    let fill = Fill { target: buffer.pointer, pattern: FillPattern::U8(1), count: 0, label };
    let results = [
        fixture.copy(&stream, buffer.end(), other.end(), 0),
        driver.fill_async(stream.handle, &fill),
        driver.copy_from_host(stream.handle, buffer.pointer, &[], label),
        driver.copy_to_host(stream.handle, &mut [], buffer.pointer, label),
    ];
    for result in results {
        if result.is_err() {
            check_refused(result, &[Code::InvalidValue], "a command over no bytes")?;
        }
    }
    driver.stream_synchronize(stream.handle)?;
    equal(buffer.words()?, (0..16).collect(), "memory after commands over no bytes")
}
