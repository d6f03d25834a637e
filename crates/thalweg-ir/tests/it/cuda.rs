//! The CUDA printer: its text is what the snapshots say, and NVRTC compiles it for each architecture.

use std::path::PathBuf;

use thalweg_ir::{DType, Place, cuda};

use crate::kernels::{
    self, contiguous, kernel, log_softmax, of_rows, pointwise, rows, softmax, strided, variance,
};

/// Compares a text with a file under `snapshots`; `UPDATE=1` in the environment writes it instead.
fn assert_snapshot(name: &str, text: &str) {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots").join(format!("{name}.cu"));
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "the printed kernel differs from {}; read the difference, and if it is meant, run the test with UPDATE=1\n{text}",
        path.display()
    );
}

#[test]
fn text_is_as_recorded() {
    let add = pointwise(&[DType::F32, DType::F32], |x| x[0] + x[1]);
    assert_snapshot("add_contiguous", &cuda::print(&kernel("add", &add, contiguous(1))));
    assert_snapshot("add_strided", &cuda::print(&kernel("add", &add, strided(3, 0, 1, true))));
    let relu = pointwise(&[DType::Bf16], |x| x[0].maximum(0.0));
    assert_snapshot("relu_vector", &cuda::print(&kernel("relu", &relu, contiguous(8))));
    let variance = of_rows(DType::F32, Place::Row, variance);
    assert_snapshot("variance_thread", &cuda::print(&kernel("variance", &variance, strided(1, 2, 1, true))));
    let softmax = of_rows(DType::F16, Place::Point, softmax);
    assert_snapshot("softmax_warp", &cuda::print(&kernel("softmax", &softmax, rows(8))));
    let log_softmax = of_rows(DType::F32, Place::Point, log_softmax);
    assert_snapshot(
        "log_softmax_block",
        &cuda::print(&kernel("log_softmax", &log_softmax, strided(1, 1, 256, false))),
    );
    let embedding = kernels::embedding(DType::F32, DType::I64);
    assert_snapshot("embedding", &cuda::print(&kernel("embedding", &embedding, strided(2, 0, 1, true))));
}
