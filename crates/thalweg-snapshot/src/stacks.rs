//! Many stacks in little memory.
//!
//! Frames are numbered in the order in which they first appear in a file, so that the numbers of neighbours in a stack are mostly
//! close to each other. A stack is stored as the differences, in groups of seven bits, lowest first, with the top bit set on all
//! but the last: one or two bytes per frame, where the file has five.

use super::ids::Ids;

/// The stacks of a recording. See the [module's essay](self). Equal stacks have one number.
#[derive(Default, Debug)]
pub(super) struct Stacks {
    bytes: Vec<u8>,
    /// The end position of each stack.
    ends: Vec<u32>,
}

/// The tables that [`Stacks`] needs as long as stacks are added.
#[derive(Default)]
pub(super) struct StackIds {
    ids: Ids,
    /// The stack that is being searched for.
    wanted: Vec<u8>,
}

impl Stacks {
    /// Returns the number of a stack; adds the stack if it is new. Returns `None` if there is no room for more.
    pub(super) fn intern(&mut self, known: &mut StackIds, frames: &[u32]) -> Option<u32> {
        let StackIds { ids, wanted } = known;
        encode(frames, wanted);
        let vacant = match ids.find(hash(wanted), |id| self.slice(id) == &**wanted) {
            Ok(id) => return Some(id),
            Err(vacant) => vacant,
        };
        let end = u32::try_from(self.bytes.len() + wanted.len()).ok()?;
        let id = u32::try_from(self.ends.len()).ok().filter(|id| *id < Ids::MOST)?;
        self.bytes.extend_from_slice(wanted);
        self.ends.push(end);
        ids.insert(vacant, id, |id| hash(self.slice(id)));
        Some(id)
    }

    /// Returns the frames of a stack, innermost first.
    pub(super) fn frames(&self, stack: u32) -> Frames<'_> {
        Frames { bytes: self.slice(stack).iter(), last: 0 }
    }

    /// Returns the number of stacks.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&self.ends[..])
    }

    fn slice(&self, stack: u32) -> &[u8] {
        let stack = stack as usize;
        let start = if stack == 0 { 0 } else { self.ends[stack - 1] };
        &self.bytes[start as usize..self.ends[stack] as usize]
    }
}

impl StackIds {
    pub(super) fn bytes(&self) -> usize {
        self.ids.bytes() + self.wanted.len()
    }
}

/// The frames of one stack.
#[derive(Clone)]
pub(super) struct Frames<'s> {
    bytes: std::slice::Iter<'s, u8>,
    last: u32,
}

impl Iterator for Frames<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let mut byte = *self.bytes.next()?;
        let (mut folded, mut shift) = (u32::from(byte & 0x7f), 7);
        while byte >= 0x80 {
            byte = *self.bytes.next()?;
            folded |= u32::from(byte & 0x7f) << shift;
            shift += 7;
        }
        // The sign of a difference is folded in: 0, -1, 1, -2, …
        let difference = (folded >> 1) ^ (folded & 1).wrapping_neg();
        self.last = self.last.wrapping_add(difference);
        Some(self.last)
    }
}

fn encode(frames: &[u32], out: &mut Vec<u8>) {
    out.clear();
    let mut last = 0;
    for &frame in frames {
        let difference = frame.wrapping_sub(last) as i32;
        last = frame;
        let mut folded = ((difference << 1) ^ (difference >> 31)) as u32;
        while folded >= 0x80 {
            out.push(folded as u8 | 0x80);
            folded >>= 7;
        }
        out.push(folded as u8);
    }
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_come_back_and_equal_ones_are_one() {
        let all: [&[u32]; 7] = [
            &[],
            &[0],
            &[5, 6, 7, 3],
            &[u32::MAX, 0, u32::MAX, 1 << 31],
            &[63, 0, 64, 0],
            &[5, 6, 7],
            &[0, 0],
        ];
        let (mut stacks, mut ids) = (Stacks::default(), StackIds::default());
        for _ in 0..2 {
            for (number, frames) in (0..).zip(all) {
                assert_eq!(stacks.intern(&mut ids, frames), Some(number));
            }
        }
        assert_eq!(stacks.len(), all.len());
        for (number, frames) in (0..).zip(all) {
            assert_eq!(stacks.frames(number).collect::<Vec<_>>(), frames);
        }
    }

    #[test]
    fn a_frame_takes_a_byte_or_two_where_neighbours_are_close() {
        let (mut stacks, mut ids) = (Stacks::default(), StackIds::default());
        for start in 0..10_000 {
            let frames: Vec<u32> = (start..start + 50).chain((0..50).map(|level| level * 100)).collect();
            stacks.intern(&mut ids, &frames);
        }
        assert_eq!(stacks.len(), 10_000);
        assert!(stacks.heap_bytes() < 10_000 * (50 + 100 + 8), "{} bytes", stacks.heap_bytes());
    }
}
