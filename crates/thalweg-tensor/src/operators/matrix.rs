//! Matrices built from vectors, their diagonals, and products of several.

use smallvec::SmallVec;
use thalweg_ir::{DType, Shape, broadcast_shapes};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::Composite;
use super::view::{check_options, diagonal, wrap, wrap_all};
use super::{operators, single};
use crate::dispatch::{Arguments, Call};
use crate::host_room::host_room;
use crate::tensor::Tensor;

operators! {
    /// Returns the matrix with a vector as its diagonal, or a matrix's diagonal; `diagonal` is its distance above the main one.
    "diag(Tensor self, int diagonal=0) -> Tensor"
        fn diag(diagonal: int) = Composite(|call| match call.tensor(0).rank() {
            1 => diag_embed(call.tensor(0), call.int(1), 0, 1).map(single),
            2 => diagonal(call.tensor(0), call.int(1), 0, 1)?.copied(call.label.location).map(single),
            rank => Err(invalid!("diag(): Supports 1D or 2D tensors. Got {rank}D")),
        }), out: [OfResult], autocast: Parts;
    /// Returns matrices whose diagonals are the last dimension's rows, in two dimensions of the result.
    "diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor"
        fn diag_embed(offset: int, dim1: int, dim2: int)
        = Composite(|call| diag_embed(call.tensor(0), call.int(1), call.int(2), call.int(3)).map(single));
    /// Returns the matrix with all elements on its diagonal.
    "diagflat(Tensor self, int offset=0) -> Tensor"
        fn diagflat(offset: int) = Composite(|call| {
            let x = call.tensor(0);
            diag_embed(&x.reshape(&[x.elements()])?, call.int(1), 0, 1).map(single)
        }), autocast: Parts;
    /// Returns the diagonals of matrices as the last dimension.
    "linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)"
        fn linalg_diagonal()
        = Composite(|call| diagonal(call.tensor(0), call.int(1), call.int(2), call.int(3)).map(single)), autocast: Parts;
    /// Returns the sum of a matrix's diagonal.
    "trace(Tensor self) -> Tensor" fn trace() = Composite(|call| {
        let x = call.tensor(0);
        match x.rank() {
            2 => diagonal(x, 0, 0, 1)?.sum(&[], false).map(single),
            _ => Err(invalid!("trace: expected a matrix")),
        }
    });
    /// Returns the rows and columns of the elements of a matrix up to a diagonal.
    "tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| triangle_indices(call, true).map(single));
    /// Returns the rows and columns of the elements of a matrix from a diagonal on.
    "triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| triangle_indices(call, false).map(single));
    /// Returns the products of all elements of one tensor with the other: blocks of the second, a block per element of the first.
    "kron(Tensor self, Tensor other) -> Tensor" fn kron(other: tensor) = Composite(|call| kron(call).map(single)), autocast: Parts;
    /// Returns the sums of products over dimensions of one tensor and those of another.
    "tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor"
        fn tensordot(other: tensor, dims_self: ints, dims_other: ints) = Composite(|call| tensordot(call).map(single)), out: [OfResult], autocast: Widest;
    /// Returns the product of matrices, in the order that takes the fewest multiplications; the first and last may be vectors.
    "linalg_multi_dot(Tensor[] tensors) -> Tensor"
        of fn linalg_multi_dot(tensors: tensors)
        = Composite(|call| multi_dot(call).map(single)), out: [OfResult], autocast: Lower;
    /// Returns the matrix whose rows are the powers, from 0 on, of a vector's elements.
    "linalg_vander(Tensor x, *, SymInt? N=None) -> Tensor"
        fn linalg_vander()
        = Composite(|call| vander(call).map(single)), autocast: Parts;
    /// Returns the sums along a dimension of the products of x's complex conjugates and y. The shapes are broadcast.
    "linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor"
        fn linalg_vecdot(y: tensor)
        = Composite(|call| {
        let (x, y) = (call.tensor(0), call.tensor(1));
        check_same_dtype("linalg.vecdot", x, y)?;
        let wide = x.dtype().compute();
        let product = x.conj()?.to_dtype(wide)?.mul(&y.to_dtype(wide)?)?;
        product.sum(&[call.int(2)], false)?.to_dtype(x.dtype()).map(single)
    }), out: [OfResult], autocast: Lower;
    /// Returns the cross products of vectors of three elements along a dimension, which are broadcast.
    "linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor"
        fn linalg_cross(other: tensor)
        = Composite(|call| cross(call.tensor(0), call.tensor(1), call.int(2)).map(single)), out: [OfResult];
    /// Returns the cross products of vectors of three elements along a dimension: by default the first of extent 3.
    "cross(Tensor self, Tensor other, int? dim=None) -> Tensor"
        fn cross(other: tensor, dim: optional_int) = Composite(|call| {
            let (x, y) = (call.tensor(0), call.tensor(1));
            let dim = match call.optional_int(2) {
                Some(dim) => dim,
                None => x.shape().iter().position(|&extent| extent == 3).map(|dim| dim as i64).ok_or_else(|| {
                    invalid!("no dimension of size 3 in input")
                })?,
            };
            cross(x, y, dim).map(single)
        }), out: [OfResult], autocast: Widest;
    /// Returns the tensor turned by k right angles in the plane of two dimensions, from the first to the second.
    "rot90(Tensor self, int k=1, int[] dims=[0,1]) -> Tensor"
        fn rot90(k: int, dims: ints) = Composite(|call| rot90(call).map(single));
}

fn check_same_dtype(name: &str, x: &Tensor, y: &Tensor) -> Result<()> {
    if x.dtype() == y.dtype() {
        return Ok(());
    }
    Err(invalid!(
        "{name}: Expected x and y to have the same dtype, but got {} and {} instead",
        x.dtype(),
        y.dtype()
    ))
}

fn diag_embed(x: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Result<Tensor> {
    let [first, second] = [wrap(dim1, x.rank() + 1)?, wrap(dim2, x.rank() + 1)?];
    refuse_if!(x.rank() == 0, "diag_embed needs at least one dimension");
    refuse_if!(first == second, "diagonal dimensions cannot be identical {dim1}, {dim2}");
    let length = x.shape()[x.rank() - 1];
    let extent = usize::try_from(offset.unsigned_abs()).ok().and_then(|offset| offset.checked_add(length));
    let Some(extent) = extent else {
        refuse!("the offset {offset} is too large");
    };
    let mut rest = x.shape()[..x.rank() - 1].iter().copied();
    let shape: Shape = (0..=x.rank())
        .map(|dim| {
            if dim == first || dim == second {
                extent
            } else {
                rest.next().expect("one extent per dimension")
            }
        })
        .collect();
    let zeros = Tensor::zeros(&shape, x.dtype(), x.device())?;
    zeros.diagonal_scatter(x, offset, first as i64, second as i64)
}

fn triangle_indices(call: &Call<'_>, is_lower: bool) -> Result<Tensor> {
    check_options(call.optional_int(4), call.optional_bool(6))?;
    let [rows, columns, offset] = [0, 1, 2].map(|place| call.int(place));
    for (name, extent) in [("row", rows), ("col", columns)] {
        refuse_if!(extent < 0, "{name} must be non-negative, got{extent}");
    }
    // The columns of a range in each row.
    let range = |row: i64| {
        let middle = row.saturating_add(offset);
        if is_lower {
            0..middle.saturating_add(1).clamp(0, columns)
        } else {
            middle.clamp(0, columns)..columns
        }
    };
    if rows.checked_mul(columns).is_none_or(|count| count > 1 << 32) || columns == 0 {
        let is_empty = columns == 0 || rows == 0;
        let refusal = || invalid!("the matrix has more places than there is memory for");
        return if is_empty {
            Tensor::empty(&[2, 0], index_dtype(call)?, call.device)
        } else {
            Err(refusal())
        };
    }
    if call.device.is_meta() {
        // The columns of the first rows, which have none, of rows with some columns, and of rows with all.
        let lower = |offset: i64| {
            let [first, whole] =
                [offset.saturating_neg(), (columns - 1).saturating_sub(offset)].map(|row| row.clamp(0, rows));
            let (few, all) = (i128::from(whole - first), i128::from(rows - whole) * i128::from(columns));
            few * (i128::from(first) + i128::from(whole) + 1) / 2 + few * i128::from(offset) + all
        };
        let count = match is_lower {
            true => lower(offset),
            false => i128::from(rows) * i128::from(columns) - lower(offset.saturating_sub(1)),
        };
        return Tensor::empty(&[2, count as usize], index_dtype(call)?, call.device);
    }
    let count: i64 = (0..rows).map(|row| range(row).end - range(row).start).sum();
    let mut list: Vec<i64> = host_room(count as usize * 2)?;
    list.extend((0..rows).flat_map(|row| range(row).map(move |_| row)));
    list.extend((0..rows).flat_map(range));
    Tensor::from_slice(&list, &[2, count as usize], call.device)?.to_dtype(index_dtype(call)?)
}

/// Returns the dtype of indices, which is an integer dtype.
fn index_dtype(call: &Call<'_>) -> Result<DType> {
    match call.optional_dtype(3).unwrap_or(DType::I64) {
        DType::Bool => Err(Error::not_implemented("\"tril_indices\" not implemented for 'Bool'")),
        dtype => Ok(dtype),
    }
}

fn kron(call: &Call<'_>) -> Result<Tensor> {
    let (x, y) = (call.tensor(0), call.tensor(1));
    let rank = x.rank().max(y.rank());
    let padded = |tensor: &Tensor| -> Shape {
        std::iter::repeat_n(1, rank - tensor.rank()).chain(tensor.shape().iter().copied()).collect()
    };
    let (left, right) = (padded(x), padded(y));
    let pairs = |shape: &Shape, is_left: bool| -> Shape {
        shape.iter().flat_map(|&extent| if is_left { [extent, 1] } else { [1, extent] }).collect()
    };
    let product = x.reshape(&pairs(&left, true))?.mul(&y.reshape(&pairs(&right, false))?)?;
    let shape: Shape = left.iter().zip(&right).map(|(&a, &b)| a.saturating_mul(b)).collect();
    product.reshape(&shape)
}

fn tensordot(call: &Call<'_>) -> Result<Tensor> {
    let (x, y, first, second) = (call.tensor(0), call.tensor(1), call.ints(2), call.ints(3));
    refuse_if!(first.len() != second.len(), "both dimension lists should have same length");
    refuse_if!(x.dtype() != y.dtype(), "both inputs should have same dtype");
    let (dims_x, dims_y) = (wrap_all(&first, x.rank())?, wrap_all(&second, y.rank())?);
    let (mut left, mut right) = (x.clone(), y.clone());
    for (&dx, &dy) in dims_x.iter().zip(&dims_y) {
        match (left.shape().get(dx).copied().unwrap_or(1), right.shape().get(dy).copied().unwrap_or(1)) {
            (a, b) if a == b => {}
            // A dimension of extent 1 is broadcast, so only the sum of the other one matters.
            (1, _) => right = right.sum(&[dy as i64], true)?.to_dtype(y.dtype())?,
            (_, 1) => left = left.sum(&[dx as i64], true)?.to_dtype(x.dtype())?,
            (a, b) => {
                refuse!(
                    "contracted dimensions need to match, but first has size {a} in dim {dx} and second has size {b} in dim {dy}"
                );
            }
        }
    }
    let rest = |rank: usize, dims: &Shape| -> Shape { (0..rank).filter(|dim| !dims.contains(dim)).collect() };
    let (rest_x, rest_y) = (rest(x.rank(), &dims_x), rest(y.rank(), &dims_y));
    let extents = |tensor: &Tensor, dims: &Shape| -> Shape {
        dims.iter().filter_map(|&dim| tensor.shape().get(dim).copied()).collect()
    };
    let inner: usize = extents(&left, &dims_x).iter().product();
    let shape: Shape = extents(&left, &rest_x).into_iter().chain(extents(&right, &rest_y)).collect();
    let [rows, columns] =
        [extents(&left, &rest_x), extents(&right, &rest_y)].map(|extents| extents.iter().product::<usize>());
    let order = |rank: usize, list: Shape| -> Shape { list.into_iter().filter(|&dim| dim < rank).collect() };
    let left = left
        .permute(&order(x.rank(), rest_x.into_iter().chain(dims_x).collect()))?
        .reshape(&[rows, inner])?;
    let right = right
        .permute(&order(y.rank(), dims_y.into_iter().chain(rest_y).collect()))?
        .reshape(&[inner, columns])?;
    left.mm(&right)?.reshape(&shape)
}

fn multi_dot(call: &Call<'_>) -> Result<Tensor> {
    let list = call.tensor_list(0);
    if list.len() < 2 {
        refuse!("multi_dot(): expected at least 2 tensors but got {}", list.len());
    }
    let last = list.len() - 1;
    let mut matrices: Vec<Tensor> = list.to_vec();
    for (place, x) in list.iter().enumerate() {
        let is_end = place == 0 || place == last;
        match (x.rank(), is_end) {
            (2, _) => {}
            (1, true) => matrices[place] = x.unsqueeze(if place == 0 { 0 } else { 1 })?,
            (rank, true) => {
                let which = if place == 0 { "first" } else { "last" };
                refuse!("multi_dot(): the {which} tensor must be 1D or 2D but got {rank}D");
            }
            (rank, false) => {
                refuse!("multi_dot(): tensor {place} must be 2D but got {rank}D");
            }
        }
        refuse_if!(
            x.dtype() != list[0].dtype(),
            "multi_dot(): all tensors must have be the same dtype but tensor 0 is {} and tensor {place} {}",
            list[0].dtype(),
            x.dtype()
        );
    }
    for (place, pair) in matrices.windows(2).enumerate() {
        refuse_if!(
            pair[0].shape()[1] != pair[1].shape()[0],
            "multi_dot(): tensors {place} and {} with shapes {:?} and {:?} cannot be multiplied",
            place + 1,
            pair[0].shape(),
            pair[1].shape()
        );
    }
    let mut shape = Shape::new();
    shape.extend((list[0].rank() == 2).then(|| list[0].shape()[0]));
    shape.extend((list[last].rank() == 2).then(|| list[last].shape()[1]));
    chain(&matrices, &cheapest_cuts(&matrices), 0, last)?.reshape(&shape)
}

/// Returns after which matrix each range of a chain is split, so that the fewest multiplications are needed (Cormen et al.,
/// *Introduction to Algorithms*, 15.2).
fn cheapest_cuts(matrices: &[Tensor]) -> Vec<Vec<usize>> {
    let count = matrices.len();
    let sizes: Vec<f64> = matrices
        .iter()
        .map(|x| x.shape()[0])
        .chain([matrices[count - 1].shape()[1]])
        .map(|size| size as f64)
        .collect();
    let mut costs = vec![vec![0.0; count]; count];
    let mut cuts = vec![vec![0; count]; count];
    for length in 1..count {
        for first in 0..count - length {
            let last = first + length;
            let cost = |cut: usize| {
                costs[first][cut] + costs[cut + 1][last] + sizes[first] * sizes[cut + 1] * sizes[last + 1]
            };
            let best = (first..last).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).expect("a range has a cut");
            (costs[first][last], cuts[first][last]) = (cost(best), best);
        }
    }
    cuts
}

fn chain(matrices: &[Tensor], cuts: &[Vec<usize>], first: usize, last: usize) -> Result<Tensor> {
    if first == last {
        return Ok(matrices[first].clone());
    }
    let cut = cuts[first][last];
    chain(matrices, cuts, first, cut)?.mm(&chain(matrices, cuts, cut + 1, last)?)
}

fn vander(call: &Call<'_>) -> Result<Tensor> {
    let x = call.tensor(0);
    let x = if x.rank() == 0 { x.unsqueeze(-1)? } else { x.clone() };
    let powers = call.optional_int(1).unwrap_or(x.shape()[x.rank() - 1] as i64);
    refuse_if!(powers <= 1, "N must be greater than 1.");
    let x = if x.dtype().is_differentiable() { x } else { x.to_dtype(DType::I64)? };
    let mut shape: Shape = x.shape().into();
    shape.push(1);
    let ones = Tensor::ones(&shape, x.dtype(), x.device())?;
    shape[x.rank()] = powers as usize - 1;
    let rest = x.unsqueeze(-1)?.expand(&shape)?.cumprod(-1)?;
    Tensor::cat(&[ones, rest], -1)
}

fn cross(x: &Tensor, y: &Tensor, dim: i64) -> Result<Tensor> {
    refuse_if!(x.rank() != y.rank(), "linalg.cross: inputs must have the same number of dimensions.");
    let at = wrap(dim, x.rank())?;
    let extents = [x, y].map(|tensor| tensor.shape().get(at).copied().unwrap_or(1));
    refuse_if!(
        extents != [3, 3],
        "linalg.cross: inputs dimension {dim} must have length 3. Got {} and {}",
        extents[0],
        extents[1]
    );
    let shape = broadcast_shapes(x.shape(), y.shape())?;
    let [x, y] = [x.expand(&shape)?, y.expand(&shape)?];
    // The elements shifted by one and by two.
    let transposed = |tensor: &Tensor, by: usize| {
        let parts: SmallVec<[Tensor; 3]> =
            (0..3).map(|place| tensor.narrow(at as i64, (place + by) % 3, 1)).collect::<Result<_>>()?;
        Tensor::cat(&parts, at as i64)
    };
    transposed(&x, 1)?.mul(&transposed(&y, 2)?)?.sub(&transposed(&x, 2)?.mul(&transposed(&y, 1)?)?)
}

/// Returns matrices to the power of an integer, by squaring; for a negative exponent those of the inverses.
pub(super) fn matrix_power(x: &Tensor, exponent: i64) -> Result<Tensor> {
    let &[.., rows, columns] = x.shape() else {
        refuse!("linalg.matrix_power: The input tensor A must have at least 2 dimensions.");
    };
    refuse_if!(
        rows != columns,
        "linalg.matrix_power: A must be batches of square matrices, but they are {rows} by {columns} matrices"
    );
    if exponent < 0 {
        return matrix_power(&x.linalg_inv()?, exponent.checked_neg().unwrap_or(i64::MAX));
    }
    let (mut rest, mut square, mut result) = (exponent, x.clone(), None::<Tensor>);
    while rest > 0 {
        if rest % 2 == 1 {
            result = Some(match result {
                Some(result) => result.matmul(&square)?,
                None => square.clone(),
            });
        }
        rest /= 2;
        if rest > 0 {
            square = square.matmul(&square)?;
        }
    }
    match result {
        Some(result) if exponent == 1 => result.copied(std::panic::Location::caller()),
        Some(result) => Ok(result),
        None => {
            let places = Tensor::arange(rows, 0, 1, DType::I64, x.device())?;
            let identity = places.unsqueeze(1)?.eq(&places)?.to_dtype(x.dtype())?;
            // The gradient is 0, but it exists.
            let result = x.copied(std::panic::Location::caller())?;
            result.copy_(&identity)?;
            Ok(result)
        }
    }
}

fn rot90(call: &Call<'_>) -> Result<Tensor> {
    let (x, k, dims) = (call.tensor(0), call.int(1), call.ints(2));
    let &[from, to] = dims.as_slice() else {
        refuse!("expected total rotation dims == 2, but got dims = {}", dims.len());
    };
    refuse_if!(x.rank() < 2, "expected total dims >= 2, but got total dims = {}", x.rank());
    let rank = x.rank() as i64;
    if from == to || from.saturating_sub(to).saturating_abs() == rank {
        refuse!("expected rotation dims to be different, but got dim0 = {from} and dim1 = {to}");
    }
    for (place, dim) in [from, to].into_iter().enumerate() {
        refuse_if!(!(-rank..rank).contains(&dim), "Rotation dim{place} out of range, dim{place} = {dim}");
    }
    match k.rem_euclid(4) {
        1 => x.flip(&[to])?.transpose(from, to),
        2 => x.flip(&[from, to]),
        3 => x.flip(&[from])?.transpose(from, to),
        _ => x.copied(call.label.location),
    }
}
