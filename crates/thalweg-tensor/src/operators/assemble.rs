//! Operators that join tensors: next to each other, on the blocks of a diagonal, in all combinations.

use smallvec::SmallVec;
use thalweg_ir::{Scalar, Shape, broadcast_shapes};
use thalweg_ops::default_dtype;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::create::pad;
use super::{operators, single};
use crate::dispatch::{Arguments, Call};
use crate::host_room::host_room;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the tensor with at least one dimension.
    "atleast_1d(Tensor self) -> Tensor" fn atleast_1d() = Composite(|call| at_least(call.tensor(0), 1).map(single)), autocast: Parts;
    /// Returns the tensor with at least two dimensions: a vector is a row.
    "atleast_2d(Tensor self) -> Tensor" fn atleast_2d() = Composite(|call| at_least(call.tensor(0), 2).map(single)), autocast: Parts;
    /// Returns the tensor with at least three dimensions: a vector is a row, and a matrix has a last dimension of extent 1 added.
    "atleast_3d(Tensor self) -> Tensor" fn atleast_3d() = Composite(|call| at_least(call.tensor(0), 3).map(single)), autocast: Parts;
    /// Returns tensors with at least one dimension each.
    "atleast_1d.Sequence(Tensor[] tensors) -> Tensor[]"
        of fn atleast_1d_all(tensors: tensors) -> list
        = Composite(|call| all_at_least(call.tensor_list(0), 1)), autocast: Parts;
    /// Returns tensors with at least two dimensions each.
    "atleast_2d.Sequence(Tensor[] tensors) -> Tensor[]"
        of fn atleast_2d_all(tensors: tensors) -> list
        = Composite(|call| all_at_least(call.tensor_list(0), 2)), autocast: Parts;
    /// Returns tensors with at least three dimensions each.
    "atleast_3d.Sequence(Tensor[] tensors) -> Tensor[]"
        of fn atleast_3d_all(tensors: tensors) -> list
        = Composite(|call| all_at_least(call.tensor_list(0), 3)), autocast: Parts;
    /// Concatenates tensors along the second dimension; vectors along their only one.
    "hstack(Tensor[] tensors) -> Tensor"
        of fn hstack(tensors: tensors)
        = Composite(|call| {
        let list = all_at_least(not_empty(call, "hstack")?, 1)?;
        let dim = i64::from(list[0].rank() > 1);
        Tensor::cat(&list, dim).map(single)
    }), autocast: Parts;
    /// Concatenates tensors along the first dimension; vectors are rows.
    "vstack(Tensor[] tensors) -> Tensor"
        of fn vstack(tensors: tensors)
        = Composite(|call| Tensor::cat(&all_at_least(not_empty(call, "vstack")?, 2)?, 0).map(single)), autocast: Parts;
    /// Concatenates tensors along the third dimension.
    "dstack(Tensor[] tensors) -> Tensor"
        of fn dstack(tensors: tensors)
        = Composite(|call| Tensor::cat(&all_at_least(not_empty(call, "dstack")?, 3)?, 2).map(single)), autocast: Parts;
    /// Concatenates tensors along the second dimension; vectors are columns.
    "column_stack(Tensor[] tensors) -> Tensor"
        of fn column_stack(tensors: tensors)
        = Composite(|call| {
        let column = |x: &Tensor| if x.rank() < 2 { x.reshape(&[x.elements(), 1]) } else { Ok(x.clone()) };
        let list: Tensors = not_empty(call, "column_stack")?.iter().map(column).collect::<Result<_>>()?;
        Tensor::cat(&list, 1).map(single)
    }), autocast: Parts;
    /// Returns a matrix with matrices on its diagonal and zeros elsewhere; vectors are rows.
    "block_diag(Tensor[] tensors) -> Tensor"
        of fn block_diag(tensors: tensors)
        = Composite(|call| block_diag(call).map(single));
    /// Returns all combinations of one element of each vector as rows.
    "cartesian_prod(Tensor[] tensors) -> Tensor"
        of fn cartesian_prod(tensors: tensors)
        = Composite(|call| cartesian_prod(call).map(single)), autocast: Parts;
    /// Returns all combinations of r elements of a vector as rows, in the order of their indices.
    "combinations(Tensor self, int r=2, bool with_replacement=False) -> Tensor"
        fn combinations(r: int, with_replacement: bool) = Composite(|call| combinations(call).map(single)), autocast: Parts;
    /// Returns tensors broadcast against each other. A tensor that has the shape already is returned itself.
    "broadcast_tensors(Tensor[] tensors) -> Tensor[]"
        of fn broadcast_tensors(tensors: tensors) -> list
        = Composite(|call| {
        let list = call.tensor_list(0);
        let shape = list.iter().try_fold(Shape::new(), |shape, x| broadcast_shapes(&shape, x.shape()))?;
        list.iter().map(|x| if x.shape() == &shape[..] { Ok(x.clone()) } else { x.expand(&shape) }).collect()
    }), autocast: Parts;
}

fn at_least(x: &Tensor, rank: usize) -> Result<Tensor> {
    match (x.rank(), rank) {
        (0, _) => x.reshape(&vec![1; rank]),
        (1, 2) => x.unsqueeze(0),
        (1, 3) => x.unsqueeze(0)?.unsqueeze(-1),
        (2, 3) => x.unsqueeze(-1),
        _ => Ok(x.clone()),
    }
}

fn all_at_least(list: &[Tensor], rank: usize) -> Result<Tensors> {
    list.iter().map(|x| at_least(x, rank)).collect()
}

fn not_empty<'a>(call: &'a Call<'a>, name: &str) -> Result<&'a [Tensor]> {
    match call.tensor_list(0) {
        [] => Err(invalid!("{name} expects a non-empty TensorList")),
        list => Ok(list),
    }
}

fn block_diag(call: &Call<'_>) -> Result<Tensor> {
    let list = call.tensor_list(0);
    if let Some((place, x)) = list.iter().enumerate().find(|(_, x)| x.rank() > 2) {
        refuse!(
            "torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {place} has {} dimensions",
            x.rank()
        );
    }
    let blocks = all_at_least(list, 2)?;
    if blocks.is_empty() {
        return Tensor::empty(&[1, 0], default_dtype(), call.device);
    }
    let columns: usize = blocks.iter().map(|block| block.shape()[1]).sum();
    let mut before = 0;
    let rows: Tensors = (blocks.iter())
        .map(|block| {
            let after = columns - before - block.shape()[1];
            let padding = [before as i64, after as i64];
            before += block.shape()[1];
            pad(block, &padding, Scalar::I64(0))
        })
        .collect::<Result<_>>()?;
    let joined = Tensor::cat(&rows, 0)?;
    // A single block without padding would be returned itself, so it is copied.
    if blocks.len() == 1 { joined.copied(call.label.location) } else { Ok(joined) }
}

fn cartesian_prod(call: &Call<'_>) -> Result<Tensor> {
    let list = call.tensor_list(0);
    if let Some(x) = list.iter().find(|x| x.rank() != 1) {
        refuse!("Expect a 1D vector, but got shape {:?}", x.shape());
    }
    match list {
        [] => Err(invalid!("meshgrid expects a non-empty TensorList")),
        [only] => Ok(only.clone()),
        _ => {
            let grid: Shape = list.iter().map(Tensor::elements).collect();
            let columns: Tensors = (list.iter().enumerate())
                .map(|(place, x)| {
                    let mut shape: Shape = SmallVec::from_elem(1, grid.len());
                    shape[place] = x.elements();
                    let whole = x.reshape(&shape)?.expand(&grid)?;
                    whole.reshape(&[whole.elements()])
                })
                .collect::<Result<_>>()?;
            Tensor::stack(&columns, 1)
        }
    }
}

fn combinations(call: &Call<'_>) -> Result<Tensor> {
    let (x, r, repeats) = (call.tensor(0), call.int(1), call.bool(2));
    refuse_if!(x.rank() != 1, "Expect a 1D vector, but got shape {:?}", x.shape());
    let Ok(r) = usize::try_from(r) else {
        refuse!("Expect a non-negative number, but got {r}");
    };
    if r == 0 {
        return Tensor::empty(&[0], x.dtype(), x.device());
    }
    let places = places_of_combinations(x.elements(), r, repeats)?;
    let index = Tensor::from_slice(&places, &[places.len()], x.device())?;
    x.index_select(0, &index)?.reshape(&[places.len() / r, r])
}

/// Returns all ascending lists of r indices below n, concatenated; with repetition, all non-descending lists.
fn places_of_combinations(n: usize, r: usize, repeats: bool) -> Result<Vec<i64>> {
    // ⁿCᵣ, or ⁿ⁺ʳ⁻¹Cᵣ.
    let choices = if repeats && n > 0 { n.saturating_add(r - 1) } else { n };
    let mut count = usize::from(r <= choices);
    for step in 0..r.min(choices) {
        let Some(next) = count.checked_mul(choices - step) else {
            refuse!("combinations: there are more than can be counted");
        };
        count = next / (step + 1);
    }
    let mut list = host_room(count.saturating_mul(r))?;
    if count == 0 {
        return Ok(list);
    }
    let step = usize::from(!repeats);
    let mut current: Vec<usize> = (0..r).map(|place| place * step).collect();
    loop {
        list.extend(current.iter().map(|&place| place as i64));
        let last = |place: usize| n - 1 - (r - 1 - place) * step;
        let Some(moved) = (0..r).rev().find(|&place| current[place] < last(place)) else { return Ok(list) };
        current[moved] += 1;
        for place in moved + 1..r {
            current[place] = current[place - 1] + step;
        }
    }
}
