//! The CUDA printer: its text equals the snapshots, and NVRTC compiles it for each architecture.

use std::path::PathBuf;

use thalweg_conformance::{ARCHITECTURES, compiler_accepts};
use thalweg_ir::grad::gradient;
use thalweg_ir::{Class, DType, Dimensions, Geometry, Kernel, OutputPlace, Streamed, Value, cuda};

use crate::kernels::{
    self, contiguous, kernel, log_softmax, of_rows, pointwise, rows, softmax, strided, variance,
};

/// A body's formula over one value.
type Formula = for<'b> fn(Value<'b>) -> Value<'b>;

/// Compares a text with a file under `snapshots`, which is compiled into the program so that it can run elsewhere. With
/// `UPDATE=1` in the environment, writes the file instead.
fn assert_snapshot(name: &str, recorded: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots").join(name);
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert!(
        text == recorded,
        "the printed kernel differs from {}; read the difference, and if it is meant, run the test with UPDATE=1\n{text}",
        path.display()
    );
}

/// [`assert_snapshot`] with the file of that name.
macro_rules! assert_snapshot {
    ($name:literal, $text:expr $(,)?) => {
        assert_snapshot(concat!($name, ".cu"), include_str!(concat!("snapshots/", $name, ".cu")), &$text)
    };
}

#[test]
fn text_is_as_recorded() {
    let add = pointwise(&[DType::F32, DType::F32], |x| x[0] + x[1]);
    assert_snapshot!("add_contiguous", cuda::print(&kernel("add", &add, contiguous(1))));
    assert_snapshot!("add_strided", cuda::print(&kernel("add", &add, strided(3, 0, 1, true))));
    let relu = pointwise(&[DType::Bf16], |x| x[0].maximum(0.0));
    assert_snapshot!("relu_vector", cuda::print(&kernel("relu", &relu, contiguous(8))));
    let variance = of_rows(DType::F32, OutputPlace::Row, variance);
    assert_snapshot!("variance_thread", cuda::print(&kernel("variance", &variance, strided(1, 2, 1, true))));
    let softmax = of_rows(DType::F16, OutputPlace::Point, softmax);
    assert_snapshot!("softmax_warp", cuda::print(&kernel("softmax", &softmax, rows(8))));
    assert_snapshot!("softmax_held", cuda::print(&kernel("softmax", &softmax, kernels::held(512, 8, 4))));
    let shared = kernel("softmax", &softmax, Class { shared: 8, ..kernels::held(4096, 8, 16) });
    assert_eq!(cuda::shared_memory_bytes(&shared), 8 * 512 * 16);
    assert_snapshot!("softmax_shared", cuda::print(&shared));
    let streamed = Streamed { cluster: 4, groups: 2, stages: 3, columns: 0 };
    let streamed =
        kernel("softmax", &softmax, Class { streamed: Some(streamed), ..kernels::held(8192, 8, 8) });
    assert_eq!(cuda::shared_memory_bytes(&streamed), 2 * 3 * 8 * 256 * 16);
    assert_snapshot!("softmax_streamed", cuda::print(&streamed));
    let cross_entropy = kernels::cross_entropy(DType::Bf16);
    assert_snapshot!(
        "cross_entropy_online",
        cuda::print(&kernel("cross_entropy", &cross_entropy, kernels::online(2048, 8)))
    );
    let log_softmax = of_rows(DType::F32, OutputPlace::Point, log_softmax);
    assert_snapshot!(
        "log_softmax_block",
        cuda::print(&kernel("log_softmax", &log_softmax, strided(1, 1, 256, false))),
    );
    let columns = kernels::abreast(64, 8);
    assert_snapshot!("variance_columns", cuda::print(&kernel("variance", &variance, columns)));
    let columns = Class { vector: 4, cascade: 2, ..kernels::abreast(8, 128) };
    assert_snapshot!("variance_column_vectors", cuda::print(&kernel("variance", &variance, columns)));
    let class = Class { vector: 4, repeated: 0b10, ..strided(3, 0, 1, true) };
    assert_snapshot!("add_strided_vector", cuda::print(&kernel("add", &add, class)));
    let class = Class { vector: 2, transposed: 1, transposed_inputs: 0b1, ..strided(2, 0, 1, true) };
    let add_halves = pointwise(&[DType::Bf16, DType::Bf16], |x| x[0] + x[1]);
    assert_snapshot!("add_turned", cuda::print(&kernel("add", &add_halves, class)));
    let embedding = kernels::embedding(DType::F32, DType::I64);
    assert_snapshot!("embedding", cuda::print(&kernel("embedding", &embedding, strided(2, 0, 1, true))));
}

#[test]
fn exponentials_are_fast_where_only_narrow_results_follow() {
    let print = |dtype, formula: Formula| {
        cuda::print(&kernel("formula", &pointwise(&[dtype], |x| formula(x[0])), contiguous(1)))
    };
    let has = |text: String, name: &str| text.contains(name);
    let silu: Formula = |x| x.to(DType::F32) / (1.0 + (-x.to(DType::F32)).exp());
    let narrow: Formula = |x| (x.to(DType::F32) / (1.0 + (-x.to(DType::F32)).exp())).to(DType::F16);
    // The rounded value may be compared; the exact one may not be.
    let compared: Formula = |x| {
        let value = x.to(DType::F32).exp();
        value.gt(1.0).select(x.to(DType::F32), -x.to(DType::F32)).to(DType::F16)
    };
    assert!(has(print(DType::F16, narrow), "__expf") && has(print(DType::F16, narrow), "* near_reciprocal"));
    assert!(!has(print(DType::F16, silu), "__expf") && !has(print(DType::F16, silu), "near_reciprocal"));
    assert!(!has(print(DType::F16, compared), "__expf"));
    // Another quotient has no bound of its divisor.
    let quotient: Formula = |x| (x.to(DType::F32) / (2.0 + x.to(DType::F32).exp())).to(DType::F16);
    assert!(
        has(print(DType::F16, quotient), "__expf") && !has(print(DType::F16, quotient), "near_reciprocal")
    );
}

#[test]
fn a_unit_has_only_the_prelude_that_it_needs() {
    let add = pointwise(&[DType::F32; 2], |x| x[0] + x[1]);
    let text = cuda::print(&kernel("add", &add, contiguous(1)));
    assert_eq!(
        text.matches("asm").count(),
        2,
        "where a kernel behind may begin, and the wait for that in front: {text}"
    );
    assert!(!text.contains("template") && !text.contains("#include"));
    let half = pointwise(&[DType::F16], |x| x[0] + 1.0);
    let text = cuda::print(&kernel("half", &half, contiguous(1)));
    assert!(text.contains("f32 f32_from_f16(") && !text.contains("bf16"));
}

#[test]
fn a_unit_is_its_kernels_and_one_prelude() {
    let kernels = kernels::composed_kernels();
    let unit = cuda::print_unit(&kernels.iter().collect::<Vec<_>>());
    for kernel in &kernels {
        assert!(unit.contains(&format!(" {}(const __grid_constant__", kernel.name)));
    }
    assert_eq!(unit.matches("typedef float f32;").count(), 1);
    let again = kernels::composed_kernels();
    assert_eq!(unit, cuda::print_unit(&again.iter().collect::<Vec<_>>()));
}

#[test]
#[should_panic(expected = "different names")]
fn a_unit_names_each_kernel_once() {
    let body = pointwise(&[DType::F32], |x| x[0].exp());
    let kernel = kernel("exp", &body, contiguous(1));
    let _ = cuda::print_unit(&[&kernel, &kernel]);
}

/// Returns a geometry with these numbers of rows and points; nothing else matters.
fn counts(rows: u64, points: u64) -> Geometry {
    Geometry {
        row_shape: Dimensions::from_slice(&[rows]),
        inner_shape: Dimensions::from_slice(&[points]),
        operands: Vec::new(),
    }
}

#[test]
fn launches_cover_the_work_and_no_more_than_fills_the_gpu() {
    let body = pointwise(&[DType::F32], |x| x[0].exp());
    let grid = |class, rows, points| {
        let shape = cuda::launch_shape(&kernel("exp", &body, class), &counts(rows, points), 132);
        (shape.grid[0], shape.block[0])
    };
    assert_eq!(grid(contiguous(1), 1, 1), (1, 256));
    assert_eq!(grid(contiguous(1), 257, 1), (2, 256));
    // Threads that load vectors have two of them in flight.
    assert_eq!(grid(contiguous(4), 2048, 1), (1, 256));
    assert_eq!(grid(contiguous(4), 2049, 1), (2, 256));
    assert_eq!(grid(contiguous(1), 0, 1), (1, 256));
    // A block of single elements has too little work for one block per 256.
    assert_eq!(grid(contiguous(1), u64::MAX, 2), (132 * 32, 256));
    assert_eq!(grid(contiguous(8), 1 << 30, 1), (1 << 18, 256));
    let sums = of_rows(DType::F32, OutputPlace::Row, kernels::sum);
    let grid = |lanes, rows| {
        let shape = cuda::launch_shape(&kernel("sum", &sums, kernels::rows(lanes)), &counts(rows, 9), 2);
        (shape.grid[0], shape.block[0])
    };
    assert_eq!(grid(1, 129), (2, 128));
    assert_eq!(grid(8, 17), (2, 128));
    assert_eq!(grid(32, 5), (2, 128));
    assert_eq!(grid(256, 5), (5, 256));
    assert_eq!(grid(1024, 5_000), (5_000, 1024));
    let held = |class| cuda::launch_shape(&kernel("sum", &sums, class), &counts(9, 1000), 2);
    assert_eq!(held(kernels::held(256, 8, 4)).block[0], 128, "four rows of 32 threads");
    assert_eq!(held(kernels::held(256, 8, 4)).grid[0], 3);
    assert_eq!(held(kernels::held(512, 8, 2)).block[0], 64, "a block of 64 threads per row");
    let class = kernels::online(2048, 8);
    assert_eq!((class.threads_of_a_row(), held(class).block[0], held(class).grid[0]), (256, 256, 9));
    let columns = kernel("sum", &sums, kernels::abreast(64, 8));
    let shape = cuda::launch_shape(&columns, &counts(129, 512), 132);
    assert_eq!((shape.grid[0], shape.block[0]), (17, 512));
    let columns = kernel("sum", &sums, Class { vector: 8, ..kernels::abreast(8, 256) });
    let shape = cuda::launch_shape(&columns, &counts(1025, 512), 132);
    assert_eq!((shape.grid[0], shape.block[0]), (5, 256), "eight lanes of 32 vectors");
    let transposed = Class { transposed: 2, transposed_inputs: 1, ..strided(3, 0, 1, true) };
    let space = Geometry { row_shape: Dimensions::from_slice(&[3, 65, 128]), ..counts(0, 0) };
    let space = Geometry { inner_shape: Dimensions::new(), ..space };
    let shape = cuda::launch_shape(&kernel("exp", &body, transposed), &space, 132);
    assert_eq!((shape.grid[0], shape.block[0]), (3 * 2 * 2, 256));
}

/// Returns the units that cover every primitive, cast, reduction and class, and gradients.
fn units() -> Vec<(String, String)> {
    let mut all = kernels::all_kernels();
    let bodies: [(&str, Formula); 3] =
        [("softmax", softmax), ("log_softmax", log_softmax), ("variance", variance)];
    for (name, formula) in bodies {
        let derived = gradient(&of_rows(DType::Bf16, OutputPlace::Point, formula), &[0]).unwrap().body;
        all.push(kernel(format!("{name}_gradient"), &derived, rows(256)));
        let twice = gradient(&derived, &[0, 1]).unwrap().body;
        all.push(kernel(format!("{name}_gradient_twice"), &twice, strided(1, 1, 32, true)));
    }
    // Units of a few kernels, which are compiled for one architecture each.
    let unit =
        |kernels: &[Kernel]| (kernels[0].name.clone(), cuda::print_unit(&kernels.iter().collect::<Vec<_>>()));
    all.chunks(10).map(unit).collect()
}

#[test]
fn the_compiler_accepts_every_kernel_without_a_warning() {
    compiler_accepts(&ARCHITECTURES, &units(), cuda::OPTIONS);
}
