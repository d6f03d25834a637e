//! `thalweg tune`.

use std::fs;

use crate::{scratch, text, thalweg};

#[test]
fn products_of_a_file_are_tuned_into_a_file_and_then_known() {
    let folder = scratch("tune");
    fs::create_dir_all(&folder).unwrap();
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (untuned, results) = (at("untuned.csv"), at("results.csv"));
    fs::write(
        &untuned,
        "GemmTunableOp_BFloat16_TN,tn_16_8_4_ld_4_4_16\nGemmTunableOp_int_TN,tn_1_1_1_ld_1_1_1\n",
    )
    .unwrap();
    let tune = || {
        let arguments = [
            "tune",
            untuned.as_str(),
            "--device",
            "sim",
            "--output",
            results.as_str(),
            "--iterations",
            "3",
            "--json",
        ];
        let output = thalweg(&arguments, &[("PYTORCH_TUNABLEOP_ROTATING_BUFFER_SIZE", "0")]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    let first = tune();
    assert_eq!((first[0]["state"].as_str(), first[1]["state"].as_str()), (Some("tuned"), Some("left out")));
    assert!(first[1]["why"].as_str().unwrap().contains("no products of int"));
    let second = tune();
    assert_eq!(second[0]["state"], "known");
    assert_eq!(second[0]["solution"], first[0]["solution"]);
    assert_eq!(fs::read_to_string(&results).unwrap().matches("tn_16_8_4_ld_4_4_16").count(), 1);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn results_for_pytorch_have_its_validators_and_the_librarys_algorithms() {
    let folder = scratch("tune-for-pytorch");
    fs::create_dir_all(&folder).unwrap();
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (untuned, results) = (at("untuned.csv"), at("results.csv"));
    fs::write(&untuned, "GemmTunableOp_BFloat16_TN,tn_16_8_4_ld_4_4_16\n").unwrap();
    let tune = |more: &[&str]| {
        let arguments =
            ["tune", &untuned, "--device", "sim", "--output", &results, "--iterations", "3", "--json"];
        let output =
            thalweg(&[&arguments, more].concat(), &[("PYTORCH_TUNABLEOP_ROTATING_BUFFER_SIZE", "0")]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let found: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
        (found["state"].as_str().unwrap().to_owned(), found["solution"].as_str().unwrap().to_owned())
    };
    let (state, solution) = tune(&["--for-pytorch", "2.11.0"]);
    assert!(
        state == "tuned" && (solution == "Default" || solution.starts_with("Gemm_Cublaslt_")),
        "{solution}"
    );
    let written = fs::read_to_string(&results).unwrap();
    let keys: Vec<_> = written.lines().filter_map(|line| line.strip_prefix("Validator,")).collect();
    assert!(keys[0] == "PT_VERSION,2.11.0" && keys.len() == 3 && !written.contains("THALWEG"), "{written}");
    assert_eq!(tune(&["--for-pytorch", "2.11.0"]), ("known".to_owned(), solution));
    // Another version takes none of it.
    assert_eq!(tune(&["--for-pytorch", "2.12.0"]).0, "tuned");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_is_missing_is_an_error() {
    let output = thalweg(&["tune", "/nonexistent/untuned.csv", "--device", "sim"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nonexistent/untuned.csv: the products cannot be read"));
}
