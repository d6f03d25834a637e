//! Random programs against the model, step by step: every address, every block, every statistic.
//!
//! The seed is fixed, so that a failure is the same on every machine; `PROPTEST_RNG_SEED` chooses another, and `PROPTEST_CASES`
//! sets the number of programs.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use crate::harness::{Harness, Op, program, stream};
use crate::model::Model;

/// Returns the runner for random programs: reproducible, with nothing written to disk.
pub fn runner(cases: u32) -> TestRunner {
    let defaults = Config::default();
    let rng_seed = match defaults.rng_seed {
        RngSeed::Random => RngSeed::Fixed(0x7a17e6),
        chosen => chosen,
    };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { defaults.cases } else { cases };
    TestRunner::new(Config { cases, rng_seed, failure_persistence: None, ..defaults })
}

struct Pair {
    harness: Harness,
    model: Model,
    capacity: u64,
}

impl Pair {
    fn step(&mut self, op: &Op) {
        let Self { harness, model, capacity } = self;
        match *op {
            Op::Allocate { bytes, stream: on } => allocate(harness, model, bytes, on),
            Op::Free { block } if !harness.held.is_empty() => {
                let held = harness.let_go(block % harness.held.len());
                if !held.block.is_null() {
                    model.free(held.handle, &held.uses);
                }
            }
            Op::RecordStream { block, stream } if !harness.held.is_empty() => {
                harness.record_stream(block % harness.held.len(), stream);
            }
            Op::CompleteNext { stream: on } => {
                harness.upstream.complete_next(stream(on));
                model.complete(on, 1);
            }
            Op::CompleteStream { stream: on } => {
                harness.upstream.complete_stream(stream(on));
                model.complete(on, u64::MAX);
            }
            Op::ProcessEvents => {
                harness.allocator.process_events();
                model.process();
            }
            Op::EmptyCache => match harness.allocator.empty_cache() {
                Ok(()) => model.empty_cache(),
                Err(error) => assert!(error.is_capture() && model.is_capturing(), "{error}"),
            },
            Op::SetMemoryFraction { percent } => {
                harness.allocator.set_memory_fraction(percent as f64 / 100.0).expect("from 0 to 1");
                let allowed = (percent as f64 / 100.0 * *capacity as f64).round() as u64;
                model.set_allowed(if percent < 100 { allowed } else { u64::MAX });
            }
            Op::CreatePool => {
                harness.pools.push(harness.allocator.create_pool());
                harness.references.push(1);
                model.create_pool();
            }
            Op::RetainPool { pool }
            | Op::ReleasePool { pool }
            | Op::Begin { pool, .. }
            | Op::End { pool }
                if !harness.pools.is_empty() =>
            {
                private_pool(harness, model, op, pool % harness.pools.len());
            }
            _ => {}
        }
    }

    fn assert_equal(&self) {
        let Self { harness, model, .. } = self;
        harness.assert_valid();
        model.assert_statistics(&harness.allocator.statistics());
        model.assert_layout(&harness.allocator.snapshot(), |segment| {
            let number =
                |id| harness.pools.iter().position(|pool| *pool == id).expect("the program created it");
            segment.pool.map(number)
        });
    }
}

fn allocate(harness: &mut Harness, model: &mut Model, bytes: u64, on: u64) {
    model.ask(on);
    let allocator = harness.allocator.clone();
    match harness.allocate(bytes, on) {
        Ok(held) if bytes == 0 => assert!(held.block.is_null() && held.block.address() == 0),
        Ok(held) => {
            let expected = model.allocate(held.handle, bytes, on);
            assert_eq!(Some((held.block.address(), held.block.size_bytes())), expected);
        }
        Err(error) => {
            assert!(error.is_out_of_memory(), "{error}");
            assert_eq!(model.allocate(usize::MAX, bytes, on), None, "the model finds room");
            model.count_out_of_memory();
            let figures = error.figures().expect("an error for lack of memory has figures");
            let statistics = allocator.statistics();
            assert_eq!(figures.requested_bytes, bytes);
            assert_eq!(figures.allocated_bytes, statistics.allocated_bytes.all.current);
            assert_eq!(figures.reserved_bytes, statistics.reserved_bytes.all.current);
            assert_eq!(figures.capturing, model.is_capturing());
        }
    }
}

fn private_pool(harness: &mut Harness, model: &mut Model, op: &Op, pool: usize) {
    let id = harness.pools[pool];
    match *op {
        Op::RetainPool { .. } => {
            let known = model.is_referenced(pool);
            assert_eq!(harness.allocator.retain_pool(id).is_ok(), known);
            if known {
                model.retain_pool(pool);
                harness.references[pool] += 1;
            }
        }
        // A program releases only references that it has; the scope's own reference is not one of them.
        Op::ReleasePool { .. } if harness.references[pool] > 0 => {
            harness.allocator.release_pool(id).expect("the program holds a reference");
            model.release_pool(pool);
            harness.references[pool] -= 1;
        }
        Op::Begin { filter, .. } => {
            let possible = model.is_referenced(pool) && !model.is_begun(pool);
            assert_eq!(harness.begin(pool, filter).is_ok(), possible);
            if possible {
                model.begin(pool, filter);
            }
        }
        Op::End { .. } => {
            let begun = model.is_begun(pool);
            assert_eq!(harness.allocator.end_allocate_to_pool(id).is_ok(), begun);
            if begun {
                model.end(pool);
            }
        }
        _ => {}
    }
}

fn run(capacity: u64, max_split: Option<u64>, program: &[Op]) {
    let harness = Harness::new(capacity, max_split);
    let mut pair = Pair { harness, model: Model::new(capacity, max_split), capacity };
    for op in program {
        pair.step(op);
        pair.assert_equal();
    }
    pair.harness.finish();
}

#[test]
fn random_programs_agree_with_the_model() {
    let capacity = prop_oneof![Just(64u64 << 20), Just(160 << 20), Just(1 << 40)];
    let max_split = prop_oneof![3 => Just(None), 1 => Just(Some(20u64 << 20)), 1 => Just(Some(30 << 20))];
    let cases = (capacity, max_split, program());
    let outcome = runner(400).run(&cases, |(capacity, max_split, program)| {
        run(capacity, max_split, &program);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn programs_reach_what_they_are_meant_to_test() {
    // A property that never covers the hard cases proves nothing: count them over the same programs.
    let (mut pending, mut ooms, mut retries, mut private, mut splits) = (0, 0, 0, 0, 0);
    let mut seen = |harness: &Harness| {
        let statistics = harness.allocator.statistics();
        pending += u64::from(statistics.active.all.current > statistics.allocation.all.current);
        ooms += u64::from(statistics.num_ooms > 0);
        retries += u64::from(statistics.num_alloc_retries > statistics.num_ooms);
        private += u64::from(harness.allocator.snapshot().iter().any(|segment| segment.pool.is_some()));
        splits += u64::from(statistics.inactive_split.all.peak > 2);
    };
    let counter = std::cell::RefCell::new(&mut seen);
    let outcome = runner(100).run(&program(), |program| {
        let capacity = 64 << 20;
        let mut pair =
            Pair { harness: Harness::new(capacity, None), model: Model::new(capacity, None), capacity };
        program.iter().for_each(|op| pair.step(op));
        (counter.borrow_mut())(&pair.harness);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    for (what, count) in [("pending", pending), ("ooms", ooms), ("private", private), ("splits", splits)] {
        assert!(count >= 10, "{what}: only {count} of 100 programs");
    }
    assert!(retries >= 5, "retries that helped: only {retries} of 100 programs");
}
