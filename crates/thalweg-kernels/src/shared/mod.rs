//! Functions of CUDA C that several kernels have: the text of a kernel names one where it is to stand.

/// Adds the products of eight rows of weights and up to sixteen rows, by the tensor cores; `MMA` is the name of their dtype.
pub(crate) const MULTIPLY_EIGHT: &str = include_str!("multiply_eight.cu");

/// Sums over a block of 256 threads, by a memory of eight numbers.
pub(crate) const OVER_BLOCK: &str = include_str!("over_block.cu");

/// Weights on their way through shared memory, in pieces of 16 bytes per lane; `WEIGHT` is the type of their elements.
pub(crate) const PIECES: &str = include_str!("pieces.cu");

/// The sums of warps that share eight rows of weights, added up; `ROWS` is how many rows the kernel multiplies them by.
pub(crate) const COMBINE: &str = include_str!("combine.cu");
