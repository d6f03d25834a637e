//! `thalweg explain`.

use thalweg::tensor::compile::compiled;
use thalweg::{DType, Device, Tensor};

use crate::{text, thalweg};

/// A segment as a program records it.
const SEGMENT: &str = r#"{"end":"mm (train.py:30)","nodes":["exp (a<b>.py:3)","add (train.py:4)","sum (train.py:5)","exp (train.py:6)"],"steps":[{"members":[0,1],"reads":[0],"writes":[1],"rows":[64],"inner":[]},{"members":[2],"reads":[1],"writes":[2],"rows":[8],"inner":[8]}],"apart":[[1,2,"their iteration spaces differ"]],"twins":[[0,3]],"memories":[{"bytes":256,"lifetime":"existing","offset":null},{"bytes":256,"lifetime":"temporary","offset":0},{"bytes":32,"lifetime":"kept","offset":null}],"arena":256,"allocated":288,"traffic":[2048,512]}"#;

#[test]
fn segments_are_drawn_as_a_page() {
    let folder = std::env::temp_dir().join(format!("thalweg-explain-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, page) = (folder.join("segments.json"), folder.join("page.html"));
    std::fs::write(&file, format!("{SEGMENT}\n\n{SEGMENT}\n")).unwrap();
    let arguments = ["explain", file.to_str().unwrap(), "--output", page.to_str().unwrap()];
    let output = thalweg(&arguments, &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).starts_with("2 segments: 8 loops fused into 4 kernels; "),
        "{}",
        text(&output.stdout)
    );
    let drawn = std::fs::read_to_string(&page).unwrap();
    for part in [
        "ends before mm (train.py:30)",
        "a&lt;b&gt;.py:3",
        "64 points, reads 1, writes 1",
        "8 rows of 8",
        "the same as <b>exp</b>",
        "their iteration spaces differ",
        "class=temporary",
        "512 bytes instead of 2.0 KiB",
    ] {
        assert!(drawn.contains(part), "{part} is not in {drawn}");
    }
    assert!(!drawn.contains("<script") && !drawn.contains("http://"), "it needs nothing else");
    std::fs::write(&file, format!("{SEGMENT}\n{{\"end\":1}}\n")).unwrap();
    let output = thalweg(&arguments, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("line 2: "), "{}", text(&output.stderr));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Records what a compiled function runs. The test below starts it as a separate process, with the environment variable set.
#[test]
#[ignore = "part of the test below"]
fn record_a_function() {
    let device = Device::sim(0).unwrap();
    let x = Tensor::full(&[4, 8], 2.0, DType::F32, &device).unwrap();
    compiled(|| x.exp()?.add_scalar(1.0)?.sum(&[1], false)).unwrap();
}

#[test]
fn what_a_program_records_is_read() {
    let file = std::env::temp_dir().join(format!("thalweg-recorded-{}.json", std::process::id()));
    let page = file.with_extension("html");
    let recorded = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "explain::record_a_function"])
        .env("THALWEG_EXPLAIN_FILE", &file)
        .output()
        .unwrap();
    assert!(recorded.status.success(), "{}", text(&recorded.stderr));
    let output = thalweg(&["explain", file.to_str().unwrap(), "--output", page.to_str().unwrap()], &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let drawn = std::fs::read_to_string(&page).unwrap();
    assert!(
        drawn.contains("explain.rs:")
            && drawn.contains("<b>sum")
            && drawn.contains("3 loops fused into 1 kernel"),
        "{drawn}"
    );
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_file(&page).unwrap();
}
