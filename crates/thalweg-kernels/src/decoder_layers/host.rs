//! The host function of [`DecoderLayers`], which rounds where the GPU does.

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::{DType, Element, bf16, f16};

use super::{DecoderLaunch, DecoderLayers, LayerAddresses};

pub(super) fn run(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, layers) = DecoderLaunch::unpack(launch.arguments)
        .ok_or_else(|| HostFault("layers of a decoder: the arguments are not in its layout".to_owned()))?;
    match sizes.dtype {
        DType::F16 => run_typed::<f16>(launch, &sizes, at, &layers),
        DType::Bf16 => run_typed::<bf16>(launch, &sizes, at, &layers),
        other => Err(HostFault(format!("layers of a decoder: there is none of {other}"))),
    }
}

/// A product's weight and bias, or a norm's.
struct Affine<'l, T> {
    weight: &'l [T],
    bias: &'l [T],
}

impl<'l, T: Element> Affine<'l, T> {
    fn read(
        launch: &'l HostLaunch<'_>,
        [weight, bias]: [DevicePointer; 2],
        [rows, terms]: [u64; 2],
    ) -> Result<Self, HostFault> {
        let weight = launch.read(weight, (rows * terms) as usize)?;
        Ok(Self { weight, bias: launch.read(bias, rows as usize)? })
    }

    /// Returns the product with a row, before it is rounded.
    fn multiply(&self, row: &[T]) -> Vec<f32> {
        let row: Vec<f32> = row.iter().map(|x| x.to_f64() as f32).collect();
        let lines = self.weight.chunks_exact(row.len());
        lines.zip(self.bias).map(|(line, bias)| dot(line, &row) + bias.to_f64() as f32).collect()
    }

    /// Returns the layer norm of a row.
    fn normalize(&self, row: &[f32], eps: f32) -> Vec<T> {
        let count = row.len() as f64;
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + f64::from(eps)).sqrt();
        let each = row.iter().zip(self.weight.iter().zip(self.bias));
        each.map(|(&x, (weight, bias))| {
            T::from_f64((f64::from(x) - mean) * factor * weight.to_f64() + bias.to_f64())
        })
        .collect()
    }
}

/// Returns the sum of products, in lanes that a processor has side by side.
fn dot<T: Element>(line: &[T], row: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (line, row) in line.chunks(16).zip(row.chunks(16)) {
        for (lane, (a, b)) in lanes.iter_mut().zip(line.iter().zip(row)) {
            *lane = (a.to_f64() as f32).mul_add(*b, *lane);
        }
    }
    lanes.iter().sum()
}

fn rounded<T: Element>(row: &[f32]) -> Vec<T> {
    row.iter().map(|&x| T::from_f64(f64::from(x))).collect()
}

/// Returns GELU by its tanh: 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))).
fn gelu(x: f32) -> f32 {
    let inner =
        std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2 * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// Returns attention of a head's query over the first keys of its cache: (width).
fn attend<T: Element>(query: &[T], keys: &[T], values: &[T], scale: f64) -> Vec<T> {
    let width = query.len();
    let score = |key: &[T]| scale * query.iter().zip(key).map(|(q, k)| q.to_f64() * k.to_f64()).sum::<f64>();
    let scores: Vec<f64> = keys.chunks_exact(width).map(score).collect();
    let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut total, mut sums) = (0.0, vec![0.0; width]);
    for (score, value) in scores.iter().zip(values.chunks_exact(width)) {
        let weight = (score - greatest).exp();
        total += weight;
        sums.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value.to_f64());
    }
    sums.iter().map(|&sum| T::from_f64(if total == 0.0 { 0.0 } else { sum / total })).collect()
}

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &DecoderLayers,
    [x, result, position, exchange]: [DevicePointer; 4],
    layers: &[LayerAddresses],
) -> Result<(), HostFault> {
    let position = launch.read::<i64>(position, 1)?[0];
    let given = launch.read::<T>(x, sizes.features as usize)?;
    let mut row: Vec<f32> = given.iter().map(|x| x.to_f64() as f32).collect();
    for at in layers {
        layer::<T>(launch, sizes, position, at, &mut row)?;
    }
    // What blocks hand over in is not zero behind a launch.
    launch.write::<u32>(exchange, sizes.exchange_bytes() as usize / 4)?.fill(u32::MAX);
    launch.write::<T>(result, sizes.features as usize)?.copy_from_slice(&rounded::<T>(&row));
    Ok(())
}

/// Carries out a layer on the row.
fn layer<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &DecoderLayers,
    position: i64,
    at: &LayerAddresses,
    row: &mut [f32],
) -> Result<(), HostFault> {
    let eps = f32::from_bits(sizes.eps_bits);
    let (features, width) = (sizes.features as usize, (sizes.features / sizes.heads) as usize);
    let norm = |at| Affine::<T>::read(launch, at, [sizes.features, 1]);
    let shapes = DecoderLayers::products(sizes.features, sizes.hidden);
    let product =
        |which: usize| Affine::<T>::read(launch, at.products[which], [shapes[which].0, shapes[which].1]);
    let packed: Vec<T> = rounded(&product(0)?.multiply(&norm(at.norms[0])?.normalize(row, eps)));
    let [keys, values] = [
        launch.write::<T>(at.caches[0], sizes.cached() as usize)?,
        launch.write::<T>(at.caches[1], sizes.cached() as usize)?,
    ];
    let seen = usize::try_from(position.saturating_add(1)).unwrap_or(0).min(sizes.context as usize);
    let mut mixed = Vec::with_capacity(features);
    for head in 0..sizes.heads as usize {
        let cache = head * sizes.context as usize * width;
        let of = |part: usize| &packed[part * features + head * width..][..width];
        if let Some(place) = usize::try_from(position).ok().filter(|&place| place < sizes.context as usize) {
            keys[cache + place * width..][..width].copy_from_slice(of(1));
            values[cache + place * width..][..width].copy_from_slice(of(2));
        }
        let scale = 1.0 / (width as f64).sqrt();
        let (keys, values) = (&keys[cache..][..seen * width], &values[cache..][..seen * width]);
        mixed.extend(attend(of(0), keys, values, scale));
    }
    let add = |row: &mut [f32], sums: Vec<f32>| row.iter_mut().zip(sums).for_each(|(x, sum)| *x += sum);
    add(row, product(1)?.multiply(&mixed));
    let hidden = product(2)?.multiply(&norm(at.norms[1])?.normalize(row, eps));
    let hidden: Vec<f32> = hidden.into_iter().map(gelu).collect();
    add(row, product(3)?.multiply(&rounded::<T>(&hidden)));
    Ok(())
}
