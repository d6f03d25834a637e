//! Sums of products by labels of dimensions.

use thalweg_ir::{Shape, inverse_order};
use thalweg_runtime::{Error, Result, invalid};

use super::Body::Composite;
use super::{call as call_operator, operators, single};
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the sum of products over the labels that the result does not have: `ij,jk->ik` is the product of matrices.
    "einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor"
        of fn einsum(equation: str, tensors: tensors)
        = Composite(einsum), autocast: Lower;
}

/// The label of a dimension: a letter, or the number, counted from the last, of a dimension covered by `...`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Label {
    Hidden(usize),
    Letter(char),
}

fn fail<T>(why: impl Into<String>) -> Result<T> {
    Err(invalid!("einsum(): {}", why.into()))
}

/// Returns the labels of an operand or of the result; `hidden` is the number of dimensions covered by `...`.
fn labels(text: &str, hidden: usize) -> Result<Vec<Label>> {
    let mut list = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            list.extend((0..hidden).rev().map(Label::Hidden));
            rest = after;
        } else if letter.is_ascii_alphabetic() {
            list.push(Label::Letter(letter));
            rest = &rest[1..];
        } else {
            return fail(format!("invalid subscript given, subscripts must be in [a-zA-Z], not {letter:?}"));
        }
    }
    Ok(list)
}

/// Returns the labels of each operand and of the result.
fn parse(equation: &str, tensors: &[Tensor]) -> Result<(Vec<Vec<Label>>, Vec<Label>)> {
    let equation: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != tensors.len() {
        return fail("more operands were provided than specified in the equation, or fewer");
    }
    let mut operands = Vec::new();
    let mut most = 0;
    for (term, tensor) in terms.iter().zip(tensors) {
        let letters = term.replacen("...", "", 1).len();
        let hidden = match (term.contains("..."), tensor.rank().checked_sub(letters)) {
            (true, Some(hidden)) => hidden,
            (false, Some(0)) => 0,
            _ => {
                return fail(format!(
                    "the number of subscripts in the equation ({letters}) does not match the number of dimensions ({}) for operand {}",
                    tensor.rank(),
                    operands.len()
                ));
            }
        };
        most = most.max(hidden);
        let list = labels(term, hidden)?;
        if list.len() != tensor.rank() {
            return fail("found \'.\' for operand for which an ellipsis was already found");
        }
        operands.push(list);
    }
    let result = match right {
        Some(text) => labels(text, most)?,
        None => {
            let all: Vec<Label> = operands.iter().flatten().copied().collect();
            let once = |label: &Label| {
                matches!(label, Label::Hidden(_)) || all.iter().filter(|other| *other == label).count() == 1
            };
            let mut list: Vec<Label> = all.iter().copied().filter(once).collect();
            // Hidden dimensions come first, in order, followed by the letters in alphabetical order.
            list.sort_by_key(|label| match label {
                Label::Hidden(back) => (0, usize::MAX - back),
                Label::Letter(letter) => (1, *letter as usize),
            });
            list.dedup();
            list
        }
    };
    for (place, label) in result.iter().enumerate() {
        if result[..place].contains(label) {
            return fail("output subscript appears more than once in the output");
        }
        if let Label::Letter(letter) = label
            && !operands.iter().flatten().any(|other| other == label)
        {
            return fail(format!(
                "output subscript {letter} does not appear in the equation for any input operand"
            ));
        }
    }
    Ok((operands, result))
}

fn einsum(call: &Call<'_>) -> Result<Tensors> {
    let tensors = call.tensor_list(1);
    if tensors.is_empty() {
        return fail("must provide at least one operand");
    }
    let (operands, result) = parse(call.str(0), tensors)?;
    let mut all = result.clone();
    for label in operands.iter().flatten() {
        if !all.contains(label) {
            all.push(*label);
        }
    }
    let mut list = Vec::new();
    for (tensor, labels) in tensors.iter().zip(&operands) {
        list.push(spread(tensor, labels, &all)?);
    }
    let mut extents: Shape = Shape::from_elem(1, all.len());
    for operand in &list {
        for (known, &extent) in extents.iter_mut().zip(operand.shape()) {
            if extent != 1 && *known != 1 && extent != *known {
                return fail(format!(
                    "subscript has size {extent} for an operand which does not broadcast with previously seen size {known}"
                ));
            }
            if extent != 1 {
                *known = extent;
            }
        }
    }
    // A label is summed over with the last operand that has it.
    let last_of =
        |dimension: usize| list.iter().rposition(|operand| operand.shape()[dimension] != 1).unwrap_or(0);
    let summed_at = |step: usize| -> Vec<usize> {
        (result.len()..all.len()).filter(|&dimension| last_of(dimension) == step).collect()
    };
    let mut product = sum(&list[0], &summed_at(0))?;
    for (step, operand) in list.iter().enumerate().skip(1) {
        product = pair(&product, operand, &summed_at(step))?;
    }
    let shape: Shape = product.shape()[..result.len()].into();
    let product = product.reshape(&shape)?;
    // A sum is never a view, even if there was only one element to add.
    let is_summed = all.len() > result.len();
    match is_summed && tensors.iter().any(|tensor| product.shares_storage_with(tensor)) {
        true => product.copied(call.label.location).map(single),
        false => Ok(single(product)),
    }
}

/// Returns a tensor with one dimension per label, of extent 1 for labels that it does not have.
fn spread(tensor: &Tensor, own: &[Label], all: &[Label]) -> Result<Tensor> {
    let (mut tensor, mut own) = (tensor.clone(), own.to_vec());
    // A label that repeats is a diagonal.
    while let Some((first, second)) = repeated(&own) {
        let (a, b) = (tensor.shape()[first], tensor.shape()[second]);
        if a != b {
            return fail(format!("subscript is repeated for operand but the sizes don't match, {b} != {a}"));
        }
        let arguments = [
            Argument::Tensor(&tensor),
            Argument::Int(0),
            Argument::Int(first as i64),
            Argument::Int(second as i64),
        ];
        tensor = call_operator(built_in!("diagonal")?, &arguments, None, std::panic::Location::caller())?;
        let label = own.remove(second);
        own.remove(first);
        own.push(label);
    }
    let order: Shape = all.iter().filter_map(|label| own.iter().position(|other| other == label)).collect();
    let shape: Shape = (all.iter())
        .map(|label| own.iter().position(|other| other == label).map_or(1, |place| tensor.shape()[place]))
        .collect();
    tensor.permute(&order)?.reshape(&shape)
}

fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|second| {
        let first = labels[..second].iter().position(|label| *label == labels[second])?;
        Some((first, second))
    })
}

/// Returns the sum over dimensions, which are kept.
fn sum(tensor: &Tensor, dimensions: &[usize]) -> Result<Tensor> {
    let list: Vec<i64> = dimensions.iter().filter(|&&d| tensor.shape()[d] != 1).map(|&d| d as i64).collect();
    if list.is_empty() { Ok(tensor.clone()) } else { tensor.sum(&list, true) }
}

/// Returns the product of two operands, summed over dimensions: a product of matrices of a batch, or of elements if nothing that both
/// have is summed over.
fn pair(a: &Tensor, b: &Tensor, summed: &[usize]) -> Result<Tensor> {
    let is_one = |tensor: &Tensor, d: usize| tensor.shape()[d] == 1;
    // Dimensions that only one operand has are summed first.
    let alone = |tensor: &Tensor, other: &Tensor| -> Vec<usize> {
        summed.iter().copied().filter(|&d| !is_one(tensor, d) && is_one(other, d)).collect()
    };
    let (mut a, mut b) = (&sum(a, &alone(a, b))?, &sum(b, &alone(b, a))?);
    if !summed.iter().any(|&d| !is_one(a, d) && !is_one(b, d)) {
        return a.mul(b);
    }
    let rank = a.rank();
    // The rows are those of the operand whose dimensions all come first in the result, whose memory then is in its order.
    let is_alone = |one: &Tensor, other: &Tensor, d: usize| !is_one(one, d) && is_one(other, d);
    let last_of_b = (0..rank).rfind(|&d| is_alone(b, a, d));
    if last_of_b.is_some_and(|last| (0..rank).find(|&d| is_alone(a, b, d)).is_some_and(|first| last < first))
    {
        std::mem::swap(&mut a, &mut b);
    }
    let of = |wanted: &dyn Fn(usize) -> bool| -> Shape { (0..rank).filter(|&d| wanted(d)).collect() };
    let both = |d: usize| !is_one(a, d) && !is_one(b, d);
    let inner = of(&|d| both(d) && summed.contains(&d));
    let batch = of(&|d| both(d) && !summed.contains(&d));
    let rows = of(&|d| !is_one(a, d) && is_one(b, d));
    let columns = of(&|d| is_one(a, d) && !is_one(b, d));
    let rest = of(&|d| is_one(a, d) && is_one(b, d));
    let extents =
        |tensor: &Tensor, list: &Shape| -> Shape { list.iter().map(|&d| tensor.shape()[d]).collect() };
    let volume = |tensor: &Tensor, list: &Shape| extents(tensor, list).iter().product::<usize>();
    let matrices = |tensor: &Tensor, first: &Shape, second: &Shape, ones: &[&Shape]| {
        let order: Shape =
            [&batch, first, second].into_iter().chain(ones.iter().copied()).flatten().copied().collect();
        let shape = [volume(tensor, &batch), volume(tensor, first), volume(tensor, second)];
        tensor.permute(&order)?.reshape(&shape)
    };
    let left = matrices(a, &rows, &inner, &[&columns, &rest])?;
    let right = matrices(b, &inner, &columns, &[&rows, &rest])?;
    let product = left.matmul(&right)?;
    let order: Shape = [&batch, &rows, &columns, &inner, &rest].into_iter().flatten().copied().collect();
    let mut shape: Shape = extents(a, &batch);
    shape.extend(extents(a, &rows));
    shape.extend(extents(b, &columns));
    shape.resize(rank, 1);
    product.reshape(&shape)?.permute(&inverse_order(&order))
}
