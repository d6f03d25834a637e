//! Tests of `thalweg sim` with this test binary as the program, controlled by an environment variable.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use thalweg::driver::FillPattern;
use thalweg::runtime::{Buffer, Label};
use thalweg::{Device, Stream};

use crate::{text, thalweg};

const CHILD: &str = "THALWEG_TEST_CHILD";

/// The program that the command runs. Without the environment variable it is a test that does nothing.
#[test]
fn child() {
    let Ok(kind) = std::env::var(CHILD) else { return };
    let report = PathBuf::from(std::env::var_os("THALWEG_SIM_REPORT").expect("the command names one"));
    let folder = report.parent().expect("a file lies in a folder").metadata().expect("it is there");
    assert_eq!(folder.permissions().mode() & 0o777, 0o700, "no other user can put a report there");
    match hand_over(&kind) {
        // A status of its own: the program reports its error.
        Err(_) if kind == "orderly" => std::process::exit(3),
        result => result.unwrap(),
    }
}

fn hand_over(kind: &str) -> thalweg::Result<()> {
    let device = Device::best()?;
    assert!(device.is_simulated());
    let (main, side) = (device.current_stream(), Stream::new(&device)?);
    let buffer = Buffer::new(&side, 64)?;
    side.fill(buffer.pointer(), FillPattern::U8(1), 64, Label::here("fill"))?;
    if kind != "racy" {
        main.wait_stream(&side)?;
    }
    match kind {
        // It learns so, and goes on.
        "polling" => (0..).find(|_| side.query().is_err()).map(drop).unwrap_or_default(),
        "asleep" => loop {
            std::thread::park();
        },
        "asks" => drop(side.query()?),
        "stale" => {
            let pointer = Buffer::new(&main, 64)?.pointer();
            let next = Buffer::new(&main, 64)?;
            for pointer in [next.pointer(), pointer] {
                main.fill(pointer, FillPattern::U8(2), 64, Label::here("fill"))?;
            }
        }
        _ => {}
    }
    let read = main.copy_to_host(&mut [0; 64], buffer.pointer(), Label::here("read"));
    buffer.record_use(&main);
    read
}

fn sim(options: &[&str], kind: &str) -> (Option<i32>, String, String) {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().expect("a path of Cargo's");
    let mut arguments = vec!["sim"];
    arguments.extend_from_slice(options);
    arguments.extend_from_slice(&["--", program, "--exact", "sim::child"]);
    let output = thalweg(&arguments, &[(CHILD, kind), ("COLUMNS", "80")]);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_right_program_passes_every_seed() {
    let (status, out, errors) = sim(&["--seeds", "6"], "right");
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("6 seeds, nothing found"), "{out}");
}

#[test]
fn a_stale_pointer_is_found_though_another_has_the_memory() {
    let (status, out, _) = sim(&["--seeds", "3", "--jobs", "1"], "stale");
    assert_eq!(status, Some(1), "{out}");
    for part in ["seed 0", "use after free", "was held back", "showed the same", "--first 0 --seeds 1 -- "] {
        assert!(out.contains(part), "`{part}` is not in:\n{out}");
    }
}

#[test]
fn a_race_is_reported_with_the_way_to_see_it_again() {
    let (status, out, _) = sim(&["--seeds", "4", "--jobs", "2"], "racy");
    assert_eq!(status, Some(1), "{out}");
    for part in
        ["seed 0", "data race", "`fill` at", "`read` at", "showed the same", "--first 0 --seeds 1 -- "]
    {
        assert!(out.contains(part), "`{part}` is not in:\n{out}");
    }
    let (status, out, _) = sim(&["--seeds", "1", "--json"], "racy");
    assert_eq!(status, Some(1));
    let last = out.lines().last().unwrap();
    assert!(last.contains("\"failing_seeds\":1"), "{out}");
}

#[test]
fn under_faults_an_error_is_well_and_a_panic_is_not() {
    let (status, out, _) = sim(&["--seeds", "60", "--faults"], "orderly");
    assert_eq!(status, Some(0), "{out}");
    let (status, out, _) = sim(&["--seeds", "60", "--faults"], "careless");
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("exit status: 101"), "{out}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let output = thalweg(&["sim", "--", "no-such-program"], &[]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("no-such-program"));
    let output = thalweg(&["sim", "--", "/"], &[]);
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn a_program_that_gets_stuck_is_ended_and_says_where() {
    // Polls for what never comes.
    let (status, out, _) = sim(&["--seeds", "1", "--faults"], "polling");
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("livelock: ") && out.contains("cuStreamQuery"), "{out}");
    // Blocks outside of the driver: its own process ends it.
    let (status, out, _) = sim(&["--seeds", "1", "--timeout", "1"], "asleep");
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains("time limit: the run is not over after 1 s"), "{out}");
}

#[test]
fn an_order_only_run_stops_when_the_schedule_cannot_matter() {
    let (status, out, _) = sim(&["--seeds", "6", "--order-only", "--jobs", "1"], "right");
    assert_eq!(status, Some(0), "{out}");
    assert!(out.contains("1 seeds, nothing found") && out.contains("would be the same"), "{out}");
    let (status, out, _) = sim(&["--seeds", "6", "--order-only", "--jobs", "1"], "asks");
    assert_eq!(status, Some(0), "{out}");
    assert!(out.contains("6 seeds, nothing found"), "{out}");
    let (status, out, _) = sim(&["--seeds", "6", "--order-only"], "racy");
    assert_eq!(status, Some(1), "{out}");
}

#[test]
fn a_program_that_uses_no_simulated_gpu_is_not_said_to_be_well() {
    let output = thalweg(&["sim", "--seeds", "3", "--", "true"], &[]);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((out.as_str(), output.status.code()), ("", Some(2)), "{error}");
    assert!(error.contains("`true` opened no simulated GPU, so nothing was checked"), "{error}");
    let output = thalweg(&["sim", "--seeds", "0", "--", "true"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--seeds"), "{}", text(&output.stderr));
}
