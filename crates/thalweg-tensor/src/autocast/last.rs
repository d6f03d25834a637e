//! The last cast of a result: operators in a row that read the same result cast it once.
//!
//! Attention projects one row to queries, keys and values, and a gated layer projects one to two: each operator would read the row
//! in f32 and write it in 16 bits. The thread keeps its last cast until it casts something else, or its outermost region ends. Each
//! operator still has a node of its own for the cast, so gradients are widened one by one before they are added, as without it.
//!
//! # When the cast is used
//! The source must be the same memory in the same layout, and nothing can have written it or the cast since: their versions are
//! unchanged, no graph was replayed, and no other library has an address. The stream must be the same, and so must the capture that
//! it takes part in, if any.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use thalweg_ir::{DType, Layout};
use thalweg_runtime::{Result, Stream};

use super::recorded;
use crate::autograd::is_grad_enabled;
use crate::dispatch::is_inference;
use crate::storage::Storage;
use crate::tensor::Tensor;

struct Last {
    source: Weak<Storage>,
    layout: Layout,
    dtype: DType,
    /// The numbers of writes of the source and of the cast.
    writes: [u32; 2],
    replays: u64,
    stream: Stream,
    capture: Option<u64>,
    cast: Tensor,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Forgets the last cast of this thread.
pub(super) fn clear() {
    let _dropped_outside = LAST.try_with(RefCell::take);
}

/// Returns the cast of a tensor to a dtype. The tensor is not a leaf that requires a gradient.
pub(super) fn cast(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let stream = tensor.device().current_stream();
    let capture = stream.capture_id()?;
    let known = LAST.try_with(|last| {
        let last = last.borrow();
        last.as_ref()
            .filter(|last| last.is_of(tensor, dtype, (&stream, capture)))
            .map(|last| last.cast.detach())
    });
    if let Ok(Some(cast)) = known {
        let is_differentiated = is_grad_enabled() && tensor.requires_grad();
        return Ok(if is_differentiated { recorded(tensor, cast, false) } else { cast });
    }
    let cast = tensor.to_dtype(dtype)?;
    let made = Last {
        source: Arc::downgrade(tensor.storage()),
        layout: tensor.layout().clone(),
        dtype: tensor.dtype(),
        writes: [tensor.writes(), cast.writes()],
        replays: tensor.device().replays(),
        stream,
        capture,
        cast: cast.detach(),
    };
    // The former cast is dropped outside of the borrow. A thread whose thread-local variables are already destroyed keeps none.
    let _former = LAST.try_with(|last| last.replace(Some(made)));
    Ok(cast)
}

impl Last {
    /// Returns whether this is the cast of a tensor to a dtype for work on a stream, and has the tensor's present value.
    fn is_of(&self, tensor: &Tensor, dtype: DType, (stream, capture): (&Stream, Option<u64>)) -> bool {
        // A weak reference keeps the address of a storage that was dropped from being used again.
        std::ptr::eq(self.source.as_ptr(), Arc::as_ptr(tensor.storage()))
            && self.cast.dtype() == dtype
            && self.dtype == tensor.dtype()
            && self.layout == *tensor.layout()
            && self.writes == [tensor.writes(), self.cast.writes()]
            && self.replays == tensor.device().replays()
            && self.stream == *stream
            && self.capture == capture
            && self.cast.is_inference() == is_inference()
            && ![tensor, &self.cast].iter().any(|tensor| tensor.storage().is_exported())
    }
}
