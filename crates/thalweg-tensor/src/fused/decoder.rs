//! All layers of a decoder for one token in one kernel, where there is no gradient: see [`thalweg_kernels::decoder_layers`].
//! `functional::decoder_layers` tries this first.

use std::ops::Range;
use std::panic::Location;

use thalweg_ir::DType;
use thalweg_kernels::Placed;
use thalweg_kernels::decoder_layers::{
    DecoderAddresses, DecoderLaunch, DecoderLayers, LayerAddresses, MOST_LAYERS,
};
use thalweg_kernels::next_token::{NextToken, NextTokenAddresses, NextTokenLaunch};
use thalweg_runtime::{Device, DevicePointer, OutOfRangeReport, RangeOf, Result};

use super::NormLinear;
use crate::autocast::is_taken_as_it_is;
use crate::caller::label_at;
use crate::tensor::Tensor;

/// The tensors of a layer in GPT-2's form: `x += out(attention(qkv(norm(x))))`, `x += contract(gelu(expand(norm(x))))`.
#[derive(Clone, Copy, Debug)]
pub struct DecoderLayer<'t> {
    /// Weight and bias of the layer norms before attention and before the two products after it, (features) each.
    pub norms: [[&'t Tensor; 2]; 2],
    /// Weight (out, in) and bias (out) of the products: to queries, keys and values (3 · features); from heads (features); to hidden features; back.
    pub products: [[&'t Tensor; 2]; 4],
    /// Keys and values so far, (1, heads, context, features per head). The call writes the new ones at the position.
    pub caches: [&'t Tensor; 2],
}

impl<'t> DecoderLayer<'t> {
    /// Returns all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &'t Tensor> {
        let pairs = self.norms.into_iter().chain(self.products).chain([self.caches]);
        pairs.flatten()
    }

    /// Returns whether the shapes fit those of the first layer: caches of this shape, this number of features per row and of
    /// hidden features.
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

/// The input row of the layers.
#[derive(Clone, Copy, Debug)]
pub enum DecoderInput<'t> {
    /// The row itself, (1, features).
    Row(&'t Tensor),
    /// The token's row of a table (tokens, features), plus the position's row of another table (context, features). The token is
    /// one int64 in device memory. A token or position out of range results in NaN.
    Embedded {
        /// The table of tokens.
        tokens: &'t Tensor,
        /// The token.
        token: &'t Tensor,
        /// The table of positions, with as many rows as the caches have positions.
        positions: &'t Tensor,
    },
}

impl<'t> DecoderInput<'t> {
    /// Returns the row, or the table of tokens.
    pub fn first(&self) -> &'t Tensor {
        match *self {
            Self::Row(row) => row,
            Self::Embedded { tokens, .. } => tokens,
        }
    }

    /// Returns the tensors of features.
    fn tensors(&self) -> impl Iterator<Item = &'t Tensor> {
        let second = match *self {
            Self::Row(_) => None,
            Self::Embedded { positions, .. } => Some(positions),
        };
        std::iter::once(self.first()).chain(second)
    }

    /// Returns the number of features and of rows of the token table, 0 rows for [`Row`](Self::Row). Returns `None` if shapes and
    /// dtypes do not fit.
    fn sizes(&self, context: usize) -> Option<(usize, usize)> {
        match *self {
            Self::Row(row) => match *row.shape() {
                [1, features] => Some((features, 0)),
                _ => None,
            },
            Self::Embedded { tokens, token, positions } => match *tokens.shape() {
                [rows @ 1..=usize::MAX, features]
                    if positions.shape() == [context, features] && is_number(token) =>
                {
                    Some((features, rows))
                }
                _ => None,
            },
        }
    }
}

/// Returns whether a tensor is one int64.
fn is_number(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::I64 && tensor.elements() == 1
}

/// The options of a call of layers.
#[derive(Clone, Copy, Debug)]
pub struct DecoderOptions<'t> {
    /// The number that norms add to a variance.
    pub eps: f64,
    /// Memory through which blocks exchange results, made by [`exchange_for`]. Only calls with these layers may use it. Without
    /// it each call allocates such memory and fills it with zeros first.
    pub exchange: Option<&'t Tensor>,
}

/// Returns memory, filled with zeros, through which the blocks of calls of these layers exchange results. Returns `None` if the
/// layers are not computed by one kernel.
///
/// # Errors
/// Those of the allocation.
pub fn exchange_for(input: DecoderInput<'_>, layers: &[DecoderLayer<'_>]) -> Result<Option<Tensor>> {
    let device = input.first().device();
    let Some(sizes) = sizes(device, input, layers, 0.0) else { return Ok(None) };
    let launches = layers.len().div_ceil(MOST_LAYERS);
    Tensor::zeros(&[launches, sizes.exchange_bytes() as usize / 4], DType::I32, device).map(Some)
}

/// Returns the sizes of a launch; `None` if one kernel cannot compute these layers on this device.
fn sizes(
    device: &Device,
    input: DecoderInput<'_>,
    layers: &[DecoderLayer<'_>],
    eps: f64,
) -> Option<DecoderLayers> {
    let properties = device.properties();
    let first = layers.first()?;
    let &[1, heads, context, width] = first.caches[0].shape() else { return None };
    let (features, vocabulary) = input.sizes(context)?;
    let dtype = input.first().dtype();
    let hidden = first.products[2][1].elements();
    let fits = properties.compute_capability.major >= 9
        && context > 0
        && heads * width == features
        && layers.iter().all(|layer| layer.fits(first.caches[0].shape(), features, hidden));
    if !fits {
        return None;
    }
    let [features, hidden, heads, context] = [features, hidden, heads, context].map(|extent| extent as u64);
    // A host function has no blocks: the simulator accepts the sizes that an H200 accepts.
    let processors = if device.is_simulated() { 132 } else { u64::from(properties.multi_processor_count) };
    let blocks = DecoderLayers::blocks_for(dtype, [features, hidden, heads], processors)?;
    let eps_bits = (eps as f32).to_bits();
    Some(DecoderLayers {
        layers: 0,
        features,
        hidden,
        heads,
        context,
        vocabulary: vocabulary as u64,
        eps_bits,
        dtype,
        blocks,
    })
}

/// Returns the address range of a tensor's bytes.
fn range(tensor: &Tensor) -> Range<u64> {
    let start = tensor.pointer().address();
    start..start + (tensor.layout().span() * tensor.dtype().size_bytes()) as u64
}

/// Returns whether the caches, which the launch writes while blocks read the rest, share no byte with each other or with other
/// tensors.
fn are_apart<'t>(caches: &[Range<u64>], others: impl IntoIterator<Item = &'t Tensor>) -> bool {
    let is_apart = |own: &Range<u64>, caches: &[Range<u64>]| {
        caches.iter().all(|cache| own.end <= cache.start || cache.end <= own.start)
    };
    others.into_iter().all(|tensor| is_apart(&range(tensor), caches))
        && (1..caches.len()).all(|at| is_apart(&caches[at], &caches[..at]))
}

/// Computes layers on a row (1, features), and writes the token's keys and values at its position (one int64) into their caches.
/// Returns `None` if one kernel cannot: if a gradient is required, for dtypes other than float16 and bfloat16, for weights that
/// do not fit into the shared memory of the blocks, on GPUs before compute capability 9.0, and on GPUs that cannot run all blocks
/// at once. Asynchronous. A position out of range writes nothing.
///
/// # Errors
/// Those of the allocation and the launch.
pub fn fused_decoder_layers(
    input: DecoderInput<'_>,
    position: &Tensor,
    layers: &[DecoderLayer<'_>],
    options: DecoderOptions<'_>,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let (device, dtype) = (input.first().device(), input.first().dtype());
    let is_plain = |tensor: &Tensor| {
        is_taken_as_it_is(tensor, dtype, device)
            && tensor.is_contiguous()
            && tensor.pointer().address().is_multiple_of(16)
    };
    let mut all = layers.iter().flat_map(DecoderLayer::tensors).chain(input.tensors());
    if !is_number(position) || position.device() != device || !all.all(is_plain) {
        return Ok(None);
    }
    let Some(sizes) = sizes(device, input, layers, options.eps) else { return Ok(None) };
    let caches: Vec<_> = layers.iter().flat_map(|layer| layer.caches.map(range)).collect();
    let others = layers.iter().flat_map(|layer| layer.norms.into_iter().chain(layer.products).flatten());
    if !are_apart(&caches, others.chain(input.tensors()).chain([position])) {
        return Ok(None);
    }
    let (label, stream) = (label_at("decoder_layers", location), device.current_stream());
    let null = DevicePointer::new(0);
    let embedded = match input {
        DecoderInput::Row(_) => [null; 2],
        DecoderInput::Embedded { token, positions, .. } => [token.pointer(), positions.pointer()],
    };
    let mut row: Option<Tensor> = None;
    for (number, layers) in layers.chunks(MOST_LAYERS).enumerate() {
        let result = Tensor::empty_on(&[1, sizes.features as usize], dtype, &stream, label)?;
        let exchange = match options.exchange {
            Some(exchange) if DecoderLayers::keeps_exchange(layers.len()) => exchange.select(0, number)?,
            _ => Tensor::zeros(&[sizes.exchange_bytes() as usize / 4], DType::I32, device)?,
        };
        let at = DecoderAddresses {
            row: row.as_ref().unwrap_or_else(|| input.first()).pointer(),
            result: result.pointer(),
            position: position.pointer(),
            exchange: exchange.pointer(),
            embedded: if number == 0 { embedded } else { [null; 2] },
        };
        let sizes = DecoderLayers { vocabulary: if number == 0 { sizes.vocabulary } else { 0 }, ..sizes };
        let addresses = layers.iter().map(DecoderLayer::addresses).collect();
        match stream.launch_native(&DecoderLaunch::new(sizes, at, addresses), label) {
            // A cluster runs in one group of multiprocessors, and no device property reports the size of these groups.
            Err(error) if number == 0 && error.is_launch_too_large() => return Ok(None),
            launched => launched?,
        }
        layers.iter().flat_map(|layer| layer.caches).for_each(Tensor::bump_version);
        row = Some(result);
    }
    Ok(row)
}

/// The state of a decoder that chooses its next token: int64 numbers in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DecoderState<'t> {
    /// The token to be read next, one number.
    pub token: &'t Tensor,
    /// Its position, one number.
    pub position: &'t Tensor,
    /// The tokens so far, each at its position (context).
    pub history: &'t Tensor,
    /// Two numbers, initially zeros, through which the blocks synchronise; only calls with this state may use them.
    pub barrier: &'t Tensor,
}

impl<'t> DecoderState<'t> {
    fn tensors(&self) -> [&'t Tensor; 4] {
        [self.token, self.position, self.history, self.barrier]
    }
}

/// Makes the likeliest token the next one: `token = argmax(norm(input) · weightᵀ)`, `position += 1`, `history[position] = token`,
/// in one kernel. Returns `false`, with nothing done, if one kernel cannot compute it for these tensors. Input (1, features),
/// `parts` without bias, GELU and addend, all in float16 or bfloat16 with a multiple of 32 features up to 4,096. A position past
/// the end of the history is reported at the next synchronization. Asynchronous.
///
/// # Errors
/// Those of the launch.
pub fn fused_next_token(
    input: &Tensor,
    parts: &NormLinear<'_>,
    state: DecoderState<'_>,
    location: &'static Location<'static>,
) -> Result<bool> {
    let NormLinear { norm, eps, weight, bias, gelu, addend } = *parts;
    let (device, dtype) = (input.device(), input.dtype());
    let (&[1, features], &[count, width]) = (input.shape(), weight.shape()) else { return Ok(false) };
    let is_plain = |tensor: &&Tensor| is_taken_as_it_is(tensor, dtype, device) && tensor.is_contiguous();
    let is_state =
        |tensor: &Tensor| tensor.dtype() == DType::I64 && tensor.device() == device && tensor.is_contiguous();
    let fits = bias.is_none()
        && addend.is_none()
        && !gelu
        && width == features
        && norm.iter().all(|part| part.shape() == [features])
        && [input, weight, norm[0], norm[1]].iter().all(is_plain)
        && NextToken::takes(dtype, count as u64, features as u64)
        && weight.pointer().address().is_multiple_of(16)
        && device.has_tensor_cores()
        && state.tensors().into_iter().all(is_state)
        && [state.token, state.position].into_iter().all(is_number)
        && state.history.rank() == 1
        && state.barrier.elements() == 2;
    if !fits {
        return Ok(false);
    }
    let sizes = NextToken {
        count: count as u64,
        context: state.history.elements() as u64,
        features: features as u64,
        eps_bits: u64::from((eps as f32).to_bits()),
        dtype,
    };
    let processors = u64::from(device.properties().multi_processor_count);
    let at = NextTokenAddresses {
        row: input.pointer(),
        weight: weight.pointer(),
        norm: norm.map(Tensor::pointer),
        token: state.token.pointer(),
        position: state.position.pointer(),
        history: state.history.pointer(),
        meeting: state.barrier.pointer(),
    };
    let label = label_at("next_token", location);
    let _report = OutOfRangeReport::of("next_token", RangeOf::Dimension(0));
    let kernel = NextTokenLaunch { sizes, processors };
    device.current_stream().launch_native(&Placed { kernel, at }, label)?;
    state.tensors().into_iter().for_each(Tensor::bump_version);
    Ok(true)
}
