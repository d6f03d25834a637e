//! Bags of rows of a table: one launch each for the rows that are combined, and for the products with their gradients.

use smallvec::SmallVec;
use thalweg_ir::DType;
use thalweg_kernels::bags::{BagMode, BagProducts, Bags};
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use crate::dispatch::{Arguments, Call};
use crate::tensor::{Tensor, Tensors};

/// Returns the mode with PyTorch's number.
pub(crate) fn mode_of(call: &impl Arguments, place: usize) -> Result<BagMode> {
    let number = call.int(place);
    let mode = usize::try_from(number).ok().and_then(|number| BagMode::ALL.get(number).copied());
    mode.ok_or_else(|| invalid!("the mode is 0 (sum), 1 (mean) or 2 (max), not {number}"))
}

/// Refuses tensors that are not a list of int64.
fn check_list(name: &str, list: &Tensor) -> Result<()> {
    match list.dtype() == DType::I64 && list.rank() == 1 {
        true => Ok(()),
        false => Err(invalid!("the {name} are a list of int64, not {} {:?}", list.dtype(), list.shape())),
    }
}

/// Refuses a table that is not a matrix of floats, and returns its extents.
fn check_table(table: &Tensor) -> Result<[usize; 2]> {
    match *table.shape() {
        [rows, features] if table.dtype().is_floating_point() => Ok([rows, features]),
        _ => Err(invalid!("the table is a matrix of floats, not {} {:?}", table.dtype(), table.shape())),
    }
}

/// `thalweg::bags`
pub(crate) fn bags(call: &Call<'_>) -> Result<Tensors> {
    let (table, indices, offsets) =
        (call.tensor(0).contiguous()?, call.tensor(1).contiguous()?, call.tensor(2).contiguous()?);
    let factors = call.optional_tensor(3).map(Tensor::contiguous).transpose()?;
    let (mode, padding) = (mode_of(call, 4)?, call.int(5));
    let [rows, features] = check_table(&table)?;
    check_list("indices", &indices)?;
    check_list("offsets", &offsets)?;
    let count = indices.elements();
    let bags = usize::try_from(call.int(6)).ok().filter(|&bags| bags <= offsets.elements());
    let bags =
        bags.ok_or_else(|| invalid!("{} offsets begin no {} bags", offsets.elements(), call.int(6)))?;
    if let Some(factors) = &factors
        && (factors.shape() != indices.shape() || factors.dtype() != table.dtype())
    {
        refuse!(
            "{count} rows of {} have a factor each, not {} {:?}",
            table.dtype(),
            factors.dtype(),
            factors.shape()
        );
    }
    let result = call.new_result(&[bags, features], table.dtype())?;
    // Offsets that decrease leave indices without a bag.
    let bags_of = Tensor::zeros(&[count], DType::I64, call.device)?;
    let sizes = call.new_empty(&[bags], DType::I64)?;
    let maxima = if mode == BagMode::Max { bags } else { 0 };
    let maxima = call.new_empty(&[maxima, features], DType::I64)?;
    if bags > 0 {
        let kernel = Bags {
            count: count as u64,
            bags: bags as u64,
            rows: rows as u64,
            features: features as u64,
            mode,
            padding,
            dtype: table.dtype(),
        };
        let factors = factors.as_ref().filter(|factors| factors.elements() > 0);
        let [table, indices, offsets] = [&table, &indices, &offsets].map(Some);
        let [result, bags_of, sizes] = [&result, &bags_of, &sizes].map(Some);
        let maxima = (mode == BagMode::Max).then_some(&maxima).filter(|maxima| maxima.elements() > 0);
        call.launch(kernel, [table, indices, offsets, factors, result, bags_of, sizes, maxima])?;
    }
    Ok(SmallVec::from_iter([result, bags_of, sizes, maxima]))
}

/// `thalweg::bag_products`
pub(crate) fn products(call: &Call<'_>) -> Result<Tensors> {
    let [gradient, table, indices, bags_of] = [0, 1, 2, 3].map(|place| call.tensor(place));
    let [rows, features] = check_table(table)?;
    check_list("indices", indices)?;
    check_list("bags", bags_of)?;
    let fits = gradient.rank() == 2
        && gradient.shape()[1] == features
        && gradient.dtype() == table.dtype()
        && bags_of.shape() == indices.shape();
    refuse_if!(
        !fits,
        "a gradient {:?} {}, a table {:?} {}, indices {:?} and their bags {:?} do not fit together",
        gradient.shape(),
        gradient.dtype(),
        table.shape(),
        table.dtype(),
        indices.shape(),
        bags_of.shape()
    );
    let (table, indices, bags_of) = (table.contiguous()?, indices.contiguous()?, bags_of.contiguous()?);
    let is_in_rows = features < 2 || gradient.layout().strides()[1] == 1;
    let gradient = if is_in_rows { gradient.clone() } else { gradient.contiguous()? };
    let result = call.new_result(indices.shape(), table.dtype())?;
    if result.elements() > 0 {
        let kernel = BagProducts {
            count: indices.elements() as u64,
            bags: gradient.shape()[0] as u64,
            rows: rows as u64,
            features: features as u64,
            gradient_stride: gradient.layout().strides()[0] as u64,
            padding: call.int(4),
            dtype: table.dtype(),
        };
        call.launch(kernel, [&gradient, &table, &indices, &bags_of, &result])?;
    }
    Ok(SmallVec::from_elem(result, 1))
}
