//! A failing upstream leaves a valid allocator of device memory.

use std::sync::Arc;

use thalweg_memory::fake::{FakeUpstream, Fault, InjectedFault};
use thalweg_memory::{DeviceAllocator, UpstreamError};

use crate::fault_runs::{Subject, fail_at_random, fail_each_call};
use crate::harness::{Harness, Op, program, pytorch, stream};

const MIB: u64 = 1 << 20;

impl Subject for Harness {
    type Op = Op;

    fn new(_faulty: bool) -> Self {
        Self::new(64 * MIB, None)
    }

    fn upstream(&self) -> &FakeUpstream {
        &self.upstream
    }

    fn step(&mut self, op: &Op) {
        attempt(self, op);
    }

    fn assert_valid(&mut self) {
        Harness::assert_valid(self);
    }

    fn finish(self) {
        Harness::finish(self);
    }
}

fn attempt(harness: &mut Harness, op: &Op) {
    match *op {
        Op::Allocate { bytes, stream } => drop(harness.allocate(bytes, stream).map(|_| ())),
        Op::Free { block } if !harness.held.is_empty() => drop(harness.let_go(block % harness.held.len())),
        Op::RecordStream { block, stream } if !harness.held.is_empty() => {
            harness.record_stream(block % harness.held.len(), stream);
        }
        Op::CompleteNext { stream: on } => harness.upstream.complete_next(stream(on)),
        Op::CompleteStream { stream: on } => harness.upstream.complete_stream(stream(on)),
        Op::ProcessEvents => harness.allocator.process_events(),
        Op::EmptyCache => drop(harness.allocator.empty_cache()),
        Op::SetMemoryFraction { percent } => {
            drop(harness.allocator.set_memory_fraction(percent as f64 / 100.0))
        }
        Op::CreatePool => {
            harness.pools.push(harness.allocator.create_pool());
            harness.references.push(1);
        }
        Op::Begin { pool, filter } if !harness.pools.is_empty() => {
            drop(harness.begin(pool % harness.pools.len(), filter));
        }
        Op::End { pool } if !harness.pools.is_empty() => {
            drop(harness.allocator.end_allocate_to_pool(harness.pools[pool % harness.pools.len()]));
        }
        _ => {}
    }
}

/// Returns a program that makes every kind of call: a small device, uses on other streams, a capture, a limit.
fn thorough_program() -> Vec<Op> {
    let mut program = vec![Op::CreatePool, Op::SetMemoryFraction { percent: 90 }];
    for round in 0..6 {
        for size in [1000, 3 * MIB, 11 * MIB] {
            program.push(Op::Allocate { bytes: size, stream: 1 });
            program.push(Op::Allocate { bytes: size, stream: 2 });
            program.push(Op::RecordStream { block: 0, stream: 2 });
            program.push(Op::RecordStream { block: 0, stream: 3 });
            program.push(Op::Free { block: 0 });
        }
        program.push(Op::Begin { pool: 0, filter: Some(1) });
        program.push(Op::Allocate { bytes: 600_000, stream: 1 });
        program.push(Op::RecordStream { block: round, stream: 3 });
        program.push(Op::Free { block: round });
        program.push(Op::End { pool: 0 });
        program.push(Op::CompleteNext { stream: 2 });
        program.push(Op::ProcessEvents);
        program.push(Op::Free { block: 1 });
    }
    program.push(Op::EmptyCache);
    program
}

#[test]
fn each_call_fails_in_turn() {
    fail_each_call::<Harness>(&thorough_program(), 60);
}

#[test]
fn the_thorough_program_makes_every_kind_of_call() {
    let mut harness = Harness::new(64 * MIB, None);
    thorough_program().iter().for_each(|op| attempt(&mut harness, op));
    let calls = harness.upstream.calls();
    let kinds = [
        calls.allocate,
        calls.free,
        calls.memory_info,
        calls.record_event,
        calls.query_event,
        calls.synchronize_event,
        calls.release_event,
    ];
    assert!(kinds.iter().all(|&count| count > 0), "{calls:?}");
}

#[test]
fn random_programs_survive_random_faults() {
    fail_at_random::<Harness>(300, program(), 1..150);
}

#[test]
fn the_upstreams_error_reaches_the_caller_unharmed() {
    let upstream = Arc::new(FakeUpstream::new(64 * MIB));
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    upstream.fail_call(1, Fault::Other);
    let error = allocator.allocate(1, stream(1)).expect_err("the call was made to fail");
    assert!(error.is_upstream() && !error.is_out_of_memory());
    assert_eq!(error.to_string(), "allocate: call 1 of the fake upstream was made to fail");
    let source = std::error::Error::source(&error).expect("the upstream's error is the source");
    assert_eq!(source.downcast_ref(), Some(&InjectedFault { call: 1 }));
    match error.into_upstream() {
        Ok(UpstreamError::Other(error)) => assert_eq!(error.downcast_ref(), Some(&InjectedFault { call: 1 })),
        other => panic!("{other:?}"),
    }
    assert!(allocator.allocate(1, stream(1)).is_ok(), "the next call works");
    assert_eq!(allocator.statistics().num_ooms, 0);
}

#[test]
fn an_allocator_that_is_dropped_gives_back_what_is_pending() {
    let upstream = Arc::new(FakeUpstream::new(64 * MIB));
    let allocator = DeviceAllocator::new(upstream.clone(), pytorch());
    let block = allocator.allocate(1, stream(1)).expect("there is room");
    block.record_stream(stream(2));
    let pool = allocator.create_pool();
    allocator.begin_allocate_to_pool(pool, thalweg_memory::StreamFilter::All).expect("the pool exists");
    let captured = allocator.allocate(5 * MIB, stream(1)).expect("there is room");
    drop(allocator);
    assert_eq!(upstream.live_segments().len(), 2, "a block keeps the memory of its stream and pool");
    drop(block);
    assert_eq!(upstream.live_segments().len(), 1);
    drop(captured);
    assert_eq!((upstream.live_segments().len(), upstream.live_events()), (0, 0));
}
