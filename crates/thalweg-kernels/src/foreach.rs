//! One body over a list of tensors as launches: see [`thalweg_ir::foreach`].

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::foreach::{BLOCK, ForeachArguments, ForeachItem, ForeachKernel, ForeachOperand};
use thalweg_ir::host::{Cells, Fault, HostProgram, SliceMut};

use crate::native::{Accesses, Native, NativeKernel, Placed, Words, along_x};
use crate::operands::{PartInput, slice, slice_mut, sources_of};
use crate::threads::{WORK_OF_A_THREAD, share, threads};

/// The tensors of a call that one launch takes.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    arguments: &'a ForeachArguments,
    items: &'a [ForeachItem],
}

/// One launch per [`capacity`](ForeachKernel::capacity) of a list of tensors. Outputs of different tensors must not overlap.
impl<'a> Native<&'a ForeachArguments> for &'a Arc<ForeachKernel> {
    fn launches(
        self,
        arguments: &'a ForeachArguments,
        _: DevicePointer,
    ) -> impl Iterator<Item = impl NativeKernel> {
        let parts = arguments.items.chunks(self.capacity());
        parts.map(move |items| Placed { kernel: self, at: Part { arguments, items } })
    }
}

impl NativeKernel for Placed<&Arc<ForeachKernel>, Part<'_>> {
    fn name(&self) -> &str {
        &self.kernel.name
    }

    fn source(&self) -> String {
        thalweg_ir::cuda::print_foreach(self.kernel)
    }

    fn host(&self) -> Arc<dyn HostKernel> {
        Arc::new(ForeachHost {
            program: HostProgram::compile(&self.kernel.single()),
            kernel: Arc::clone(self.kernel),
        })
    }

    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        along_x(ForeachKernel::blocks(self.at.items), BLOCK)
    }

    fn words(&self) -> Words {
        self.kernel.pack(self.at.arguments, self.at.items).into()
    }

    fn accesses(&self) -> Accesses {
        accesses(self.kernel, self.at)
    }
}

/// Returns the ranges that a launch touches, each once.
fn accesses(kernel: &ForeachKernel, Part { arguments, items }: Part<'_>) -> Accesses {
    let bytes = |input: usize, elements: u64| elements * kernel.body.inputs[input].dtype.size_bytes() as u64;
    let (mut list, mut seen) = (Accesses::new(), HashSet::new());
    let mut add = |access: Access| {
        if access.bytes > 0 && seen.insert(access) {
            list.push(access);
        }
    };
    for input in (0..kernel.operands.len()).filter(|&input| kernel.is_shared(input)) {
        let pointer = DevicePointer::new(arguments.shared[kernel.place(input)]);
        add(Access::read(pointer, bytes(input, 1)));
    }
    let listed: SmallVec<[(usize, bool); 8]> =
        kernel.listed().map(|input| (input, kernel.body.uses_input(input))).collect();
    for ForeachItem { elements, addresses } in items {
        for &(input, is_read) in &listed {
            let pointer = DevicePointer::new(addresses[kernel.place(input)]);
            let bytes = bytes(input, kernel.elements(input, *elements));
            add(match (kernel.is_written(input), is_read) {
                (true, true) => Access::read_write(pointer, bytes),
                (true, false) => Access::write(pointer, bytes),
                (false, _) => Access::read(pointer, bytes),
            });
        }
    }
    list
}

/// The kernel as a host function: the body over one tensor after the other, by several threads where that pays.
struct ForeachHost {
    kernel: Arc<ForeachKernel>,
    program: HostProgram,
}

/// Neighbouring elements of a tensor, for one thread.
struct Piece<'a> {
    elements: u64,
    inputs: SmallVec<[PartInput<'a>; 8]>,
    outputs: SmallVec<[SliceMut<'a>; 4]>,
}

impl ForeachHost {
    /// Divides a launch into pieces, and these evenly among threads.
    fn jobs<'a>(
        &self,
        launch: &'a HostLaunch<'_>,
        arguments: &ForeachArguments,
    ) -> Result<Vec<Vec<Piece<'a>>>, HostFault> {
        let sizes = arguments.items.iter().map(|item| item.elements);
        let (total, work) = sizes.fold((0, 0), |(total, work), elements| {
            (total + elements, work + self.program.work(&self.kernel.geometry(elements)))
        });
        let count = (work / WORK_OF_A_THREAD).clamp(1, threads() as u64);
        let mut jobs: Vec<Vec<Piece<'a>>> = (0..count).map(|_| Vec::new()).collect();
        let mut before = 0;
        for item in &arguments.items {
            for (number, job) in (0..).zip(&mut jobs) {
                let bound = |job: u64| (total * job / count).clamp(before, before + item.elements) - before;
                let range = bound(number)..bound(number + 1);
                if !range.is_empty() {
                    job.push(self.piece(launch, arguments, item, range)?);
                }
            }
            before += item.elements;
        }
        Ok(jobs)
    }

    fn piece<'a>(
        &self,
        launch: &'a HostLaunch<'_>,
        arguments: &ForeachArguments,
        item: &ForeachItem,
        range: Range<u64>,
    ) -> Result<Piece<'a>, HostFault> {
        let (kernel, elements) = (&self.kernel, range.end - range.start);
        let place = |input: usize| {
            let dtype = kernel.body.inputs[input].dtype;
            let addresses = if kernel.is_shared(input) { &arguments.shared[..] } else { &item.addresses[..] };
            let is_part = kernel.operands[input] == ForeachOperand::Elements;
            let before = if is_part { range.start * dtype.size_bytes() as u64 } else { 0 };
            (dtype, addresses[kernel.place(input)] + before)
        };
        let outputs = kernel.targets.iter().map(|&target| {
            let (dtype, address) = place(target.into());
            slice_mut(launch, dtype, address, elements)
        });
        let inputs = (0..kernel.operands.len()).map(|input| {
            if let Some(output) = kernel.targets.iter().position(|&target| usize::from(target) == input) {
                return Ok(PartInput::Output(output));
            }
            let (dtype, address) = place(input);
            slice(launch, dtype, address, kernel.elements(input, elements)).map(PartInput::Slice)
        });
        Ok(Piece {
            elements,
            outputs: outputs.collect::<Result<_, _>>()?,
            inputs: inputs.collect::<Result<_, _>>()?,
        })
    }

    fn run_piece(&self, piece: Piece<'_>, scalars: &[u64]) -> Result<(), Fault> {
        let outputs: SmallVec<[Cells<'_>; 4]> = piece.outputs.into_iter().map(SliceMut::into_cells).collect();
        let inputs = sources_of(piece.inputs, &outputs);
        self.program.run(&self.kernel.geometry(piece.elements), scalars, &inputs, &outputs)
    }
}

impl HostKernel for ForeachHost {
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
        let arguments = self.kernel.unpack(launch.arguments).ok_or_else(|| {
            HostFault(format!("{}: the arguments are not in this kernel's layout", self.kernel.name))
        })?;
        let jobs = self.jobs(launch, &arguments)?.into_iter().map(|pieces| {
            || pieces.into_iter().try_for_each(|piece| self.run_piece(piece, &arguments.scalars))
        });
        let ran = share(jobs.collect()).into_iter().collect::<Result<(), Fault>>();
        ran.map_err(|fault| HostFault(format!("{}: {fault}", self.kernel.name)))
    }
}
