//! Connectionist temporal classification (A. Graves et al., *Connectionist Temporal Classification*, 2006): the probability of a
//! sequence of labels, summed over all its alignments with time.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, refuse};

use super::Body::Composite;
use super::{operators, single};
use crate::dispatch::{Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns −ln of the probability of each sequence of labels, from the logarithms of the labels' probabilities (time, batch,
    /// labels). Targets are (batch, length), or concatenated. The gradient is that of probabilities whose sum is 1, as in
    /// PyTorch.
    "ctc_loss.IntList(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, int blank=0, int reduction=Mean, bool zero_infinity=False) -> Tensor"
        fn ctc_loss(targets: tensor, input_lengths: ints, target_lengths: ints, blank: int, reduction: int, zero_infinity: bool)
        = Composite(|call| ctc(call, &call.ints(2), &call.ints(3))), autocast: Parts;
    /// Returns −ln of the probability of each sequence of labels, with the lengths in tensors, which the host reads. Blocks.
    "ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, int reduction=Mean, bool zero_infinity=False) -> Tensor"
        fn ctc_loss_tensor(targets: tensor, input_lengths: tensor, target_lengths: tensor, blank: int, reduction: int, zero_infinity: bool)
        = Composite(|call| {
            let read = |place: usize| -> Result<Vec<i64>> {
                let lengths = call.tensor(place);
                lengths.detach().to_dtype(DType::I64)?.reshape(&[lengths.elements()])?.to_vec()
            };
            ctc(call, &read(2)?, &read(3)?)
        }), autocast: Parts;
}

fn ctc(call: &Call<'_>, times: &[i64], counts: &[i64]) -> Result<Tensors> {
    let (given, targets) = (call.tensor(0), call.tensor(1));
    let x = match given.rank() {
        3 => given.clone(),
        2 => given.unsqueeze(1)?,
        _ => {
            refuse!("ctc_loss: log_probs are (time, batch, labels), not {given:?}");
        }
    };
    let [time, batch, labels] = [0, 1, 2].map(|dim| x.shape()[dim]);
    check(call, &x, times, counts)?;
    let device = x.device();
    let longest = counts.iter().copied().max().unwrap_or(0) as usize;
    let width = 2 * longest + 1;
    let (names, skips) = states(call, targets, counts, [batch, labels, longest])?;
    let wide = x.to_dtype(x.dtype().compute())?;
    let emitted =
        wide.gather(2, &names.unsqueeze(0)?.expand(&[time, batch, width])?)?.to_dtype(DType::F64)?;
    let lengths = Tensor::from_slice(&[times, counts].concat(), &[2, batch], device)?;
    let inside = Tensor::arange(time, 0, 1, DType::I64, device)?.unsqueeze(1)?.lt(&lengths.select(0, 0)?)?;
    let zero = |dtype| Tensor::full(&[], 0.0, dtype, device);
    let total = inside.unsqueeze(2)?.select_where(&wide.exp()?, &zero(wide.dtype())?)?.sum(&[0, 2], false)?;
    let (total, skips) = (total.to_dtype(DType::F64)?, skips.contiguous()?);
    let operands = [&emitted, &total, &skips, &lengths].map(Into::into);
    let mut loss = built_in!("thalweg::alignments")?.call(&operands, None, call.label)?.remove(0);
    if call.bool(6) {
        loss = loss.detach().eq_scalar(f64::INFINITY)?.select_where(&zero(DType::F64)?, &loss)?;
    }
    let result = match call.int(5) {
        0 if given.rank() == 2 => loss.reshape(())?,
        0 => loss,
        1 => loss.div(&lengths.select(0, 1)?.clamp_min(1)?)?.mean(&[], false)?,
        2 => loss.sum(&[], false)?,
        other => return Err(Error::value(format!("{other} is not a valid value for reduction"))),
    };
    result.to_dtype(x.dtype()).map(single)
}

fn check(call: &Call<'_>, x: &Tensor, times: &[i64], counts: &[i64]) -> Result<()> {
    let refuse = |why: String| Err(invalid!("ctc_loss: {why}"));
    let (targets, blank) = (call.tensor(1), call.int(4));
    let [time, batch, labels] = [0, 1, 2].map(|dim| x.shape()[dim]);
    if !x.dtype().is_floating_point() || !matches!(targets.dtype(), DType::I64 | DType::I32) {
        return refuse(format!(
            "log_probs must be floats and targets int64 or int32, not {} and {}",
            x.dtype(),
            targets.dtype()
        ));
    }
    if !(0..labels as i64).contains(&blank) {
        return refuse("blank must be in label range".into());
    }
    if times.len() != batch || counts.len() != batch {
        return refuse("input_lengths and target_lengths must be of size batch_size".into());
    }
    if time == 0 || times.iter().any(|time_of| !(0..=time as i64).contains(time_of)) {
        return refuse(format!(
            "Expected input_lengths to have value at least 0 and at most {time}, but got {times:?}"
        ));
    }
    let room = match *targets.shape() {
        [rows, places] if rows == batch => counts.iter().all(|&count| count as usize <= places),
        [all] => counts.iter().map(|count| i128::from(*count)).sum::<i128>() <= all as i128,
        _ => false,
    };
    if counts.iter().any(|&count| count < 0) || !room {
        return refuse(format!(
            "target_lengths {counts:?} do not fit targets of shape {:?}",
            targets.shape()
        ));
    }
    Ok(())
}

/// Returns the states (batch, 2 · places + 1), which are the labels with blanks between them, and whether each state may directly
/// follow the one two before it.
fn states(
    call: &Call<'_>,
    targets: &Tensor,
    counts: &[i64],
    [batch, labels, longest]: [usize; 3],
) -> Result<(Tensor, Tensor)> {
    let device = targets.device();
    let blank = Tensor::full(&[batch, longest + 1], call.int(4), DType::I64, device)?;
    if longest == 0 {
        let none = Tensor::zeros(&[batch, 1], DType::Bool, device)?;
        return Ok((blank, none));
    }
    let targets = targets.to_dtype(DType::I64)?;
    let rows = if targets.rank() == 2 {
        targets.narrow(1, 0, longest)?
    } else {
        let all = targets.elements() as i64;
        let begins = counts.iter().scan(0, |sum, count| {
            let begin = *sum;
            *sum += count;
            Some(begin)
        });
        let places: Vec<i64> =
            begins.flat_map(|begin| (0..longest as i64).map(move |at| (begin + at).min(all - 1))).collect();
        targets
            .index_select(0, &Tensor::from_slice(&places, &[batch * longest], device)?)?
            .reshape(&[batch, longest])?
    };
    // The elements past a target's end are arbitrary.
    let rows = rows.clamp(0, labels as i64 - 1)?;
    let pairs =
        Tensor::stack(&[blank.narrow(1, 0, longest)?, rows.clone()], 2)?.reshape(&[batch, 2 * longest])?;
    let names = Tensor::cat(&[pairs, blank.narrow(1, 0, 1)?], 1)?;
    let differs = rows.narrow(1, 1, longest - 1)?.ne(&rows.narrow(1, 0, longest - 1)?)?;
    let no = |columns: usize| Tensor::zeros(&[batch, columns], DType::Bool, device);
    // Labels are at odd positions; the first has none before it.
    let skips = Tensor::stack(&[no(longest - 1)?, differs], 2)?.reshape(&[batch, 2 * longest - 2])?;
    Ok((names, Tensor::cat(&[no(2)?, skips, no(1)?], 1)?))
}
