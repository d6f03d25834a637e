//! The litmus programs on the simulator, and on a GPU on request.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_conformance::Fixture;
use thalweg_conformance::litmus::{self, Observation};
use thalweg_sim::schedules::Late;
use thalweg_sim::{SimConfig, SimDriver};

use thalweg_conformance::simulator;
use thalweg_driver::Driver;

use super::conformance::gpu;

fn run_all(driver: Arc<dyn Driver>, repetitions: u64, seed: u64) -> Vec<Observation> {
    let fixture = Fixture::new(driver, 0).expect("the kernels of the suite load");
    litmus::programs()
        .iter()
        .map(|program| {
            let observation = litmus::run(program, &fixture, repetitions, seed)
                .unwrap_or_else(|error| panic!("{}: {error}", program.name));
            println!("{observation}");
            observation
        })
        .collect()
}

fn assert_allowed(observations: &[Observation]) {
    let forbidden: Vec<_> = observations
        .iter()
        .filter(|observation| !observation.is_allowed())
        .map(ToString::to_string)
        .collect();
    assert!(forbidden.is_empty(), "outcomes that CUDA does not allow:\n{}", forbidden.join("\n"));
}

#[test]
fn the_simulator_stays_inside_what_cuda_allows() {
    let observations = run_all(simulator(1, 2), 60, 1);
    assert_allowed(&observations);
    // A simulator that ran everything at the call would pass as well, so the host must be seen to run ahead. (The order of two
    // unordered commands does not show this: a simulator may always choose the same one.)
    let seen =
        observations.iter().find(|seen| seen.program.name == "streams/a_host_function_is_asynchronous");
    let ahead = seen.and_then(|seen| seen.counts.get(&vec![0])).copied().unwrap_or_default();
    assert!(ahead > 0, "the host never got ahead of a host function: the simulator is not asynchronous");
}

/// Every schedule of every program: the simulator allows exactly the outcomes that CUDA allows.
#[test]
fn every_schedule_gives_exactly_what_cuda_allows() {
    let config = SimConfig { memory_bytes: 16 << 20, ..SimConfig::default() };
    let driver = SimDriver::controlled(config, Box::new(Late::new(0))).unwrap();
    let mut wrong = Vec::new();
    for program in litmus::programs() {
        let seen = match litmus::explore(program, &driver, 20_000) {
            Ok(seen) => seen,
            Err(error) => panic!("{}: {error}", program.name),
        };
        println!("{} runs {seen}", seen.repetitions());
        let is_complete = program.allowed.iter().all(|&outcome| seen.counts.contains_key(outcome));
        if !seen.is_allowed() || !is_complete {
            wrong.push(seen.to_string());
        }
    }
    assert!(wrong.is_empty(), "not exactly the allowed outcomes:\n{}", wrong.join("\n"));
}

#[test]
fn one_worker_stays_inside_what_cuda_allows() {
    assert_allowed(&run_all(simulator(1, 1), 30, 2));
}

#[test]
fn four_workers_stay_inside_what_cuda_allows() {
    assert_allowed(&run_all(simulator(1, 4), 60, 3));
}

#[test]
fn a_gpu_stays_inside_what_cuda_allows() {
    if let Some(driver) = gpu() {
        assert_allowed(&run_all(driver, 200, 4));
    }
}

#[test]
fn the_programs_are_well_formed() {
    let programs = litmus::programs();
    assert!(programs.len() >= 20, "{} programs", programs.len());
    let mut names = BTreeMap::new();
    for program in programs {
        assert!(names.insert(program.name, ()).is_none(), "{} twice", program.name);
        assert!(!program.allowed.is_empty(), "{} allows nothing", program.name);
        assert!(program.about.ends_with(['.', ')']), "{}: what it is about is a sentence", program.name);
        for outcome in program.allowed {
            assert_eq!(outcome.len(), program.observed.len(), "{}: {outcome:?}", program.name);
            assert!(outcome.iter().all(|&value| value < 256), "{}: values fit one byte", program.name);
        }
    }
    let racy = programs.iter().filter(|program| program.is_racy()).count();
    assert!(racy >= 10 && programs.len() - racy >= 10, "{racy} racy of {}", programs.len());
}

/// A program whose only allowed outcome is wrong: the harness must detect that.
#[test]
fn the_harness_sees_what_is_forbidden() {
    let fixture = Fixture::new(simulator(1, 1), 0).unwrap();
    let mut program = litmus::programs()[0];
    program.allowed = &[&[77]];
    let observation = litmus::run(&program, &fixture, 3, 0).unwrap();
    assert!(!observation.is_allowed());
    assert_eq!(observation.forbidden().map(|(_, count)| count).sum::<u64>(), 3);
    assert!(observation.to_string().starts_with("FAILED"), "{observation}");
    assert!(observation.to_json("x").contains("\"passed\":false"));
}
