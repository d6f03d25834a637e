//! The plain model of a kernel: one point at a time, one value at a time, with its own implementation of arithmetic (32-bit
//! floats through f64, integers through i128). Slow and short, so that a reader can verify it.

use thalweg_ir::host::{Cells, Slice};
use thalweg_ir::{
    Binary, DType, Dimension, Element, ExprId, Geometry, Kernel, Node, OperandGeometry, OutputPlace,
    ReduceOp, Scalar, Unary, bf16, f8e4m3, f8e5m2, f16, with_dtype,
};

/// One value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    Bool(bool),
    /// Of an integer type, within its bounds.
    Int(DType, i128),
    F16(f16),
    Bf16(bf16),
    F8E4m3(f8e4m3),
    F8E5m2(f8e5m2),
    F32(f32),
    F64(f64),
    /// Of a complex type, with parts that its floats represent.
    Complex(DType, f64, f64),
}

impl Value {
    pub fn dtype(self) -> DType {
        match self {
            Self::Bool(_) => DType::Bool,
            Self::Int(dtype, _) => dtype,
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::Bf16,
            Self::F8E4m3(_) => DType::F8E4m3,
            Self::F8E5m2(_) => DType::F8E5m2,
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::Complex(dtype, ..) => dtype,
        }
    }

    /// Returns a complex number of this type, whose parts are rounded.
    fn complex(dtype: DType, re: f64, im: f64) -> Self {
        let part = |value| Self::round(dtype.real(), value).float();
        Self::Complex(dtype, part(re), part(im))
    }

    fn parts(self) -> (f64, f64) {
        match self {
            Self::Complex(_, re, im) => (re, im),
            other => panic!("{other:?} is not complex"),
        }
    }

    /// Equality of bits, but any NaN equals any other.
    pub fn same(self, other: Self) -> bool {
        match (self, other) {
            (Self::F16(a), Self::F16(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Self::Bf16(a), Self::Bf16(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Self::F8E4m3(a), Self::F8E4m3(b)) => a.to_bits() == b.to_bits(),
            (Self::F8E5m2(a), Self::F8E5m2(b)) => {
                a.to_bits() == b.to_bits() || (a.to_f64().is_nan() && b.to_f64().is_nan())
            }
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Self::F64(a), Self::F64(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Self::Complex(a, re, im), Self::Complex(b, other_re, other_im)) => {
                a == b && Self::F64(re).same(Self::F64(other_re)) && Self::F64(im).same(Self::F64(other_im))
            }
            _ => self == other,
        }
    }

    fn bool(self) -> bool {
        match self {
            Self::Bool(value) => value,
            other => panic!("{other:?} is not a bool"),
        }
    }

    fn int(self) -> i128 {
        match self {
            Self::Bool(value) => i128::from(value),
            Self::Int(_, value) => value,
            other => panic!("{other:?} is not an integer"),
        }
    }

    /// Exact for every floating-point type.
    fn float(self) -> f64 {
        match self {
            Self::F16(value) => f64::from(value.to_f32_const()),
            Self::Bf16(value) => f64::from(value.to_f32_const()),
            Self::F8E4m3(value) => value.to_f64(),
            Self::F8E5m2(value) => value.to_f64(),
            Self::F32(value) => f64::from(value),
            Self::F64(value) => value,
            other => panic!("{other:?} is not a floating-point number"),
        }
    }

    /// Returns an integer of this type, wrapped.
    pub fn wrap(dtype: DType, value: i128) -> Self {
        let (lowest, highest) = bounds(dtype);
        Self::Int(dtype, (value - lowest).rem_euclid(highest - lowest + 1) + lowest)
    }

    /// Returns a number of this type, rounded.
    fn round(dtype: DType, value: f64) -> Self {
        match dtype {
            DType::F16 => Self::F16(f16::from_f32_const(value as f32)),
            DType::Bf16 => Self::Bf16(bf16::from_f32_const(value as f32)),
            DType::F8E4m3 => Self::F8E4m3(f8e4m3::from_f64(value)),
            DType::F8E5m2 => Self::F8E5m2(f8e5m2::from_f64(value)),
            DType::F32 => Self::F32(value as f32),
            DType::F64 => Self::F64(value),
            other => panic!("{other} is not a floating-point type"),
        }
    }

    pub fn cast(self, to: DType) -> Self {
        let from = self.dtype();
        if let Self::Complex(dtype, re, im) = self {
            return match to {
                DType::Bool => Self::Bool((re, im) != (0.0, 0.0)),
                to if to.is_complex() => Self::complex(to, re, im),
                to => Self::round(dtype.real(), re).cast(to),
            };
        }
        match (from.is_floating_point(), to) {
            (_, to) if to.is_complex() => Self::complex(to, self.cast(to.real()).float(), 0.0),
            (true, DType::Bool) => Self::Bool(self.float() != 0.0),
            (false, DType::Bool) => Self::Bool(self.int() != 0),
            (true, to) if to.is_integer() => {
                // A narrow integer has the low bits of a wider one, as in PyTorch.
                let (lowest, highest) = bounds(match to {
                    DType::U8 => DType::I64,
                    DType::I8 | DType::I16 | DType::U16 => DType::I32,
                    other => other,
                });
                Self::wrap(to, (self.float() as i128).clamp(lowest, highest))
            }
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
            _ if dtype.is_complex() => Self::complex(dtype, value.to_f64(), 0.0),
            _ => Self::round(dtype, value.to_f64()),
        }
    }
}

/// Returns the lowest and the highest number of an integer type, by PyTorch's name of it.
fn bounds(dtype: DType) -> (i128, i128) {
    let bits =
        |digits: &str| digits.parse::<u32>().unwrap_or_else(|_| panic!("{dtype} is not an integer type"));
    match dtype.name().strip_prefix("uint") {
        Some(digits) => (0, (1 << bits(digits)) - 1),
        None => {
            let half = 1 << (bits(dtype.name().strip_prefix("int").unwrap_or_default()) - 1);
            (-half, half - 1)
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
    if let Value::Complex(_, re, im) = a {
        let re = if op == Unary::Neg { -re } else { re };
        return Value::complex(dtype, re, -im);
    }
    // For these, rounding correctly to f64 and then to f32 is correct rounding to f32.
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
        Unary::Not | Unary::Conj => unreachable!(),
        other => library(other.of_f32().expect("a function"), other.of_f64().expect("a function")),
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
            Binary::Pow | Binary::Atan2 => panic!("{op:?} is not for integers"),
        };
    }
    if dtype.is_complex() {
        return complex_binary(op, a, b);
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
        Binary::Atan2 => match (a, b) {
            (Value::F32(a), Value::F32(b)) => Value::F32(a.atan2(b)),
            _ => Value::F64(x.atan2(y)),
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

/// Each operation on the parts is rounded.
fn complex_binary(op: Binary, a: Value, b: Value) -> Value {
    let dtype = a.dtype();
    let part = |value| Value::round(dtype.real(), value).float();
    let times = |x: f64, y: f64| part(x * y);
    let ((a, b), (c, d)) = (a.parts(), b.parts());
    match op {
        Binary::Equal => Value::Bool(a == c && b == d),
        Binary::Add => Value::complex(dtype, a + c, b + d),
        Binary::Sub => Value::complex(dtype, a - c, b - d),
        Binary::Mul => Value::complex(dtype, times(a, c) - times(b, d), times(a, d) + times(b, c)),
        Binary::Div if c == 0.0 && d == 0.0 => Value::complex(dtype, a / c.abs(), b / d.abs()),
        Binary::Div if c.abs() >= d.abs() => {
            let ratio = part(d / c);
            let scale = part(1.0 / part(c + times(d, ratio)));
            Value::complex(dtype, part(a + times(b, ratio)) * scale, part(b - times(a, ratio)) * scale)
        }
        Binary::Div => {
            let ratio = part(c / d);
            let scale = part(1.0 / part(times(c, ratio) + d));
            Value::complex(dtype, part(times(a, ratio) + b) * scale, part(times(b, ratio) - a) * scale)
        }
        other => panic!("{other:?} is not for complex numbers"),
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
        (ReduceOp::Max, dtype) if dtype.is_integer() => Value::wrap(dtype, bounds(dtype).0),
        (ReduceOp::Min, dtype) if dtype.is_integer() => Value::wrap(dtype, bounds(dtype).1),
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
pub struct Memory {
    dtype: DType,
    /// Storage for the elements, aligned for every dtype.
    words: Vec<u64>,
    length: usize,
}

impl Memory {
    /// Returns memory with these values of one dtype.
    pub fn of(dtype: DType, values: impl Iterator<Item = Value>) -> Self {
        let values: Vec<Value> = values.collect();
        let words = vec![0; (values.len() * dtype.size_bytes()).div_ceil(8)];
        let mut memory = Self { dtype, words, length: values.len() };
        values.into_iter().enumerate().for_each(|(at, value)| memory.set(at, value));
        memory
    }

    fn elements<T: Element>(&self) -> &[T] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }

    #[expect(clippy::useless_conversion, reason = "the parts of one of the complex types are f64")]
    pub fn get(&self, dtype: DType, at: usize) -> Value {
        assert_eq!(dtype, self.dtype, "memory is read as what it holds");
        with_dtype!(dtype,
            bool => Value::Bool(self.elements::<u8>()[at] != 0),
            integer T => Value::Int(dtype, i128::from(self.elements::<T>()[at])),
            reduced T => Value::round(dtype, self.elements::<T>()[at].to_f64()),
            float T => Value::round(dtype, self.elements::<T>()[at].to_f64()),
            complex T => {
                let number = self.elements::<T>()[at];
                Value::Complex(dtype, number.re.into(), number.im.into())
            },
        )
    }

    fn set(&mut self, at: usize, value: Value) {
        assert_eq!(value.dtype(), self.dtype, "memory holds values of one dtype");
        with_dtype!(self.dtype,
            bool => self.elements_mut::<u8>()[at] = u8::from(value.bool()),
            integer T => self.elements_mut::<T>()[at] = value.int().try_into().expect("it is within bounds"),
            reduced T => self.elements_mut::<T>()[at] = T::from_f64(value.float()),
            float T => self.elements_mut::<T>()[at] = value.float() as T,
            complex T => {
                let (re, im) = value.parts();
                self.elements_mut::<T>()[at] = T { re: re as _, im: im as _ };
            },
        );
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn slice(&self) -> Slice<'_> {
        with_dtype!(self.dtype, T => self.elements::<T>().into())
    }

    pub fn cells(&mut self) -> Cells<'_> {
        with_dtype!(self.dtype, T => self.elements_mut::<T>().into())
    }

    /// Returns the elements from `first` on, at most `count` of which may be written.
    pub fn cells_of(&mut self, first: usize, count: usize) -> Cells<'_> {
        with_dtype!(self.dtype, T => (&mut self.elements_mut::<T>()[first..first + count]).into())
    }

    pub fn slice_from(&self, first: usize) -> Slice<'_> {
        with_dtype!(self.dtype, T => self.elements::<T>()[first..].into())
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
    fn place(&self, input: u16) -> usize {
        let OperandGeometry::Strided { row_strides, inner_strides } =
            &self.geometry.operands[usize::from(input)]
        else {
            panic!("a place in a gathered input")
        };
        offset(&self.row, row_strides) + offset(&self.inner, inner_strides)
    }

    fn eval(&self, id: ExprId, known: &mut Vec<Option<Value>>) -> Value {
        if let Some(value) = known[id.index()] {
            return value;
        }
        let body = &self.kernel.body;
        let dtype = body.dtype(id);
        let mut of = |id| self.eval(id, known);
        let value = match body.nodes[id.index()] {
            Node::Constant(value) => Value::scalar(value, dtype),
            Node::Load { input } => self.inputs[usize::from(input)].get(dtype, self.place(input)),
            Node::Place { input } => Value::wrap(DType::I64, self.place(input) as i128),
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
                    _ if dtype.is_integer() => Scalar::I64(bits as i64),
                    _ => Scalar::F64(f64::from_bits(bits)),
                };
                Value::scalar(scalar, dtype)
            }
            Node::Index(Dimension::Row(d)) => Value::wrap(DType::I64, self.row[usize::from(d)].into()),
            Node::Index(Dimension::Inner(d)) => Value::wrap(DType::I64, self.inner[usize::from(d)].into()),
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
                Value::wrap(DType::I64, thalweg_ir::philox::word(seed, subsequence, position).into())
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

/// Returns the values of a lane, combined front to back by runs of 32 on each level but the highest.
fn cascade(op: ReduceOp, start: Value, values: &[Value], levels: u8) -> Value {
    let fold = |run: &[Value]| run.iter().fold(start, |sum, &value| combine(op, sum, value));
    let mut values = values.to_vec();
    for _ in 1..levels {
        values = values.chunks(32).map(fold).collect();
    }
    fold(&values)
}

/// Returns the number of elements before a row from which its lanes are counted: from the last multiple of a vector, in an input
/// that is read point by point.
fn shift(kernel: &Kernel, geometry: &Geometry, row: &[u64]) -> usize {
    let walking = geometry.operands[..kernel.body.inputs.len()].iter().find_map(|operand| match operand {
        OperandGeometry::Strided { row_strides, inner_strides } if inner_strides[..] == [1] => {
            Some(row_strides)
        }
        _ => None,
    });
    let start = walking.map_or(0, |strides| offset(row, strides));
    if kernel.class.shifted { start % usize::from(kernel.class.vector) } else { 0 }
}

/// Computes all outputs of the kernel.
pub fn run(kernel: &Kernel, geometry: &Geometry, scalars: &[u64], inputs: &[Memory], outputs: &mut [Memory]) {
    let body = &kernel.body;
    let points = coordinates(&geometry.inner_shape);
    for row in coordinates(&geometry.row_shape) {
        let inner = vec![0; geometry.inner_shape.len()];
        let shift = shift(kernel, geometry, &row);
        let mut place = Site { kernel, geometry, scalars, inputs, row, inner, reduced: Vec::new() };
        for reduction in &body.reductions {
            let dtype = body.dtype(reduction.value);
            let count = usize::from(kernel.class.lanes);
            let mut values = vec![Vec::new(); count];
            for (number, point) in points.iter().enumerate() {
                place.inner.clone_from(point);
                values[(number + shift) % count].push(place.value(reduction.value));
            }
            let start = neutral(reduction.op, dtype);
            let mut lanes: Vec<_> = values
                .iter()
                .map(|values| cascade(reduction.op, start, values, kernel.class.cascade))
                .collect();
            let mut step = 1;
            while step < lanes.len() {
                for lane in (0..lanes.len()).step_by(2 * step) {
                    lanes[lane] = combine(reduction.op, lanes[lane], lanes[lane + step]);
                }
                step *= 2;
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
            for point in if output.place == OutputPlace::Point { points.as_slice() } else { &once } {
                place.inner.clone_from(point);
                let at = offset(&place.row, row_strides) + offset(point, inner_strides);
                outputs[number].set(at, place.value(output.value).cast(output.dtype));
            }
        }
    }
}
