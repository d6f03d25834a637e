//! Tests of `thalweg doctor` on the machine that runs the tests: its verdict must match its findings.

use std::path::Path;

use serde_json::Value;

use crate::{scratch, text, thalweg};

/// Returns the lines of `--json`, and the exit status.
fn findings(variables: &[(&str, &str)]) -> (Vec<Value>, Option<i32>) {
    let output = thalweg(&["doctor", "--json"], variables);
    let lines = text(&output.stdout);
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    (lines.lines().map(parse).collect(), output.status.code())
}

fn member<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().unwrap_or_else(|| panic!("{key} is not text in {line}"))
}

fn find<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    lines.iter().find(|line| member(line, "name") == name).unwrap_or_else(|| panic!("no {name} in {lines:?}"))
}

#[test]
fn what_is_found_works_and_what_is_missing_is_explained() {
    let output = thalweg(&["doctor"], &[]);
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{report}");
    for part in ["Libraries", "Devices", "Kernels", "Self-test", "sim:0 copy", "sim:0 kernel", "sim:0 matmul"]
    {
        assert!(report.contains(part), "{part} is not in:\n{report}");
    }
    for (subject, advice) in
        [("NVRTC", "pip install nvidia-cuda-nvrtc"), ("cuBLASLt", "pip install nvidia-cublas")]
    {
        let line = report.lines().find(|line| line.contains(subject)).expect("every library has a line");
        assert!(line.trim_start().starts_with("ok") || report.contains(advice), "{report}");
    }
    assert!(!report.contains('\x1b'), "colour is for terminals");
}

#[test]
fn json_lines_have_name_value_unit_and_state() {
    let (lines, status) = findings(&[("THALWEG_SIM_DEVICES", "2")]);
    assert_eq!(status, Some(0));
    for line in &lines {
        member(line, "name");
        member(line, "unit");
        assert!(["ok", "missing"].contains(&member(line, "state")), "{line:?}");
        assert!(line.get("value").is_some(), "{line:?}");
    }
    for device in ["sim:0", "sim:1"] {
        for part in ["self_test_copy", "self_test_kernel", "self_test_matmul"] {
            let of_part = |line: &&Value| member(line, "name") == part && member(line, "device") == device;
            let line = lines.iter().find(of_part).unwrap_or_else(|| panic!("no {part} of {device}"));
            assert!(line["value"].as_f64() > Some(0.0), "{line:?}");
        }
    }
    let verdict = lines.last().expect("there are lines");
    assert_eq!((member(verdict, "name"), verdict["value"].as_u64()), ("doctor", Some(0)));
}

#[test]
fn text_fits_the_width_that_is_asked_for() {
    for columns in ["60", "80"] {
        let output = thalweg(&["doctor", "--verbose"], &[("COLUMNS", columns)]);
        let width = columns.parse().expect("a number");
        for line in text(&output.stdout).lines().filter(|line| line.chars().count() > width) {
            assert_eq!(line.split_whitespace().count(), 1, "only what cannot be broken is wider: {line}");
        }
    }
}

#[test]
fn a_library_that_the_user_named_must_load() {
    let (lines, status) = findings(&[("THALWEG_NVRTC_LIBRARY", "/nonexistent/libnvrtc.so")]);
    assert_eq!(status, Some(1));
    let line = find(&lines, "library_nvrtc");
    assert_eq!(member(line, "state"), "failed");
    assert!(member(line, "tried").contains("/nonexistent/libnvrtc.so"), "{line:?}");
    assert_eq!(member(find(&lines, "doctor"), "state"), "failed");
}

#[test]
fn a_simulator_that_cannot_be_made_is_a_failure_and_no_crash() {
    let (lines, status) = findings(&[("THALWEG_SIM_DEVICES", "0")]);
    assert_eq!(status, Some(1), "{lines:?}");
    let line = lines.iter().find(|line| member(line, "name") == "device" && member(line, "device") == "sim");
    assert_eq!(member(line.expect("the simulator has a line"), "state"), "failed");
}

/// Returns the line about the cache folder, and the exit status. GPUs are hidden, whose self-test would leave kernels there.
fn with_cache(folder: &Path) -> (Value, Option<i32>) {
    let folder = folder.to_str().expect("a path in UTF-8");
    let (lines, status) = findings(&[("THALWEG_CACHE_DIR", folder), ("CUDA_VISIBLE_DEVICES", "")]);
    (find(&lines, "kernel_cache").clone(), status)
}

#[test]
fn a_cache_folder_that_is_not_there_yet_is_fine_and_is_not_made() {
    let folder = scratch("absent").join("deep/below");
    let (line, status) = with_cache(&folder);
    assert_eq!((member(&line, "state"), status), ("ok", Some(0)), "{line:?}");
    assert_eq!(line["entries"], 0);
    assert!(!folder.exists());
}

#[test]
fn a_cache_folder_is_counted() {
    let folder = scratch("counted");
    let kernels = folder.join("kernels/sm_90");
    std::fs::create_dir_all(&kernels).expect("create a folder");
    for name in ["a.kernel", "b.kernel", "c.7.0.partial", "notes.txt"] {
        std::fs::write(kernels.join(name), [0; 100]).expect("write a file");
    }
    let (line, status) = with_cache(&folder);
    assert_eq!((member(&line, "state"), status), ("ok", Some(0)), "{line:?}");
    assert_eq!((line["entries"].as_u64(), line["value"].as_u64()), (Some(2), Some(300)));
    assert!(member(&line, "text").contains("2 for sm_90"), "{line:?}");
    let names = std::fs::read_dir(folder.join("kernels")).expect("read the folder").count();
    assert_eq!(names, 1, "nothing is left behind");
    std::fs::remove_dir_all(&folder).expect("clean up");
}

#[test]
fn a_file_in_the_place_of_the_cache_folder_is_reported() {
    let file = scratch("file");
    std::fs::write(&file, b"not a folder").expect("write a file");
    let (line, status) = with_cache(&file);
    assert_eq!((member(&line, "state"), status), ("failed", Some(1)), "{line:?}");
    assert_eq!(member(&line, "path"), file.to_str().expect("a path in UTF-8"));
    std::fs::remove_file(&file).expect("clean up");
}

/// `/proc` takes no files from any user, the superuser included.
#[test]
fn a_cache_folder_that_cannot_be_written_is_reported() {
    let (line, status) = with_cache(Path::new("/proc/thalweg"));
    assert_eq!((member(&line, "state"), status), ("failed", Some(1)), "{line:?}");
    assert!(member(&line, "text").contains("/proc"), "{line:?}");
}

#[test]
fn precompiled_kernels_are_counted_and_a_wrong_folder_is_reported() {
    let (lines, status) = findings(&[("THALWEG_PRECOMPILED_KERNELS", "/nonexistent/kernels")]);
    assert_eq!((member(find(&lines, "precompiled_kernels"), "state"), status), ("failed", Some(1)));

    let folder = scratch("precompiled");
    std::fs::create_dir_all(folder.join("sm_80")).expect("create a folder");
    std::fs::write(folder.join("sm_80/x.kernel"), b"x").expect("write a file");
    let (lines, status) =
        findings(&[("THALWEG_PRECOMPILED_KERNELS", folder.to_str().expect("a path in UTF-8"))]);
    let line = find(&lines, "precompiled_kernels");
    assert_eq!((member(line, "state"), status), ("ok", Some(0)), "{line:?}");
    assert_eq!(line["entries"], 1);
    std::fs::remove_dir_all(&folder).expect("clean up");
}

/// Checks that a run records its kernels as CUDA C, from which a bundle is made.
#[test]
fn kernels_that_a_run_loads_are_recorded_as_cuda_c() {
    let folder = scratch("record");
    let (_, status) = findings(&[("THALWEG_RECORD_KERNELS", folder.to_str().expect("a path in UTF-8"))]);
    assert_eq!(status, Some(0));
    let files: Vec<_> =
        std::fs::read_dir(&folder).expect("the folder was made").map(|e| e.expect("entry").path()).collect();
    let of_sigmoid = files
        .iter()
        .find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("sigmoid_")));
    let source =
        std::fs::read_to_string(of_sigmoid.expect("the self-test runs sigmoid")).expect("read a file");
    assert!(source.contains("extern \"C\" __global__"), "{source}");
    std::fs::remove_dir_all(&folder).expect("clean up");
}
