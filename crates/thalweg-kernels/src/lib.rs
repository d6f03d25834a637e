//! Native kernels, which are not loops over a body of the IR: matrix products and decompositions, attention, sums whose terms the data name, random numbers, scans, sorting
//! and searching, functions whose work depends on the numbers, lists of tensors.
//!
//! Each is a description (sizes, strides, dtypes: a small value without addresses) that knows its CUDA C and the same work on
//! the host. [`Placed`] adds the addresses of its operands, and implements [`NativeKernel`], all that a stream needs to launch
//! it.
//!
//! # Adding a kernel
//! One file here: the description, the order of its words (`arguments!`), its source, its host function,
//! `impl NativeKernel for Placed<…>`, and its line in [`sources`]. Nothing elsewhere: `Stream::launch_native` launches it, the bundle ships it, and the tests compile it.
//!
//! # Invariants
//! - The host function is the definition: a GPU may differ from it only where its documentation says so.
//! - What a launch touches is derived from the description alone, and the host function reads and writes nothing else.
#![forbid(unsafe_code)]

mod arguments;
pub mod attention;
pub mod convolution;
pub mod decoder_layers;
pub mod decompose;
mod dtypes;
pub mod embedding;
pub mod extremum_columns;
pub mod extremum_place;
pub mod foreach;
pub mod gather;
pub mod magnitudes;
pub mod matmul;
pub mod next_token;
pub mod one_query;
mod operands;
mod panels;
pub mod pool;
pub mod random;
pub mod scan;
pub mod scatter;
pub mod search;
mod shared;
pub mod sort;
pub mod special;
pub mod threads;

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Access, HostKernel, LaunchMode};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

pub use operands::{cells, slice, slice_mut};

/// The arguments of a launch: 8-byte words, passed to the kernel as one structure by value.
pub type Words = SmallVec<[u64; 24]>;

/// The ranges that a launch touches.
pub type Accesses = SmallVec<[Access; 8]>;

/// The function that a host function calls to tell of an index that is out of range: the slot that its launch's last word names, the index, the extent.
pub type Tell = Arc<dyn Fn(u64, i64, i64) + Send + Sync>;

/// A launch of a kernel that is written as CUDA C, with the same work as a host function.
pub trait NativeKernel {
    /// Returns the name of the entry point. Kernels of one name are the same kernel.
    fn name(&self) -> &str;

    /// Returns the translation unit, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point takes
    /// [`words`](Self::words) as one structure by value.
    fn source(&self) -> String;

    /// Returns the host function, which reads the same words.
    fn host(&self) -> Arc<dyn HostKernel>;

    /// Returns the host function of a kernel that [tells](Self::tells).
    fn host_telling(&self, tell: Tell) -> Arc<dyn HostKernel> {
        let _ = tell;
        self.host()
    }

    /// Returns whether the kernel tells of indices that are out of range. Then one more word follows its [`words`](Self::words), which
    /// says where: on a GPU the address of two int64, which get the index, and the extent plus one.
    fn tells(&self) -> bool {
        false
    }

    /// Checks that the description can be carried out.
    ///
    /// # Errors
    /// What cannot, in a sentence.
    fn check(&self) -> Result<(), Fault>;

    /// Returns the grid and the blocks of the launch; `None` if there is nothing to compute.
    fn launch_shape(&self) -> Option<LaunchShape>;

    /// Returns how much dynamic shared memory a block has.
    fn shared_memory_bytes(&self) -> u32 {
        0
    }

    /// Returns when the kernel may begin, and whether its blocks wait for each other.
    fn mode(&self) -> LaunchMode {
        LaunchMode::InOrder
    }

    /// Returns the arguments.
    fn words(&self) -> Words;

    /// Returns the ranges that the launch touches. Empty ones are left out by the caller.
    fn accesses(&self) -> Accesses;
}

/// A description with the addresses of its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed<K, A> {
    /// The kernel.
    pub kernel: K,
    /// The places where each operand begins.
    pub at: A,
}

/// The floating-point dtypes, each of which a kernel here has a version for.
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// Returns name and source of every kernel of this crate that does not depend on a program's bodies: what a bundle compiles
/// ahead, and what tests compile.
pub fn sources() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for dtype in matmul::DTYPES {
        all.push((matmul::cuda::name(dtype).to_owned(), matmul::cuda::print(dtype)));
    }
    for dtype in FLOATS {
        all.push((embedding::name(dtype).to_owned(), embedding::print(dtype)));
    }
    for dtype in scatter::DTYPES {
        all.push((scatter::name(dtype).to_owned(), scatter::print(dtype)));
    }
    all.extend(extremum_columns::sources());
    all.extend(extremum_place::sources());
    all.extend(gather::sources());
    all.extend(magnitudes::sources());
    all.extend(next_token::sources());
    all.extend(scatter::group::sources());
    all.extend(scatter::rows::sources());
    all.extend(scatter::tile::sources());
    all.extend(random::sources());
    all.extend(pool::sources());
    all.extend(scan::sources());
    all.extend(sort::sources());
    all.extend(search::sources());
    all.extend(special::sources());
    all.extend(attention::sources());
    all.extend(decoder_layers::sources());
    all.extend(decompose::sources());
    all.extend(one_query::sources());
    all.extend(matmul::few_rows::cuda::VARIANTS.map(|variant| (variant.name.to_owned(), variant.print())));
    all.extend(matmul::quantized::sources());
    all.push((matmul::fused::cuda::NAME.to_owned(), matmul::fused::cuda::print()));
    all
}
