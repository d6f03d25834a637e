//! Recreating the recorded layout of the state before a trace.

use super::start::{LaidSegment, Layout};
use super::{Replay, ReplayError, StartState};

impl Replay<'_> {
    /// Lays out the state before the trace, if the recorded state is to be recreated and requests would not lead to it. This
    /// leaves no peaks. Every step calls this first; only the first call has an effect.
    pub(crate) fn begin(&mut self) -> Result<(), ReplayError> {
        let program = self.program;
        let Some(layout) = &program.layout else { return Ok(()) };
        if self.is_laid_out || self.start != StartState::Recorded {
            return Ok(());
        }
        self.is_laid_out = true;
        self.upstream.set_endless(true);
        self.lay_out(layout)?;
        self.fit_start()
    }

    /// Completes the state before the trace. If the device is too small for it, cached memory is returned, as must have happened
    /// long before. If anything was live before the trace, this leaves no peaks.
    ///
    /// # Errors
    /// If the state is still too large: this is lack of memory.
    pub(super) fn fit_start(&mut self) -> Result<(), ReplayError> {
        self.upstream.set_endless(false);
        if self.upstream.excess_bytes() > 0 {
            self.allocator.empty_cache().map_err(|error| self.to_replay_error(error))?;
        }
        if self.program.older_blocks() > 0 {
            self.allocator.reset_peak_memory_stats();
            self.requested_peak_bytes = self.requested_bytes;
        }
        match self.upstream.excess_bytes() {
            0 => Ok(()),
            excess => Err(self.too_large(excess)),
        }
    }

    fn lay_out(&mut self, layout: &Layout) -> Result<(), ReplayError> {
        for segment in &layout.segments {
            self.lay_segment(segment)?;
        }
        layout.others.iter().try_for_each(|&step| self.allocate(step))
    }

    fn lay_segment(&mut self, segment: &LaidSegment) -> Result<(), ReplayError> {
        let _scope = segment.pool.map(|pool| self.enter(pool)).transpose()?;
        let refused = |error| self.to_replay_error(error);
        let arena = self.allocator.restore_arena(segment.stream).map_err(refused)?;
        self.upstream.lay_out(segment.address);
        let base = match segment.is_expandable {
            true => {
                let ranges: Vec<(u64, u64)> =
                    segment.ranges.iter().map(|(start, bytes)| (start - segment.address, *bytes)).collect();
                self.allocator.restore_expandable(&arena, segment.class, &ranges).map_err(refused)?
            }
            false => {
                let bytes = segment.ranges.iter().map(|(_, bytes)| bytes).sum();
                Some(self.allocator.restore_plain(&arena, segment.class, bytes).map_err(refused)?)
            }
        };
        // From the end, where the free range is found at once: before it nothing is taken yet.
        let mut end = segment.ranges.last().map_or(segment.address, |(start, bytes)| start + bytes);
        for (recorded, older) in segment.blocks.iter().rev() {
            let (rounded, is_cut) = arena.rounding(older.requested_bytes);
            let size_bytes = older.size_in(segment, end - recorded, rounded, is_cut);
            let block = base.and_then(|base| {
                let address = base + (recorded - segment.address);
                let requested = older.requested_bytes;
                self.allocator.restore_block(&arena, address, size_bytes, requested, segment.stream)
            });
            match block {
                Some(block) => {
                    if older.may_be_larger(segment, is_cut, (end - recorded).saturating_sub(size_bytes)) {
                        self.doubts.add(older.number, &block);
                    }
                    self.hold(older.number, block, *recorded)?;
                }
                // In a damaged file blocks overlap.
                None => self.allocate(older.request(*recorded, segment.pool))?,
            }
            end = *recorded;
        }
        Ok(())
    }
}
