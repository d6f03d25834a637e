//! Launch shapes, and the compilation of every source.

use std::path::{Path, PathBuf};

use thalweg_conformance::{ARCHITECTURES, compiler_accepts, compiler_reads};
use thalweg_ir::{DType, cuda};
use thalweg_kernels::matmul::{self, Matmul};
use thalweg_kernels::sources;

#[test]
fn launches_of_products_cover_their_tiles() {
    let grid = |m, n, batch| {
        let product = Matmul::contiguous(m, n, 8, batch, DType::F32);
        matmul::cuda::launch_shape(&product).grid
    };
    assert_eq!(grid(64, 65, 3), [2, 1, 3]);
    assert_eq!(grid(1, 1, 1), [1, 1, 1]);
    assert_eq!(grid(64 * 70_000, 1, 70_000), [1, 65_535, 65_535]);
}

#[test]
fn the_compiler_accepts_every_kernel_without_a_warning() {
    // Kernels of attention take long to compile. Those of float16 differ from the others in the same way with a mask and without
    // one, those with a mask and dropout contain the code of those with one of them, and those of float32 for other numbers of features
    // differ in sizes of tiles.
    let is_twice = |name: &str| {
        let is_f16 = name.contains("float16") && !name.contains("bfloat16");
        let [masked, dropped] = ["_masked", "_dropped"].map(|part| name.contains(part));
        let is_other_size = name.contains("_float32") && (name.contains("_32_") || name.contains("_128_"));
        let is_of_attention = name.starts_with("attention_")
            && (is_other_size || if is_f16 { masked || dropped } else { masked != dropped });
        // Windows of other sizes and distances differ in two numbers.
        let is_of_windows = name.starts_with("depthwise_")
            && !["_3_2_", "_9_1_", "_line_"].iter().any(|part| name.contains(part));
        is_of_attention || is_of_windows
    };
    let units: Vec<(String, String)> = sources().into_iter().filter(|(name, _)| !is_twice(name)).collect();
    compiler_accepts(&ARCHITECTURES, &units, cuda::OPTIONS);
}

/// Returns the files of CUDA C++ in a folder and those that it contains.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    let own = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "cu"));
    own.chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
}

#[test]
fn the_compiler_reads_each_file_alone() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let unit = |path: PathBuf| {
        let name = path.strip_prefix(&source).unwrap().display().to_string();
        (name, format!("#include \"{}\"\n", path.display()))
    };
    let units: Vec<(String, String)> = files(&source).into_iter().map(unit).collect();
    assert!(units.len() > 40, "there are files of CUDA C++");
    compiler_reads(&units, cuda::OPTIONS);
}
