//! [`Body`]: the expressions that a loop kernel computes, independent of layout and schedule.
//!
//! A body is a small DAG of expressions over a closed table of primitives ([`Unary`], [`Binary`], [`Node`]). It describes
//! one *point* of an iteration space that has two groups of dimensions:
//!
//! - the **rows**, which are independent of each other, and
//! - the **inner** dimensions, over which reductions run. An elementwise body has no inner dimensions.
//!
//! Reductions are evaluated in order, each over all inner points of the row; later reductions and the outputs may use the results
//! of earlier ones ([`Node::Reduced`]). An output is written once per row ([`OutputPlace::Row`]), once per point
//! ([`OutputPlace::Point`]) or, with a [`Scatter`], at a computed place. A sum is one reduction and a row output. Log-softmax is
//! two reductions (maximum, sum of exponentials) and a point output, all in one kernel.
//!
//! # Invariants
//! - Operands of a node come before it: a body is evaluated front to back.
//! - Arithmetic happens in [`DType::compute`] types: loads of 16-bit floats are cast immediately, outputs when they are stored.
//! - A body contains no shapes and no strides. The [`Kernel`](crate::Kernel) has those.

use crate::{DType, Scalar};

mod builder;
mod exact;

pub use builder::{BodyBuilder, Operand, Value};

/// The index of a node in its body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ExprId(pub u32);

impl ExprId {
    /// Returns the index into [`Body::nodes`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

macro_rules! define_unary {
    ($($(#[doc = $doc:literal])+ $function:ident $method:ident $cuda:literal [$narrow:path, $wide:path];)*) => {
        /// A primitive of one operand. The result has the operand's dtype.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Unary {
            /// −x; wraps for integers.
            Neg,
            /// |x|; wraps for integers.
            Abs,
            /// Logical not of a bool.
            Not,
            /// The conjugate of a complex number.
            Conj,
            /// √x, correctly rounded.
            Sqrt,
            /// The largest integer that is not above x.
            Floor,
            /// The smallest integer that is not below x.
            Ceil,
            /// x without its fraction.
            Trunc,
            /// The nearest integer, ties to even.
            Round,
            $($(#[doc = $doc])+ $function,)*
        }

        impl Unary {
            /// Every primitive of one operand.
            pub const ALL: &[Self] = &[
                Self::Neg,
                Self::Abs,
                Self::Not,
                Self::Conj,
                Self::Sqrt,
                Self::Floor,
                Self::Ceil,
                Self::Trunc,
                Self::Round,
                $(Self::$function,)*
            ];

            /// Returns CUDA's name of the function for f64, for primitives that are not correctly rounded.
            pub const fn cuda_name(self) -> Option<&'static str> {
                match self {
                    $(Self::$function => Some($cuda),)*
                    _ => None,
                }
            }

            /// Returns the host's function for f32, for primitives that are not correctly rounded.
            pub fn of_f32(self) -> Option<fn(f32) -> f32> {
                match self {
                    $(Self::$function => Some($narrow),)*
                    _ => None,
                }
            }

            /// Returns the host's function for f64, for primitives that are not correctly rounded.
            pub fn of_f64(self) -> Option<fn(f64) -> f64> {
                match self {
                    $(Self::$function => Some($wide),)*
                    _ => None,
                }
            }
        }

        impl<'b> Value<'b> {$(
            $(#[doc = $doc])+
            #[must_use]
            pub fn $method(self) -> Self {
                self.unary(Unary::$function)
            }
        )*}
    };
}

crate::functions::for_each_function!(define_unary);

/// A primitive of two operands of one dtype. The result has that dtype, or `Bool` for comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Binary {
    /// a + b; wraps for integers.
    Add,
    /// a − b; wraps for integers.
    Sub,
    /// a · b; wraps for integers.
    Mul,
    /// a / b, correctly rounded for floats; truncates for integers, where division by 0 results in 0.
    Div,
    /// The remainder of the truncating division (C's `fmod` and `%`); 0 for integers where b is 0.
    Rem,
    /// a to the power of b. Floats only.
    Pow,
    /// The angle of the point (b, a), in (−π, π]. Floats only.
    Atan2,
    /// The greater; NaN if either is NaN.
    Max,
    /// The smaller; NaN if either is NaN.
    Min,
    /// a = b.
    Equal,
    /// a < b.
    Less,
    /// a ≤ b.
    LessEqual,
    /// Logical and of bools, bitwise of integers.
    And,
    /// Logical or of bools, bitwise of integers.
    Or,
    /// Exclusive or of bools, bitwise of integers.
    Xor,
}

impl Binary {
    /// Returns whether the result is a bool.
    pub const fn is_comparison(self) -> bool {
        matches!(self, Self::Equal | Self::Less | Self::LessEqual)
    }
}

/// The way in which a reduction combines values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReduceOp {
    /// The sum; starts at 0.
    Sum,
    /// The product; starts at 1.
    Product,
    /// The greatest; NaN if any value is NaN; starts at the dtype's lowest value (−∞ for floats).
    Max,
    /// The smallest; NaN if any value is NaN; starts at the dtype's highest value (∞ for floats).
    Min,
}

/// A dimension of the iteration space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dimension {
    /// The row dimension with this number.
    Row(u8),
    /// The inner dimension with this number.
    Inner(u8),
}

/// One expression.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Node {
    /// A constant of the node's dtype.
    Constant(Scalar),
    /// The element of an input at this point, through the input's strides.
    Load {
        /// The number of the input.
        input: u16,
    },
    /// The offset of an input's element at this point, in elements (i64), by the input's strides. It may be a part of the index
    /// of a [`Node::Gather`], whose dimensions can then be merged and divided as those of any strided input.
    Offset {
        /// The number of the input.
        input: u16,
    },
    /// The element of an input at a computed place. Where the guard is false, nothing is read and the value is `otherwise`. The
    /// place is an i64, an offset in elements from the input's first element. A place outside `0..elements` is a fault on the
    /// host and undefined on a GPU, so an index that comes from data needs a guard.
    Gather {
        /// The number of the input.
        input: u16,
        /// The place (i64).
        index: ExprId,
        /// Whether to read (bool).
        guard: ExprId,
        /// The value where the guard is false.
        otherwise: Scalar,
    },
    /// A scalar argument of the launch.
    Scalar {
        /// The index of the argument among the scalars.
        slot: u16,
    },
    /// The coordinate of the point in one dimension (i64). The dimensions of a body that reads coordinates are not merged.
    Index(Dimension),
    /// The result of an earlier reduction for this row.
    Reduced {
        /// The index of the reduction in the body.
        reduction: u16,
    },
    /// A primitive of one operand.
    Unary(Unary, ExprId),
    /// A primitive of two operands.
    Binary(Binary, ExprId, ExprId),
    /// a · b + c, rounded once.
    Fma(ExprId, ExprId, ExprId),
    /// The second operand where the first (bool) is true, else the third.
    Select(ExprId, ExprId, ExprId),
    /// The value in the node's dtype. Floats to integers truncate and saturate, to narrow ones after [`DType::from_float`], and NaN
    /// becomes 0; any value to bool is "not 0".
    Cast(ExprId),
    /// The random word (0 to 2³² − 1, as i64) for a seed, a subsequence and a position, in this order:
    /// [`philox::word`](crate::philox::word). The operands are i64 and are read as u64. Equal operands always result in the same
    /// word.
    Random(ExprId, ExprId, ExprId),
    /// The operand itself, without a gradient through it. Used for the shift of a softmax, which does not change the result.
    Detach(ExprId),
}

impl Node {
    /// Returns the number of the input that this node reads, or whose offset it is.
    pub const fn input(&self) -> Option<u16> {
        match *self {
            Self::Load { input } | Self::Offset { input } | Self::Gather { input, .. } => Some(input),
            _ => None,
        }
    }

    /// Returns the number of the input that this node reads, or whose offset it is, to change it.
    pub const fn input_mut(&mut self) -> Option<&mut u16> {
        match self {
            Self::Load { input } | Self::Offset { input } | Self::Gather { input, .. } => Some(input),
            _ => None,
        }
    }

    /// Returns the nodes that this one reads.
    pub fn operands(&self) -> impl Iterator<Item = ExprId> + use<> {
        let list = match *self {
            Self::Constant(_)
            | Self::Load { .. }
            | Self::Offset { .. }
            | Self::Scalar { .. }
            | Self::Index(_)
            | Self::Reduced { .. } => [None; 3],
            Self::Unary(_, a) | Self::Cast(a) | Self::Detach(a) => [Some(a), None, None],
            Self::Binary(_, a, b) => [Some(a), Some(b), None],
            Self::Gather { index, guard, .. } => [Some(index), Some(guard), None],
            Self::Fma(a, b, c) | Self::Select(a, b, c) | Self::Random(a, b, c) => [Some(a), Some(b), Some(c)],
        };
        list.into_iter().flatten()
    }
}

/// The way in which an input is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum InputKind {
    /// By [`Node::Load`] or [`Node::Offset`], at the point, through strides.
    Strided,
    /// By [`Node::Gather`], anywhere. The input is contiguous.
    Gathered,
}

/// An input of a body.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Input {
    /// The dtype in memory.
    pub dtype: DType,
    /// The way in which the input is read.
    pub kind: InputKind,
}

/// A reduction over the inner dimensions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reduction {
    /// The way in which values combine.
    pub op: ReduceOp,
    /// The value at each point.
    pub value: ExprId,
}

/// The places at which an output is written: once per row, or at points.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OutputPlace {
    /// Once per row.
    Row,
    /// Once per point.
    Point,
}

/// An output of a body.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Output {
    /// The value.
    pub value: ExprId,
    /// The dtype in memory: the value's dtype, or the 16-bit float that it is rounded to.
    pub dtype: DType,
    /// Whether the output is written once per row or once per point.
    pub place: OutputPlace,
    /// The computed position of an output that is not written at its own position in the row: only for [`OutputPlace::Row`].
    pub scatter: Option<Scatter>,
}

/// The computed position of an output: the counterpart of [`Node::Gather`]. Such an output is contiguous, and elements that no row
/// writes keep their values. If two rows write one position, that is a race, which the body must rule out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scatter {
    /// The place (i64), an offset in elements from the output's first element. A place outside `0..elements` is a fault on the
    /// host and undefined on a GPU, so an index that comes from data needs a guard.
    pub index: ExprId,
    /// Whether to write (bool).
    pub guard: ExprId,
}

impl Output {
    /// Returns the expressions that writing the output needs: the value, then place and guard of a scatter.
    pub fn operands(&self) -> impl Iterator<Item = ExprId> + use<> {
        let places = self.scatter.into_iter().flat_map(|scatter| [scatter.index, scatter.guard]);
        std::iter::once(self.value).chain(places)
    }
}

/// A report to the host that an index is out of range, at most once per row. It consists of the index, and the extent plus one, so
/// that the second word is never 0. Both go to two words of the host's memory, whose address is a launch's last argument, after
/// the scalars. Rows of a launch may write them at the same time: any one of their reports is enough.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Report {
    /// Whether the index is out of range (bool).
    pub guard: ExprId,
    /// The index (i64).
    pub index: ExprId,
    /// The extent (i64).
    pub extent: ExprId,
}

impl Report {
    /// Returns the expressions that the report needs.
    pub fn operands(&self) -> [ExprId; 3] {
        [self.guard, self.index, self.extent]
    }
}

/// The expressions that a loop kernel computes. See the [module](self).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Body {
    /// The expressions; operands come first.
    pub nodes: Vec<Node>,
    /// The dtype of each expression.
    pub dtypes: Vec<DType>,
    /// The inputs.
    pub inputs: Vec<Input>,
    /// The dtype of each scalar argument (`Bool`, `I64` or a floating type); each is passed as 8 bytes.
    pub scalars: Vec<DType>,
    /// The reductions, in order.
    pub reductions: Vec<Reduction>,
    /// The outputs.
    pub outputs: Vec<Output>,
    /// The report of an index that is out of range.
    pub report: Option<Report>,
}

impl Body {
    /// Returns whether a kernel of this body may use exponentials whose error exceeds their budget: it reduces, and all its
    /// floats in memory have 16 bits, to which every result is rounded much more coarsely.
    pub fn has_fast_exponentials(&self) -> bool {
        let is_narrow = |dtype: DType| !dtype.is_floating_point() || dtype.size_bytes() <= 2;
        let inputs = self.inputs.iter().map(|input| input.dtype);
        let outputs = self.outputs.iter().map(|output| output.dtype);
        !self.reductions.is_empty() && inputs.chain(outputs).all(is_narrow)
    }

    /// Returns which expressions are only used for results that are rounded to floats of at most 16 bits, much more coarsely than an
    /// error of some units in the last place of f32: no comparison, integer, reduction or wider result follows from them.
    pub fn rounded_coarsely(&self) -> Vec<bool> {
        let is_narrow = |dtype: DType| dtype.is_floating_point() && dtype.size_bytes() <= 2;
        let mut coarse = vec![true; self.nodes.len()];
        let outputs =
            self.outputs.iter().filter(|output| !is_narrow(output.dtype) || output.scatter.is_some());
        let roots = outputs.flat_map(Output::operands).chain(self.report.iter().flat_map(Report::operands));
        for root in roots.chain(self.reductions.iter().map(|reduction| reduction.value)) {
            coarse[root.index()] = false;
        }
        for (index, node) in self.nodes.iter().enumerate().rev() {
            let rounds = matches!(node, Node::Cast(_)) && is_narrow(self.dtypes[index]);
            if rounds || coarse[index] && self.dtypes[index].is_floating_point() {
                continue;
            }
            node.operands().for_each(|operand| coarse[operand.index()] = false);
        }
        coarse
    }

    /// Returns whether an expression is one plus an exponential, so that its value is at least one, and perhaps infinite.
    pub fn is_one_and_exponential(&self, id: ExprId) -> bool {
        let node = |id: ExprId| self.nodes[id.index()];
        let is_one = |id| matches!(node(id), Node::Constant(number) if number.to_f64() == 1.0);
        let is_exponential = |id| matches!(node(id), Node::Unary(Unary::Exp, _));
        match node(id) {
            Node::Binary(Binary::Add, a, b) => {
                is_one(a) && is_exponential(b) || is_exponential(a) && is_one(b)
            }
            _ => false,
        }
    }

    /// Returns the dtype of an expression.
    pub fn dtype(&self, id: ExprId) -> DType {
        self.dtypes[id.index()]
    }

    /// Returns whether the body uses only primitives and reductions that are defined for complex numbers: they have arithmetic,
    /// but no order, no functions and no reductions.
    pub fn complex_is_defined(&self) -> bool {
        let is_complex = |id: ExprId| self.dtype(id).is_complex();
        let nodes = self.nodes.iter().all(|node| match *node {
            Node::Unary(op, x) => !is_complex(x) || matches!(op, Unary::Neg | Unary::Conj),
            Node::Binary(op, x, _) => {
                !is_complex(x)
                    || matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Equal)
            }
            Node::Fma(x, ..) => !is_complex(x),
            _ => true,
        });
        nodes && !self.reductions.iter().any(|reduction| is_complex(reduction.value))
    }

    /// Returns whether any expression that an output or a reduction needs reads this input, or its offsets.
    pub fn uses_input(&self, input: usize) -> bool {
        self.has_live(|node| node.input().map(usize::from) == Some(input))
    }

    /// Returns whether any expression that an output or a reduction needs loads elements of this input at the point.
    pub fn loads_input(&self, input: usize) -> bool {
        self.has_live(|node| matches!(*node, Node::Load { input: i } if usize::from(i) == input))
    }

    /// Returns whether any expression that an output or a reduction needs reads the offsets of this input.
    pub fn uses_offsets(&self, input: usize) -> bool {
        self.has_live(|node| matches!(*node, Node::Offset { input: i } if usize::from(i) == input))
    }

    fn has_live(&self, is_wanted: impl Fn(&Node) -> bool) -> bool {
        self.nodes.iter().zip(self.live()).any(|(node, live)| live && is_wanted(node))
    }

    /// Returns whether any expression reads the offsets of an input.
    pub fn has_offsets(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Offset { .. }))
    }

    /// Returns whether a gather's indices follow each other where the offsets of an input do, which grow by one at each point along some
    /// dimension. `is_repeated` returns whether an input is the same at all these points.
    pub fn is_gather_in_line(&self, gather: &Node, is_repeated: impl Fn(usize) -> bool) -> bool {
        let Node::Gather { index, guard, .. } = *gather else { return false };
        let differs = self.point_dependent(|input| !is_repeated(input));
        let is_same = |id: ExprId| !differs[id.index()];
        let is_line = |id: ExprId| match self.nodes[id.index()] {
            Node::Offset { input } => !is_repeated(usize::from(input)),
            _ => false,
        };
        let Node::Binary(Binary::Add, a, b) = self.nodes[index.index()] else { return false };
        is_same(guard) && (is_line(a) && is_same(b) || is_line(b) && is_same(a))
    }

    /// Returns whether the body reads coordinates, so that its dimensions must not be merged.
    pub fn uses_coordinates(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Index(_)))
    }

    /// Returns whether a result is written at each point.
    pub fn writes_points(&self) -> bool {
        self.outputs.iter().any(|output| output.place == OutputPlace::Point)
    }

    /// Returns whether the body draws random numbers.
    pub fn draws(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node, Node::Random(..)))
    }

    /// Returns the expressions that outputs and the report need.
    pub fn written(&self) -> impl Iterator<Item = ExprId> {
        let report = self.report.into_iter().flat_map(|report| report.operands());
        self.outputs.iter().flat_map(Output::operands).chain(report)
    }

    /// Returns the number of words that follow the addresses in a launch's arguments: one per scalar, and the report's address.
    pub fn scalar_words(&self) -> usize {
        self.scalars.len() + usize::from(self.report.is_some())
    }

    /// Returns the body with its outputs in other dtypes. A value is rounded to the former dtype of its output first, so that its bits
    /// are those of a result that was copied into a tensor of the other dtype.
    #[must_use]
    pub fn with_outputs_in(&self, dtypes: impl IntoIterator<Item = DType>) -> Self {
        let mut body = self.clone();
        for (output, dtype) in body.outputs.iter_mut().zip(dtypes) {
            if output.dtype == dtype {
                continue;
            }
            for step in [output.dtype, output.dtype.compute(), dtype.compute()] {
                if body.dtypes[output.value.index()] != step {
                    body.nodes.push(Node::Cast(output.value));
                    body.dtypes.push(step);
                    output.value = ExprId((body.nodes.len() - 1) as u32);
                }
            }
            output.dtype = dtype;
        }
        body
    }

    /// Returns which expressions are needed by an output or a reduction.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        for root in self.written().chain(self.reductions.iter().map(|reduction| reduction.value)) {
            live[root.index()] = true;
        }
        for index in (0..self.nodes.len()).rev() {
            if live[index] {
                for operand in self.nodes[index].operands() {
                    live[operand.index()] = true;
                }
            }
        }
        live
    }

    /// Returns, for each expression, whether it differs from point to point of one row, because it depends on a load over inner
    /// dimensions or on an inner coordinate. `varies_inside` returns whether an input has inner dimensions: for a kernel its class
    /// says so; without a kernel, assume that every input has them.
    pub fn point_dependent(&self, varies_inside: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut point = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            point[index] = match node {
                Node::Load { input } | Node::Offset { input } => varies_inside(usize::from(*input)),
                Node::Index(Dimension::Inner(_)) => true,
                other => other.operands().any(|operand| point[operand.index()]),
            };
        }
        point
    }

    /// Returns whether an output may be written over an input whose elements have the same places and sizes. A kernel may read a row again
    /// for each reduction and write outputs between, so where there are reductions, nothing else may depend on the input.
    pub fn may_overwrite(&self, input: usize, output: usize) -> bool {
        if self.reductions.is_empty() {
            return true;
        }
        let mut depends = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            depends[index] = match node {
                Node::Load { input: read } => usize::from(*read) == input,
                Node::Reduced { reduction } => {
                    depends[self.reductions[usize::from(*reduction)].value.index()]
                }
                other => other.operands().any(|operand| depends[operand.index()]),
            };
        }
        let others = self.outputs.iter().enumerate().filter(|&(number, _)| number != output);
        let mut roots = (self.reductions.iter().map(|reduction| reduction.value))
            .chain(others.flat_map(|(_, other)| other.operands()))
            .chain(self.report.iter().flat_map(Report::operands));
        !roots.any(|root| depends[root.index()])
    }
}
