//! Native kernels, which are not loops over a body of the IR: matrix products and decompositions, attention, sums whose terms the
//! data select, random numbers, scans, sorting and searching, functions whose work depends on the numbers, lists of tensors.
//!
//! Each kernel is a description (sizes, strides, dtypes: a small value without addresses) with its CUDA C and the same
//! computation on the host. [`Placed`] adds the addresses of its operands and implements [`NativeKernel`], the interface through
//! which a stream launches it; [`Native`] is the description's own interface.
//!
//! # Adding a kernel
//! A file of CUDA C++, and a file in Rust: the description, the order of its words (`arguments!`), the unit (`Source`), its host
//! function, `impl NativeKernel for Placed<…>`, and its line in [`sources`]. A computation of several launches, or with scratch memory,
//! implements [`Native`] itself. Nothing else is needed: `thalweg_execute::execute` launches it, the bundle ships it, and the tests compile it.
//!
//! Dependencies between modules point downwards: `native` is the interface of a launch; `source` makes a unit from a file;
//! `arguments`, `dtypes`, `operands`, `panels`, `shared` and [`threads`] serve all kernels; only this file refers to every kernel.
//!
//! # Invariants
//! - The host function is the definition: a GPU may differ from it only where its documentation says so.
//! - The ranges that a launch touches are derived from the description only, and the host function reads and writes nothing else.
#![forbid(unsafe_code)]

pub mod alignments;
mod arguments;
pub mod attention;
pub mod bags;
pub mod compact;
pub mod convolution;
pub mod decoder_layers;
pub mod decompose;
pub mod depthwise;
mod dtypes;
pub mod extremum_columns;
pub mod extremum_place;
pub mod foreach;
pub mod fourier;
pub mod gather;
pub mod grid_sample;
pub mod histogram;
pub mod join;
pub mod magnitudes;
pub mod matmul;
mod native;
pub mod next_token;
pub mod one_query;
mod operands;
pub mod pad_rows;
mod panels;
mod planes;
pub mod pool;
pub mod random;
pub mod recurrent;
pub mod resample;
pub mod scan;
pub mod scatter;
pub mod search;
mod shared;
pub mod sort;
mod source;
pub mod special;
pub mod threads;

pub use native::{Accesses, Native, NativeKernel, Placed, ReportIndex, Words};
pub use operands::{PartInput, cells, slice, slice_mut, sources_of};

use thalweg_ir::DType;

/// Returns name and source of every kernel of this crate that does not depend on a program's bodies: those that a bundle compiles
/// ahead of time, and that tests compile.
pub fn sources() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|&dtype| matmul::takes(dtype)) {
        all.push((matmul::cuda::name(dtype).to_owned(), matmul::cuda::print(dtype)));
    }
    for dtype in scatter::DTYPES {
        all.push((scatter::name(dtype).to_owned(), scatter::print(dtype)));
    }
    all.extend(alignments::sources());
    all.extend(bags::sources());
    all.extend(compact::sources());
    all.extend(extremum_columns::sources());
    all.extend(extremum_place::sources());
    all.extend(gather::sources());
    all.extend(pad_rows::sources());
    all.extend(grid_sample::sources());
    all.extend(histogram::sources());
    all.extend(join::sources());
    all.extend(magnitudes::sources());
    all.extend(next_token::sources());
    all.extend(scatter::few::sources());
    all.extend(scatter::last::sources());
    all.extend(scatter::narrow::sources());
    all.extend(scatter::atomic::sources());
    all.extend(scatter::rows::sources());
    all.extend(scatter::segments::sources());
    all.extend(scatter::tile::sources());
    all.extend(random::sources());
    all.extend(pool::sources());
    all.extend(resample::sources());
    all.extend(scan::sources());
    all.extend(sort::sources());
    all.extend(search::sources());
    all.extend(special::sources());
    all.extend(attention::sources());
    all.extend(decoder_layers::sources());
    all.extend(decompose::sources());
    all.extend(depthwise::sources());
    all.extend(one_query::sources());
    all.extend(matmul::few_rows::cuda::VARIANTS.map(|variant| (variant.name.to_owned(), variant.print())));
    all.extend(matmul::quantized::sources());
    all.extend(matmul::warp_groups::sources());
    all.push((matmul::fused::cuda::NAME.to_owned(), matmul::fused::cuda::print()));
    all
}
