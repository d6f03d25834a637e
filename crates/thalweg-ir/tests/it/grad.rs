//! Gradients against differences of the host executor's results, in f64.

use thalweg_ir::grad::{gradient, without_gradients};
use thalweg_ir::host::{Cells, HostProgram, Source};
use thalweg_ir::{
    Binary, Body, BodyBuilder, DType, Dimensions, Geometry, Node, OperandGeometry, OutputPlace, ReduceOp,
    Scalar, Unary, Value,
};

use crate::kernels::{
    self, gelu, kernel, layer_norm, log_softmax, logsumexp, of_rows, pointwise, sigmoid, softmax, softplus,
    strided, variance,
};

/// A body's formula over one value.
type Formula = for<'b> fn(Value<'b>) -> Value<'b>;

const ROWS: usize = 3;
const POINTS: usize = 4;

/// The way in which an operand varies over rows and points.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Shape {
    /// One element per point.
    Full,
    /// One element per row.
    Row,
    /// As many elements as a row has, the same for each row.
    Inner,
}

impl Shape {
    fn strides(self) -> (u64, u64) {
        match self {
            Self::Full => (POINTS as u64, 1),
            Self::Row => (1, 0),
            Self::Inner => (0, 1),
        }
    }

    fn elements(self) -> usize {
        match self {
            Self::Full => ROWS * POINTS,
            Self::Row => ROWS,
            Self::Inner => POINTS,
        }
    }

    fn of(place: OutputPlace) -> Self {
        if place == OutputPlace::Row { Self::Row } else { Self::Full }
    }

    /// Returns the element of a point.
    fn place(self, row: usize, point: usize) -> usize {
        let (of_row, of_point) = self.strides();
        row * of_row as usize + point * of_point as usize
    }
}

/// An input of a launch.
#[derive(Clone, Debug)]
struct Operand {
    shape: Shape,
    values: Vec<f64>,
}

/// Returns the outputs of a body of f64 values.
fn evaluate(body: &Body, inputs: &[Operand]) -> Vec<Vec<f64>> {
    let has_reductions = !body.reductions.is_empty();
    let kernel = kernel("evaluated", body, strided(1, 1, if has_reductions { 2 } else { 1 }, false));
    let strided = |shape: Shape, place: OutputPlace| OperandGeometry::Strided {
        row_strides: Dimensions::from_slice(&[shape.strides().0]),
        inner_strides: Dimensions::from_slice(if place == OutputPlace::Row {
            &[]
        } else {
            std::slice::from_ref(&1)
        })
        .into_iter()
        .map(|_| shape.strides().1)
        .collect(),
    };
    let mut operands: Vec<OperandGeometry> =
        inputs.iter().map(|input| strided(input.shape, OutputPlace::Point)).collect();
    operands.extend(body.outputs.iter().map(|output| strided(Shape::of(output.place), output.place)));
    let geometry = Geometry {
        row_shape: Dimensions::from_slice(&[ROWS as u64]),
        inner_shape: Dimensions::from_slice(&[POINTS as u64]),
        operands,
    };
    let mut results: Vec<Vec<f64>> =
        body.outputs.iter().map(|output| vec![f64::NAN; Shape::of(output.place).elements()]).collect();
    let sources: Vec<Source> = inputs.iter().map(|input| Source::from(input.values.as_slice())).collect();
    let cells: Vec<Cells> = results.iter_mut().map(|values| Cells::from(values.as_mut_slice())).collect();
    HostProgram::compile(&kernel).run(&geometry, &[], &sources, &cells).unwrap();
    results
}

/// Returns numbers between 0 and 1, the same for the same seed.
fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn sample(shape: Shape, low: f64, high: f64, seed: u64) -> Operand {
    let mut next = random(seed);
    Operand { shape, values: (0..shape.elements()).map(|_| low + (high - low) * next()).collect() }
}

/// Random weights for each output, with which the gradient is multiplied.
fn weights(body: &Body, seed: u64) -> Vec<Operand> {
    let outputs = body.outputs.iter().zip(seed..);
    outputs.map(|(output, seed)| sample(Shape::of(output.place), -1.0, 1.0, seed)).collect()
}

/// Checks the gradient of a body with respect to all its inputs against central differences. Returns the gradient's body with its
/// operands, so that it can itself be checked.
fn check(name: &str, body: &Body, inputs: &[Operand]) -> (Body, Vec<Operand>) {
    let wrt: Vec<usize> = (0..inputs.len()).collect();
    let gradient = gradient(body, &wrt).unwrap_or_else(|error| panic!("{name}: {error}"));
    let weights = weights(body, 77);
    let operands: Vec<Operand> = inputs.iter().chain(&weights).cloned().collect();
    let derived = evaluate(&gradient.body, &operands);
    let loss = |inputs: &[Operand]| -> f64 {
        let outputs = evaluate(body, inputs);
        outputs.iter().flatten().zip(weights.iter().flat_map(|w| &w.values)).map(|(a, b)| a * b).sum()
    };
    for (number, input) in inputs.iter().enumerate() {
        let mut summed = vec![0.0; input.values.len()];
        for row in 0..ROWS {
            for point in 0..POINTS {
                summed[input.shape.place(row, point)] += derived[number][row * POINTS + point];
            }
        }
        for (element, derivative) in summed.into_iter().enumerate() {
            let value = input.values[element];
            let step = 1e-5 * value.abs().max(0.1);
            let at = |value: f64| {
                let mut moved = inputs.to_vec();
                moved[number].values[element] = value;
                loss(&moved)
            };
            let difference = (at(value + step) - at(value - step)) / (2.0 * step);
            let error = (derivative - difference).abs();
            assert!(
                error <= 2e-6 * (1.0 + difference.abs()),
                "{name}: element {element} of input {number} (at {value}): derived {derivative}, by differences {difference}"
            );
        }
        assert!(!gradient.is_zero[number] || derived[number].iter().all(|&value| value == 0.0));
    }
    (gradient.body, operands)
}

/// Checks first and second derivatives.
fn check_twice(name: &str, body: &Body, inputs: &[Operand]) {
    let (derived, operands) = check(name, body, inputs);
    check(&format!("{name}, second"), &derived, &operands);
}

const F64: DType = DType::F64;

#[test]
fn every_unary_primitive() {
    for &op in Unary::ALL {
        let (low, high) = match op {
            Unary::Not | Unary::Conj => continue,
            Unary::Sqrt | Unary::Rsqrt | Unary::Log | Unary::Log2 | Unary::Log10 | Unary::Lgamma => {
                (0.3, 3.0)
            }
            Unary::Tan => (-1.0, 1.0),
            Unary::Asin | Unary::Acos | Unary::Atanh => (-0.7, 0.7),
            Unary::Acosh => (1.3, 3.0),
            Unary::Log1p => (-0.6, 2.0),
            // Between two jumps, where the gradient is 0.
            Unary::Floor | Unary::Ceil | Unary::Trunc => (1.1, 1.9),
            Unary::Round => (0.6, 1.4),
            // Away from the kink; the second run is on its other side.
            Unary::Abs => (0.1, 2.0),
            _ => (-2.0, 2.0),
        };
        let body = pointwise(&[F64], |x| x[0].unary(op));
        check_twice(&format!("{op:?}"), &body, &[sample(Shape::Full, low, high, 3)]);
        if op == Unary::Abs {
            check("Abs of negative numbers", &body, &[sample(Shape::Full, -high, -low, 3)]);
        }
    }
}

#[test]
fn every_binary_primitive() {
    for op in kernels::BINARIES {
        let (a, b) = match op {
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Max | Binary::Min => ((-2.0, 2.0), (-2.0, 2.0)),
            Binary::Div => ((-2.0, 2.0), (0.5, 2.0)),
            Binary::Rem => ((4.2, 4.8), (1.25, 1.35)),
            Binary::Pow => ((0.4, 2.0), (-2.0, 2.0)),
            Binary::Atan2 => ((0.4, 2.0), (-2.0, 2.0)),
            _ => continue,
        };
        let body = pointwise(&[F64, F64], |x| x[0].binary(op, x[1]));
        for (shape_a, shape_b) in
            [(Shape::Full, Shape::Full), (Shape::Row, Shape::Full), (Shape::Full, Shape::Inner)]
        {
            let inputs = [sample(shape_a, a.0, a.1, 5), sample(shape_b, b.0, b.1, 9)];
            check_twice(&format!("{op:?}, {shape_a:?} and {shape_b:?}"), &body, &inputs);
        }
    }
}

#[test]
fn other_nodes() {
    let three = [1, 2, 3].map(|seed| sample(Shape::Full, -2.0, 2.0, seed));
    check_twice("Fma", &pointwise(&[F64; 3], |x| x[0].mul_add(x[1], x[2])), &three);
    let routed = pointwise(&[F64; 3], |x| x[0].lt(0.5).select(x[1] * x[0], x[2].exp()));
    check_twice("Select", &routed, &three);
    for exponent in [0.0, 1.0, 2.0, 3.0, -1.0, 0.5] {
        let body = pointwise(&[F64], |x| x[0].pow(exponent) * 1.5);
        check_twice(&format!("power {exponent}"), &body, &[sample(Shape::Full, 0.5, 2.0, 4)]);
    }
    // A remainder whose quotient is not an integer but rounds up to one.
    let body = pointwise(&[F64, F64], |x| x[0] % x[1]);
    let gradient = gradient(&body, &[1]).unwrap().body;
    let almost = f64::from_bits(3f64.to_bits() - 1);
    let full = |value: f64| Operand { shape: Shape::Full, values: vec![value; ROWS * POINTS] };
    let derived = evaluate(&gradient, &[full(almost), full(1.0), full(1.0)]);
    assert!(derived[0].iter().all(|&value| value == -2.0));
}

#[test]
fn composed_elementwise_bodies() {
    let formulas: [(&str, Formula); 6] = [
        ("sigmoid", sigmoid),
        ("softplus", softplus),
        ("gelu", gelu),
        ("softsign", |x| x / (x.abs() + 1.0)),
        ("silu", |x| x * sigmoid(x)),
        ("cube", |x| x * x * x),
    ];
    for (name, formula) in formulas {
        check_twice(name, &pointwise(&[F64], |x| formula(x[0])), &[sample(Shape::Full, -3.0, 3.0, 8)]);
    }
}

#[test]
fn reductions_and_what_is_built_of_them() {
    let formulas: [(&str, OutputPlace, Formula); 12] = [
        ("sum", OutputPlace::Row, kernels::sum),
        ("sum at points", OutputPlace::Point, kernels::sum),
        ("mean", OutputPlace::Row, |x| kernels::sum(x) / kernels::count(x)),
        ("maximum", OutputPlace::Row, kernels::maximum),
        ("minimum times points", OutputPlace::Point, |x| x * x.builder().reduce(ReduceOp::Min, x)),
        ("product", OutputPlace::Row, |x| x.builder().reduce(ReduceOp::Product, x)),
        ("softmax", OutputPlace::Point, softmax),
        ("log-softmax", OutputPlace::Point, log_softmax),
        ("logsumexp", OutputPlace::Row, logsumexp),
        ("variance", OutputPlace::Row, variance),
        ("norm", OutputPlace::Row, |x| kernels::sum(x * x).sqrt()),
        ("sum of sums", OutputPlace::Row, |x| kernels::sum(kernels::sum(x * x) * x)),
    ];
    for (name, place, formula) in formulas {
        check_twice(name, &of_rows(F64, place, formula), &[sample(Shape::Full, 0.3, 2.0, 21)]);
    }
}

#[test]
fn layer_norm_with_row_outputs() {
    let inputs = [
        sample(Shape::Full, -2.0, 2.0, 31),
        sample(Shape::Inner, 0.5, 1.5, 32),
        sample(Shape::Inner, -1.0, 1.0, 33),
    ];
    check_twice("layer norm", &layer_norm(F64), &inputs);
}

/// Returns the gradient of a body of one input, at these values of the first row, with gradient 1 for each output.
fn gradient_at(body: &Body, values: [f64; POINTS]) -> Vec<f64> {
    let gradient = gradient(body, &[0]).unwrap().body;
    let values = values.iter().copied().cycle().take(ROWS * POINTS).collect();
    let mut operands = vec![Operand { shape: Shape::Full, values }];
    for output in &body.outputs {
        let shape = Shape::of(output.place);
        operands.push(Operand { shape, values: vec![1.0; shape.elements()] });
    }
    evaluate(&gradient, &operands)[0][..POINTS].to_vec()
}

#[test]
fn ties_and_kinks_follow_pytorch() {
    let greatest = of_rows(F64, OutputPlace::Row, kernels::maximum);
    assert_eq!(gradient_at(&greatest, [3.0, 1.0, 3.0, 2.0]), [0.5, 0.0, 0.5, 0.0]);
    let least = of_rows(F64, OutputPlace::Row, |x| x.builder().reduce(ReduceOp::Min, x));
    assert_eq!(gradient_at(&least, [1.0, 1.0, 1.0, 1.0]), [0.25; 4]);
    let product = of_rows(F64, OutputPlace::Row, |x| x.builder().reduce(ReduceOp::Product, x));
    assert_eq!(gradient_at(&product, [2.0, 0.0, 3.0, 5.0]), [0.0, 30.0, 0.0, 0.0]);
    assert_eq!(gradient_at(&product, [2.0, 0.0, 3.0, 0.0]), [0.0; 4]);
    let clamp = pointwise(&[F64], |x| x[0].maximum(0.0));
    assert_eq!(gradient_at(&clamp, [-1.0, 0.0, 1.0, -0.0]), [0.0, 0.5, 1.0, 0.5]);
    let absolute = pointwise(&[F64], |x| x[0].abs());
    assert_eq!(gradient_at(&absolute, [-1.0, 0.0, 1.0, -0.0]), [-1.0, 0.0, 1.0, 0.0]);
    let square = pointwise(&[F64], |x| x[0].pow(2.0));
    assert_eq!(gradient_at(&square, [-1.0, 0.0, 1.0, 2.0]), [-2.0, 0.0, 2.0, 4.0]);
    // d 0^y / dy is 0 where y is not negative; d x^0 / dx is 0.
    let exponent = pointwise(&[F64], |x| (x[0] * 0.0).pow(x[0]));
    assert_eq!(gradient_at(&exponent, [1.0, 2.0, 3.0, 0.5])[1..3], [0.0, 0.0]);
    let zeroth = pointwise(&[F64], |x| x[0].pow(x[0] * 0.0 + 0.0));
    let slope = gradient_at(&zeroth, [1.0, 2.0, 3.0, 0.5]);
    assert!(slope.iter().all(|value| value.is_finite()));
}

/// The contribution of a branch that is not taken is infinite or NaN, and the parts of a gradient join again at shared
/// expressions.
#[test]
fn a_branch_that_is_not_taken_does_not_count() {
    let elu = pointwise(&[F64], |x| x[0].le(0.0).select(x[0].expm1(), x[0]));
    assert_eq!(gradient_at(&elu, [1e4, 0.0, -1e4, f64::INFINITY]), [1.0, 1.0, 0.0, 1.0]);
    // Both branches share √ and its slope; a third branch is taken where the slope is infinite.
    let shared = pointwise(&[F64], |x| {
        let root = x[0].sqrt();
        x[0].eq(0.0).select(x[0] * 3.0, x[0].lt(4.0).select(root * 8.0, root * root.exp()))
    });
    let at_nine = (3f64.exp() + 3.0 * 3f64.exp()) / 6.0;
    assert_eq!(gradient_at(&shared, [0.0, 1.0, 9.0, 0.0]), [3.0, 4.0, at_nine, 3.0]);
    // The smaller operand of a maximum is not taken either.
    let greatest = pointwise(&[F64], |x| x[0].sqrt().maximum(x[0] + 1.0));
    assert_eq!(gradient_at(&greatest, [0.0, 0.0, 0.0, 1.0])[0], 1.0);
    // Points of a row that do not attain the maximum are not taken either.
    let logarithms = of_rows(F64, OutputPlace::Row, |x| kernels::maximum(x.log()));
    assert_eq!(gradient_at(&logarithms, [0.0, 2.0, 1.0, 0.0]), [0.0, 0.5, 0.0, 0.0]);
}

#[test]
fn a_selects_gradient_is_one_select() {
    let count = |body: &Body| body.nodes.iter().filter(|node| matches!(node, Node::Select(..))).count();
    // e^−|x| as in sigmoid, and a formula with two kinks.
    let decay = gradient(&pointwise(&[F64], |x| x[0].lt(0.0).select(x[0], -x[0]).exp()), &[0]).unwrap();
    assert_eq!(count(&decay.body), 2, "the value's and the gradient's");
    let bounded =
        pointwise(&[F64], |x| x[0].le(0.0).select(x[0].like(0.0), x[0].ge(6.0).select(x[0].like(6.0), x[0])));
    assert_eq!(count(&gradient(&bounded, &[0]).unwrap().body), 2);
}

#[test]
fn an_absent_gradient_is_no_factor() {
    // Product and quotient at y = 0: the slope of the quotient is infinite, and its gradient absent.
    let builder = BodyBuilder::new();
    {
        let (x, y) = (builder.input(F64), builder.input(F64));
        builder.output(x * y, F64, OutputPlace::Point);
        builder.output(x / y, F64, OutputPlace::Point);
    }
    let whole = gradient(&builder.finish(), &[0, 1]).unwrap().body;
    let partial = without_gradients(&whole, &[3]);
    assert!(whole.uses_input(3) && !partial.uses_input(3));
    let full = |value: f64| Operand { shape: Shape::Full, values: vec![value; ROWS * POINTS] };
    let results = evaluate(&partial, &[full(5.0), full(0.0), full(2.0), full(f64::NAN)]);
    assert_eq!((results[0][0], results[1][0]), (0.0, 10.0));
    let none = without_gradients(&whole, &[2, 3]);
    assert!((0..4).all(|input| !none.uses_input(input)));
}

#[test]
fn nothing_flows_through_detached_values() {
    let body = pointwise(&[F64], |x| x[0].detach() * x[0]);
    assert_eq!(gradient_at(&body, [1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0, 4.0]);
    let stopped = gradient(&pointwise(&[F64], |x| x[0].detach() * 2.0), &[0]).unwrap();
    assert_eq!(stopped.is_zero, [true]);
    assert!(!stopped.body.uses_input(0) && !stopped.body.uses_input(1));
}

#[test]
fn derived_bodies_are_small() {
    // Sum: the gradient is the output's, at every point; nothing is saved and nothing is reduced.
    let sum = gradient(&of_rows(DType::F32, OutputPlace::Row, kernels::sum), &[0]).unwrap().body;
    assert!(!sum.uses_input(0) && sum.uses_input(1));
    assert_eq!((sum.nodes.len(), sum.reductions.len()), (1, 0));
    // Addition: the gradient of both is the output's.
    let add = gradient(&pointwise(&[DType::F32; 2], |x| x[0] + x[1]), &[0, 1]).unwrap().body;
    assert_eq!(add.nodes.len(), 1);
    // A product saves the other factor only.
    let product = gradient(&pointwise(&[DType::F32; 2], |x| x[0] * x[1]), &[0]).unwrap().body;
    assert_eq!((product.uses_input(0), product.uses_input(1), product.uses_input(2)), (false, true, true));
    // Log-softmax: the maximum, the sum of exponentials, and the sum of the gradient.
    let body = gradient(&of_rows(DType::F32, OutputPlace::Point, log_softmax), &[0]).unwrap().body;
    assert_eq!(body.reductions.len(), 3);
}

#[test]
fn dtypes_of_gradients() {
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        let body = gradient(&of_rows(dtype, OutputPlace::Point, softmax), &[0]).unwrap().body;
        assert_eq!(body.inputs.len(), 2);
        assert_eq!(body.outputs[0].dtype, dtype);
        assert_eq!(body.dtype(body.outputs[0].value), DType::F32);
    }
    // Through a cast to another float and back.
    let mixed = pointwise(&[DType::F32, F64], |x| x[0].to(F64) * x[1]);
    let body = gradient(&mixed, &[0, 1]).unwrap().body;
    assert_eq!(body.inputs[2].dtype, F64);
    assert_eq!((body.outputs[0].dtype, body.outputs[1].dtype), (DType::F32, F64));
}

#[test]
fn what_has_no_gradient_is_an_error() {
    let integers = pointwise(&[DType::I32], |x| x[0] + 1);
    assert!(gradient(&integers, &[0]).unwrap_err().to_string().contains("int32"));
    assert!(gradient(&integers, &[1]).unwrap_err().to_string().contains("1 inputs"));
    let embedding = kernels::embedding(DType::F32, DType::I64);
    assert!(gradient(&embedding, &[0]).unwrap_err().to_string().contains("gathered"));
    // A row output of single points, in a body with reductions.
    let builder = BodyBuilder::new();
    {
        let x = builder.input(DType::F32);
        builder.output(kernels::sum(x) * x, DType::F32, OutputPlace::Row);
    }
    assert!(gradient(&builder.finish(), &[0]).unwrap_err().to_string().contains("reduce it first"));
}

#[test]
fn gathered_inputs_are_constants_to_others() {
    let builder = BodyBuilder::new();
    {
        let table = builder.gathered_input(DType::F32);
        let x = builder.input(DType::F32);
        let place = builder.constant(0, DType::I64);
        let guard = builder.constant(true, DType::Bool);
        let y = builder.gather(table, place, guard, Scalar::F64(0.0)) * x;
        builder.output(y, DType::F32, OutputPlace::Point);
    }
    let body = gradient(&builder.finish(), &[1]).unwrap().body;
    assert!(body.uses_input(0) && !body.uses_input(1));
    assert!(body.nodes.iter().any(|node| matches!(node, Node::Gather { .. })));
}
