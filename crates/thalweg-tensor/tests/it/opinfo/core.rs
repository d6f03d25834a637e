//! Core ATen: each of its overloads is there, with the forms in place and `out=` that PyTorch has.

use thalweg_tensor::dispatch::find_operator;

use super::table;

/// Overloads that ask for sizes that are symbols: sizes are numbers here.
const SYMBOLIC: &[&str] =
    &["sym_is_contiguous", "sym_numel", "sym_size.int", "sym_storage_offset", "sym_stride.int"];

/// Forms in place that give a tensor another shape or other strides: a tensor keeps both here.
const OF_SHAPE: &[&str] = &["as_strided_", "squeeze_.dim", "squeeze_.dims", "unsqueeze_"];

/// Forms `out=` that are not called as their overload is: `Operator::call_out` of the overload does what they do.
const BY_CALL_OUT: &[&str] = &[
    "_embedding_bag.out",
    "_native_batch_norm_legit.no_stats_out",
    "_native_batch_norm_legit_no_training.out",
    "add.out",
    "any.all_out",
    "avg_pool2d_backward.grad_input",
    "convolution_backward.out",
    "div.out",
    "div.out_mode",
    "empty.out",
    "max.dim_max",
    "max_pool2d_with_indices.out",
    "max_pool2d_with_indices_backward.grad_input",
    "max_pool3d_with_indices.out",
    "mean.dtype_out",
    "min.dim_min",
    "mul.out",
    "native_dropout.out",
    "native_group_norm.out",
    "native_group_norm_backward.out",
    "native_layer_norm.out",
    "native_layer_norm_backward.out",
    "prod.int_out",
    "sub.out",
    "sum.IntList_out",
];

#[test]
fn core_aten_is_there_with_its_forms() {
    let list = std::fs::read_to_string(table::folder().join("goldens/core.txt")).expect("the list is read");
    let known = [SYMBOLIC, OF_SHAPE, BY_CALL_OUT].concat();
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
    let unknown: Vec<&str> = missing.iter().copied().filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "these are missing: {unknown:?}");
    let there: Vec<&&str> = known.iter().filter(|name| !missing.contains(name)).collect();
    assert!(there.is_empty(), "these are not missing any more: {there:?}");
}
