//! The host function of [`DecoderLayers`], which rounds where the GPU does.

use thalweg_driver::{DevicePointer, HostFault, HostLaunch};
use thalweg_ir::{DType, Element, bf16, f16};

use super::{DecoderAddresses, DecoderLaunch, DecoderLayers, LayerAddresses};
use crate::matmul::few_rows::{FewRows, gelu};

pub(super) fn run(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at, layers) = DecoderLaunch::unpack(launch.arguments)
        .ok_or_else(|| HostFault("layers of a decoder: the arguments are not in its layout".to_owned()))?;
    match sizes.dtype {
        DType::F16 => run_typed::<f16>(launch, &sizes, at, &layers),
        DType::Bf16 => run_typed::<bf16>(launch, &sizes, at, &layers),
        other => Err(HostFault(format!("layers of a decoder: there is none of {other}"))),
    }
}

/// The weight and the bias of a product or of a norm; no bias is an empty one.
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
        let bias = if bias.address() == 0 { &[] } else { launch.read(bias, rows as usize)? };
        Ok(Self { weight, bias })
    }

    /// Returns the product with a row, before rounding.
    fn multiply(&self, row: &[T]) -> Vec<f32> {
        let row: Vec<f32> = row.iter().map(|x| x.to_f64() as f32).collect();
        let lines = self.weight.chunks_exact(row.len()).enumerate();
        let bias = |at: usize| self.bias.get(at).map_or(0.0, |bias| bias.to_f64() as f32);
        lines.map(|(at, line)| dot(line, &row) + bias(at)).collect()
    }
}

/// Returns the sum of products, in lanes that a processor's vectors have.
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

fn run_typed<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &DecoderLayers,
    at: DecoderAddresses,
    layers: &[LayerAddresses],
) -> Result<(), HostFault> {
    let DecoderAddresses { result, position, exchange, .. } = at;
    let position = launch.read::<i64>(position, 1)?[0];
    let mut row = input_row::<T>(launch, sizes, position, &at)?;
    for layer_at in layers {
        layer::<T>(launch, sizes, position, (layer_at, &at), &mut row)?;
    }
    // The exchange between blocks is not zero after a launch.
    launch.write::<u32>(exchange, sizes.exchange_bytes() as usize / 4)?.fill(u32::MAX);
    launch.write::<T>(result, sizes.features as usize)?.copy_from_slice(&rounded::<T>(&row));
    Ok(())
}

/// Returns the input row; NaN for a token or a position that is out of range.
fn input_row<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &DecoderLayers,
    position: i64,
    at: &DecoderAddresses,
) -> Result<Vec<f32>, HostFault> {
    let features = sizes.features as usize;
    let wide = |row: &[T]| row.iter().map(|x| x.to_f64() as f32).collect::<Vec<f32>>();
    if sizes.vocabulary == 0 {
        return Ok(wide(launch.read::<T>(at.row, features)?));
    }
    let [token_at, positions_at] = at.embedded;
    let token = launch.read::<i64>(token_at, 1)?[0];
    let tokens = launch.read::<T>(at.row, sizes.vocabulary as usize * features)?;
    let row_of = |table: &[T], row: i64| {
        let row = usize::try_from(row).ok().and_then(|row| table.chunks_exact(features).nth(row))?;
        Some(wide(row))
    };
    let is_in = u64::try_from(position).is_ok_and(|position| position < sizes.context);
    let (Some(token), true) = (row_of(tokens, token), is_in) else { return Ok(vec![f32::NAN; features]) };
    if positions_at.address() == 0 {
        return Ok(token);
    }
    let positions = launch.read::<T>(positions_at, sizes.context as usize * features)?;
    let Some(position) = row_of(positions, position) else { return Ok(vec![f32::NAN; features]) };
    let sum: Vec<f32> = token.iter().zip(&position).map(|(a, b)| a + b).collect();
    Ok(wide(&rounded::<T>(&sum)))
}

/// Rotates heads side by side by the angles of a position; an out-of-range position gets the angles of the first.
fn turn<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &DecoderLayers,
    at: &DecoderAddresses,
    position: i64,
    heads: &mut [T],
) -> Result<(), HostFault> {
    let half = sizes.width as usize / 2;
    let place = usize::try_from(position).ok().filter(|&place| place < sizes.context as usize).unwrap_or(0);
    let tables = at.rotations.map(|table| launch.read::<f32>(table, sizes.context as usize * half));
    let [cosines, sines] = tables;
    let (cosines, sines) = (&cosines?[place * half..][..half], &sines?[place * half..][..half]);
    for head in heads.chunks_exact_mut(2 * half) {
        let (near, far) = head.split_at_mut(half);
        for ((near, far), (cosine, sine)) in near.iter_mut().zip(far).zip(cosines.iter().zip(sines)) {
            let (a, b) = (near.to_f64() as f32, far.to_f64() as f32);
            *near = T::from_f64(f64::from(a * cosine - b * sine));
            *far = T::from_f64(f64::from(b * cosine + a * sine));
        }
    }
    Ok(())
}

/// Returns the activation of hidden features.
fn activated(sizes: &DecoderLayers, mut hidden: Vec<f32>) -> Vec<f32> {
    if !sizes.gated {
        return hidden.into_iter().map(gelu).collect();
    }
    let by = hidden.split_off(sizes.hidden as usize);
    hidden.into_iter().zip(by).map(|(gate, by)| gate / (1.0 + (-gate).exp()) * by).collect()
}

/// Applies a layer to the row.
fn layer<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &DecoderLayers,
    position: i64,
    (at, all): (&LayerAddresses, &DecoderAddresses),
    row: &mut [f32],
) -> Result<(), HostFault> {
    let eps = f32::from_bits(sizes.eps_bits);
    let normal = |at, row: &[f32]| {
        let norm = Affine::<T>::read(launch, at, [sizes.features, 1])?;
        Ok::<Vec<T>, HostFault>(FewRows::normalized(row, [norm.weight, norm.bias], eps))
    };
    let shapes = sizes.products();
    let product =
        |which: usize| Affine::<T>::read(launch, at.products[which], [shapes[which].0, shapes[which].1]);
    let mut packed: Vec<T> = rounded(&product(0)?.multiply(&normal(at.norms[0], row)?));
    let (queries, keys) = ((sizes.heads * sizes.width) as usize, (sizes.key_heads * sizes.width) as usize);
    if sizes.turned {
        turn(launch, sizes, all, position, &mut packed[..queries + keys])?;
    }
    let (query, rest) = packed.split_at(queries);
    let (key, value) = rest.split_at(keys);
    let caches = [
        launch.write::<T>(at.caches[0], sizes.cached() as usize)?,
        launch.write::<T>(at.caches[1], sizes.cached() as usize)?,
    ];
    let mut mixed = vec![T::from_f64(0.0); queries];
    sizes.attention().run_appending(query, [key, value], position, caches, &[], &mut mixed);
    let add = |row: &mut [f32], sums: Vec<f32>| row.iter_mut().zip(sums).for_each(|(x, sum)| *x += sum);
    add(row, product(1)?.multiply(&mixed));
    let hidden = activated(sizes, product(2)?.multiply(&normal(at.norms[1], row)?));
    add(row, product(3)?.multiply(&rounded::<T>(&hidden)));
    Ok(())
}
