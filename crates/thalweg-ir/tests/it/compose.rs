//! Compositions compared with the two bodies run one after the other, on the host executor.

use proptest::prelude::*;
use thalweg_ir::compose::{Part, Source, compose};
use thalweg_ir::host::{Cells, HostProgram, Source as HostSource};
use thalweg_ir::{
    Body, BodyBuilder, Class, DType, Dimension, Geometry, Kernel, Node, OperandGeometry, OutputPlace,
    ReduceOp,
};

use crate::kernels::{maximum, pointwise, sum};
use crate::model::Memory;
use crate::random::{self, Case, Pair};

/// Runs a kernel on the host.
fn run(kernel: &Kernel, geometry: &Geometry, scalars: &[u64], inputs: &[&Memory], outputs: &mut [Memory]) {
    let cells: Vec<Cells<'_>> = outputs.iter_mut().map(Memory::cells).collect();
    let sources: Vec<HostSource<'_>> = inputs.iter().map(|input| HostSource::Slice(input.slice())).collect();
    HostProgram::compile(kernel).run(geometry, scalars, &sources, &cells).expect("the case is well-formed");
}

/// Every dimension is itself.
fn dimensions(class: &Class) -> (Vec<Option<Dimension>>, Vec<Option<Dimension>>) {
    let rows = (0..class.row_rank).map(|number| Some(Dimension::Row(number))).collect();
    (rows, (0..class.inner_rank).map(|number| Some(Dimension::Inner(number))).collect())
}

fn composition_equals_its_parts(pair: Pair) -> Result<(), TestCaseError> {
    let Pair { first, second, shared, kept } = pair;
    let count = first.inputs.len();
    // One after the other.
    let mut between = first.outputs.clone();
    run(
        &first.kernel,
        &first.geometry,
        &first.scalars,
        &first.inputs.iter().collect::<Vec<_>>(),
        &mut between,
    );
    let read: Vec<&Memory> = (shared.iter().zip(&second.inputs))
        .map(|(shared, own)| match *shared {
            None => own,
            Some(operand) if operand < count => &first.inputs[operand],
            Some(operand) => &between[operand - count],
        })
        .collect();
    let mut expected = second.outputs.clone();
    run(&second.kernel, &second.geometry, &second.scalars, &read, &mut expected);

    // At once.
    let bodies = [&first.kernel.body, &second.kernel.body];
    let mut inputs = bodies[0].inputs.clone();
    let mut memories: Vec<&Memory> = first.inputs.iter().collect();
    let mut operands = first.geometry.operands[..count].to_vec();
    let mut sources = Vec::new();
    for (number, input) in bodies[1].inputs.iter().enumerate() {
        sources.push(match shared[number] {
            Some(operand) if operand < count => Source::Input(operand as u16),
            Some(operand) => Source::Output((operand - count) as u16),
            None => {
                inputs.push(*input);
                memories.push(&second.inputs[number]);
                operands.push(second.geometry.operands[number].clone());
                Source::Input((inputs.len() - 1) as u16)
            }
        });
    }
    let (rows, inner) = dimensions(&first.kernel.class);
    let outputs = |body: usize, is_kept: &dyn Fn(usize) -> bool| -> Vec<(u16, OutputPlace)> {
        let all = bodies[body].outputs.iter().enumerate().filter(|(number, _)| is_kept(*number));
        all.map(|(number, output)| (number as u16, output.place)).collect()
    };
    let parts = [
        Part {
            body: bodies[0],
            sources: (0..count as u16).map(Source::Input).collect(),
            rows: rows.clone(),
            inner: inner.clone(),
            outputs: outputs(0, &|number| kept[number]),
        },
        Part { body: bodies[1], sources, rows, inner, outputs: outputs(1, &|_| true) },
    ];
    let composed = Composed { body: compose(&parts[0], &parts[1], &inputs), operands, memories, between };
    composed.equals(expected, &first, &second, &kept)
}

/// A composition, with the operands of its inputs, and the results of its first part.
struct Composed<'m> {
    body: Body,
    operands: Vec<OperandGeometry>,
    memories: Vec<&'m Memory>,
    between: Vec<Memory>,
}

impl Composed<'_> {
    /// Compares the results with those of the parts. The first part's results are compared if they are kept.
    fn equals(
        mut self,
        expected: Vec<Memory>,
        first: &Case,
        second: &Case,
        kept: &[bool],
    ) -> Result<(), TestCaseError> {
        let kept = || (0..kept.len()).filter(|&number| kept[number]);
        let count = first.inputs.len();
        self.operands.extend(kept().map(|number| first.geometry.operands[count + number].clone()));
        self.operands.extend_from_slice(&second.geometry.operands[second.inputs.len()..]);
        let kernel = Kernel { name: "composition".into(), body: self.body, class: first.kernel.class };
        let geometry = Geometry { operands: self.operands, ..first.geometry.clone() };
        let scalars = [&first.scalars[..], &second.scalars].concat();
        let mut got: Vec<Memory> = kept().map(|number| first.outputs[number].clone()).collect();
        got.extend(second.outputs.iter().cloned());
        run(&kernel, &geometry, &scalars, &self.memories, &mut got);
        let expected: Vec<Memory> =
            kept().map(|number| self.between[number].clone()).chain(expected).collect();
        for (output, (got, wanted)) in kernel.body.outputs.iter().zip(got.iter().zip(&expected)) {
            for at in 0..wanted.len() {
                let (got, wanted) = (got.get(output.dtype, at), wanted.get(output.dtype, at));
                prop_assert!(got.same(wanted), "element {at}: {got:?}, not {wanted:?}\n{kernel:#?}");
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("THALWEG_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_compositions_give_the_bits_of_their_parts(tape in random::tapes()) {
        composition_equals_its_parts(random::pair(&tape))?;
    }
}

/// Returns a part whose dimensions, all rows or all inner ones, are those of a space of one row and one inner dimension.
fn part<'a>(body: &'a Body, sources: Vec<Source>, outputs: Vec<(u16, OutputPlace)>) -> Part<'a> {
    let space = vec![Some(Dimension::Row(0)), Some(Dimension::Inner(0))];
    let is_of_rows = body.reductions.is_empty();
    let (rows, inner) = match is_of_rows {
        true => (space, Vec::new()),
        false => (vec![space[0]], vec![space[1]]),
    };
    Part { body, sources, rows, inner, outputs }
}

#[test]
fn what_is_written_in_16_bits_is_rounded_between_the_parts() {
    let half = pointwise(&[DType::F16], |x| x[0] * 3.0);
    let mut first = half.clone();
    first.outputs[0].dtype = DType::F16;
    let input = [thalweg_ir::Input { dtype: DType::F16, kind: thalweg_ir::InputKind::Strided }];
    let body = compose(
        &part(&first, vec![Source::Input(0)], vec![]),
        &part(&half, vec![Source::Output(0)], vec![(0, OutputPlace::Row)]),
        &input,
    );
    let casts = body.nodes.iter().zip(&body.dtypes);
    let rounded = casts.filter(|(node, dtype)| matches!(node, Node::Cast(_)) && **dtype == DType::F16);
    assert_eq!(rounded.count(), 1, "{body:#?}");
}

#[test]
fn a_result_of_rows_is_read_at_every_point_and_equal_reductions_are_one() {
    let reduced = |reduce: fn(thalweg_ir::Value<'_>) -> thalweg_ir::Value<'_>| {
        let builder = BodyBuilder::new();
        {
            let x = builder.input(DType::F32);
            builder.output(reduce(x), DType::F32, OutputPlace::Row);
        }
        builder.finish()
    };
    let (total, greatest) = (reduced(sum), reduced(maximum));
    let quotient = pointwise(&[DType::F32; 2], |x| x[0] / x[1]);
    let input = [thalweg_ir::Input { dtype: DType::F32, kind: thalweg_ir::InputKind::Strided }];
    let body = compose(
        &part(&total, vec![Source::Input(0)], vec![]),
        &part(&quotient, vec![Source::Input(0), Source::Output(0)], vec![(0, OutputPlace::Point)]),
        &input,
    );
    assert_eq!(body.reductions.len(), 1);
    let kernel = Kernel { name: "rows".into(), body: body.clone(), class: Class::new(1, 1) };
    let strided = |row: u64, inner: &[u64]| OperandGeometry::Strided {
        row_strides: [row].into_iter().collect(),
        inner_strides: inner.iter().copied().collect(),
    };
    let geometry = Geometry {
        row_shape: [2].into_iter().collect(),
        inner_shape: [3].into_iter().collect(),
        operands: vec![strided(3, &[1]), strided(3, &[1])],
    };
    let x = [1.0f32, 2.0, 5.0, 4.0, 4.0, 8.0];
    let mut y = [0.0f32; 6];
    let sources = [HostSource::Slice(thalweg_ir::host::Slice::F32(&x))];
    let cells = [thalweg_ir::host::SliceMut::F32(&mut y).into_cells()];
    HostProgram::compile(&kernel).run(&geometry, &[], &sources, &cells).unwrap();
    assert_eq!(y, [0.125, 0.25, 0.625, 0.25, 0.25, 0.5]);

    let again = compose(
        &part(&total, vec![Source::Input(0)], vec![(0, OutputPlace::Row)]),
        &part(&body, vec![Source::Input(0)], vec![(0, OutputPlace::Point)]),
        &input,
    );
    assert_eq!(again.reductions.len(), 1, "the sum is there already");
    let both = compose(
        &part(&total, vec![Source::Input(0)], vec![(0, OutputPlace::Row)]),
        &part(&greatest, vec![Source::Input(0)], vec![(0, OutputPlace::Row)]),
        &input,
    );
    let ops: Vec<ReduceOp> = both.reductions.iter().map(|reduction| reduction.op).collect();
    assert_eq!(ops, [ReduceOp::Sum, ReduceOp::Max]);
    assert_eq!((both.outputs.len(), both.inputs.len()), (2, 1));
}
