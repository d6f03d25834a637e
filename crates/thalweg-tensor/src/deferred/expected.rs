//! Kernels for sizes that a compiled function has not had yet.
//!
//! The second size of a segment shows how its extents depend on it ([`Sizes`]). Segments of further sizes are planned then, and the kernels
//! that they need are compiled, all in the background, so that they are there when such a size comes.

use std::cell::{Cell, RefCell};

use rustc_hash::FxHashMap;
use thalweg_execute::{alignment_of, expect};
use thalweg_graph::{Program, Segment, Sizes, plan};
use thalweg_runtime::{Device, DevicePointer};

use super::flush::machine_of;

/// The most segments and families of a kind that are kept, and the most kinds.
const SEGMENTS_KEPT: usize = 16;
const FAMILIES_KEPT: usize = 4;
const KINDS_KEPT: usize = 1 << 10;

/// The segments of a kind: those whose loops have the same bodies.
#[derive(Default)]
struct Kind {
    /// Segments, with the region in which each was first planned.
    segments: Vec<(u64, Segment)>,
    /// The families whose kernels are expected.
    families: Vec<Sizes>,
}

thread_local! {
    /// The number of outermost regions that the thread has entered.
    static REGIONS: Cell<u64> = const { Cell::new(0) };
    static KINDS: RefCell<FxHashMap<Box<[u64]>, Kind>> = RefCell::default();
}

/// Notes that an outermost region begins.
pub(super) fn note_region() {
    REGIONS.set(REGIONS.get() + 1);
}

/// Notes a segment that is planned for the first time. Compiles kernels in the background if it is one of an earlier call with another size.
pub(super) fn note(segment: &Segment, device: &Device) {
    if !device.compiles_in_background() {
        return;
    }
    let region = REGIONS.get();
    let key: Box<[u64]> = segment.nodes.iter().map(|node| node.launch.id).collect();
    // A thread whose thread-local variables are already destroyed keeps nothing.
    let found = KINDS.try_with(|kinds| {
        let mut kinds = kinds.borrow_mut();
        if kinds.len() >= KINDS_KEPT {
            kinds.clear();
        }
        let kind = kinds.entry(key).or_default();
        if kind.families.len() >= FAMILIES_KEPT || kind.families.iter().any(|family| family.covers(segment)) {
            return None;
        }
        let mut earlier = kind.segments.iter().rev().filter(|(planned, _)| *planned < region);
        let sizes = earlier.find_map(|(_, earlier)| Sizes::between(earlier, segment));
        kind.families.extend(sizes.clone());
        if kind.segments.len() < SEGMENTS_KEPT {
            kind.segments.push((region, segment.clone()));
        }
        sizes
    });
    let Ok(Some(sizes)) = found else { return };
    device.prepare_in_background(move |device| {
        let machine = machine_of(device);
        for segment in sizes.others().filter_map(|size| sizes.at(size)) {
            expect_kernels(&plan(&segment, &machine), &segment, device);
        }
    });
}

/// Compiles the kernels of a program in the background.
fn expect_kernels(program: &Program, segment: &Segment, device: &Device) {
    for step in &program.steps {
        let operands = step.inputs.iter().chain(&step.outputs).map(|operand| {
            let memory = &segment.memories[operand.memory as usize];
            DevicePointer::new(memory.alignment_bytes + operand.offset)
        });
        expect(device, &step.launch, alignment_of(operands));
    }
}
