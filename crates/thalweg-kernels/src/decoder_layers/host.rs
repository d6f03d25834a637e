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

/// The weight and the bias of a product or of a norm.
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

    /// Returns the product with a row, before rounding.
    fn multiply(&self, row: &[T]) -> Vec<f32> {
        let row: Vec<f32> = row.iter().map(|x| x.to_f64() as f32).collect();
        let lines = self.weight.chunks_exact(row.len());
        lines.zip(self.bias).map(|(line, bias)| dot(line, &row) + bias.to_f64() as f32).collect()
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
        layer::<T>(launch, sizes, position, layer_at, &mut row)?;
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
    let positions = launch.read::<T>(positions_at, sizes.context as usize * features)?;
    let row_of = |table: &[T], row: i64| {
        let row = usize::try_from(row).ok().and_then(|row| table.chunks_exact(features).nth(row))?;
        Some(wide(row))
    };
    let (Some(token), Some(position)) = (row_of(tokens, token), row_of(positions, position)) else {
        return Ok(vec![f32::NAN; features]);
    };
    let sum: Vec<f32> = token.iter().zip(&position).map(|(a, b)| a + b).collect();
    Ok(wide(&rounded::<T>(&sum)))
}

/// Applies a layer to the row.
fn layer<T: Element>(
    launch: &HostLaunch<'_>,
    sizes: &DecoderLayers,
    position: i64,
    at: &LayerAddresses,
    row: &mut [f32],
) -> Result<(), HostFault> {
    let eps = f32::from_bits(sizes.eps_bits);
    let features = sizes.features as usize;
    let normal = |at, row: &[f32]| {
        let norm = Affine::<T>::read(launch, at, [sizes.features, 1])?;
        Ok::<Vec<T>, HostFault>(FewRows::normalized(row, [norm.weight, norm.bias], eps))
    };
    let shapes = DecoderLayers::products(sizes.features, sizes.hidden);
    let product =
        |which: usize| Affine::<T>::read(launch, at.products[which], [shapes[which].0, shapes[which].1]);
    let packed: Vec<T> = rounded(&product(0)?.multiply(&normal(at.norms[0], row)?));
    let [query, key, value] = [0, 1, 2].map(|part| &packed[part * features..][..features]);
    let caches = [
        launch.write::<T>(at.caches[0], sizes.cached() as usize)?,
        launch.write::<T>(at.caches[1], sizes.cached() as usize)?,
    ];
    let mut mixed = vec![T::from_f64(0.0); features];
    sizes.attention().run_appending(query, [key, value], position, caches, &[], &mut mixed);
    let add = |row: &mut [f32], sums: Vec<f32>| row.iter_mut().zip(sums).for_each(|(x, sum)| *x += sum);
    add(row, product(1)?.multiply(&mixed));
    let hidden = product(2)?.multiply(&normal(at.norms[1], row)?);
    let hidden: Vec<f32> = hidden.into_iter().map(gelu).collect();
    add(row, product(3)?.multiply(&rounded::<T>(&hidden)));
    Ok(())
}
