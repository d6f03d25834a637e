//! Execution: the place where a description without addresses becomes work on a stream.
//!
//! Operators describe what they compute: a loop ([`Lowered`]), native kernels ([`Kernels`]), or a call of the
//! vendor's library ([`products`], [`library`]). [`execute`] takes any of them with the addresses of its operands, adds scratch
//! memory from the caching allocator, and queues it. Eager calls, gradients, compiled functions and the kernels inside PyTorch all
//! come through here.
//!
//! - [`products`]: matrix products, by cuBLASLt or by kernels of our own.
//! - [`library`]: attention, convolutions, Fourier transforms, decompositions and recurrent networks, by NVIDIA's libraries.
//! - [`tunable`]: the fastest algorithm of each product, found by measuring; [`backends`]: precision and choices of libraries.
#![forbid(unsafe_code)]

pub mod backends;
pub mod library;
mod loops;
pub mod products;
mod rows;
mod strips;
pub mod tunable;

use thalweg_kernels::Native;
use thalweg_runtime::{Buffer, DevicePointer, Label, Result, Stream};

pub use library::if_supported;
pub use loops::{
    Addresses, Kept, Lowered, addresses, alignment_of, compile_ahead, expect, prepared, run, to_runtime_error,
};

/// A description of work without addresses, which [`execute`] queues.
pub trait Work<At> {
    /// Queues the work over operands at these addresses. [`execute`] is the function to call.
    ///
    /// # Errors
    /// Those that the description documents, and the driver's.
    fn queue(self, at: At, stream: &Stream, label: Label) -> Result<()>;
}

/// Queues work over operands at these addresses on a stream, with scratch memory if it needs any. Does not block, but for a kernel
/// that has to be compiled, or a library's call that has to be prepared, first.
///
/// # Errors
/// Those that the description documents, and the driver's.
pub fn execute<At>(work: impl Work<At>, at: At, stream: &Stream, label: Label) -> Result<()> {
    work.queue(at, stream, label)
}

/// Native kernels: one launch over its operands, or several that also share scratch memory.
#[derive(Clone, Copy, Debug)]
pub struct Kernels<N>(pub N);

impl<At, N: Native<At>> Work<At> for Kernels<N> {
    fn queue(self, at: At, stream: &Stream, label: Label) -> Result<()> {
        let bytes = self.0.scratch_bytes();
        let scratch = (bytes > 0).then(|| Buffer::labelled(stream, bytes, label)).transpose()?;
        let scratch_at = scratch.as_ref().map_or(DevicePointer::new(0), Buffer::pointer);
        self.0.launches(at, scratch_at).try_for_each(|launch| stream.launch_native(&launch, label))
    }
}
