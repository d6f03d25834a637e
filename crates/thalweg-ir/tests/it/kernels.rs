//! Bodies and kernels that several tests use.

use thalweg_ir::{
    Binary, Body, BodyBuilder, Class, DType, Dimension, Kernel, OutputPlace, ReduceOp, Scalar, Unary, Value,
};

/// Returns a class of elementwise kernels over contiguous operands.
pub fn contiguous(vector: u8) -> Class {
    Class { contiguous: true, vector, ..Class::new(1, 0) }
}

/// Returns a class of kernels with dimensions.
pub fn strided(row_rank: u8, inner_rank: u8, lanes: u16, narrow_index: bool) -> Class {
    Class { narrow_index, lanes, ..Class::new(row_rank, inner_rank) }
}

/// Returns a class of row kernels over contiguous operands.
pub fn rows(lanes: u16) -> Class {
    Class { contiguous: true, narrow_index: true, lanes, ..Class::new(1, 1) }
}

/// Returns a class of row kernels whose threads hold this many vectors each.
pub fn held(lanes: u16, vector: u8, held: u8) -> Class {
    Class { vector, held, ..rows(lanes) }
}

/// Returns a class of row kernels that read a row once.
pub fn online(lanes: u16, vector: u8) -> Class {
    Class { vector, online: true, repeated: 0b10, ..strided(1, 1, lanes, true) }
}

/// Returns a class of row kernels whose rows are adjacent in memory.
pub fn abreast(lanes: u16, rows_abreast: u16) -> Class {
    Class { rows_abreast, ..strided(1, 1, lanes, true) }
}

pub fn kernel(name: impl Into<String>, body: &Body, class: Class) -> Kernel {
    Kernel { name: name.into(), body: body.clone(), class }
}

/// Returns a body without reductions of inputs of these dtypes.
pub fn pointwise(dtypes: &[DType], formula: impl for<'b> Fn(&[Value<'b>]) -> Value<'b>) -> Body {
    let builder = BodyBuilder::new();
    {
        let inputs: Vec<Value> = dtypes.iter().map(|&dtype| builder.input(dtype)).collect();
        let value = formula(&inputs);
        builder.output(value, value.dtype(), OutputPlace::Point);
    }
    builder.finish()
}

/// Returns a body with one input, in its dtype, whose output is at this place.
pub fn of_rows(dtype: DType, place: OutputPlace, formula: impl for<'b> Fn(Value<'b>) -> Value<'b>) -> Body {
    let builder = BodyBuilder::new();
    {
        let value = formula(builder.input(dtype));
        builder.output(value, dtype, place);
    }
    builder.finish()
}

pub fn sum(value: Value<'_>) -> Value<'_> {
    value.builder().reduce(ReduceOp::Sum, value)
}

pub fn maximum(value: Value<'_>) -> Value<'_> {
    value.builder().reduce(ReduceOp::Max, value)
}

/// Returns the number of points of a row, as a float of this value's dtype.
pub fn count(value: Value<'_>) -> Value<'_> {
    sum(value.like(1.0))
}

pub fn sigmoid(x: Value<'_>) -> Value<'_> {
    1.0 / (1.0 + (-x).exp())
}

pub fn softplus(x: Value<'_>) -> Value<'_> {
    x.maximum(0.0) + (-x.abs()).exp().log1p()
}

pub fn gelu(x: Value<'_>) -> Value<'_> {
    x * 0.5 * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2).erf())
}

pub fn softmax(x: Value<'_>) -> Value<'_> {
    let exponential = (x - maximum(x).detach()).exp();
    exponential / sum(exponential)
}

pub fn log_softmax(x: Value<'_>) -> Value<'_> {
    let shifted = x - maximum(x).detach();
    shifted - sum(shifted.exp()).log()
}

pub fn logsumexp(x: Value<'_>) -> Value<'_> {
    let greatest = maximum(x).detach();
    sum((x - greatest).exp()).log() + greatest
}

pub fn variance(x: Value<'_>) -> Value<'_> {
    let points = count(x);
    let centred = x - sum(x) / points;
    sum(centred * centred) / points
}

/// Layer normalisation with a weight and a bias.
pub fn layer_norm(dtype: DType) -> Body {
    let builder = BodyBuilder::new();
    {
        let (x, weight, bias) = (builder.input(dtype), builder.input(dtype), builder.input(dtype));
        let points = count(x);
        let mean = sum(x) / points;
        let centred = x - mean;
        let deviation = 1.0 / (sum(centred * centred) / points + 1e-5).sqrt();
        builder.output((centred * deviation).mul_add(weight, bias), dtype, OutputPlace::Point);
        builder.output(mean, dtype.compute(), OutputPlace::Row);
        builder.output(deviation, dtype.compute(), OutputPlace::Row);
    }
    builder.finish()
}

/// Rows of a table, selected by an index from data with a guard: an embedding.
pub fn embedding(dtype: DType, index: DType) -> Body {
    let builder = BodyBuilder::new();
    {
        let table = builder.gathered_input(dtype);
        let row = builder.input(index).to(DType::I64);
        let width = builder.scalar(DType::I64);
        let height = builder.scalar(DType::I64);
        let inside = row.ge(0).and(row.lt(height));
        let place = row * width + builder.index(Dimension::Row(1));
        builder.output(builder.gather(table, place, inside, Scalar::I64(0)), dtype, OutputPlace::Point);
    }
    builder.finish()
}

pub const BINARIES: [Binary; 15] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Rem,
    Binary::Pow,
    Binary::Atan2,
    Binary::Max,
    Binary::Min,
    Binary::Equal,
    Binary::Less,
    Binary::LessEqual,
    Binary::And,
    Binary::Or,
    Binary::Xor,
];

/// Returns the dtypes that have arithmetic.
pub fn compute_dtypes() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.compute() == *dtype)
}

fn unary_is_valid(op: Unary, dtype: DType) -> bool {
    match op {
        Unary::Not => dtype == DType::Bool,
        Unary::Conj => dtype.is_complex(),
        Unary::Neg => dtype != DType::Bool,
        Unary::Abs => dtype != DType::Bool && !dtype.is_complex(),
        _ => dtype.is_floating_point(),
    }
}

fn binary_is_valid(op: Binary, dtype: DType) -> bool {
    match op {
        Binary::Add | Binary::Sub | Binary::Mul | Binary::Div => dtype != DType::Bool,
        Binary::Equal => true,
        _ if dtype.is_complex() => false,
        Binary::Rem => dtype != DType::Bool,
        Binary::Pow | Binary::Atan2 => dtype.is_floating_point(),
        Binary::And | Binary::Or | Binary::Xor => !dtype.is_floating_point(),
        Binary::Max | Binary::Min | Binary::Less | Binary::LessEqual => true,
    }
}

/// For each dtype, one body with an output for each primitive that is valid for it.
pub fn primitives(dtype: DType) -> Body {
    let builder = BodyBuilder::new();
    {
        let (a, b, c) = (builder.input(dtype), builder.input(dtype), builder.input(dtype));
        let out = |value: Value<'_>| builder.output(value, value.dtype(), OutputPlace::Point);
        Unary::ALL.iter().copied().filter(|&op| unary_is_valid(op, dtype)).for_each(|op| out(a.unary(op)));
        BINARIES.into_iter().filter(|&op| binary_is_valid(op, dtype)).for_each(|op| out(a.binary(op, b)));
        if dtype != DType::Bool && !dtype.is_complex() {
            out(a.mul_add(b, c));
        }
        out(a.eq(b).select(b, c));
        out(a.detach().eq(b).select(c, a));
        for scalar in [Scalar::I64(i64::MIN), Scalar::I64(-1), Scalar::F64(f64::NAN), Scalar::F64(-0.0)] {
            out(a.eq(a.like(scalar)).select(b, builder.scalar(dtype)));
        }
    }
    builder.finish()
}

/// Returns a body with an output for the cast of one dtype to each other.
pub fn casts(dtype: DType) -> Body {
    let builder = BodyBuilder::new();
    {
        let a = builder.input(dtype);
        for target in DType::ALL {
            builder.output(a.to(target), target, OutputPlace::Point);
        }
    }
    builder.finish()
}

/// Returns a body with every reduction of a dtype, independent ones and dependent ones.
pub fn reductions(dtype: DType) -> Body {
    let builder = BodyBuilder::new();
    {
        let a = builder.input(dtype);
        let compute = dtype.compute();
        let greatest = builder.reduce(ReduceOp::Max, a);
        let least = builder.reduce(ReduceOp::Min, a);
        builder.output(greatest, dtype, OutputPlace::Row);
        builder.output(least, dtype, OutputPlace::Row);
        if dtype != DType::Bool {
            let product = builder.reduce(ReduceOp::Product, a);
            let shifted = builder.reduce(ReduceOp::Sum, a - greatest);
            builder.output(product, compute, OutputPlace::Row);
            builder.output(
                shifted + builder.index(Dimension::Inner(0)).to(compute),
                dtype,
                OutputPlace::Point,
            );
        }
    }
    builder.finish()
}

/// Returns the cross entropy of the rows of a first input at the class that a second input specifies.
pub fn cross_entropy(dtype: DType) -> Body {
    let builder = BodyBuilder::new();
    {
        let (x, class) = (builder.input(dtype), builder.input(DType::I64));
        let class = builder.reduce(ReduceOp::Max, class);
        let greatest = maximum(x.detach());
        let shifted = x - greatest.detach();
        let is_class = builder.index(Dimension::Inner(0)).eq(class);
        let at_class = sum(is_class.select(shifted, shifted.like(0.0)));
        builder.output(sum(shifted.exp()).log() - at_class, dtype, OutputPlace::Row);
    }
    builder.finish()
}

/// Returns all kernels: every primitive, cast, reduction and class variant.
pub fn all_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for dtype in compute_dtypes() {
        kernels.push(kernel(format!("primitives_{dtype}"), &primitives(dtype), contiguous(1)));
    }
    for dtype in DType::ALL {
        kernels.push(kernel(format!("casts_{dtype}"), &casts(dtype), strided(2, 0, 1, true)));
        if dtype.is_complex() {
            let body = pointwise(&[dtype, dtype], |x| x[0] + x[1]);
            kernels.push(kernel(format!("sum_{dtype}_vector_2"), &body, contiguous(2)));
            continue;
        }
        for (number, lanes) in [1, 8, 256].into_iter().enumerate() {
            let body = reductions(dtype);
            let class = strided(1 + number as u8 % 2, 1 + number as u8 % 2, lanes, number == 1);
            kernels.push(kernel(format!("reductions_{dtype}_{lanes}"), &body, class));
        }
        for vector in [2, 4, 8] {
            let body = pointwise(&[dtype, dtype], |x| x[0].maximum(x[1]));
            kernels.push(kernel(format!("maximum_{dtype}_vector_{vector}"), &body, contiguous(vector)));
        }
    }
    kernels.extend(composed_kernels());
    kernels
}

/// Kernels of long rows: with an input that is held and one that is not, with vectors in a loop, with the value at one point, and
/// with rows that are read once.
fn long_rows(dtype: DType, short: &str) -> Vec<Kernel> {
    let product = pointwise(&[dtype, dtype], |x| x[0] * x[1] - sum(x[0] * x[1]));
    let log_softmax = of_rows(dtype, OutputPlace::Point, log_softmax);
    let class = Class { vector: 4, held: 3, repeated: 0b10, ..strided(1, 1, 256, true) };
    let mut kernels = vec![
        kernel(format!("product_{short}_long"), &product, held(8192, 8, 16)),
        kernel(format!("log_softmax_{short}_long"), &log_softmax, held(4096, 4, 40)),
        kernel(format!("log_softmax_{short}_shared"), &log_softmax, Class { shared: 8, ..held(2048, 4, 16) }),
        kernel(format!("cross_entropy_{short}_held"), &cross_entropy(dtype), class),
    ];
    for (lanes, vector, vectors) in [(64, 8, 1), (8, 2, 9), (8192, 8, 7)] {
        let class = Class { shifted: true, ..held(lanes, vector, vectors) };
        kernels.push(kernel(format!("log_softmax_{short}_{lanes}_shifted"), &log_softmax, class));
        kernels.push(kernel(format!("product_{short}_{lanes}_shifted"), &product, class));
    }
    for (lanes, vector) in [(256, 8), (64, 1), (2048, 4)] {
        let name = format!("cross_entropy_{short}_{lanes}_online");
        kernels.push(kernel(name, &cross_entropy(dtype), online(lanes, vector)));
    }
    kernels
}

/// Kernels of variances, along rows and columns, and of norms along columns.
fn variances(dtype: DType, short: &str) -> Vec<Kernel> {
    let mut kernels = Vec::new();
    let body = of_rows(dtype, OutputPlace::Row, variance);
    kernels.push(kernel(format!("variance_{short}"), &body, strided(2, 3, 1, true)));
    kernels.push(kernel(format!("variance_{short}_columns"), &body, abreast(64, 8)));
    for (vector, cascade) in [(2, 1), (4, 2), (8, 3)] {
        let class = Class { vector, cascade, ..abreast(8, 128) };
        kernels.push(kernel(format!("variance_{short}_columns_{vector}"), &body, class));
        let class = Class { repeated: 0b10, row_rank: 2, ..class };
        kernels.push(kernel(format!("layer_norm_{short}_columns_{vector}"), &layer_norm(dtype), class));
    }
    for (cascade, class) in [(2, rows(256)), (3, strided(1, 2, 1, false)), (2, abreast(64, 8)), (3, rows(32))]
    {
        let class = Class { cascade, ..class };
        let name = format!("variance_{short}_cascade_{cascade}_{}_{}", class.lanes, class.rows_abreast);
        kernels.push(kernel(name, &body, class));
    }
    kernels.push(kernel(format!("variance_{short}_scalar"), &body, strided(0, 2, 512, false)));
    kernels
}

/// Kernels as operators build them.
pub fn composed_kernels() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    for (dtype, short) in
        [(DType::F32, "f32"), (DType::Bf16, "bf16"), (DType::F16, "f16"), (DType::F64, "f64")]
    {
        let body = of_rows(dtype, OutputPlace::Point, log_softmax);
        let all_lanes: &[u16] = if dtype == DType::F32 { &[1, 2, 4, 32, 64, 1024] } else { &[4, 64] };
        for &lanes in all_lanes {
            kernels.push(kernel(format!("log_softmax_{short}_{lanes}"), &body, rows(lanes)));
        }
        for (lanes, vector, vectors) in [(8, 2, 4), (256, 8, 2), (64, 1, 3), (2048, 4, 2), (4096, 4, 1)] {
            let class = held(lanes, vector, vectors);
            kernels.push(kernel(format!("log_softmax_{short}_{lanes}_held"), &body, class));
        }
        kernels.extend(long_rows(dtype, short));
        let body = pointwise(&[dtype], |x| gelu(x[0]));
        kernels.push(kernel(format!("gelu_{short}"), &body, contiguous(4)));
        if dtype != DType::F64 {
            kernels.push(kernel(format!("layer_norm_{short}"), &layer_norm(dtype), strided(1, 1, 128, true)));
            // The second input is one weight per row.
            for lanes in [32, 4096] {
                let class = Class { vector: 4, held: 3, repeated: 0b10, ..strided(1, 1, lanes, lanes == 32) };
                kernels.push(kernel(format!("layer_norm_{short}_{lanes}_held"), &layer_norm(dtype), class));
            }
            kernels.push(kernel(format!("gelu_{short}_strided"), &body, strided(2, 2, 1, false)));
            let sum = pointwise(&[dtype; 3], |x| x[0] + x[1] * x[2]);
            for (vector, rank) in [(2, 1), (8, 2), (4, 4)] {
                let class = Class { vector, repeated: 0b10, ..strided(rank, 0, 1, true) };
                kernels.push(kernel(format!("sum_{short}_vector_{vector}"), &sum, class));
            }
            for (vector, rank, transposed) in [(1, 2, 1), (2, 4, 2)] {
                let class =
                    Class { vector, transposed, transposed_inputs: 0b101, ..strided(rank, 0, 1, rank == 2) };
                kernels.push(kernel(format!("sum_{short}_turned_{vector}"), &sum, class));
            }
            kernels.extend(variances(dtype, short));
        }
        let body = embedding(dtype, DType::I64);
        kernels.push(kernel(format!("embedding_{short}"), &body, strided(2, 0, 1, true)));
    }
    let flat = BodyBuilder::new();
    {
        let position = flat.index(Dimension::Row(0)) + flat.index(Dimension::Inner(0));
        flat.output(position, DType::I64, OutputPlace::Point);
    }
    let flat = flat.finish();
    let class = Class { lanes: 1, ..rows(1) };
    kernels.push(kernel("positions", &flat, class));
    kernels
}
