//! The numbers of a page as bytes: columns of varints, encoded as base64.
//!
//! Each column is written completely before the next begins, without a length: the metadata contains the number of rows. Numbers
//! are little-endian groups of seven bits, with the top bit set on all but the last; signed ones are folded (0, -1, 1, -2, …)
//! before.
//!
//! Moments are positions here: position 0 is before the first event, position p after p events. An object that begins with event
//! e exists from position e + 1 on, and one that ends with event e no longer exists there.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::report::model::{BlockLife, Curve, DevicePage, PageModel, SegmentLife};

/// The number of bytes that are written as base64 in one step; a multiple of three.
const PIECE: usize = 3 << 14;

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn signed(out: &mut Vec<u8>, value: i64) {
    number(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Returns the position from which on the effect of an event is visible; 0 for a state before the first event.
fn position(event: Option<u32>) -> u64 {
    event.map_or(0, |event| u64::from(event) + 1)
}

/// Returns the greatest common divisor; 1 if there are no values.
fn unit(values: impl Iterator<Item = u64>) -> u64 {
    let mut greatest = 0;
    for mut value in values {
        while value != 0 {
            (greatest, value) = (value, greatest % value);
        }
        if greatest == 1 {
            break;
        }
    }
    greatest.max(1)
}

/// Writes one column, with one number per row.
fn column<T>(out: &mut Vec<u8>, rows: &[&T], value: impl Fn(&T) -> u64) {
    rows.iter().for_each(|row| number(out, value(row)));
}

/// Writes one column of differences from the previous row.
fn differences<T>(out: &mut Vec<u8>, rows: &[&T], value: impl Fn(&T) -> i64) {
    let mut last = 0;
    for row in rows {
        let value = value(row);
        signed(out, value.wrapping_sub(last));
        last = value;
    }
}

/// Returns the bytes that `page/data.js` reads as a device.
pub fn device(device: &DevicePage, model: &PageModel) -> Vec<u8> {
    check(device, model);
    let mut blocks: Vec<_> = device.blocks.iter().collect();
    blocks.sort_by_key(|block| block.allocated);
    let mut segments: Vec<_> = device.segments.iter().collect();
    segments.sort_by_key(|segment| segment.taken);
    let ranges = blocks.iter().flat_map(|block| [block.address, block.size_bytes]);
    let unit = unit(ranges.chain(segments.iter().flat_map(|segment| [segment.address, segment.size_bytes])));

    let mut out = Vec::with_capacity(blocks.len() * 18 + device.event_count as usize * 2);
    number(&mut out, unit);
    let mut last = device.times_us.first().copied().unwrap_or(0);
    for &time in &device.times_us {
        signed(&mut out, time.wrapping_sub(last));
        last = time;
    }
    self::blocks(&mut out, &blocks, unit);
    self::segments(&mut out, &segments, unit);
    device.curves.iter().for_each(|curve| self::curve(&mut out, curve));
    out
}

fn blocks(out: &mut Vec<u8>, blocks: &[&BlockLife], unit: u64) {
    differences(out, blocks, |block| position(block.allocated) as i64);
    // 0 means never; a block cannot end where it begins.
    let freed = |block: &BlockLife| block.freed.or(block.completed);
    column(out, blocks, |block| {
        freed(block).map_or(0, |end| position(Some(end)) - position(block.allocated))
    });
    column(out, blocks, |block| match (freed(block), block.completed) {
        (Some(freed), Some(completed)) => u64::from(completed - freed) + 1,
        _ => 0,
    });
    differences(out, blocks, |block| (block.address / unit) as i64);
    column(out, blocks, |block| block.size_bytes / unit);
    blocks.iter().for_each(|block| signed(out, block.size_bytes.wrapping_sub(block.requested_bytes) as i64));
    column(out, blocks, |block| u64::from(block.stream));
    column(out, blocks, |block| u64::from(block.pool));
    column(out, blocks, |block| u64::from(block.category));
    column(out, blocks, |block| block.stack.map_or(0, |stack| u64::from(stack) + 1));
}

fn segments(out: &mut Vec<u8>, segments: &[&SegmentLife], unit: u64) {
    differences(out, segments, |segment| position(segment.taken) as i64);
    column(out, segments, |segment| {
        segment.returned.map_or(0, |end| position(Some(end)) - position(segment.taken))
    });
    differences(out, segments, |segment| (segment.address / unit) as i64);
    column(out, segments, |segment| segment.size_bytes / unit);
    column(out, segments, |segment| u64::from(segment.stream));
    column(out, segments, |segment| u64::from(segment.pool));
    column(out, segments, |segment| u64::from(segment.is_expandable));
}

fn curve(out: &mut Vec<u8>, curve: &Curve) {
    let steps: Vec<_> = curve.steps.iter().collect();
    differences(out, &steps, |(event, _)| position(*event) as i64);
    differences(out, &steps, |(_, bytes)| *bytes as i64);
}

/// Returns the bytes that `page/data.js` reads as the stacks: the frames as two texts (indices into the list of [`texts`]) and a
/// line, then each stack's length, the index of its telling frame, and its frames.
pub fn stacks(model: &PageModel) -> Vec<u8> {
    let mut out = Vec::new();
    let texts = texts(model);
    let index: HashMap<&str, u64> = texts.iter().copied().zip(0..).collect();
    let frames: Vec<_> = model.frames.iter().collect();
    column(&mut out, &frames, |frame| index[frame.file.as_str()]);
    column(&mut out, &frames, |frame| index[frame.function.as_str()]);
    column(&mut out, &frames, |frame| u64::from(frame.line));
    for stack in &model.stacks {
        let length = stack.frames.len();
        assert!(
            length == 0 || (stack.frame as usize) < length,
            "a stack of {length} tells by a frame beyond"
        );
        number(&mut out, length as u64);
        number(&mut out, u64::from(stack.frame));
        for &frame in &stack.frames {
            assert!((frame as usize) < model.frames.len(), "a stack names frame {frame}, which is not there");
            number(&mut out, u64::from(frame));
        }
    }
    out
}

/// Returns the distinct texts of the frames, in order of first use.
pub fn texts(model: &PageModel) -> Vec<&str> {
    let mut seen = HashMap::new();
    let mut texts = Vec::new();
    for text in model.frames.iter().flat_map(|frame| [frame.file.as_str(), frame.function.as_str()]) {
        if seen.insert(text, ()).is_none() {
            texts.push(text);
        }
    }
    texts
}

/// Checks the model, which our own analysis made: if it contradicts itself, the page would be wrong without notice.
fn check(device: &DevicePage, model: &PageModel) {
    let name = &device.name;
    let events = device.event_count;
    let times = device.times_us.len();
    assert!(times == 0 || times == events as usize, "{name}: {times} times of {events} events");
    for block in &device.blocks {
        let last = block.completed.or(block.freed).or(block.allocated);
        assert!(last.is_none_or(|event| event < events), "{name}: {block:?} ends beyond {events} events");
        let end = block.freed.or(block.completed);
        assert!(end.is_none() || block.allocated < end, "{name}: {block:?} ends before it begins");
        assert!(
            block.completed.is_none() || end <= block.completed,
            "{name}: {block:?} is free before it is freed"
        );
        assert!(usize::from(block.stream) < device.streams.len(), "{name}: no stream {}", block.stream);
        assert!(usize::from(block.pool) < device.pools.len(), "{name}: no pool {}", block.pool);
        assert!(usize::from(block.category) < model.categories.len(), "no category {}", block.category);
        assert!(block.stack.is_none_or(|stack| (stack as usize) < model.stacks.len()), "{name}: {block:?}");
    }
    for segment in &device.segments {
        let end = segment.returned.or(segment.taken);
        assert!(end.is_none_or(|event| event < events), "{name}: {segment:?} ends beyond {events} events");
        assert!(
            segment.returned.is_none() || segment.taken < segment.returned,
            "{name}: {segment:?} ends first"
        );
        assert!(usize::from(segment.stream) < device.streams.len(), "{name}: no stream {}", segment.stream);
        assert!(usize::from(segment.pool) < device.pools.len(), "{name}: no pool {}", segment.pool);
    }
}

/// Writes bytes as base64, padded.
pub fn base64(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(PIECE / 3 * 4);
    for piece in bytes.chunks(PIECE) {
        text.clear();
        for three in piece.chunks(3) {
            let bits =
                three.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
            for digit in 0..4 {
                let is_padding = digit > three.len();
                text.push(if is_padding { b'=' } else { DIGITS[(bits >> (18 - 6 * digit)) as usize & 63] });
            }
        }
        out.write_all(&text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Stack, StackFrame};

    #[test]
    fn base64_is_that_of_the_standard() {
        let encoded = |bytes: &[u8]| {
            let mut out = Vec::new();
            base64(bytes, &mut out).expect("a vector takes it");
            String::from_utf8(out).expect("it is ASCII")
        };
        // The examples of RFC 4648.
        for (plain, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(encoded(plain.as_bytes()), expected);
        }
        assert_eq!(encoded(&vec![0xff; PIECE + 1]).len(), PIECE / 3 * 4 + 4);
    }

    #[test]
    fn numbers_take_seven_bits_a_byte() {
        let mut out = Vec::new();
        number(&mut out, 0);
        number(&mut out, 127);
        number(&mut out, 300);
        signed(&mut out, -1);
        signed(&mut out, 1);
        assert_eq!(out, [0, 127, 0xac, 2, 1, 2]);
        out.clear();
        number(&mut out, u64::MAX);
        assert_eq!(out.len(), 10);
    }

    #[test]
    fn a_stack_says_which_frame_tells() {
        let frame = |file: &str, line| StackFrame { file: file.into(), line, function: "f".into() };
        let model = PageModel {
            frames: vec![frame("a", 7), frame("b", 200)],
            stacks: vec![Stack { frames: vec![0, 1, 0], frame: 1 }, Stack::default()],
            ..PageModel::default()
        };
        // Files, functions and lines of the frames; length, telling frame and frames of each stack.
        assert_eq!(stacks(&model), [0, 2, 1, 1, 7, 0xc8, 1, 3, 1, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn units_divide_all_numbers() {
        assert_eq!(unit([1536, 4096, 0].into_iter()), 512);
        assert_eq!(unit([1536, 7].into_iter()), 1);
        assert_eq!(unit([].into_iter()), 1);
        assert_eq!(unit([0].into_iter()), 1);
    }
}
