//! The outputs of a captured region, and the tensors that callers receive for them at each replay.
//!
//! The memory that the region allocated for its outputs goes to the graph's owner ([`Outputs::take_over`]), and each replay makes
//! new tensors over it for the caller ([`Outputs::reconstruct`]). Outputs that shared memory in the capture share it again. An
//! output may also be an input, or a view of one: the caller receives its own tensor if the graph read that, else a copy, since
//! the next replay overwrites the graph's own input. Finally, an output may be a tensor from outside the region (a parameter),
//! which is the same at each replay.

use std::panic::Location;
use std::sync::Arc;

use thalweg_ir::{DType, Layout};
use thalweg_runtime::graph::HeldMemory;
use thalweg_runtime::{DevicePointer, Error, GraphPool, Label, OutputHandle, Result, Stream, refuse};

use crate::storage::Storage;
use crate::tensor::Tensor;

/// The policy for an output of an earlier replay that is still held when a replay would overwrite it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LiveOutputs {
    /// The call fails with an error that names the outputs, and writes nothing.
    #[default]
    Refuse,
    /// The outputs are moved to memory of their own first. A tensor that holds one keeps its values; the move counts as a write
    /// in place, so order later use on other streams after it.
    Clone,
}

/// The outputs of a captured region.
pub(super) struct Outputs {
    /// The memory of the graph's pool that holds outputs: addresses and sizes in bytes.
    memories: Vec<(u64, u64)>,
    results: Vec<OutputSpec>,
}

/// The memory, layout and dtype of an output.
struct OutputSpec {
    source: OutputSource,
    layout: Layout,
    dtype: DType,
}

/// The memory that contains an output.
enum OutputSource {
    /// Memory that the region allocated, by its index in [`Outputs::memories`].
    Pool(usize),
    /// The memory of an input, by its index.
    Input(usize),
    /// The memory of a tensor from outside the region.
    Outside(Tensor),
}

/// The storages of the outputs of one replay, and the owner's handles of them.
pub(super) struct ReconstructedOutputs {
    storages: Vec<Arc<Storage>>,
    /// One handle per memory of the pool.
    pub(super) handles: Vec<OutputHandle>,
}

impl Outputs {
    /// Takes over the memory of a region's outputs, and returns it with them: while it is held, the pool does not allocate it.
    /// `inputs` are the tensors that the region read.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if another tensor holds memory that a replay would write.
    pub(super) fn take_over(
        results: Vec<Tensor>,
        inputs: &[Tensor],
        pool: &GraphPool,
        label: Label,
    ) -> Result<(Self, Vec<HeldMemory>)> {
        let mut storages: Vec<Arc<Storage>> = Vec::new();
        let mut specs = Vec::new();
        for result in results {
            let input = inputs.iter().position(|input| input.shares_storage_with(&result));
            let source = match input {
                Some(input) => OutputSource::Input(input),
                None if pool.owns(&result.storage().buffer()) => {
                    let known = storages.iter().position(|storage| Arc::ptr_eq(storage, result.storage()));
                    OutputSource::Pool(known.unwrap_or_else(|| {
                        storages.push(result.storage().clone());
                        storages.len() - 1
                    }))
                }
                None => OutputSource::Outside(result.detach()),
            };
            specs.push(OutputSpec { source, layout: result.layout().clone(), dtype: result.dtype() });
        }
        let mut memories = Vec::new();
        let mut held_memories = Vec::new();
        for mut storage in storages {
            let Some(owned) = Arc::get_mut(&mut storage) else {
                refuse!(
                    "the function keeps a result of {} bytes for itself, which every replay overwrites: let it return the \
                     result only, or keep a copy",
                    storage.buffer().size_bytes()
                );
            };
            let (held, _) = owned.buffer_mut().make_graph_output(pool, label)?;
            memories.push((held.address(), held.size_bytes()));
            held_memories.push(held);
        }
        Ok((Self { memories, results: specs }, held_memories))
    }

    /// Makes storages over the pool's memory for the outputs of a replay. Call it right before the replay.
    pub(super) fn reconstruct(
        &self,
        pool: &GraphPool,
        stream: &Stream,
        label: Label,
    ) -> ReconstructedOutputs {
        let output = |&(address, bytes): &(u64, u64)| {
            pool.output_buffer(DevicePointer::new(address), bytes, stream, label)
        };
        let (buffers, handles): (Vec<_>, Vec<_>) = self.memories.iter().map(output).unzip();
        let storages = buffers.into_iter().map(|buffer| Arc::new(Storage::of_graph(buffer))).collect();
        ReconstructedOutputs { storages, handles }
    }

    /// Returns the output tensors of a replay. `inputs` are the tensors that the graph read; those for which `is_callers` holds are
    /// returned without a copy.
    pub(super) fn results(
        &self,
        reconstructed: &ReconstructedOutputs,
        inputs: &[Tensor],
        is_callers: impl Fn(usize) -> bool,
    ) -> Result<Vec<Tensor>> {
        let result = |OutputSpec { source, layout, dtype }: &OutputSpec| match source {
            OutputSource::Pool(index) => {
                Ok(Tensor::over(reconstructed.storages[*index].clone(), layout.clone(), *dtype))
            }
            OutputSource::Input(index) if is_callers(*index) => {
                Ok(inputs[*index].with_layout(layout.clone()))
            }
            OutputSource::Input(index) => {
                inputs[*index].with_layout(layout.clone()).copied(Location::caller())
            }
            OutputSource::Outside(tensor) => Ok(tensor.clone()),
        };
        self.results.iter().map(result).collect()
    }

    /// Returns the indices of the outputs in one memory of the pool.
    pub(super) fn results_in(&self, memory: usize) -> Vec<usize> {
        let lies_there =
            |spec: &OutputSpec| matches!(spec.source, OutputSource::Pool(index) if index == memory);
        (0..self.results.len()).filter(|&index| lies_there(&self.results[index])).collect()
    }
}

/// Returns the handles of the outputs that a caller still holds.
pub(super) fn still_held<'a>(handles: impl Iterator<Item = &'a OutputHandle>) -> Vec<&'a OutputHandle> {
    handles.filter(|handle| !handle.is_dropped()).collect()
}

/// Prepares memory to be overwritten by work of `stream`: orders `stream` after the uses that other streams recorded, and moves
/// outputs that are still held to memory of their own. Returns how many were moved.
pub(super) fn clear(handles: &mut Vec<OutputHandle>, stream: &Stream) -> Result<u64> {
    let mut moved = 0;
    for handle in handles.iter() {
        if handle.is_dropped() {
            handle.wait_for_uses(stream)?;
        } else {
            handle.move_out(stream)?;
            moved += 1;
        }
    }
    handles.clear();
    Ok(moved)
}
