//! Many frames in little memory.
//!
//! A program has far fewer functions than lines, so a frame is a function's number and a line: eight bytes.

use rustc_hash::FxHashMap;

use super::ids::Ids;

/// The frames of a recording. See the [module's essay](self). Equal frames have one number.
#[derive(Default, Debug)]
pub(super) struct Frames {
    functions: Vec<Function>,
    lines: Vec<Line>,
}

/// A function by the numbers of its texts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Function {
    pub(super) filename: u32,
    pub(super) name: u32,
}

/// A line in a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    function: u32,
    line: u32,
}

/// The tables that [`Frames`] needs as long as frames are added.
#[derive(Default)]
pub(super) struct FrameIds {
    functions: FxHashMap<Function, u32>,
    ids: Ids,
}

impl Frames {
    /// Returns the number of a frame; adds the frame if it is new. Returns `None` if there is no room for more.
    pub(super) fn intern(&mut self, known: &mut FrameIds, function: Function, line: u32) -> Option<u32> {
        let next = u32::try_from(self.functions.len()).ok()?;
        let function = *known.functions.entry(function).or_insert_with(|| {
            self.functions.push(function);
            next
        });
        let wanted = Line { function, line };
        let vacant = match known.ids.find(hash(wanted), |id| self.lines[id as usize] == wanted) {
            Ok(id) => return Some(id),
            Err(vacant) => vacant,
        };
        let id = u32::try_from(self.lines.len()).ok().filter(|id| *id < Ids::MOST)?;
        self.lines.push(wanted);
        known.ids.insert(vacant, id, |id| hash(self.lines[id as usize]));
        Some(id)
    }

    /// Returns the function and the line of a frame.
    pub(super) fn get(&self, frame: u32) -> (Function, u32) {
        let Line { function, line } = self.lines[frame as usize];
        (self.functions[function as usize], line)
    }

    /// Returns the number of the function of a frame.
    pub(super) fn function(&self, frame: u32) -> u32 {
        self.lines[frame as usize].function
    }

    /// Returns the number of functions.
    pub(super) fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Returns the number of frames.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&self.lines[..]) + size_of_val(&self.functions[..])
    }
}

impl FrameIds {
    pub(super) fn bytes(&self) -> usize {
        self.ids.bytes() + self.functions.capacity() * (size_of::<(Function, u32)>() + 1)
    }
}

/// Hashes a line. Sixteen consecutive lines are adjacent in [`Ids`], so that finding all of them takes one access to memory.
fn hash(Line { function, line }: Line) -> u64 {
    use std::hash::Hasher;
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write_u64(u64::from(function) << 32 | u64::from(line >> 4));
    let low = u64::from(line & 15);
    (hasher.finish() & !15 | low) ^ low << 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_equal_ones_are_one() {
        let (mut frames, mut ids) = (Frames::default(), FrameIds::default());
        let frame = |number: u32| {
            let function = Function { filename: number % 7, name: number % 11 };
            (function, if number < 77 { u32::MAX } else { number / 77 })
        };
        for _ in 0..2 {
            for number in 0..10_000 {
                let (function, line) = frame(number);
                assert_eq!(frames.intern(&mut ids, function, line), Some(number));
            }
        }
        assert_eq!((frames.len(), frames.functions.len()), (10_000, 77));
        assert!((0..10_000).all(|number| frames.get(number) == frame(number)));
    }
}
