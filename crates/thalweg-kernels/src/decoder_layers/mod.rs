//! [`DecoderLayers`]: all layers of a decoder for one token, in one kernel whose blocks wait for each other.
//!
//! A layer is `x += out(attention(qkv(norm(x))))`, `x += contract(act(expand(norm(x))))`, with a cache of keys and values to which
//! the token's own are first added. Norms are layer norms or, without a bias, root-mean-square norms; `act` is GELU by its tanh
//! approximation, or a gate by SiLU, whose rows come before those that it gates; heads may share keys; queries and keys may be
//! turned by the position's angles. One token reads each weight once, so a layer of 14 MB takes an H100 about 4 us. In that time, one kernel per product would have to begin
//! and end four times.
//!
//! A block stays on its multiprocessor for all layers, and has some rows of each of the four matrices. Weights come into its
//! shared memory while the results that they are multiplied by are still on their way. There are two kernels ([`Method`]):
//!
//! **Held.** Of layers in GPT-2's form, a block holds all of its rows of a layer. A separate warp brings them
//! into shared memory (`cp.async.bulk`) while the previous layer is computed. The other warps share the terms of these rows: each
//! loads its part of them into registers, then waits for its part of the row that they are multiplied by (`mma`, sixteen rows at
//! a time). Each head is computed by a cluster of eight blocks. A block holds one eighth of the head's query, key and value features, and
//! one eighth of its keys. Within the cluster, the query and each warp's result for eight keys at a time go from shared memory to
//! shared memory (`st.async`, with an mbarrier that counts the bytes), which takes one fifth of the time of a transfer through
//! the L2.
//!
//! **Streamed.** Layers of any size and form. A block has eight rows of a matrix at a time, whose terms its warps share. The
//! weights of a warp over all products and layers are one sequence of pieces, known from the beginning. Each lane copies its own
//! next pieces into its own places in shared memory (`cp.async`), about 180 KB for each block, across the ends of products and
//! layers: the memory is busy while blocks wait for each other. A head's keys are shared by as many blocks as there are for each
//! head, in parts of at least 128 keys; the block of the first part puts the results together.
//!
//! Other results go to all blocks. Each 32 bits are stored together with a tag in one store of 8 bytes, so that a thread that
//! finds the tag has the value, and no fence is needed. A slot is reused one layer later. By then every block that reads it has
//! read it: each has since contributed to a row that the writer waited for. In the held kernel the tag is the number of the
//! layer, and every block has a row of every matrix except the first (`DecoderLayers::held_by`). In the streamed one it is
//! the number of the layer since the memory was filled with zeros, which the launch itself counts there.
//!
//! The launch is cooperative: blocks that wait for each other must all run. The source is printed for the sizes of a model.
//!
//! The row is rounded to the dtype after each norm, attention and activation; queries, keys and values are rounded before and
//! after they are turned. The sum of the
//! layers, scores, weights and products are f32. The host function rounds at the same places.

mod host;

use thalweg_driver::{Access, DevicePointer, LaunchMode};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, Argument, arguments};
use crate::native::{Accesses, Native, NativeKernel, Words, native};
use crate::one_query::{OneQuery, Steps};
use crate::source::Source;

/// The dtypes for which there are kernels.
pub const DTYPES: [DType; 2] = [DType::F16, DType::Bf16];

/// The most layers of a launch: their addresses are its arguments.
pub const MOST_LAYERS: usize = 32;

/// The shared memory of a block of compute capability 9.0, in bytes.
const MOST_SHARED_BYTES: u64 = 227 << 10;

/// The number of threads of the held kernel that compute; and the number of threads that load weights.
const THREADS: u64 = 384;
const BRINGING: u64 = 32;

const WARPS: u64 = THREADS / 32;

/// The possible numbers of blocks of a cluster, which computes one head: eight, or four if there are many heads.
const CLUSTERS: [u64; 2] = [8, 4];

/// The number of multiprocessors that get no block of clusters. A cluster must fit one group of multiprocessors, and groups have
/// 16 or 18 (an H200's 132 have room for 15 clusters of eight or 30 of four).
const SPARE: u64 = 16;

/// The number of warps of a block of the streamed kernel.
const STREAMING_WARPS: u64 = 16;

/// The bytes of a piece of weights for each thread of such a block, how many of them are awaited together, and the most that are
/// under way.
const PIECE_BYTES: u64 = STREAMING_WARPS * 32 * 16;
const BATCH: u64 = 4;
const MOST_PIECES: u64 = 24;

/// The most blocks that share the keys of a head.
const MOST_PARTS: u64 = 16;

/// The number of words before the layers' addresses.
const HEAD_WORDS: usize = 13;

/// The number of addresses of a layer.
const LAYER_WORDS: usize = 14;

/// The kernel of a launch, with its number of blocks. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Method {
    /// Each block holds its weights of a layer in shared memory.
    Held(u64),
    /// Weights stream through the shared memory of the blocks.
    Streamed(u64),
}

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DecoderLayers {
    /// The number of layers, at most [`MOST_LAYERS`].
    pub layers: u64,
    /// The number of features of the row: a multiple of 32.
    pub features: u64,
    /// The number of features between the two products after attention: a multiple of 32.
    pub hidden: u64,
    /// The number of heads.
    pub heads: u64,
    /// The number of heads of keys and values, a divisor of `heads`.
    pub key_heads: u64,
    /// The number of features of a head.
    pub width: u64,
    /// The number of keys that a cache holds, and of rows of the tables of positions and of rotations.
    pub context: u64,
    /// The number of rows of the table of tokens; 0 if the row itself is passed.
    pub vocabulary: u64,
    /// The bits of the number that is added to a variance or a mean square.
    pub eps_bits: u32,
    /// The dtype of weights, rows and caches: float16 or bfloat16.
    pub dtype: DType,
    /// Whether hidden features are gated by SiLU, not GELU of the product.
    pub gated: bool,
    /// Whether norms are layer norms, with a bias, not root-mean-square norms.
    pub centred: bool,
    /// Whether queries and keys are turned by the position's angles.
    pub turned: bool,
    /// The kernel, as [`method_for`](Self::method_for) returns it.
    pub method: Method,
}

/// The addresses of a layer's weights: each norm's weight and bias; the products' in order (queries, keys and values; out;
/// expand; contract); and the caches of keys and values (heads, context, features of a head). Null for an absent bias.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerAddresses {
    /// Weight and bias of the norms before attention and before the two products after it.
    pub norms: [[DevicePointer; 2]; 2],
    /// Weight (out, in) and bias (out) of the products.
    pub products: [[DevicePointer; 2]; 4],
    /// The caches of keys and values.
    pub caches: [DevicePointer; 2],
}

arguments! { LayerAddresses { norms, products, caches } }

impl DecoderLayers {
    /// Returns the kernel for these sizes on a GPU with this many multiprocessors: weights are held if each block can hold its
    /// own, the layers have GPT-2's form, and each product has a bias. Returns `None` if there is no kernel for the sizes.
    #[must_use]
    pub fn method_for(&self, has_biases: bool, multiprocessors: u64) -> Option<Method> {
        let Self { features, hidden, heads, key_heads, width, dtype, gated, centred, turned, .. } = *self;
        let is_gpt2 = has_biases
            && centred
            && !gated
            && !turned
            && heads == key_heads
            && heads.checked_mul(width) == Some(features);
        let held =
            if is_gpt2 { Self::held_by(dtype, [features, hidden, heads], multiprocessors) } else { None };
        let streamed = Method::Streamed(multiprocessors);
        let takes = multiprocessors > 0 && Self { method: streamed, ..*self }.is_streamed();
        held.map(Method::Held).or(takes.then_some(streamed))
    }

    /// Returns whether the streamed kernel takes the sizes.
    fn is_streamed(&self) -> bool {
        let Self { features, hidden, heads, key_heads, width, dtype, .. } = *self;
        DTYPES.contains(&dtype)
            && (1..=8192).contains(&features)
            && (1..=1 << 15).contains(&hidden)
            && (1..=256).contains(&width)
            && (1..=1 << 11).contains(&heads)
            && key_heads > 0
            && heads.is_multiple_of(key_heads)
            && width.is_multiple_of(8)
            && [features, hidden, heads * width].iter().all(|extent| extent.is_multiple_of(32))
            && heads * width <= 1 << 14
            && self.pieces() >= 2 * BATCH
    }

    /// Returns the numbers of rows and terms of the four products.
    fn products(&self) -> [(u64, u64); 4] {
        let Self { features, hidden, heads, key_heads, width, gated, .. } = *self;
        let attended = heads * width;
        [
            (attended + 2 * key_heads * width, features),
            (features, attended),
            (hidden * (1 + u64::from(gated)), features),
            (features, hidden),
        ]
    }

    /// Returns the number of blocks of the streamed kernel that may share the keys of a head.
    fn parts(&self) -> u64 {
        (self.blocks() / self.heads).clamp(1, MOST_PARTS)
    }

    /// Returns the number of blocks.
    const fn blocks(&self) -> u64 {
        match self.method {
            Method::Held(blocks) | Method::Streamed(blocks) => blocks,
        }
    }

    /// Returns the bytes of shared memory of the streamed kernel without the pieces that are under way: at least those of `state`
    /// in the source, which asserts it.
    fn streamed_bytes(&self) -> u64 {
        let Self { features, hidden, heads, width, .. } = *self;
        let rounds = self.products().map(|(rows, _)| (rows / 8).div_ceil(self.blocks()));
        let sums = rounds.into_iter().max().unwrap_or(1) * (STREAMING_WARPS * 8 + 8) * 4;
        let of_heads = 6 * width + STREAMING_WARPS.max(self.parts()) * (4 * width + 8);
        let layers = (MOST_LAYERS * LAYER_WORDS * 8) as u64;
        2 * features.max(hidden).max(heads * width) + sums + of_heads + STREAMING_WARPS * 8 + layers + 256
    }

    /// Returns the number of pieces that a thread of the streamed kernel has under way.
    fn pieces(&self) -> u64 {
        let room = MOST_SHARED_BYTES.saturating_sub(self.streamed_bytes());
        (room / PIECE_BYTES / BATCH * BATCH).min(MOST_PIECES)
    }

    /// Returns the number of rows of a matrix that a block of the held kernel has, an even number.
    fn share(rows: u64, blocks: u64) -> u64 {
        (rows / 2).div_ceil(blocks) * 2
    }

    /// Returns the numbers of rows and terms of the four products in GPT-2's form.
    fn held_products(features: u64, hidden: u64) -> [(u64, u64); 4] {
        [(3 * features, features), (features, features), (hidden, features), (features, hidden)]
    }

    /// Returns the number of blocks of the held kernel on a GPU with this many multiprocessors, in clusters of eight or of four. It is
    /// the smallest number that covers all heads, holds a layer's weights in shared memory, and has a row of every matrix except
    /// the first for each block: fewer blocks read less of each other's results. Returns `None` if there is no kernel for the
    /// sizes, or no such number.
    fn held_by(dtype: DType, [features, hidden, heads]: [u64; 3], multiprocessors: u64) -> Option<u64> {
        let fits = DTYPES.contains(&dtype)
            && (1..=4096).contains(&features)
            && (1..=16384).contains(&hidden)
            && features.is_multiple_of(32)
            && hidden.is_multiple_of(32)
            && heads > 0
            && features.is_multiple_of(heads)
            && [16, 32, 64, 128].contains(&(features / heads));
        if !fits {
            return None;
        }
        let all_have_rows = |blocks: u64| {
            Self::held_products(features, hidden)[1..]
                .iter()
                .all(|&(rows, _)| rows.div_ceil(Self::share(rows, blocks)) == blocks)
        };
        let is_held = |blocks: u64| Self::held_bytes(features, hidden, heads, blocks) <= MOST_SHARED_BYTES;
        let room = multiprocessors.saturating_sub(SPARE);
        CLUSTERS.into_iter().find_map(|cluster| {
            let mut all = (heads..=room / cluster).map(|clusters| clusters * cluster);
            all.find(|&blocks| {
                Self::cluster(heads, blocks) == cluster && all_have_rows(blocks) && is_held(blocks)
            })
        })
    }

    /// Returns the number of blocks of a cluster.
    const fn cluster(heads: u64, blocks: u64) -> u64 {
        let [large, small] = CLUSTERS;
        if blocks >= heads * large { large } else { small }
    }

    /// Returns the number of slots in shared memory, each for eight keys and values per warp.
    const fn slots(width: u64) -> u64 {
        if width > 64 { 1 } else { 2 }
    }

    /// Returns the bytes of shared memory of the held kernel: at least those of `state` in the source, which asserts it.
    fn held_bytes(features: u64, hidden: u64, heads: u64, blocks: u64) -> u64 {
        let (width, cluster) = (features / heads, Self::cluster(heads, blocks));
        let [_, others @ ..] =
            Self::held_products(features, hidden).map(|(rows, terms)| (Self::share(rows, blocks), terms));
        let products: Vec<_> = std::iter::once((3 * width / cluster, features)).chain(others).collect();
        let stride =
            |terms: u64| terms * 2 / 128 * 128 + if (terms * 2).is_multiple_of(128) { 64 } else { 192 };
        let weights =
            |&(rows, terms): &(u64, u64)| (rows.div_ceil(8) * 8 * stride(terms)).next_multiple_of(128);
        let most_rows = products.iter().map(|&(rows, _)| rows).max().unwrap_or(0);
        let slots = Self::slots(width) * 2 * (8 * WARPS * width * 2);
        let row_and_parts = 2 * features.max(hidden) + 2 * most_rows * WARPS * 4;
        let of_head = 6 * width + cluster * WARPS * (width / cluster * 4 + 8);
        let norms_and_biases = 8 * features + 6 * width + 6 * most_rows;
        let layers = (MOST_LAYERS * LAYER_WORDS * 8) as u64;
        let all = [slots, row_and_parts, of_head, norms_and_biases, layers, 1024];
        products.iter().map(weights).sum::<u64>() + all.iter().sum::<u64>()
    }

    /// Returns whether a launch of `layers` layers may reuse the exchange as a previous launch of the same number of layers left
    /// it: that launch's tags differ from the tags that this one waits for first. (In the held kernel, results that are passed
    /// between layers end with the tag before the last.)
    #[must_use]
    pub const fn keeps_exchange(&self, layers: usize) -> bool {
        matches!(self.method, Method::Streamed(_)) || layers > 2
    }

    /// Returns the bytes of the exchange through which blocks pass results.
    #[must_use]
    pub fn exchange_bytes(&self) -> u64 {
        let Self { features, hidden, heads, width, .. } = *self;
        match self.method {
            Method::Held(_) => 4 * (5 * features + hidden),
            Method::Streamed(_) => {
                let [(packed, _), ..] = self.products();
                let partial = heads * self.parts() * (width / 2 + 1) * 4;
                4 * (4 + 4 * features + packed + heads * width + hidden + partial)
            }
        }
    }

    /// Returns the bits of the factor of the scores, 1/√features of a head.
    fn scale_bits(&self) -> u32 {
        (1.0 / (self.width as f32).sqrt()).to_bits()
    }

    /// Returns the attention of a layer, with the query of the projection, whose key and value are added to the caches.
    fn attention(&self) -> OneQuery {
        let width = self.width;
        let projected = Steps { batch: 0, head: width, key: 0 };
        let cached = Steps { batch: 0, head: self.context * width, key: width };
        OneQuery {
            batch: 1,
            heads: self.heads,
            kv_heads: self.key_heads,
            keys: self.context,
            features: width,
            scale_bits: self.scale_bits(),
            dtype: self.dtype,
            query: projected,
            key: cached,
            value: cached,
            mask: None,
            append: Some([projected; 2]),
        }
    }

    /// Returns the number of elements of a cache.
    fn cached(&self) -> u64 {
        self.key_heads * self.width * self.context
    }

    fn name(&self) -> String {
        let Self { features, hidden, heads, key_heads, width, dtype, .. } = self;
        match self.method {
            Method::Held(blocks) => format!("decoder_layers_{dtype}_{features}_{hidden}_{heads}_{blocks}"),
            Method::Streamed(blocks) => {
                let form = u8::from(self.gated) | u8::from(self.centred) << 1 | u8::from(self.turned) << 2;
                format!(
                    "streamed_layers_{dtype}_{features}_{hidden}_{heads}_{key_heads}_{width}_{form}_{blocks}"
                )
            }
        }
    }

    fn print(&self) -> String {
        let Self { features, hidden, heads, dtype, .. } = *self;
        let source = Source::new(&self.name())
            .elements(dtype)
            .define("FEATURES", features)
            .define("HIDDEN", hidden)
            .define("HEADS", heads)
            .define("WIDTH", self.width)
            .define("BLOCKS", self.blocks())
            .define("LAYERS", MOST_LAYERS)
            .define("SHARED_BYTES", self.shared_bytes());
        match self.method {
            Method::Held(blocks) => source
                .define("CLUSTER", Self::cluster(heads, blocks))
                .define("THREADS", THREADS)
                .define("SLOTS", Self::slots(self.width))
                .print(include_str!("held.cu")),
            Method::Streamed(_) => source
                .define("KEY_HEADS", self.key_heads)
                .flag("GATED", self.gated)
                .flag("CENTRED", self.centred)
                .flag("TURNED", self.turned)
                .define("WARPS", STREAMING_WARPS)
                .define("PARTS", self.parts())
                .define("DEPTH", self.pieces())
                .print(include_str!("streamed.cu")),
        }
    }

    /// Returns the bytes of a block's shared memory.
    fn shared_bytes(&self) -> u64 {
        match self.method {
            Method::Held(blocks) => Self::held_bytes(self.features, self.hidden, self.heads, blocks),
            Method::Streamed(_) => self.streamed_bytes() + self.pieces() * PIECE_BYTES,
        }
    }

    /// Returns the sizes as two words.
    fn pack(&self) -> [u64; 2] {
        let Self { features, hidden, heads, key_heads, width, dtype, .. } = *self;
        let is_streamed = matches!(self.method, Method::Streamed(_));
        let flags = [self.gated, self.centred, self.turned, is_streamed].map(u64::from);
        let flags = flags.into_iter().enumerate().fold(0, |all, (at, flag)| all | flag << at);
        [
            features | hidden << 16 | heads << 32 | key_heads << 48,
            width | self.blocks() << 16 | arguments::number_of(dtype) << 32 | flags << 40,
        ]
    }
}

/// Returns name and source of the kernels for GPT-2 with 124 million parameters on GPUs with at least 112 multiprocessors, which
/// a bundle contains, and of streamed ones of either form; others are compiled where they are used.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    let gpt2 = |dtype| DecoderLayers {
        layers: 1,
        features: 768,
        hidden: 3072,
        heads: 12,
        key_heads: 12,
        width: 64,
        context: 1,
        vocabulary: 0,
        eps_bits: 0,
        dtype,
        gated: false,
        centred: true,
        turned: false,
        method: Method::Held(96),
    };
    let streamed = move |dtype| DecoderLayers { method: Method::Streamed(132), ..gpt2(dtype) };
    let llama = move |dtype| DecoderLayers {
        features: 2048,
        hidden: 5632,
        heads: 32,
        key_heads: 4,
        gated: true,
        centred: false,
        turned: true,
        ..streamed(dtype)
    };
    DTYPES
        .into_iter()
        .flat_map(move |dtype| [gpt2(dtype), streamed(dtype), llama(dtype)])
        .map(|sizes| (sizes.name(), sizes.print()))
}

/// The addresses at which the operands of a launch begin, except those of the layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecoderAddresses {
    /// The row (features), or the table of tokens (vocabulary, features).
    pub row: DevicePointer,
    /// The result (features).
    pub result: DevicePointer,
    /// The position, one int64.
    pub position: DevicePointer,
    /// The exchange through which blocks pass results, [`exchange_bytes`](DecoderLayers::exchange_bytes) bytes: zeros, or the
    /// contents that a launch of the same number of layers left, if [`DecoderLayers::keeps_exchange`] allows it.
    pub exchange: DevicePointer,
    /// The token, one int64, and the table of positions (context, features); null if the row itself is passed, or if positions are
    /// not embedded.
    pub embedded: [DevicePointer; 2],
    /// Cosines and sines of the angles, f32 (context, half the features of a head); null if nothing is turned.
    pub rotations: [DevicePointer; 2],
}

arguments! { DecoderAddresses { row, result, position, exchange, embedded, rotations } }

/// A launch: the sizes, the addresses of the operands, and the layers.
#[derive(Clone, Debug)]
struct DecoderLaunch {
    sizes: DecoderLayers,
    name: String,
    at: DecoderAddresses,
    layers: Vec<LayerAddresses>,
}

impl DecoderLaunch {
    /// Creates the launch of layers; the number of layers is that of the addresses.
    fn new(sizes: DecoderLayers, at: DecoderAddresses, layers: Vec<LayerAddresses>) -> Self {
        let sizes = DecoderLayers { layers: layers.len() as u64, ..sizes };
        Self { name: sizes.name(), sizes, at, layers }
    }

    /// Reads the arguments of a launch. Returns `None` if the bytes do not have this layout.
    fn unpack(bytes: &[u8]) -> Option<(DecoderLayers, DecoderAddresses, Vec<LayerAddresses>)> {
        let words: [u64; HEAD_WORDS + 2 + MOST_LAYERS * LAYER_WORDS] = arguments::words(bytes)?;
        let mut head = words.iter();
        let at = DecoderAddresses::read(&mut head)?;
        let &[layers, context, _, eps, vocabulary, ..] = head.as_slice() else { return None };
        let (addresses, sizes) = words[HEAD_WORDS..].split_at(MOST_LAYERS * LAYER_WORDS);
        let [first, second] = *sizes else { return None };
        let count = usize::try_from(layers).ok().filter(|&count| count <= MOST_LAYERS)?;
        let [features, hidden, heads, key_heads] = [0, 16, 32, 48].map(|at| first >> at & 0xffff);
        let [width, blocks] = [0, 16].map(|at| second >> at & 0xffff);
        let [gated, centred, turned, is_streamed] = [40, 41, 42, 43].map(|at| second >> at & 1 != 0);
        let sizes = DecoderLayers {
            layers,
            features,
            hidden,
            heads,
            key_heads,
            width,
            context,
            vocabulary,
            eps_bits: u32::try_from(eps).ok()?,
            dtype: arguments::dtype_of(second >> 32 & 0xff)?,
            gated,
            centred,
            turned,
            method: if is_streamed { Method::Streamed(blocks) } else { Method::Held(blocks) },
        };
        let mut addresses = addresses.iter();
        let layers = (0..count).map(|_| LayerAddresses::read(&mut addresses)).collect::<Option<_>>()?;
        Some((sizes, at, layers))
    }
}

/// Operands: the addresses that layers share, and those of each layer; there are as many layers as addresses of layers.
impl Native<(DecoderAddresses, Vec<LayerAddresses>)> for DecoderLayers {
    fn launches(
        self,
        (at, layers): (DecoderAddresses, Vec<LayerAddresses>),
        _: DevicePointer,
    ) -> impl Iterator<Item = impl NativeKernel> {
        std::iter::once(DecoderLaunch::new(self, at, layers))
    }
}

impl NativeKernel for DecoderLaunch {
    native! { self: &self.name, self.sizes.print(), host::run }

    fn check(&self) -> Result<(), Fault> {
        let DecoderLayers { context, turned, centred, method, .. } = self.sizes;
        let fault = |why: &str| Err(Fault::new(format!("layers of a decoder: {why}")));
        let multiprocessors = match method {
            Method::Held(blocks) => blocks + SPARE,
            Method::Streamed(blocks) => blocks,
        };
        let mut biases =
            self.layers.iter().flat_map(|layer| layer.products.map(|[_, bias]| bias.address() != 0));
        let is_held = matches!(method, Method::Held(_));
        let found = match is_held {
            true => self.sizes.method_for(biases.all(|has| has), multiprocessors),
            false => self.sizes.is_streamed().then_some(method),
        };
        if found != Some(method) {
            return fault(
                "it takes float16 or bfloat16, features and heads together in multiples of 32, heads of 16 to 256 features, and rows that fit into shared memory",
            );
        }
        if self.layers.is_empty() || self.layers.len() > MOST_LAYERS || context == 0 || context >= 1 << 31 {
            return fault("a launch has 1 to 32 layers, and a cache 1 to 2³¹ - 1 keys");
        }
        let DecoderAddresses { row, result, exchange, embedded: [token, positions], rotations, .. } = self.at;
        if (self.sizes.vocabulary == 0) != (token.address() == 0) {
            return fault("a token is given with the table that it is a row of");
        }
        let has_norms =
            |layer: &LayerAddresses| layer.norms.iter().all(|[_, bias]| (bias.address() != 0) == centred);
        if rotations.iter().any(|at| (at.address() != 0) != turned) || !self.layers.iter().all(has_norms) {
            return fault(
                "angles are given where heads are turned, and norms have biases where they are centred",
            );
        }
        let others = [row, result, exchange, positions].into_iter().chain(rotations);
        let mut all: Words = others.map(|at| at.address()).collect();
        self.layers.iter().for_each(|layer| layer.write(&mut all));
        match all.iter().all(|at| at.is_multiple_of(16)) {
            true => Ok(()),
            false => fault("rows, weights and caches lie on multiples of 16 bytes"),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let (blocks, threads) = match self.sizes.method {
            Method::Held(blocks) => (blocks, THREADS + BRINGING),
            Method::Streamed(blocks) => (blocks, 32 * STREAMING_WARPS),
        };
        Some(LaunchShape { grid: [blocks as u32, 1, 1], block: [threads as u32, 1, 1] })
    }

    fn shared_memory_bytes(&self) -> u32 {
        self.sizes.shared_bytes() as u32
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Cooperative
    }

    fn words(&self) -> Words {
        let DecoderLayers { layers, context, vocabulary, eps_bits, .. } = self.sizes;
        let mut words = Words::new();
        self.at.write(&mut words);
        words.extend([layers, context, u64::from(self.sizes.scale_bits()), u64::from(eps_bits), vocabulary]);
        self.layers.iter().for_each(|layer| layer.write(&mut words));
        words.resize(HEAD_WORDS + MOST_LAYERS * LAYER_WORDS, 0);
        // The kernel's source contains these numbers.
        words.extend(self.sizes.pack());
        words
    }

    fn accesses(&self) -> Accesses {
        let sizes = &self.sizes;
        let size = sizes.dtype.size_bytes() as u64;
        let DecoderAddresses { row, result, position, exchange, embedded: [token, positions], rotations } =
            self.at;
        let mut accesses = Accesses::from_iter([
            Access::read(row, sizes.vocabulary.max(1) * sizes.features * size),
            Access::write(result, sizes.features * size),
            Access::read(position, 8),
            Access::read_write(exchange, sizes.exchange_bytes()),
        ]);
        // An operand that is absent has no bytes.
        let read =
            |at: DevicePointer, bytes: u64| Access::read(at, if at.address() == 0 { 0 } else { bytes });
        accesses.extend([read(token, 8), read(positions, sizes.context * sizes.features * size)]);
        accesses.extend(rotations.map(|at| read(at, sizes.context * (sizes.width / 2) * 4)));
        for layer in &self.layers {
            accesses.extend(layer.norms.iter().flatten().map(|&at| read(at, sizes.features * size)));
            for (&[weight, bias], (rows, terms)) in layer.products.iter().zip(sizes.products()) {
                accesses.extend([read(weight, rows * terms * size), read(bias, rows * size)]);
            }
            accesses.extend(layer.caches.map(|at| Access::read_write(at, sizes.cached() * size)));
        }
        accesses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes in GPT-2's form.
    fn gpt2(features: u64, hidden: u64, heads: u64, dtype: DType) -> DecoderLayers {
        DecoderLayers {
            layers: 2,
            features,
            hidden,
            heads,
            key_heads: heads,
            width: features / heads.max(1),
            context: 40,
            vocabulary: 7,
            eps_bits: 1e-5_f32.to_bits(),
            dtype,
            gated: false,
            centred: true,
            turned: false,
            method: Method::Held(1),
        }
    }

    #[test]
    fn blocks_all_have_rows_of_every_matrix() {
        let held = |features, hidden, heads, most| {
            DecoderLayers::held_by(DType::Bf16, [features, hidden, heads], most)
        };
        assert_eq!(held(768, 3072, 12, 132), Some(96));
        assert_eq!(held(768, 3072, 12, 112), Some(96));
        assert_eq!(held(768, 3072, 12, 104), None, "too much for 88 blocks");
        // More clusters than heads, if fewer cannot hold the weights; and so many heads that clusters are small.
        assert_eq!(held(512, 2048, 4, 132), Some(64));
        assert_eq!(held(512, 2048, 16, 132), Some(64));
        assert_eq!([DecoderLayers::cluster(4, 64), DecoderLayers::cluster(16, 64)], [8, 4]);
        assert_eq!(DecoderLayers::held_by(DType::F32, [768, 3072, 12], 132), None);
        assert_eq!(held(768, 3072, 0, 132), None);
        for (features, hidden, heads, most) in [(64, 256, 2, 132), (96, 384, 3, 40), (256, 1024, 4, 132)] {
            let blocks = held(features, hidden, heads, most).unwrap();
            assert!((heads * 8..=most).contains(&blocks));
            for (rows, _) in DecoderLayers::held_products(features, hidden).into_iter().skip(1) {
                let share = DecoderLayers::share(rows, blocks);
                assert!(
                    (blocks - 1) * share < rows && rows <= blocks * share,
                    "{rows} rows over {blocks} blocks"
                );
            }
        }
    }

    #[test]
    fn no_size_between_others_is_without_a_kernel() {
        let method = |sizes: DecoderLayers| sizes.method_for(true, 132);
        assert_eq!(method(gpt2(768, 3072, 12, DType::Bf16)), Some(Method::Held(96)));
        for features in (256..=8192).step_by(32) {
            for (hidden, gated) in [(4 * features, false), (features * 11 / 4 / 32 * 32, true)] {
                let heads = features / 32;
                let sizes =
                    DecoderLayers { gated, turned: gated, ..gpt2(features, hidden, heads, DType::F16) };
                let found = method(sizes).unwrap_or_else(|| panic!("{features} features"));
                let bytes = DecoderLayers { method: found, ..sizes }.shared_bytes();
                assert!(bytes <= MOST_SHARED_BYTES, "{features} features: {bytes} bytes");
            }
        }
        // Another form of GPT-2's sizes, on any GPU.
        let biased = gpt2(768, 3072, 12, DType::Bf16);
        assert_eq!(biased.method_for(false, 132), Some(Method::Streamed(132)));
        assert_eq!(DecoderLayers { key_heads: 4, ..biased }.method_for(true, 60), Some(Method::Streamed(60)));
        assert_eq!(DecoderLayers { key_heads: 5, ..biased }.method_for(true, 60), None);
        assert_eq!(DecoderLayers { gated: true, dtype: DType::F32, ..biased }.method_for(true, 60), None);
    }

    #[test]
    fn arguments_are_read_back() {
        let sizes = gpt2(64, 256, 2, DType::F16);
        let streamed =
            DecoderLayers { key_heads: 1, gated: true, turned: true, method: Method::Streamed(9), ..sizes };
        let of = |word: u64| {
            let words: [u64; LAYER_WORDS] = std::array::from_fn(|at| 16 * (word + at as u64));
            LayerAddresses::read(&mut words.iter()).unwrap()
        };
        let [row, result, position, exchange, token, positions, cosines, sines] =
            [16, 32, 8, 64, 80, 96, 112, 128].map(DevicePointer::new);
        let (embedded, rotations) = ([token, positions], [cosines, sines]);
        let at = DecoderAddresses { row, result, position, exchange, embedded, rotations };
        for sizes in [sizes, streamed] {
            let launch = DecoderLaunch::new(sizes, at, vec![of(100), of(200)]);
            let bytes: Vec<u8> = launch.words().iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(DecoderLaunch::unpack(&bytes), Some((sizes, at, launch.layers)));
            assert_eq!(DecoderLaunch::unpack(&bytes[8..]), None);
        }
    }
}
