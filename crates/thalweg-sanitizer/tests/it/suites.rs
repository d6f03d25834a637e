//! The sanitizer over the existing suites: it changes no result, and its verdicts on the litmus programs are those that the programs
//! declare.

use std::sync::Arc;

use thalweg_conformance::{Fixture, litmus, simulator};
use thalweg_driver::Driver;
use thalweg_sanitizer::SanitizerDriver;

/// Racy programs without conflicting accesses that the sanitizer could see: they race for the result of a query, or for a
/// variable of the host.
const NOT_OF_MEMORY: [&str; 2] = ["host/a_query_answers_either", "streams/a_host_function_is_asynchronous"];

/// The race here is between calls of the host; the sanitizer judges the order that it saw.
const OF_HOST_THREADS: [&str; 1] = ["events/two_threads_race_to_record_and_wait"];

#[test]
fn every_answer_stays_the_same() {
    let driver: Arc<dyn Driver> = SanitizerDriver::new(simulator(2, 2));
    let report = thalweg_conformance::run_each(&driver, 0, &mut |line| println!("{line}"));
    let failed: Vec<_> = report.failed().map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // What the simulator skips, by its own test.
    let skipped: Vec<&str> = report.skipped().map(|line| line.name).collect();
    assert_eq!(skipped, ["sharing/memory_that_network_adapters_reach_is_memory"]);
}

#[test]
fn a_lost_device_stays_lost() {
    let mut open =
        || -> thalweg_driver::Result<Arc<dyn Driver>> { Ok(SanitizerDriver::new(simulator(2, 2))) };
    let report = thalweg_conformance::run_destructive(&mut open, 0, &mut |line| println!("{line}"));
    assert!(report.is_success(), "{report}");
}

#[test]
fn litmus_programs_are_judged_right() {
    let mut wrong = Vec::new();
    for program in litmus::programs() {
        let checked = SanitizerDriver::new(simulator(1, 2));
        let fixture = Fixture::new(checked.clone(), 0).unwrap();
        assert_eq!(checked.findings(), [], "setting up is in order");
        litmus::run(program, &fixture, 3, 7).unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let findings = checked.findings();
        let is_expected = if OF_HOST_THREADS.contains(&program.name) {
            true
        } else if program.is_racy() && !NOT_OF_MEMORY.contains(&program.name) {
            !findings.is_empty()
        } else {
            findings.is_empty()
        };
        if !is_expected {
            let text: Vec<_> = findings.iter().map(ToString::to_string).collect();
            wrong.push(format!("{} (racy: {}):\n{}", program.name, program.is_racy(), text.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
