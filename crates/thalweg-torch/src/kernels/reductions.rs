//! Sums, means, maxima and log-sum-exps along adjacent dimensions.

use smallvec::SmallVec;
use thalweg_ir::DType;

use super::libtorch::{Stack, Tensor};
use super::operators::{Attempt, Taken, dimension_of, matrix_along, put_or};
use super::original::{Exported, Kind, Reduce, ReduceArguments, ReduceTo, ReduceToArguments};
use super::rows::Computation;
use super::{Kernels, Operator};

/// The maximum rank of a tensor that PyTorch reduces.
const MOST_DIMENSIONS: usize = 64;

/// Returns the range of adjacent dimensions that a list names; `None` if the list is empty, names one twice, or they are not
/// adjacent.
fn run_of(dimensions: &[i64], rank: usize) -> Option<std::ops::Range<usize>> {
    let mut places: SmallVec<[usize; 6]> =
        dimensions.iter().map(|&dimension| dimension_of(dimension, rank)).collect::<Option<_>>()?;
    places.sort_unstable();
    let (first, last) = (*places.first()?, *places.last()?);
    let is_run = places.windows(2).all(|pair| pair[1] == pair[0] + 1);
    is_run.then_some(first..last + 1)
}

fn launch<'k>(
    attempt: &Attempt<'k>,
    input: &Tensor<'_>,
    dimensions: &[i64],
    keeps: bool,
    to: Option<Kind>,
) -> Taken<'k> {
    // PyTorch refuses to reduce more.
    let rank = usize::try_from(input.rank()?).ok().filter(|&rank| rank <= MOST_DIMENSIONS)?;
    let run = run_of(dimensions, rank)?;
    let matrix = matrix_along(input, run.clone())?;
    let to = match to {
        Some(Kind(number)) => attempt.kernels.torch.dtype_of(number)?,
        None => matrix.dtype,
    };
    if to != matrix.dtype && to != DType::F32 {
        return None;
    }
    let mut sizes = matrix.sizes.clone();
    match keeps {
        true => sizes[run].fill(1),
        false => drop(sizes.drain(run)),
    }
    let count = [(matrix.columns as f64).to_bits()];
    let scalars = &count[..attempt.computation.scalars()];
    attempt.launch(&matrix, [matrix.dtype, to], scalars, &[input], &[(&sizes, to)])
}

/// Computes a reduction whose call may name a dtype.
pub(super) fn to_dtype(
    kernels: &Kernels,
    operator: Operator,
    original: Option<ReduceTo<'_>>,
    computation: Computation,
    stack: &Stack<'_>,
) {
    let arguments = ReduceToArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation };
    let taken = attempt.make(|| {
        let ReduceToArguments { input, dimensions, keeps, to } = &arguments;
        launch(&attempt, input, dimensions.as_deref()?, *keeps, *to)
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}

/// Computes a reduction in the input's dtype.
pub(super) fn reduce(
    kernels: &Kernels,
    operator: Operator,
    original: Option<Reduce<'_>>,
    computation: Computation,
    stack: &Stack<'_>,
) {
    let arguments = ReduceArguments::take(stack);
    let attempt = Attempt { kernels, operator, computation };
    let taken = attempt.make(|| {
        let ReduceArguments { input, dimensions, keeps } = &arguments;
        launch(&attempt, input, dimensions, *keeps, None)
    });
    put_or(kernels, stack, taken, || arguments.call(original.found()));
}
