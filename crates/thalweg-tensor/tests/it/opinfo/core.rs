//! Core ATen: each of its overloads exists, with the in-place and `out=` forms that PyTorch has.

use thalweg_tensor::dispatch::find_operator;

use super::table;

/// Overloads that require symbolic sizes: sizes are numbers here.
const SYMBOLIC: &[&str] =
    &["sym_is_contiguous", "sym_numel", "sym_size.int", "sym_storage_offset", "sym_stride.int"];

#[test]
fn core_aten_is_there_with_its_forms() {
    let list = std::fs::read_to_string(table::folder().join("goldens/core.txt")).expect("the list is read");
    let (mut missing, mut forms) = (Vec::new(), 0);
    for line in list.lines() {
        let names: Vec<&str> = line.split(' ').collect();
        assert_eq!(names.len(), 3, "an overload and its two forms: {line}");
        for name in names.into_iter().filter(|&name| name != "-") {
            forms += 1;
            missing.extend(find_operator(name).is_err().then_some(name));
        }
    }
    assert_eq!(list.lines().count(), 193);
    assert!(forms > 350, "{forms} forms");
    let unknown: Vec<&str> = missing.iter().copied().filter(|name| !SYMBOLIC.contains(name)).collect();
    assert!(unknown.is_empty(), "these are missing: {unknown:?}");
    let there: Vec<&&str> = SYMBOLIC.iter().filter(|name| !missing.contains(name)).collect();
    assert!(there.is_empty(), "these are not missing any more: {there:?}");
}
