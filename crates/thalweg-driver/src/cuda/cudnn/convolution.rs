//! A convolution, or one of its gradients, as one operation of cuDNN; a forward pass with its bias and activation.
//!
//! If engines are to be tried, the first call that is not captured times them on its own stream and operands, and keeps the
//! fastest. Each engine overwrites the entire result, so repeated runs are harmless. The device's lock is held meanwhile.
//!
//! This module and its parent use each other: the parent keeps the plans of convolutions, which are made here with its
//! handle.

use std::sync::{Arc, OnceLock};

use super::descriptors::{
    ALIGNMENT_BYTES, Api, Descriptor, attribute, id, kind, numerical_notes, of_type, plans_of, pointwise,
};
use super::graph::{Format, Pointwise};
use super::{Cudnn, DeviceState, kept};
use crate::cuda::sys::RawStream;
use crate::cuda::workspace::workspace_of;
use crate::library::ElementFormat;
use crate::library::convolution::{ConvolutionCall, ConvolutionPass, ConvolutionShape};
use crate::{Code, DevicePointer, Error, Result};

const NAME: &str = "cudnnBackendExecute";

/// Cross-correlation: the kernel is not flipped (`CUDNN_CROSS_CORRELATION`).
const CROSS_CORRELATION: u32 = 1;

/// Engines that multiply with tensor cores: f32 as TF32 (`CUDNN_NUMERICAL_NOTE_TENSOR_CORE`).
const TENSOR_CORE: u32 = 0;
/// Engines that round inputs to fewer bits than their format has (`CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS`).
const DOWN_CONVERT_INPUTS: u32 = 1;
/// Engines that add up in fewer bits (`CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION`).
const REDUCED_PRECISION_REDUCTION: u32 = 2;
/// Engines whose results differ from run to run (`CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC`).
const NONDETERMINISTIC: u32 = 4;

/// A cache key: everything that the plan of a convolution depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ConvolutionRecipe {
    shape: ConvolutionShape,
    pass: ConvolutionPass,
    allow_tf32: bool,
    deterministic: bool,
    /// Whether an activation follows the bias; `None` without a bias.
    relu: Option<bool>,
    most_engines: u32,
}

/// The engines that can run a pass, without addresses; the first choice of the library's heuristics is first.
pub(super) struct ConvolutionPlan {
    engines: Vec<(Descriptor, u64)>,
    /// The index of the fastest engine, once the engines have been tried.
    fastest: OnceLock<usize>,
}

impl ConvolutionPlan {
    /// Returns the bytes of scratch memory that suffice for any engine that may run.
    fn workspace_bytes(&self) -> u64 {
        match self.fastest.get() {
            Some(&place) => self.engines[place].1,
            None => self.engines.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0),
        }
    }
}

/// A function that measures the milliseconds of the work that its argument queues; returns `None` on a stream that
/// captures. Blocks until the work is done.
pub(in crate::cuda) type Stopwatch<'a> = &'a dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<Option<f32>>;

/// The number of timed runs of an engine, after one run that loads it.
const TIMED_RUNS: usize = 4;

/// Converts sizes to the library's type. They fit `i64`, which [`ConvolutionRecipe::new`] has checked.
fn numbers(values: &[u64]) -> Vec<i64> {
    values.iter().map(|&value| value as i64).collect()
}

/// Returns the strides of a contiguous operand: [first, channels, extents…].
fn strides(sizes: &[i64], channels_last: bool) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    let mut next = 1;
    let mut place = |dimension: usize| {
        strides[dimension] = next;
        next *= sizes[dimension];
    };
    if channels_last {
        place(1);
    }
    (2..sizes.len()).rev().for_each(&mut place);
    if !channels_last {
        place(1);
    }
    place(0);
    strides
}

impl ConvolutionRecipe {
    fn new(call: &ConvolutionCall) -> Result<Self, String> {
        let ConvolutionCall { shape, pass, allow_tf32, deterministic, epilogue, most_engines, .. } = *call;
        if let Some(fault) = shape.fault() {
            return Err(fault);
        }
        if epilogue.is_some() && pass != ConvolutionPass::Forward {
            return Err("a gradient has no bias".to_owned());
        }
        let operands = [("input", call.input), ("weight", call.weight), ("output", call.output)];
        let bias = epilogue.map(|epilogue| ("bias", epilogue.bias));
        for (name, address) in operands.into_iter().chain(bias) {
            if !address.address().is_multiple_of(ALIGNMENT_BYTES as u64) {
                return Err(format!("the address of the {name}, {address:?}, is not aligned to 16 bytes"));
            }
        }
        Ok(Self {
            shape,
            pass,
            allow_tf32: allow_tf32 && shape.format == ElementFormat::R_32F,
            deterministic,
            relu: epilogue.map(|epilogue| epilogue.relu),
            most_engines: most_engines.max(1),
        })
    }

    /// Returns how many of the axes, counted from the last, are passed to the library: two if there is no depth.
    fn axes(&self) -> usize {
        let ConvolutionShape { input, kernel, output, padding, .. } = self.shape;
        if (input[0], kernel[0], output[0], padding[0]) == (1, 1, 1, 0) { 2 } else { 3 }
    }

    fn format(&self) -> Format {
        match self.shape.format {
            ElementFormat::R_16F => Format::F16,
            ElementFormat::R_16BF => Format::Bf16,
            _ => Format::F32,
        }
    }

    /// Returns the sizes of weight, input and output, in the order of the library's attributes.
    fn sizes(&self) -> [Vec<i64>; 3] {
        let ConvolutionShape {
            batch, input_channels, output_channels, groups, input, kernel, output, ..
        } = self.shape;
        let first = 3 - self.axes();
        let with = |sizes: [u64; 2], extents: [u64; 3]| numbers(&[&sizes[..], &extents[first..]].concat());
        [
            with([output_channels, input_channels / groups], kernel),
            with([batch, input_channels], input),
            with([batch, output_channels], output),
        ]
    }

    /// Describes a tensor: an operand in memory, in the format of the operands, or an intermediate result, in f32.
    fn tensor(&self, api: &Arc<Api>, index: usize, sizes: &[i64], in_memory: bool) -> Result<Descriptor> {
        let made = api.descriptor(kind::TENSOR)?;
        let format = if in_memory { self.format() } else { Format::F32 };
        made.set(attribute::TENSOR_ID, of_type::INT64, &[id(index)])?;
        made.set(attribute::TENSOR_FORMAT, of_type::DATA_TYPE, &[format])?;
        if !in_memory {
            made.set(attribute::TENSOR_IS_VIRTUAL, of_type::BOOLEAN, &[true])?;
        }
        made.set(attribute::TENSOR_ALIGNMENT_BYTES, of_type::INT64, &[ALIGNMENT_BYTES])?;
        made.set(attribute::TENSOR_SIZES, of_type::INT64, sizes)?;
        let strides = strides(sizes, self.shape.channels_last);
        made.set(attribute::TENSOR_STRIDES, of_type::INT64, &strides)?;
        made.finalize()?;
        Ok(made)
    }

    fn convolution(&self, api: &Arc<Api>) -> Result<Descriptor> {
        let first = 3 - self.axes();
        let of = |values: [u64; 3]| numbers(&values[first..]);
        let made = api.descriptor(kind::CONVOLUTION)?;
        made.set(attribute::CONVOLUTION_COMPUTE, of_type::DATA_TYPE, &[Format::F32])?;
        made.set(attribute::CONVOLUTION_MODE, of_type::CONVOLUTION_MODE, &[CROSS_CORRELATION])?;
        made.set(attribute::CONVOLUTION_AXES, of_type::INT64, &[self.axes() as i64])?;
        made.set(attribute::CONVOLUTION_DILATIONS, of_type::INT64, &of(self.shape.dilation))?;
        made.set(attribute::CONVOLUTION_STRIDES, of_type::INT64, &of(self.shape.stride))?;
        for side in attribute::CONVOLUTION_PADDINGS {
            made.set(side, of_type::INT64, &of(self.shape.padding))?;
        }
        made.finalize()?;
        Ok(made)
    }

    /// Returns whether the library's numerical notes about an engine allow its use.
    fn takes(&self, notes: &[u32]) -> bool {
        let is_exact = self.shape.format == ElementFormat::R_32F;
        let has = |note| notes.contains(&note);
        !(self.deterministic && has(NONDETERMINISTIC))
            && !(is_exact && (has(DOWN_CONVERT_INPUTS) || has(REDUCED_PRECISION_REDUCTION)))
            && !(is_exact && !self.allow_tf32 && has(TENSOR_CORE))
    }

    fn plan(&self, api: &Arc<Api>, handle: usize) -> Result<ConvolutionPlan> {
        let [weight, input, output] = self.sizes();
        let memory = |index, sizes: &[i64]| self.tensor(api, index, sizes, true);
        let weight = memory(WEIGHT, &weight)?;
        let input = memory(INPUT, &input)?;
        let result = memory(OUTPUT, &output)?;
        // A descriptor is kept alive by those that refer to it, so all of them live until the plans are made.
        let between = |index| self.tensor(api, index, &output, false);
        let product = self.relu.map(|_| between(PRODUCT)).transpose()?;
        let biased = self.relu.filter(|&relu| relu).map(|_| between(BIASED)).transpose()?;
        let mut sizes = vec![1; output.len()];
        sizes[1] = output[1];
        let bias = self.relu.map(|_| memory(BIAS, &sizes)).transpose()?;
        let mut functions = Vec::new();
        if let (Some(product), Some(bias)) = (&product, &bias) {
            let add = (Pointwise::Add, Format::F32, None);
            functions.push(pointwise(api, add, [product, bias], biased.as_ref().unwrap_or(&result))?);
        }
        if let Some(biased) = &biased {
            functions.push(pointwise(api, (Pointwise::Relu, Format::F32, None), [biased], &result)?);
        }
        let convolution = self.convolution(api)?;
        let (kind, names) = match self.pass {
            ConvolutionPass::Forward => (kind::OPERATION_CONVOLUTION, attribute::OPERATION_CONVOLUTION),
            ConvolutionPass::InputGradient => {
                (kind::OPERATION_CONVOLUTION_INPUT, attribute::OPERATION_CONVOLUTION_INPUT)
            }
            ConvolutionPass::WeightGradient => {
                (kind::OPERATION_CONVOLUTION_WEIGHT, attribute::OPERATION_CONVOLUTION_WEIGHT)
            }
        };
        let operation = api.descriptor(kind)?;
        operation.set(names[0], of_type::FLOAT, &[1.0_f32])?;
        operation.set(names[1], of_type::FLOAT, &[0.0_f32])?;
        operation.refer(names[2], &convolution)?;
        for (name, tensor) in names[3..].iter().zip([&weight, &input, product.as_ref().unwrap_or(&result)]) {
            operation.refer(*name, tensor)?;
        }
        let (_modes, functions): (Vec<_>, Vec<_>) =
            functions.into_iter().map(|[how, made]| (how, made)).unzip();
        let operations: Vec<_> = std::iter::once(operation).chain(functions).collect();
        operations.iter().try_for_each(Descriptor::finalize)?;
        let will_do = |engine: &Descriptor| Ok(self.takes(&numerical_notes(api, engine)?));
        let mut engines = plans_of(api, handle, &operations, will_do, self.most_engines as usize)?;
        // The heuristics' first choice is kept, however much workspace it needs.
        let mut is_first = true;
        engines.retain(|(_, bytes)| std::mem::take(&mut is_first) || *bytes <= LARGEST_WORKSPACE);
        Ok(ConvolutionPlan { engines, fastest: OnceLock::new() })
    }
}

/// The greatest workspace, in bytes, of an engine that is tried.
const LARGEST_WORKSPACE: u64 = 1 << 30;

/// The indices of tensors in the graph: the operands, and the intermediate results between the product and the output.
const WEIGHT: usize = 0;
const INPUT: usize = 1;
const OUTPUT: usize = 2;
const BIAS: usize = 3;
const PRODUCT: usize = 4;
const BIASED: usize = 5;

fn describe(call: &ConvolutionCall) -> String {
    let ConvolutionShape { batch, input_channels, output_channels, groups, input, kernel, .. } = call.shape;
    format!(
        "convolution, {:?}, of {batch} × {input_channels} × {input:?} with {output_channels} kernels {kernel:?} in {groups} groups, stride \
         {:?}, padding {:?}, dilation {:?}, element format {}",
        call.pass, call.shape.stride, call.shape.padding, call.shape.dilation, call.shape.format.0
    )
}

impl Cudnn {
    fn convolution_recipe(call: &ConvolutionCall) -> Result<ConvolutionRecipe> {
        let formats = [ElementFormat::R_32F, ElementFormat::R_16F, ElementFormat::R_16BF];
        if !formats.contains(&call.shape.format) {
            let detail = format!("convolution is of floats of 16 or 32 bits: {}", describe(call));
            return Err(Error::new(Code::NotSupported, NAME, detail));
        }
        ConvolutionRecipe::new(call)
            .map_err(|why| Error::new(Code::InvalidValue, NAME, format!("{why}: {}", describe(call))))
    }

    fn convolution_plan(
        &self,
        device: u32,
        state: &mut DeviceState,
        recipe: &ConvolutionRecipe,
    ) -> Result<(usize, Arc<ConvolutionPlan>)> {
        let handle = self.handle(device, state)?;
        let plan = kept(&mut state.convolutions, recipe, || recipe.plan(&self.api, handle))?;
        Ok((handle, plan))
    }

    /// Returns the bytes of scratch memory that a convolution needs. The device's context is current.
    pub(in crate::cuda) fn convolution_workspace(&self, device: u32, call: &ConvolutionCall) -> Result<u64> {
        let recipe = Self::convolution_recipe(call)?;
        let mut state = self.devices[device as usize].lock();
        let (_, plan) = self
            .convolution_plan(device, &mut state, &recipe)
            .map_err(|error| error.with_detail(&describe(call)))?;
        Ok(plan.workspace_bytes())
    }

    /// Queues a pass of a convolution; the first call may try engines, which `stopwatch` times. The device's context is
    /// current.
    pub(in crate::cuda) fn convolution(
        &self,
        device: u32,
        stream: RawStream,
        call: &ConvolutionCall,
        stopwatch: Stopwatch<'_>,
        label: impl Fn() -> String,
    ) -> Result<()> {
        let detail = || format!("{}, for {}", describe(call), label());
        let recipe = Self::convolution_recipe(call)?;
        let mut state = self.devices[device as usize].lock();
        let (handle, plan) = self
            .convolution_plan(device, &mut state, &recipe)
            .map_err(|error| error.with_detail(&detail()))?;
        let workspace = workspace_of(call.workspace, plan.workspace_bytes())
            .map_err(|why| Error::new(Code::InvalidValue, NAME, format!("{why}: {}", detail())))?;
        let bias = call.epilogue.map_or(DevicePointer::new(0), |epilogue| epilogue.bias);
        let ids = [WEIGHT, INPUT, OUTPUT, BIAS].map(id);
        let pointers = [call.weight, call.input, call.output, bias].map(DevicePointer::address);
        // The bias is last, so that it can be left out.
        let count = ids.len() - usize::from(call.epilogue.is_none());
        let bindings = (&ids[..count], &pointers[..count]);
        let run = |engine: &Descriptor| {
            // SAFETY: the lock is held, so only this thread uses the handle and the device's plans; the addresses are used
            // by kernels only, and the contract leaves those to the caller.
            unsafe { self.api.execute(handle, stream, engine, bindings, workspace.address()) }
        };
        let place = match plan.fastest.get() {
            Some(&place) => place,
            None => {
                let found =
                    fastest(&plan.engines, &run, stopwatch).map_err(|error| error.with_detail(&detail()))?;
                found.map_or(0, |found| *plan.fastest.get_or_init(|| found))
            }
        };
        run(&plan.engines[place].0).map_err(|error| error.with_detail(&detail()))
    }
}

/// Returns the index of the fastest engine; `None` if nothing can be timed. An engine that fails is skipped.
fn fastest(
    engines: &[(Descriptor, u64)],
    run: &impl Fn(&Descriptor) -> Result<()>,
    stopwatch: Stopwatch<'_>,
) -> Result<Option<usize>> {
    if engines.len() == 1 {
        return Ok(Some(0));
    }
    let mut best: Option<(usize, f32)> = None;
    for (place, (engine, _)) in engines.iter().enumerate() {
        let timed = stopwatch(&mut || run(engine)).and_then(|first| match first {
            None => Ok(None),
            Some(_) => stopwatch(&mut || (0..TIMED_RUNS).try_for_each(|_| run(engine))),
        });
        match timed {
            Ok(None) => return Ok(None),
            Ok(Some(time)) if best.is_none_or(|(_, least)| time < least) => best = Some((place, time)),
            Err(error) if error.code().is_sticky() => return Err(error),
            Ok(Some(_)) | Err(_) => {}
        }
    }
    Ok(Some(best.map_or(0, |(place, _)| place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> ConvolutionCall {
        let at = DevicePointer::new(0x1000);
        ConvolutionCall {
            shape: ConvolutionShape {
                batch: 2,
                input_channels: 4,
                output_channels: 6,
                groups: 2,
                input: [1, 7, 9],
                kernel: [1, 3, 2],
                output: [1, 4, 10],
                stride: [1, 2, 1],
                padding: [0, 1, 1],
                dilation: [1, 1, 1],
                format: ElementFormat::R_32F,
                channels_last: false,
            },
            pass: ConvolutionPass::Forward,
            input: at,
            weight: at,
            output: at,
            allow_tf32: true,
            deterministic: false,
            epilogue: None,
            most_engines: 1,
            workspace: None,
        }
    }

    #[test]
    fn images_have_two_axes_and_channels_last_strides() {
        let recipe = ConvolutionRecipe::new(&call()).expect("it is possible");
        let [weight, input, output] = recipe.sizes();
        assert_eq!((weight, output), (vec![6, 2, 3, 2], vec![2, 6, 4, 10]));
        assert_eq!(strides(&input, false), [252, 63, 9, 1]);
        assert_eq!(strides(&input, true), [252, 1, 36, 4]);
        let mut deep = call();
        deep.shape.padding[0] = 1;
        deep.shape.output[0] = 3;
        assert_eq!(ConvolutionRecipe::new(&deep).expect("it is possible").sizes()[1], [2, 4, 1, 7, 9]);
    }

    #[test]
    fn engines_are_refused_by_what_they_do_to_numbers() {
        let with = |change: fn(&mut ConvolutionCall)| {
            let mut call = call();
            change(&mut call);
            ConvolutionRecipe::new(&call).expect("it is possible")
        };
        let short = |call: &mut ConvolutionCall| call.shape.format = ElementFormat::R_16BF;
        assert!(with(|_| ()).takes(&[TENSOR_CORE]) && !with(|_| ()).takes(&[DOWN_CONVERT_INPUTS]));
        assert!(!with(|call| call.allow_tf32 = false).takes(&[TENSOR_CORE]));
        assert!(with(short).takes(&[TENSOR_CORE, DOWN_CONVERT_INPUTS, NONDETERMINISTIC]));
        assert!(!with(|call| call.deterministic = true).takes(&[NONDETERMINISTIC]));
    }

    #[test]
    fn numbers_are_those_of_the_library() {
        use cudarc::cudnn::sys::{
            cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
            cudnnBackendDescriptorType_t as Kind, cudnnBackendNumericalNote_t as Note,
            cudnnConvolutionMode_t as Mode,
        };
        let pairs = [
            (kind::CONVOLUTION, Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR as u32),
            (kind::ENGINE, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR as u32),
            (
                kind::OPERATION_CONVOLUTION,
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR as u32,
            ),
            (
                kind::OPERATION_CONVOLUTION_WEIGHT,
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR as u32,
            ),
            (
                kind::OPERATION_CONVOLUTION_INPUT,
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR as u32,
            ),
            (of_type::FLOAT, Type::CUDNN_TYPE_FLOAT as u32),
            (of_type::CONVOLUTION_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE as u32),
            (of_type::NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE as u32),
            (attribute::CONVOLUTION_COMPUTE, Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE as u32),
            (attribute::CONVOLUTION_MODE, Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE as u32),
            (attribute::CONVOLUTION_DILATIONS, Name::CUDNN_ATTR_CONVOLUTION_DILATIONS as u32),
            (attribute::CONVOLUTION_STRIDES, Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES as u32),
            (attribute::CONVOLUTION_PADDINGS[0], Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS as u32),
            (attribute::CONVOLUTION_PADDINGS[1], Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS as u32),
            (attribute::CONVOLUTION_AXES, Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS as u32),
            (attribute::CONFIGURATION_ENGINE, Name::CUDNN_ATTR_ENGINECFG_ENGINE as u32),
            (attribute::ENGINE_NUMERICAL_NOTES, Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE as u32),
            (
                attribute::OPERATION_CONVOLUTION[0],
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA as u32,
            ),
            (attribute::OPERATION_CONVOLUTION[3], Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W as u32),
            (
                attribute::OPERATION_CONVOLUTION_INPUT[3],
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W as u32,
            ),
            (
                attribute::OPERATION_CONVOLUTION_INPUT[5],
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY as u32,
            ),
            (
                attribute::OPERATION_CONVOLUTION_WEIGHT[3],
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW as u32,
            ),
            (
                attribute::OPERATION_CONVOLUTION_WEIGHT[5],
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY as u32,
            ),
            (CROSS_CORRELATION, Mode::CUDNN_CROSS_CORRELATION as u32),
            (TENSOR_CORE, Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32),
            (DOWN_CONVERT_INPUTS, Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS as u32),
            (REDUCED_PRECISION_REDUCTION, Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION as u32),
            (NONDETERMINISTIC, Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC as u32),
        ];
        assert!(pairs.iter().all(|(ours, theirs)| ours == theirs), "{pairs:?}");
    }

    #[test]
    fn impossible_convolutions_are_refused_with_the_reason() {
        let refuse = |change: fn(&mut ConvolutionCall)| {
            let mut call = call();
            change(&mut call);
            ConvolutionRecipe::new(&call).expect_err("it is impossible")
        };
        assert!(refuse(|c| c.shape.groups = 3).contains("do not divide evenly over 3"));
        assert!(refuse(|c| c.shape.output[1] = 5).contains("output of 5 along axis 1"));
        assert!(refuse(|c| c.shape.stride[0] = 0).contains("a size is 0"));
        assert!(refuse(|c| c.weight = DevicePointer::new(8)).contains("address of the weight"));
        assert!(refuse(|c| c.shape.padding[2] = u64::MAX).contains("axis 2"));
    }
}
