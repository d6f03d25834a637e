//! All layers of a decoder for one token in one kernel, where there is no gradient: see [`thalweg_kernels::decoder_layers`].
//! `functional::decoder_layers` tries this first.

use std::ops::Range;
use std::panic::Location;

use thalweg_ir::DType;
use thalweg_kernels::decoder_layers::{DecoderAddresses, DecoderLayers, LayerAddresses, MOST_LAYERS, Method};
use thalweg_kernels::next_token::{NextToken, NextTokenAddresses, NextTokenLaunch};
use thalweg_runtime::{Device, DevicePointer, OutOfRangeReport, RangeOf, Result};

use crate::autocast::is_taken_as_it_is;
use crate::caller::label_at;
use crate::native::launch;
use crate::tensor::Tensor;

/// A weight with its bias, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'t> {
    /// The weight.
    pub weight: &'t Tensor,
    /// The bias.
    pub bias: Option<&'t Tensor>,
}

impl<'t> Affine<'t> {
    /// Returns the tensors.
    fn tensors(self) -> impl Iterator<Item = &'t Tensor> {
        std::iter::once(self.weight).chain(self.bias)
    }

    /// Returns whether the weight has the shape, and the bias one element per row.
    fn has_shape(&self, shape: &[usize]) -> bool {
        self.weight.shape() == shape && self.bias.is_none_or(|bias| bias.shape() == &shape[..1])
    }

    fn addresses(self) -> [DevicePointer; 2] {
        [self.weight.pointer(), self.bias.map_or(DevicePointer::new(0), Tensor::pointer)]
    }
}

/// The tensors of a layer: `x += out(attention(qkv(norm(x))))`, `x += contract(act(expand(norm(x))))`. The shapes say the form: see
/// [`DecoderForm`].
#[derive(Clone, Copy, Debug)]
pub struct DecoderLayer<'t> {
    /// Weight and bias of the norms before attention and before the two products after it, (features) each. A layer norm has a
    /// bias, a root-mean-square norm has none.
    pub norms: [Affine<'t>; 2],
    /// Weight (out, in) and bias (out) of the products: to queries, keys and values (all heads' queries, then keys, then values);
    /// from heads (features); to hidden features; back. Of a gated layer the third has the rows of the gate, then those of what it gates.
    pub products: [Affine<'t>; 4],
    /// Keys and values so far, (1, heads of keys, context, features per head). The call writes the new ones at the position.
    pub caches: [&'t Tensor; 2],
}

/// The sizes and the form of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecoderForm {
    /// The number of features of the row.
    pub features: usize,
    /// The number of hidden features.
    pub hidden: usize,
    /// The number of heads of queries, and of keys and values.
    pub heads: [usize; 2],
    /// The number of features of a head.
    pub width: usize,
    /// The number of keys that a cache holds.
    pub context: usize,
    /// Whether hidden features are `silu(gate) · other`, not GELU by its tanh formula.
    pub gated: bool,
    /// Whether norms are layer norms, not root-mean-square norms.
    pub centred: bool,
}

impl<'t> DecoderLayer<'t> {
    /// Returns all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &'t Tensor> {
        let pairs = self.norms.into_iter().chain(self.products);
        pairs.flat_map(Affine::tensors).chain(self.caches)
    }

    /// Returns the form; `None` if the shapes do not fit each other.
    #[must_use]
    pub fn form(&self) -> Option<DecoderForm> {
        let &[1, key_heads, context, width] = self.caches[0].shape() else { return None };
        let (&[features, attended], &[_, hidden]) =
            (self.products[1].weight.shape(), self.products[3].weight.shape())
        else {
            return None;
        };
        let heads = attended.checked_div(width)?;
        let gated = self.products[2].weight.shape().first() != Some(&hidden);
        let expanded = if gated { 2 * hidden } else { hidden };
        let rows = [attended + 2 * key_heads * width, features, expanded, features];
        let terms = [features, attended, features, hidden];
        let centred = self.norms[0].bias.is_some();
        let fits = heads * width == attended
            && key_heads > 0
            && heads.is_multiple_of(key_heads)
            && self.norms.iter().all(|norm| norm.has_shape(&[features]) && norm.bias.is_some() == centred)
            && (self.products.iter().zip(rows.into_iter().zip(terms)))
                .all(|(product, (rows, terms))| product.has_shape(&[rows, terms]))
            && self.caches[1].shape() == self.caches[0].shape();
        let form =
            DecoderForm { features, hidden, heads: [heads, key_heads], width, context, gated, centred };
        fits.then_some(form)
    }

    fn addresses(&self) -> LayerAddresses {
        LayerAddresses {
            norms: self.norms.map(Affine::addresses),
            products: self.products.map(Affine::addresses),
            caches: self.caches.map(Tensor::pointer),
        }
    }
}

/// The input row of the layers.
#[derive(Clone, Copy, Debug)]
pub enum DecoderInput<'t> {
    /// The row itself, (1, features).
    Row(&'t Tensor),
    /// The token's row of a table (tokens, features), plus the position's row of another table (context, features), if there is
    /// one. The token is one int64 in device memory. A token or position out of range results in NaN.
    Embedded {
        /// The table of tokens.
        tokens: &'t Tensor,
        /// The token.
        token: &'t Tensor,
        /// The table of positions, with as many rows as the caches have positions.
        positions: Option<&'t Tensor>,
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
            Self::Embedded { positions, .. } => positions,
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
                    if is_number(token)
                        && positions.is_none_or(|table| table.shape() == [context, features]) =>
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
    /// The number that norms add to a variance or a mean square.
    pub eps: f64,
    /// Cosines and sines of the angles by which queries and keys are turned, float32 (context, features per head / 2): the first
    /// half of a head's features together with the second. Without them nothing is turned.
    pub rotations: Option<[&'t Tensor; 2]>,
    /// Memory through which blocks exchange results, made by [`exchange_for`]. Only calls with these layers may use it. Without
    /// it each call allocates such memory and fills it with zeros first.
    pub exchange: Option<&'t Tensor>,
}

/// Returns memory, filled with zeros, through which the blocks of calls of these layers exchange results. Returns `None` if the
/// layers are not computed by one kernel.
pub fn exchange_for(
    input: DecoderInput<'_>,
    layers: &[DecoderLayer<'_>],
    options: DecoderOptions<'_>,
) -> Result<Option<Tensor>> {
    let device = input.first().device();
    let Some(sizes) = sizes(device, input, layers, options) else { return Ok(None) };
    let launches = layers.len().div_ceil(MOST_LAYERS);
    Tensor::zeros(&[launches, sizes.exchange_bytes() as usize / 4], DType::I32, device).map(Some)
}

/// Returns the sizes of a launch; `None` if one kernel cannot compute these layers on this device.
fn sizes(
    device: &Device,
    input: DecoderInput<'_>,
    layers: &[DecoderLayer<'_>],
    options: DecoderOptions<'_>,
) -> Option<DecoderLayers> {
    let properties = device.properties();
    let form = layers.first()?.form()?;
    let DecoderForm { features, hidden, heads: [heads, key_heads], width, context, gated, centred } = form;
    let (of_input, vocabulary) = input.sizes(context)?;
    let are_tables = |tables: [&Tensor; 2]| {
        tables.iter().all(|table| table.shape() == [context, width / 2] && width.is_multiple_of(2))
    };
    let fits = properties.compute_capability.major >= 9
        && context > 0
        && of_input == features
        && options.rotations.is_none_or(are_tables)
        && layers.iter().all(|layer| layer.form() == Some(form));
    if !fits {
        return None;
    }
    // A host function has no blocks: the simulator accepts the sizes that an H200 accepts.
    let processors = if device.is_simulated() { 132 } else { u64::from(properties.multi_processor_count) };
    let sizes = DecoderLayers {
        layers: 0,
        features: features as u64,
        hidden: hidden as u64,
        heads: heads as u64,
        key_heads: key_heads as u64,
        width: width as u64,
        context: context as u64,
        vocabulary: vocabulary as u64,
        eps_bits: (options.eps as f32).to_bits(),
        dtype: input.first().dtype(),
        gated,
        centred,
        turned: options.rotations.is_some(),
        method: Method::Streamed(processors),
    };
    let has_biases = layers.iter().flat_map(|layer| layer.products).all(|product| product.bias.is_some());
    Some(DecoderLayers { method: sizes.method_for(has_biases, processors)?, ..sizes })
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
/// Returns `None` if one kernel cannot: if a gradient is required, for dtypes other than float16 and bfloat16, for sizes that no
/// kernel takes, on GPUs before compute capability 9.0, and on GPUs that cannot run all blocks at once. Asynchronous. A position
/// out of range writes nothing.
pub fn fused_decoder_layers(
    input: DecoderInput<'_>,
    position: &Tensor,
    layers: &[DecoderLayer<'_>],
    options: DecoderOptions<'_>,
    location: &'static Location<'static>,
) -> Result<Option<Tensor>> {
    let (device, dtype) = (input.first().device(), input.first().dtype());
    let is_plain = |tensor: &Tensor, dtype| {
        is_taken_as_it_is(tensor, dtype, device)
            && tensor.is_contiguous()
            && tensor.pointer().address().is_multiple_of(16)
    };
    let mut all = layers.iter().flat_map(DecoderLayer::tensors).chain(input.tensors());
    let mut rotations = options.rotations.into_iter().flatten();
    let are_plain =
        all.all(|tensor| is_plain(tensor, dtype)) && rotations.all(|table| is_plain(table, DType::F32));
    if !is_number(position) || position.device() != device || !are_plain {
        return Ok(None);
    }
    let Some(sizes) = sizes(device, input, layers, options) else { return Ok(None) };
    let caches: Vec<_> = layers.iter().flat_map(|layer| layer.caches.map(range)).collect();
    let others = layers
        .iter()
        .flat_map(|layer| layer.norms.into_iter().chain(layer.products))
        .flat_map(Affine::tensors);
    let tables = options.rotations.into_iter().flatten();
    if !are_apart(&caches, others.chain(input.tensors()).chain(tables).chain([position])) {
        return Ok(None);
    }
    let (label, stream) = (label_at("decoder_layers", location), device.current_stream());
    let null = DevicePointer::new(0);
    let embedded = match input {
        DecoderInput::Row(_) => [null; 2],
        DecoderInput::Embedded { token, positions, .. } => {
            [token.pointer(), positions.map_or(null, Tensor::pointer)]
        }
    };
    let mut row: Option<Tensor> = None;
    for (number, layers) in layers.chunks(MOST_LAYERS).enumerate() {
        let result = Tensor::empty_on(&[1, sizes.features as usize], dtype, &stream, label)?;
        let exchange = match options.exchange {
            Some(exchange) if sizes.keeps_exchange(layers.len()) => exchange.select(0, number)?,
            _ => Tensor::zeros(&[sizes.exchange_bytes() as usize / 4], DType::I32, device)?,
        };
        let at = DecoderAddresses {
            row: row.as_ref().unwrap_or_else(|| input.first()).pointer(),
            result: result.pointer(),
            position: position.pointer(),
            exchange: exchange.pointer(),
            embedded: if number == 0 { embedded } else { [null; 2] },
            rotations: options.rotations.map_or([null; 2], |tables| tables.map(Tensor::pointer)),
        };
        let sizes = DecoderLayers { vocabulary: if number == 0 { sizes.vocabulary } else { 0 }, ..sizes };
        let addresses = layers.iter().map(DecoderLayer::addresses).collect();
        match launch(sizes, (device, (at, addresses)), label) {
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

/// A norm and a product that scores tokens.
#[derive(Clone, Copy, Debug)]
pub struct DecoderHead<'t> {
    /// Weight and bias of the norm (features): a layer norm, or without a bias a root-mean-square norm.
    pub norm: Affine<'t>,
    /// The number that is added to a variance or a mean square.
    pub eps: f64,
    /// Weight (tokens, features) and bias of the product.
    pub product: Affine<'t>,
}

/// Makes the likeliest token the next one: `token = argmax(norm(input) · weightᵀ)`, `position += 1`, `history[position] = token`,
/// in one kernel. Returns `false`, with nothing done, if one kernel cannot compute it for these tensors. Input (1, features),
/// a product without bias, all in float16 or bfloat16 with a multiple of 32 features up to 4,096. A position past
/// the end of the history is reported at the next synchronization. Asynchronous.
pub fn fused_next_token(
    input: &Tensor,
    head: &DecoderHead<'_>,
    state: DecoderState<'_>,
    location: &'static Location<'static>,
) -> Result<bool> {
    let DecoderHead { norm, eps, product: Affine { weight, bias } } = *head;
    let (device, dtype) = (input.device(), input.dtype());
    let (&[1, features], &[count, width]) = (input.shape(), weight.shape()) else { return Ok(false) };
    let is_plain = |tensor: &Tensor| is_taken_as_it_is(tensor, dtype, device) && tensor.is_contiguous();
    let is_state =
        |tensor: &Tensor| tensor.dtype() == DType::I64 && tensor.device() == device && tensor.is_contiguous();
    let fits = bias.is_none()
        && width == features
        && norm.has_shape(&[features])
        && norm.tensors().chain([input, weight]).all(is_plain)
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
        norm: norm.addresses(),
        token: state.token.pointer(),
        position: state.position.pointer(),
        history: state.history.pointer(),
        meeting: state.barrier.pointer(),
    };
    let label = label_at("next_token", location);
    let _report = OutOfRangeReport::of("next_token", RangeOf::Dimension(0));
    let kernel = NextTokenLaunch { sizes, processors };
    launch(kernel, (device, at), label)?;
    state.tensors().into_iter().for_each(Tensor::bump_version);
    Ok(true)
}
