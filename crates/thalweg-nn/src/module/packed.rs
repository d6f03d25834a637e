//! Sequences of several lengths in one batch (`torch.nn.utils.rnn`): padded, or packed without padding.

use std::panic::Location;

use thalweg_derive::in_call;
use thalweg_ir::Scalar;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::in_call;

/// A batch of sequences without padding, step by step (`PackedSequence`), as
/// [`Recurrent::forward_packed`](super::Recurrent::forward_packed) takes it.
#[derive(Clone, Debug)]
pub struct PackedSequence {
    /// The elements, (sum of lengths, …): the first elements of all sequences, the longest sequence first, then the second
    /// elements of those that have one, and so on.
    pub data: Tensor,
    /// The number of sequences that have an element at each step. It never increases.
    pub batch_sizes: Vec<usize>,
    /// The sequences of the batch from the longest to the shortest, (batch) of i64; `None` if the batch already has this order.
    pub sorted_indices: Option<Tensor>,
    /// The position of each sequence of the batch among the sorted ones, (batch) of i64; `None` if the batch is already sorted.
    pub unsorted_indices: Option<Tensor>,
}

impl PackedSequence {
    /// Returns the number of sequences.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the batch sizes are empty, zero or increasing, if they do not match the data, or if the
    /// indices have another shape.
    pub(super) fn batch(&self) -> Result<usize> {
        let Self { data, batch_sizes, sorted_indices, unsorted_indices } = self;
        let sum = batch_sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        let falls =
            batch_sizes.is_sorted_by(|a, b| a >= b) && batch_sizes.last().is_some_and(|&last| last > 0);
        refuse_if!(
            !falls || data.rank() == 0 || sum != Some(data.shape()[0]),
            "Expected the batch sizes of a packed sequence to be above 0, not to grow, and to sum up to the length of its data, \
             but got {batch_sizes:?} for data of {:?}",
            data.shape()
        );
        let batch = batch_sizes[0];
        match [sorted_indices, unsorted_indices].into_iter().flatten().find(|order| order.shape() != [batch])
        {
            None => Ok(batch),
            Some(order) => Err(invalid!(
                "Expected the indices of a packed sequence to be of shape [{batch}], but got {:?}",
                order.shape()
            )),
        }
    }
}

/// The positions of the elements of packed sequences in the padded batch.
struct Places {
    batch_sizes: Vec<usize>,
    /// The sequences from the longest to the shortest.
    order: Vec<usize>,
}

impl Places {
    fn new(lengths: &[usize]) -> Result<Self> {
        if lengths.is_empty() || lengths.contains(&0) {
            refuse!("Length of all samples has to be greater than 0, and there is at least one");
        }
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&sequence| std::cmp::Reverse(lengths[sequence]));
        let sizes =
            (0..lengths[order[0]]).map(|step| lengths.iter().filter(|&&length| length > step).count());
        Ok(Self { batch_sizes: sizes.collect(), order })
    }

    /// Returns the index of each packed element in a padded batch of `(steps, batch)`, or of `(batch, steps)`.
    fn flat(batch_sizes: &[usize], order: &[usize], steps: usize, batch_first: bool) -> Vec<i64> {
        let place = |step: usize, sequence: usize| match batch_first {
            true => sequence * steps + step,
            false => step * order.len() + sequence,
        };
        let at = |(step, &size): (usize, &usize)| -> Vec<i64> {
            order[..size].iter().map(|&sequence| place(step, sequence) as i64).collect()
        };
        batch_sizes.iter().enumerate().flat_map(at).collect()
    }
}

fn indices(list: &[i64], beside: &Tensor) -> Result<Tensor> {
    Tensor::from_slice(list, &[list.len()], beside.device())
}

/// Packs a padded batch (steps, batch, …), or (batch, steps, …) with `batch_first`. With `enforce_sorted` the sequences must be
/// ordered from the longest to the shortest; otherwise they are sorted, and [`pad_packed_sequence`] restores their order.
///
/// # Errors
/// [`Error::is_invalid_argument`] if lengths are zero, do not fit the batch, or are not sorted although they should be.
#[in_call("pack_padded_sequence", &[input])]
pub fn pack_padded_sequence(
    input: &Tensor,
    lengths: &[usize],
    batch_first: bool,
    enforce_sorted: bool,
) -> Result<PackedSequence> {
    let Places { batch_sizes, order } = Places::new(lengths)?;
    let (batch, steps) = match *input.shape() {
        [first, second, ..] if batch_first => (first, second),
        [first, second, ..] => (second, first),
        _ => {
            refuse!("Expected a batch of sequences, got {:?}", input.shape());
        }
    };
    refuse_if!(
        batch != lengths.len() || batch_sizes.len() > steps,
        "Expected `len(lengths)` to be equal to batch_size {batch} and lengths up to {steps}, but got {lengths:?}"
    );
    refuse_if!(
        enforce_sorted && !lengths.is_sorted_by(|a, b| a >= b),
        "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass \
             `enforce_sorted=False` to sort the sequences"
    );
    let places = indices(&Places::flat(&batch_sizes, &order, steps, batch_first), input)?;
    let data = input.flatten(0, 1)?.index_select(0, &places)?;
    let (mut sorted_indices, mut unsorted_indices) = (None, None);
    if !enforce_sorted {
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &sequence)| back[sequence] = place as i64);
        let order: Vec<i64> = order.iter().map(|&sequence| sequence as i64).collect();
        (sorted_indices, unsorted_indices) = (Some(indices(&order, input)?), Some(indices(&back, input)?));
    }
    Ok(PackedSequence { data, batch_sizes, sorted_indices, unsorted_indices })
}

/// Pads packed sequences to (steps, batch, …), or (batch, steps, …) with `batch_first`, and returns them with their lengths.
/// There are `total_length` steps, by default the length of the longest sequence. If the sequences were sorted, *blocks* until
/// their order is read.
///
/// # Errors
/// [`Error::is_invalid_argument`] if `total_length` is shorter than a sequence, or the sizes or indices are not those of a packed
/// sequence.
#[track_caller]
pub fn pad_packed_sequence(
    sequence: &PackedSequence,
    batch_first: bool,
    padding_value: impl Into<Scalar>,
    total_length: Option<usize>,
) -> Result<(Tensor, Vec<usize>)> {
    let padding_value = padding_value.into();
    in_call("pad_packed_sequence", &[&sequence.data], Location::caller(), || {
        let PackedSequence { data, batch_sizes, sorted_indices, .. } = sequence;
        let (longest, batch) = (batch_sizes.len(), sequence.batch()?);
        let steps = total_length.unwrap_or(longest);
        refuse_if!(
            steps < longest,
            "Expected total_length to be at least the length of the longest sequence in input, but got total_length={steps} and \
             max sequence length being {longest}"
        );
        let order: Vec<usize> = match sorted_indices {
            Some(order) => order.to_vec::<i64>()?.into_iter().map(|sequence| sequence as usize).collect(),
            None => (0..batch).collect(),
        };
        let mut places = order.clone();
        places.sort_unstable();
        if !places.into_iter().eq(0..batch) {
            refuse!("Expected sorted_indices to name each sequence once, but got {order:?}");
        }
        let Some(elements) = steps.checked_mul(batch) else {
            refuse!("total_length={steps} is too large for a batch of {batch}");
        };
        let mut lengths = vec![0; batch];
        for &size in batch_sizes {
            order[..size].iter().for_each(|&sequence| lengths[sequence] += 1);
        }
        let places = indices(&Places::flat(batch_sizes, &order, steps, batch_first), data)?;
        let shape: Vec<usize> = [elements].into_iter().chain(data.shape()[1..].iter().copied()).collect();
        let padding = Tensor::full(&shape, padding_value, data.dtype(), data.device())?;
        let sizes = if batch_first { [batch, steps] } else { [steps, batch] };
        let padded = padding.index_copy(0, &places, data)?.unflatten(0, &sizes.map(|size| size as i64))?;
        Ok((padded, lengths))
    })
}

/// Pads sequences of shapes (steps, …) to the longest, as (steps, batch, …), or (batch, steps, …) with `batch_first`.
///
/// # Errors
/// [`Error::is_invalid_argument`] if there are no sequences, or their elements differ in shape.
#[track_caller]
pub fn pad_sequence(
    sequences: &[Tensor],
    batch_first: bool,
    padding_value: impl Into<Scalar>,
) -> Result<Tensor> {
    let padding_value = padding_value.into();
    let all: Vec<&Tensor> = sequences.iter().collect();
    in_call("pad_sequence", &all, Location::caller(), || {
        let steps = |sequence: &Tensor| sequence.shape().first().copied().unwrap_or(0);
        let longest = sequences.iter().map(steps).max().unwrap_or(0);
        let padded = |sequence: &Tensor| {
            let mut widths = vec![0; 2 * sequence.rank().saturating_sub(1)];
            widths.extend([0, (longest - steps(sequence)) as i64]);
            sequence.constant_pad_nd(&widths, padding_value)
        };
        let padded = sequences.iter().map(padded).collect::<Result<Vec<_>>>()?;
        Tensor::stack(&padded, if batch_first { 0 } else { 1 })
    })
}

/// Packs sequences of shapes (steps, …).
#[track_caller]
pub fn pack_sequence(sequences: &[Tensor], enforce_sorted: bool) -> Result<PackedSequence> {
    let all: Vec<&Tensor> = sequences.iter().collect();
    in_call("pack_sequence", &all, Location::caller(), || {
        let lengths: Vec<usize> =
            sequences.iter().map(|one| one.shape().first().copied().unwrap_or(0)).collect();
        pack_padded_sequence(&pad_sequence(sequences, false, 0.0)?, &lengths, false, enforce_sorted)
    })
}
