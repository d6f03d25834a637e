//! The definition of [`Depthwise`]: the same sums on the host.

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::Element;

use super::{Depthwise, DepthwisePass, RUN};
use crate::arguments;
use crate::dtypes::{rounded, with_float};
use crate::threads::{ranges, share};

/// The fewest points for each thread of the host.
const LEAST_OF_A_THREAD: usize = 1 << 10;

pub(super) fn run(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    if let Ok((sizes, at, [])) = arguments::unpack::<Depthwise, _, 0>("depthwise", launch) {
        return with_float!("depthwise", sizes.dtype, T => of_points::<T>(launch, &sizes, at));
    }
    let (sizes, at, [_]): (Depthwise, _, _) = arguments::unpack("depthwise", launch)?;
    with_float!("depthwise", sizes.dtype, T => of_weight::<T>(launch, &sizes, at))
}

fn offset(strides: [u64; 4], at: [usize; 4]) -> usize {
    strides.iter().zip(at).map(|(&stride, at)| stride as usize * at).sum()
}

/// Returns the points along an axis that are read for one point, each with the element of the window: the points of its window; or
/// the windows that contain it, the last one first.
fn terms(sizes: &Depthwise, axis: usize, at: usize) -> Vec<(usize, usize)> {
    let (padding, stride, kernel) =
        (sizes.padding[axis] as usize, sizes.stride as usize, sizes.kernel[axis] as usize);
    let within = |(from, _): &(usize, usize), extent: u64| *from < extent as usize;
    if sizes.pass == DepthwisePass::Output {
        let read =
            (0..kernel).filter_map(|element| Some(((at * stride + element).checked_sub(padding)?, element)));
        return read.filter(|term| within(term, sizes.input[axis])).collect();
    }
    let elements = ((at + padding) % stride..kernel).step_by(stride);
    let read = elements.filter_map(|element| Some(((at + padding).checked_sub(element)? / stride, element)));
    read.filter(|term| within(term, sizes.output[axis])).collect()
}

fn of_points<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &Depthwise,
    [read, weight, result, bias]: [DevicePointer; 4],
) -> Result<(), HostFault> {
    let [outputs, inputs, weights] = sizes.spans().map(|span| span as usize);
    let [of_output, of_input] = sizes.strides;
    let (read_strides, written_strides, extents, counts) = match sizes.pass {
        DepthwisePass::Output => (of_input, of_output, sizes.output, [inputs, outputs]),
        _ => (of_output, of_input, sizes.input, [outputs, inputs]),
    };
    let read = launch.read::<T>(read, counts[0])?;
    let weight = launch.read::<T>(weight, weights)?;
    let has_bias = bias.address() != 0;
    let bias = launch.read::<T>(bias, if has_bias { sizes.channels as usize } else { 0 })?;
    let result = launch.write::<T>(result, counts[1])?;
    let [height, width] = extents.map(|extent| extent as usize);
    let [high, wide] = sizes.kernel.map(|extent| extent as usize);
    let [rows, columns] = [(0, height), (1, width)]
        .map(|(axis, extent)| -> Vec<_> { (0..extent).map(|at| terms(sizes, axis, at)).collect() });
    for image in 0..sizes.images as usize {
        for channel in 0..sizes.channels as usize {
            let weight = &weight[channel * high * wide..][..high * wide];
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let mut sum = if has_bias { bias[channel].to_f64() } else { 0.0 };
                for &(row, j) in &rows[y] {
                    for &(column, k) in &columns[x] {
                        let value = read[offset(read_strides, [image, channel, row, column])].to_f64();
                        sum = rounded::<T>(weight[j * wide + k].to_f64().mul_add(value, sum));
                    }
                }
                result[offset(written_strides, [image, channel, y, x])] = T::from_f64(sum);
            }
        }
    }
    Ok(())
}

fn of_weight<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &Depthwise,
    [gradient, input, result, _]: [DevicePointer; 4],
) -> Result<(), HostFault> {
    let [outputs, inputs, weights] = sizes.spans().map(|span| span as usize);
    let gradient = launch.read::<T>(gradient, outputs)?;
    let input = launch.read::<T>(input, inputs)?;
    let parts = sizes.parts() as usize;
    let mut sums = vec![0.0; parts * weights];
    let each = weights / sizes.channels as usize;
    let (mut rest, mut jobs) = (&mut sums[..], Vec::new());
    for range in ranges(parts * sizes.channels as usize, LEAST_OF_A_THREAD / each) {
        let (own, later) = rest.split_at_mut(range.len() * each);
        rest = later;
        jobs.push(move || {
            for (number, sums) in range.zip(own.chunks_exact_mut(each)) {
                let (part, channel) = (number / sizes.channels as usize, number % sizes.channels as usize);
                add_part::<T>(sizes, (gradient, input), (part, channel), sums);
            }
        });
    }
    share(jobs);
    if parts == 1 {
        let result = launch.write::<T>(result, weights)?;
        result.iter_mut().zip(sums).for_each(|(to, sum)| *to = T::from_f64(sum));
    } else {
        let result = launch.write::<f32>(result, parts * weights)?;
        result.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum as f32);
    }
    Ok(())
}

/// Adds the products of a part's runs of windows to the sums of a channel.
fn add_part<T: Element>(
    sizes: &Depthwise,
    (gradient, input): (&[T], &[T]),
    (part, channel): (usize, usize),
    sums: &mut [f64],
) {
    let [rows, columns] = sizes.output.map(|extent| extent as usize);
    let runs = columns.div_ceil(RUN as usize);
    let (wide, stride, parts) = (sizes.kernel[1] as usize, sizes.stride as usize, sizes.parts() as usize);
    let lanes = if sizes.channels_last { 1 } else { 32 };
    // The position of an element of a window, if it is a point of the plane.
    let inside = |axis: usize, window: usize, element: usize| {
        let at = (window * stride + element).checked_sub(sizes.padding[axis] as usize)?;
        (at < sizes.input[axis] as usize).then_some(at)
    };
    let all = sizes.images as usize * rows * runs;
    let own = (part * lanes..all).step_by(parts * lanes).flat_map(|run| run..(run + lanes).min(all));
    for run in own {
        let (image, row, first) = match sizes.is_by_rows() {
            true => (run / rows / runs, run % rows, run / rows % runs),
            false => (run / runs / rows, run / runs % rows, run % runs),
        };
        let first = first * RUN as usize;
        for column in first..(first + RUN as usize).min(columns) {
            let factor = gradient[offset(sizes.strides[0], [image, channel, row, column])].to_f64();
            for (element, sum) in sums.iter_mut().enumerate() {
                let at = inside(0, row, element / wide).zip(inside(1, column, element % wide));
                let Some((y, x)) = at else { continue };
                let value = input[offset(sizes.strides[1], [image, channel, y, x])].to_f64();
                *sum = rounded::<T>(factor.mul_add(value, *sum));
            }
        }
    }
}
