//! The host executor against the plain model of [`model`], the order of reductions, and the faults that it reports.

use std::cell::Cell;

use proptest::prelude::*;
use thalweg_ir::host::{Cells, Fault, HostProgram, Observer, Part, Slice, Source};
use thalweg_ir::{
    Body, BodyBuilder, Class, DType, Dimension, Dimensions, Geometry, Kernel, LaunchArguments,
    OperandGeometry, OutputPlace, ReduceOp, Scalar,
};

use crate::model::{self, Memory};
use crate::random::{self, Case};

/// Runs a case on the executor, twice with one program, and compares every element of every output with the model's.
fn executor_equals_model(case: Case) -> Result<(), TestCaseError> {
    let Case { kernel, geometry, scalars, mut inputs, outputs: mut before, in_place } = case;
    if let Some(input) = in_place {
        before[0] = inputs[input].clone();
    }
    let mut expected = before.clone();
    model::run(&kernel, &geometry, &scalars, &inputs, &mut expected);
    let program = HostProgram::compile(&kernel);
    for _ in 0..2 {
        let mut outputs = before.clone();
        let cells: Vec<Cells<'_>> = outputs.iter_mut().map(Memory::cells).collect();
        let sources: Vec<Source<'_>> = inputs
            .iter_mut()
            .enumerate()
            .map(|(number, input)| match in_place {
                Some(shared) if shared == number => Source::Cells(cells[0]),
                // An input may be passed as cells even if nothing overlaps it.
                _ if number == 2 => Source::Cells(input.cells()),
                _ => Source::Slice(input.slice()),
            })
            .collect();
        program.run(&geometry, &scalars, &sources, &cells).expect("the case is well-formed");
        same(&kernel, &geometry, &outputs, &expected)?;
    }
    // In parts, which write disjoint ranges and read them as they were before, in any order.
    if let Some(parts) = program.parts(&geometry, 1, 3) {
        let mut outputs = before;
        for &part in parts.iter().rev() {
            let count = inputs.len();
            let sizes = part.geometry(&geometry);
            let first = |operand| part.offset(&geometry, operand) as usize;
            let cells: Vec<Cells<'_>> = outputs
                .iter_mut()
                .enumerate()
                .map(|(number, output)| {
                    output.cells_of(first(count + number), sizes.span(count + number) as usize)
                })
                .collect();
            let sources: Vec<Source<'_>> = inputs
                .iter()
                .enumerate()
                .map(|(number, input)| match in_place {
                    Some(shared) if shared == number => Source::Cells(cells[0]),
                    _ => Source::Slice(input.slice_from(first(number))),
                })
                .collect();
            program
                .run_part(part, &sizes, &scalars, &sources, &cells, Observer::default())
                .expect("the part is well-formed");
        }
        same(&kernel, &geometry, &outputs, &expected)?;
    }
    Ok(())
}

/// Compares every element of every output.
fn same(
    kernel: &Kernel,
    geometry: &Geometry,
    outputs: &[Memory],
    expected: &[Memory],
) -> Result<(), TestCaseError> {
    for (number, (output, (got, wanted))) in
        kernel.body.outputs.iter().zip(outputs.iter().zip(expected)).enumerate()
    {
        for at in 0..wanted.len() {
            let (got, wanted) = (got.get(output.dtype, at), wanted.get(output.dtype, at));
            prop_assert!(
                got.same(wanted),
                "output {number}, element {at}: {got:?}, not {wanted:?}\n{kernel:#?}\n{geometry:?}"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_kernels_give_the_bits_of_the_model(tape in random::tapes()) {
        executor_equals_model(random::case(&tape))?;
    }
}

#[test]
fn a_launch_is_cut_where_its_outputs_lie_apart() {
    let body = || {
        let builder = BodyBuilder::new();
        let sum = builder.input(DType::F32) + builder.index(Dimension::Row(1)).to(DType::F32);
        builder.output(sum, DType::F32, OutputPlace::Row);
        builder.finish()
    };
    let program = HostProgram::compile(&kernel(body(), class(2, 0, 1)));
    let parts = |output: &[u64]| {
        let operands = vec![strided(&[0, 1], &[]), strided(output, &[])];
        program.parts(&geometry(&[3, 10], &[], operands), 1, 4)
    };
    let part = |dimension, first, count| Part { dimension, first, count };
    // Rows one after the other; columns one after the other, which are longer; rows that overlap.
    assert_eq!(parts(&[10, 1]).unwrap(), [part(0, 0, 1), part(0, 1, 1), part(0, 2, 1)]);
    assert_eq!(parts(&[1, 3]).unwrap(), [part(1, 0, 3), part(1, 3, 3), part(1, 6, 2), part(1, 8, 2)]);
    assert_eq!(parts(&[4, 1]), None);
    // As many parts as there is work for.
    let operands = || vec![strided(&[0, 1], &[]), strided(&[10, 1], &[])];
    assert_eq!(program.parts(&geometry(&[3, 10], &[], operands()), 1000, 4), None);
    assert_eq!(program.parts(&geometry(&[0, 10], &[], operands()), 1, 4), None);
}

fn class(row_rank: u8, inner_rank: u8, lanes: u16) -> Class {
    Class { lanes, ..Class::new(row_rank, inner_rank) }
}

fn kernel(body: Body, class: Class) -> Kernel {
    Kernel { name: "test".into(), body, class }
}

fn strided(row: &[u64], inner: &[u64]) -> OperandGeometry {
    OperandGeometry::Strided {
        row_strides: Dimensions::from_slice(row),
        inner_strides: Dimensions::from_slice(inner),
    }
}

fn geometry(row: &[u64], inner: &[u64], operands: Vec<OperandGeometry>) -> Geometry {
    Geometry { row_shape: Dimensions::from_slice(row), inner_shape: Dimensions::from_slice(inner), operands }
}

/// Returns the sum of each row of a contiguous matrix.
fn sum_rows(lanes: u16, rows: usize, values: &[f32]) -> Vec<f32> {
    cascade_rows(lanes, 1, rows, values)
}

/// Returns the sums of rows by a cascade of this many levels.
fn cascade_rows(lanes: u16, cascade: u8, rows: usize, values: &[f32]) -> Vec<f32> {
    let builder = BodyBuilder::new();
    let sum = builder.reduce(ReduceOp::Sum, builder.input(DType::F32));
    builder.output(sum, DType::F32, OutputPlace::Row);
    let points = values.len() / rows;
    let geometry =
        geometry(&[rows as u64], &[points as u64], vec![strided(&[points as u64], &[1]), strided(&[1], &[])]);
    let mut sums = vec![f32::NAN; rows];
    HostProgram::compile(&kernel(builder.finish(), Class { cascade, ..class(1, 1, lanes) }))
        .run(&geometry, &[], &[values.into()], &[sums.as_mut_slice().into()])
        .expect("a sum of rows");
    sums
}

/// Returns the order that the kernel's documentation fixes, in plain loops.
fn cascade_by_hand(lanes: usize, levels: u8, values: &[f32]) -> f32 {
    let mut sums: Vec<f32> = (0..lanes)
        .map(|lane| {
            let mut parts: Vec<f32> = values.iter().copied().skip(lane).step_by(lanes).collect();
            for _ in 1..levels {
                parts = parts.chunks(32).map(|run| run.iter().fold(0.0, |sum, value| sum + value)).collect();
            }
            parts.iter().fold(0.0, |sum, value| sum + value)
        })
        .collect();
    while sums.len() > 1 {
        sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
    }
    sums[0]
}

#[test]
fn a_cascade_has_the_order_that_is_written_down() {
    let long: Vec<f32> = (0..70_001).map(|i| ((i * 7919) % 1000) as f32 / 7.0 - 60.0).collect();
    for points in [0, 1, 31, 32, 33, 1023, 1024, 1025, 8192, 8193, 70_001] {
        for (lanes, levels) in [(1, 2), (1, 3), (2, 3), (32, 2), (32, 3), (256, 2), (256, 3)] {
            let row = &long[..points];
            let expected = cascade_by_hand(lanes, levels, row).to_bits();
            let found = cascade_rows(lanes as u16, levels, 1, row)[0].to_bits();
            assert_eq!(found, expected, "{points} points, {lanes} lanes, {levels} levels");
            // With many rows, blocks are across rows.
            if points <= 8193 {
                let rows = cascade_rows(lanes as u16, levels, 40, &row.repeat(40));
                assert!(rows.iter().all(|sum| sum.to_bits() == expected), "{points}, {lanes}, {levels}");
            }
        }
    }
}

#[test]
fn the_error_of_a_cascade_does_not_grow_with_the_row() {
    let values = vec![0.1_f32; 1 << 22];
    let exact = f64::from(0.1_f32) * (1 << 22) as f64;
    let error = |levels| (f64::from(cascade_rows(64, levels, 1, &values)[0]) / exact - 1.0).abs();
    assert!(error(1) > 1e-4, "one level drifts: {}", error(1));
    assert!(error(3) < 2e-6, "three levels: {}", error(3));
}

#[test]
fn a_sum_has_the_order_of_its_lanes() {
    // f32 has 24 bits: 2²⁴ + 1 is 2²⁴, and an even number can be added exactly.
    let big = 16_777_216.0;
    // One lane: ((big + 1) + 0) + 1, where both ones are lost. Two lanes: big + 0 and 1 + 1, then big + 2.
    assert_eq!(sum_rows(1, 1, &[big, 1.0, 0.0, 1.0]), [big]);
    assert_eq!(sum_rows(2, 1, &[big, 1.0, 0.0, 1.0]), [big + 2.0]);
    // With four lanes, neighbours are combined first: (big + 0) and (1 + 1), or (big + 1) and (0 + 1).
    assert_eq!(sum_rows(4, 1, &[big, 0.0, 1.0, 1.0]), [big + 2.0]);
    assert_eq!(sum_rows(4, 1, &[big, 1.0, 0.0, 1.0]), [big]);
    // Lanes without a value change nothing.
    assert_eq!(sum_rows(256, 1, &[big, 0.0, 1.0, 1.0]), [big + 2.0]);
}

#[test]
fn the_direction_of_blocks_changes_no_bit() {
    // A few long rows are summed along points, many short ones across rows. A row of one equals a row of the other.
    let long: Vec<f32> = (0..1300).map(|i| ((i * 7919) % 1000) as f32 / 7.0 - 60.0).collect();
    let many = long.repeat(2000);
    for lanes in [1, 2, 32, 256, 1024] {
        let alone = sum_rows(lanes, 1, &long);
        assert!(sum_rows(lanes, 2000, &many).iter().all(|sum| sum.to_bits() == alone[0].to_bits()));
        // Column sums of the transposed matrix run across rows, because the inner stride is the long one.
        let builder = BodyBuilder::new();
        let sum = builder.reduce(ReduceOp::Sum, builder.input(DType::F32));
        builder.output(sum, DType::F32, OutputPlace::Row);
        let columns: Vec<f32> = long.iter().flat_map(|&value| [value; 64]).collect();
        let geometry = geometry(&[64], &[1300], vec![strided(&[1], &[64]), strided(&[1], &[])]);
        let mut sums = vec![0.0f32; 64];
        HostProgram::compile(&kernel(builder.finish(), class(1, 1, lanes)))
            .run(&geometry, &[], &[columns.as_slice().into()], &[sums.as_mut_slice().into()])
            .expect("a sum of columns");
        assert!(sums.iter().all(|sum| sum.to_bits() == alone[0].to_bits()), "{lanes} lanes");
    }
}

/// x − max − log Σ exp(x − max).
fn log_softmax() -> Body {
    let builder = BodyBuilder::new();
    let x = builder.input(DType::F32);
    let shifted = x - builder.reduce(ReduceOp::Max, x);
    let sum = builder.reduce(ReduceOp::Sum, shifted.exp());
    builder.output(shifted - sum.log(), DType::F32, OutputPlace::Point);
    builder.finish()
}

#[test]
fn log_softmax_in_place() {
    for (rows, points) in [(3, 1700), (1700, 3), (1, 1), (5, 512)] {
        let mut values: Vec<f32> = (0..rows * points).map(|i| ((i * 31) % 97) as f32 / 10.0).collect();
        let before = values.clone();
        let operand = strided(&[points as u64], &[1]);
        let geometry = geometry(&[rows as u64], &[points as u64], vec![operand.clone(), operand]);
        let cells = Cell::from_mut(values.as_mut_slice()).as_slice_of_cells();
        HostProgram::compile(&kernel(log_softmax(), class(1, 1, 32)))
            .run(&geometry, &[], &[cells.into()], &[cells.into()])
            .expect("a softmax");
        for (row, before) in values.chunks(points).zip(before.chunks(points)) {
            let sum: f64 = before.iter().map(|&x| f64::from(x).exp()).sum();
            for (&got, &x) in row.iter().zip(before) {
                let wanted = f64::from(x) - sum.ln();
                assert!((f64::from(got) - wanted).abs() < 1e-5, "{got}, not {wanted}");
            }
        }
    }
}

#[test]
fn values_that_stay_for_later_phases_change_no_bit() {
    // A short row along its points keeps x − max; adjacent columns compute it again in each phase.
    let run = |row: &[u64], inner: &[u64], operand: &OperandGeometry, values: &[f32]| {
        let operands = vec![operand.clone(), operand.clone()];
        let geometry = geometry(row, inner, operands);
        let mut result = vec![0.0f32; values.len()];
        HostProgram::compile(&kernel(log_softmax(), class(1, 1, 32)))
            .run(&geometry, &[], &[values.into()], &[result.as_mut_slice().into()])
            .expect("a softmax");
        result
    };
    for points in [1, 7, 1000, 5000, 40_000] {
        let values: Vec<f32> = (0..points).map(|i| ((i * 7919) % 1000) as f32 / 70.0 - 6.0).collect();
        let several = values.repeat(3);
        let columns: Vec<f32> = values.iter().flat_map(|&value| [value; 64]).collect();
        let points = points as u64;
        let along = run(&[3], &[points], &strided(&[points], &[1]), &several);
        let across = run(&[64], &[points], &strided(&[1], &[64]), &columns);
        for (at, value) in along.iter().enumerate() {
            assert_eq!(
                value.to_bits(),
                across[at % points as usize * 64].to_bits(),
                "{points} points, at {at}"
            );
        }
    }
}

/// Runs a kernel over operands whose numbers follow from their places, and compares the results with the model's.
fn runs_as_the_model(kernel: &Kernel, geometry: &Geometry) {
    let numbers = |operand: usize, dtype: DType, salt: u64| {
        let value = |at: u64| Scalar::F64(((at * 7919 + salt * 31) % 2003) as f64 / 1001.0 - 1.0);
        Memory::of(dtype, (0..geometry.span(operand)).map(|at| model::Value::scalar(value(at), dtype)))
    };
    let count = kernel.body.inputs.len();
    let inputs: Vec<Memory> =
        (0..count).map(|input| numbers(input, kernel.body.inputs[input].dtype, input as u64)).collect();
    let outputs = kernel.body.outputs.iter().enumerate();
    let mut outputs: Vec<Memory> =
        outputs.map(|(number, output)| numbers(count + number, output.dtype, 9)).collect();
    let mut expected = outputs.clone();
    model::run(kernel, geometry, &[], &inputs, &mut expected);
    let cells: Vec<Cells<'_>> = outputs.iter_mut().map(Memory::cells).collect();
    let sources: Vec<Source<'_>> = inputs.iter().map(|input| Source::Slice(input.slice())).collect();
    HostProgram::compile(kernel).run(geometry, &[], &sources, &cells).expect("the launch is well-formed");
    same(kernel, geometry, &outputs, &expected).expect("the numbers of the model");
}

#[test]
fn operands_that_repeat_give_the_bits_of_the_model() {
    // Points: a matrix times a column plus a row, into a matrix with gaps after its rows.
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for [rows, run] in [[12, 40], [3, 200], [33, 32], [2, 5000], [300, 31], [1, 129]] {
            let builder = BodyBuilder::new();
            let [x, column, row] = [(); 3].map(|()| builder.input(dtype).to(dtype.compute()));
            builder.output(x * column + row, dtype, OutputPlace::Row);
            builder.output(column.exp() * row, dtype, OutputPlace::Row);
            let operands = vec![
                strided(&[run, 1], &[]),
                strided(&[1, 0], &[]),
                strided(&[0, 1], &[]),
                strided(&[run + 3, 1], &[]),
                strided(&[run, 1], &[]),
            ];
            let kernel = kernel(builder.finish(), class(2, 0, 1));
            runs_as_the_model(&kernel, &geometry(&[rows, run], &[], operands));
        }
    }
}

#[test]
fn rows_with_values_of_their_own_give_the_bits_of_the_model() {
    // Two phases over rows of all lengths: fewer points than a piece, some pieces and a rest, more than a block.
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for (lanes, [rows, points]) in
            [(32, [130, 40]), (128, [37, 128]), (128, [70, 300]), (512, [5, 1500]), (32, [3, 9000])]
        {
            let builder = BodyBuilder::new();
            let [x, own, shared] = [(); 3].map(|()| builder.input(dtype).to(dtype.compute()));
            let mean = builder.reduce(ReduceOp::Sum, x * shared);
            let centred = x - mean;
            let square = builder.reduce(ReduceOp::Sum, centred * centred);
            let highest = builder.reduce(ReduceOp::Max, own * centred);
            builder.output(centred * square + own * shared, dtype, OutputPlace::Point);
            builder.output(square, dtype, OutputPlace::Row);
            builder.output(highest, dtype, OutputPlace::Row);
            let operands = vec![
                strided(&[points + 5], &[1]),
                strided(&[1], &[0]),
                strided(&[0], &[1]),
                strided(&[points], &[1]),
                strided(&[1], &[]),
                strided(&[1], &[]),
            ];
            let kernel = kernel(builder.finish(), class(1, 1, lanes));
            runs_as_the_model(&kernel, &geometry(&[rows], &[points], operands));
        }
    }
}

#[test]
fn rows_that_begin_inside_a_vector_give_the_bits_of_the_model() {
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        for (lanes, vector, held, [rows, points]) in
            [(64, 8, 1, [37, 49]), (16, 4, 5, [9, 65]), (2048, 8, 3, [5, 5001]), (8, 2, 9, [300, 67])]
        {
            let builder = BodyBuilder::new();
            let [x, own] = [(); 2].map(|()| builder.input(dtype).to(dtype.compute()));
            let mean = builder.reduce(ReduceOp::Sum, x * own);
            let centred = x - mean;
            builder.output(centred * builder.reduce(ReduceOp::Sum, centred.exp()), dtype, OutputPlace::Point);
            builder.output(mean, dtype, OutputPlace::Row);
            let operands = vec![
                strided(&[points], &[1]),
                strided(&[1], &[0]),
                strided(&[points], &[1]),
                strided(&[1], &[]),
            ];
            let class = Class { vector, held, shifted: true, repeated: 0b10, ..class(1, 1, lanes) };
            runs_as_the_model(&kernel(builder.finish(), class), &geometry(&[rows], &[points], operands));
        }
    }
}

#[test]
fn a_contiguous_launch_through_its_arguments() {
    let builder = BodyBuilder::new();
    let (x, y) = (builder.input(DType::F32), builder.input(DType::F16));
    let alpha = builder.scalar(DType::F32);
    builder.output(x + alpha * y, DType::F32, OutputPlace::Point);
    let kernel = kernel(builder.finish(), Class { contiguous: true, ..class(1, 0, 1) });
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let y = vec![thalweg_ir::f16::from_f32(0.5); 1000];
    let mut sum = vec![0.0f32; 1000];
    let whole = geometry(&[1000], &[], vec![strided(&[1], &[]); 3]);
    let scalars = [Scalar::F64(3.0).to_bits()];
    let arguments = LaunchArguments::pack(&kernel, &whole, &[1, 2], &[3], &scalars);
    let unpacked = kernel.unpack(arguments.as_bytes()).expect("what was packed");
    HostProgram::compile(&kernel)
        .run(
            &unpacked.geometry,
            &unpacked.scalars,
            &[x.as_slice().into(), y.as_slice().into()],
            &[sum.as_mut_slice().into()],
        )
        .expect("an addition");
    assert!(sum.iter().zip(&x).all(|(&sum, &x)| sum == x + 1.5));
}

/// Checks that a row output that reads an input reads the first point of the row.
#[test]
fn row_outputs_read_inputs_at_the_first_point() {
    let builder = BodyBuilder::new();
    let x = builder.input(DType::I64);
    let sum = builder.reduce(ReduceOp::Sum, x);
    builder.output(sum - x, DType::I64, OutputPlace::Row);
    let program = HostProgram::compile(&kernel(builder.finish(), class(1, 1, 2)));
    let mut difference = [0i64; 2];
    let run = |points: u64, difference: &mut [i64]| {
        let geometry = geometry(&[2], &[points], vec![strided(&[3], &[1]), strided(&[1], &[])]);
        program.run(&geometry, &[], &[[1i64, 20, 300, 5, 60, 700].as_slice().into()], &[difference.into()])
    };
    run(3, &mut difference).expect("rows of three");
    assert_eq!(difference, [320, 760]);
    let fault = run(0, &mut difference).expect_err("there is no first point");
    assert!(fault.to_string().contains("no points"), "{fault}");
}

#[test]
fn coordinates_of_both_groups() {
    let builder = BodyBuilder::new();
    let [a, b] = [Dimension::Row(0), Dimension::Inner(1)].map(|dimension| builder.index(dimension));
    let sum = builder.reduce(ReduceOp::Sum, a * 10i64 + b);
    builder.output(sum, DType::I64, OutputPlace::Row);
    builder.output(a * 10i64 + b, DType::I64, OutputPlace::Point);
    let program = HostProgram::compile(&kernel(builder.finish(), class(1, 2, 1)));
    let geometry = geometry(&[2], &[2, 3], vec![strided(&[1], &[]), strided(&[6], &[3, 1])]);
    let (mut sums, mut values) = ([0i64; 2], [0i64; 12]);
    program
        .run(&geometry, &[], &[], &[sums.as_mut_slice().into(), values.as_mut_slice().into()])
        .expect("coordinates");
    assert_eq!(values, [0, 1, 2, 0, 1, 2, 10, 11, 12, 10, 11, 12]);
    assert_eq!(sums, [6, 66]);
}

/// Runs y = x + 1 over four elements, with operands that may be too small.
fn add_one(geometry: &Geometry, scalars: &[u64], inputs: &[Source<'_>], outputs: &[Cells<'_>]) -> Fault {
    let builder = BodyBuilder::new();
    builder.output(builder.input(DType::F32) + 1.0, DType::F32, OutputPlace::Point);
    HostProgram::compile(&kernel(builder.finish(), class(1, 0, 1)))
        .run(geometry, scalars, inputs, outputs)
        .expect_err("the operands do not fit")
}

#[test]
fn operands_that_do_not_fit_are_faults() {
    let (x, longs) = ([1.0f32; 4], [1i64; 4]);
    let mut y = [0.0f32; 4];
    let x = Source::Slice(Slice::F32(&x));
    let y = Cells::from(y.as_mut_slice());
    let line = strided(&[1], &[]);
    let fits = geometry(&[4], &[], vec![line.clone(), line.clone()]);
    let expect = |fault: Fault, words: &str| assert!(fault.to_string().contains(words), "{fault}");
    expect(add_one(&fits, &[], &[], &[y]), "takes 1 inputs");
    expect(add_one(&fits, &[0], &[x], &[y]), "0 scalars");
    expect(add_one(&fits, &[], &[Source::from(longs.as_slice())], &[y]), "input 0 is of float32");
    let longer = geometry(&[5], &[], vec![line.clone(), line.clone()]);
    expect(add_one(&longer, &[], &[x], &[y]), "input 0 takes 5 elements; given are 4");
    let sparse = geometry(&[4], &[], vec![line.clone(), strided(&[2], &[])]);
    expect(add_one(&sparse, &[], &[x], &[y]), "output 0 takes 7 elements; given are 4");
    let square = geometry(&[2, 2], &[], vec![strided(&[2, 1], &[]); 2]);
    expect(add_one(&square, &[], &[x], &[y]), "the geometry has 2 and 0");
    let gathered = geometry(&[4], &[], vec![OperandGeometry::Gathered { elements: 4 }, line.clone()]);
    expect(add_one(&gathered, &[], &[x], &[y]), "not of the kind");
    let endless = geometry(&[4], &[], vec![strided(&[u64::MAX / 2], &[]), line]);
    expect(add_one(&endless, &[], &[x], &[y]), "larger than can be addressed");
}

#[test]
fn a_gather_outside_its_input_is_a_fault() {
    let builder = BodyBuilder::new();
    let index = builder.input(DType::I64);
    let table = builder.gathered_input(DType::F32);
    let guard = index.ge(0i64);
    builder.output(builder.gather(table, index, guard, Scalar::F64(-1.0)), DType::F32, OutputPlace::Point);
    let program = HostProgram::compile(&kernel(builder.finish(), class(1, 0, 1)));
    let line = strided(&[1], &[]);
    let geometry = geometry(&[3], &[], vec![line.clone(), OperandGeometry::Gathered { elements: 2 }, line]);
    let mut values = [0.0f32; 3];
    let mut run = |index: [i64; 3]| {
        program
            .run(
                &geometry,
                &[],
                &[index.as_slice().into(), [10.0f32, 20.0].as_slice().into()],
                &[values.as_mut_slice().into()],
            )
            .map(|()| values)
    };
    assert_eq!(run([1, -5, 0]), Ok([20.0, -1.0, 10.0]));
    let fault = run([1, 2, 0]).expect_err("there is no element 2");
    assert!(fault.to_string().contains("element 2 of input 1"), "{fault}");
}

#[test]
#[should_panic(expected = "not defined for bool")]
fn a_sum_of_bools_has_no_meaning() {
    let builder = BodyBuilder::new();
    let sum = builder.reduce(ReduceOp::Sum, builder.input(DType::Bool));
    builder.output(sum, DType::Bool, OutputPlace::Row);
    let _ = HostProgram::compile(&kernel(builder.finish(), class(1, 1, 1)));
}
