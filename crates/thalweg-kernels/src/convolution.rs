//! Convolution and its gradients as host functions, for devices that run those in place of a vendor's library.
//!
//! Sums are of 64-bit floats, rounded once to the elements' format.

use std::sync::Arc;

use half::{bf16, f16};
use thalweg_driver::{
    Access, ConvolutionCall, ConvolutionPass, ConvolutionShape, DevicePointer, ElementFormat, HostFault,
    HostKernel, HostLaunch,
};

fn load(
    format: ElementFormat,
    launch: &HostLaunch<'_>,
    start: DevicePointer,
    count: usize,
) -> Result<Vec<f64>, HostFault> {
    if format == ElementFormat::R_32F {
        return Ok(launch.read::<f32>(start, count)?.iter().map(|&value| f64::from(value)).collect());
    }
    let from = if format == ElementFormat::R_16F {
        |bits| f16::from_bits(bits).to_f64()
    } else {
        |bits| bf16::from_bits(bits).to_f64()
    };
    Ok(launch.read::<u16>(start, count)?.iter().map(|&bits| from(bits)).collect())
}

fn store(
    format: ElementFormat,
    launch: &HostLaunch<'_>,
    start: DevicePointer,
    values: &[f64],
) -> Result<(), HostFault> {
    if format == ElementFormat::R_32F {
        let memory = launch.write::<f32>(start, values.len())?;
        memory.iter_mut().zip(values).for_each(|(place, value)| *place = *value as f32);
        return Ok(());
    }
    let to = if format == ElementFormat::R_16F {
        |value| f16::from_f64(value).to_bits()
    } else {
        |value| bf16::from_f64(value).to_bits()
    };
    let memory = launch.write::<u16>(start, values.len())?;
    memory.iter_mut().zip(values).for_each(|(place, value)| *place = to(*value));
    Ok(())
}

/// Returns what a call reads and writes, other than its workspace.
pub fn accesses(call: &ConvolutionCall) -> [Access; 3] {
    let counts = call.shape.elements().unwrap_or_default();
    let bytes = call.shape.format.bytes().unwrap_or_default();
    let [input, weight, output] = counts.map(|count| count * bytes);
    let (reads, writes) = (Access::read, Access::write);
    match call.pass {
        ConvolutionPass::Forward => {
            [reads(call.input, input), reads(call.weight, weight), writes(call.output, output)]
        }
        ConvolutionPass::InputGradient => {
            [writes(call.input, input), reads(call.weight, weight), reads(call.output, output)]
        }
        ConvolutionPass::WeightGradient => {
            [reads(call.input, input), writes(call.weight, weight), reads(call.output, output)]
        }
    }
}

/// Returns a host function that does what a call describes.
pub fn host_function(call: ConvolutionCall) -> Arc<dyn HostKernel> {
    Arc::new(move |launch: &HostLaunch<'_>| run(&call, launch))
}

fn run(call: &ConvolutionCall, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let [input, weight, output] = call.shape.elements().unwrap_or_default().map(|count| count as usize);
    let read = |start, count: usize| load(call.shape.format, launch, start, count);
    let (result, target) = match call.pass {
        ConvolutionPass::Forward => {
            let (x, w) = (read(call.input, input)?, read(call.weight, weight)?);
            let mut y = vec![0.0; output];
            each(&call.shape, |from, by, to| y[to] += w[by] * x[from]);
            (y, call.output)
        }
        ConvolutionPass::InputGradient => {
            let (y, w) = (read(call.output, output)?, read(call.weight, weight)?);
            let mut x = vec![0.0; input];
            each(&call.shape, |from, by, to| x[from] += w[by] * y[to]);
            (x, call.input)
        }
        ConvolutionPass::WeightGradient => {
            let (y, x) = (read(call.output, output)?, read(call.input, input)?);
            let mut w = vec![0.0; weight];
            each(&call.shape, |from, by, to| w[by] += y[to] * x[from]);
            (w, call.weight)
        }
    };
    store(call.shape.format, launch, target, &result)
}

/// Where elements of an operand [first, channels, extents] lie.
struct Places {
    first: usize,
    channel: usize,
    axes: [usize; 3],
}

impl Places {
    fn new(channels: u64, extents: [u64; 3], channels_last: bool) -> Self {
        let [depth, height, width] = extents.map(|extent| extent as usize);
        let (channels, count) = (channels as usize, depth * height * width);
        let step = if channels_last { channels } else { 1 };
        Self {
            first: channels * count,
            channel: if channels_last { 1 } else { count },
            axes: [height * width * step, width * step, step],
        }
    }

    const fn at(&self, first: usize, channel: usize, [z, y, x]: [usize; 3]) -> usize {
        let [of_z, of_y, of_x] = self.axes;
        first * self.first + channel * self.channel + z * of_z + y * of_y + x * of_x
    }
}

fn points(extents: [u64; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [depth, height, width] = extents.map(|extent| extent as usize);
    (0..depth * height * width).map(move |at| [at / (height * width), at / width % height, at % width])
}

/// Calls a function for each product of a convolution, with the places of input, weight and output.
fn each(shape: &ConvolutionShape, mut product: impl FnMut(usize, usize, usize)) {
    let of_group = (shape.input_channels / shape.groups) as usize;
    let outs = (shape.output_channels / shape.groups) as usize;
    let places = |channels, extents| Places::new(channels, extents, shape.channels_last);
    let input = places(shape.input_channels, shape.input);
    let weight = places(of_group as u64, shape.kernel);
    let output = places(shape.output_channels, shape.output);
    for to in points(shape.output) {
        for by in points(shape.kernel) {
            let from = [0, 1, 2].map(|axis| {
                let start = to[axis] as u64 * shape.stride[axis] + by[axis] as u64 * shape.dilation[axis];
                start.checked_sub(shape.padding[axis]).filter(|&at| at < shape.input[axis])
            });
            let [Some(z), Some(y), Some(x)] = from else { continue };
            let from = [z, y, x].map(|at| at as usize);
            for n in 0..shape.batch as usize {
                for k in 0..outs * shape.groups as usize {
                    for c in 0..of_group {
                        let channel = k / outs * of_group + c;
                        product(input.at(n, channel, from), weight.at(k, c, by), output.at(n, k, to));
                    }
                }
            }
        }
    }
}
