//! Programs whose calls of the upstream fail: each in turn, and at random. One harness for both allocators.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use thalweg_memory::fake::{FakeUpstream, Fault};

use crate::random::runner;

const FAULTS: [Fault; 3] = [Fault::OutOfMemory, Fault::Other, Fault::Panic];

/// An allocator on a fake upstream, with the program's side of it.
pub trait Subject: Sized {
    /// A step of a program.
    type Op: Debug;

    /// Creates a new subject; `faulty` if calls are going to fail.
    fn new(faulty: bool) -> Self;

    fn upstream(&self) -> &FakeUpstream;

    /// Runs one step. Failures caused by the upstream are expected.
    fn step(&mut self, op: &Self::Op);

    /// Asserts the conditions that hold at any time.
    fn assert_valid(&mut self);

    /// Ends the program: everything must be returned.
    fn finish(self);
}

/// Runs a program with some calls made to fail. Returns the number of its calls.
fn run<S: Subject>(program: &[S::Op], faults: &[(u64, Fault)]) -> u64 {
    let mut subject = S::new(!faults.is_empty());
    faults.iter().for_each(|&(call, fault)| subject.upstream().fail_call(call, fault));
    for op in program {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| subject.step(op))) {
            let text = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(text.contains("was made to panic"), "a panic of our own: {text}");
        }
        subject.assert_valid();
    }
    subject.upstream().clear_faults();
    let calls = subject.upstream().calls().fallible();
    subject.finish();
    calls
}

/// Makes each call of the program fail in turn, in three ways. There must be more than `least` of them.
pub fn fail_each_call<S: Subject>(program: &[S::Op], least: u64) {
    let calls = run::<S>(program, &[]);
    assert!(calls > least, "the program makes {calls} calls");
    for call in 1..=calls {
        for fault in FAULTS {
            run::<S>(program, &[(call, fault)]);
        }
    }
}

/// Runs random programs with up to 19 of the calls in the range made to fail.
pub fn fail_at_random<S: Subject>(
    cases: u32,
    programs: impl Strategy<Value = Vec<S::Op>>,
    calls: Range<u64>,
) {
    let faults = prop::collection::vec((calls, prop::sample::select(FAULTS.to_vec())), 1..20);
    let outcome = runner(cases).run(&(programs, faults), |(program, faults)| {
        run::<S>(&program, &faults);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
