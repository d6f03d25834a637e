//! What a captured region gives, and how it is handed out at each replay.
//!
//! The memory that the region allocated for its results is taken from them ([`Outputs::adopt`]): it is the graph's owner's from
//! then on, and callers get tensors over lent memory, made anew at each replay ([`Outputs::lend`]). Results that share memory do
//! so again. A result may also be an input, or a view of one: where the graph read the caller's own tensor, callers get that,
//! and else a copy, since the graph's own input is overwritten by the next replay. Or it may be a tensor from elsewhere (a
//! parameter), which is the same each time.

use std::panic::Location;
use std::sync::Arc;

use thalweg_ir::{DType, Layout};
use thalweg_runtime::graph::HeldMemory;
use thalweg_runtime::{DevicePointer, Error, GraphPool, Label, OutputHandle, Result, Stream};

use crate::tensor::{Storage, Tensor};

/// What to do about a result of an earlier replay that is still held when its memory is about to be written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LiveOutputs {
    /// Nothing is written, and the call is an error that names them.
    #[default]
    Refuse,
    /// They are moved to memory of their own first. To whoever holds them that is a write in place of the same values: use on
    /// other streams that follows is ordered behind it by the holder.
    Clone,
}

/// The results of a captured region.
pub(super) struct Outputs {
    /// Memory of the graph's pool: address and size in bytes.
    memories: Vec<(u64, u64)>,
    results: Vec<Place>,
}

/// Where a result lies.
struct Place {
    source: Source,
    layout: Layout,
    dtype: DType,
}

enum Source {
    /// In memory that the region allocated, by its index.
    Pool(usize),
    /// In an input, by its index.
    Input(usize),
    /// In a tensor from elsewhere.
    Elsewhere(Tensor),
}

/// What [`Outputs::adopt`] takes over.
pub(super) struct Adopted {
    pub(super) outputs: Outputs,
    /// The pool's memory, which others that allocate from the pool do not get.
    pub(super) held: Vec<HeldMemory>,
    /// For the first replay.
    pub(super) lent: Lending,
}

/// Results in the hands of a caller, and the lender's side of them.
pub(super) struct Lending {
    storages: Vec<Arc<Storage>>,
    /// One a memory of the pool.
    pub(super) loans: Vec<OutputHandle>,
}

impl Outputs {
    /// Takes the memory of a region's results over. `inputs` are the tensors that the region read.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if somebody else holds memory that a replay writes.
    pub(super) fn adopt(
        results: Vec<Tensor>,
        inputs: &[Tensor],
        pool: &GraphPool,
        label: Label,
    ) -> Result<Adopted> {
        let mut storages: Vec<Arc<Storage>> = Vec::new();
        let mut places = Vec::new();
        for result in results {
            let input = inputs.iter().position(|input| input.shares_storage_with(&result));
            let source = match input {
                Some(input) => Source::Input(input),
                None if pool.owns(&result.storage().buffer) => {
                    let known = storages.iter().position(|storage| Arc::ptr_eq(storage, result.storage()));
                    Source::Pool(known.unwrap_or_else(|| {
                        storages.push(result.storage().clone());
                        storages.len() - 1
                    }))
                }
                None => Source::Elsewhere(result.detach()),
            };
            places.push(Place { source, layout: result.layout().clone(), dtype: result.dtype() });
        }
        let mut adopted = Adopted {
            outputs: Self { memories: Vec::new(), results: places },
            held: Vec::new(),
            lent: Lending { storages: Vec::new(), loans: Vec::new() },
        };
        for mut storage in storages {
            let Some(owned) = Arc::get_mut(&mut storage) else {
                return Err(Error::invalid(format!(
                    "the function keeps a result of {} bytes for itself, which every replay overwrites: let it return the \
                     result only, or keep a copy",
                    storage.buffer.size_bytes()
                )));
            };
            let (held, loan) = owned.buffer.make_graph_output(pool, label)?;
            adopted.outputs.memories.push((held.address(), held.size_bytes()));
            adopted.held.push(held);
            adopted.lent.loans.push(loan);
            adopted.lent.storages.push(storage);
        }
        Ok(adopted)
    }

    /// Lends the memory of the pool again, for a replay that is about to come.
    pub(super) fn lend(&self, pool: &GraphPool, stream: &Stream, label: Label) -> Lending {
        let lend = |&(address, bytes): &(u64, u64)| {
            pool.output_buffer(DevicePointer::new(address), bytes, stream, label)
        };
        let (buffers, loans): (Vec<_>, Vec<_>) = self.memories.iter().map(lend).unzip();
        let storages = buffers.into_iter().map(|buffer| Arc::new(Storage::new(buffer))).collect();
        Lending { storages, loans }
    }

    /// The results, behind the replay. `inputs` are the tensors that the graph read; those for which `is_callers` holds are not
    /// copied.
    pub(super) fn results(
        &self,
        lending: &Lending,
        inputs: &[Tensor],
        is_callers: impl Fn(usize) -> bool,
    ) -> Result<Vec<Tensor>> {
        let result = |Place { source, layout, dtype }: &Place| match source {
            Source::Pool(index) => Ok(Tensor::over(lending.storages[*index].clone(), layout.clone(), *dtype)),
            Source::Input(index) if is_callers(*index) => Ok(inputs[*index].with_layout(layout.clone())),
            Source::Input(index) => inputs[*index].with_layout(layout.clone()).copied(Location::caller()),
            Source::Elsewhere(tensor) => Ok(tensor.clone()),
        };
        self.results.iter().map(result).collect()
    }

    /// The results that lie in a memory of the pool.
    pub(super) fn results_in(&self, memory: usize) -> Vec<usize> {
        let lies_there = |place: &Place| matches!(place.source, Source::Pool(index) if index == memory);
        (0..self.results.len()).filter(|&index| lies_there(&self.results[index])).collect()
    }
}

/// Those that somebody still holds.
pub(super) fn still_held<'a>(loans: impl Iterator<Item = &'a OutputHandle>) -> Vec<&'a OutputHandle> {
    loans.filter(|loan| !loan.is_dropped()).collect()
}

/// Clears memory that is about to be written: waits for what other streams still do with it, and moves away what somebody still
/// holds. Says how much was moved.
pub(super) fn clear(loans: &mut Vec<OutputHandle>, stream: &Stream) -> Result<u64> {
    let mut moved = 0;
    for loan in loans.iter() {
        if loan.is_dropped() {
            loan.wait_for_uses(stream)?;
        } else {
            loan.move_out(stream)?;
            moved += 1;
        }
    }
    loans.clear();
    Ok(moved)
}
