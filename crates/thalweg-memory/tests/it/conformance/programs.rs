//! Random programs over everything that a program can do with an allocator.

use proptest::prelude::*;

use crate::harness::{STREAMS, bytes};

/// A step of a program. Blocks and pools are named by any number, which is taken modulo their count.
#[derive(Clone, Debug)]
pub enum ProgramStep {
    Allocate { bytes: u64, stream: u64 },
    Free { block: usize, elsewhere: bool },
    RecordStream { block: usize, stream: u64 },
    RecordUse { block: usize, stream: u64 },
    CompleteNext { stream: u64 },
    CompleteStream { stream: u64 },
    Process,
    EmptyCache,
    EmptyPool { pool: usize },
    Fraction { percent: u64 },
    CreatePool,
    ReleasePool { pool: usize },
    Begin { pool: usize, filter: Option<u64> },
    Enter { pool: usize },
    Leave { place: usize },
    Change { what: u8 },
}

fn step() -> impl Strategy<Value = ProgramStep> {
    let stream = || 1..=STREAMS;
    let any_place = any::<usize>;
    prop_oneof![
        32 => (bytes(), stream()).prop_map(|(bytes, stream)| ProgramStep::Allocate { bytes, stream }),
        24 => (any_place(), prop::bool::weighted(0.02))
            .prop_map(|(block, elsewhere)| ProgramStep::Free { block, elsewhere }),
        6 => (any_place(), stream()).prop_map(|(block, stream)| ProgramStep::RecordStream { block, stream }),
        10 => (any_place(), stream()).prop_map(|(block, stream)| ProgramStep::RecordUse { block, stream }),
        5 => stream().prop_map(|stream| ProgramStep::CompleteNext { stream }),
        3 => stream().prop_map(|stream| ProgramStep::CompleteStream { stream }),
        2 => Just(ProgramStep::Process),
        1 => Just(ProgramStep::EmptyCache),
        1 => any_place().prop_map(|pool| ProgramStep::EmptyPool { pool }),
        1 => (20..=120u64).prop_map(|percent| ProgramStep::Fraction { percent: percent.min(100) }),
        1 => Just(ProgramStep::CreatePool),
        1 => any_place().prop_map(|pool| ProgramStep::ReleasePool { pool }),
        2 => (any_place(), prop::option::of(stream())).prop_map(|(pool, filter)| ProgramStep::Begin { pool, filter }),
        1 => any_place().prop_map(|pool| ProgramStep::Enter { pool }),
        5 => any_place().prop_map(|place| ProgramStep::Leave { place }),
        1 => any::<u8>().prop_map(|what| ProgramStep::Change { what }),
    ]
}

pub fn program() -> impl Strategy<Value = Vec<ProgramStep>> {
    prop::collection::vec(step(), 1..200)
}
