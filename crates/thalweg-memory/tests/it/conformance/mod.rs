//! One suite for every set-up of an allocator: random programs, and a checker that does not depend on the allocator.

mod checker;
mod faults;
mod programs;
mod shadow;
mod trial;

use proptest::prelude::*;
use thalweg_memory::{CrossStreamReuse, Policy, PowerTwoDivisions, Settings};

use self::programs::{ProgramStep, program};
use self::trial::{Pools, Setup, Trial};
use crate::harness::small_pages;
use crate::random::runner;

const MIB: u64 = 1 << 20;

fn setups() -> Vec<Setup> {
    let thalweg = small_pages;
    let pytorch = || Settings::default().with_policy(Policy::PyTorch);
    let setup =
        |name, settings, virtual_memory| Setup { name, settings, virtual_memory, pools: Pools::Usual };
    let no_slack = || thalweg().with_stitching_slack(0.0).expect("from 0 to 1");
    let with_pools = |pools, setup| Setup { pools, ..setup };
    let rounded = |settings: Settings| {
        settings.with_roundup_power2_divisions(PowerTwoDivisions::uniform(4).expect("a power of two"))
    };
    vec![
        setup("pytorch", pytorch(), false),
        setup("pytorch expandable", pytorch().with_expandable_segments(true), true),
        setup("thalweg plain", thalweg(), false),
        setup("thalweg", thalweg(), true),
        setup("thalweg, large pages", Settings::default(), true),
        setup("no stitching", thalweg().with_stitching(false), true),
        setup("never", thalweg().with_cross_stream_reuse(CrossStreamReuse::Never), true),
        setup("ordered", thalweg().with_cross_stream_reuse(CrossStreamReuse::Ordered), true),
        setup("max split", thalweg().with_max_split_size_bytes(20 * MIB).expect("at least 20"), true),
        setup("max split plain", thalweg().with_max_split_size_bytes(20 * MIB).expect("at least 20"), false),
        setup("depth 0", thalweg().with_record_use_depth(0), true),
        with_pools(Pools::Aliased, setup("aliases", thalweg(), true)),
        with_pools(Pools::Aliased, setup("aliases without slack", no_slack(), true)),
        with_pools(Pools::Aliased, setup("aliases, large pages", Settings::default(), true)),
        with_pools(Pools::NoSplit, setup("no split", thalweg(), true)),
        with_pools(Pools::NoSplit, setup("no split plain", thalweg(), false)),
        with_pools(Pools::UseOnOom, setup("pools that help", thalweg(), true)),
        with_pools(Pools::UseOnOom, setup("pools that help, pytorch", pytorch(), false)),
        with_pools(Pools::Sourced, setup("pools with a source", thalweg(), true)),
        with_pools(Pools::Sourced, setup("pools with a source, pytorch", pytorch(), false)),
        setup("rounded", rounded(thalweg()), true),
        setup("rounded, pytorch", rounded(pytorch()), false),
    ]
}

fn run(setup: &Setup, capacity: u64, program: &[ProgramStep], emptied: bool) {
    let mut trial = Trial::new(setup, capacity);
    for step in program {
        if let Err(error) = trial.step(step) {
            assert!(error.is_out_of_memory(), "{step:?}: {error}");
        }
        trial.assert_valid();
    }
    trial.finish(emptied);
}

#[test]
fn every_setup_is_safe_and_exact_over_random_programs() {
    let capacity = || prop_oneof![2 => Just(48u64 << 20), 2 => Just(96 << 20), 1 => Just(1 << 40)];
    let mut failures = Vec::new();
    for setup in setups() {
        let cases = (capacity(), program(), any::<bool>());
        let outcome = runner(40).run(&cases, |(capacity, program, emptied)| {
            run(&setup, capacity, &program, emptied);
            Ok(())
        });
        failures.extend(outcome.err().map(|failure| format!("{}: {failure}", setup.name)));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
