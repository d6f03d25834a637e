//! Convolution and its gradients as host functions, for devices that run those in place of a vendor's library.
//!
//! A tile of windows is written as columns (channels and places of the kernel × windows), and a matrix product takes them; columns of the
//! input's gradient are added back. Threads share columns by their rows, and the product's library has its own. All is in f32, 16-bit floats are
//! rounded once, at the end; sizes alone say which terms a sum has in what order.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};
use thalweg_driver::{
    Access, ConvolutionCall, ConvolutionPass, ConvolutionShape, DevicePointer, ElementFormat, HostFault,
    HostKernel, HostLaunch,
};

use crate::threads::{ranges, share};

/// The most elements of the columns of a tile, and how many windows it has where images have fewer.
const TILE: usize = 1 << 19;
const TILE_WINDOWS: usize = 1024;

/// How many elements of columns are worth a thread.
const LEAST: usize = 1 << 14;

/// Returns an operand [first, channels, places] in f32, places behind channels.
fn load<'l>(
    shape: &ConvolutionShape,
    launch: &'l HostLaunch<'_>,
    start: DevicePointer,
    [first, channels, places]: [usize; 3],
) -> Result<Cow<'l, [f32]>, HostFault> {
    let count = first * channels * places;
    let elements = match shape.format {
        ElementFormat::R_32F => Cow::Borrowed(launch.read::<f32>(start, count)?),
        ElementFormat::R_16F => Cow::Owned(launch.read::<f16>(start, count)?.to_f32_vec()),
        _ => Cow::Owned(launch.read::<bf16>(start, count)?.to_f32_vec()),
    };
    if !shape.channels_last {
        return Ok(elements);
    }
    let mut turned = vec![0.0; count];
    let images = turned.chunks_exact_mut((channels * places).max(1));
    for (turned, image) in images.zip(elements.chunks_exact((channels * places).max(1))) {
        for (channel, turned) in turned.chunks_exact_mut(places).enumerate() {
            turned
                .iter_mut()
                .zip(image[channel..].iter().step_by(channels))
                .for_each(|(to, &from)| *to = from);
        }
    }
    Ok(Cow::Owned(turned))
}

/// Writes an operand [first, channels, places].
fn store(
    shape: &ConvolutionShape,
    launch: &HostLaunch<'_>,
    start: DevicePointer,
    mut values: Vec<f32>,
    [channels, places]: [usize; 2],
) -> Result<(), HostFault> {
    if shape.channels_last {
        let mut turned = vec![0.0; values.len()];
        let images = turned.chunks_exact_mut((channels * places).max(1));
        for (turned, image) in images.zip(values.chunks_exact((channels * places).max(1))) {
            for (channel, image) in image.chunks_exact(places).enumerate() {
                turned[channel..].iter_mut().step_by(channels).zip(image).for_each(|(to, &from)| *to = from);
            }
        }
        values = turned;
    }
    match shape.format {
        ElementFormat::R_32F => launch.write::<f32>(start, values.len())?.copy_from_slice(&values),
        ElementFormat::R_16F => launch.write::<f16>(start, values.len())?.convert_from_f32_slice(&values),
        _ => launch.write::<bf16>(start, values.len())?.convert_from_f32_slice(&values),
    }
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
    let sizes = Sizes::of(&call.shape);
    let count = |extents: [u64; 3]| extents.iter().product::<u64>() as usize;
    let input = [sizes.batch, sizes.channels * sizes.groups, count(call.shape.input)];
    let weight = [sizes.outs * sizes.groups, sizes.channels, count(call.shape.kernel)];
    let output = [sizes.batch, sizes.outs * sizes.groups, count(call.shape.output)];
    let read = |start, extents| load(&call.shape, launch, start, extents);
    let write = |start, values, [_, channels, places]: [usize; 3]| {
        store(&call.shape, launch, start, values, [channels, places])
    };
    let zeros = |extents: [usize; 3]| vec![0.0; extents.iter().product()];
    match call.pass {
        ConvolutionPass::Forward => {
            let (x, w) = (read(call.input, input)?, read(call.weight, weight)?);
            let mut y = zeros(output);
            sizes.forward(&x, &w, &mut y);
            write(call.output, y, output)
        }
        ConvolutionPass::InputGradient => {
            let (y, w) = (read(call.output, output)?, read(call.weight, weight)?);
            let mut x = zeros(input);
            sizes.input_gradient(&y, &w, &mut x);
            write(call.input, x, input)
        }
        ConvolutionPass::WeightGradient => {
            let (y, x) = (read(call.output, output)?, read(call.input, input)?);
            let mut w = zeros(weight);
            sizes.weight_gradient(&y, &x, &mut w);
            write(call.weight, w, weight)
        }
    }
}

/// The sizes of a convolution, channels as those of a group.
struct Sizes {
    batch: usize,
    groups: usize,
    channels: usize,
    outs: usize,
    input: [usize; 3],
    kernel: [usize; 3],
    output: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    dilation: [usize; 3],
}

/// Windows that one product takes: all those of some images, or some of one image.
#[derive(Clone)]
struct Tile {
    images: Range<usize>,
    windows: Range<usize>,
}

impl Tile {
    fn width(&self) -> usize {
        self.images.len() * self.windows.len()
    }
}

/// Returns rows that lie in elements, some of each.
fn matrix(elements: &[f32], rows: usize, step: usize, columns: Range<usize>) -> ArrayView2<'_, f32> {
    let shape = (rows, columns.len()).strides((step, 1));
    ArrayView2::from_shape(shape, &elements[columns.start..])
        .expect("operands are as long as their sizes say")
}

/// Returns what [`matrix`] does, to write.
fn matrix_mut(
    elements: &mut [f32],
    rows: usize,
    step: usize,
    columns: Range<usize>,
) -> ArrayViewMut2<'_, f32> {
    let shape = (rows, columns.len()).strides((step, 1));
    ArrayViewMut2::from_shape(shape, &mut elements[columns.start..])
        .expect("operands are as long as their sizes say")
}

impl Sizes {
    fn of(shape: &ConvolutionShape) -> Self {
        let axes = |numbers: [u64; 3]| numbers.map(|number| number as usize);
        Self {
            batch: shape.batch as usize,
            groups: shape.groups as usize,
            channels: (shape.input_channels / shape.groups) as usize,
            outs: (shape.output_channels / shape.groups) as usize,
            input: axes(shape.input),
            kernel: axes(shape.kernel),
            output: axes(shape.output),
            stride: axes(shape.stride),
            padding: axes(shape.padding),
            dilation: axes(shape.dilation),
        }
    }

    /// Returns how many places the kernel has.
    fn places(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Returns how many rows columns have.
    fn rows(&self) -> usize {
        self.channels * self.places()
    }

    /// Returns how many windows an image has.
    fn windows(&self) -> usize {
        self.output.iter().product()
    }

    /// Returns how many places a channel of an image has.
    fn plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Returns whether an image is its own columns.
    fn is_pointwise(&self) -> bool {
        self.kernel == [1; 3] && self.stride == [1; 3] && self.padding == [0; 3]
    }

    /// Returns the tiles of each group.
    fn tiles(&self) -> Vec<Tile> {
        let windows = self.windows();
        if windows == 0 || self.batch == 0 {
            return Vec::new();
        }
        let most = (TILE / self.rows().max(1)).max(1);
        let together = (most.min(TILE_WINDOWS) / windows).clamp(1, self.batch);
        let width = if self.is_pointwise() { windows } else { most.max(64).min(windows) };
        let images = (0..self.batch).step_by(together);
        images
            .flat_map(|image| {
                let images = image..(image + together).min(self.batch);
                (0..windows).step_by(width).map(move |window| Tile {
                    images: images.clone(),
                    windows: window..(window + width).min(windows),
                })
            })
            .collect()
    }

    /// Returns where a group's channels of an image begin, of an operand with so many of so many places.
    fn start(&self, [image, group]: [usize; 2], [channels, places]: [usize; 2]) -> usize {
        (image * self.groups + group) * channels * places
    }

    /// Calls a function with each run of a row of columns: where it begins, the place in the channel of its first element, and how many
    /// elements there are, [`stride`](Self::stride) places apart. What lies between runs is padding.
    #[inline(always)]
    fn runs(&self, place: usize, windows: &Range<usize>, mut run: impl FnMut(usize, usize, usize)) {
        let [_, rows, width] = self.output;
        let [_, of_y, of_x] = self.kernel;
        let by = [place / (of_y * of_x), place / of_x % of_y, place % of_x];
        let from = |axis: usize, to: usize| {
            let at = to * self.stride[axis] + by[axis] * self.dilation[axis];
            at.checked_sub(self.padding[axis]).filter(|&at| at < self.input[axis])
        };
        // The windows along the last axis whose element is no padding.
        let (reach, stride) = (by[2] * self.dilation[2], self.stride[2]);
        let first = self.padding[2].saturating_sub(reach).div_ceil(stride);
        let behind = (self.input[2] + self.padding[2]).saturating_sub(reach).div_ceil(stride).min(width);
        let mut at = windows.start;
        while at < windows.end {
            let (line, begin) = (at / width, at % width);
            let end = (begin + windows.end - at).min(width);
            let (low, high) = (begin.max(first), end.min(behind));
            if let (Some(z), Some(y), true) = (from(0, line / rows), from(1, line % rows), low < high) {
                let x = low * stride + reach - self.padding[2];
                run(
                    at - windows.start + low - begin,
                    (z * self.input[1] + y) * self.input[2] + x,
                    high - low,
                );
            }
            at += end - begin;
        }
    }

    /// Writes a group's columns of a tile.
    fn unfold(&self, x: &[f32], group: usize, tile: &Tile, columns: &mut [f32]) {
        let (width, windows) = (tile.width(), tile.windows.len());
        let row = |row: usize, columns: &mut [f32]| {
            columns.fill(0.0);
            let (channel, place) = (row / self.places(), row % self.places());
            for (image, columns) in tile.images.clone().zip(columns.chunks_exact_mut(windows)) {
                let start =
                    self.start([image, group], [self.channels, self.plane()]) + channel * self.plane();
                let plane = &x[start..start + self.plane()];
                self.runs(place, &tile.windows, |at, from, count| match self.stride[2] {
                    1 => columns[at..at + count].copy_from_slice(&plane[from..from + count]),
                    stride => columns[at..at + count]
                        .iter_mut()
                        .zip(plane[from..].iter().step_by(stride))
                        .for_each(|(to, &from)| *to = from),
                });
            }
        };
        let (mut rest, mut jobs) = (&mut columns[..self.rows() * width], Vec::new());
        for rows in ranges(self.rows(), LEAST.div_ceil(width)) {
            let (part, later) = rest.split_at_mut(rows.len() * width);
            rest = later;
            let row = &row;
            jobs.push(move || rows.zip(part.chunks_exact_mut(width)).for_each(|(at, part)| row(at, part)));
        }
        share(jobs);
    }

    /// Adds a group's columns of a tile to the places that they come from.
    fn fold(&self, columns: &[f32], group: usize, tile: &Tile, x: &mut [f32]) {
        let (width, windows, plane) = (tile.width(), tile.windows.len(), self.plane());
        for (number, image) in tile.images.clone().enumerate() {
            let start = self.start([image, group], [self.channels, plane]);
            let add = |channel: usize, x: &mut [f32]| {
                for place in 0..self.places() {
                    let row =
                        &columns[(channel * self.places() + place) * width + number * windows..][..windows];
                    self.runs(place, &tile.windows, |at, to, count| {
                        let row = &row[at..at + count];
                        match self.stride[2] {
                            1 => x[to..to + count].iter_mut().zip(row).for_each(|(x, &value)| *x += value),
                            stride => {
                                x[to..]
                                    .iter_mut()
                                    .step_by(stride)
                                    .zip(row)
                                    .for_each(|(x, &value)| *x += value);
                            }
                        }
                    });
                }
            };
            let (mut rest, mut jobs) = (&mut x[start..start + self.channels * plane], Vec::new());
            for channels in ranges(self.channels, LEAST.div_ceil(self.places() * windows)) {
                let (part, later) = rest.split_at_mut(channels.len() * plane);
                rest = later;
                let add = &add;
                jobs.push(move || channels.zip(part.chunks_exact_mut(plane)).for_each(|(at, x)| add(at, x)));
            }
            share(jobs);
        }
    }

    /// Calls a function with each group and tile.
    fn each(&self, mut visit: impl FnMut(usize, &Tile)) {
        let tiles = self.tiles();
        (0..self.groups).for_each(|group| tiles.iter().for_each(|tile| visit(group, tile)));
    }

    /// Returns the elements of a group's weight.
    fn weights(&self, group: usize) -> Range<usize> {
        let count = self.outs * self.rows();
        group * count..(group + 1) * count
    }

    /// Returns a group's outputs in a tile, or a copy of those of several images.
    fn outputs<'e>(
        &self,
        y: &'e [f32],
        group: usize,
        tile: &Tile,
        copy: &'e mut Vec<f32>,
    ) -> ArrayView2<'e, f32> {
        let windows = self.windows();
        if tile.images.len() == 1 {
            let start = self.start([tile.images.start, group], [self.outs, windows]);
            return matrix(&y[start..], self.outs, windows, tile.windows.clone());
        }
        copy.clear();
        for out in 0..self.outs {
            for image in tile.images.clone() {
                let start = self.start([image, group], [self.outs, windows]) + out * windows;
                copy.extend_from_slice(&y[start..start + windows]);
            }
        }
        matrix(copy, self.outs, tile.width(), 0..tile.width())
    }

    /// Returns a group's columns of a tile: the image itself where it is that, else `columns`, filled.
    fn columns<'e>(
        &self,
        x: &'e [f32],
        group: usize,
        tile: &Tile,
        columns: &'e mut Vec<f32>,
    ) -> ArrayView2<'e, f32> {
        let (rows, width) = (self.rows(), tile.width());
        if self.is_pointwise() && tile.images.len() == 1 {
            let start = self.start([tile.images.start, group], [rows, self.plane()]);
            return matrix(&x[start..], rows, self.plane(), tile.windows.clone());
        }
        columns.resize(columns.len().max(rows * width), 0.0);
        self.unfold(x, group, tile, columns);
        matrix(columns, rows, width, 0..width)
    }

    fn forward(&self, x: &[f32], w: &[f32], y: &mut [f32]) {
        let (mut columns, mut results) = (Vec::new(), Vec::new());
        let (rows, outs, windows) = (self.rows(), self.outs, self.windows());
        self.each(|group, tile| {
            let columns = self.columns(x, group, tile, &mut columns);
            let w = matrix(&w[self.weights(group)], outs, rows, 0..rows);
            if tile.images.len() == 1 {
                let start = self.start([tile.images.start, group], [outs, windows]);
                let mut y = matrix_mut(&mut y[start..], outs, windows, tile.windows.clone());
                return general_mat_mul(1.0, &w, &columns, 0.0, &mut y);
            }
            let width = tile.width();
            results.resize(outs * width, 0.0);
            general_mat_mul(1.0, &w, &columns, 0.0, &mut matrix_mut(&mut results, outs, width, 0..width));
            for (out, results) in results.chunks_exact(width).enumerate() {
                for (image, results) in tile.images.clone().zip(results.chunks_exact(windows)) {
                    let start = self.start([image, group], [outs, windows]) + out * windows;
                    y[start..start + windows].copy_from_slice(results);
                }
            }
        });
    }

    fn input_gradient(&self, y: &[f32], w: &[f32], x: &mut [f32]) {
        let (mut columns, mut copy) = (Vec::new(), Vec::new());
        let (rows, outs) = (self.rows(), self.outs);
        self.each(|group, tile| {
            let width = tile.width();
            let y = self.outputs(y, group, tile, &mut copy);
            let w = matrix(&w[self.weights(group)], outs, rows, 0..rows);
            columns.resize(columns.len().max(rows * width), 0.0);
            let mut product = matrix_mut(&mut columns, rows, width, 0..width);
            general_mat_mul(1.0, &w.t(), &y, 0.0, &mut product);
            self.fold(&columns, group, tile, x);
        });
    }

    fn weight_gradient(&self, y: &[f32], x: &[f32], w: &mut [f32]) {
        let (mut columns, mut copy) = (Vec::new(), Vec::new());
        let (rows, outs) = (self.rows(), self.outs);
        self.each(|group, tile| {
            let y = self.outputs(y, group, tile, &mut copy);
            let columns = self.columns(x, group, tile, &mut columns);
            let mut w = matrix_mut(&mut w[self.weights(group)], outs, rows, 0..rows);
            general_mat_mul(1.0, &y, &columns.t(), 1.0, &mut w);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in −1 … 1 that repeat late.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    /// Calls a function for each product of a convolution, with the places of input, weight and output.
    fn each(sizes: &Sizes, mut product: impl FnMut(usize, usize, usize)) {
        let points = |[depth, height, width]: [usize; 3]| {
            (0..depth * height * width)
                .map(move |at| [at / (height * width), at / width % height, at % width])
        };
        for (to_number, to) in points(sizes.output).enumerate() {
            for (by_number, by) in points(sizes.kernel).enumerate() {
                let from = [0, 1, 2].map(|axis| {
                    (to[axis] * sizes.stride[axis] + by[axis] * sizes.dilation[axis])
                        .checked_sub(sizes.padding[axis])
                        .filter(|&at| at < sizes.input[axis])
                });
                let [Some(z), Some(y), Some(x)] = from else { continue };
                let from = (z * sizes.input[1] + y) * sizes.input[2] + x;
                for n in 0..sizes.batch {
                    for k in 0..sizes.outs * sizes.groups {
                        for c in 0..sizes.channels {
                            let channel = k / sizes.outs * sizes.channels + c;
                            let image = n * sizes.groups * sizes.channels + channel;
                            product(
                                image * sizes.plane() + from,
                                (k * sizes.channels + c) * sizes.places() + by_number,
                                (n * sizes.groups * sizes.outs + k) * sizes.windows() + to_number,
                            );
                        }
                    }
                }
            }
        }
    }

    /// Holds the three passes against sums in f64.
    fn is_convolution(sizes: &Sizes) {
        let x = numbers(sizes.batch * sizes.groups * sizes.channels * sizes.plane(), 1);
        let w = numbers(sizes.groups * sizes.outs * sizes.rows(), 2);
        let y = numbers(sizes.batch * sizes.groups * sizes.outs * sizes.windows(), 3);
        let wide = |numbers: &[f32]| numbers.iter().map(|&number| f64::from(number)).collect::<Vec<_>>();
        let (wide_x, wide_w, wide_y) = (wide(&x), wide(&w), wide(&y));
        let mut wanted = [vec![0.0; y.len()], vec![0.0; x.len()], vec![0.0; w.len()]];
        each(sizes, |from, by, to| {
            wanted[0][to] += wide_x[from] * wide_w[by];
            wanted[1][from] += wide_w[by] * wide_y[to];
            wanted[2][by] += wide_x[from] * wide_y[to];
        });
        let mut found = [vec![0.0; y.len()], vec![0.0; x.len()], vec![0.0; w.len()]];
        sizes.forward(&x, &w, &mut found[0]);
        sizes.input_gradient(&y, &w, &mut found[1]);
        sizes.weight_gradient(&y, &x, &mut found[2]);
        for (found, wanted) in found.iter().zip(&wanted) {
            let terms = wanted.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
            for (&found, &wanted) in found.iter().zip(wanted) {
                assert!((f64::from(found) - wanted).abs() < 2e-6 * terms, "{found}, not {wanted}");
            }
        }
    }

    fn sizes(batch: usize, [groups, channels, outs]: [usize; 3], axes: [[usize; 5]; 3]) -> Sizes {
        let [input, kernel, stride, padding, dilation] =
            [0, 1, 2, 3, 4].map(|number| axes.map(|axis| axis[number]));
        let output = [0, 1, 2].map(|axis| {
            (input[axis] + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) / stride[axis] + 1
        });
        Sizes { batch, groups, channels, outs, input, kernel, output, stride, padding, dilation }
    }

    /// Axes as extent, kernel, stride, padding and dilation.
    const FLAT: [usize; 5] = [1, 1, 1, 0, 1];

    #[test]
    fn passes_are_sums_over_windows() {
        for (extent, kernel, stride, padding, dilation) in [
            (7, 3, 1, 1, 1),
            (9, 3, 2, 1, 1),
            (8, 2, 3, 0, 2),
            (5, 5, 1, 4, 1),
            (6, 1, 1, 0, 1),
            (3, 3, 2, 5, 1),
        ] {
            let axis = [extent, kernel, stride, padding, dilation];
            is_convolution(&sizes(3, [1, 4, 5], [FLAT, axis, [10, 3, 2, 1, 1]]));
            is_convolution(&sizes(2, [3, 2, 1], [FLAT, FLAT, axis]));
            is_convolution(&sizes(2, [2, 1, 2], [[4, 2, 1, 1, 1], [6, 3, 2, 1, 2], axis]));
        }
    }

    #[test]
    fn images_are_cut_where_columns_are_large_and_put_together_where_they_are_small() {
        let large = sizes(2, [1, 40, 3], [FLAT, [50, 3, 1, 1, 1], [61, 5, 1, 2, 1]]);
        assert!(large.tiles().len() > 2 * large.batch, "{}", large.tiles().len());
        is_convolution(&large);
        let small = sizes(300, [1, 3, 4], [FLAT, [4, 3, 1, 1, 1], [5, 3, 1, 1, 1]]);
        assert!(small.tiles()[0].images.len() > 1 && small.tiles().len() > 1);
        is_convolution(&small);
        is_convolution(&sizes(1, [1, 70, 3], [FLAT, [110, 1, 1, 0, 1], [120, 1, 1, 0, 1]]));
        is_convolution(&sizes(0, [1, 2, 3], [FLAT, FLAT, FLAT]));
    }
}
