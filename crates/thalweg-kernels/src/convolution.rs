//! Convolution and its gradients as host functions, for devices that run these instead of a vendor's library.
//!
//! A tile of windows is written as columns (channels and places of the kernel × windows), in the order in which a product reads
//! them; columns of the input's gradient are added back. Threads share images and channels. All computations are in f32, and
//! 16-bit floats are rounded once, at the end. The terms of a sum and their order depend only on sizes.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use thalweg_driver::{
    Access, ConvolutionCall, ConvolutionPass, ConvolutionShape, DevicePointer, ElementFormat, HostFault,
    HostKernel, HostLaunch,
};

use crate::panels::{COLUMNS, ROWS, pack_column, pack_left, pack_term, product};
use crate::threads::{ranges, share, threads};

/// The most elements of the columns of a tile, if it has more windows than the least.
const TILE: usize = 1 << 16;
/// The least and the most windows of a tile.
const WINDOWS: [usize; 2] = [64, 1024];

/// The number of products for which another thread pays.
const LEAST: usize = 1 << 18;

/// Returns an operand [first, channels, places] in f32, with places innermost.
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

/// Returns the ranges that a call reads and writes, except its workspace.
pub fn accesses(call: &ConvolutionCall) -> impl Iterator<Item = Access> {
    let counts = call.shape.elements().unwrap_or_default();
    let bytes = call.shape.format.bytes().unwrap_or_default();
    let [input, weight, output] = counts.map(|count| count * bytes);
    let (reads, writes) = (Access::read, Access::write);
    let bias = call.epilogue.map(|epilogue| reads(epilogue.bias, call.shape.output_channels * bytes));
    let operands = match call.pass {
        ConvolutionPass::Forward => {
            [reads(call.input, input), reads(call.weight, weight), writes(call.output, output)]
        }
        ConvolutionPass::InputGradient => {
            [writes(call.input, input), reads(call.weight, weight), reads(call.output, output)]
        }
        ConvolutionPass::WeightGradient => {
            [reads(call.input, input), writes(call.weight, weight), reads(call.output, output)]
        }
    };
    operands.into_iter().chain(bias)
}

/// Returns a host function that executes a call.
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
    let write = |start, extents: [usize; 3], compute: &mut dyn FnMut(&mut [f32])| {
        let count = extents.iter().product();
        if call.shape.format == ElementFormat::R_32F && !call.shape.channels_last {
            let values = launch.write::<f32>(start, count)?;
            values.fill(0.0);
            compute(values);
            return Ok(());
        }
        let mut values = vec![0.0; count];
        compute(&mut values);
        store(&call.shape, launch, start, values, [extents[1], extents[2]])
    };
    match call.pass {
        ConvolutionPass::Forward => {
            let (x, w) = (read(call.input, input)?, read(call.weight, weight)?);
            let bias = match call.epilogue {
                Some(epilogue) => Some((read(epilogue.bias, [1, output[1], 1])?, epilogue.relu)),
                None => None,
            };
            write(call.output, output, &mut |y| {
                sizes.forward(&x, &w, y);
                if let Some((bias, relu)) = &bias {
                    finish(y, output[2], bias, *relu);
                }
            })
        }
        ConvolutionPass::InputGradient => {
            let (y, w) = (read(call.output, output)?, read(call.weight, weight)?);
            write(call.input, input, &mut |x| sizes.input_gradient(&y, &w, x))
        }
        ConvolutionPass::WeightGradient => {
            let (y, x) = (read(call.output, output)?, read(call.input, input)?);
            write(call.weight, weight, &mut |w| sizes.weight_gradient(&y, &x, w))
        }
    }
}

/// Adds the bias to an output [batch, channels, places], and applies the rectified linear unit, which keeps NaN.
fn finish(output: &mut [f32], places: usize, bias: &[f32], relu: bool) {
    for (channel, &bias) in output.chunks_exact_mut(places.max(1)).zip(bias.iter().cycle()) {
        for value in channel {
            *value += bias;
            if relu && *value < 0.0 {
                *value = 0.0;
            }
        }
    }
}

/// The sizes of a convolution; channels are those of one group.
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

/// Some channels of a group of an image, with their elements.
struct Piece<'e> {
    image: usize,
    group: usize,
    /// The index of the piece's channels among the ranges into which channels are divided.
    part: usize,
    elements: &'e mut [f32],
}

/// Scratch memory into which a thread writes tiles.
#[derive(Default)]
struct Room {
    panels: Vec<[f32; COLUMNS]>,
    line: Vec<f32>,
    columns: Vec<f32>,
}

impl Room {
    /// Returns memory for panels of a right factor, and a line of zeros for its rows.
    fn panels(&mut self, terms: usize, width: usize) -> (&mut [[f32; COLUMNS]], &mut [f32]) {
        let count = width.div_ceil(COLUMNS) * terms;
        if self.panels.len() < count {
            self.panels.resize(count, [0.0; COLUMNS]);
        }
        self.line.resize(width.next_multiple_of(COLUMNS), 0.0);
        self.line[width..].fill(0.0);
        (&mut self.panels[..count], &mut self.line)
    }
}

/// Calls a function with each panel of the left factor, each of the right, and their product.
fn products(
    left: &[[f32; ROWS]],
    right: &[[f32; COLUMNS]],
    terms: usize,
    mut result: impl FnMut(usize, usize, crate::panels::Sums),
) {
    for (row, left) in left.chunks_exact(terms).enumerate() {
        for (column, right) in right.chunks_exact(terms).enumerate() {
            result(row * ROWS, column * COLUMNS, product(left, right));
        }
    }
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

    /// Returns the number of places of the kernel.
    fn places(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Returns the number of rows of the columns.
    fn rows(&self) -> usize {
        self.channels * self.places()
    }

    /// Returns the number of windows of an image.
    fn windows(&self) -> usize {
        self.output.iter().product()
    }

    /// Returns the number of places of a channel of an image.
    fn plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Returns whether all sums are empty.
    fn is_empty(&self) -> bool {
        self.batch * self.groups * self.outs * self.rows() * self.windows() == 0
    }

    /// Returns the windows of an image, a tile at a time.
    fn tiles(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (windows, [least, most]) = (self.windows(), WINDOWS);
        let width = (TILE / self.rows().max(1)).clamp(least, most).next_multiple_of(COLUMNS);
        (0..windows).step_by(width).map(move |first| first..(first + width).min(windows))
    }

    /// Divides the elements into ranges of a group's channels, image by image: at least one piece per thread.
    fn pieces<'e>(
        &self,
        elements: &'e mut [f32],
        channels: usize,
        places: usize,
    ) -> (Vec<Range<usize>>, Vec<Piece<'e>>) {
        let blocks = (self.batch * self.groups).max(1);
        let parts = self.threads().div_ceil(blocks).min(channels.max(1));
        let parts: Vec<_> =
            (0..parts).map(|part| channels * part / parts..channels * (part + 1) / parts).collect();
        let (mut rest, mut pieces) = (elements, Vec::new());
        for (image, group) in
            (0..self.batch).flat_map(|image| (0..self.groups).map(move |group| (image, group)))
        {
            for (part, channels) in parts.iter().enumerate() {
                let (elements, later) = rest.split_at_mut(channels.len() * places);
                rest = later;
                pieces.push(Piece { image, group, part, elements });
            }
        }
        (parts, pieces)
    }

    /// Returns the number of threads for which the work is enough.
    fn threads(&self) -> usize {
        let work = self.batch * self.groups * self.outs * self.rows() * self.windows();
        (work / LEAST).clamp(1, threads())
    }

    /// Calls a function with each piece.
    fn share_pieces(&self, pieces: Vec<Piece<'_>>, run: impl Fn(Piece<'_>, &mut Room) + Sync) {
        let (mut pieces, run) = (pieces.into_iter(), &run);
        let parts = self.threads().min(pieces.len()).max(1);
        let count = pieces.len();
        let jobs = (0..parts).map(|part| {
            let own: Vec<_> =
                pieces.by_ref().take(count * (part + 1) / parts - count * part / parts).collect();
            move || {
                let mut room = Room::default();
                own.into_iter().for_each(|piece| run(piece, &mut room));
            }
        });
        share(jobs.collect());
    }

    /// Returns where a group's channels of an image begin, in an operand with this many channels per group and places per
    /// channel.
    fn start(&self, [image, group]: [usize; 2], [channels, places]: [usize; 2]) -> usize {
        (image * self.groups + group) * channels * places
    }

    /// Calls a function with each run of a row of columns: the index at which the run begins, the place in the channel of its
    /// first element, and the number of its elements, which are [`stride`](Self::stride) places apart. Between runs there is
    /// padding.
    #[inline(always)]
    fn runs(&self, place: usize, windows: &Range<usize>, mut run: impl FnMut(usize, usize, usize)) {
        let [_, rows, width] = self.output;
        let [_, of_y, of_x] = self.kernel;
        let by = [place / (of_y * of_x), place / of_x % of_y, place % of_x];
        let from = |axis: usize, to: usize| {
            let at = to * self.stride[axis] + by[axis] * self.dilation[axis];
            at.checked_sub(self.padding[axis]).filter(|&at| at < self.input[axis])
        };
        // The windows along the last axis whose element is not padding.
        let (reach, stride) = (by[2] * self.dilation[2], self.stride[2]);
        let first = self.padding[2].saturating_sub(reach).div_ceil(stride);
        let after = (self.input[2] + self.padding[2]).saturating_sub(reach).div_ceil(stride).min(width);
        let mut at = windows.start;
        while at < windows.end {
            let (line, begin) = (at / width, at % width);
            let end = (begin + windows.end - at).min(width);
            let (low, high) = (begin.max(first), end.min(after));
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

    /// Writes a row of a group's columns for some windows of an image.
    fn unfold(&self, x: &[f32], at: [usize; 2], row: usize, windows: &Range<usize>, line: &mut [f32]) {
        let (channel, place) = (row / self.places(), row % self.places());
        let start = self.start(at, [self.channels, self.plane()]) + channel * self.plane();
        let plane = &x[start..start + self.plane()];
        line[..windows.len()].fill(0.0);
        self.runs(place, windows, |at, from, count| match self.stride[2] {
            1 => line[at..at + count].copy_from_slice(&plane[from..from + count]),
            stride => line[at..at + count]
                .iter_mut()
                .zip(plane[from..].iter().step_by(stride))
                .for_each(|(to, &from)| *to = from),
        });
    }

    /// Adds a row of columns to the places of the channel from which it was unfolded.
    fn fold(&self, row: &[f32], place: usize, windows: &Range<usize>, x: &mut [f32]) {
        self.runs(place, windows, |at, to, count| {
            let row = &row[at..at + count];
            match self.stride[2] {
                1 => x[to..to + count].iter_mut().zip(row).for_each(|(x, &value)| *x += value),
                stride => x[to..].iter_mut().step_by(stride).zip(row).for_each(|(x, &value)| *x += value),
            }
        });
    }

    /// Returns a group's elements of the weight: per output, a row of all channels and places.
    fn weights<'e>(&self, w: &'e [f32], group: usize) -> &'e [f32] {
        &w[group * self.outs * self.rows()..][..self.outs * self.rows()]
    }

    /// Returns panels for each group and part. A panel has the rows of a part; `value` returns the element of a group's weight at
    /// a row and a term.
    fn pack_weights(
        &self,
        parts: &[Range<usize>],
        (rows_of_channel, terms): (usize, usize),
        value: impl Fn(usize, usize, usize) -> f32 + Sync,
    ) -> Vec<Vec<[f32; ROWS]>> {
        let value = &value;
        let each = (0..self.groups).flat_map(|group| parts.iter().map(move |part| (group, part.clone())));
        each.map(|(group, part)| {
            let mut panels = Vec::new();
            let first = part.start * rows_of_channel;
            pack_left(&mut panels, part.len() * rows_of_channel, terms, |row, term| {
                value(group, first + row, term)
            });
            panels
        })
        .collect()
    }

    fn forward(&self, x: &[f32], w: &[f32], y: &mut [f32]) {
        if self.is_empty() {
            return;
        }
        let (rows, windows) = (self.rows(), self.windows());
        let (parts, pieces) = self.pieces(y, self.outs, windows);
        let weights =
            self.pack_weights(&parts, (1, rows), |group, out, row| self.weights(w, group)[out * rows + row]);
        self.share_pieces(pieces, |piece, room| {
            let left = &weights[piece.group * parts.len() + piece.part];
            for tile in self.tiles() {
                let (right, line) = room.panels(rows, tile.len());
                for row in 0..rows {
                    self.unfold(x, [piece.image, piece.group], row, &tile, line);
                    pack_term(right, rows, row, line);
                }
                products(left, right, rows, |out, window, sums| {
                    let count = (tile.len() - window).min(COLUMNS);
                    let lines = piece.elements[out * windows..].chunks_mut(windows);
                    for (line, sums) in lines.zip(sums) {
                        line[tile.start + window..][..count].copy_from_slice(&sums[..count]);
                    }
                });
            }
        });
    }

    fn input_gradient(&self, y: &[f32], w: &[f32], x: &mut [f32]) {
        if self.is_empty() {
            return;
        }
        let (rows, windows, places) = (self.rows(), self.windows(), self.places());
        let (parts, pieces) = self.pieces(x, self.channels, self.plane());
        let weights = self.pack_weights(&parts, (places, self.outs), |group, row, out| {
            self.weights(w, group)[out * rows + row]
        });
        self.share_pieces(pieces, |piece, room| {
            let left = &weights[piece.group * parts.len() + piece.part];
            let start = self.start([piece.image, piece.group], [self.outs, windows]);
            for tile in self.tiles() {
                let width = tile.len();
                let mut columns = std::mem::take(&mut room.columns);
                columns.resize(left.len() / self.outs * ROWS * width, 0.0);
                let (right, line) = room.panels(self.outs, width);
                for out in 0..self.outs {
                    line[..width].copy_from_slice(&y[start + out * windows..][tile.clone()]);
                    pack_term(right, self.outs, out, line);
                }
                products(left, right, self.outs, |row, window, sums| {
                    let count = (width - window).min(COLUMNS);
                    for (line, sums) in columns[row * width..].chunks_exact_mut(width).zip(sums) {
                        line[window..][..count].copy_from_slice(&sums[..count]);
                    }
                });
                let channels = piece.elements.chunks_exact_mut(self.plane());
                for (columns, plane) in columns.chunks_exact(places * width).zip(channels) {
                    for (place, row) in columns.chunks_exact(width).enumerate() {
                        self.fold(row, place, &tile, plane);
                    }
                }
                room.columns = columns;
            }
        });
    }

    /// Returns a group's sums of products over all windows for some rows of the weight's gradient, with a row of outputs for
    /// each.
    fn gradient_of_rows(&self, y: &[f32], x: &[f32], group: usize, own: Range<usize>) -> Vec<f32> {
        let (windows, outs) = (self.windows(), self.outs);
        let mut sums = vec![0.0; outs * own.len()];
        let (mut room, mut left) = (Room::default(), Vec::new());
        for (image, tile) in (0..self.batch).flat_map(|image| self.tiles().map(move |tile| (image, tile))) {
            let terms = tile.len();
            let start = self.start([image, group], [outs, windows]) + tile.start;
            pack_left(&mut left, outs, terms, |out, window| y[start + out * windows + window]);
            room.line.resize(terms, 0.0);
            let mut line = std::mem::take(&mut room.line);
            let count = own.len().div_ceil(COLUMNS) * terms;
            room.panels.resize(room.panels.len().max(count), [0.0; COLUMNS]);
            for (column, row) in own.clone().enumerate() {
                self.unfold(x, [image, group], row, &tile, &mut line);
                pack_column(&mut room.panels[column / COLUMNS * terms..][..terms], column, &line);
            }
            products(&left, &room.panels[..count], terms, |out, column, product| {
                let count = (own.len() - column).min(COLUMNS);
                for (sums, product) in sums[out * own.len()..].chunks_exact_mut(own.len()).zip(product) {
                    sums[column..][..count].iter_mut().zip(product).for_each(|(sum, term)| *sum += term);
                }
            });
            room.line = line;
        }
        sums
    }

    fn weight_gradient(&self, y: &[f32], x: &[f32], w: &mut [f32]) {
        if self.is_empty() {
            return;
        }
        let rows = self.rows();
        let panels = rows.div_ceil(COLUMNS);
        let least = panels.div_ceil(self.threads().div_ceil(self.groups));
        let of_group = || ranges(panels, least).map(|own| own.start * COLUMNS..(own.end * COLUMNS).min(rows));
        let own: Vec<_> =
            (0..self.groups).flat_map(|group| of_group().map(move |own| (group, own))).collect();
        let parts = self.threads().min(own.len()).max(1);
        let jobs = (0..parts).map(|part| {
            let own = &own[own.len() * part / parts..own.len() * (part + 1) / parts];
            move || {
                let sums = own.iter().map(|(group, own)| self.gradient_of_rows(y, x, *group, own.clone()));
                sums.collect::<Vec<_>>()
            }
        });
        let sums = share(jobs.collect()).into_iter().flatten();
        for ((group, own), sums) in own.iter().zip(sums) {
            let w = &mut w[group * self.outs * rows..][..self.outs * rows];
            for (w, sums) in w.chunks_exact_mut(rows).zip(sums.chunks_exact(own.len())) {
                w[own.clone()].copy_from_slice(sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns numbers in −1 … 1 with a long period.
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

    /// Checks the three passes against sums in f64.
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
    fn images_are_cut_where_they_are_large() {
        let large = sizes(2, [1, 40, 3], [FLAT, [20, 3, 1, 1, 1], [61, 5, 1, 2, 1]]);
        assert!(large.tiles().count() > 2);
        is_convolution(&large);
        is_convolution(&sizes(1, [1, 70, 13], [FLAT, [40, 1, 1, 0, 1], [30, 1, 1, 0, 1]]));
        is_convolution(&sizes(30, [1, 3, 4], [FLAT, [4, 3, 1, 1, 1], [5, 3, 1, 1, 1]]));
        is_convolution(&sizes(0, [1, 2, 3], [FLAT, FLAT, FLAT]));
    }
}
