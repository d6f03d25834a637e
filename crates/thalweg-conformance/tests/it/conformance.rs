//! The conformance suite on the simulator, and on a GPU on request.

use std::sync::Arc;

use thalweg_conformance::{Report, Stop, simulator};
use thalweg_driver::{CaptureMode, Code, Driver, EventFlags, FillPattern, Label, cuda::CudaDriver};
use thalweg_sim::{SimConfig, SimDriver};

/// The environment variable that requests tests on a GPU: its value is then `cuda`.
pub(super) const TEST_DEVICE: &str = "THALWEG_TEST_DEVICE";

/// Returns the GPU, if the environment requests it.
pub(super) fn gpu() -> Option<Arc<dyn Driver>> {
    if std::env::var(TEST_DEVICE).as_deref() != Ok("cuda") {
        println!("skipped: {TEST_DEVICE} is not `cuda`");
        return None;
    }
    Some(CudaDriver::open().expect("the environment asks for a GPU"))
}

fn assert_success(report: &Report) {
    println!("{report}");
    let failed: Vec<_> = report.failed().map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn run(driver: &Arc<dyn Driver>, device: u32) -> Report {
    let report = thalweg_conformance::run_each(driver, device, &mut |line| println!("{line}"));
    assert_success(&report);
    report
}

/// Two devices, so that the cases about several devices run: then hardly any case has a reason to be skipped.
#[test]
fn the_simulator_conforms() {
    let report = run(&simulator(2, 2), 0);
    let may_be_skipped = [
        "virtual_memory/parts_of_physical_memory_are_mapped",
        "sharing/memory_that_network_adapters_reach_is_memory",
    ];
    for line in report.skipped() {
        assert!(may_be_skipped.contains(&line.name), "the simulator should run this: {line}");
    }
}

#[test]
fn the_second_device_conforms() {
    run(&simulator(2, 2), 1);
}

#[test]
fn one_worker_conforms() {
    run(&simulator(1, 1), 0);
}

#[test]
fn four_workers_conform() {
    run(&simulator(1, 4), 0);
}

#[test]
fn a_simulator_is_lost_as_a_gpu_is() {
    let mut open = || Ok(simulator(2, 2));
    let report = thalweg_conformance::run_destructive(&mut open, 0, &mut |line| println!("{line}"));
    assert_success(&report);
    assert_eq!(report.skipped().count(), 0, "a fresh simulator can be lost for each case");
}

#[test]
fn a_gpu_conforms() {
    if let Some(driver) = gpu() {
        run(&driver, 0);
    }
}

/// Two cases that must not pass: checks that the suite detects failures at all.
#[test]
fn the_suite_tells_failures_and_panics_apart_from_success() {
    let error = thalweg_driver::Error::new(Code::Unknown, "cuNothing", "made up");
    let Stop::Failed(text) = Stop::from(error) else { panic!("an unexpected error is a failure") };
    assert!(text.contains("cuNothing") && text.contains("conformance.rs:"), "{text}");
    let report = Report {
        lines: vec![
            thalweg_conformance::Line { name: "a/b", stop: None },
            thalweg_conformance::Line { name: "a/c", stop: Some(Stop::Skipped("no GPU".into())) },
            thalweg_conformance::Line { name: "a/d", stop: Some(Stop::Failed("expected 1, saw 2".into())) },
        ],
    };
    assert!(!report.is_success());
    assert_eq!(report.to_string(), "1 passed, 1 skipped, 1 failed");
}

#[test]
fn the_names_of_cases_are_unique() {
    let mut names: Vec<_> = thalweg_conformance::cases()
        .iter()
        .chain(thalweg_conformance::destructive_cases())
        .map(|case| case.name)
        .collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn handles_mean_nothing_to_another_driver() {
    let (one, other) = (simulator(1, 1), simulator(1, 1));
    let stream = one.stream_create(0, 0).unwrap();
    let event = one.event_create(0, EventFlags::default()).unwrap();
    let memory = one.memory_allocate(0, 256).unwrap();
    let same_number = other.stream_create(0, 0).unwrap();
    assert_eq!(other.stream_query(stream).unwrap_err().code(), Code::InvalidHandle);
    assert_eq!(other.event_query(event).unwrap_err().code(), Code::InvalidHandle);
    assert_eq!(other.stream_destroy(stream).unwrap_err().code(), Code::InvalidHandle);
    assert!(other.memory_free(memory).unwrap_err().is_invalid_argument());
    assert_eq!(other.stream_query(same_number), Ok(true));
    assert_eq!(one.stream_query(stream), Ok(true));
    one.memory_free(memory).unwrap();
}

/// The one rule of capture that the suite cannot reach, since the trait makes no blocking streams.
#[test]
fn a_blocking_stream_that_captures_ties_up_the_default_stream() {
    let config = SimConfig { memory_bytes: 64 << 20, ..SimConfig::default() };
    let driver = SimDriver::new(config).unwrap();
    let external = driver.external_stream_create(0, 0, true).unwrap();
    let blocking = driver.stream_from_external(0, external).unwrap();
    let default = driver.default_stream(0).unwrap();
    let memory = driver.memory_allocate(0, 256).unwrap();
    let label = Label::here("fill");
    let fill = thalweg_driver::Fill { target: memory, pattern: FillPattern::U8(1), count: 256, label };

    driver.stream_begin_capture(blocking, CaptureMode::Relaxed).unwrap();
    assert_eq!(driver.stream_capture_info(default).unwrap_err().code(), Code::StreamCaptureImplicit);
    assert_eq!(driver.fill_async(default, &fill).unwrap_err().code(), Code::StreamCaptureImplicit);
    // It is not defined whether the refused call also broke the capture; it must end, and both streams must work again.
    if let Ok(graph) = driver.stream_end_capture(blocking) {
        driver.graph_destroy(graph).unwrap();
    }
    driver.fill_async(blocking, &fill).unwrap();
    driver.fill_async(default, &fill).unwrap();
    driver.stream_synchronize(default).unwrap();
    driver.memory_free(memory).unwrap();
}
