//! Measures the speed of the host executor and of the host's matrix product, compared with a plain copy of memory on the same
//! machine.
//!
//! `cargo bench -p thalweg-kernels --bench host -- --json` prints one JSON object per line.

use std::hint::black_box;
use std::time::Instant;

use thalweg_ir::host::{HostProgram, Slice, SliceMut};
use thalweg_ir::{
    BodyBuilder, Class, DType, Dimensions, Geometry, Kernel, OperandGeometry, OutputPlace, ReduceOp,
};
use thalweg_kernels::matmul::{self, Matmul};

/// Returns the seconds of the fastest of many runs of `work`, each long enough for the clock and short enough to be undisturbed.
fn seconds(mut work: impl FnMut()) -> f64 {
    let mut repeats = 1u32;
    let time = |repeats: u32, work: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..repeats {
            work();
        }
        start.elapsed().as_secs_f64()
    };
    while time(repeats, &mut work) < 0.002 {
        repeats *= 2;
    }
    (0..40).map(|_| time(repeats, &mut work) / f64::from(repeats)).fold(f64::INFINITY, f64::min)
}

fn report(name: &str, value: f64, unit: &str) {
    if std::env::args().any(|argument| argument == "--json") {
        println!(r#"{{"name":"{name}","value":{value:.3},"unit":"{unit}"}}"#);
    } else {
        println!("{name:<32} {value:>10.2} {unit}");
    }
}

fn kernel(builder: BodyBuilder, row_rank: u8, inner_rank: u8, lanes: u16) -> HostProgram {
    let class = Class { lanes, ..Class::new(row_rank, inner_rank) };
    HostProgram::compile(&Kernel { name: "bench".into(), body: builder.finish(), class })
}

fn strided(row: &[u64], inner: &[u64]) -> OperandGeometry {
    OperandGeometry::Strided {
        row_strides: Dimensions::from_slice(row),
        inner_strides: Dimensions::from_slice(inner),
    }
}

fn add(row_rank: u8) -> HostProgram {
    let builder = BodyBuilder::new();
    builder.output(builder.input(DType::F32) + builder.input(DType::F32), DType::F32, OutputPlace::Point);
    kernel(builder, row_rank, 0, 1)
}

/// Measures a sum of f32 under a geometry, as bytes moved or as time per call.
fn elementwise() {
    const ELEMENTS: usize = 1 << 20;
    let (a, b) = (vec![1.0f32; ELEMENTS], vec![2.0f32; ELEMENTS]);
    let mut c = vec![0.0f32; ELEMENTS];
    let copy = seconds(|| black_box(&mut c).copy_from_slice(black_box(&a)));
    report("memcpy_f32_1m", 8.0 * ELEMENTS as f64 / copy / 1e9, "GB/s");
    let mut run = |program: &HostProgram, geometry: &Geometry| {
        seconds(|| {
            program
                .run(geometry, &[], &[a.as_slice().into(), b.as_slice().into()], &[c.as_mut_slice().into()])
                .expect("an addition");
        })
    };
    let line = |count: u64| Geometry {
        row_shape: Dimensions::from_slice(&[count]),
        inner_shape: Dimensions::new(),
        operands: vec![strided(&[1], &[]); 3],
    };
    let contiguous = run(&add(1), &line(ELEMENTS as u64));
    report("add_f32_1m", 12.0 * ELEMENTS as f64 / contiguous / 1e9, "GB/s");
    report("add_f32_32k_in_cache", 12.0 * 32768.0 / run(&add(1), &line(32768)) / 1e9, "GB/s");
    report("add_f32_64_call", run(&add(1), &line(64)) * 1e9, "ns");
    let transposed = Geometry {
        row_shape: Dimensions::from_slice(&[1024, 1024]),
        inner_shape: Dimensions::new(),
        operands: vec![strided(&[1024, 1], &[]), strided(&[1, 1024], &[]), strided(&[1024, 1], &[])],
    };
    report("add_f32_1m_transposed", 12.0 * ELEMENTS as f64 / run(&add(2), &transposed) / 1e9, "GB/s");
    let broadcast = Geometry {
        row_shape: Dimensions::from_slice(&[16384, 64]),
        inner_shape: Dimensions::new(),
        operands: vec![strided(&[64, 1], &[]), strided(&[0, 1], &[]), strided(&[64, 1], &[])],
    };
    report("add_f32_1m_broadcast_64", 8.0 * ELEMENTS as f64 / run(&add(2), &broadcast) / 1e9, "GB/s");
}

fn reductions() {
    let values = vec![1.0f32; 1 << 20];
    for (rows, points, lanes) in [(1024, 1024, 32), (1024, 1024, 256), (65_536, 16, 1), (65_536, 16, 32)] {
        let builder = BodyBuilder::new();
        let sum = builder.reduce(ReduceOp::Sum, builder.input(DType::F32));
        builder.output(sum, DType::F32, OutputPlace::Row);
        let program = kernel(builder, 1, 1, lanes);
        let mut sums = vec![0.0f32; rows as usize];
        let mut run = |row_stride: u64, inner_stride: u64| {
            let geometry = Geometry {
                row_shape: Dimensions::from_slice(&[rows]),
                inner_shape: Dimensions::from_slice(&[points]),
                operands: vec![strided(&[row_stride], &[inner_stride]), strided(&[1], &[])],
            };
            let time = seconds(|| {
                let output = sums.as_mut_slice().into();
                program.run(&geometry, &[], &[values.as_slice().into()], &[output]).expect("a sum");
            });
            4.0 * (rows * points) as f64 / time / 1e9
        };
        report(&format!("sum_rows_{rows}x{points}_lanes_{lanes}"), run(points, 1), "GB/s");
        report(&format!("sum_columns_{rows}x{points}_lanes_{lanes}"), run(1, rows), "GB/s");
    }
}

/// Measures a mathematical function and a chain of arithmetic: the cost of a step apart from memory.
fn compute() {
    let x = vec![0.5f32; 32768];
    let mut y = vec![0.0f32; 32768];
    let geometry = Geometry {
        row_shape: Dimensions::from_slice(&[32768]),
        inner_shape: Dimensions::new(),
        operands: vec![strided(&[1], &[]); 2],
    };
    let mut run = |name: &str, builder: BodyBuilder| {
        let program = kernel(builder, 1, 0, 1);
        let time = seconds(|| {
            program
                .run(&geometry, &[], &[x.as_slice().into()], &[y.as_mut_slice().into()])
                .expect("a function");
        });
        report(name, time / 32768.0 * 1e9, "ns/element");
    };
    let builder = BodyBuilder::new();
    builder.output(builder.input(DType::F32).exp(), DType::F32, OutputPlace::Point);
    run("exp_f32", builder);
    let builder = BodyBuilder::new();
    let x = builder.input(DType::F32);
    builder.output(x.mul_add(x, x), DType::F32, OutputPlace::Point);
    run("fma_f32", builder);
    let builder = BodyBuilder::new();
    let x = builder.input(DType::F32);
    builder.output((x * 2.0 + 1.0) * (x - 3.0) / (x * x + 1.0), DType::F32, OutputPlace::Point);
    run("seven_operations_f32", builder);
}

fn products() {
    for size in [64, 256, 512] {
        let matmul = Matmul::contiguous(size, size, size, 1, DType::F32);
        let count = (size * size) as usize;
        let (a, b) = (vec![1.0f32; count], vec![2.0f32; count]);
        let mut d = vec![0.0f32; count];
        let time = seconds(|| {
            matmul::host::run(&matmul, Slice::F32(&a), Slice::F32(&b), SliceMut::F32(&mut d))
                .expect("a product");
        });
        report(&format!("matmul_f32_{size}"), matmul.flops() as f64 / time / 1e9, "GFLOP/s");
    }
}

fn main() {
    elementwise();
    reductions();
    compute();
    products();
}
