//! [`DecoderLayers`]: all layers of a decoder in GPT-2's form for one token, in one kernel whose blocks wait for each other.
//!
//! A layer is `x += out(attention(qkv(norm(x))))`, `x += contract(gelu(expand(norm(x))))`, with layer norms, a bias for each
//! product, GELU by its tanh approximation, and a cache of keys and values to which the token's own are first added. One token
//! reads each weight once, so a layer of 14 MB takes an H100 about 4 us. In that time, one kernel per product would have to begin
//! and end four times.
//!
//! A block stays on its multiprocessor for all layers. It has some rows of each of the four matrices. A separate warp brings them
//! into shared memory (`cp.async.bulk`) while the previous layer is computed. The other warps share the terms of these rows: each
//! loads its part of them into registers, then waits for its part of the row that they are multiplied by (`mma`, sixteen rows at
//! a time).
//!
//! Each head is computed by a cluster of eight blocks. A block holds one eighth of the head's query, key and value features, and
//! one eighth of its keys. Within the cluster, the query and each warp's result for eight keys at a time go from shared memory to
//! shared memory (`st.async`, with an mbarrier that counts the bytes), which takes one fifth of the time of a transfer through
//! the L2.
//!
//! The other three results of a layer, and the result of attention, go to all blocks. Each 32 bits are stored together with a
//! tag, the number of the layer, in one store of 8 bytes, so that a thread that finds the tag has the value, and no fence is
//! needed. A slot is reused one layer later. By then every block has read it: each has contributed to a row that the writer
//! waited for. That is why every block has a row of every matrix except the first ([`DecoderLayers::blocks_for`]).
//!
//! The launch is cooperative: blocks that wait for each other must all run. The source is printed for the sizes of a model.
//!
//! The row is rounded to the dtype after each norm, attention and GELU; keys and values are rounded in the cache. The sum of the
//! layers, scores, weights and products are f32. The host function rounds at the same places.

mod host;

use thalweg_driver::{Access, DevicePointer, LaunchMode};
use thalweg_ir::DType;
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;

use crate::arguments::{self, Argument, arguments};
use crate::native::{Accesses, NativeKernel, Words, native};
use crate::one_query::{OneQuery, Steps};
use crate::source::Source;

/// The dtypes for which there are kernels.
pub const DTYPES: [DType; 2] = [DType::F16, DType::Bf16];

/// The most layers of a launch: their addresses are its arguments.
pub const MOST_LAYERS: usize = 32;

/// The shared memory of a block of compute capability 9.0, in bytes.
const MOST_SHARED_BYTES: u64 = 227 << 10;

/// The number of threads that compute; below, of threads that bring weights.
const THREADS: u64 = 384;
const BRINGING: u64 = 32;

const WARPS: u64 = THREADS / 32;

/// The possible numbers of blocks of a cluster, which computes one head: eight, or four if there are many heads.
const CLUSTERS: [u64; 2] = [8, 4];

/// The number of multiprocessors that get no block. A cluster must fit one group of multiprocessors, and groups have 16 or 18 (an
/// H200's 132 have room for 15 clusters of eight or 30 of four).
const SPARE: u64 = 16;

/// The number of words before the layers' addresses.
const HEAD_WORDS: usize = 11;

/// The number of addresses of a layer.
const LAYER_WORDS: usize = 14;

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DecoderLayers {
    /// The number of layers, at most [`MOST_LAYERS`].
    pub layers: u64,
    /// The number of features of the row: a multiple of 32.
    pub features: u64,
    /// The number of features between the two products after attention: a multiple of 32.
    pub hidden: u64,
    /// The number of heads, each of 16, 32, 64 or 128 features.
    pub heads: u64,
    /// The number of keys that a cache holds, and of rows of the table of positions.
    pub context: u64,
    /// The number of rows of the table of tokens; 0 if the row itself is passed.
    pub vocabulary: u64,
    /// The bits of the number that is added to a variance.
    pub eps_bits: u32,
    /// The dtype of weights, rows and caches: float16 or bfloat16.
    pub dtype: DType,
    /// The number of blocks, as [`blocks_for`](Self::blocks_for) returns it.
    pub blocks: u64,
}

/// The addresses of a layer's weights: each norm's weight and bias; the products' in order (queries, keys and values; out;
/// expand; contract); and the caches of keys and values (heads, context, features of a head).
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
    /// Returns the numbers of rows and terms of the four products.
    fn products(features: u64, hidden: u64) -> [(u64, u64); 4] {
        [(3 * features, features), (features, features), (hidden, features), (features, hidden)]
    }

    /// Returns the number of rows of a matrix that a block has, an even number.
    fn share(rows: u64, blocks: u64) -> u64 {
        (rows / 2).div_ceil(blocks) * 2
    }

    /// Returns the number of blocks of a launch on a GPU with this many multiprocessors, in clusters of eight or of four. It is
    /// the smallest number that covers all heads, holds a layer's weights in shared memory, and has a row of every matrix except
    /// the first for each block: fewer blocks read less of each other's results. Returns `None` if there is no kernel for the
    /// sizes, or no such number.
    #[must_use]
    pub fn blocks_for(
        dtype: DType,
        [features, hidden, heads]: [u64; 3],
        multiprocessors: u64,
    ) -> Option<u64> {
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
            Self::products(features, hidden)[1..]
                .iter()
                .all(|&(rows, _)| rows.div_ceil(Self::share(rows, blocks)) == blocks)
        };
        let is_held = |blocks: u64| Self::shared_bytes(features, hidden, heads, blocks) <= MOST_SHARED_BYTES;
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

    /// Returns the bytes of a block's shared memory: at least those of `state` in the source, which asserts it.
    fn shared_bytes(features: u64, hidden: u64, heads: u64, blocks: u64) -> u64 {
        let (width, cluster) = (features / heads, Self::cluster(heads, blocks));
        let [_, others @ ..] =
            Self::products(features, hidden).map(|(rows, terms)| (Self::share(rows, blocks), terms));
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
    /// it: that launch's last tags differ from the tags that this one waits for first. (Results that are passed between layers
    /// end with the tag before the last.)
    #[must_use]
    pub const fn keeps_exchange(layers: usize) -> bool {
        layers > 2
    }

    /// Returns the bytes of the exchange through which blocks pass results.
    #[must_use]
    pub fn exchange_bytes(&self) -> u64 {
        4 * (5 * self.features + self.hidden)
    }

    /// Returns the bits of the factor of the scores, 1/√features of a head.
    fn scale_bits(&self) -> u32 {
        (1.0 / ((self.features / self.heads) as f32).sqrt()).to_bits()
    }

    /// Returns the attention of a layer, with the query of the projection, whose key and value are added to the caches.
    fn attention(&self) -> OneQuery {
        let width = self.features / self.heads;
        let projected = Steps { batch: 0, head: width, key: 0 };
        let cached = Steps { batch: 0, head: self.context * width, key: width };
        OneQuery {
            batch: 1,
            heads: self.heads,
            kv_heads: self.heads,
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
        self.features * self.context
    }

    fn name(&self) -> String {
        let Self { features, hidden, heads, blocks, dtype, .. } = self;
        format!("decoder_layers_{dtype}_{features}_{hidden}_{heads}_{blocks}")
    }

    fn print(&self) -> String {
        let Self { features, hidden, heads, blocks, dtype, .. } = *self;
        let width = features / heads;
        Source::new(&self.name())
            .elements(dtype)
            .define("FEATURES", features)
            .define("HIDDEN", hidden)
            .define("HEADS", heads)
            .define("WIDTH", width)
            .define("BLOCKS", blocks)
            .define("CLUSTER", Self::cluster(heads, blocks))
            .define("LAYERS", MOST_LAYERS)
            .define("SHARED_BYTES", Self::shared_bytes(features, hidden, heads, blocks))
            .define("THREADS", THREADS)
            .define("SLOTS", Self::slots(width))
            .print(include_str!("kernel.cu"))
    }
}

/// Returns name and source of the kernels for GPT-2 with 124 million parameters on GPUs with at least 112 multiprocessors, which
/// a bundle contains; others are compiled where they are used.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    DTYPES.into_iter().map(|dtype| {
        let sizes = DecoderLayers {
            layers: 1,
            features: 768,
            hidden: 3072,
            heads: 12,
            context: 1,
            vocabulary: 0,
            eps_bits: 0,
            dtype,
            blocks: 96,
        };
        (sizes.name(), sizes.print())
    })
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
    /// The token, one int64, and the table of positions (context, features); null if the row itself is passed.
    pub embedded: [DevicePointer; 2],
}

arguments! { DecoderAddresses { row, result, position, exchange, embedded } }

/// A launch: the sizes, the addresses of the operands, and the layers.
#[derive(Clone, Debug)]
pub struct DecoderLaunch {
    sizes: DecoderLayers,
    name: String,
    at: DecoderAddresses,
    layers: Vec<LayerAddresses>,
}

impl DecoderLaunch {
    /// Creates the launch of layers; the number of layers is that of the addresses.
    #[must_use]
    pub fn new(sizes: DecoderLayers, at: DecoderAddresses, layers: Vec<LayerAddresses>) -> Self {
        let sizes = DecoderLayers { layers: layers.len() as u64, ..sizes };
        Self { name: sizes.name(), sizes, at, layers }
    }

    /// Reads the arguments of a launch. Returns `None` if the bytes do not have this layout.
    fn unpack(bytes: &[u8]) -> Option<(DecoderLayers, DecoderAddresses, Vec<LayerAddresses>)> {
        let words: [u64; HEAD_WORDS + 1 + MOST_LAYERS * LAYER_WORDS] = arguments::words(bytes)?;
        let mut head = words.iter();
        let at = DecoderAddresses::read(&mut head)?;
        let &[layers, context, _, eps, vocabulary, ..] = head.as_slice() else { return None };
        let (addresses, sizes) = words[HEAD_WORDS..].split_at(MOST_LAYERS * LAYER_WORDS);
        let [packed] = *sizes else { return None };
        let count = usize::try_from(layers).ok().filter(|&count| count <= MOST_LAYERS)?;
        let sizes = DecoderLayers {
            layers,
            features: packed & 0xffff,
            hidden: packed >> 16 & 0xffff,
            heads: packed >> 32 & 0xffff,
            context,
            vocabulary,
            eps_bits: u32::try_from(eps).ok()?,
            dtype: arguments::dtype_of(packed >> 48 & 0xff)?,
            blocks: 1,
        };
        let mut addresses = addresses.iter();
        let layers = (0..count).map(|_| LayerAddresses::read(&mut addresses)).collect::<Option<_>>()?;
        Some((sizes, at, layers))
    }
}

impl NativeKernel for DecoderLaunch {
    native! { self: &self.name, self.sizes.print(), host::run }

    fn check(&self) -> Result<(), Fault> {
        let DecoderLayers { features, hidden, heads, context, dtype, blocks, .. } = self.sizes;
        let fault = |why: &str| Err(Fault::new(format!("layers of a decoder: {why}")));
        if DecoderLayers::blocks_for(dtype, [features, hidden, heads], blocks + SPARE) != Some(blocks) {
            return fault(
                "it takes float16 or bfloat16, features in multiples of 32, heads of 16, 32, 64 or 128, and weights that fit into shared memory",
            );
        }
        if self.layers.is_empty() || self.layers.len() > MOST_LAYERS || context == 0 || context >= 1 << 31 {
            return fault("a launch has 1 to 32 layers, and a cache 1 to 2³¹ - 1 keys");
        }
        let DecoderAddresses { row, result, exchange, embedded: [token, positions], .. } = self.at;
        if (self.sizes.vocabulary == 0) != (token.address() == 0) {
            return fault("a token is given with the table that it is a row of");
        }
        let mut all: Words = [row, result, exchange, positions].iter().map(|at| at.address()).collect();
        self.layers.iter().for_each(|layer| layer.write(&mut all));
        match all.iter().all(|at| at.is_multiple_of(16)) {
            true => Ok(()),
            false => fault("rows, weights and caches lie on multiples of 16 bytes"),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let threads = (THREADS + BRINGING) as u32;
        Some(LaunchShape { grid: [self.sizes.blocks as u32, 1, 1], block: [threads, 1, 1] })
    }

    fn shared_memory_bytes(&self) -> u32 {
        let DecoderLayers { features, hidden, heads, blocks, .. } = self.sizes;
        DecoderLayers::shared_bytes(features, hidden, heads, blocks) as u32
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Cooperative
    }

    fn words(&self) -> Words {
        let DecoderLayers { layers, features, hidden, heads, context, vocabulary, eps_bits, dtype, .. } =
            self.sizes;
        let mut words = Words::new();
        self.at.write(&mut words);
        words.extend([layers, context, u64::from(self.sizes.scale_bits()), u64::from(eps_bits), vocabulary]);
        self.layers.iter().for_each(|layer| layer.write(&mut words));
        words.resize(HEAD_WORDS + MOST_LAYERS * LAYER_WORDS, 0);
        // The kernel's source contains these numbers.
        words.push(features | hidden << 16 | heads << 32 | arguments::number_of(dtype) << 48);
        words
    }

    fn accesses(&self) -> Accesses {
        let sizes = &self.sizes;
        let size = sizes.dtype.size_bytes() as u64;
        let DecoderAddresses { row, result, position, exchange, embedded: [token, positions] } = self.at;
        let mut accesses = Accesses::from_iter([
            Access::read(row, sizes.vocabulary.max(1) * sizes.features * size),
            Access::write(result, sizes.features * size),
            Access::read(position, 8),
            Access::read_write(exchange, sizes.exchange_bytes()),
        ]);
        if sizes.vocabulary > 0 {
            accesses.push(Access::read(token, 8));
            accesses.push(Access::read(positions, sizes.context * sizes.features * size));
        }
        for layer in &self.layers {
            let norms = layer.norms.iter().flatten().map(|&at| Access::read(at, sizes.features * size));
            accesses.extend(norms);
            let products = DecoderLayers::products(sizes.features, sizes.hidden);
            for (&[weight, bias], (rows, terms)) in layer.products.iter().zip(products) {
                accesses.extend([Access::read(weight, rows * terms * size), Access::read(bias, rows * size)]);
            }
            accesses.extend(layer.caches.map(|at| Access::read_write(at, sizes.cached() * size)));
        }
        accesses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_all_have_rows_of_every_matrix() {
        let gpt2 = |processors| DecoderLayers::blocks_for(DType::Bf16, [768, 3072, 12], processors);
        assert_eq!(gpt2(132), Some(96));
        assert_eq!(gpt2(112), Some(96));
        assert_eq!(gpt2(104), None, "too much for 88 blocks");
        // More clusters than heads, if fewer cannot hold the weights; and so many heads that clusters are small.
        assert_eq!(DecoderLayers::blocks_for(DType::Bf16, [512, 2048, 4], 132), Some(64));
        assert_eq!(DecoderLayers::blocks_for(DType::Bf16, [512, 2048, 16], 132), Some(64));
        assert_eq!([DecoderLayers::cluster(4, 64), DecoderLayers::cluster(16, 64)], [8, 4]);
        assert_eq!(DecoderLayers::blocks_for(DType::F32, [768, 3072, 12], 132), None);
        assert_eq!(DecoderLayers::blocks_for(DType::F16, [768, 3072, 0], 132), None);
        for (features, hidden, heads, most) in [(64, 256, 2, 132), (96, 384, 3, 40), (256, 1024, 4, 132)] {
            let sizes = [features, hidden, heads];
            let blocks = DecoderLayers::blocks_for(DType::Bf16, sizes, most).unwrap();
            assert!((heads * 8..=most).contains(&blocks));
            for (rows, _) in DecoderLayers::products(features, hidden).into_iter().skip(1) {
                let share = DecoderLayers::share(rows, blocks);
                assert!(
                    (blocks - 1) * share < rows && rows <= blocks * share,
                    "{rows} rows over {blocks} blocks"
                );
            }
        }
    }

    #[test]
    fn arguments_are_read_back() {
        let sizes = DecoderLayers {
            layers: 2,
            features: 64,
            hidden: 256,
            heads: 2,
            context: 40,
            vocabulary: 7,
            eps_bits: 1e-5_f32.to_bits(),
            dtype: DType::F16,
            blocks: 1,
        };
        let of = |word: u64| {
            let words: [u64; LAYER_WORDS] = std::array::from_fn(|at| 16 * (word + at as u64));
            LayerAddresses::read(&mut words.iter()).unwrap()
        };
        let [row, result, position, exchange, token, positions] =
            [16, 32, 8, 64, 80, 96].map(DevicePointer::new);
        let at = DecoderAddresses { row, result, position, exchange, embedded: [token, positions] };
        let launch = DecoderLaunch::new(sizes, at, vec![of(100), of(200)]);
        let bytes: Vec<u8> = launch.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(DecoderLaunch::unpack(&bytes), Some((sizes, at, launch.layers)));
        assert_eq!(DecoderLaunch::unpack(&bytes[8..]), None);
    }
}
