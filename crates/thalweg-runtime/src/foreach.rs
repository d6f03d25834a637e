//! Launches of one body over a list of tensors: see [`thalweg_ir::foreach`].

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Access, DevicePointer, HostFault, HostKernel, HostLaunch, Label, Launch};
use thalweg_ir::foreach::{BLOCK, CAPACITY, ForeachArguments, ForeachItem, ForeachKernel};
use thalweg_ir::host::{Cells, Program, Source};

use crate::graph::Command;
use crate::kernel::{cells, slice};
use crate::{Result, Stream};

impl Stream {
    /// Queues a kernel over a list of tensors: one launch for each [`CAPACITY`] of them. Outputs of different tensors must not
    /// overlap. Two kernels of one name are the same kernel.
    pub fn launch_foreach(
        &self,
        kernel: &Arc<ForeachKernel>,
        arguments: &ForeachArguments,
        label: Label,
    ) -> Result<()> {
        let device = self.device();
        let function =
            device.text_kernel(&kernel.name, &|| thalweg_ir::cuda::print_foreach(kernel), &|| {
                Arc::new(ForeachHost { program: Program::compile(&kernel.single()), kernel: kernel.clone() })
            })?;
        for items in arguments.items.chunks(CAPACITY) {
            let blocks = ForeachKernel::blocks(items);
            if blocks == 0 {
                continue;
            }
            let part = ForeachArguments { items: items.to_vec(), ..arguments.clone() };
            let words = kernel.pack(&part);
            let accesses = accesses(kernel, &part);
            let launch = Launch {
                function,
                grid: [blocks as u32, 1, 1],
                block: [BLOCK, 1, 1],
                shared_memory_bytes: 0,
                arguments: bytemuck::cast_slice(&words),
                accesses: &accesses,
                label,
            };
            self.submit(Command::Launch(&launch), || device.driver().launch(self.handle(), &launch))?;
        }
        Ok(())
    }
}

/// The ranges that a launch touches, each once.
fn accesses(kernel: &ForeachKernel, arguments: &ForeachArguments) -> Vec<Access> {
    let bytes = |input: usize, elements: u64| elements * kernel.body.inputs[input].dtype.size_bytes() as u64;
    let mut list: Vec<Access> = Vec::new();
    let mut add = |access: Access| {
        if access.bytes > 0 && !list.contains(&access) {
            list.push(access);
        }
    };
    for input in (0..kernel.shared.len()).filter(|&input| kernel.shared[input]) {
        let pointer = DevicePointer::new(arguments.shared[kernel.place(input)]);
        add(Access::read(pointer, bytes(input, 1)));
    }
    for ForeachItem { elements, addresses } in &arguments.items {
        for input in kernel.listed() {
            let pointer = DevicePointer::new(addresses[kernel.place(input)]);
            let bytes = bytes(input, *elements);
            add(match kernel.is_written(input) {
                true => Access::read_write(pointer, bytes),
                false => Access::read(pointer, bytes),
            });
        }
    }
    list
}

/// The kernel as a host function: the body over one tensor after the other.
struct ForeachHost {
    kernel: Arc<ForeachKernel>,
    program: Program,
}

impl ForeachHost {
    fn run_item(
        &self,
        launch: &HostLaunch<'_>,
        arguments: &ForeachArguments,
        item: &ForeachItem,
    ) -> std::result::Result<(), HostFault> {
        let kernel = &self.kernel;
        let dtype = |input: usize| kernel.body.inputs[input].dtype;
        let address = |input: usize| item.addresses[kernel.place(input)];
        let inputs = (0..kernel.shared.len())
            .map(|input| {
                Ok(if kernel.shared[input] {
                    let address = arguments.shared[kernel.place(input)];
                    Source::Slice(slice(launch, dtype(input), address, 1)?)
                } else if kernel.is_written(input) {
                    Source::Cells(cells(launch, dtype(input), address(input), item.elements)?)
                } else {
                    Source::Slice(slice(launch, dtype(input), address(input), item.elements)?)
                })
            })
            .collect::<std::result::Result<SmallVec<[Source<'_>; 8]>, HostFault>>()?;
        let outputs = kernel
            .targets
            .iter()
            .map(|&target| cells(launch, dtype(target.into()), address(target.into()), item.elements))
            .collect::<std::result::Result<SmallVec<[Cells<'_>; 4]>, HostFault>>()?;
        self.program
            .run(&kernel.geometry(item.elements), &arguments.scalars, &inputs, &outputs)
            .map_err(|fault| HostFault(format!("{}: {fault}", kernel.name)))
    }
}

impl HostKernel for ForeachHost {
    fn run(&self, launch: &HostLaunch<'_>) -> std::result::Result<(), HostFault> {
        let arguments = self.kernel.unpack(launch.arguments).ok_or_else(|| {
            HostFault(format!("{}: the arguments are not in this kernel's layout", self.kernel.name))
        })?;
        arguments.items.iter().try_for_each(|item| self.run_item(launch, &arguments, item))
    }
}
