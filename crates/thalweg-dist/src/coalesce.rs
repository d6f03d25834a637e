//! [`Coalescing`]: several collectives of a rank that are submitted as one group. A single collective of a group is a coalescing
//! of one.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{CollectiveOperation, DevicePointer, ElementFormat};
use thalweg_runtime::{CollectivePart, Error, Event, Label, Result, invalid, refuse, refuse_if};
use thalweg_tensor::caller::{at_line, in_call, in_function, label_at};
use thalweg_tensor::{Tensor, no_grad};

use crate::checks::{fit, is_member, is_other, moved, one_per_rank, reduced, same_dtype, splits};
use crate::flight::Tensors;
use crate::{ProcessGroup, ReduceOp, Work};

/// Collectives that are collected and then submitted together (`_coalescing_manager`, `batch_isend_irecv`): they are not ordered
/// relative to each other, so a send does not wait for a receive that was collected after it. All ranks collect the same
/// collectives.
///
/// Each method checks its arguments. If they do not fit, the collectives that were collected before are unchanged.
///
/// # Errors
/// [`Error::is_invalid_argument`] from each method if a tensor is on another device or not contiguous, shapes or dtypes do not
/// fit, or a rank is not in the group.
#[must_use = "nothing is submitted before `submit`"]
#[derive(Debug)]
pub struct Coalescing<'g> {
    group: &'g ProcessGroup,
    parts: SmallVec<[CollectivePart; 4]>,
    /// The copies from this rank to itself: source, target, bytes.
    copies: SmallVec<[(DevicePointer, DevicePointer, u64); 1]>,
    read: SmallVec<[Tensor; 4]>,
    written: SmallVec<[Tensor; 4]>,
    /// Tensors that are read and written.
    changed: SmallVec<[Tensor; 4]>,
    /// Temporary tensors, made by this type, that are read.
    own: SmallVec<[Tensor; 1]>,
    label: Option<Label>,
}

impl ProcessGroup {
    /// Starts to collect collectives.
    pub fn coalescing(&self) -> Coalescing<'_> {
        let (parts, copies) = (SmallVec::new(), SmallVec::new());
        Coalescing {
            group: self,
            parts,
            copies,
            read: SmallVec::new(),
            written: SmallVec::new(),
            changed: SmallVec::new(),
            own: SmallVec::new(),
            label: None,
        }
    }
}

impl Coalescing<'_> {
    /// Replaces the tensor on every rank by the reduction of all ranks' tensors.
    #[track_caller]
    pub fn all_reduce(&mut self, tensor: &Tensor, operation: ReduceOp) -> Result<()> {
        let label = label_at("all_reduce", Location::caller());
        in_call("all_reduce", &[tensor], label.location, || {
            fit(self.group, &[tensor])?;
            let (format, reduction) = reduced(tensor.dtype(), operation)?;
            let (send, receive) = (self.multiplied(tensor, operation)?, tensor.pointer());
            let (operation, count) = (CollectiveOperation::AllReduce(reduction), tensor.elements() as u64);
            self.add(CollectivePart { operation, format, count, send, receive, label });
            self.changed.push(tensor.clone());
            Ok(())
        })
    }

    /// Writes the reduction of the inputs of all ranks to another tensor of their shape.
    #[track_caller]
    pub(crate) fn all_reduce_into(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        operation: ReduceOp,
    ) -> Result<()> {
        let label = label_at("all_reduce", Location::caller());
        fit(self.group, &[output, input])?;
        let (format, reduction) = reduced(input.dtype(), operation)?;
        let send = self.multiplied(input, operation)?;
        let (operation, count) = (CollectiveOperation::AllReduce(reduction), input.elements() as u64);
        self.add(CollectivePart { operation, format, count, send, receive: output.pointer(), label });
        self.read.push(input.clone());
        self.written.push(output.clone());
        Ok(())
    }

    /// Replaces the tensor on rank `dst` by the reduction of all ranks' tensors. The other ranks' tensors are unchanged.
    #[track_caller]
    pub fn reduce(&mut self, tensor: &Tensor, dst: u32, operation: ReduceOp) -> Result<()> {
        let label = label_at("reduce", Location::caller());
        in_call("reduce", &[tensor], label.location, || {
            fit(self.group, &[tensor])?;
            is_member(self.group, "destination", dst)?;
            let (format, reduction) = reduced(tensor.dtype(), operation)?;
            let (send, receive) = (self.multiplied(tensor, operation)?, tensor.pointer());
            let operation = CollectiveOperation::Reduce { root: dst, reduction };
            let count = tensor.elements() as u64;
            self.add(CollectivePart { operation, format, count, send, receive, label });
            let list = if dst == self.group.rank() { &mut self.changed } else { &mut self.read };
            list.push(tensor.clone());
            Ok(())
        })
    }

    /// Replaces the tensor on every rank by the tensor of rank `src`.
    #[track_caller]
    pub fn broadcast(&mut self, tensor: &Tensor, src: u32) -> Result<()> {
        let label = label_at("broadcast", Location::caller());
        in_call("broadcast", &[tensor], label.location, || {
            fit(self.group, &[tensor])?;
            is_member(self.group, "source", src)?;
            self.broadcast_from(src, tensor.pointer(), tensor, label)?;
            // NCCL also writes the root's output if it gets a pointer for it.
            self.changed.push(tensor.clone());
            Ok(())
        })
    }

    /// Writes the input of rank `src` to another tensor of its shape.
    #[track_caller]
    pub(crate) fn broadcast_into(&mut self, output: &Tensor, input: &Tensor, src: u32) -> Result<()> {
        let label = label_at("broadcast", Location::caller());
        fit(self.group, &[output, input])?;
        is_member(self.group, "source", src)?;
        self.broadcast_from(src, input.pointer(), output, label)?;
        self.read.push(input.clone());
        self.written.push(output.clone());
        Ok(())
    }

    fn broadcast_from(&mut self, root: u32, send: DevicePointer, to: &Tensor, label: Label) -> Result<()> {
        let (format, count) = (moved(to.dtype())?, to.elements() as u64);
        let operation = CollectiveOperation::Broadcast { root };
        self.add(CollectivePart { operation, format, count, send, receive: to.pointer(), label });
        Ok(())
    }

    /// Gathers the inputs of all ranks into one tensor on every rank, in the order of the ranks (`all_gather_into_tensor`): the
    /// output has as many elements as all inputs together. The input may be this rank's part of the output.
    #[track_caller]
    pub fn all_gather_into_tensor(&mut self, output: &Tensor, input: &Tensor) -> Result<()> {
        let label = label_at("all_gather_into_tensor", Location::caller());
        in_call(label.operator, &[output, input], label.location, || {
            fit(self.group, &[output, input])?;
            same_dtype(output, input)?;
            refuse_if!(
                Some(output.elements()) != input.elements().checked_mul(self.group.size() as usize),
                "output tensor size must be equal to world_size times input tensor size: {} and {} times {}",
                output.elements(),
                self.group.size(),
                input.elements()
            );
            self.add_from(
                input,
                output,
                (CollectiveOperation::AllGather, moved(input.dtype())?, input.elements()),
                label,
            );
            Ok(())
        })
    }

    /// Gathers the inputs of all ranks on every rank, each into a tensor of the size of that rank's input: sizes may differ.
    #[track_caller]
    pub fn all_gather(&mut self, outputs: &[Tensor], input: &Tensor) -> Result<()> {
        let label = label_at("all_gather", Location::caller());
        in_call("all_gather", &[input], label.location, || {
            one_per_rank(self.group, "input to all_gather", outputs)?;
            fit(self.group, &[input])?;
            for output in outputs {
                fit(self.group, &[output])?;
                same_dtype(output, input)?;
            }
            let own = &outputs[self.group.rank() as usize];
            refuse_if!(
                own.elements() != input.elements(),
                "all_gather: the output of this rank has {} elements, its input {}",
                own.elements(),
                input.elements()
            );
            moved(input.dtype())?;
            for (rank, output) in (0..).zip(outputs) {
                self.broadcast_from(rank, input.pointer(), output, label)?;
            }
            self.read.push(input.clone());
            self.written.extend(outputs.iter().cloned());
            Ok(())
        })
    }

    /// Reduces the inputs of all ranks, and writes to each rank's output its part of the result (`reduce_scatter_tensor`): the
    /// input has as many elements as the outputs of all ranks together. The output may be this rank's part of the input.
    #[track_caller]
    pub fn reduce_scatter_tensor(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        operation: ReduceOp,
    ) -> Result<()> {
        let label = label_at("reduce_scatter_tensor", Location::caller());
        in_call(label.operator, &[output, input], label.location, || {
            fit(self.group, &[output, input])?;
            same_dtype(output, input)?;
            refuse_if!(
                Some(input.elements()) != output.elements().checked_mul(self.group.size() as usize),
                "input tensor must be the same size as output size times world size: {} and {} times {}",
                input.elements(),
                output.elements(),
                self.group.size()
            );
            let (format, reduction) = reduced(input.dtype(), operation)?;
            let send = self.multiplied(input, operation)?;
            let operation = CollectiveOperation::ReduceScatter(reduction);
            let (receive, count) = (output.pointer(), output.elements() as u64);
            self.add(CollectivePart { operation, format, count, send, receive, label });
            self.read.push(input.clone());
            self.written.push(output.clone());
            Ok(())
        })
    }

    /// Reduces lists of tensors, one entry per rank: rank r gets the reduction of all r-th entries. Sizes may differ between
    /// entries.
    #[track_caller]
    pub fn reduce_scatter(&mut self, output: &Tensor, inputs: &[Tensor], operation: ReduceOp) -> Result<()> {
        let label = label_at("reduce_scatter", Location::caller());
        in_call("reduce_scatter", &[output], label.location, || {
            one_per_rank(self.group, "input to reduce_scatter", inputs)?;
            fit(self.group, &[output])?;
            for input in inputs {
                fit(self.group, &[input])?;
                same_dtype(output, input)?;
            }
            let own = &inputs[self.group.rank() as usize];
            refuse_if!(
                own.elements() != output.elements(),
                "reduce_scatter: the input of this rank's place has {} elements, its output {}",
                own.elements(),
                output.elements()
            );
            let (format, reduction) = reduced(output.dtype(), operation)?;
            for (root, input) in (0..).zip(inputs) {
                let send = self.multiplied(input, operation)?;
                self.add(CollectivePart {
                    operation: CollectiveOperation::Reduce { root, reduction },
                    format,
                    count: input.elements() as u64,
                    send,
                    receive: output.pointer(),
                    label,
                });
            }
            self.read.extend(inputs.iter().cloned());
            self.written.push(output.clone());
            Ok(())
        })
    }

    /// Sends rows of dimension 0 of the input to all ranks, and receives their rows into the output. `input_splits` and
    /// `output_splits` are the numbers of rows to and from each rank; `None` divides evenly.
    #[track_caller]
    pub fn all_to_all_single(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        output_splits: Option<&[usize]>,
        input_splits: Option<&[usize]>,
    ) -> Result<()> {
        let label = label_at("all_to_all_single", Location::caller());
        in_call(label.operator, &[output, input], label.location, || {
            fit(self.group, &[output, input])?;
            same_dtype(output, input)?;
            let row = |tensor: &Tensor| tensor.shape().iter().skip(1).product::<usize>();
            if row(output) != row(input) {
                refuse!("all_to_all_single: rows of input and output differ in size");
            }
            let pieces = |tensor: &Tensor, sizes: Option<&[usize]>| -> Result<Vec<(DevicePointer, usize)>> {
                let (row, bytes) = (row(tensor), tensor.dtype().size_bytes());
                let mut start = 0;
                let piece = |rows: usize| {
                    let at = tensor.pointer().offset((start * row * bytes) as u64);
                    start += rows;
                    (at, rows * row)
                };
                Ok(splits(self.group, tensor, sizes)?.into_iter().map(piece).collect())
            };
            let (from, to) = (pieces(input, input_splits)?, pieces(output, output_splits)?);
            self.exchange(&from, &to, input, label)?;
            self.read.push(input.clone());
            self.written.push(output.clone());
            Ok(())
        })
    }

    /// Sends one tensor to each rank, and receives one from each.
    #[track_caller]
    pub fn all_to_all(&mut self, outputs: &[Tensor], inputs: &[Tensor]) -> Result<()> {
        let label = label_at("all_to_all", Location::caller());
        in_function("all_to_all", label.location, || {
            one_per_rank(self.group, "input to all_to_all", inputs)?;
            one_per_rank(self.group, "output of all_to_all", outputs)?;
            for tensor in inputs.iter().chain(outputs) {
                fit(self.group, &[tensor])?;
                same_dtype(tensor, &inputs[0])?;
            }
            let pieces = |tensors: &[Tensor]| -> Vec<(DevicePointer, usize)> {
                tensors.iter().map(|tensor| (tensor.pointer(), tensor.elements())).collect()
            };
            self.exchange(&pieces(inputs), &pieces(outputs), &inputs[0], label)?;
            self.read.extend(inputs.iter().cloned());
            self.written.extend(outputs.iter().cloned());
            Ok(())
        })
    }

    /// Sends one piece to each rank, and receives one from each.
    fn exchange(
        &mut self,
        from: &[(DevicePointer, usize)],
        to: &[(DevicePointer, usize)],
        like: &Tensor,
        label: Label,
    ) -> Result<()> {
        let (own, format) = (self.group.rank() as usize, moved(like.dtype())?);
        refuse_if!(
            from[own].1 != to[own].1,
            "{}: rank {own} sends {} elements to itself and gets {}",
            label.operator,
            from[own].1,
            to[own].1
        );
        let bytes = (from[own].1 * like.dtype().size_bytes()) as u64;
        self.copy(from[own].0, to[own].0, bytes, label);
        for peer in (0..from.len()).filter(|&peer| peer != own) {
            for (operation, (at, count)) in [
                (CollectiveOperation::Send { peer: peer as u32 }, from[peer]),
                (CollectiveOperation::Receive { peer: peer as u32 }, to[peer]),
            ] {
                let count = count as u64;
                self.add(CollectivePart { operation, format, count, send: at, receive: at, label });
            }
        }
        Ok(())
    }

    /// Gathers the tensors of all ranks on rank `dst`. Only that rank passes a list of tensors to write to.
    #[track_caller]
    pub fn gather(&mut self, tensor: &Tensor, gather_list: Option<&[Tensor]>, dst: u32) -> Result<()> {
        let label = label_at("gather", Location::caller());
        in_call("gather", &[tensor], label.location, || {
            fit(self.group, &[tensor])?;
            is_member(self.group, "destination", dst)?;
            let list = self.list_of_root("gather_list", "dst", tensor, gather_list, dst)?;
            self.spread(tensor, list, dst, label, false)
        })
    }

    /// Sends each rank one of the tensors of rank `src`. Only that rank passes a list of tensors.
    #[track_caller]
    pub fn scatter(&mut self, tensor: &Tensor, scatter_list: Option<&[Tensor]>, src: u32) -> Result<()> {
        let label = label_at("scatter", Location::caller());
        in_call("scatter", &[tensor], label.location, || {
            fit(self.group, &[tensor])?;
            is_member(self.group, "source", src)?;
            let list = self.list_of_root("scatter_list", "src", tensor, scatter_list, src)?;
            self.spread(tensor, list, src, label, true)
        })
    }

    /// Checks the list that only the root passes.
    fn list_of_root<'t>(
        &self,
        name: &str,
        role: &str,
        tensor: &Tensor,
        list: Option<&'t [Tensor]>,
        root: u32,
    ) -> Result<&'t [Tensor]> {
        let is_root = root == self.group.rank();
        match list {
            None if is_root => Err(invalid!("Argument `{name}` must be specified on {role} rank.")),
            Some(_) if !is_root => {
                Err(invalid!("Argument `{name}` must NOT be specified on non-{role} ranks."))
            }
            None => Ok(&[]),
            Some(list) => {
                one_per_rank(self.group, name, list)?;
                for other in list {
                    fit(self.group, &[other])?;
                    same_dtype(other, tensor)?;
                    refuse_if!(
                        other.elements() != tensor.elements(),
                        "All tensor operands to scatter/gather must have the same number of elements: {} and {}",
                        other.elements(),
                        tensor.elements()
                    );
                }
                Ok(list)
            }
        }
    }

    /// Moves the tensors of a list from the root to the ranks, or from the ranks to the root.
    fn spread(
        &mut self,
        tensor: &Tensor,
        list: &[Tensor],
        root: u32,
        label: Label,
        is_scatter: bool,
    ) -> Result<()> {
        let (format, count) = (moved(tensor.dtype())?, tensor.elements() as u64);
        let part = |peer: u32, gives: bool, at: DevicePointer| {
            let operation = if gives {
                CollectiveOperation::Send { peer }
            } else {
                CollectiveOperation::Receive { peer }
            };
            CollectivePart { operation, format, count, send: at, receive: at, label }
        };
        if root != self.group.rank() {
            self.add(part(root, !is_scatter, tensor.pointer()));
        }
        for (rank, other) in (0..).zip(list) {
            if rank != root {
                self.add(part(rank, is_scatter, other.pointer()));
            } else {
                let bytes = count * tensor.dtype().size_bytes() as u64;
                let (own, at) = (tensor.pointer(), other.pointer());
                let (from, to) = if is_scatter { (at, own) } else { (own, at) };
                self.copy(from, to, bytes, label);
            }
        }
        let (lists, single) = match is_scatter {
            true => (&mut self.read, &mut self.written),
            false => (&mut self.written, &mut self.read),
        };
        lists.extend(list.iter().cloned());
        single.push(tensor.clone());
        Ok(())
    }

    /// Sends the tensor to rank `dst`, which must receive it.
    #[track_caller]
    pub fn send(&mut self, tensor: &Tensor, dst: u32) -> Result<()> {
        let label = label_at("send", Location::caller());
        self.message(tensor, CollectiveOperation::Send { peer: dst }, ("destination", dst), label)?;
        self.read.push(tensor.clone());
        Ok(())
    }

    /// Receives the tensor from rank `src`, which must send it.
    #[track_caller]
    pub fn recv(&mut self, tensor: &Tensor, src: u32) -> Result<()> {
        let label = label_at("recv", Location::caller());
        self.message(tensor, CollectiveOperation::Receive { peer: src }, ("source", src), label)?;
        self.written.push(tensor.clone());
        Ok(())
    }

    /// Adds a message to or from another rank, whose role is given.
    fn message(
        &mut self,
        tensor: &Tensor,
        operation: CollectiveOperation,
        (role, peer): (&str, u32),
        label: Label,
    ) -> Result<()> {
        in_call(label.operator, &[tensor], label.location, || {
            fit(self.group, &[tensor])?;
            is_other(self.group, role, peer)?;
            let (format, count, at) = (moved(tensor.dtype())?, tensor.elements() as u64, tensor.pointer());
            self.add(CollectivePart { operation, format, count, send: at, receive: at, label });
            Ok(())
        })
    }

    /// Adds a part that reads one tensor and writes another.
    fn add_from(
        &mut self,
        input: &Tensor,
        output: &Tensor,
        (operation, format, elements): (CollectiveOperation, ElementFormat, usize),
        label: Label,
    ) {
        let (send, receive) = (input.pointer(), output.pointer());
        self.add(CollectivePart { operation, format, count: elements as u64, send, receive, label });
        self.read.push(input.clone());
        self.written.push(output.clone());
    }

    /// Returns the address that a reduction reads a tensor's elements from: the tensor itself, or the products of its elements
    /// with a factor, in memory that lives until they have been read.
    fn multiplied(&mut self, tensor: &Tensor, operation: ReduceOp) -> Result<DevicePointer> {
        let ReduceOp::PreMulSum(factor) = operation else { return Ok(tensor.pointer()) };
        let products = no_grad(|| tensor.mul_scalar(factor.value()))?;
        let at = products.pointer();
        self.own.push(products);
        Ok(at)
    }

    fn add(&mut self, part: CollectivePart) {
        self.label.get_or_insert(part.label);
        self.parts.push(part);
    }

    fn copy(&mut self, from: DevicePointer, to: DevicePointer, bytes: u64, label: Label) {
        self.label.get_or_insert(label);
        if bytes > 0 && from != to {
            self.copies.push((from, to, bytes));
        }
    }

    /// Returns whether nothing was collected.
    pub fn is_empty(&self) -> bool {
        self.label.is_none()
    }

    /// Submits the collected collectives. They run after the current stream's work so far. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if nothing was collected; the reason why the group failed, if it has.
    #[track_caller]
    pub fn submit(self) -> Result<Work> {
        let location = Location::caller();
        at_line(location, || {
            let Some(label) = self.label else {
                refuse!("coalescing: nothing was collected");
            };
            self.group.check()?;
            self.submit_as(label).map_err(|error| self.group.explain(error))
        })
    }

    /// Returns the sender and the receiver if a single message was collected.
    fn message_ranks(&self) -> Option<[u32; 2]> {
        let own = self.group.rank();
        match self.parts[..] {
            [CollectivePart { operation: CollectiveOperation::Send { peer }, .. }] => Some([own, peer]),
            [CollectivePart { operation: CollectiveOperation::Receive { peer }, .. }] => Some([peer, own]),
            _ => None,
        }
    }

    fn submit_as(&self, label: Label) -> Result<Work> {
        let state = &self.group.0;
        let (current, stream) = (self.group.device().current_stream(), &state.stream);
        let ready = match current == *stream {
            true => None,
            false => {
                let ready = Arc::new(current.record_event()?);
                stream.wait_event(&ready)?;
                Some(ready)
            }
        };
        let (inputs, outputs) =
            (self.read.iter().chain(&self.changed), self.changed.iter().chain(&self.written));
        let entry = self.group.note(label, Tensors::new(self.message_ranks(), inputs, outputs));
        let is_captured = stream.is_capturing()?;
        crate::lockstep::record::note(self.group, &self.parts);
        for &(from, to, bytes) in &self.copies {
            stream.copy_on_device(to, from, bytes, label)?;
        }
        // The watchdog is notified before the submission, which on a GPU may wait for the other ranks.
        let is_watched = self.group.has_watchdog() && !is_captured;
        let submission = is_watched.then(|| state.outstanding.begin(entry));
        state.communicator.submit(stream, &self.parts).map_err(|error| self.group.lost(error, entry))?;
        for tensor in self.read.iter().chain(&self.own).chain(&self.changed).chain(&self.written) {
            tensor.record_use(stream);
        }
        self.changed.iter().chain(&self.written).for_each(Tensor::bump_version);
        let event = Event::new();
        event.record(stream)?;
        let work = Work { group: self.group.clone(), event: Arc::new(event), entry };
        match is_captured {
            true => self.group.flight().captured(entry),
            false => self.group.flight().submitted(entry, ready, work.event.clone()),
        }
        if let Some(submission) = submission {
            submission.submitted(work.event.clone());
        }
        Ok(work)
    }
}
