//! Kernels of the loop IR as host functions, which the simulator runs where a GPU would run the printed kernel.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_driver::{Access, AccessMode, DevicePointer, HostFault, HostKernel, HostLaunch};
use thalweg_ir::host::{Cells, Fault, HostProgram, Observer, Part, SliceMut, Source};
use thalweg_ir::{Geometry, Kernel, LaunchArguments, OperandGeometry, Unpacked};
use thalweg_kernels::threads::{WORK_OF_A_THREAD, share, threads};
use thalweg_kernels::{Accesses, PartInput, cells, slice, slice_mut, sources_of};

use crate::accesses::{accesses, extents};
use crate::elements::Elements;
use crate::out_of_range::HostWords;

/// A kernel of the loop IR as a host function.
pub(crate) struct LoopKernel {
    kernel: Arc<Kernel>,
    program: HostProgram,
    /// The words that the kernel reports indices out of range to.
    out_of_range: HostWords,
}

impl LoopKernel {
    pub(crate) fn new(kernel: Arc<Kernel>, out_of_range: HostWords) -> Self {
        Self { program: HostProgram::compile(&kernel), kernel, out_of_range }
    }
}

impl HostKernel for LoopKernel {
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
        let arguments = self.kernel.unpack(launch.arguments).ok_or_else(|| {
            HostFault(format!("{}: the arguments are not in this kernel's layout", self.kernel.name))
        })?;
        let geometry = &arguments.geometry;
        // As the launch declared them: an input within a written range may overlap an output, or an input that overlaps one.
        let extents = extents(&self.kernel, geometry, false);
        let mut declared = Accesses::new();
        let pointers = |addresses: &[u64]| {
            addresses.iter().copied().map(DevicePointer::new).collect::<SmallVec<[_; 8]>>()
        };
        accesses(&mut declared, &extents, &pointers(&arguments.inputs), &pointers(&arguments.outputs));
        let spans = extents.iter().map(|extent| extent.bytes).collect();
        let running = Running { kernel: self, launch, arguments: &arguments, declared, spans };
        let ran = match running.parts() {
            Some(parts) => running.in_parts(&parts)?,
            None => running.whole()?,
        };
        ran.map_err(|fault| HostFault(format!("{}: {fault}", self.kernel.name)))
    }
}

/// A kernel of the loop IR over one geometry, for programs that run it as a host function on memory of their own. Indices out of range
/// are not reported.
pub struct HostLoop {
    function: LoopKernel,
    geometry: Geometry,
}

impl HostLoop {
    /// Compiles a kernel.
    pub fn new(kernel: Kernel, geometry: Geometry) -> Self {
        Self { function: LoopKernel::new(Arc::new(kernel), HostWords::none()), geometry }
    }

    /// Returns the arguments of a launch, and the ranges that it touches.
    pub fn launch(
        &self,
        inputs: &[DevicePointer],
        outputs: &[DevicePointer],
        scalars: &[u64],
    ) -> (LaunchArguments, Accesses) {
        let (kernel, geometry) = (&self.function.kernel, &self.geometry);
        let addresses = inputs.iter().chain(outputs).map(|pointer| pointer.address());
        let sizes = LaunchArguments::sizes(kernel, geometry);
        let arguments = LaunchArguments::from_sizes(kernel, addresses, scalars, &sizes);
        let mut list = Accesses::new();
        accesses(&mut list, &extents(kernel, geometry, false), inputs, outputs);
        (arguments, list)
    }
}

impl HostKernel for HostLoop {
    fn run(&self, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
        self.function.run(launch)
    }
}

/// A launch in progress.
struct Running<'r> {
    kernel: &'r LoopKernel,
    launch: &'r HostLaunch<'r>,
    arguments: &'r Unpacked,
    declared: Accesses,
    /// The number of bytes that each operand spans.
    spans: SmallVec<[u64; 8]>,
}

/// A part with its operands, for one thread.
struct PartOfLaunch<'a> {
    part: Part,
    geometry: Geometry,
    inputs: Vec<PartInput<'a>>,
    outputs: Vec<SliceMut<'a>>,
}

impl Running<'_> {
    /// Returns the scalars of the body, and the slot for reports, which follows them.
    fn scalars(&self) -> (&[u64], u64) {
        let (scalars, slot) = self.arguments.scalars.split_at(self.kernel.kernel.body.scalars.len());
        (scalars, slot.first().copied().unwrap_or_default())
    }

    /// Returns the range of memory that an input spans.
    fn read(&self, input: usize) -> Access {
        Access::read(DevicePointer::new(self.arguments.inputs[input]), self.spans[input])
    }

    /// Returns whether an input may overlap memory that the launch writes.
    fn is_written(&self, input: usize) -> bool {
        let read = self.read(input);
        self.declared.iter().any(|range| range.conflicts(&read))
    }

    /// Runs the complete launch on this thread.
    fn whole(&self) -> Result<Result<(), Fault>, HostFault> {
        let Self { kernel, launch, arguments, .. } = self;
        let (body, geometry) = (&kernel.kernel.body, &arguments.geometry);
        let mut outputs: SmallVec<[Cells<'_>; 4]> = SmallVec::new();
        for (index, (output, &address)) in body.outputs.iter().zip(&arguments.outputs).enumerate() {
            let elements = geometry.span(body.inputs.len() + index);
            outputs.push(cells(launch, output.dtype, address, elements)?);
        }
        let mut inputs: SmallVec<[Source<'_>; 8]> = SmallVec::new();
        for (index, (input, &address)) in body.inputs.iter().zip(&arguments.inputs).enumerate() {
            let elements = geometry.span(index);
            inputs.push(if self.is_written(index) {
                Source::Cells(cells(launch, input.dtype, address, elements)?)
            } else {
                Source::Slice(slice(launch, input.dtype, address, elements)?)
            });
        }
        let (scalars, slot) = self.scalars();
        let report_index = |index, extent| kernel.out_of_range.report_index(slot, index, extent);
        let observer = Observer { out_of_range: Some(&report_index), ..Observer::default() };
        if !launch.has_tickets() {
            return Ok(kernel.program.run_observed(geometry, scalars, &inputs, &outputs, observer));
        }
        let none = (0..geometry.operands.len()).map(|operand| match geometry.operands[operand] {
            OperandGeometry::Gathered { elements } => Elements::below(elements),
            OperandGeometry::Strided { .. } => Elements::default(),
        });
        let chosen: RefCell<Vec<Elements>> = RefCell::new(none.collect());
        let note = |operand: usize, element| chosen.borrow_mut()[operand].add(element);
        let observer = Observer { chosen: Some(&note), ..observer };
        let ran = kernel.program.run_observed(geometry, scalars, &inputs, &outputs, observer);
        self.say_what_was_chosen(&chosen.into_inner());
        Ok(ran)
    }

    /// Divides the work into parts, each large enough for a thread. `None` if the parts would conflict: an input that is written
    /// must have exactly the elements of one output, and outputs must not overlap each other or any other input.
    fn parts(&self) -> Option<Vec<Part>> {
        let geometry = &self.arguments.geometry;
        if self.launch.has_tickets() {
            return None;
        }
        let parts = self.kernel.program.parts(geometry, WORK_OF_A_THREAD, threads() as u64)?;
        let outputs = &self.arguments.outputs;
        let apart = (0..outputs.len()).all(|output| {
            let written = self.written(output);
            (0..output).all(|other| !written.conflicts(&self.written(other)))
        });
        let places = (0..self.arguments.inputs.len())
            .all(|input| !self.is_written(input) || self.output_of_input(input).is_some());
        (apart && places).then_some(parts)
    }

    /// Returns the range of memory that an output spans.
    fn written(&self, output: usize) -> Access {
        let bytes = self.spans[self.arguments.inputs.len() + output];
        Access::write(DevicePointer::new(self.arguments.outputs[output]), bytes)
    }

    /// Returns the output that has exactly the elements of an input, if the input overlaps no other output.
    fn output_of_input(&self, input: usize) -> Option<usize> {
        let (body, arguments) = (&self.kernel.kernel.body, self.arguments);
        let read = self.read(input);
        let mut met = (0..arguments.outputs.len()).filter(|&output| self.written(output).conflicts(&read));
        let (output, None) = (met.next()?, met.next()) else { return None };
        let operands = &arguments.geometry.operands;
        let is_it = arguments.inputs[input] == arguments.outputs[output]
            && body.inputs[input].dtype == body.outputs[output].dtype
            && operands[input] == operands[arguments.inputs.len() + output];
        is_it.then_some(output)
    }

    /// Runs parts of the launch, each on a thread of its own.
    fn in_parts(&self, parts: &[Part]) -> Result<Result<(), Fault>, HostFault> {
        let parts: Vec<_> = parts.iter().map(|part| self.part(*part)).collect::<Result<_, _>>()?;
        let (scalars, slot) = self.scalars();
        let program = &self.kernel.program;
        let ran = share(parts.into_iter().map(|part| move || part.run(program, scalars)).collect());
        // In the order of one thread: of reports the last counts, of faults the first.
        for (index, extent) in ran.iter().filter_map(|(_, report)| *report) {
            self.kernel.out_of_range.report_index(slot, index, extent);
        }
        Ok(ran.into_iter().try_for_each(|(ran, _)| ran))
    }

    /// Returns the data that a thread needs to run a part.
    fn part(&self, part: Part) -> Result<PartOfLaunch<'_>, HostFault> {
        let (body, arguments) = (&self.kernel.kernel.body, self.arguments);
        let (whole, count) = (&arguments.geometry, arguments.inputs.len());
        let geometry = part.geometry(whole);
        let first =
            |address: u64, operand: usize, bytes: usize| address + part.offset(whole, operand) * bytes as u64;
        let mut outputs = Vec::with_capacity(arguments.outputs.len());
        for (index, (output, &address)) in body.outputs.iter().zip(&arguments.outputs).enumerate() {
            let address = first(address, count + index, output.dtype.size_bytes());
            outputs.push(slice_mut(self.launch, output.dtype, address, geometry.span(count + index))?);
        }
        let mut inputs = Vec::with_capacity(count);
        for (index, (input, &address)) in body.inputs.iter().zip(&arguments.inputs).enumerate() {
            inputs.push(match self.output_of_input(index) {
                Some(output) => PartInput::Output(output),
                None => {
                    let address = first(address, index, input.dtype.size_bytes());
                    PartInput::Slice(slice(self.launch, input.dtype, address, geometry.span(index))?)
                }
            });
        }
        Ok(PartOfLaunch { part, geometry, inputs, outputs })
    }

    /// Reports, for each operand that the launch declared separately, the elements that data chose. The elements of an operand
    /// that was declared together with overlapping ones stay unknown.
    fn say_what_was_chosen(&self, chosen: &[Elements]) {
        let Self { kernel, launch, arguments, .. } = self;
        let (body, geometry) = (&kernel.kernel.body, &arguments.geometry);
        let reads = body.inputs.iter().map(|input| (input.dtype, AccessMode::Read));
        let modes = reads.chain(body.outputs.iter().map(|output| (output.dtype, AccessMode::Write)));
        let addresses = arguments.inputs.iter().chain(&arguments.outputs);
        for (operand, ((dtype, mode), &address)) in modes.zip(addresses).enumerate() {
            if !matches!(geometry.operands[operand], OperandGeometry::Gathered { .. }) {
                continue;
            }
            let size = dtype.size_bytes() as u64;
            let access = Access::new(address, geometry.span(operand) * size, mode);
            if self.declared.contains(&access) {
                let runs = chosen[operand].runs();
                launch.touched(
                    &access,
                    runs.iter().map(|(first, count)| (address + first * size, count * size)),
                );
            }
        }
    }
}

impl PartOfLaunch<'_> {
    /// Runs the part, and returns the last index that was out of range with its extent.
    fn run(self, program: &HostProgram, scalars: &[u64]) -> (Result<(), Fault>, Option<(i64, i64)>) {
        let outputs: SmallVec<[Cells<'_>; 4]> = self.outputs.into_iter().map(SliceMut::into_cells).collect();
        let inputs = sources_of(self.inputs, &outputs);
        let report = Cell::new(None);
        let report_index = |index, extent| report.set(Some((index, extent)));
        let observer = Observer { out_of_range: Some(&report_index), ..Observer::default() };
        let ran = program.run_part(self.part, &self.geometry, scalars, &inputs, &outputs, observer);
        (ran, report.get())
    }
}
