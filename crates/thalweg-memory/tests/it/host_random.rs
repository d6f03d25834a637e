//! Random programs for the host allocator: against the model, and with calls of the upstream that fail.

use proptest::prelude::*;
use thalweg_memory::fake::FakeUpstream;

use crate::fault_runs::{Subject, fail_at_random, fail_each_call};
use crate::host_harness::{Harness, KIB, MIB, Op, op};
use crate::random::runner;

#[test]
fn random_programs_keep_to_the_model() {
    // With little memory, pressure is common; with much, it is not.
    let capacity = prop::sample::select(vec![8 * MIB, 20 * MIB, 1 << 40]);
    let program = prop::collection::vec(op(), 1..200);
    let outcome = runner(400).run(&(program, capacity), |(program, capacity)| {
        let mut harness = Harness::new(capacity);
        for op in &program {
            harness.step(op);
            harness.assert_valid();
        }
        harness.finish();
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

impl Subject for Harness {
    type Op = Op;

    fn new(faulty: bool) -> Self {
        let mut harness = Self::new(10 * MIB);
        harness.faulty = faulty;
        harness
    }

    fn upstream(&self) -> &FakeUpstream {
        &self.upstream
    }

    fn step(&mut self, op: &Op) {
        Harness::step(self, op);
    }

    fn assert_valid(&mut self) {
        Harness::assert_valid(self);
    }

    fn finish(self) {
        Harness::finish(self);
    }
}

/// Returns a program that makes every kind of call: little memory, uses of both kinds, captures, changes of settings.
fn thorough_program() -> Vec<Op> {
    let mut program = vec![Op::CreatePool];
    for round in 0..5 {
        for bytes in [1000, 100 * KIB, 3 * MIB] {
            program.push(Op::Allocate { bytes, stream: 1 });
            program.push(Op::Allocate { bytes, stream: 2 });
            program.push(Op::RecordUse { block: 0, stream: 1 });
            program.push(Op::RecordUse { block: 0, stream: 2 });
            program.push(Op::RecordUse { block: 0, stream: 2 });
            program.push(Op::RecordStream { block: 1, stream: 3 });
            program.push(Op::Free { block: 0 });
            program.push(Op::Free { block: 0 });
        }
        program.push(Op::Begin { pool: 0, filter: Some(1) });
        program.push(Op::Allocate { bytes: 60_000, stream: 1 });
        program.push(Op::Allocate { bytes: 60_000, stream: 2 });
        program.push(Op::RecordUse { block: 0, stream: 1 });
        program.push(Op::RecordUse { block: 1, stream: 2 });
        program.push(Op::Free { block: 0 });
        program.push(Op::Free { block: 0 });
        program.push(Op::End { pool: 0 });
        program.push(Op::CompleteNext { stream: 2 });
        program.push(Op::ProcessEvents);
        program.push(Op::SetSettings { number: 3 * round });
        if round == 2 {
            program.push(Op::EmptyCache);
        }
    }
    program.push(Op::ReleasePool { pool: 0 });
    program.push(Op::EmptyCache);
    program
}

#[test]
fn each_host_call_fails_in_turn() {
    fail_each_call::<Harness>(&thorough_program(), 80);
}

#[test]
fn the_thorough_program_makes_every_kind_of_call() {
    let mut harness = Harness::new(10 * MIB);
    thorough_program().iter().for_each(|op| harness.step(op));
    let calls = harness.upstream.calls();
    let kinds = [
        calls.allocate_host,
        calls.free_host,
        calls.record_event,
        calls.query_event,
        calls.synchronize_event,
        calls.release_event,
    ];
    assert!(kinds.iter().all(|&count| count > 0), "{calls:?}");
}

#[test]
fn random_programs_survive_random_faults() {
    fail_at_random::<Harness>(400, prop::collection::vec(op(), 1..150), 1..120);
}
