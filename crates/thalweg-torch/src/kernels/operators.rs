//! PyTorch's operators that have a kernel here: for each the conditions on which a call is taken, the launch, and the call of
//! PyTorch's own kernel otherwise.
//!
//! A call that is not taken, for any reason, goes to PyTorch's kernel with unchanged arguments. So invalid shapes, lack of memory
//! and all other errors are PyTorch's exceptions.

use std::ops::Range;

use smallvec::SmallVec;
use thalweg_ir::DType;

use super::libtorch::{Libtorch, Stack, Tensor};
use super::original::{Backward, BackwardArguments, Exported, Forward, ForwardArguments};
use super::rows::{Channels, Computation, RowCall};
use super::speeds::{Class, Form};
use super::{Kernels, Operator};

/// The results of a launch; `None` if the call is left to PyTorch.
pub(super) type Taken<'t> = Option<SmallVec<[Tensor<'t>; 3]>>;

/// A tensor as rows: `before` times `after` runs of `columns` points, with stride `after`.
#[derive(Clone)]
pub(super) struct Matrix {
    pub(super) sizes: SmallVec<[i64; 6]>,
    pub(super) dtype: DType,
    pub(super) device: i32,
    before: u64,
    pub(super) columns: u64,
    after: u64,
    /// The channels, if rows are groups of channels.
    channels: Option<Channels>,
}

/// Returns the rows of a contiguous tensor whose last `inner` dimensions form a row; `None` if it is not contiguous, has no
/// elements, too few dimensions, or an unsupported dtype.
pub(super) fn matrix(tensor: &Tensor<'_>, inner: usize) -> Option<Matrix> {
    let rank = usize::try_from(tensor.rank()?).ok()?;
    matrix_along(tensor, rank.checked_sub(inner)?..rank)
}

/// Returns the rows of a contiguous tensor of which a range of dimensions forms a row; `None` as for [`matrix`].
pub(super) fn matrix_along(tensor: &Tensor<'_>, row: Range<usize>) -> Option<Matrix> {
    let device = tensor.device()?;
    let sizes = tensor.sizes()?;
    let count = |sizes: &[i64]| sizes.iter().map(|size| size.unsigned_abs()).product::<u64>();
    let [before, columns, after] = [&sizes[..row.start], &sizes[row.clone()], &sizes[row.end..]].map(count);
    if before * columns * after == 0 || !tensor.is_contiguous() {
        return None;
    }
    let dtype = tensor.dtype().filter(|dtype| dtype.is_floating_point())?;
    Some(Matrix { sizes, dtype, device, before, columns, after, channels: None })
}

/// Returns the index of a dimension, which may count from the end, in a rank; `None` if it does not exist.
pub(super) fn dimension_of(dimension: i64, rank: usize) -> Option<usize> {
    let place = if dimension < 0 { dimension.checked_add(rank as i64)? } else { dimension };
    usize::try_from(place).ok().filter(|&place| place < rank)
}

/// Returns a tensor as rows along one dimension.
fn matrix_of_dimension(tensor: &Tensor<'_>, dimension: i64) -> Option<Matrix> {
    let place = dimension_of(dimension, usize::try_from(tensor.rank()?).ok()?)?;
    matrix_along(tensor, place..place + 1)
}

impl Matrix {
    pub(super) fn rows(&self) -> u64 {
        self.before * self.after
    }

    /// Returns the same points as `rows` rows, each a group of channels.
    pub(super) fn of_channels(self, channels: Channels, rows: u64) -> Self {
        let columns = self.rows() * self.columns / rows;
        Self { before: rows, columns, after: 1, channels: Some(channels), ..self }
    }

    /// Returns the class of a call over these rows.
    pub(super) fn class(&self) -> Class {
        let (form, contiguous) = match self.after {
            1 => (Form::Rows, self.columns),
            after => (Form::Columns, after),
        };
        Class {
            form,
            dtype: self.dtype,
            columns: self.columns,
            contiguous,
            elements: self.rows() * self.columns,
        }
    }

    /// Returns whether a tensor is contiguous, on this matrix's device, and has this dtype and these sizes.
    pub(super) fn is_beside(&self, tensor: &Tensor<'_>, dtype: DType, sizes: &[i64]) -> bool {
        tensor.device() == Some(self.device)
            && tensor.is_contiguous()
            && tensor.dtype() == Some(dtype)
            && tensor.sizes().as_deref() == Some(sizes)
    }
}

/// An attempt to launch a kernel for one call.
pub(super) struct Attempt<'k> {
    pub(super) kernels: &'k Kernels,
    pub(super) operator: Operator,
    pub(super) computation: Computation,
}

impl<'k> Attempt<'k> {
    /// Makes the attempt and counts it.
    pub(super) fn make(&self, run: impl FnOnce() -> Taken<'k>) -> Taken<'k> {
        self.kernels.attempt(self.operator, run)
    }

    /// Returns whether the table or the user selects calls over these rows.
    pub(super) fn takes(&self, matrix: &Matrix) -> bool {
        self.kernels.takes(self.operator, &matrix.class())
    }

    /// Makes the results and launches, if the table or the user selects the call.
    pub(super) fn launch(
        &self,
        matrix: &Matrix,
        [dtype, to]: [DType; 2],
        scalars: &[u64],
        inputs: &[&Tensor<'_>],
        results: &[(&[i64], DType)],
    ) -> Taken<'k> {
        let kernels = self.kernels;
        if !kernels.takes(self.operator, &Class { dtype, ..matrix.class() }) {
            return None;
        }
        let inputs: SmallVec<[u64; 8]> = inputs.iter().map(|input| input.address()).collect::<Option<_>>()?;
        let results: SmallVec<[Tensor<'k>; 3]> = results
            .iter()
            .map(|(sizes, dtype)| kernels.torch.empty(sizes, *dtype, matrix.device))
            .collect::<Option<_>>()?;
        let outputs: SmallVec<[u64; 4]> = results.iter().map(Tensor::address).collect::<Option<_>>()?;
        let call = RowCall {
            computation: self.computation,
            dtype,
            to,
            before: matrix.before,
            columns: matrix.columns,
            after: matrix.after,
            channels: matrix.channels,
            scalars,
            inputs: &inputs,
            outputs: &outputs,
        };
        // SAFETY: inputs and results are tensors with these rows and columns on this device, and the results were just made.
        unsafe { call.run(kernels, self.operator, matrix.device) }?;
        Some(results)
    }
}

/// Returns tensors from the words that PyTorch's kernel returned.
pub(super) fn of_words<'t, const N: usize>(
    torch: &'t Libtorch,
    words: [u64; N],
) -> SmallVec<[Tensor<'t>; 3]> {
    let tensor = |word| {
        Tensor::of_word(torch, word)
            .unwrap_or_else(|| torch.throw(c"there is no memory for a tensor's handle"))
    };
    words.into_iter().map(tensor).collect()
}

pub(super) fn put(stack: &Stack<'_>, results: SmallVec<[Tensor<'_>; 3]>) {
    results.into_iter().enumerate().for_each(|(place, result)| stack.put(place, result));
}

/// Puts the results of a call on the stack, or those of PyTorch's kernel if the call was not accepted.
pub(super) fn put_or<'k, const N: usize>(
    kernels: &'k Kernels,
    stack: &Stack<'_>,
    taken: Taken<'k>,
    original: impl FnOnce() -> [u64; N],
) {
    put(stack, taken.unwrap_or_else(|| of_words(&kernels.torch, original())));
}

pub(super) fn forward(
    kernels: &Kernels,
    operator: Operator,
    original: Option<Forward<'_>>,
    computation: Computation,
    stack: &Stack<'_>,
) {
    let arguments = ForwardArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation };
    let taken = attempt.make(|| {
        let ForwardArguments { input, dimension, half_to_float } = &arguments;
        let matrix = matrix_of_dimension(input, *dimension)?;
        // PyTorch refuses dtypes other than f16.
        let fits = !half_to_float || matrix.dtype == DType::F16;
        let to = if *half_to_float { DType::F32 } else { matrix.dtype };
        fits.then(|| attempt.launch(&matrix, [matrix.dtype, to], &[], &[input], &[(&matrix.sizes, to)]))?
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

pub(super) fn backward(
    kernels: &Kernels,
    operator: Operator,
    original: Option<Backward<'_>>,
    computation: Computation,
    stack: &Stack<'_>,
) {
    let arguments = BackwardArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation };
    let taken = attempt.make(|| {
        let BackwardArguments { gradient, output, dimension, input_dtype } = &arguments;
        let matrix = matrix_of_dimension(output, *dimension)?;
        let to = kernels.torch.dtype_of(input_dtype.0)?;
        let fits = matrix.is_beside(gradient, matrix.dtype, &matrix.sizes)
            && (to == matrix.dtype || (to, matrix.dtype) == (DType::F16, DType::F32));
        let (inputs, results) = ([output, gradient], [(&matrix.sizes[..], to)]);
        fits.then(|| attempt.launch(&matrix, [to, matrix.dtype], &[], &inputs, &results))?
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}
