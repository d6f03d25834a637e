//! Writes at computed places, random numbers, and kernels over lists of tensors.

use std::cell::RefCell;

use smallvec::SmallVec;
use smallvec::smallvec;
use thalweg_ir::foreach::{CHUNK, ForeachArguments, ForeachItem, ForeachKernel, ForeachOperand};
use thalweg_ir::host::{HostProgram, Observer};
use thalweg_ir::{
    Body, BodyBuilder, Class, DType, Dimension, Geometry, Kernel, LaunchArguments, OperandGeometry,
    OutputPlace, ReduceOp, philox,
};

const CLASS: Class = Class { narrow_index: true, ..Class::new(1, 0) };

fn kernel(name: &str, body: Body) -> Kernel {
    Kernel { name: name.to_owned(), body, class: CLASS }
}

fn strided() -> OperandGeometry {
    OperandGeometry::Strided { row_strides: smallvec![1], inner_strides: smallvec![] }
}

/// Rows are written to the places that an input contains, if these are in range.
fn scatter(guarded: bool) -> Kernel {
    let b = BodyBuilder::new();
    let (value, place) = (b.input(DType::F32), b.input(DType::I64));
    let guard = if guarded { place.ge(0).and(place.lt(4)) } else { place.eq(place) };
    b.scattered_output(value, DType::F32, place, guard);
    kernel("scatter", b.finish())
}

fn scatter_geometry() -> Geometry {
    Geometry {
        row_shape: smallvec![3],
        inner_shape: smallvec![],
        operands: vec![strided(), strided(), OperandGeometry::Gathered { elements: 4 }],
    }
}

#[test]
fn a_scatter_writes_where_its_guard_holds_and_nowhere_else() {
    let (values, places) = ([1.0f32, 2.0, 3.0], [2i64, 7, 0]);
    let inputs = [values.as_slice().into(), places.as_slice().into()];
    let mut target = [9.0f32; 4];
    let program = HostProgram::compile(&scatter(true));
    program.run(&scatter_geometry(), &[], &inputs, &[target.as_mut_slice().into()]).unwrap();
    assert_eq!(target, [3.0, 9.0, 1.0, 9.0]);
    let unguarded = HostProgram::compile(&scatter(false));
    let fault = unguarded.run(&scatter_geometry(), &[], &inputs, &[target.as_mut_slice().into()]);
    assert!(fault.unwrap_err().to_string().contains("element 7 of output 0"));
    let gradient = thalweg_ir::grad::gradient(&scatter(true).body, &[0]);
    assert!(gradient.unwrap_err().to_string().contains("scattered"));
}

#[test]
fn a_scatters_arguments_are_read_back() {
    let kernel = scatter(true);
    let packed = LaunchArguments::pack(&kernel, &scatter_geometry(), &[16, 32], &[48], &[]);
    let unpacked = kernel.unpack(packed.as_bytes()).unwrap();
    assert_eq!(unpacked.geometry, scatter_geometry());
    assert_eq!(unpacked.outputs.as_slice(), [48]);
    let code = thalweg_ir::cuda::print(&kernel);
    assert!(code.contains("u64 output0_elements;") && code.contains("a.output0[v"), "{code}");
}

#[test]
fn a_report_tells_of_what_is_out_of_range() {
    let b = BodyBuilder::new();
    let (index, extent) = (b.input(DType::I64), b.scalar(DType::I64));
    let fits = index.ge(0).and(index.lt(extent));
    b.report(fits.logical_not(), index, extent);
    b.output(index, DType::I64, OutputPlace::Row);
    let kernel = kernel("checked", b.finish().pruned());
    let geometry =
        Geometry { row_shape: smallvec![4], inner_shape: smallvec![], operands: vec![strided(); 2] };
    let (indices, mut copies) = ([2i64, -1, 3, 0], [0i64; 4]);
    let inputs = [indices.as_slice().into()];
    let reported = RefCell::new(Vec::new());
    let report = |index, extent| reported.borrow_mut().push((index, extent));
    let observer = Observer { out_of_range: Some(&report), ..Observer::default() };
    let program = HostProgram::compile(&kernel);
    program.run_observed(&geometry, &[3], &inputs, &[copies.as_mut_slice().into()], observer).unwrap();
    assert_eq!((reported.into_inner(), copies), (vec![(-1, 3), (3, 3)], indices));
    // The report's address is the last of the scalars' words.
    let packed = LaunchArguments::pack(&kernel, &geometry, &[16], &[48], &[3, 1 << 40]);
    assert_eq!(kernel.unpack(packed.as_bytes()).unwrap().scalars.as_slice(), [3, 1 << 40]);
    let code = thalweg_ir::cuda::print(&kernel);
    assert!(code.contains("volatile i64* report;") && code.contains("{ a.report[0] = "), "{code}");
}

#[test]
fn random_words_are_philoxs() {
    let b = BodyBuilder::new();
    let [seed, subsequence] = [b.input(DType::I64), b.input(DType::I64)];
    let word = b.random(seed, subsequence, b.index(Dimension::Row(0)));
    b.output(word, DType::I64, OutputPlace::Row);
    let kernel = kernel("words", b.finish());
    let (seeds, subsequences) = ([5i64, -1, 1 << 40, 5], [0i64, 3, 1 << 33, 1]);
    let mut words = [0i64; 4];
    let geometry =
        Geometry { row_shape: smallvec![4], inner_shape: smallvec![], operands: vec![strided(); 3] };
    let inputs = [seeds.as_slice().into(), subsequences.as_slice().into()];
    HostProgram::compile(&kernel).run(&geometry, &[], &inputs, &[words.as_mut_slice().into()]).unwrap();
    for place in 0..4 {
        let expected = philox::word(seeds[place] as u64, subsequences[place] as u64, place as u64);
        assert_eq!(words[place], i64::from(expected));
    }
    assert!(thalweg_ir::cuda::print(&kernel).contains("philox.word("));
}

/// x ← x + step · (g + bias), with a shared step and a bias per tensor.
fn foreach() -> ForeachKernel {
    let b = BodyBuilder::new();
    let [x, step, g, bias] = [0; 4].map(|_| b.input(DType::F32));
    b.output(x + step * (g + bias), DType::F32, OutputPlace::Row);
    ForeachKernel {
        name: "foreach_step".to_owned(),
        body: b.finish(),
        operands: SmallVec::from_slice(&[
            ForeachOperand::Elements,
            ForeachOperand::Shared,
            ForeachOperand::Elements,
            ForeachOperand::PerTensor,
        ]),
        targets: SmallVec::from_slice(&[0]),
    }
}

#[test]
fn a_lists_arguments_are_read_back() {
    let kernel = foreach();
    assert_eq!(kernel.capacity(), 102, "510 words for five tables");
    for count in [0, 1, kernel.capacity()] {
        let items: Vec<ForeachItem> = (0..count as u64)
            .map(|n| ForeachItem { elements: n * 1000, addresses: smallvec![n, n + 500, n + 700] })
            .collect();
        let blocks: u64 = items.iter().map(|item| item.elements.div_ceil(CHUNK)).sum();
        assert_eq!(ForeachKernel::blocks(&items), blocks);
        let arguments = ForeachArguments { shared: smallvec![7], scalars: smallvec![], items };
        let words = kernel.pack(&arguments, &arguments.items);
        assert!(words.len() * 8 <= 4096, "the arguments fit a launch");
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(kernel.unpack(&bytes), Some(arguments));
        assert_eq!(kernel.unpack(&bytes[8..]), None);
    }
}

#[test]
fn a_list_runs_tensor_by_tensor() {
    let kernel = foreach();
    let (step, gradient, bias) = ([0.5f32], [2.0f32, 4.0, 6.0], [-2.0f32]);
    let mut x = [1.0f32; 3];
    {
        let cells = std::cell::Cell::from_mut(x.as_mut_slice()).as_slice_of_cells();
        let inputs = [
            thalweg_ir::host::Source::Cells(cells.into()),
            step.as_slice().into(),
            gradient.as_slice().into(),
            bias.as_slice().into(),
        ];
        let program = HostProgram::compile(&kernel.single());
        program.run(&kernel.geometry(3), &[], &inputs, &[cells.into()]).unwrap();
    }
    assert_eq!(x, [1.0, 2.0, 3.0]);
    let code = thalweg_ir::cuda::print_foreach(&kernel);
    assert!(
        code.contains("input0[i] = ") && code.contains("*a.input1") && code.contains("*input3"),
        "{code}"
    );
}

/// Builds x ← x where a shared element is 1, else x times that element; or with another condition, or with another input overwritten.
fn scaled(condition: usize, target: u16) -> ForeachKernel {
    let b = BodyBuilder::new();
    let [x, factor, y] = [0; 3].map(|_| b.input(DType::Bf16));
    let is_still = [factor, x][condition].eq(1.0);
    b.output(is_still.select(x, x * factor + y), DType::Bf16, OutputPlace::Row);
    let operands = [ForeachOperand::Elements, ForeachOperand::Shared, ForeachOperand::Elements];
    ForeachKernel {
        name: "scaled".to_owned(),
        body: b.finish(),
        operands: SmallVec::from_slice(&operands),
        targets: SmallVec::from_slice(&[target]),
    }
}

#[test]
fn a_kernel_over_a_list_ends_where_one_number_says_that_nothing_changes() {
    let ends =
        |condition, target| thalweg_ir::cuda::print_foreach(&scaled(condition, target)).contains("return;");
    assert!(ends(0, 0));
    assert!(!ends(1, 0), "elements differ");
    assert!(!ends(0, 2), "the other input's place is written");
}

#[test]
fn an_output_is_written_over_an_input_that_nothing_reads_later() {
    let body = |reduces: bool, others: bool| {
        let b = BodyBuilder::new();
        let (x, class) = (b.input(DType::F32), b.input(DType::F32));
        let total = b.reduce(ReduceOp::Sum, if reduces { x } else { class });
        // This one needs no reduction, so a kernel may write it before it reads the row again.
        b.output(x + 1.0, DType::F32, OutputPlace::Point);
        b.output(if others { x * total } else { class * total }, DType::F32, OutputPlace::Point);
        b.finish()
    };
    assert!(body(false, false).may_overwrite(0, 0));
    assert!(!body(false, false).may_overwrite(1, 1), "the class is reduced");
    assert!(!body(false, true).may_overwrite(0, 0), "the second output reads it later");
    assert!(!body(true, false).may_overwrite(0, 0), "it is reduced, and the second output depends on that");
    let b = BodyBuilder::new();
    let x = b.input(DType::F32);
    b.output(x + 1.0, DType::F32, OutputPlace::Point);
    b.output(x * 2.0, DType::F32, OutputPlace::Point);
    assert!(b.finish().may_overwrite(0, 1), "without reductions a point is read once");
}
