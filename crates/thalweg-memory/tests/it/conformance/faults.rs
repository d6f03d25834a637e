//! Makes each call of the upstream fail in turn, in a program that reaches every stage of the slow path, for every set-up.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_memory::fake::Fault;

use super::checker::Checker;
use super::programs::{ProgramStep, program};
use super::trial::{Setup, Trial};
use super::{MIB, setups};
use crate::random::runner;

const FAULTS: [Fault; 3] = [Fault::OutOfMemory, Fault::Other, Fault::Panic];

/// Returns whether the action finished without an injected panic.
fn survives(action: impl FnOnce()) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(action)) else { return true };
    let injected = panic.downcast_ref::<String>().is_some_and(|text| text.contains("was made to panic"));
    if !injected {
        resume_unwind(panic);
    }
    false
}

/// Runs one step; errors and injected panics are expected.
fn attempt(trial: &mut Trial, step: &ProgramStep) {
    survives(|| drop(trial.step(step)));
}

/// Checks the state. Reading the figures processes blocks that a failure left behind, and so may run into the next failure.
fn assert_valid(trial: &Trial) {
    while !survives(|| trial.assert_valid()) {}
}

/// Returns a small device, two streams that use each other's blocks and wait, pages that move, a capture, a pool, a limit.
fn thorough_program() -> Vec<ProgramStep> {
    let allocate = |bytes, stream| ProgramStep::Allocate { bytes, stream };
    let free = |block| ProgramStep::Free { block, elsewhere: false };
    let mut program = vec![ProgramStep::CreatePool, ProgramStep::Fraction { percent: 90 }];
    for round in 0..2 {
        for bytes in [1000, 3 * MIB, 5 * MIB, 11 * MIB] {
            program.extend([allocate(bytes, 1), allocate(bytes, 2)]);
            program.push(ProgramStep::RecordUse { block: 0, stream: 3 });
            program.push(ProgramStep::RecordStream { block: 1, stream: 3 });
            program.extend([free(0), free(0)]);
        }
        // Nothing is idle yet, so pages and blocks require waiting. Then something is idle.
        program.extend([allocate(20 * MIB, 2), allocate(15 * MIB, 1), allocate(9 * MIB, 3)]);
        program.extend([ProgramStep::CompleteStream { stream: 1 }, ProgramStep::CompleteNext { stream: 3 }]);
        program.extend([free(0), free(1), allocate(24 * MIB, 3), ProgramStep::Process, free(0)]);
        program.push(ProgramStep::Begin { pool: 0, filter: Some(1) });
        program.extend([
            allocate(600_000, 1),
            ProgramStep::RecordStream { block: round, stream: 3 },
            free(round),
        ]);
        program.extend([
            ProgramStep::Leave { place: 0 },
            ProgramStep::Enter { pool: 0 },
            allocate(4 * MIB, 2),
        ]);
        program.extend([
            ProgramStep::Leave { place: 0 },
            ProgramStep::CompleteNext { stream: 2 },
            ProgramStep::Process,
        ]);
        program.extend([allocate(40 * MIB, 1), free(1), free(0), ProgramStep::EmptyPool { pool: 0 }]);
    }
    program.push(ProgramStep::EmptyCache);
    program
}

/// Clears the faults when a run fails: a second panic, while the allocator is dropped, would hide the first.
struct ClearFaults(Arc<Checker>);

impl Drop for ClearFaults {
    fn drop(&mut self) {
        self.0.fake.clear_faults();
    }
}

fn run(setup: &Setup, program: &[ProgramStep], faults: &[(u64, Fault)], emptied: bool) -> u64 {
    let mut trial = Trial::new(setup, 48 * MIB);
    let before = trial.checker.fake.calls().fallible();
    let _clear = ClearFaults(Arc::clone(&trial.checker));
    trial.is_faulty = !faults.is_empty();
    let first = faults.iter().map(|(call, _)| *call).min().unwrap_or(u64::MAX);
    for &(call, fault) in faults {
        trial.checker.fake.fail_call(call, fault);
    }
    for step in program {
        attempt(&mut trial, step);
        // Until the first fault this is the program that the other suite runs.
        if trial.checker.fake.calls().fallible() - before >= first {
            assert_valid(&trial);
        }
    }
    trial.checker.fake.clear_faults();
    let calls = trial.checker.fake.calls().fallible() - before;
    trial.finish(emptied);
    calls
}

#[test]
fn each_call_fails_in_turn_in_every_setup() {
    for (number, setup) in (0..).zip(setups()) {
        let program = thorough_program();
        let calls = run(&setup, &program, &[], true);
        assert!(calls > 60, "{}: the program makes {calls} calls", setup.name);
        // The richest set-up is tested with all three failures of each call; the others with one failure of every sixth call,
        // alternating, from another call on in each.
        let all = setup.name == "thalweg";
        let (first, step) = if all { (1, 1) } else { (1 + number % 6, 6) };
        for call in (first..=calls).step_by(step) {
            let faults = if all { &FAULTS[..] } else { &FAULTS[call as usize / 6 % 3..][..1] };
            for &fault in faults {
                let outcome =
                    catch_unwind(|| run(&setup, &program, &[(call, fault)], call.is_multiple_of(2)));
                assert!(outcome.is_ok(), "{}: when call {call} fails with {fault:?}", setup.name);
            }
        }
    }
}

#[test]
fn the_thorough_program_makes_every_kind_of_call() {
    let setups = setups();
    let setup = setups.iter().find(|setup| setup.name == "thalweg").expect("it is there");
    let mut trial = Trial::new(setup, 48 * MIB);
    thorough_program().iter().for_each(|step| attempt(&mut trial, step));
    let (calls, statistics) = (trial.checker.fake.calls(), trial.allocator.statistics());
    let events = [
        calls.record_event,
        calls.query_event,
        calls.synchronize_event,
        calls.wait_event,
        calls.release_event,
    ];
    let pages = [calls.create_page, calls.destroy_page, calls.map, calls.unmap, calls.synchronize_stream];
    let others = [calls.addresses, calls.memory_info];
    let seen = [statistics.num_pages_moved, statistics.num_cross_stream_waits, statistics.num_ooms];
    let all = events.iter().chain(&pages).chain(&others).chain(&seen);
    assert!(all.clone().all(|count| *count > 0), "{calls:?} {seen:?}");
}

#[test]
fn every_setup_survives_random_faults() {
    let fault = prop::sample::select(FAULTS.to_vec());
    let faults = prop::collection::vec((1..250u64, fault), 1..20);
    let cases = (program(), faults, any::<bool>());
    let mut failures = Vec::new();
    for setup in setups() {
        let outcome = runner(15).run(&cases, |(program, faults, emptied)| {
            run(&setup, &program, &faults, emptied);
            Ok(())
        });
        failures.extend(outcome.err().map(|failure| format!("{}: {failure}", setup.name)));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
