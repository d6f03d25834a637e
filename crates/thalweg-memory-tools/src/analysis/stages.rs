//! The stages of a program: the changes of its memory between the start and the end of each scope that it marked.
//!
//! A profiler or a user marks scopes (`torch.profiler.record_function` while a history is recorded), and the file contains them
//! separately from the trace, with times. Scopes of one name are one stage here. They may be nested; each is reported separately.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use thalweg_snapshot::{Action, Event, Recording};

use super::walk::{FirstPass, MemoryState};

/// All scopes of one name. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// The name.
    pub name: Arc<str>,
    /// The number of times that the scope was entered.
    pub times: usize,
    /// The total time spent in the scope, as far as the trace extends, in microseconds.
    pub duration_us: i64,
    /// The number of the first entry in the scope.
    pub first_entry: usize,
    /// The number of entries of the trace that are in the scope.
    pub entries: usize,
    /// The peak of live memory in the scope, by requested size. Memory that was live before the scope counts.
    pub peak_live_bytes: u64,
    /// The number of entries of the trace before that peak.
    pub peak_entry: usize,
    /// The peak of reserved memory in the scope.
    pub peak_reserved_bytes: u64,
    /// The greatest amount by which live memory in the scope exceeded that at the scope's start.
    pub peak_own_bytes: u64,
}

/// A scope, with its start and end.
struct Scope {
    name: Arc<str>,
    start_us: i64,
    end_us: i64,
}

/// The live and the reserved bytes at one moment.
#[derive(Clone, Copy, Default)]
struct Level {
    live_bytes: u64,
    reserved_bytes: u64,
}

/// Returns the stages on `device`, in the order in which they were first entered; empty if no scopes were marked, or the trace
/// has no times.
pub fn stages(recording: &Recording, device: usize) -> Vec<Stage> {
    let mut scopes = scopes(recording, device);
    let times = || recording.trace(device).filter_map(|event| event.time_us);
    let (Some(first_us), Some(last_us)) = (times().min(), times().max()) else { return Vec::new() };
    scopes.retain(|scope| scope.start_us <= last_us && scope.end_us >= first_us);
    scopes.sort_by_key(|scope| (scope.start_us, std::cmp::Reverse(scope.end_us)));
    let mut sweep = Sweep::new(recording, device, &scopes);
    for (entry, event) in recording.trace(device).enumerate() {
        sweep.pass(entry, &event);
    }
    sweep.finish(first_us, last_us)
}

/// Returns the scopes that were marked on a device. A scope without a start began before the file, and one without an end
/// continues after it.
fn scopes(recording: &Recording, device: usize) -> Vec<Scope> {
    let mut open: FxHashMap<&str, Vec<i64>> = FxHashMap::default();
    let mut scopes = Vec::new();
    let here = |annotation: &&thalweg_snapshot::Annotation| {
        annotation.device < 0 || usize::try_from(annotation.device) == Ok(device)
    };
    for annotation in recording.annotations().iter().filter(here) {
        let starts = open.entry(&annotation.name).or_default();
        match &*annotation.stage {
            "START" => starts.push(annotation.time_us),
            "END" => scopes.push(Scope {
                name: annotation.name.clone(),
                start_us: starts.pop().unwrap_or(i64::MIN),
                end_us: annotation.time_us,
            }),
            _ => {}
        }
    }
    for (name, starts) in open {
        scopes.extend(starts.into_iter().map(|start_us| Scope {
            name: name.into(),
            start_us,
            end_us: i64::MAX,
        }));
    }
    scopes
}

/// A simultaneous walk through a trace and its scopes.
struct Sweep<'s> {
    scopes: &'s [Scope],
    /// The number of scopes that have begun.
    begun: usize,
    /// The scopes that have begun and not ended: their number, and the live memory when they began.
    inside: Vec<(usize, u64)>,
    /// The requested bytes of each live block.
    live: FxHashMap<u64, u64>,
    level: Level,
    stages: Vec<Stage>,
    by_name: FxHashMap<Arc<str>, usize>,
}

impl<'s> Sweep<'s> {
    fn new(recording: &Recording, device: usize, scopes: &'s [Scope]) -> Self {
        let before = MemoryState::before(recording, device, &FirstPass::over(recording, device));
        let level = Level { live_bytes: before.requested_bytes(), reserved_bytes: before.reserved_bytes() };
        let live = before.live.iter().map(|(&address, live)| (address, live.requested_bytes)).collect();
        Self {
            scopes,
            begun: 0,
            inside: Vec::new(),
            live,
            level,
            stages: Vec::new(),
            by_name: FxHashMap::default(),
        }
    }

    fn pass(&mut self, entry: usize, event: &Event) {
        if let Some(now) = event.time_us {
            let scopes = self.scopes;
            while scopes.get(self.begun).is_some_and(|scope| scope.start_us <= now) {
                self.enter(entry);
            }
            self.inside.retain(|(scope, _)| scopes[*scope].end_us >= now);
        }
        self.apply(event);
        for &(scope, before) in &self.inside {
            let stage = &mut self.stages[self.by_name[&self.scopes[scope].name]];
            stage.entries += 1;
            stage.note(self.level, before, entry + 1);
        }
    }

    fn enter(&mut self, entry: usize) {
        let scope = &self.scopes[self.begun];
        let number = *self.by_name.entry(scope.name.clone()).or_insert_with(|| {
            self.stages.push(Stage {
                name: scope.name.clone(),
                times: 0,
                duration_us: 0,
                first_entry: entry,
                entries: 0,
                peak_live_bytes: 0,
                peak_entry: entry,
                peak_reserved_bytes: 0,
                peak_own_bytes: 0,
            });
            self.stages.len() - 1
        });
        let stage = &mut self.stages[number];
        stage.times += 1;
        stage.note(self.level, self.level.live_bytes, entry);
        self.inside.push((self.begun, self.level.live_bytes));
        self.begun += 1;
    }

    fn apply(&mut self, event: &Event) {
        let Level { live_bytes, reserved_bytes } = &mut self.level;
        match event.action {
            Action::Alloc => {
                let former = self.live.insert(event.address, event.size_bytes).unwrap_or(0);
                *live_bytes = live_bytes.saturating_sub(former).saturating_add(event.size_bytes);
            }
            Action::FreeCompleted => {
                *live_bytes = live_bytes.saturating_sub(self.live.remove(&event.address).unwrap_or(0));
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                *reserved_bytes = reserved_bytes.saturating_add(event.size_bytes);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                *reserved_bytes = reserved_bytes.saturating_sub(event.size_bytes);
            }
            Action::FreeRequested | Action::Snapshot | Action::Oom | Action::Annotate => {}
        }
    }

    fn finish(mut self, first_us: i64, last_us: i64) -> Vec<Stage> {
        // A scope that contains no entry was never entered above.
        for scope in &self.scopes[..self.begun] {
            let duration = scope.end_us.min(last_us) - scope.start_us.max(first_us);
            let stage = &mut self.stages[self.by_name[&scope.name]];
            stage.duration_us = stage.duration_us.saturating_add(duration.max(0));
        }
        self.stages
    }
}

impl Stage {
    /// Records the level after `entry` entries; `before` was live when the scope was entered.
    fn note(&mut self, level: Level, before: u64, entry: usize) {
        if level.live_bytes > self.peak_live_bytes {
            (self.peak_live_bytes, self.peak_entry) = (level.live_bytes, entry);
        }
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(level.reserved_bytes);
        self.peak_own_bytes = self.peak_own_bytes.max(level.live_bytes.saturating_sub(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_memory::StreamId;
    use thalweg_snapshot::{Annotation, Snapshot, TraceEntry};

    const MIB: u64 = 1 << 20;

    fn recording(entries: &[(i64, Action, u64, u64)], marks: &[(&str, &str, i64)]) -> Recording {
        let entry = |&(time_us, action, address, mib): &(i64, Action, u64, u64)| TraceEntry {
            time_us: Some(time_us),
            ..TraceEntry::new(action, address, mib * MIB, StreamId::from_raw(0))
        };
        let mark = |&(name, stage, time_us): &(&str, &str, i64)| Annotation {
            name: name.into(),
            stage: stage.into(),
            device: 0,
            time_us,
        };
        let snapshot = Snapshot {
            device_traces: vec![entries.iter().map(entry).collect()],
            external_annotations: marks.iter().map(mark).collect(),
            ..Snapshot::default()
        };
        Recording::read(&*snapshot.to_pickle()).expect("what was written can be read")
    }

    #[test]
    fn each_stage_has_its_own_peak() {
        use Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc};
        let entries = [
            (10, SegmentAlloc, 1 << 30, 64),
            (10, Alloc, 1 << 30, 8),
            (20, Alloc, (1 << 30) + 8 * MIB, 4),
            (21, FreeRequested, (1 << 30) + 8 * MIB, 4),
            (21, FreeCompleted, (1 << 30) + 8 * MIB, 4),
            (30, Alloc, (1 << 30) + 8 * MIB, 16),
            (40, Alloc, (1 << 30) + 32 * MIB, 1),
        ];
        let marks = [
            ("step", "START", 15),
            ("forward", "START", 18),
            ("forward", "END", 25),
            ("step", "END", 35),
            ("forward", "START", 38),
            ("before all", "END", 12),
            ("never reached", "START", 99),
        ];
        let stages = stages(&recording(&entries, &marks), 0);
        let reported: Vec<_> = stages
            .iter()
            .map(|stage| {
                let Stage { name, times, peak_live_bytes, peak_own_bytes, peak_entry, entries, .. } = stage;
                (&**name, *times, peak_live_bytes / MIB, peak_own_bytes / MIB, *peak_entry, *entries)
            })
            .collect();
        assert_eq!(
            reported,
            [("before all", 1, 8, 8, 2, 2), ("step", 1, 24, 16, 6, 4), ("forward", 2, 25, 4, 7, 4)]
        );
        assert!(stages.iter().all(|stage| stage.peak_reserved_bytes == 64 * MIB));
        assert_eq!(stages.iter().map(|stage| stage.duration_us).collect::<Vec<_>>(), [2, 20, 7 + 2]);
    }

    #[test]
    fn nothing_is_told_where_nothing_was_marked() {
        let entries = [(10, Action::SegmentAlloc, 1 << 30, 64)];
        assert_eq!(stages(&recording(&entries, &[]), 0), []);
        assert_eq!(stages(&recording(&[], &[("a", "START", 1)]), 0), []);
        assert_eq!(stages(&recording(&entries, &[("a", "MIDDLE", 1)]), 3), []);
    }
}
