//! Reading and writing at indices in device memory: the host never needs to read them.
//!
//! An index out of range reads NaN (0 for integers) and writes nothing; the kernel [reports](thalweg_ir::Report) it.

use thalweg_ir::{BodyBuilder, DType, Dimension, OutputPlace, Scalar, Value};

use crate::definition::{DTypeRule, LoopOp, Signature, Space, scalar};

const fn indexing(
    name: &'static str,
    doc: &'static str,
    input_count: usize,
    scalars: &'static [&'static str],
    build: fn(&BodyBuilder, &Signature),
) -> LoopOp {
    LoopOp {
        name,
        doc,
        input_count,
        scalars,
        rule: DTypeRule::Moved,
        space: Space::Coordinates,
        build,
        ..LoopOp::BASE
    }
}

fn in_range<'b>(index: Value<'b>, extent: Value<'b>) -> Value<'b> {
    index.ge(0).and(index.lt(extent))
}

/// Returns whether an index is in range, and reports it if it is not.
fn checked<'b>(b: &'b BodyBuilder, index: Value<'b>, extent: Value<'b>) -> Value<'b> {
    let fits = in_range(index, extent);
    b.report(fits.logical_not(), index, extent);
    fits
}

/// The elements at indices of one dimension. Rows: outer, index number, inner. Inputs: a contiguous source (outer, extent,
/// inner), gathered; the indices; and the source at index 0.
pub static GATHER: LoopOp = indexing(
    "gather",
    "The elements at indices of one dimension; NaN where an index is out of range.",
    3,
    &["extent", "inner"],
    |b, signature| at_indices(b, signature, checked),
);

/// [`GATHER`] for indices that other launches report: without a report, so that the loop may wait and be fused.
pub static GATHER_REPORTED: LoopOp = indexing(
    "gather_reported",
    "The elements at indices of one dimension that were reported elsewhere; NaN where an index is out of range.",
    3,
    &["extent", "inner"],
    |b, signature| at_indices(b, signature, |_, index, extent| in_range(index, extent)),
);

/// Writes the elements of a gathered source (outer, extent, inner) at indices.
fn at_indices(
    b: &BodyBuilder,
    signature: &Signature,
    fits: for<'b> fn(&'b BodyBuilder, Value<'b>, Value<'b>) -> Value<'b>,
) {
    let source = b.gathered_input(signature.inputs[0]);
    let index = b.input(DType::I64);
    let [extent, inner] = [0; 2].map(|_| scalar(b, DType::I64));
    let place = b.place(signature.inputs[0]) + index * inner;
    let value = b.gather(source, place, fits(b, index, extent), Scalar::F64(f64::NAN));
    b.output(value, signature.outputs[0], OutputPlace::Row);
}

/// The elements of one dimension in reverse order. Rows: outer, place, inner. Input: a contiguous source of these extents, gathered.
pub static REVERSE: LoopOp = indexing(
    "reverse",
    "The elements of one dimension in reverse order.",
    1,
    &["extent", "inner"],
    |b, signature| {
        let source = b.gathered_input(signature.inputs[0]);
        let [extent, inner] = [0; 2].map(|_| scalar(b, DType::I64));
        let [outer, place, column] = [0, 1, 2].map(|dimension| b.index(Dimension::Row(dimension)));
        let from = (outer * extent + (extent - 1 - place)) * inner + column;
        let value = b.gather(source, from, in_range(place, extent), Scalar::F64(f64::NAN));
        b.output(value, signature.outputs[0], OutputPlace::Row);
    },
);

/// A place in several dimensions, extended by one dimension: the previous sum plus the index times the stride. Negative indices
/// count from the end. −1 if the index is out of range or the sum is already −1.
pub static PLACE: LoopOp = LoopOp {
    rule: DTypeRule::Numeric,
    space: Space::Elementwise,
    ..indexing(
        "place",
        "Places in several dimensions as one number, with a dimension more; −1 where an index is out of range.",
        2,
        &["extent", "stride"],
        |b, signature| {
            let [sum, index] = [0, 1].map(|input| b.input(signature.inputs[input]).to(DType::I64));
            let [extent, stride] = [0; 2].map(|_| scalar(b, DType::I64));
            let place = index.lt(0).select(index + extent, index);
            let fits = in_range(place, extent);
            b.report(fits.logical_not(), index, extent);
            b.output(
                fits.and(sum.ge(0)).select(sum + place * stride, sum.like(-1i64)),
                signature.outputs[0],
                OutputPlace::Row,
            );
        },
    )
};

/// Indices of a dimension. Negative indices from `lowest` on (0 or minus the extent) count from the end. −1 where an index is out
/// of range.
pub static CHECKED_INDEX: LoopOp = LoopOp {
    rule: DTypeRule::Numeric,
    space: Space::Elementwise,
    ..indexing(
        "checked_index",
        "Indices of a dimension, counted from the end where they are negative and that is allowed; −1 where one is out of range.",
        1,
        &["lowest", "extent"],
        |b, signature| {
            let index = b.input(signature.inputs[0]).to(DType::I64);
            let [lowest, extent] = [0; 2].map(|_| scalar(b, DType::I64));
            let fits = index.ge(lowest).and(index.lt(extent));
            b.report(fits.logical_not(), index, extent);
            let place = index.lt(0).select(index + extent, index);
            b.output(fits.select(place, index.like(-1i64)), signature.outputs[0], OutputPlace::Row);
        },
    )
};

/// Reports indices of a dimension that are not from 0 on below its extent, and not the one index that is allowed besides. Rows: the
/// indices. Nothing is written.
pub static INDEX_CHECK: LoopOp = indexing(
    "index_check",
    "Nothing: reports indices that are out of range.",
    1,
    &["extent", "allowed"],
    |b, signature| {
        let index = b.input(signature.inputs[0]);
        let [extent, allowed] = [0; 2].map(|_| scalar(b, DType::I64));
        let fits = in_range(index, extent).or(index.eq(allowed));
        b.report(fits.logical_not(), index, extent);
        let never = fits.and(fits.logical_not());
        b.scattered_output(index, signature.outputs[0], index.like(0i64), never);
    },
);

/// Slices of a source, written in place at indices of one dimension of the target. Rows: the dimensions before the indexed one,
/// the index number, the dimensions after it. Inputs: the source, the indices. Strides are the target's.
pub static INDEX_COPY: LoopOp = indexing(
    "index_copy",
    "Slices of a source, written in place at indices of one dimension; an index out of range writes nothing.",
    2,
    &["extent", "outer_stride", "stride", "inner_stride"],
    |b, signature| {
        let source = b.input(signature.inputs[0]);
        let index = b.input(DType::I64);
        let [extent, outer_stride, stride, inner_stride] = [0; 4].map(|_| scalar(b, DType::I64));
        let [outer, inner] = [0, 2].map(|dimension| b.index(Dimension::Row(dimension)));
        let place = outer * outer_stride + index * stride + inner * inner_stride;
        b.scattered_output(source, signature.outputs[0], place, checked(b, index, extent));
    },
);

/// Three tensors of one shape, stacked along a new dimension: the gradient of splitting a tensor into three. Rows: the new
/// dimension, then those of the tensors.
pub static STACK3: LoopOp = indexing(
    "stack3",
    "Three tensors of one shape as places of a new first dimension.",
    3,
    &[],
    |b, signature| {
        let [first, second, third] = [0, 1, 2].map(|input| b.input(signature.inputs[input]));
        let place = b.index(Dimension::Row(0));
        let value = place.eq(0).select(first, place.eq(1).select(second, third));
        b.output(value, signature.outputs[0], OutputPlace::Row);
    },
);
