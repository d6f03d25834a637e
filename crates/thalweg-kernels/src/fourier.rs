//! Discrete Fourier transforms as host functions, for devices that run these instead of a vendor's library.
//!
//! All computations are in f64, and results are rounded once. A line of n numbers is divided by the prime factors of n (Cooley and
//! Tukey, Mathematics of Computation 19, 1965); a large prime factor is a convolution with a chirp (Bluestein, IEEE Transactions
//! on Audio and Electroacoustics 18, 1970).

use std::sync::Arc;

use thalweg_driver::{
    Access, ElementFormat, FourierCall, FourierKind, FourierShape, HostFault, HostKernel, HostLaunch,
};

/// A complex number.
type Number = [f64; 2];

/// The largest prime factor whose transform is a sum of products.
const DIRECT: usize = 61;

/// Returns the ranges that a call reads and writes, except its workspace.
pub fn accesses(call: &FourierCall) -> [Access; 2] {
    let [input, output] = call.shape.bytes();
    let read = match call.shape.kind {
        FourierKind::ToReal => Access::read_write(call.input, input),
        _ => Access::read(call.input, input),
    };
    [read, Access::write(call.output, output)]
}

/// Returns a host function that executes a call.
pub fn host_function(call: FourierCall) -> Arc<dyn HostKernel> {
    Arc::new(move |launch: &HostLaunch<'_>| run(&call, launch))
}

fn times([a, b]: Number, [c, d]: Number) -> Number {
    [a * c - b * d, a * d + b * c]
}

/// Returns exp(sign · 2 π i · turn / period).
fn root(turn: usize, period: usize, sign: f64) -> Number {
    let angle = sign * std::f64::consts::TAU * (turn % period) as f64 / period as f64;
    [angle.cos(), angle.sin()]
}

/// Transforms a line.
fn transform(line: &[Number], sign: f64) -> Vec<Number> {
    let n = line.len();
    let Some(factor) = (2..).take_while(|p| p * p <= n).find(|p| n.is_multiple_of(*p)) else {
        return if n <= DIRECT { direct(line, sign) } else { by_chirp(line, sign) };
    };
    let rest = n / factor;
    let parts: Vec<Vec<Number>> = (0..factor)
        .map(|start| {
            let part: Vec<Number> = line.iter().skip(start).step_by(factor).copied().collect();
            transform(&part, sign)
        })
        .collect();
    let roots: Vec<Number> = (0..n).map(|turn| root(turn, n, sign)).collect();
    (0..n)
        .map(|k| {
            let terms =
                parts.iter().enumerate().map(|(start, part)| times(part[k % rest], roots[start * k % n]));
            terms.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d])
        })
        .collect()
}

fn direct(line: &[Number], sign: f64) -> Vec<Number> {
    let n = line.len();
    let roots: Vec<Number> = (0..n).map(|turn| root(turn, n, sign)).collect();
    (0..n)
        .map(|k| {
            let terms = line.iter().enumerate().map(|(t, &number)| times(number, roots[t * k % n]));
            terms.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d])
        })
        .collect()
}

/// Transforms a line of any length: t · k = (t² + k² − (k − t)²) / 2 makes the transform a convolution with a chirp.
fn by_chirp(line: &[Number], sign: f64) -> Vec<Number> {
    let n = line.len();
    let padded = (2 * n - 1).next_power_of_two();
    let chirp: Vec<Number> = (0..n).map(|t| root(t * t % (2 * n), 2 * n, sign)).collect();
    let (mut numbers, mut filter) = (vec![[0.0; 2]; padded], vec![[0.0; 2]; padded]);
    for t in 0..n {
        numbers[t] = times(line[t], chirp[t]);
        filter[t] = [chirp[t][0], -chirp[t][1]];
        filter[(padded - t) % padded] = filter[t];
    }
    let (numbers, filter) = (transform(&numbers, -1.0), transform(&filter, -1.0));
    let product: Vec<Number> = numbers.iter().zip(&filter).map(|(&one, &other)| times(one, other)).collect();
    let convolved = transform(&product, 1.0);
    let scale = 1.0 / padded as f64;
    (0..n).map(|k| times([convolved[k][0] * scale, convolved[k][1] * scale], chirp[k])).collect()
}

/// Transforms an array along one dimension.
fn along(numbers: &mut [Number], sizes: &[usize], dimension: usize, sign: f64) {
    let (size, step) = (sizes[dimension], sizes[dimension + 1..].iter().product::<usize>());
    for block in numbers.chunks_exact_mut(size * step) {
        for start in 0..step {
            let line: Vec<Number> = block.iter().skip(start).step_by(step).copied().collect();
            let places = block.iter_mut().skip(start).step_by(step);
            places.zip(transform(&line, sign)).for_each(|(place, value)| *place = value);
        }
    }
}

/// Transforms one array from the numbers that were read to those that are written.
fn one(shape: &FourierShape, input: Vec<Number>) -> Vec<Number> {
    let sizes: Vec<usize> = shape.extents().iter().map(|&size| size as usize).collect();
    let (last, rank) = (sizes[sizes.len() - 1], sizes.len());
    let half = last / 2 + 1;
    let mut numbers = input;
    match shape.kind {
        FourierKind::Complex { forward } => {
            let sign = if forward { -1.0 } else { 1.0 };
            (0..rank).for_each(|dimension| along(&mut numbers, &sizes, dimension, sign));
            numbers
        }
        FourierKind::FromReal => {
            along(&mut numbers, &sizes, rank - 1, -1.0);
            let mut kept: Vec<Number> =
                numbers.chunks_exact(last).flat_map(|line| line[..half].to_vec()).collect();
            let halves: Vec<usize> = sizes[..rank - 1].iter().copied().chain([half]).collect();
            (0..rank - 1).for_each(|dimension| along(&mut kept, &halves, dimension, -1.0));
            kept
        }
        FourierKind::ToReal => {
            let halves: Vec<usize> = sizes[..rank - 1].iter().copied().chain([half]).collect();
            (0..rank - 1).for_each(|dimension| along(&mut numbers, &halves, dimension, 1.0));
            let mut whole: Vec<Number> = numbers
                .chunks_exact(half)
                .flat_map(|line| {
                    (0..last).map(move |at| match at {
                        0 => [line[0][0], 0.0],
                        _ if 2 * at == last => [line[at][0], 0.0],
                        _ if at < half => line[at],
                        _ => [line[last - at][0], -line[last - at][1]],
                    })
                })
                .collect();
            along(&mut whole, &sizes, rank - 1, 1.0);
            whole
        }
    }
}

fn run(call: &FourierCall, launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    match call.shape.format {
        ElementFormat::R_64F => run_in::<f64>(call, launch, |x| x, |x| x),
        _ => run_in::<f32>(call, launch, f64::from, |x| x as f32),
    }
}

fn run_in<T: bytemuck::Pod>(
    call: &FourierCall,
    launch: &HostLaunch<'_>,
    widen: fn(T) -> f64,
    round: fn(f64) -> T,
) -> Result<(), HostFault> {
    let shape = &call.shape;
    let is_real = [shape.kind == FourierKind::FromReal, shape.kind == FourierKind::ToReal];
    let ([count, _], [step, distance]) = (shape.counts(), shape.input_strides);
    let [of_input, of_output] = shape.bytes().map(|bytes| bytes as usize / size_of::<T>());
    let input = launch.read::<T>(call.input, of_input)?;
    let output = launch.write::<T>(call.output, of_output)?;
    let mut places = output.iter_mut();
    for transform in 0..shape.batch {
        let numbers = (0..count).map(|at| {
            let place = (transform * distance + at * step) as usize;
            match is_real[0] {
                true => [widen(input[place]), 0.0],
                false => [widen(input[2 * place]), widen(input[2 * place + 1])],
            }
        });
        for [re, im] in one(shape, numbers.collect()) {
            let parts = if is_real[1] { &[re][..] } else { &[re, im][..] };
            parts.iter().for_each(|&part| {
                if let Some(place) = places.next() {
                    *place = round(part);
                }
            });
        }
    }
    Ok(())
}
