//! Nodes as C++ expressions: types, literals, primitives, casts.

use crate::body::{Dimension, Node, Report, Scatter};
use crate::{Binary, Body, Category, DType, ExprId, ReduceOp, Scalar, Unary};

use super::writer::Writer;

/// Returns the type of an element in memory.
pub(super) const fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "u8",
        other => other.short_name(),
    }
}

/// Returns the type of the word in which a scalar argument is passed.
pub(super) const fn scalar_type(dtype: DType) -> &'static str {
    match dtype.category() {
        Category::Bool => "u64",
        Category::Integer => "i64",
        Category::FloatingPoint | Category::Complex => "f64",
    }
}

/// Returns an element as it is stored, from a value of dtype `from`.
pub(super) fn stored(value: &str, from: DType, to: DType) -> String {
    let cast = cast(value, from, to);
    if to == DType::Bool { format!("u8({cast})") } else { cast }
}

/// Returns the statement that writes a scattered output.
pub(super) fn scattered(statements: &Statements<'_>, number: usize, scatter: Scatter, value: &str) -> String {
    let (index, guard) = (statements.name(scatter.index), statements.name(scatter.guard));
    format!("if ({guard}) a.output{number}[{index}] = {value};")
}

/// Returns the statement that reports an index that is out of range.
pub(super) fn reported(statements: &Statements<'_>, report: Report) -> String {
    let [guard, index, extent] = report.operands().map(|id| statements.name(id));
    format!("if ({guard}) {{ a.report[0] = {index}; a.report[1] = i64(u64({extent}) + 1); }}")
}

/// Returns a literal.
pub(super) fn literal(value: Scalar, dtype: DType) -> String {
    match dtype {
        DType::Bool => (value.to_f64() != 0.0).to_string(),
        DType::I32 => match value.to_i64() as i32 {
            i32::MIN => "(-2147483647 - 1)".to_string(),
            negative @ i32::MIN..0 => format!("({negative})"),
            other => other.to_string(),
        },
        DType::I64 => match value.to_i64() {
            i64::MIN => "(-9223372036854775807ll - 1)".to_string(),
            negative @ i64::MIN..0 => format!("({negative}ll)"),
            other => format!("{other}ll"),
        },
        DType::F32 => {
            let value = value.to_f64() as f32;
            match value {
                _ if !value.is_finite() => format!("__uint_as_float(0x{:08x}u)", value.to_bits()),
                _ if value.is_sign_negative() => format!("({value:?}f)"),
                _ => format!("{value:?}f"),
            }
        }
        DType::F64 => {
            let value = value.to_f64();
            match value {
                _ if !value.is_finite() => {
                    format!("__longlong_as_double(i64(0x{:016x}ull))", value.to_bits())
                }
                _ if value.is_sign_negative() => format!("({value:?})"),
                _ => format!("{value:?}"),
            }
        }
        _ => with_dtype!(dtype,
            bool => unreachable!("a bool's literal is above"),
            integer T => format!("{}({})", dtype.short_name(), value.to_i64() as T),
            reduced T => {
                format!("{}{{0x{:04x}}}", dtype.short_name(), T::from_f32(value.to_f64() as f32).to_bits())
            },
            float T => unreachable!("a float's literal is above"),
            complex T => format!("{}{{{}, 0}}", dtype.short_name(), literal(value, dtype.real())),
        ),
    }
}

/// Returns the value with which a reduction starts.
pub(super) fn neutral(op: ReduceOp, dtype: DType) -> String {
    #[expect(clippy::unnecessary_cast, reason = "one of the integer types is i64")]
    let (lowest, highest) = with_dtype!(dtype,
        bool => (Scalar::Bool(false), Scalar::Bool(true)),
        integer T => (Scalar::I64(T::MIN as i64), Scalar::I64(T::MAX as i64)),
        reduced T => panic!("{op:?} of {dtype}: reductions are done in compute types"),
        float T => (Scalar::F64(f64::NEG_INFINITY), Scalar::F64(f64::INFINITY)),
        complex T => panic!("{op:?} of {dtype}: complex numbers have no reductions"),
    );
    let value = match op {
        ReduceOp::Sum => Scalar::I64(0),
        ReduceOp::Product => Scalar::I64(1),
        ReduceOp::Max => lowest,
        ReduceOp::Min => highest,
    };
    literal(value, dtype)
}

/// Returns the primitive that combines two values of a reduction.
pub(super) const fn combining(op: ReduceOp) -> Binary {
    match op {
        ReduceOp::Sum => Binary::Add,
        ReduceOp::Product => Binary::Mul,
        ReduceOp::Max => Binary::Max,
        ReduceOp::Min => Binary::Min,
    }
}

/// Returns a value in another dtype. Casts from and to a 16-bit float go through f32.
fn cast(x: &str, from: DType, to: DType) -> String {
    let is_reduced = |dtype: DType| dtype.compute() != dtype;
    let through_f32 = || cast(&cast(x, from, DType::F32), DType::F32, to);
    match to {
        _ if from == to => x.to_string(),
        DType::F32 if is_reduced(from) => format!("f32_from_{}({x})", from.short_name()),
        _ if is_reduced(from) => through_f32(),
        _ if is_reduced(to) && from == DType::F32 => format!("{}_from_f32({x})", to.short_name()),
        _ if is_reduced(to) => through_f32(),
        DType::Bool if from.is_complex() => format!("(({x}).re != 0 || ({x}).im != 0)"),
        DType::Bool => format!("{x} != 0"),
        _ if from.is_complex() && to.is_complex() => {
            let part = to.real().short_name();
            format!("{}{{{part}(({x}).re), {part}(({x}).im)}}", to.short_name())
        }
        _ if from.is_complex() => cast(&format!("({x}).re"), from.real(), to),
        _ if to.is_complex() => format!("{}{{{}, 0}}", to.short_name(), cast(x, from, to.real())),
        _ if to.is_integer() && from.is_floating_point() && to.from_float() != to => {
            cast(&cast(x, from, to.from_float()), to.from_float(), to)
        }
        _ if to.is_integer() && from.is_floating_point() => format!("saturate<{}>({x})", to.short_name()),
        _ => format!("{}({x})", to.short_name()),
    }
}

/// Checks that arithmetic has an operand of a type that supports arithmetic.
fn assert_computes(what: &dyn std::fmt::Debug, dtype: DType) {
    assert!(dtype == dtype.compute(), "{what:?} on {dtype}: arithmetic on 16-bit floats is done in float32");
}

fn unary(op: Unary, x: &str, dtype: DType) -> String {
    assert_computes(&op, dtype);
    let function = |name: &str| {
        assert!(dtype.is_floating_point(), "{op:?} on {dtype}: the operand is not a float");
        format!("{name}{}({x})", if dtype == DType::F32 { "f" } else { "" })
    };
    match op {
        Unary::Neg => match dtype {
            dtype if dtype.is_differentiable() => format!("-{x}"),
            other => format!("{}(0 - u64({x}))", other.short_name()),
        },
        Unary::Abs => match dtype {
            DType::F32 | DType::F64 => function("fabs"),
            other if !other.is_signed() => x.to_string(),
            other => format!("{x} < 0 ? {}(0 - u64({x})) : {x}", other.short_name()),
        },
        Unary::Not => {
            assert!(dtype == DType::Bool, "Not on {dtype}: the operand is not a bool");
            format!("!{x}")
        }
        Unary::Conj => {
            assert!(dtype.is_complex(), "Conj on {dtype}: the operand is not complex");
            format!("{}{{{x}.re, -{x}.im}}", dtype.short_name())
        }
        Unary::Sqrt => function("sqrt"),
        Unary::Floor => function("floor"),
        Unary::Ceil => function("ceil"),
        Unary::Trunc => function("trunc"),
        Unary::Round => function("rint"),
        other => function(other.cuda_name().expect("the others are functions")),
    }
}

/// Returns a primitive of two operands, which are names or literals.
pub(super) fn binary(op: Binary, a: &str, b: &str, dtype: DType) -> String {
    assert_computes(&op, dtype);
    let float = dtype.is_differentiable();
    let bool = dtype == DType::Bool;
    let arithmetic = |sign: &str| {
        assert!(!bool, "{op:?} on bool: the operands are not numbers");
        if float {
            format!("{a} {sign} {b}")
        } else {
            format!("{}(u64({a}) {sign} u64({b}))", dtype.short_name())
        }
    };
    let comparison = |sign: &str| {
        assert!(!dtype.is_complex(), "{op:?} on {dtype}: complex numbers have no order");
        format!("{a} {sign} {b}")
    };
    let logic = |of_bools: &str, of_integers: &str| {
        assert!(!float, "{op:?} on {dtype}: the operands are neither bools nor integers");
        if bool {
            format!("{a} {of_bools} {b}")
        } else {
            format!("{}({a} {of_integers} {b})", dtype.short_name())
        }
    };
    match op {
        Binary::Add => arithmetic("+"),
        Binary::Sub => arithmetic("-"),
        Binary::Mul => arithmetic("*"),
        Binary::Div if float => format!("{a} / {b}"),
        Binary::Div => format!("divide<{}>({a}, {b})", dtype.short_name()),
        Binary::Rem if float => format!("{}({a}, {b})", if dtype == DType::F32 { "fmodf" } else { "fmod" }),
        Binary::Rem => format!("remainder_of<{}>({a}, {b})", dtype.short_name()),
        Binary::Pow | Binary::Atan2 => {
            assert!(float, "{op:?} on {dtype}: the operands are not floats");
            let name = if op == Binary::Pow { "pow" } else { "atan2" };
            format!("{name}{}({a}, {b})", if dtype == DType::F32 { "f" } else { "" })
        }
        Binary::Max => format!("maximum<{}>({a}, {b})", dtype.short_name()),
        Binary::Min => format!("minimum<{}>({a}, {b})", dtype.short_name()),
        Binary::Equal => format!("{a} == {b}"),
        Binary::Less => comparison("<"),
        Binary::LessEqual => comparison("<="),
        Binary::And => logic("&&", "&"),
        Binary::Or => logic("||", "|"),
        Binary::Xor => logic("!=", "^"),
    }
}

/// A printer of a body's statements, which tracks the values that already have a name.
pub(super) struct Statements<'k> {
    body: &'k Body,
    /// The expression for the element of an input.
    load: Box<dyn Fn(usize) -> String + 'k>,
    /// The expression for the place of an input's element.
    place: Box<dyn Fn(usize) -> String + 'k>,
    /// For each node, the expression for the element that it gathers, if that is loaded already.
    gathered: Vec<Option<String>>,
}

/// The values that are defined at a position of the text, by node.
pub(super) type Defined = Vec<bool>;

impl<'k> Statements<'k> {
    /// Creates the printer of statements over a body, whose loads are written by `load`.
    pub fn new(body: &'k Body, load: impl Fn(usize) -> String + 'k) -> Self {
        let place = |input| panic!("the places of input {input} are only in kernels of points");
        Self { body, load: Box::new(load), place: Box::new(place), gathered: vec![None; body.nodes.len()] }
    }

    /// Returns the printer with places of inputs that are written by `place`.
    pub fn with_places(mut self, place: impl Fn(usize) -> String + 'k) -> Self {
        self.place = Box::new(place);
        self
    }

    /// Returns the printer with elements of vectors that [`Statements::print_gathered`] loads, where what nodes gather is in line.
    /// `is_repeated` returns whether an input is the same for a vector.
    pub fn with_vectors(mut self, is_repeated: impl Fn(usize) -> bool) -> Self {
        let nodes = self.body.nodes.iter().enumerate();
        self.gathered = nodes
            .map(|(number, node)| {
                let is_in_line = self.body.is_gather_in_line(node, &is_repeated);
                is_in_line.then(|| format!("gathered{number}.element[e]"))
            })
            .collect();
        self
    }

    /// Returns the state in which no value is defined.
    pub fn nothing(&self) -> Defined {
        vec![false; self.body.nodes.len()]
    }

    /// Returns the name of a defined value, or its literal.
    pub fn name(&self, id: ExprId) -> String {
        match self.body.nodes[id.index()] {
            Node::Constant(value) => literal(value, self.body.dtype(id)),
            Node::Reduced { reduction } => format!("reduced{reduction}"),
            Node::Detach(operand) => self.name(operand),
            _ => format!("v{}", id.0),
        }
    }

    /// Returns the nodes that the roots need and that `wanted` admits, except those that are already defined.
    fn missing<'s>(
        &'s self,
        roots: &[ExprId],
        defined: &'s Defined,
        wanted: impl Fn(usize) -> bool + 's,
    ) -> impl Iterator<Item = usize> + 's {
        let mut needed = self.nothing();
        roots.iter().for_each(|root| needed[root.index()] = true);
        for index in (0..needed.len()).rev() {
            if needed[index] && !defined[index] {
                self.body.nodes[index].operands().for_each(|operand| needed[operand.index()] = true);
            }
        }
        (0..needed.len()).filter(move |&index| needed[index] && !defined[index] && wanted(index))
    }

    /// Returns the inputs that [`Statements::define`] would load.
    pub fn loads(&self, roots: &[ExprId], defined: &Defined) -> Vec<usize> {
        let mut inputs: Vec<usize> = self
            .missing(roots, defined, |_| true)
            .filter_map(|index| match self.body.nodes[index] {
                Node::Load { input } => Some(usize::from(input)),
                _ => None,
            })
            .collect();
        inputs.sort_unstable();
        inputs
    }

    /// Returns the inputs whose places [`Statements::define`] would read.
    pub fn places(&self, roots: &[ExprId], defined: &Defined) -> Vec<usize> {
        let place = |index: usize| match self.body.nodes[index] {
            Node::Place { input } => Some(usize::from(input)),
            _ => None,
        };
        let mut inputs: Vec<usize> = self.missing(roots, defined, |_| true).filter_map(place).collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }

    /// Prints the loads of the vectors that [`Statements::define`] would gather from places in line. `line` is the place of the first
    /// element of an input's vector. What is the same for a vector is defined.
    pub fn print_gathered(
        &self,
        (roots, defined): (&[ExprId], &Defined),
        vector: u8,
        line: impl Fn(usize) -> String,
        writer: &mut Writer,
    ) {
        let body = self.body;
        let is_loaded = |index: usize| self.gathered[index].is_some();
        for index in self.missing(roots, defined, is_loaded) {
            let Node::Gather { input, index: place, guard, .. } = body.nodes[index] else { continue };
            let Node::Binary(_, a, b) = body.nodes[place.index()] else { continue };
            let part = |id: ExprId| match body.nodes[id.index()] {
                Node::Place { input } => format!("i64({})", line(usize::from(input))),
                _ => self.name(id),
            };
            let pack = format!("pack<{}, {vector}>", memory_type(body.inputs[usize::from(input)].dtype));
            writer.line(&format!("{pack} gathered{index};"));
            writer.open(&format!("if ({})", self.name(guard)));
            writer.line(&format!("const i64 from = {} + {};", part(a), part(b)));
            writer.open(&format!("if (u64(from) % {vector} == 0)"));
            writer.line(&format!("gathered{index} = *(const {pack}*)(a.input{input} + from);"));
            writer.close("");
            writer.open("else");
            writer.line("#pragma unroll");
            writer.open(&format!("for (u32 e = 0; e < {vector}; ++e)"));
            writer.line(&format!("gathered{index}.element[e] = a.input{input}[from + e];"));
            (0..3).for_each(|_| writer.close(""));
        }
    }

    /// Returns whether [`Statements::define`] would read an inner coordinate.
    pub fn reads_inner(&self, roots: &[ExprId], defined: &Defined) -> bool {
        let is_inner = |index| matches!(self.body.nodes[index], Node::Index(Dimension::Inner(_)));
        self.missing(roots, defined, |_| true).any(is_inner)
    }

    /// Defines the values that the roots need and that `wanted` admits.
    pub fn define(
        &self,
        roots: &[ExprId],
        defined: &mut Defined,
        wanted: impl Fn(usize) -> bool,
        writer: &mut Writer,
    ) {
        let missing: Vec<usize> = self.missing(roots, defined, wanted).collect();
        for index in missing {
            defined[index] = true;
            if let Some(expression) = self.expression(index) {
                let dtype = self.body.dtypes[index];
                writer.line(&format!("const {} v{index} = {expression};", dtype.short_name()));
            }
        }
    }

    /// Returns the expression of a node; `None` if the node has no name of its own.
    fn expression(&self, number: usize) -> Option<String> {
        let body = self.body;
        let dtype = body.dtypes[number];
        let element = |text: String| if dtype == DType::Bool { format!("{text} != 0") } else { text };
        Some(match body.nodes[number] {
            Node::Constant(_) | Node::Reduced { .. } | Node::Detach(_) => return None,
            Node::Load { input } => element((self.load)(usize::from(input))),
            Node::Place { input } => format!("i64({})", (self.place)(usize::from(input))),
            Node::Gather { input, index, guard, otherwise } => {
                let loaded = self.gathered[number].clone();
                let read = element(loaded.unwrap_or_else(|| format!("a.input{input}[{}]", self.name(index))));
                format!("{} ? {read} : {}", self.name(guard), literal(otherwise, dtype))
            }
            Node::Scalar { slot } => match dtype.category() {
                Category::Bool => format!("a.scalar{slot} != 0"),
                Category::Integer => format!("{}(a.scalar{slot})", dtype.short_name()),
                Category::FloatingPoint | Category::Complex => {
                    cast(&format!("a.scalar{slot}"), DType::F64, dtype)
                }
            },
            Node::Index(Dimension::Row(dimension)) => format!("i64(row{dimension})"),
            Node::Index(Dimension::Inner(dimension)) => format!("i64(inner{dimension})"),
            Node::Unary(Unary::Exp, x)
                if dtype == DType::F32
                    && (body.has_fast_exponentials() || body.rounded_coarsely()[number]) =>
            {
                format!("__expf({})", self.name(x))
            }
            Node::Binary(Binary::Div, a, b)
                if dtype == DType::F32
                    && body.is_one_and_exponential(b)
                    && body.rounded_coarsely()[number] =>
            {
                format!("{} * near_reciprocal({})", self.name(a), self.name(b))
            }
            Node::Unary(op, x) => unary(op, &self.name(x), body.dtype(x)),
            Node::Binary(op, a, b) => binary(op, &self.name(a), &self.name(b), body.dtype(a)),
            Node::Fma(a, b, c) => {
                assert_computes(&"Fma", dtype);
                let (a, b, c) = (self.name(a), self.name(b), self.name(c));
                match dtype {
                    DType::F32 => format!("fmaf({a}, {b}, {c})"),
                    DType::F64 => format!("fma({a}, {b}, {c})"),
                    other => format!("{}(u64({a}) * u64({b}) + u64({c}))", other.short_name()),
                }
            }
            Node::Select(condition, yes, no) => {
                format!("{} ? {} : {}", self.name(condition), self.name(yes), self.name(no))
            }
            Node::Random(seed, subsequence, position) => {
                let [seed, subsequence, position] = [seed, subsequence, position].map(|id| self.name(id));
                format!("i64(philox.word(u64({seed}), u64({subsequence}), u64({position})))")
            }
            Node::Cast(x) => cast(&self.name(x), body.dtype(x), dtype),
        })
    }
}

/// The C++ names for a floating-point dtype in kernels that are not printed from a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FloatNames {
    /// The type of an element.
    pub element: &'static str,
    /// The type in which sums are computed.
    pub sum: &'static str,
    /// The function from an element to the sum's type.
    pub load: String,
    /// The function from the sum's type to an element.
    pub store: String,
}

impl FloatNames {
    /// Returns the names for a dtype.
    ///
    /// # Panics
    /// If the dtype is not a floating-point type.
    pub fn of(dtype: DType) -> Self {
        assert!(dtype.is_floating_point(), "{dtype} is not a floating-point type");
        let (element, sum) = (dtype.short_name(), dtype.compute().short_name());
        let function =
            |from: &str, to: &str| if from == to { to.to_owned() } else { format!("{to}_from_{from}") };
        Self { element, sum, load: function(element, sum), store: function(sum, element) }
    }
}
