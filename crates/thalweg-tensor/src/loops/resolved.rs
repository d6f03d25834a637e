//! [`Resolved`]: a call of a loop operator with everything derived from its tensors, cached per thread.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytemuck::cast_slice;
use rustc_hash::FxHashMap;
use thalweg_execute::{Kept, alignment_of, to_runtime_error};
use thalweg_ops::lower::{LoopArguments, LoweredLoop, signature_of};
use thalweg_ops::{LoopOp, Signature, Space, default_dtype};
use thalweg_runtime::{Device, Result, Stream};

use super::call::LoopCall;
use super::launch::operands;
use crate::deferred::SharedLaunch;
use crate::destination;
use crate::tensor::{Tensor, Tensors};

/// A resolved call of a loop operator: everything derived from its tensors' dtypes, shapes, strides and alignment.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) lowered: LoweredLoop,
    /// The launch, for addresses aligned as those of the inputs.
    pub(super) kept: Kept,
    /// The launch as loops that wait share it.
    shared: OnceLock<Arc<SharedLaunch>>,
    /// The inputs for which a gradient was last recorded, as bits.
    recorded: AtomicU32,
}

/// The number of calls that a thread keeps resolved: a few times the number in the largest models.
const RESOLVED: usize = 1 << 12;

thread_local! {
    /// The calls that this thread has resolved. Cached per thread, so that a repeated call takes no lock and one look-up.
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Resolved calls by everything that they depend on; emptied when there are too many.
#[derive(Default)]
struct Known {
    /// The buffer for the key of a look-up.
    key: Vec<u64>,
    calls: FxHashMap<Box<[u64]>, Arc<Resolved>>,
}

impl Resolved {
    /// Resolves a call, or finds it resolved.
    pub(crate) fn of(call: &LoopCall<'_>) -> Result<Arc<Self>> {
        let alignment_bytes = alignment_of(call.tensors.iter().map(|tensor| tensor.aligned_like()));
        // A thread whose thread-local variables are already destroyed caches nothing.
        let found = KNOWN.try_with(|known| {
            let Known { key, calls } = &mut *known.borrow_mut();
            Self::write_key(key, call, alignment_bytes);
            calls.get(key.as_slice()).cloned()
        });
        if let Ok(Some(found)) = found {
            return Ok(found);
        }
        let before = Self::key_of(call, alignment_bytes);
        let made = Self::new(call, alignment_bytes).map(Arc::new);
        // Another thread may have changed a tensor's layout meanwhile: then the result mixes both layouts, and a refusal means
        // nothing.
        let is_of_one = Self::key_of(call, alignment_bytes) == before;
        if made.is_err() && !is_of_one {
            return Self::of(call);
        }
        let made = made?;
        if is_of_one {
            let _ = KNOWN.try_with(|known| {
                let Known { calls, .. } = &mut *known.borrow_mut();
                if calls.len() >= RESOLVED {
                    calls.clear();
                }
                calls.insert(before.into(), Arc::clone(&made));
            });
        }
        Ok(made)
    }

    /// Returns the key that [`write_key`](Self::write_key) writes.
    fn key_of(call: &LoopCall<'_>, alignment_bytes: u64) -> Vec<u64> {
        let mut key = Vec::new();
        Self::write_key(&mut key, call, alignment_bytes);
        key
    }

    /// Writes everything that a call depends on, except the values of its numbers.
    fn write_key(key: &mut Vec<u64>, call: &LoopCall<'_>, alignment_bytes: u64) {
        let arguments = &call.arguments;
        let dtype = arguments.dtype.map_or(0, |dtype| dtype as u64 + 1);
        // An operator has one kind of points.
        let integers = arguments.points.integers();
        let kinds = (default_dtype() as u64) << 24
            | dtype << 16
            | (arguments.category() as u64) << 8
            | integers.len() as u64;
        key.clear();
        let operator = std::ptr::from_ref(call.operator).addr() as u64;
        key.extend_from_slice(&[operator, call.device.number(), alignment_bytes << 32 | kinds]);
        key.extend_from_slice(cast_slice(integers));
        for tensor in &call.tensors {
            let layout = tensor.layout();
            key.push((tensor.dtype() as u64) << 8 | layout.rank() as u64);
            for (&extent, &stride) in layout.shape().iter().zip(layout.strides()) {
                key.extend_from_slice(&[extent as u64, stride as u64]);
            }
        }
    }

    fn new(call: &LoopCall<'_>, alignment_bytes: u64) -> Result<Self> {
        let operands = operands(call.tensors.iter().copied());
        let lowered =
            LoweredLoop::new(call.operator, &operands, &call.arguments).map_err(to_runtime_error)?;
        Ok(Self {
            lowered,
            kept: Kept::new(alignment_bytes),
            shared: OnceLock::new(),
            recorded: AtomicU32::new(0),
        })
    }

    /// Returns whether a gradient is recorded for these inputs, as bits, and was last recorded for others or not at all.
    pub(super) fn is_first_gradient(&self, wanted: u32) -> bool {
        self.recorded.swap(wanted, Ordering::Relaxed) != wanted
    }

    /// Returns the launch as loops that wait share it.
    pub(super) fn shared(&self, device: &Device) -> Arc<SharedLaunch> {
        Arc::clone(self.shared.get_or_init(|| SharedLaunch::of(self.lowered.launch(), device)))
    }

    /// Allocates the results, or takes memory that is offered for them. Returns also whether their layouts and dtypes are as planned.
    pub(super) fn results(&self, call: &LoopCall<'_>, stream: &Stream) -> Result<(Tensors, bool)> {
        let is_pointwise = call.operator.space == Space::Elementwise;
        let (mut results, mut are_as_planned) = (Tensors::new(), true);
        for output in &self.lowered.outputs {
            let (layout, dtype) = (&output.layout, output.dtype);
            results.push(
                match destination::for_loop((layout, call.device), dtype, &call.tensors, is_pointwise) {
                    Some(target) => {
                        are_as_planned &=
                            target.layout().strides() == layout.strides() && target.dtype() == dtype;
                        target
                    }
                    None => Tensor::empty_in(layout.clone(), output.bytes, dtype, stream, call.label)?,
                },
            );
        }
        Ok((results, are_as_planned))
    }
}

/// Returns the dtypes of a call of an operator with these tensors.
pub(crate) fn signature(
    operator: &LoopOp,
    tensors: &[&Tensor],
    arguments: &LoopArguments,
) -> Result<Signature> {
    signature_of(operator, &operands(tensors.iter().copied()), arguments).map_err(to_runtime_error)
}
