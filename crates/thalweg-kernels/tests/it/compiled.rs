//! Launch shapes, and the compiler's opinion of every source.

use thalweg_driver::cuda::{CompileOptions, Nvrtc, SearchEnvironment};
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
    let nvrtc = match Nvrtc::load(&SearchEnvironment::from_process()) {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let units = sources();
    let compile = |architecture: &str| {
        let extra = cuda::OPTIONS.iter().map(|&option| option.to_owned()).collect();
        let options = CompileOptions { fmad: false, extra, ..CompileOptions::new(architecture) };
        for (name, source) in &units {
            let compiled = nvrtc.compile(source, name, &options);
            let compiled = compiled.unwrap_or_else(|error| panic!("{name} for {architecture}: {error}"));
            assert!(compiled.log.is_empty(), "{name} for {architecture}: {}", compiled.log);
            assert!(!compiled.cubin.is_empty());
        }
    };
    std::thread::scope(|scope| {
        for architecture in ["sm_80", "sm_90", "sm_100"] {
            let compile = &compile;
            scope.spawn(move || compile(architecture));
        }
    });
}
