//! Random kernels with random launches. A case is read from a *tape* of numbers, which the property-testing library shrinks.
//! After the end of the tape every choice is the first, so that shorter tapes are simpler cases.

use proptest::prelude::*;
use thalweg_ir::{
    Binary, BodyBuilder, Class, DType, Dimension, Dimensions, Geometry, InputKind, Kernel, Node, Operand,
    OperandGeometry, OutputPlace, ReduceOp, Scalar, Unary, Value as Expr, bf16, f8e4m3, f8e5m2, f16,
};

use crate::model::{Memory, Value};

/// Choices, one after the other.
pub struct Tape<'t> {
    rest: std::slice::Iter<'t, u32>,
}

impl<'t> Tape<'t> {
    pub fn new(choices: &'t [u32]) -> Self {
        Self { rest: choices.iter() }
    }

    fn next(&mut self) -> u32 {
        self.rest.next().copied().unwrap_or(0)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// True one time in `n`, and never after the tape's end.
    fn rarely(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }
}

/// Returns a tape of a case.
pub fn tapes() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..160)
}

/// A kernel with everything that a launch needs.
#[derive(Debug)]
pub struct Case {
    pub kernel: Kernel,
    pub geometry: Geometry,
    pub scalars: Vec<u64>,
    pub inputs: Vec<Memory>,
    /// The outputs before the launch.
    pub outputs: Vec<Memory>,
    /// The input that the first output overwrites.
    pub in_place: Option<usize>,
}

/// An expression, and whether it differs from point to point.
type Entry<'b> = (Expr<'b>, bool);

struct Generator<'b, 't> {
    builder: &'b BodyBuilder,
    tape: &'b mut Tape<'t>,
    pool: Vec<Entry<'b>>,
    has_inner: bool,
}

/// Returns a case of a tape.
pub fn case(choices: &[u32]) -> Case {
    let mut tape = Tape::new(choices);
    let space = Space::new(&mut tape);
    let mut case = space.case(&mut tape, &[]);
    case.in_place = in_place(&mut tape, &case.kernel, &mut case.geometry, &space.shape);
    fill(&mut case, &mut tape);
    case
}

/// Two cases over one space. The second may read the operands or the results of the first.
pub struct Pair {
    pub first: Case,
    pub second: Case,
    /// For each input of the second case, the operand of the first case that it is, if any. Operands are numbered by inputs first,
    /// then outputs.
    pub shared: Vec<Option<usize>>,
    /// The outputs of the first case that are read afterwards, too.
    pub kept: Vec<bool>,
}

/// Returns a pair of a tape.
pub fn pair(choices: &[u32]) -> Pair {
    let mut tape = Tape::new(choices);
    let space = Space::new(&mut tape);
    let mut first = space.case(&mut tape, &[]);
    let body = &first.kernel.body;
    let inputs = body.inputs.iter().map(|input| (input.dtype, input.kind == InputKind::Strided));
    let operands: Vec<(DType, bool)> =
        inputs.chain(body.outputs.iter().map(|output| (output.dtype, true))).collect();
    let written: Vec<DType> = body.outputs.iter().map(|output| output.dtype).collect();
    let kept = written.iter().map(|_| tape.below(2) == 0).collect();
    let mut second = space.case(&mut tape, &written);
    let mut shared = Vec::new();
    for (number, input) in second.kernel.body.inputs.iter().enumerate() {
        let fits =
            |&operand: &usize| input.kind == InputKind::Strided && operands[operand] == (input.dtype, true);
        let candidates: Vec<usize> = (0..operands.len()).rev().filter(fits).collect();
        let place = Node::Place { input: number as u16 };
        let has_places = second.kernel.body.nodes.contains(&place);
        if candidates.is_empty() || has_places || tape.rarely(5) {
            shared.push(None);
            continue;
        }
        let operand = tape.pick(&candidates);
        let mut geometry = first.geometry.operands[operand].clone();
        if let OperandGeometry::Strided { inner_strides, .. } = &mut geometry {
            inner_strides.resize(second.geometry.inner_shape.len(), 0);
        }
        second.geometry.operands[number] = geometry;
        shared.push(Some(operand));
    }
    fill(&mut first, &mut tape);
    fill(&mut second, &mut tape);
    Pair { first, second, shared, kept }
}

/// An iteration space, with the class of its kernels.
struct Space {
    class: Class,
    shape: Vec<u64>,
}

impl Space {
    fn new(tape: &mut Tape<'_>) -> Self {
        let (row_rank, inner_rank) = (tape.below(4), tape.below(3));
        let class = Class {
            lanes: tape.pick(&[1, 2, 32, 256, 1024, 4096]),
            cascade: tape.pick(&[1, 2, 3]),
            ..Class::new(row_rank as u8, inner_rank as u8)
        };
        Self { class, shape: shape(tape, row_rank + inner_rank) }
    }

    /// Returns a case without memory, one of whose inputs usually has one of these dtypes.
    fn case(&self, tape: &mut Tape<'_>, dtypes: &[DType]) -> Case {
        let Self { class, shape } = self;
        let (row_rank, inner_rank) = (usize::from(class.row_rank), usize::from(class.inner_rank));
        let (row_shape, inner_shape) = shape.split_at(row_rank);
        let builder = BodyBuilder::new();
        let (scalars, gathered) = body(&builder, tape, (row_rank, inner_rank), dtypes);
        let kernel = Kernel { name: "case".into(), body: builder.finish(), class: *class };
        let mut geometry = Geometry {
            row_shape: Dimensions::from_slice(row_shape),
            inner_shape: Dimensions::from_slice(inner_shape),
            operands: Vec::new(),
        };
        for input in &kernel.body.inputs {
            geometry.operands.push(match input.kind {
                InputKind::Gathered => OperandGeometry::Gathered { elements: gathered },
                InputKind::Strided => {
                    let strides = input_strides(tape, shape);
                    strided(&strides, row_rank, true)
                }
            });
        }
        for output in &kernel.body.outputs {
            let at_points = output.place == OutputPlace::Point;
            let shape = if at_points { &shape[..] } else { row_shape };
            let strides = dense_strides(tape, shape);
            geometry.operands.push(strided(&strides, row_rank, at_points));
        }
        Case { kernel, geometry, scalars, inputs: Vec::new(), outputs: Vec::new(), in_place: None }
    }
}

/// Gives a case its memory.
fn fill(case: &mut Case, tape: &mut Tape<'_>) {
    let Case { kernel, geometry, inputs, outputs, .. } = case;
    let body = &kernel.body;
    let mut memory = |operand: usize, dtype| {
        let spare = tape.below(3);
        let mut pattern = Pattern { state: tape.next().into() };
        let length = geometry.span(operand) as usize + spare;
        Memory::of(dtype, (0..length).map(|_| pattern.value(dtype)))
    };
    *inputs = body.inputs.iter().enumerate().map(|(n, input)| memory(n, input.dtype)).collect();
    let count = body.inputs.len();
    *outputs = body.outputs.iter().enumerate().map(|(n, output)| memory(count + n, output.dtype)).collect();
}

/// Extents of every kind whose product stays small: 0, 1, less and more than a block.
fn shape(tape: &mut Tape<'_>, rank: usize) -> Vec<u64> {
    let mut room = 3000;
    (0..rank)
        .map(|_| {
            let extent = match tape.pick(&[2, 3, 1, 7, 33, 100, 515, 1030, 0]) {
                0 if tape.below(3) == 0 => 0,
                extent => extent.clamp(1, room),
            };
            room /= extent.max(1);
            extent
        })
        .collect()
}

fn strided(strides: &[u64], row_rank: usize, at_points: bool) -> OperandGeometry {
    let (row, inner) = strides.split_at(row_rank);
    OperandGeometry::Strided {
        row_strides: Dimensions::from_slice(row),
        inner_strides: if at_points { Dimensions::from_slice(inner) } else { Dimensions::new() },
    }
}

/// Returns strides under which no two elements overlap: any order of dimensions, with or without gaps.
fn dense_strides(tape: &mut Tape<'_>, shape: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..shape.len()).rev().collect();
    if tape.rarely(3) {
        for dimension in 1..order.len() {
            let other = tape.below(dimension + 1);
            order.swap(dimension, other);
        }
    }
    let mut strides = vec![0; shape.len()];
    let mut next = 1;
    for dimension in order {
        if tape.rarely(6) {
            next += 1 + tape.below(3) as u64;
        }
        strides[dimension] = next;
        next *= shape[dimension].max(1);
    }
    strides
}

/// Returns strides of an input: those of an output, or with repeated dimensions, or small ones at random.
fn input_strides(tape: &mut Tape<'_>, shape: &[u64]) -> Vec<u64> {
    let mut strides = dense_strides(tape, shape);
    for stride in &mut strides {
        match tape.below(8) {
            5 => *stride = 0,
            6 => *stride = tape.below(4) as u64,
            _ => {}
        }
    }
    strides
}

/// Sometimes makes the first output overwrite an input of the same dtype and layout.
fn in_place(tape: &mut Tape<'_>, kernel: &Kernel, geometry: &mut Geometry, shape: &[u64]) -> Option<usize> {
    let body = &kernel.body;
    let output = body.outputs.first().filter(|output| output.place == OutputPlace::Point)?;
    let fits = |input: &thalweg_ir::Input| input.dtype == output.dtype && input.kind == InputKind::Strided;
    let input = body.inputs.iter().position(fits).filter(|_| tape.rarely(2))?;
    let strides = strided(&dense_strides(tape, shape), usize::from(kernel.class.row_rank), true);
    geometry.operands[input] = strides.clone();
    geometry.operands[body.inputs.len()] = strides;
    Some(input)
}

/// Fills a body, and returns the bits of its scalars and the number of elements of gathered inputs.
fn body(
    builder: &BodyBuilder,
    tape: &mut Tape<'_>,
    (row_rank, inner_rank): (usize, usize),
    dtypes: &[DType],
) -> (Vec<u64>, u64) {
    let mut scalars = Vec::new();
    let gathered = 1 + tape.below(40) as u64;
    let mut generator = Generator { builder, tape, pool: Vec::new(), has_inner: inner_rank > 0 };
    for _ in 0..1 + generator.tape.below(3) {
        let dtype = match dtypes.is_empty() || generator.tape.rarely(4) {
            true => generator.dtype(),
            false => generator.tape.pick(dtypes),
        };
        let value = builder.input(dtype);
        let has_inner = generator.has_inner;
        generator.pool.push((value, has_inner));
    }
    for _ in 0..generator.tape.below(3) {
        let dtype = generator.tape.pick(&[DType::F32, DType::F64, DType::I64, DType::Bool]);
        let mut pattern = Pattern { state: generator.tape.next().into() };
        scalars.push(match pattern.value(dtype) {
            Value::Bool(value) => Scalar::Bool(value).to_bits(),
            Value::Int(_, value) => Scalar::I64(value as i64).to_bits(),
            Value::F32(value) => Scalar::F64(value.into()).to_bits(),
            Value::F64(value) => Scalar::F64(value).to_bits(),
            other => unreachable!("{other:?} is not a scalar"),
        });
        let value = builder.scalar(dtype);
        generator.pool.push((value, false));
    }
    if generator.tape.rarely(10) {
        let (dtype, has_inner) = (generator.dtype(), generator.has_inner);
        generator.pool.push((builder.place(dtype), has_inner));
    }
    for dimension in 0..row_rank + inner_rank {
        if generator.tape.rarely(10) {
            let (dimension, at_points) = match dimension.checked_sub(row_rank) {
                None => (Dimension::Row(dimension as u8), false),
                Some(inner) => (Dimension::Inner(inner as u8), true),
            };
            generator.pool.push((builder.index(dimension), at_points));
        }
    }
    for _ in 0..1 + generator.tape.below(4) {
        for _ in 0..generator.tape.below(6) {
            generator.expression(gathered);
        }
        if generator.tape.below(2) == 0 {
            generator.reduction();
        }
    }
    generator.outputs();
    (scalars, gathered)
}

impl<'b> Generator<'b, '_> {
    fn dtype(&mut self) -> DType {
        if self.tape.rarely(8) { DType::F32 } else { self.tape.pick(&DType::ALL) }
    }

    /// Returns a value, usually one of the most recent.
    fn any(&mut self) -> Entry<'b> {
        let back = self.tape.below(self.pool.len());
        self.pool[self.pool.len() - 1 - back]
    }

    /// Returns a value of a dtype.
    fn of(&mut self, dtype: DType) -> Entry<'b> {
        if self.tape.rarely(8) {
            let value = match self.tape.below(4) {
                0 => Scalar::I64(self.tape.below(9) as i64 - 4),
                1 => Scalar::F64(self.tape.below(100) as f64 / 8.0 - 5.0),
                2 => Scalar::Bool(self.tape.below(2) == 1),
                _ => self.tape.pick(&[f64::NAN, f64::INFINITY, -0.0, 1e300]).into(),
            };
            return (self.builder.constant(value, dtype), false);
        }
        let (value, at_points) = self.any();
        (value.to(dtype), at_points)
    }

    /// Returns a value of a dtype that has arithmetic.
    fn number(&mut self) -> Entry<'b> {
        let (value, at_points) = self.any();
        match value.dtype() {
            DType::Bool => (value.to(DType::I32), at_points),
            dtype if dtype.is_complex() => (value.to(dtype.real()), at_points),
            dtype => (value.to(dtype.compute()), at_points),
        }
    }

    /// Adds an expression.
    fn expression(&mut self, gathered: u64) {
        let entry = match self.tape.below(10) {
            0..4 => self.binary(),
            4..6 => self.unary(),
            6 => {
                let (a, at_a) = self.number();
                let ((b, at_b), (c, at_c)) = (self.of(a.dtype()), self.of(a.dtype()));
                (a.mul_add(b, c), at_a || at_b || at_c)
            }
            7 => {
                let (condition, at_condition) = self.of(DType::Bool);
                let (a, at_a) = self.any();
                let (b, at_b) = self.of(a.dtype());
                (condition.select(a, b), at_condition || at_a || at_b)
            }
            8 => {
                let dtype = self.dtype();
                let (value, at_points) = self.any();
                if dtype == value.dtype() {
                    (value.detach(), at_points)
                } else {
                    (value.to(dtype), at_points)
                }
            }
            _ => self.gather(gathered),
        };
        self.pool.push(entry);
    }

    fn unary(&mut self) -> Entry<'b> {
        let (value, at_points) = self.any();
        if value.dtype() == DType::Bool {
            return (value.logical_not(), at_points);
        }
        let value = value.to(value.dtype().compute());
        let integer = [Unary::Neg, Unary::Abs];
        let complex = [Unary::Neg, Unary::Conj];
        let float: Vec<Unary> =
            Unary::ALL.iter().copied().filter(|op| !matches!(op, Unary::Not | Unary::Conj)).collect();
        let op = self.tape.pick(match value.dtype() {
            dtype if dtype.is_integer() => &integer[..],
            dtype if dtype.is_complex() => &complex,
            _ => &float,
        });
        (value.unary(op), at_points)
    }

    fn binary(&mut self) -> Entry<'b> {
        let every = [Binary::Max, Binary::Min, Binary::Equal, Binary::Less, Binary::LessEqual];
        let numbers = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Rem];
        let bits = [Binary::And, Binary::Or, Binary::Xor];
        let (a, at_a) = self.any();
        let a = a.to(a.dtype().compute());
        let (b, at_b) = self.of(a.dtype());
        let op = match a.dtype() {
            DType::Bool => self.tape.pick(&[&every[..], &bits].concat()),
            dtype if dtype.is_integer() => self.tape.pick(&[&numbers[..], &every, &bits].concat()),
            dtype if dtype.is_complex() => self.tape.pick(&[&numbers[..4], &[Binary::Equal]].concat()),
            _ => self.tape.pick(&[&numbers[..], &every, &[Binary::Pow, Binary::Atan2]].concat()),
        };
        (a.binary(op, b), at_a || at_b)
    }

    fn gather(&mut self, elements: u64) -> Entry<'b> {
        let (index, at_points) = self.of(DType::I64);
        let dtype = self.dtype();
        let input = self.builder.gathered_input(dtype);
        let index = index.binary(Binary::Rem, (2 * elements as i64).value(index));
        let guard = index.ge(0i64).and(index.lt(elements as i64));
        (self.builder.gather(input, index, guard, Scalar::F64(2.5)), at_points)
    }

    fn reduction(&mut self) {
        let op = self.tape.pick(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Product]);
        let value = match op {
            ReduceOp::Sum | ReduceOp::Product => self.number().0,
            _ => {
                let value = self.any().0;
                value.to(value.dtype().real().compute())
            }
        };
        self.pool.push((self.builder.reduce(op, value), false));
    }

    fn outputs(&mut self) {
        for _ in 0..1 + self.tape.below(3) {
            let (value, at_points) = self.any();
            let value = value.to(value.dtype().compute());
            let dtype = match value.dtype() {
                DType::F32 => self.tape.pick(&[DType::F32, DType::F32, DType::F16, DType::Bf16]),
                dtype => dtype,
            };
            let row = !(at_points && self.has_inner) && self.tape.below(2) == 0;
            self.builder.output(value, dtype, if row { OutputPlace::Row } else { OutputPlace::Point });
        }
    }
}

/// Elements: small numbers, occasionally arbitrary bits.
struct Pattern {
    state: u64,
}

impl Pattern {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.state >> 16
    }

    fn value(&mut self, dtype: DType) -> Value {
        let (bits, wild) = (self.next(), self.next().is_multiple_of(16));
        let small = (bits % 2000) as f64 / 64.0 - 14.0;
        let bits = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match dtype {
            DType::Bool => Value::Bool(bits & 1 == 1),
            _ if dtype.is_integer() && (wild || dtype.size_bytes() == 1) => Value::wrap(dtype, bits.into()),
            DType::F8E4m3 if wild => Value::F8E4m3(f8e4m3::from_bits(bits as u8)),
            DType::F8E5m2 if wild => Value::F8E5m2(f8e5m2::from_bits(bits as u8)),
            DType::F16 if wild => Value::F16(f16::from_bits(bits as u16)),
            DType::Bf16 if wild => Value::Bf16(bf16::from_bits(bits as u16)),
            DType::F32 if wild => Value::F32(f32::from_bits(bits as u32)),
            DType::F64 if wild => Value::F64(f64::from_bits(bits)),
            _ => Value::F64(small).cast(dtype),
        }
    }
}
