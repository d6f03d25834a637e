//! Sums, means, maxima and log-sum-exps along adjacent dimensions.

use smallvec::SmallVec;
use thalweg_ir::DType;

use super::libtorch::Stack;
use super::operators::{Attempt, Taken, dimension_of, matrix_along, of_words, put, shape_at};
use super::original::{Reduce, ReduceArguments, ReduceTo};

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

fn launch<'k>(attempt: &Attempt<'k>, arguments: &ReduceArguments<'_>) -> Taken<'k> {
    let ReduceArguments { input, dimensions, keeps, to } = arguments;
    // PyTorch refuses to reduce more.
    let rank = usize::try_from(input.rank()?).ok().filter(|&rank| rank <= MOST_DIMENSIONS)?;
    let run = run_of(dimensions.as_deref()?, rank)?;
    let matrix = matrix_along(input, run.clone())?;
    let to = match to {
        Some(number) => attempt.kernels.torch.dtype_of(*number)?,
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

const FOUND: &str = "only operators are registered whose kernel was found";

/// Computes a reduction whose call may name a dtype.
pub(super) fn to_dtype(attempt: &Attempt<'_>, original: Option<ReduceTo>, stack: &Stack<'_>) {
    let arguments = ReduceArguments {
        input: stack.tensor(0),
        dimensions: (stack.optional_list(1)).map(|words| words.into_iter().map(u64::cast_signed).collect()),
        keeps: stack.bool(2),
        to: stack.optional_word(3).map(|word| word as u32 as i32),
    };
    run(attempt, &arguments, || arguments.call_to(original.expect(FOUND)), stack);
}

/// Computes a reduction in the input's dtype.
pub(super) fn reduce(attempt: &Attempt<'_>, original: Option<Reduce>, stack: &Stack<'_>) {
    let arguments = ReduceArguments {
        input: stack.tensor(0),
        dimensions: Some(shape_at(stack, 1)),
        keeps: stack.bool(2),
        to: None,
    };
    run(attempt, &arguments, || arguments.call(original.expect(FOUND)), stack);
}

fn run(
    attempt: &Attempt<'_>,
    arguments: &ReduceArguments<'_>,
    original: impl FnOnce() -> u64,
    stack: &Stack<'_>,
) {
    let taken = attempt.make(|| launch(attempt, arguments));
    put(stack, taken.unwrap_or_else(|| of_words(&attempt.kernels.torch, [original()])));
}
