//! A graph of operations for cuDNN's graph interface, as data: tensors, and the operations between them.
//!
//! cuDNN does not run such a graph node by node: it finds an engine that implements the entire pattern. The tensors between
//! the operations (*virtual* tensors) have no memory.

use crate::cuda::table::numbers;

/// The number of dimensions of every tensor here.
pub(super) const RANK: usize = 4;

/// A tensor's sizes, or its strides in elements.
pub(super) type Extents = [i64; RANK];

numbers! { variants_of_format from cudarc::cudnn::sys::cudnnDataType_t,
    /// The element formats that appear in a graph, as `cudnnDataType_t` numbers them.
    pub(in crate::cuda) enum Format {
        /// 32-bit floats.
        F32 = 0, CUDNN_DATA_FLOAT;
        /// IEEE 16-bit floats.
        F16 = 2, CUDNN_DATA_HALF;
        /// 32-bit integers.
        I32 = 4, CUDNN_DATA_INT32;
        /// 16-bit brain floats.
        Bf16 = 9, CUDNN_DATA_BFLOAT16;
        /// Truth values.
        Bool = 11, CUDNN_DATA_BOOLEAN;
    }
}

/// The role of a tensor in memory, or of a scalar, for which an execution passes an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum Role {
    Query,
    Key,
    Value,
    /// The tensor that is added to the scores.
    Mask,
    Output,
    LogSumExp,
    OutputGradient,
    QueryGradient,
    KeyGradient,
    ValueGradient,
    /// Σ output gradient · output for each row: scratch memory.
    RowProducts,
    /// The query's gradient in f32: scratch memory.
    QuerySums,
    /// The number of queries, once per batch: scratch memory.
    QueryLengths,
    /// The number of keys, once per batch: scratch memory.
    KeyLengths,
    /// The factor of the scores: a scalar, like the next two.
    Scale,
    /// The number one.
    One,
    /// The score of masked positions.
    Masked,
}

impl Role {
    /// Returns whether the role is a scalar, which an execution reads from host memory.
    pub(super) const fn is_number(self) -> bool {
        matches!(self, Self::Scale | Self::One | Self::Masked)
    }
}

/// The index of a tensor in its graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TensorIndex(pub(super) usize);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tensor {
    /// The role; `None` for a virtual tensor.
    pub(super) role: Option<Role>,
    pub(super) sizes: Extents,
    pub(super) strides: Extents,
    pub(super) format: Format,
}

numbers! { variants_of_pointwise from cudarc::cudnn::sys::cudnnPointwiseMode_t,
    /// The functions of one, two or three tensors, as `cudnnPointwiseMode_t` numbers them. Operands are broadcast.
    pub(in crate::cuda) enum Pointwise {
        Add = 0, CUDNN_POINTWISE_ADD;
        Multiply = 1, CUDNN_POINTWISE_MUL;
        Divide = 6, CUDNN_POINTWISE_DIV;
        Subtract = 9, CUDNN_POINTWISE_SUB;
        Exponential = 13, CUDNN_POINTWISE_EXP;
        Logarithm = 15, CUDNN_POINTWISE_LOG;
        Identity = 21, CUDNN_POINTWISE_IDENTITY;
        Relu = 100, CUDNN_POINTWISE_RELU_FWD;
        GreaterOrEqual = 303, CUDNN_POINTWISE_CMP_GE;
        Less = 304, CUDNN_POINTWISE_CMP_LT;
        And = 400, CUDNN_POINTWISE_LOGICAL_AND;
        /// The index of the element along an axis.
        Index = 501, CUDNN_POINTWISE_GEN_INDEX;
        /// The first operand where the third is true, the second elsewhere.
        Select = 601, CUDNN_POINTWISE_BINARY_SELECT;
    }
}

numbers! { variants_of_reduction from cudarc::cudnn::sys::cudnnReduceTensorOp_t,
    /// The reductions, as `cudnnReduceTensorOp_t` numbers them.
    pub(in crate::cuda) enum Reduction {
        Add = 0, CUDNN_REDUCE_TENSOR_ADD;
        Maximum = 3, CUDNN_REDUCE_TENSOR_MAX;
    }
}

/// The sizes of a product that tensors contain, in place of the operands' sizes: rows of the output, columns, and the
/// length of the sum.
pub(super) type Overrides = [Option<TensorIndex>; 3];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Pointwise {
        mode: Pointwise,
        inputs: Vec<TensorIndex>,
        output: TensorIndex,
        compute: Format,
        /// The axis of [`Pointwise::Index`].
        axis: Option<i64>,
    },
    /// A product of the last two dimensions. If `b` has a smaller second dimension (heads), several heads of `a` share one
    /// of `b`.
    Matmul { a: TensorIndex, b: TensorIndex, output: TensorIndex, overrides: Overrides },
    /// A reduction over every dimension in which the output is smaller.
    Reduction { mode: Reduction, input: TensorIndex, output: TensorIndex },
    /// All elements with other sizes and strides: here, always two swapped dimensions.
    Reshape { input: TensorIndex, output: TensorIndex },
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Graph {
    pub(super) tensors: Vec<Tensor>,
    pub(super) operations: Vec<Operation>,
}

/// Returns the strides of a contiguous tensor.
pub(super) const fn contiguous(sizes: Extents) -> Extents {
    let [_, b, c, d] = sizes;
    [b * c * d, c * d, d, 1]
}

/// Returns sizes or strides with the last two dimensions swapped.
pub(super) const fn transposed(extents: Extents) -> Extents {
    let [a, b, c, d] = extents;
    [a, b, d, c]
}

impl Graph {
    fn push(&mut self, tensor: Tensor) -> TensorIndex {
        self.tensors.push(tensor);
        TensorIndex(self.tensors.len() - 1)
    }

    /// Adds a tensor in memory.
    pub(super) fn tensor(
        &mut self,
        role: Role,
        sizes: Extents,
        strides: Extents,
        format: Format,
    ) -> TensorIndex {
        self.push(Tensor { role: Some(role), sizes, strides, format })
    }

    /// Returns a scalar of the graph, and adds the scalar first if the graph does not have it.
    pub(super) fn number(&mut self, role: Role) -> TensorIndex {
        let known = self.tensors.iter().position(|tensor| tensor.role == Some(role));
        known.map_or_else(|| self.tensor(role, [1; RANK], [1; RANK], Format::F32), TensorIndex)
    }

    /// Adds a virtual tensor, described as contiguous.
    pub(super) fn between(&mut self, sizes: Extents, format: Format) -> TensorIndex {
        self.push(Tensor { role: None, sizes, strides: contiguous(sizes), format })
    }

    /// Adds a function in f32 whose output is `output`.
    pub(super) fn point(&mut self, mode: Pointwise, inputs: &[TensorIndex], output: TensorIndex) {
        self.point_in(Format::F32, mode, inputs, output);
    }

    fn point_in(&mut self, compute: Format, mode: Pointwise, inputs: &[TensorIndex], output: TensorIndex) {
        let inputs = inputs.to_vec();
        self.operations.push(Operation::Pointwise { mode, inputs, output, compute, axis: None });
    }

    /// Adds a function in f32 with a new virtual output of the first operand's sizes.
    pub(super) fn map(&mut self, mode: Pointwise, inputs: &[TensorIndex]) -> TensorIndex {
        let output = self.between(self.tensors[inputs[0].0].sizes, Format::F32);
        self.point(mode, inputs, output);
        output
    }

    /// Adds the indices of elements along an axis of a tensor.
    pub(super) fn index(&mut self, of: TensorIndex, axis: i64) -> TensorIndex {
        let output = self.between(self.tensors[of.0].sizes, Format::I32);
        self.operations.push(Operation::Pointwise {
            mode: Pointwise::Index,
            inputs: vec![of],
            output,
            compute: Format::I32,
            axis: Some(axis),
        });
        output
    }

    /// Adds a comparison, or a function of booleans.
    pub(super) fn decide(&mut self, mode: Pointwise, inputs: &[TensorIndex]) -> TensorIndex {
        let output = self.between(self.tensors[inputs[0].0].sizes, Format::Bool);
        self.point_in(Format::Bool, mode, inputs, output);
        output
    }

    pub(super) fn multiply(
        &mut self,
        a: TensorIndex,
        b: TensorIndex,
        output: TensorIndex,
        overrides: Overrides,
    ) {
        self.operations.push(Operation::Matmul { a, b, output, overrides });
    }

    pub(super) fn reduce(&mut self, mode: Reduction, input: TensorIndex, output: TensorIndex) {
        self.operations.push(Operation::Reduction { mode, input, output });
    }

    /// Adds the transpose of a tensor's last two dimensions.
    pub(super) fn transpose(&mut self, input: TensorIndex, format: Format) -> TensorIndex {
        let Tensor { sizes, strides, .. } = self.tensors[input.0];
        let output =
            self.push(Tensor { role: None, sizes: transposed(sizes), strides: transposed(strides), format });
        self.operations.push(Operation::Reshape { input, output });
        output
    }
}
