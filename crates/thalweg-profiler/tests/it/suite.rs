//! The conformance suite over a recorded driver: the profiler changes no result.

use std::sync::Arc;

use thalweg_conformance::simulator;
use thalweg_driver::Driver;
use thalweg_profiler::ProfilerDriver;

#[test]
fn every_answer_stays_the_same_while_it_records() {
    let profiler = ProfilerDriver::new(simulator(2, 2));
    profiler.start().unwrap();
    let driver: Arc<dyn Driver> = profiler.clone();
    let report = thalweg_conformance::run_each(&driver, 0, &mut |line| println!("{line}"));
    let failed: Vec<_> = report.failed().map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let plain = thalweg_conformance::run_all(&simulator(2, 2), 0);
    assert_eq!(report.skipped().count(), plain.skipped().count());
    let trace = profiler.stop().unwrap();
    assert!(!trace.commands.is_empty());
}
