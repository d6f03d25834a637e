//! Tests of `thalweg audit` with its examples, on the simulator.

use crate::{text, thalweg};

fn audit(arguments: &[&str], columns: &str) -> (Option<i32>, String, String) {
    let arguments: Vec<&str> = ["audit", "--device", "sim"].iter().chain(arguments).copied().collect();
    let output = thalweg(&arguments, &[("COLUMNS", columns)]);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn what_can_be_captured_has_no_obstacle() {
    let (status, report, complaints) = audit(&["train", "decode"], "100");
    assert_eq!(status, Some(0), "{report}{complaints}");
    assert_eq!(report.matches("This region can be captured (global mode, sim:0).").count(), 2, "{report}");
    assert!(report.contains("It submits ") && report.contains("is measured on a GPU"), "{report}");
}

#[test]
fn what_cannot_be_captured_is_listed_with_its_lines() {
    for (example, expected) in [
        ("train-item", &["pageable copy", "data-dependent shape", "host synchronisation"][..]),
        ("decode-host", &["pageable copy", "data-dependent shape", "host random state"]),
        ("streams", &["unjoined fork", "outside stream", "other thread", "host synchronisation"]),
    ] {
        let (status, report, complaints) = audit(&[example], "140");
        assert_eq!(status, Some(1), "{report}{complaints}");
        for part in expected.iter().chain(&["src/audit/examples.rs:", "repair: "]) {
            assert!(report.contains(part), "{part} is not in:\n{report}");
        }
    }
}

#[test]
fn a_cold_region_loads_its_kernels() {
    let (status, report, _) = audit(&["--cold", "train"], "100");
    assert_eq!(status, Some(1));
    assert!(report.contains("lazy module load"), "{report}");
}

#[test]
fn a_relaxed_capture_has_fewer_obstacles() {
    let obstacles =
        |mode| audit(&["--mode", mode, "--json", "train-item"], "80").1.matches("\"kind\"").count();
    assert_eq!(obstacles("global"), obstacles("relaxed"), "a device that captures is waited for in no mode");
    let (status, report, _) = audit(&["--mode", "lazy"], "80");
    assert_eq!((status, report.as_str()), (Some(2), ""));
}

#[test]
fn json_has_one_object_an_example() {
    let (status, report, _) = audit(&["--json"], "80");
    assert_eq!(status, Some(1));
    assert_eq!(report.lines().count(), 5);
    for line in report.lines() {
        let capturable = line.contains("\"capturable\":true");
        assert_eq!(capturable, line.contains("\"obstacles\":[]"), "{line}");
        assert!(line.starts_with("{\"example\":\"") && line.ends_with("\"savings\":null}"), "{line}");
    }
}

#[test]
fn unknown_examples_are_explained() {
    let output = thalweg(&["audit", "training"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = "[possible values: train, train-item, decode, decode-host, streams]";
    assert!(text(&output.stderr).contains(complaint), "{}", text(&output.stderr));
}

/// Returns the text without the numbers of lines and streams, which change with every edit of the examples.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("examples.rs:").map(|at| at + "examples.rs:".len()) {
        out.push_str(&rest[..start]);
        rest = rest[start..].trim_start_matches(|character: char| character.is_ascii_digit());
    }
    out.push_str(rest);
    out.split_whitespace().filter(|word| !word.starts_with("0x")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_shows_what_is_printed() {
    let page = without_numbers(include_str!("../../../../docs/graph-audit.md"));
    for example in ["train", "train-item", "streams"] {
        let (_, report, _) = audit(&[example], "100");
        let report = without_numbers(&report);
        assert!(page.contains(&report), "docs/graph-audit.md does not show this:\n{report}");
    }
}
