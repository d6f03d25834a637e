//! The plain model of a kernel: one point at a time, one value at a time, with arithmetic written anew (32-bit floats through
//! f64, integers through i128). Slow and short, so that it can be seen to be right.

use std::cell::Cell;

use thalweg_ir::host::{Cells, Slice};
use thalweg_ir::{
    Binary, DType, Dimension, ExprId, Geometry, Kernel, Node, OperandGeometry, Place, ReduceOp, Scalar,
    Unary, bf16, f16,
};

/// One value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    Bool(bool),
    U8(u8),
    I32(i32),
    I64(i64),
    F16(f16),
    Bf16(bf16),
    F32(f32),
    F64(f64),
}

impl Value {
    pub fn dtype(self) -> DType {
        match self {
            Self::Bool(_) => DType::Bool,
            Self::U8(_) => DType::U8,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::Bf16,
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
        }
    }

    /// Equality of bits, but any NaN equals any other.
    pub fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::F16(a), Self::F16(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Self::Bf16(a), Self::Bf16(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Self::F64(a), Self::F64(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            _ => self == other,
        }
    }

    fn bool(self) -> bool {
        match self {
            Self::Bool(value) => value,
            other => panic!("{other:?} is no bool"),
        }
    }

    fn int(self) -> i128 {
        match self {
            Self::Bool(value) => i128::from(value),
            Self::U8(value) => i128::from(value),
            Self::I32(value) => i128::from(value),
            Self::I64(value) => i128::from(value),
            other => panic!("{other:?} is no integer"),
        }
    }

    /// Exact for every floating-point type.
    fn float(self) -> f64 {
        match self {
            Self::F16(value) => f64::from(value.to_f32_const()),
            Self::Bf16(value) => f64::from(value.to_f32_const()),
            Self::F32(value) => f64::from(value),
            Self::F64(value) => value,
            other => panic!("{other:?} is no floating-point number"),
        }
    }

    /// An integer of this type, wrapped.
    fn wrap(dtype: DType, value: i128) -> Self {
        match dtype {
            DType::U8 => Self::U8(value as u8),
            DType::I32 => Self::I32(value as i32),
            DType::I64 => Self::I64(value as i64),
            other => panic!("{other} is no integer type"),
        }
    }

    /// A number of this type, rounded.
    fn round(dtype: DType, value: f64) -> Self {
        match dtype {
            DType::F16 => Self::F16(f16::from_f32_const(value as f32)),
            DType::Bf16 => Self::Bf16(bf16::from_f32_const(value as f32)),
            DType::F32 => Self::F32(value as f32),
            DType::F64 => Self::F64(value),
            other => panic!("{other} is no floating-point type"),
        }
    }

    pub fn cast(self, to: DType) -> Self {
        let from = self.dtype();
        let (lowest, highest) = match to {
            DType::U8 => (0, 255),
            DType::I32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
            _ => (i128::from(i64::MIN), i128::from(i64::MAX)),
        };
        match (from.is_floating_point(), to) {
            (true, DType::Bool) => Self::Bool(self.float() != 0.0),
            (false, DType::Bool) => Self::Bool(self.int() != 0),
            (true, to) if to.is_integer() => Self::wrap(to, (self.float() as i128).clamp(lowest, highest)),
            (false, to) if to.is_integer() => Self::wrap(to, self.int()),
            (true, to) => Self::round(to, self.float()),
            (false, DType::F64) => Self::F64(self.int() as f64),
            (false, to) => Self::round(to, f64::from(self.int() as f32)),
        }
    }

    pub fn scalar(value: Scalar, dtype: DType) -> Self {
        match dtype {
            DType::Bool => Self::Bool(value.to_f64() != 0.0),
            _ if dtype.is_integer() => Self::wrap(dtype, i128::from(value.to_i64())),
            _ => Self::round(dtype, value.to_f64()),
        }
    }
}

fn unary(op: Unary, a: Value) -> Value {
    let dtype = a.dtype();
    if op == Unary::Not {
        return Value::Bool(!a.bool());
    }
    if dtype.is_integer() {
        let value = if op == Unary::Neg { -a.int() } else { a.int().abs() };
        return Value::wrap(dtype, value);
    }
    // Correctly rounded in f64 and then in f32 is correctly rounded in f32 for these.
    let exact = |f: fn(f64) -> f64| Value::round(dtype, f(a.float()));
    let library = |narrow: fn(f32) -> f32, wide: fn(f64) -> f64| match a {
        Value::F32(a) => Value::F32(narrow(a)),
        Value::F64(a) => Value::F64(wide(a)),
        other => panic!("{other:?} has no arithmetic"),
    };
    match op {
        Unary::Neg => exact(|a| -a),
        Unary::Abs => exact(f64::abs),
        Unary::Sqrt => exact(f64::sqrt),
        Unary::Floor => exact(f64::floor),
        Unary::Ceil => exact(f64::ceil),
        Unary::Trunc => exact(f64::trunc),
        Unary::Round => exact(f64::round_ties_even),
        Unary::Exp => library(f32::exp, f64::exp),
        Unary::Expm1 => library(f32::exp_m1, f64::exp_m1),
        Unary::Log => library(f32::ln, f64::ln),
        Unary::Log1p => library(f32::ln_1p, f64::ln_1p),
        Unary::Sin => library(f32::sin, f64::sin),
        Unary::Cos => library(f32::cos, f64::cos),
        Unary::Tanh => library(f32::tanh, f64::tanh),
        Unary::Erf => library(libm::erff, libm::erf),
        Unary::Not => unreachable!(),
    }
}

fn binary(op: Binary, a: Value, b: Value) -> Value {
    let dtype = a.dtype();
    if dtype == DType::Bool {
        let (a, b) = (a.bool(), b.bool());
        return Value::Bool(match op {
            Binary::And => a && b,
            Binary::Or => a || b,
            Binary::Xor => a != b,
            Binary::Equal => a == b,
            Binary::Less => !a && b,
            Binary::LessEqual => !a || b,
            Binary::Max => a || b,
            Binary::Min => a && b,
            other => panic!("{other:?} is not for bools"),
        });
    }
    if dtype.is_integer() {
        let (a, b) = (a.int(), b.int());
        let wrap = |value| Value::wrap(dtype, value);
        return match op {
            Binary::Add => wrap(a + b),
            Binary::Sub => wrap(a - b),
            Binary::Mul => wrap(a.wrapping_mul(b)),
            Binary::Div => wrap(a.checked_div(b).unwrap_or(0)),
            Binary::Rem => wrap(a.checked_rem(b).unwrap_or(0)),
            Binary::Max => wrap(a.max(b)),
            Binary::Min => wrap(a.min(b)),
            Binary::And => wrap(a & b),
            Binary::Or => wrap(a | b),
            Binary::Xor => wrap(a ^ b),
            Binary::Equal => Value::Bool(a == b),
            Binary::Less => Value::Bool(a < b),
            Binary::LessEqual => Value::Bool(a <= b),
            Binary::Pow => panic!("Pow is not for integers"),
        };
    }
    let (x, y) = (a.float(), b.float());
    let nan = x.is_nan() || y.is_nan();
    let round = |value| Value::round(dtype, value);
    match op {
        Binary::Add => round(x + y),
        Binary::Sub => round(x - y),
        Binary::Mul => round(x * y),
        Binary::Div => round(x / y),
        Binary::Rem => round(x % y),
        Binary::Pow => match (a, b) {
            (Value::F32(a), Value::F32(b)) => Value::F32(a.powf(b)),
            _ => Value::F64(x.powf(y)),
        },
        Binary::Max | Binary::Min if nan => round(f64::NAN),
        Binary::Max => round(if x > y { x } else { y }),
        Binary::Min => round(if x < y { x } else { y }),
        Binary::Equal => Value::Bool(x == y),
        Binary::Less => Value::Bool(x < y),
        Binary::LessEqual => Value::Bool(x <= y),
        Binary::And | Binary::Or | Binary::Xor => panic!("{op:?} is not for floats"),
    }
}

fn fma(a: Value, b: Value, c: Value) -> Value {
    match (a, b, c) {
        (Value::F32(a), Value::F32(b), Value::F32(c)) => Value::F32(a.mul_add(b, c)),
        (Value::F64(a), Value::F64(b), Value::F64(c)) => Value::F64(a.mul_add(b, c)),
        _ => Value::wrap(a.dtype(), a.int().wrapping_mul(b.int()).wrapping_add(c.int())),
    }
}

fn neutral(op: ReduceOp, dtype: DType) -> Value {
    match (op, dtype) {
        (ReduceOp::Sum, _) => Value::scalar(Scalar::I64(0), dtype),
        (ReduceOp::Product, _) => Value::scalar(Scalar::I64(1), dtype),
        (ReduceOp::Max, DType::Bool) => Value::Bool(false),
        (ReduceOp::Min, DType::Bool) => Value::Bool(true),
        (ReduceOp::Max, _) => Value::F64(f64::NEG_INFINITY).cast(dtype),
        (ReduceOp::Min, _) => Value::F64(f64::INFINITY).cast(dtype),
    }
}

fn combine(op: ReduceOp, a: Value, b: Value) -> Value {
    let op = match op {
        ReduceOp::Sum => Binary::Add,
        ReduceOp::Product => Binary::Mul,
        ReduceOp::Max => Binary::Max,
        ReduceOp::Min => Binary::Min,
    };
    binary(op, a, b)
}

/// Typed memory. Bools are bytes.
#[derive(Clone, Debug)]
pub enum Memory {
    U8(Vec<u8>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// Evaluates an expression with the vector of a memory.
macro_rules! each_memory {
    ($memory:expr, $elements:ident => $result:expr) => {
        match $memory {
            Memory::U8($elements) => $result,
            Memory::I32($elements) => $result,
            Memory::I64($elements) => $result,
            Memory::F16($elements) => $result,
            Memory::Bf16($elements) => $result,
            Memory::F32($elements) => $result,
            Memory::F64($elements) => $result,
        }
    };
}

impl Memory {
    /// Memory that holds these values of one dtype.
    pub fn of(dtype: DType, values: impl Iterator<Item = Value>) -> Self {
        macro_rules! collect {
            ($($variant:ident)*) => {
                match dtype {
                    $(DType::$variant => Self::$variant(
                        values.map(|v| if let Value::$variant(v) = v { v } else { panic!("{v:?}") }).collect(),
                    ),)*
                    DType::Bool => Self::U8(values.map(|v| u8::from(v.bool())).collect()),
                }
            };
        }
        collect!(U8 I32 I64 F16 Bf16 F32 F64)
    }

    pub fn get(&self, dtype: DType, at: usize) -> Value {
        match self {
            Self::U8(elements) if dtype == DType::Bool => Value::Bool(elements[at] != 0),
            Self::U8(elements) => Value::U8(elements[at]),
            Self::I32(elements) => Value::I32(elements[at]),
            Self::I64(elements) => Value::I64(elements[at]),
            Self::F16(elements) => Value::F16(elements[at]),
            Self::Bf16(elements) => Value::Bf16(elements[at]),
            Self::F32(elements) => Value::F32(elements[at]),
            Self::F64(elements) => Value::F64(elements[at]),
        }
    }

    fn set(&mut self, at: usize, value: Value) {
        match (self, value) {
            (Self::U8(elements), Value::Bool(value)) => elements[at] = u8::from(value),
            (Self::U8(elements), Value::U8(value)) => elements[at] = value,
            (Self::I32(elements), Value::I32(value)) => elements[at] = value,
            (Self::I64(elements), Value::I64(value)) => elements[at] = value,
            (Self::F16(elements), Value::F16(value)) => elements[at] = value,
            (Self::Bf16(elements), Value::Bf16(value)) => elements[at] = value,
            (Self::F32(elements), Value::F32(value)) => elements[at] = value,
            (Self::F64(elements), Value::F64(value)) => elements[at] = value,
            (memory, value) => panic!("{value:?} into {memory:?}"),
        }
    }

    pub fn len(&self) -> usize {
        each_memory!(self, elements => elements.len())
    }

    pub fn slice(&self) -> Slice<'_> {
        each_memory!(self, elements => Slice::from(elements.as_slice()))
    }

    pub fn cells(&mut self) -> Cells<'_> {
        each_memory!(self, elements => Cells::from(Cell::from_mut(elements.as_mut_slice()).as_slice_of_cells()))
    }
}

/// One row of a kernel, or one point of it.
struct Site<'m> {
    kernel: &'m Kernel,
    geometry: &'m Geometry,
    scalars: &'m [u64],
    inputs: &'m [Memory],
    row: Vec<u64>,
    inner: Vec<u64>,
    reduced: Vec<Value>,
}

fn offset(coordinates: &[u64], strides: &[u64]) -> usize {
    coordinates.iter().zip(strides).map(|(c, s)| c * s).sum::<u64>() as usize
}

impl Site<'_> {
    fn eval(&self, id: ExprId, known: &mut Vec<Option<Value>>) -> Value {
        if let Some(value) = known[id.index()] {
            return value;
        }
        let body = &self.kernel.body;
        let dtype = body.dtype(id);
        let mut of = |id| self.eval(id, known);
        let value = match body.nodes[id.index()] {
            Node::Constant(value) => Value::scalar(value, dtype),
            Node::Load { input } => {
                let OperandGeometry::Strided { row_strides, inner_strides } =
                    &self.geometry.operands[usize::from(input)]
                else {
                    panic!("a load of a gathered input")
                };
                let at = offset(&self.row, row_strides) + offset(&self.inner, inner_strides);
                self.inputs[usize::from(input)].get(dtype, at)
            }
            Node::Gather { input, index, guard, otherwise } => {
                if of(guard).bool() {
                    self.inputs[usize::from(input)].get(dtype, of(index).int() as usize)
                } else {
                    Value::scalar(otherwise, dtype)
                }
            }
            Node::Scalar { slot } => {
                let bits = self.scalars[usize::from(slot)];
                let scalar = match dtype {
                    DType::Bool => Scalar::Bool(bits == 1),
                    DType::I64 => Scalar::I64(bits as i64),
                    _ => Scalar::F64(f64::from_bits(bits)),
                };
                Value::scalar(scalar, dtype)
            }
            Node::Index(Dimension::Row(d)) => Value::I64(self.row[usize::from(d)] as i64),
            Node::Index(Dimension::Inner(d)) => Value::I64(self.inner[usize::from(d)] as i64),
            Node::Reduced { reduction } => self.reduced[usize::from(reduction)],
            Node::Unary(op, a) => unary(op, of(a)),
            Node::Binary(op, a, b) => binary(op, of(a), of(b)),
            Node::Fma(a, b, c) => fma(of(a), of(b), of(c)),
            Node::Select(a, b, c) => {
                if of(a).bool() {
                    of(b)
                } else {
                    of(c)
                }
            }
            Node::Random(seed, subsequence, position) => {
                let [seed, subsequence, position] =
                    [seed, subsequence, position].map(|id| of(id).int() as u64);
                Value::I64(thalweg_ir::philox::word(seed, subsequence, position).into())
            }
            Node::Cast(a) => of(a).cast(dtype),
            Node::Detach(a) => of(a),
        };
        known[id.index()] = Some(value);
        value
    }

    fn value(&self, id: ExprId) -> Value {
        self.eval(id, &mut vec![None; self.kernel.body.nodes.len()])
    }
}

/// Every coordinate of a shape, row-major.
pub fn coordinates(shape: &[u64]) -> Vec<Vec<u64>> {
    shape.iter().fold(vec![Vec::new()], |prefixes, &extent| {
        prefixes
            .iter()
            .flat_map(|prefix| (0..extent).map(move |c| prefix.iter().copied().chain([c]).collect()))
            .collect()
    })
}

/// The values of a lane, combined front to back by runs of 32 on each level but the highest.
fn cascade(op: ReduceOp, start: Value, values: &[Value], levels: u8) -> Value {
    let fold = |run: &[Value]| run.iter().fold(start, |sum, &value| combine(op, sum, value));
    let mut values = values.to_vec();
    for _ in 1..levels {
        values = values.chunks(32).map(fold).collect();
    }
    fold(&values)
}

/// What the kernel writes.
pub fn run(kernel: &Kernel, geometry: &Geometry, scalars: &[u64], inputs: &[Memory], outputs: &mut [Memory]) {
    let body = &kernel.body;
    let points = coordinates(&geometry.inner_shape);
    for row in coordinates(&geometry.row_shape) {
        let inner = vec![0; geometry.inner_shape.len()];
        let mut place = Site { kernel, geometry, scalars, inputs, row, inner, reduced: Vec::new() };
        for reduction in &body.reductions {
            let dtype = body.dtype(reduction.value);
            let count = usize::from(kernel.class.lanes);
            let mut values = vec![Vec::new(); count];
            for (number, point) in points.iter().enumerate() {
                place.inner.clone_from(point);
                values[number % count].push(place.value(reduction.value));
            }
            let start = neutral(reduction.op, dtype);
            let mut lanes: Vec<_> = values
                .iter()
                .map(|values| cascade(reduction.op, start, values, kernel.class.cascade))
                .collect();
            let mut step = lanes.len() / 2;
            while step > 0 {
                for lane in 0..step {
                    lanes[lane] = combine(reduction.op, lanes[lane], lanes[lane + step]);
                }
                step /= 2;
            }
            place.reduced.push(lanes[0]);
        }
        for (number, output) in body.outputs.iter().enumerate() {
            let OperandGeometry::Strided { row_strides, inner_strides } =
                &geometry.operands[body.inputs.len() + number]
            else {
                panic!("a gathered output")
            };
            let once = [vec![0; geometry.inner_shape.len()]];
            for point in if output.place == Place::Point { points.as_slice() } else { &once } {
                place.inner.clone_from(point);
                let at = offset(&place.row, row_strides) + offset(point, inner_strides);
                outputs[number].set(at, place.value(output.value).cast(output.dtype));
            }
        }
    }
}
