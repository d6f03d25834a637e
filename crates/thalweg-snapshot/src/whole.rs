//! Conversion of a [`Recording`] to a complete [`Snapshot`].

use std::sync::Arc;

use super::frames::Function;
use super::records::{RecordedSegment, Trace};
use super::{Frame, Frames, Recording, Segment, SegmentBlock, Snapshot, TraceEntry};
use crate::StreamId;

impl Recording {
    /// Returns a [`Snapshot`] with the complete content of the file. It takes about five times the memory.
    pub fn to_snapshot(&self) -> Snapshot {
        let mut stacks = Stacks { recording: self, built: vec![None; self.stacks.len()] };
        let segments = |stacks: &mut Stacks<'_>, segments: &[RecordedSegment]| {
            segments.iter().map(|segment| stacks.segment(segment)).collect()
        };
        Snapshot {
            segments: segments(&mut stacks, &self.segments),
            device_traces: self.traces.iter().map(|trace| stacks.trace(trace)).collect(),
            allocator_settings: self.settings.clone(),
            external_annotations: self.annotations.clone(),
            host_segments: segments(&mut stacks, &self.host_segments),
            host_traces: stacks.trace(&self.host_trace),
        }
    }
}

/// The stacks of a recording that have been converted for a [`Snapshot`] already.
struct Stacks<'r> {
    recording: &'r Recording,
    built: Vec<Option<Frames>>,
}

impl Stacks<'_> {
    fn frames(&mut self, stack: Option<u32>) -> Option<Frames> {
        let stack = stack?;
        let text = |id: u32| Arc::clone(&self.recording.texts[id as usize]);
        let build = || {
            let frames = self.recording.stacks.frames(stack).map(|frame| {
                let (Function { filename, name }, line) = self.recording.frames.get(frame);
                Frame { filename: text(filename), line, name: text(name) }
            });
            frames.collect()
        };
        Some(Arc::clone(self.built[stack as usize].get_or_insert_with(build)))
    }

    fn trace(&mut self, trace: &Trace) -> Vec<TraceEntry> {
        trace.indices().map(|index| self.entry(index)).collect()
    }

    fn entry(&mut self, index: u32) -> TraceEntry {
        let entry = self.recording.entries[index as usize];
        let context = self.recording.contexts[entry.context() as usize];
        let text = |id: Option<u32>| id.map(|id| Arc::clone(&self.recording.texts[id as usize]));
        TraceEntry {
            action: entry.action(),
            address: entry.address,
            size_bytes: entry.size_bytes,
            stream: StreamId::from_raw(context.stream),
            time_us: context.is_timed.then_some(entry.time_us),
            compile_context: text(context.compile_context),
            user_metadata: text(context.user_metadata),
            pool_id: context.pool_id,
            internal_metadata: text(context.internal_metadata),
            frames: self.frames(entry.stack()),
            forward_frames: self.frames(context.forward_frames),
        }
    }

    fn segment(&mut self, segment: &RecordedSegment) -> Segment {
        Segment {
            device: segment.device,
            address: segment.address,
            total_bytes: segment.total_bytes,
            allocated_bytes: segment.allocated_bytes,
            active_bytes: segment.active_bytes,
            requested_bytes: segment.requested_bytes,
            stream: StreamId::from_raw(segment.stream),
            class: segment.class,
            pool_id: segment.pool_id,
            is_expandable: segment.is_expandable,
            frames: self.frames(segment.frames).unwrap_or_default(),
            blocks: segment.blocks.iter().cloned().flatten().map(|index| self.block(index)).collect(),
        }
    }

    fn block(&mut self, index: u32) -> SegmentBlock {
        let block = self.recording.blocks[index as usize];
        SegmentBlock {
            address: block.address,
            size_bytes: block.size_bytes,
            requested_bytes: block.requested_bytes,
            state: block.state,
            frames: self.frames(block.frames).unwrap_or_default(),
            forward_frames: self.frames(block.forward_frames),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;

    /// Stacks cost only as much as their frames, and values in which few entries differ are not stored for each entry.
    #[test]
    fn distinct_stacks_take_less_than_half_of_their_file() {
        let text = |text: &str| Arc::<str>::from(text);
        let frames: Vec<Frame> =
            (0..4000).map(|line| Frame { filename: text("a.py"), line, name: text("f") }).collect();
        let entries = (0..3000_u64).map(|number| {
            let level = |level: u64| frames[(level * 40 + number * (level + 7) % 40) as usize].clone();
            let mut stack: Vec<Frame> = (0..100).map(level).collect();
            stack.push(frames[number as usize].clone());
            let frames = Some(stack.into());
            TraceEntry { frames, ..TraceEntry::new(Action::Alloc, number << 9, 512, StreamId::from_raw(0)) }
        });
        let whole = Snapshot { device_traces: vec![entries.collect()], ..Snapshot::default() };
        let file = whole.to_pickle();
        let recording = Recording::read(&file[..]).expect("it was just written");
        assert_eq!((recording.stacks.len(), recording.contexts.len()), (3000, 1));
        assert!(recording.heap_bytes() < file.len() / 2, "{} of {}", recording.heap_bytes(), file.len());
        assert!(recording.to_snapshot() == whole);
    }
}
