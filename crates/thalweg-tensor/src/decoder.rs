//! All layers of a decoder for one token in one kernel, where there is no gradient: see [`thalweg_kernels::decoder_layers`].
//! `functional::decoder_layers` asks here first.

use std::ops::Range;
use std::panic::Location;

use thalweg_ir::DType;
use thalweg_kernels::decoder_layers::{DecoderLaunch, DecoderLayers, LayerAddresses, MOST_LAYERS};
use thalweg_runtime::{Device, Result};

use crate::autocast::dtype_in_lower;
use crate::autograd::is_grad_enabled;
use crate::caller::label_at;
use crate::tensor::Tensor;

/// The tensors of a layer in GPT-2's form: `x += out(attention(qkv(norm(x))))`, `x += contract(gelu(expand(norm(x))))`.
#[derive(Clone, Copy, Debug)]
pub struct DecoderLayer<'t> {
    /// Weight and bias of the layer norms before attention and before the two products behind it, (features) each.
    pub norms: [[&'t Tensor; 2]; 2],
    /// Weight (out, in) and bias (out) of the products: to queries, keys and values (3 · features); from heads (features); to hidden features; back.
    pub products: [[&'t Tensor; 2]; 4],
    /// Keys and values so far, (1, heads, context, features of a head), which are written at the position.
    pub caches: [&'t Tensor; 2],
}

impl<'t> DecoderLayer<'t> {
    /// Returns all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &'t Tensor> {
        let pairs = self.norms.into_iter().chain(self.products).chain([self.caches]);
        pairs.flatten()
    }

    /// Returns whether the shapes fit those of the first layer: caches of this shape, a row of so many features, and so many hidden ones.
    fn fits(&self, cache: &[usize], features: usize, hidden: usize) -> bool {
        let rows = [3 * features, features, hidden, features];
        let terms = [features, features, features, hidden];
        let has_shapes = (self.products.iter().zip(rows.into_iter().zip(terms)))
            .all(|([weight, bias], (rows, terms))| weight.shape() == [rows, terms] && bias.shape() == [rows]);
        has_shapes
            && self.norms.iter().flatten().all(|part| part.shape() == [features])
            && self.caches.iter().all(|part| part.shape() == cache)
    }

    fn addresses(&self) -> LayerAddresses {
        LayerAddresses {
            norms: self.norms.map(|pair| pair.map(Tensor::pointer)),
            products: self.products.map(|pair| pair.map(Tensor::pointer)),
            caches: self.caches.map(Tensor::pointer),
        }
    }
}

/// Returns the sizes of a launch; `None` if there is none for these layers on this device.
fn sizes(device: &Device, input: &Tensor, layers: &[DecoderLayer<'_>], eps: f64) -> Option<DecoderLayers> {
    let properties = device.properties();
    let first = layers.first()?;
    let (&[1, features], &[1, heads, context, width]) = (input.shape(), first.caches[0].shape()) else {
        return None;
    };
    let hidden = first.products[2][1].elements();
    let fits = properties.compute_capability.major >= 9
        && context > 0
        && heads * width == features
        && layers.iter().all(|layer| layer.fits(first.caches[0].shape(), features, hidden));
    if !fits {
        return None;
    }
    let [features, hidden, heads, context] = [features, hidden, heads, context].map(|extent| extent as u64);
    // A host function has no blocks: the simulator takes what an H100 takes.
    let processors = if device.is_simulated() { 132 } else { u64::from(properties.multi_processor_count) };
    let blocks = DecoderLayers::blocks_for(input.dtype(), [features, hidden, heads], processors)?;
    let eps_bits = (eps as f32).to_bits();
    Some(DecoderLayers {
        layers: 0,
        features,
        hidden,
        heads,
        context,
        eps_bits,
        dtype: input.dtype(),
        blocks,
    })
}

/// Returns the bytes of a tensor.
fn range(tensor: &Tensor) -> Range<u64> {
    let start = tensor.pointer().address();
    start..start + (tensor.layout().span() * tensor.dtype().size_bytes()) as u64
}

/// Returns whether the caches, which the launch writes while blocks read the rest, have no byte in common with each other and with other tensors.
fn are_apart<'t>(caches: &[Range<u64>], others: impl IntoIterator<Item = &'t Tensor>) -> bool {
    let is_apart = |own: &Range<u64>, caches: &[Range<u64>]| {
        caches.iter().all(|cache| own.end <= cache.start || cache.end <= own.start)
    };
    others.into_iter().all(|tensor| is_apart(&range(tensor), caches))
        && (1..caches.len()).all(|at| is_apart(&caches[at], &caches[..at]))
}

/// Returns what layers make of a row (1, features), and writes the token's keys and values at its position (one int64) into their caches; `None` where
/// it is no kernel: where a gradient is wanted, for other dtypes than float16 and bfloat16, for weights that do not fit into the shared memory of all
/// multiprocessors together, on GPUs before compute capability 9.0. Asynchronous. A position out of range writes nothing.
///
/// # Errors
/// Those of the allocation and the launch.
pub fn fused_decoder_layers(
    input: &Tensor,
    position: &Tensor,
    layers: &[DecoderLayer<'_>],
    eps: f64,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let device = input.device();
    let is_plain = |tensor: &Tensor| {
        tensor.dtype() == input.dtype()
            && dtype_in_lower(tensor) == input.dtype()
            && tensor.device() == device
            && !(is_grad_enabled() && tensor.requires_grad())
            && tensor.is_contiguous()
            && tensor.pointer().address().is_multiple_of(16)
    };
    let all = || layers.iter().flat_map(DecoderLayer::tensors).chain([input]);
    let is_position =
        position.dtype() == DType::I64 && position.elements() == 1 && position.device() == device;
    if !is_position || !all().all(is_plain) {
        return Ok(None);
    }
    let Some(sizes) = sizes(device, input, layers, eps) else { return Ok(None) };
    let caches: Vec<_> = layers.iter().flat_map(|layer| layer.caches.map(range)).collect();
    let others = layers.iter().flat_map(|layer| layer.norms.into_iter().chain(layer.products).flatten());
    if !are_apart(&caches, others.chain([input, position])) {
        return Ok(None);
    }
    let (label, stream) = (label_at("decoder_layers", location), device.current_stream());
    let mut row = input.detach();
    for layers in layers.chunks(MOST_LAYERS) {
        let result = Tensor::empty_on(input.shape(), input.dtype(), &stream, label)?;
        let words = sizes.exchange_bytes() as usize / 4;
        let exchange = Tensor::zeros(&[words], DType::I32, device)?;
        let at = [&row, &result, position, &exchange].map(Tensor::pointer);
        let addresses = layers.iter().map(DecoderLayer::addresses).collect();
        stream.launch_native(&DecoderLaunch::new(sizes, at, addresses), label)?;
        layers.iter().flat_map(|layer| layer.caches).for_each(Tensor::bump_version);
        row = result;
    }
    Ok(Some(row))
}
