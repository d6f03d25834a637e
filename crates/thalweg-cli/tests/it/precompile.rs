//! `thalweg precompile`.

use std::fs;

use crate::{scratch, text, thalweg};

/// Returns the environment variables that let the program find the NVRTC that this process found.
fn finds_compiler() -> Vec<(&'static str, String)> {
    let names = ["PYTHONPATH", "THALWEG_NVRTC_LIBRARY"];
    names.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?))).collect()
}

fn precompile(arguments: &[&str]) -> std::process::Output {
    let variables = finds_compiler();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    thalweg(&[&["precompile"], arguments].concat(), &variables)
}

#[test]
fn recorded_kernels_become_files_that_are_kept() {
    if thalweg::runtime::compiler().is_err() {
        println!("skipped: there is no NVRTC here");
        return;
    }
    let folder = scratch("precompile");
    let (recorded, out) = (folder.join("recorded"), folder.join("kernels"));
    fs::create_dir_all(&recorded).unwrap();
    fs::write(recorded.join("nothing-00ff.cu"), "extern \"C\" __global__ void nothing() {}").unwrap();
    let [recorded, out] = [&recorded, &out].map(|path| path.to_str().unwrap().to_owned());
    let call = [recorded.as_str(), "--archs", "sm_80,sm_90", "--out", out.as_str()];
    let first = precompile(&call);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let files = text(&first.stdout);
    assert_eq!(files.lines().count(), 2, "{files}");
    for (file, architecture) in files.lines().zip(["sm_80", "sm_90"]) {
        assert!(file.contains(architecture) && fs::metadata(file).unwrap().len() > 0, "{file}");
    }
    let times =
        || files.lines().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect::<Vec<_>>();
    let before = times();
    assert_eq!(text(&precompile(&call).stdout), files);
    assert_eq!(times(), before, "what is there is not compiled again");
    let unknown = precompile(&[recorded.as_str(), "--archs", "sm_7"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("does not compile for sm_7"));
    fs::write(format!("{recorded}/wrong-01.cu"), "extern \"C\" __global__ void wrong() { x; }").unwrap();
    // With two architectures the one that is compiled first, by either of two threads, would be named.
    let wrong = precompile(&[recorded.as_str(), "--archs", "sm_80", "--out", out.as_str()]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("wrong for sm_80"), "{}", text(&wrong.stderr));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn without_a_compiler_it_says_so() {
    let output = thalweg(
        &["precompile", "/nonexistent", "--archs", "sm_90"],
        &[("THALWEG_NVRTC_LIBRARY", "/nonexistent/libnvrtc.so")],
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nonexistent/libnvrtc.so"), "{}", text(&output.stderr));
}
