//! [`BodyBuilder`]: bodies written as formulas over [`Value`]s.

use std::cell::RefCell;
use std::ops;

use super::*;

/// A builder of a [`Body`]. [`Value`]s borrow it, so that entries of the operator table read like formulas.
#[derive(Debug, Default)]
pub struct BodyBuilder {
    body: RefCell<Body>,
}

/// An expression under construction. Arithmetic on values adds nodes to their builder; equal nodes are shared.
#[derive(Clone, Copy)]
pub struct Value<'b> {
    builder: &'b BodyBuilder,
    id: ExprId,
}

impl BodyBuilder {
    /// Creates an empty body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the body.
    pub fn finish(self) -> Body {
        self.body.into_inner()
    }

    /// Adds a strided input and loads it, in its compute type.
    pub fn input(&self, dtype: DType) -> Value<'_> {
        let input = self.add_input(dtype, InputKind::Strided);
        self.node(Node::Load { input }, dtype).to(dtype.compute())
    }

    /// Adds a strided input, and returns the offset of its element (i64). Its elements are not read.
    pub fn offset(&self, dtype: DType) -> Value<'_> {
        let input = self.add_input(dtype, InputKind::Strided);
        self.node(Node::Offset { input }, DType::I64)
    }

    /// Adds an input that is gathered from; the returned number is for [`BodyBuilder::gather`].
    pub fn gathered_input(&self, dtype: DType) -> u16 {
        self.add_input(dtype, InputKind::Gathered)
    }

    fn add_input(&self, dtype: DType, kind: InputKind) -> u16 {
        let mut body = self.body.borrow_mut();
        body.inputs.push(Input { dtype, kind });
        (body.inputs.len() - 1) as u16
    }

    /// Reads a gathered input at an i64 offset where the guard is true, in its compute type.
    pub fn gather<'b>(
        &'b self,
        input: u16,
        index: Value<'b>,
        guard: Value<'b>,
        otherwise: Scalar,
    ) -> Value<'b> {
        let dtype = self.body.borrow().inputs[usize::from(input)].dtype;
        assert_eq!(index.dtype(), DType::I64, "a gather's index is an i64");
        assert_eq!(guard.dtype(), DType::Bool, "a gather's guard is a bool");
        self.node(Node::Gather { input, index: index.id, guard: guard.id, otherwise }, dtype)
            .to(dtype.compute())
    }

    /// Adds a scalar argument of this dtype.
    pub fn scalar(&self, dtype: DType) -> Value<'_> {
        let slot = {
            let mut body = self.body.borrow_mut();
            body.scalars.push(dtype);
            (body.scalars.len() - 1) as u16
        };
        self.node(Node::Scalar { slot }, dtype)
    }

    /// Returns a constant.
    pub fn constant(&self, value: impl Into<Scalar>, dtype: DType) -> Value<'_> {
        self.node(Node::Constant(value.into()), dtype)
    }

    /// Returns the coordinate in a dimension (i64).
    pub fn index(&self, dimension: Dimension) -> Value<'_> {
        self.node(Node::Index(dimension), DType::I64)
    }

    /// Adds a reduction over the inner dimensions and returns its result for the row.
    pub fn reduce<'b>(&'b self, op: ReduceOp, value: Value<'b>) -> Value<'b> {
        let dtype = value.dtype();
        let reduction = {
            let mut body = self.body.borrow_mut();
            body.reductions.push(Reduction { op, value: value.id });
            (body.reductions.len() - 1) as u16
        };
        self.node(Node::Reduced { reduction }, dtype)
    }

    /// Adds an output in this dtype; the value is cast to it.
    pub fn output(&self, value: Value<'_>, dtype: DType, place: OutputPlace) {
        let value = value.to(dtype.compute());
        self.body.borrow_mut().outputs.push(Output { value: value.id, dtype, place, scatter: None });
    }

    /// Adds an output of a value that has the dtype of its output's arithmetic already. For code that transforms bodies.
    pub(crate) fn write(&self, value: ExprId, dtype: DType, place: OutputPlace) {
        self.body.borrow_mut().outputs.push(Output { value, dtype, place, scatter: None });
    }

    /// Adds an output in this dtype that is written once per row, at an i64 place, where the guard is true.
    pub fn scattered_output(&self, value: Value<'_>, dtype: DType, index: Value<'_>, guard: Value<'_>) {
        assert_eq!(index.dtype(), DType::I64, "a scatter's index is an i64");
        assert_eq!(guard.dtype(), DType::Bool, "a scatter's guard is a bool");
        let value = value.to(dtype.compute());
        let scatter = Some(Scatter { index: index.id, guard: guard.id });
        self.body.borrow_mut().outputs.push(Output {
            value: value.id,
            dtype,
            place: OutputPlace::Row,
            scatter,
        });
    }

    /// Reports to the host that an i64 index is out of range of an i64 extent, where the guard is true: see [`Report`].
    pub fn report(&self, guard: Value<'_>, index: Value<'_>, extent: Value<'_>) {
        let dtypes = [guard, index, extent].map(|value| value.dtype());
        assert_eq!(dtypes, [DType::Bool, DType::I64, DType::I64], "a report is of a bool and two i64");
        let report = Report { guard: guard.id, index: index.id, extent: extent.id };
        self.body.borrow_mut().report = Some(report);
    }

    /// Returns the random word for a seed, a subsequence and a position, all i64. See [`Node::Random`].
    pub fn random<'b>(&'b self, seed: Value<'b>, subsequence: Value<'b>, position: Value<'b>) -> Value<'b> {
        for operand in [seed, subsequence, position] {
            assert_eq!(operand.dtype(), DType::I64, "a random word's operands are i64");
        }
        self.node(Node::Random(seed.id, subsequence.id, position.id), DType::I64)
    }

    /// Adds a node unchanged, or finds an equal one. For code that transforms bodies.
    pub fn node(&self, node: Node, dtype: DType) -> Value<'_> {
        let mut body = self.body.borrow_mut();
        let found = body
            .nodes
            .iter()
            .zip(&body.dtypes)
            .position(|(other, other_dtype)| same_node(other, &node) && *other_dtype == dtype);
        let index = found.unwrap_or_else(|| {
            body.nodes.push(node);
            body.dtypes.push(dtype);
            body.nodes.len() - 1
        });
        Value { builder: self, id: ExprId(index as u32) }
    }

    /// Returns the value of a node that was added before.
    pub fn value(&self, id: ExprId) -> Value<'_> {
        assert!(id.index() < self.body.borrow().nodes.len(), "the node belongs to this body");
        Value { builder: self, id }
    }
}

/// Compares nodes by bits, so that 0.0 and −0.0 are distinguished and a NaN equals itself.
fn same_node(a: &Node, b: &Node) -> bool {
    let same_scalar = |x: &Scalar, y: &Scalar| {
        std::mem::discriminant(x) == std::mem::discriminant(y) && x.to_bits() == y.to_bits()
    };
    match (a, b) {
        (Node::Constant(x), Node::Constant(y)) => same_scalar(x, y),
        (
            Node::Gather { input, index, guard, otherwise },
            Node::Gather { input: input_b, index: index_b, guard: guard_b, otherwise: otherwise_b },
        ) => input == input_b && index == index_b && guard == guard_b && same_scalar(otherwise, otherwise_b),
        _ => a == b,
    }
}

impl<'b> Value<'b> {
    /// Returns the builder.
    pub fn builder(self) -> &'b BodyBuilder {
        self.builder
    }

    /// Returns the node.
    pub fn id(self) -> ExprId {
        self.id
    }

    /// Returns the node, for code that transforms bodies.
    pub fn node(self) -> Node {
        self.builder.body.borrow().nodes[self.id.index()]
    }

    /// Returns the dtype.
    pub fn dtype(self) -> DType {
        self.builder.body.borrow().dtype(self.id)
    }

    /// Returns a constant of this value's dtype.
    pub fn like(self, value: impl Into<Scalar>) -> Self {
        self.builder.constant(value, self.dtype())
    }

    /// Returns the value in another dtype. Of two casts in a row, the first one is left out if it changes no number.
    #[must_use]
    pub fn to(self, dtype: DType) -> Self {
        if self.dtype() == dtype {
            return self;
        }
        let id = self.builder.body.borrow().cast_source(self.id, dtype);
        let source = Self { id, ..self };
        if source.dtype() == dtype { source } else { self.builder.node(Node::Cast(id), dtype) }
    }

    /// Returns this value, through which no gradient flows (`torch.Tensor.detach`).
    #[must_use]
    pub fn detach(self) -> Self {
        self.builder.node(Node::Detach(self.id), self.dtype())
    }

    /// Returns the conjugate; a number that is not complex is returned unchanged.
    #[must_use]
    pub fn conj(self) -> Self {
        if self.dtype().is_complex() { self.unary(Unary::Conj) } else { self }
    }

    /// Applies a primitive to this operand.
    #[must_use]
    pub fn unary(self, op: Unary) -> Self {
        self.builder.node(Node::Unary(op, self.id), self.dtype())
    }

    /// Applies a primitive to this and another operand of the same dtype.
    #[must_use]
    pub fn binary(self, op: Binary, other: Self) -> Self {
        let dtype = self.dtype();
        assert_eq!(dtype, other.dtype(), "{op:?} takes operands of one dtype");
        self.builder
            .node(Node::Binary(op, self.id, other.id), if op.is_comparison() { DType::Bool } else { dtype })
    }

    /// Returns `self · b + c`, rounded once.
    #[must_use]
    pub fn mul_add(self, b: Self, c: Self) -> Self {
        self.builder.node(Node::Fma(self.id, b.id, c.id), self.dtype())
    }

    /// Returns `yes` where this bool is true, else `no`.
    #[must_use]
    pub fn select(self, yes: Self, no: Self) -> Self {
        assert_eq!(self.dtype(), DType::Bool, "select takes a bool");
        assert_eq!(yes.dtype(), no.dtype(), "select takes branches of one dtype");
        self.builder.node(Node::Select(self.id, yes.id, no.id), yes.dtype())
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Value<'_> {$(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self) -> Self {
                self.unary(Unary::$op)
            }
        )*}
    };
}

unary_methods! {
    /// |x|.
    abs => Abs;
    /// Logical not.
    logical_not => Not;
    /// √x.
    sqrt => Sqrt;
    /// ⌊x⌋.
    floor => Floor;
    /// ⌈x⌉.
    ceil => Ceil;
    /// x rounded towards 0.
    trunc => Trunc;
    /// The nearest integer, ties to even.
    round => Round;
}

/// The right operand of an arithmetic operator: a value, or a number of the left operand's dtype.
pub trait Operand<'b> {
    /// Returns the operand as a value of the same builder and dtype as `like`.
    fn value(self, like: Value<'b>) -> Value<'b>;
}

impl<'b> Operand<'b> for Value<'b> {
    fn value(self, _: Value<'b>) -> Value<'b> {
        self
    }
}

impl<'b> Operand<'b> for f64 {
    fn value(self, like: Value<'b>) -> Value<'b> {
        like.like(self)
    }
}

impl<'b> Operand<'b> for i32 {
    fn value(self, like: Value<'b>) -> Value<'b> {
        like.like(self)
    }
}

impl<'b> Operand<'b> for i64 {
    fn value(self, like: Value<'b>) -> Value<'b> {
        like.like(self)
    }
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl<'b> Value<'b> {$(
            $(#[$doc])*
            #[must_use]
            pub fn $name(self, other: impl Operand<'b>) -> Self {
                self.binary(Binary::$op, other.value(self))
            }
        )*}
    };
}

binary_methods! {
    /// self to the power of other.
    pow => Pow;
    /// The angle of the point (other, self), in (−π, π].
    atan2 => Atan2;
    /// The greater.
    maximum => Max;
    /// The smaller.
    minimum => Min;
    /// self = other.
    eq => Equal;
    /// self < other.
    lt => Less;
    /// self ≤ other.
    le => LessEqual;
    /// self ∧ other.
    and => And;
    /// self ∨ other.
    or => Or;
    /// self ⊕ other.
    xor => Xor;
}

impl<'b> Value<'b> {
    /// Returns self > other.
    #[must_use]
    pub fn gt(self, other: impl Operand<'b>) -> Self {
        other.value(self).lt(self)
    }

    /// Returns self ≥ other.
    #[must_use]
    pub fn ge(self, other: impl Operand<'b>) -> Self {
        other.value(self).le(self)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'b, O: Operand<'b>> ops::$trait<O> for Value<'b> {
            type Output = Value<'b>;

            fn $method(self, other: O) -> Value<'b> {
                self.binary(Binary::$op, other.value(self))
            }
        }

        impl<'b> ops::$trait<Value<'b>> for f64 {
            type Output = Value<'b>;

            fn $method(self, other: Value<'b>) -> Value<'b> {
                other.like(self).binary(Binary::$op, other)
            }
        }
    )*};
}

operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
    Rem rem Rem;
}

impl<'b> ops::Neg for Value<'b> {
    type Output = Value<'b>;

    fn neg(self) -> Value<'b> {
        self.unary(Unary::Neg)
    }
}
