//! Tests of `thalweg profile` with this test binary as the program, controlled by an environment variable.

use std::path::Path;
use std::process::Output;

use serde_json::Value;
use thalweg::driver::FillPattern;
use thalweg::runtime::{Buffer, Label};
use thalweg::{Device, Stream};

use crate::{scratch, text, thalweg};

const CHILD: &str = "THALWEG_TEST_PROFILED";

/// The program that the command runs. Without the environment variable it is a test that does nothing.
#[test]
fn child() {
    let Ok(kind) = std::env::var(CHILD) else { return };
    if kind != "idle" {
        let device = Device::sim(0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let buffer = Buffer::new(&stream, 64).unwrap();
        for bytes in [16, 32, 64] {
            stream.fill(buffer.pointer(), FillPattern::U8(1), bytes, Label::here("zero_")).unwrap();
        }
        stream.copy_to_host(&mut [0; 64], buffer.pointer(), Label::here("item")).unwrap();
    }
    if kind == "fails" {
        std::process::exit(7);
    }
}

fn profile(file: &Path, kind: &str, variables: &[(&str, &str)]) -> Output {
    let program = std::env::current_exe().unwrap();
    let (program, file) = (program.to_str().unwrap(), file.to_str().unwrap());
    let arguments = ["profile", "--output", file, "--", program, "--exact", "profile::child"];
    thalweg(&arguments, &[&[(CHILD, kind), ("COLUMNS", "80")], variables].concat())
}

/// Returns the operators and bytes of the fills and copies of a file, in the order of their begins.
fn commands(file: &Path) -> Vec<(String, u64)> {
    let trace: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(trace["schemaVersion"], 1);
    assert_eq!(trace["deviceProperties"].as_array().unwrap().len(), 1);
    let events = trace["traceEvents"].as_array().unwrap();
    let is_work =
        |event: &&Value| matches!(event["cat"].as_str(), Some("gpu_memset" | "gpu_memcpy" | "kernel"));
    let mut work: Vec<&Value> = events.iter().filter(is_work).collect();
    work.sort_by(|one, other| one["ts"].as_f64().unwrap().total_cmp(&other["ts"].as_f64().unwrap()));
    let argument = |event: &Value| {
        (event["args"]["operator"].as_str().unwrap().to_owned(), event["args"]["bytes"].as_u64().unwrap())
    };
    work.into_iter().map(argument).collect()
}

#[test]
fn a_program_leaves_a_trace_and_keeps_its_status() {
    let folder = scratch("profile");
    std::fs::create_dir_all(&folder).unwrap();
    for (kind, status) in [("works", 0), ("fails", 7)] {
        let file = folder.join(format!("{kind}.json"));
        // An existing file is replaced.
        std::fs::write(&file, "an older trace").unwrap();
        let output = profile(&file, kind, &[]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{errors}");
        let expected = [("zero_", 16), ("zero_", 32), ("zero_", 64), ("item", 64)];
        assert_eq!(commands(&file), expected.map(|(operator, bytes)| (operator.to_owned(), bytes)));
        let row = errors.lines().find(|line| line.starts_with("zero_")).expect("a table");
        assert_eq!(row.split_whitespace().nth(1), Some("3"), "{errors}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn memory_is_recorded_where_it_is_asked_for() {
    let folder = scratch("profile-memory");
    std::fs::create_dir_all(&folder).unwrap();
    for (value, expected) in [("1", vec![512, -512]), ("0", vec![])] {
        let file = folder.join(format!("{value}.json"));
        let program = std::env::current_exe().unwrap();
        let mut arguments = vec!["profile", "--output", file.to_str().unwrap()];
        arguments.extend((value == "1").then_some("--memory"));
        arguments.extend(["--", program.to_str().unwrap(), "--exact", "profile::child"]);
        let output = thalweg(&arguments, &[(CHILD, "works")]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter().filter(|it| it["name"] == "[memory]");
        let changes: Vec<_> = events.map(|it| it["args"]["Bytes"].as_i64().unwrap()).collect();
        assert_eq!(changes, expected);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_cannot_be_profiled_is_said_before_or_after() {
    let folder = scratch("profile-refused");
    let file = folder.join("trace.json");
    // The folder is not there: the program does not run.
    let output = profile(&file, "fails", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot be written"), "{}", text(&output.stderr));

    std::fs::create_dir_all(&folder).unwrap();
    // A device or a folder is not replaced.
    let output = profile(&folder, "works", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not a regular file"), "{}", text(&output.stderr));

    let output = profile(&file, "idle", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no trace"), "{}", text(&output.stderr));

    let output = profile(&file, "works", &[("THALWEG_PROFILE", "/elsewhere.json")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("inside"), "{}", text(&output.stderr));

    let missing = folder.join("missing");
    let arguments = ["profile", "--output", file.to_str().unwrap(), "--", missing.to_str().unwrap()];
    assert_eq!(thalweg(&arguments, &[]).status.code(), Some(127));
    std::fs::remove_dir_all(&folder).unwrap();
}
