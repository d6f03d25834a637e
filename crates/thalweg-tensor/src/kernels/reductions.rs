//! Reductions of few long rows, in stages: parts of the rows first, then the results of the parts. A block works on a row, so
//! only parts fill a GPU; they also keep the error of a sum small. The stages follow from the shape alone, so the same call
//! combines in the same order on every device.

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Shape};
use thalweg_ops::structured::SUM;
use thalweg_ops::{LoopOp, Signature};
use thalweg_runtime::{Label, Result};

use super::loops::{self, LoopArguments, LoopCall, Resolved, reduce_into, signature_of};
use crate::autograd::formula::Formula;
use crate::dispatch::Arguments;
use crate::tensor::{Tensor, Tensors};

/// The number of rows that fill a GPU without being divided into parts.
const MANY_ROWS: usize = 1024;

/// A row with fewer points is not worth another launch.
const LONG_ROW: usize = 1 << 16;

/// The points of a part.
const PART: usize = 4096;

/// So many columns are a block's: with fewer than [`MANY_BLOCKS`] of them a GPU has too little to do.
const COLUMNS: usize = 256;

/// So many blocks of columns fill a GPU by themselves.
const MANY_BLOCKS: usize = 512;

/// The points of a part of columns.
const PART_OF_COLUMNS: usize = 1024;

/// A matrix with fewer elements is not worth another launch.
const LARGE_MATRIX: usize = 1 << 22;

/// A reduction over dimensions of a tensor, and how it ends.
struct Stages<'a> {
    /// The operator that combines the points of a part, and the dtype of its result.
    part: (&'static LoopOp, DType),
    /// The operator that combines the results of the parts, and the dtype of its result.
    last: (&'static LoopOp, DType),
    arguments: &'a LoopArguments,
    compute: DType,
    label: Label,
}

/// Returns the backend kernel of sums, means and extrema.
pub(crate) fn backend(call: &LoopCall<'_>, resolved: Option<&Resolved>) -> Result<Tensors> {
    let (operator, x, inner) = (call.operator, call.tensors[0], &call.arguments.sizes);
    if part_of(x, inner).is_none() {
        return loops::run(call, resolved);
    }
    let whole = signature_of(operator, &call.tensors, &call.arguments)?;
    let result = whole.outputs[0];
    let stages = Stages {
        part: match operator.name {
            "sum" | "mean" => (&SUM, whole.compute),
            _ => (operator, result),
        },
        last: (operator, result),
        arguments: &call.arguments,
        compute: whole.compute,
        label: call.label,
    };
    Ok(SmallVec::from_elem(stages.run(&x.detach(), inner)?, 1))
}

/// Returns the points of a part, where a reduction has few rows of many points. Rows that lie side by side, as columns do, share
/// blocks, so that more of them are few.
fn part_of(x: &Tensor, inner: &[usize]) -> Option<usize> {
    let points: usize = inner.iter().map(|&dimension| x.shape()[dimension]).product();
    if points == 0 {
        return None;
    }
    let rows = x.elements() / points;
    let side_by_side =
        (0..x.rank()).any(|dimension| !inner.contains(&dimension) && x.layout().strides()[dimension] == 1);
    if side_by_side && rows >= COLUMNS {
        let few = rows / COLUMNS < MANY_BLOCKS && x.elements() >= LARGE_MATRIX;
        (few && points >= 2 * PART_OF_COLUMNS).then_some(PART_OF_COLUMNS)
    } else {
        (points >= LONG_ROW && (1..MANY_ROWS).contains(&rows)).then_some(PART)
    }
}

impl Stages<'_> {
    fn run(&self, x: &Tensor, inner: &[usize]) -> Result<Tensor> {
        let rows: Shape = (0..x.rank()).filter(|dimension| !inner.contains(dimension)).collect();
        let row_shape: Shape = rows.iter().map(|&dimension| x.shape()[dimension]).collect();
        let Some(part) = part_of(x, inner) else {
            let result = self.empty(&row_shape, self.last.1, x)?;
            self.launch(self.last, self.arguments, x, inner, &result)?;
            return Ok(result);
        };
        let order: Shape = rows.iter().chain(inner).copied().collect();
        let layout = x.layout().permute(&order)?;
        let points = layout.shape()[rows.len()..].iter().product();
        let shape: Shape = row_shape.iter().copied().chain([points]).collect();
        let parts = match layout.reshape(&shape)? {
            Some(layout) => self.parts(x, &layout, points, part)?,
            // Points that lie in several strides: a dimension of them becomes one of rows.
            None => {
                let first = inner[0];
                let order: Shape = [first]
                    .into_iter()
                    .chain(rows.iter().copied())
                    .chain(inner[1..].iter().copied())
                    .collect();
                let rest: Shape = (rows.len() + 1..order.len()).collect();
                let stages = Stages { last: self.part, arguments: &LoopArguments::default(), ..*self };
                stages.run(&x.with_layout(x.layout().permute(&order)?), &rest)?
            }
        };
        self.run(&parts, &[0])
    }

    /// Returns the results of the parts of rows (…, points): (parts, …).
    fn parts(&self, x: &Tensor, layout: &Layout, points: usize, part: usize) -> Result<Tensor> {
        let rows = layout.rank() - 1;
        let (whole, rest) = (points / part, points % part);
        let row_shape = &layout.shape()[..rows];
        let shape: Shape =
            [whole + usize::from(rest > 0)].into_iter().chain(row_shape.iter().copied()).collect();
        let results = self.empty(&shape, self.part.1, x)?;
        let arguments = LoopArguments::default();
        // (parts, …, points of a part): rows that lie side by side stay neighbours.
        let stride = layout.strides()[rows];
        let split = |first: usize, row: &[usize], last: usize| -> Shape {
            [first].into_iter().chain(row.iter().copied()).chain([last]).collect()
        };
        let parts = Layout::new(
            &split(whole, row_shape, part),
            &split(part * stride, &layout.strides()[..rows], stride),
            layout.offset(),
        )?;
        let first = results.with_layout(results.layout().narrow(0, 0, whole)?);
        self.launch(self.part, &arguments, &x.with_layout(parts), &[rows + 1], &first)?;
        if rest > 0 {
            let tail = layout.narrow(rows, whole * part, rest)?;
            let last = results.with_layout(results.layout().select(0, whole)?);
            self.launch(self.part, &arguments, &x.with_layout(tail), &[rows], &last)?;
        }
        Ok(results)
    }

    fn empty(&self, shape: &[usize], dtype: DType, like: &Tensor) -> Result<Tensor> {
        Tensor::empty_on(shape, dtype, &like.device().current_stream(), self.label)
    }

    fn launch(
        &self,
        (operator, dtype): (&'static LoopOp, DType),
        arguments: &LoopArguments,
        x: &Tensor,
        inner: &[usize],
        result: &Tensor,
    ) -> Result<()> {
        let [inputs, outputs] = [x.dtype(), dtype].map(|dtype| [dtype].into_iter().collect());
        let signature = Signature { inputs, common: dtype, compute: self.compute, outputs };
        reduce_into(operator, &signature, (x, inner), arguments, result, self.label)
    }
}

/// A product's gradient: at each element the product of all others in its row, without a division, so that zeros do no harm.
pub(crate) static PRODUCT: Formula = Formula {
    inputs: &[0],
    outputs: &[],
    backward: |call| {
        call.one(0, || {
            let (x, gradient, reduced) = (call.saved(0)?, call.gradient()?, call.ints(1));
            let is_reduced = |dim: &usize| reduced.contains(&(*dim as i64));
            let mut order: Shape = (0..x.rank()).filter(|dim| !is_reduced(dim)).collect();
            let rows: usize = order.iter().map(|&dim| x.shape()[dim]).product();
            order.extend((0..x.rank()).filter(is_reduced));
            let turned = x.permute(&order)?;
            if x.elements() == 0 {
                return x.mul_scalar(0);
            }
            let wide = turned.to_dtype(x.dtype().compute())?.reshape(&[rows, x.elements() / rows])?;
            let one = Tensor::ones(&[rows, 1], wide.dtype(), wide.device())?;
            // The product of what is in front of each element.
            let before =
                |x: &Tensor| Tensor::cat(&[one.clone(), x.narrow(1, 0, x.shape()[1] - 1)?], 1)?.cumprod(1);
            let others = before(&wide)?.mul(&before(&wide.flip(&[1])?)?.flip(&[1])?)?;
            let result = others.mul(&gradient.to_dtype(wide.dtype())?.reshape(&[rows, 1])?)?;
            let mut inverse: Shape = order.clone();
            order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
            result.reshape(turned.shape())?.permute(&inverse)?.to_dtype(x.dtype())
        })
    },
};
