//! The stacks of a page.
//!
//! A page has each stack once, with its most informative frame. With nearly all stacks distinct, a page would have hundreds of
//! megabytes. Then stacks are cut to the frames from that one outwards, so that the total number of frames is bounded.

use std::collections::HashMap;

use thalweg::memory_tools::analysis::{BlockLife, Categories, FrameChoice};
use thalweg::memory_tools::report::{PageModel, Stack, StackFrame};
use thalweg::snapshot::{FrameId, Recording, StackId};

/// The maximum number of frames of all stacks of a page, about ten megabytes; after that each stack has one frame.
const MOST_FRAMES: usize = 4 << 20;

/// The table of stacks that several recordings share on one page.
#[derive(Default)]
pub struct PageStacks {
    frames: HashMap<StackFrame, u32>,
    /// The number of frames of all stacks so far.
    used_frames: usize,
}

/// The stacks of one device: for each its number on the page, and its category.
pub struct DeviceStacks {
    numbers: HashMap<StackId, (u32, u16)>,
    /// The number of frames to which the stacks were cut, if they were.
    pub depth: Option<usize>,
}

impl DeviceStacks {
    /// Returns the number on the page and the category of a stack; `None` for a stack without information.
    pub fn get(&self, stack: Option<StackId>) -> Option<(u32, u16)> {
        self.numbers.get(&stack?).copied()
    }
}

impl PageStacks {
    /// Adds the stacks of the blocks that lived on a device.
    pub fn add(
        &mut self,
        model: &mut PageModel,
        recording: &Recording,
        blocks: &[BlockLife],
        categories: &Categories,
    ) -> DeviceStacks {
        self.add_up_to(MOST_FRAMES, model, recording, blocks, categories)
    }

    fn add_up_to(
        &mut self,
        most_frames: usize,
        model: &mut PageModel,
        recording: &Recording,
        blocks: &[BlockLife],
        categories: &Categories,
    ) -> DeviceStacks {
        let mut named: Vec<StackId> = blocks.iter().filter_map(|block| block.stack).collect();
        named.sort_unstable();
        named.dedup();
        let wanted: usize = named.iter().map(|&stack| recording.stack_frames(stack).count()).sum();
        let left = most_frames.saturating_sub(self.used_frames);
        let depth = (wanted > left).then(|| (left / named.len()).max(1));
        let mut informative_frame = FrameChoice::of(recording);
        let mut sorting = categories.over(recording);
        let mut frames: Vec<Option<u32>> = vec![None; recording.frame_count()];
        let mut cut: HashMap<Vec<u32>, u32> = HashMap::new();
        let mut numbers = HashMap::with_capacity(named.len());
        for stack in named {
            // An empty stack is the same as no stack.
            let Some((at, _)) = informative_frame.frame(stack) else { continue };
            let category = sorting.category(Some(stack)) as u16;
            let first = if depth.is_some() { at } else { 0 };
            let kept = recording.stack_frames(stack).skip(first).take(depth.unwrap_or(usize::MAX));
            let kept: Vec<u32> = kept
                .map(|frame| {
                    let number = &mut frames[frame.number() as usize];
                    *number.get_or_insert_with(|| self.frame(model, recording, frame))
                })
                .collect();
            let mut push = |kept: &[u32]| {
                self.used_frames += kept.len();
                model.stacks.push(Stack { frames: kept.to_vec(), frame: (at - first) as u32 });
                model.stacks.len() as u32 - 1
            };
            let number = match depth {
                None => push(&kept),
                Some(_) => *cut.entry(kept).or_insert_with_key(|kept| push(kept)),
            };
            numbers.insert(stack, (number, category));
        }
        DeviceStacks { numbers, depth }
    }

    fn frame(&mut self, model: &mut PageModel, recording: &Recording, frame: FrameId) -> u32 {
        let frame = recording.frame(frame);
        let frame =
            StackFrame { file: frame.filename.to_owned(), line: frame.line, function: frame.name.to_owned() };
        *self.frames.entry(frame).or_insert_with_key(|frame| {
            model.frames.push(frame.clone());
            model.frames.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use thalweg::memory_tools::analysis::lives;
    use thalweg::snapshot::StreamId;
    use thalweg::snapshot::{Action, Frame, Snapshot, TraceEntry};

    use super::*;

    /// Returns 100 stacks of 20 frames: two of PyTorch, one of the user's own, and the rest.
    fn recording() -> Recording {
        let frame = |file: &str, line| Frame { filename: file.into(), line, name: "f".into() };
        let entries = (0..100_u32).map(|number| {
            let inner =
                [frame("/torch/nn.py", number), frame("/torch/x.py", 1), frame("train.py", number / 2)];
            let outer = (0..17).map(|level| frame("main.py", 100 * level + number / 2));
            let frames = Some(inner.into_iter().chain(outer).collect());
            let address = u64::from(number) << 9;
            TraceEntry { frames, ..TraceEntry::new(Action::Alloc, address, 512, StreamId::from_raw(0)) }
        });
        let whole = Snapshot { device_traces: vec![entries.collect()], ..Snapshot::default() };
        Recording::read(&whole.to_pickle()[..]).expect("it was just written")
    }

    #[test]
    fn stacks_are_cut_where_a_page_would_be_too_large() {
        let recording = recording();
        let blocks = lives(&recording, 0).blocks;
        for (most, depth, stacks, frames) in
            [(2000, None, 100, 2000), (1000, Some(10), 50, 500), (150, Some(1), 50, 50), (0, Some(1), 50, 50)]
        {
            let (mut page, mut model) = (PageStacks::default(), PageModel::default());
            let found = page.add_up_to(most, &mut model, &recording, &blocks, &Categories::default());
            assert_eq!((found.depth, model.stacks.len()), (depth, stacks));
            assert_eq!(model.stacks.iter().map(|stack| stack.frames.len()).sum::<usize>(), frames);
            for (number, block) in blocks.iter().enumerate() {
                let (stack, _) = found.get(block.stack).expect("it has one");
                let Stack { frames, frame: place } = &model.stacks[stack as usize];
                let frame = &model.frames[frames[*place as usize] as usize];
                assert_eq!((&*frame.file, frame.line as usize), ("train.py", number / 2));
            }
        }
    }
}
