//! Schedules compared with PyTorch's, and the traces that a loop passes on.

use std::sync::Arc;

use thalweg_driver::Code;
use thalweg_lock::Mutex;
use thalweg_profiler::ProfilerAction::{None as Idle, Record, RecordAndSave, Warmup};
use thalweg_profiler::{Average, Ceilings, KeyAverages, Profile, SortBy, Trace, schedule};

use crate::world::World;

#[test]
fn actions_are_those_of_pytorch() {
    // The actions that `torch.profiler.schedule(...)` of PyTorch 2.11 returns for steps 0 to 11: N, W, R, and S for
    // RECORD_AND_SAVE.
    for (wait, warmup, active, repeat, skip_first, skips_wait, expected) in [
        (1, 1, 2, 0, 0, false, "NWRSNWRSNWRS"),
        (1, 1, 2, 2, 0, false, "NWRSNWRSNNNN"),
        (1, 1, 2, 1, 3, false, "NNNNWRSNNNNN"),
        (0, 0, 1, 0, 0, false, "SSSSSSSSSSSS"),
        (0, 0, 3, 1, 1, false, "NRRSNNNNNNNN"),
        (2, 0, 1, 0, 0, false, "NNSNNSNNSNNS"),
        (3, 1, 1, 2, 2, true, "NNWSNNNWSNNN"),
    ] {
        let plan = schedule(wait, warmup, active, repeat, skip_first).unwrap();
        let plan = if skips_wait { plan.skip_first_wait() } else { plan };
        let letter = |step| match plan.action(step) {
            Idle => 'N',
            Warmup => 'W',
            Record => 'R',
            RecordAndSave => 'S',
        };
        assert_eq!((0..12).map(letter).collect::<String>(), expected, "{plan:?}");
    }
    for (wait, active) in [(1, 0), (u64::MAX, 1)] {
        let error = schedule(wait, 0, active, 0, 0).unwrap_err();
        assert_eq!(error.code(), Code::InvalidValue);
        assert!(error.to_string().contains("Invalid profiler schedule arguments"), "{error}");
    }
}

/// Runs a loop of eight steps, where step `n` fills 64 · (n + 1) bytes; returns the bytes of
/// the commands of each trace, and the names of its steps.
fn traces(world: &World, profile: Profile) -> (Vec<Vec<u64>>, Vec<Vec<String>>) {
    let seen = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let sink = Arc::clone(&seen);
    let mut profile = profile.on_trace_ready(move |trace: &Trace| {
        let mut seen = sink.lock();
        seen.0.push(trace.commands.iter().map(|command| command.bytes).collect());
        let thread = trace.calls.first().map_or(0, |call| call.thread);
        let own = trace.annotations.iter().filter(|region| region.thread == thread);
        seen.1.push(own.map(|region| region.name.clone()).collect());
    });
    profile.start().unwrap();
    for step in 1..=8 {
        world.fill(0, "zero_", 64 * step);
        profile.step().unwrap();
    }
    profile.stop().unwrap();
    drop(profile);
    Arc::into_inner(seen).unwrap().into_inner()
}

#[test]
fn a_loop_hands_over_one_trace_for_each_cycle() {
    let world = World::new();
    let plan = schedule(1, 1, 2, 0, 0).unwrap();
    let (bytes, steps) = traces(&world, Profile::new(&world.driver).schedule(plan));
    assert_eq!(bytes, [vec![64 * 3, 64 * 4], vec![64 * 7, 64 * 8]]);
    let steps_expected = [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]];
    assert_eq!(steps, steps_expected.map(|names| names.map(str::to_owned).to_vec()));

    // Cycles without a pause, and one that the end cuts short.
    let plan = schedule(0, 0, 3, 0, 0).unwrap();
    let (bytes, _) = traces(&world, Profile::new(&world.driver).schedule(plan));
    assert_eq!(bytes, [vec![64, 128, 192], vec![256, 320, 384], vec![448, 512]]);

    let (bytes, steps) = traces(&world, Profile::new(&world.driver));
    assert_eq!(bytes, [(1..=8).map(|step| 64 * step).collect::<Vec<_>>()]);
    assert!(steps[0].is_empty(), "without a schedule, steps are not regions: {steps:?}");
}

#[test]
fn a_profiler_inside_another_is_refused_and_harms_neither() {
    let world = World::new();
    let mut outer = Profile::new(&world.driver);
    assert_eq!(outer.step().unwrap_err().code(), Code::InvalidValue);
    assert_eq!(outer.stop().unwrap_err().code(), Code::InvalidValue);
    outer.start().unwrap();
    assert_eq!(outer.start().unwrap_err().code(), Code::InvalidValue);
    let mut inner = Profile::new(&world.driver);
    assert_eq!(inner.start().unwrap_err().code(), Code::InvalidValue);
    drop(inner);
    world.fill(0, "zero_", 64);
    outer.stop().unwrap();
    assert_eq!(outer.trace().unwrap().commands.len(), 1);
    // A profile that is dropped while it records releases the driver.
    outer.start().unwrap();
    drop(outer);
    Profile::new(&world.driver).start().unwrap();
}

#[test]
fn tables_are_sorted_cut_and_compared_with_what_the_gpu_can_do() {
    let row = |operator: &str, count, host_nanoseconds, device_nanoseconds, bytes, flops| Average {
        operator: operator.to_owned(),
        count,
        self_host_nanoseconds: host_nanoseconds / 2,
        host_nanoseconds,
        device_nanoseconds,
        bytes,
        bytes_nanoseconds: device_nanoseconds,
        flops,
        flops_nanoseconds: device_nanoseconds,
        self_device_memory_bytes: 0,
        device_memory_bytes: 0,
    };
    let averages = KeyAverages(vec![
        row("mm", 2, 10, 3000, 600, 1_500_000),
        row("add", 5, 40, 1000, 2000, 0),
        row("nop", 9, 20, 0, 0, 0),
    ]);
    for (name, first) in [
        ("cuda_time_total", "mm"),
        ("cpu_time_total", "add"),
        ("count", "nop"),
        ("bytes", "add"),
        ("flops", "mm"),
    ] {
        let table = averages.table(name.parse().unwrap(), 1);
        let rows: Vec<_> = table.lines().skip(1).collect();
        assert!(rows.len() == 1 && rows[0].starts_with(first), "by {name}:\n{table}");
    }
    assert!("weight".parse::<SortBy>().unwrap_err().contains("'weight'"));
    let ceilings = Ceilings { bandwidth: 4.0, gflops: 1000.0 };
    let table = averages.table_against(SortBy::DeviceTime, 10, &ceilings);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<_> = table.lines().skip(1).map(words).collect();
    assert_eq!(rows[0], ["mm", "2", "0.005", "0.010", "3.000", "75.0", "0.2", "500.0", "5.0", "50.0"]);
    assert_eq!(rows[1], ["add", "5", "0.020", "0.040", "1.000", "25.0", "2.0", "-", "50.0", "-"]);
    assert_eq!(rows[2], ["nop", "9", "0.010", "0.020", "0.000", "0.0", "-", "-", "-", "-"]);
    let none = Ceilings { bandwidth: 0.0, gflops: 0.0 };
    assert!(!averages.table_against(SortBy::Count, 10, &none).contains("inf"));
}
