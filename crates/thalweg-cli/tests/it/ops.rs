//! `thalweg ops`.

use serde_json::Value;

use crate::{text, thalweg};

#[test]
fn an_operator_is_shown_with_its_schemas() {
    let output = thalweg(&["ops", "add"], &[("COLUMNS", "200")]);
    let page = text(&output.stdout);
    assert!(output.status.success(), "{page}");
    assert!(page.contains("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n"), "{page}");
    assert!(
        page.contains("    Returns self + alpha") && page.contains("    In place: add_.Tensor\n"),
        "{page}"
    );
    assert!(!page.contains("addmm"), "a name is not a part of a name: {page}");
}

#[test]
fn a_list_has_one_name_per_operator() {
    let part = text(&thalweg(&["ops", "softma"], &[]).stdout);
    assert!(part.split_whitespace().any(|word| word == "log_softmax"), "{part}");
    assert!(part.contains(" operators, ") && !part.contains("relu"), "{part}");
    let whole = text(&thalweg(&["ops"], &[]).stdout);
    assert!(whole.split_whitespace().any(|word| word == "matmul") && !whole.contains("thalweg::"), "{whole}");
    assert!(whole.lines().all(|line| line.chars().count() <= 80), "{whole}");
    let lines = text(&thalweg(&["ops", "--json", "relu"], &[]).stdout);
    let relu: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(relu["schema"], "relu(Tensor self) -> Tensor");
}
