//! The table of the operators: the union of the families, and the loops of [`thalweg_ops`].

use thalweg_ops::structured;

use super::{
    advanced_index, alias, assemble, attention, calculus, compare, complex, complex_functions,
    complex_matrices, counting, create, ctc, decompose, distance, eigenvalues, einsum, embedding, fft, grid,
    indefinite, index, index_slices, join, least_squares, linalg, lists, loss, margin, matrix, matrix_norm,
    norm, norm_backward, padding, parts, pointwise, pool, quantized, random, recurrent, recurrent_networks,
    reduce, resample, scan, segment, sliding, solve, sort, special, split, statistics, stft, unpool, view,
    view_copy, window,
};
use crate::dispatch::{Entries, OpDef, OperatorTable};

/// Every family.
static FAMILIES: &[&[OpDef]] = &[
    pointwise::OPERATORS,
    reduce::OPERATORS,
    join::OPERATORS,
    lists::OPERATORS,
    view::OPERATORS,
    create::OPERATORS,
    index::OPERATORS,
    index_slices::OPERATORS,
    embedding::OPERATORS,
    advanced_index::OPERATORS,
    linalg::OPERATORS,
    ctc::OPERATORS,
    decompose::OPERATORS,
    solve::OPERATORS,
    least_squares::OPERATORS,
    indefinite::OPERATORS,
    complex_matrices::OPERATORS,
    eigenvalues::OPERATORS,
    matrix_norm::OPERATORS,
    norm::OPERATORS,
    norm_backward::OPERATORS,
    loss::OPERATORS,
    sliding::OPERATORS,
    window::OPERATORS,
    pool::OPERATORS,
    scan::OPERATORS,
    resample::OPERATORS,
    einsum::OPERATORS,
    fft::OPERATORS,
    stft::OPERATORS,
    sort::OPERATORS,
    view_copy::OPERATORS,
    split::OPERATORS,
    assemble::OPERATORS,
    alias::OPERATORS,
    matrix::OPERATORS,
    calculus::OPERATORS,
    compare::OPERATORS,
    complex::OPERATORS,
    complex_functions::OPERATORS,
    quantized::OPERATORS,
    statistics::OPERATORS,
    counting::OPERATORS,
    segment::OPERATORS,
    special::OPERATORS,
    attention::OPERATORS,
    unpool::OPERATORS,
    grid::OPERATORS,
    margin::OPERATORS,
    distance::OPERATORS,
    padding::OPERATORS,
    random::OPERATORS,
    recurrent::OPERATORS,
    recurrent_networks::OPERATORS,
    parts::OPERATORS,
];

impl Entries for OperatorTable {
    fn for_each(mut define: impl FnMut(&OpDef)) {
        thalweg_ops::elementwise()
            .for_each(|entry| define(&OpDef { method: Some(entry.name), ..OpDef::of_loop(entry) }));
        let called = structured::CALLED.iter().copied();
        thalweg_ops::parts().chain(called).for_each(|entry| define(&OpDef::of_loop(entry)));
        FAMILIES.iter().copied().flatten().for_each(define);
    }
}
