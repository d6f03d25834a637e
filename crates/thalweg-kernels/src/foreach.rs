//! One body over a list of tensors as launches: see [`thalweg_ir::foreach`].

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::foreach::{BLOCK, ForeachArguments, ForeachItem, ForeachKernel};
use thalweg_ir::host::{Cells, Fault, HostProgram, Source};

use crate::native::{Accesses, Native, NativeKernel, Placed, Words, along_x};
use crate::operands::{cells, slice};

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

/// The kernel as a host function: the body over one tensor after the other.
struct ForeachHost {
    kernel: Arc<ForeachKernel>,
    program: HostProgram,
}

impl ForeachHost {
    fn run_item(
        &self,
        launch: &HostLaunch<'_>,
        arguments: &ForeachArguments,
        item: &ForeachItem,
    ) -> Result<(), HostFault> {
        let kernel = &self.kernel;
        let dtype = |input: usize| kernel.body.inputs[input].dtype;
        let address = |input: usize| item.addresses[kernel.place(input)];
        let inputs = (0..kernel.operands.len())
            .map(|input| {
                let elements = kernel.elements(input, item.elements);
                Ok(if kernel.is_shared(input) {
                    let address = arguments.shared[kernel.place(input)];
                    Source::Slice(slice(launch, dtype(input), address, elements)?)
                } else if kernel.is_written(input) {
                    Source::Cells(cells(launch, dtype(input), address(input), elements)?)
                } else {
                    Source::Slice(slice(launch, dtype(input), address(input), elements)?)
                })
            })
            .collect::<Result<SmallVec<[Source<'_>; 8]>, HostFault>>()?;
        let outputs = kernel
            .targets
            .iter()
            .map(|&target| cells(launch, dtype(target.into()), address(target.into()), item.elements))
            .collect::<Result<SmallVec<[Cells<'_>; 4]>, HostFault>>()?;
        self.program
            .run(&kernel.geometry(item.elements), &arguments.scalars, &inputs, &outputs)
            .map_err(|fault| HostFault(format!("{}: {fault}", kernel.name)))
    }
}

impl HostKernel for ForeachHost {
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
        let arguments = self.kernel.unpack(launch.arguments).ok_or_else(|| {
            HostFault(format!("{}: the arguments are not in this kernel's layout", self.kernel.name))
        })?;
        arguments.items.iter().try_for_each(|item| self.run_item(launch, &arguments, item))
    }
}
