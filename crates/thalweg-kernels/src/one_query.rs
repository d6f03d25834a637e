//! [`OneQuery`]: attention of one query per head over many keys, such as a step of a decoder over its cache.
//!
//! A block handles one head of the keys, and its warps share the keys. Each keeps the sum of weighted values and the greatest score so
//! far; at the end these sums are combined, in an order that depends only on the sizes. Keys that the mask excludes are not read.
//! - In 16 bits a warp multiplies eight keys at a time by tensor cores, by up to [`GROUP`] heads of the query that share them. Weights are
//!   rounded to 16 bits before they are multiplied.
//! - In float32 a few neighbouring lanes, as many as read a key in loads of 16 bytes, compute a score of one head.
//!
//! With [an appended key and value](OneQuery::append) the keys are a cache: keys before the position, which is in device memory,
//! count, and those at the position are new. A thread reads new keys and values from their own memory and stores them into the
//! cache, so that nothing is read that another block of the launch writes.
//!
//! Scores, weights and sums are in f32; the result is rounded once. The host function computes in f64.

use thalweg_driver::{Access, DevicePointer, HostFault, HostLaunch, LaunchMode, Touch};
use thalweg_ir::cuda::LaunchShape;
use thalweg_ir::host::Fault;
use thalweg_ir::{DType, Element, bf16, f16};

use crate::arguments;
use crate::native::{Accesses, NativeKernel, Placed, Words, native};
use crate::source::Source;

/// The strides of an operand in elements, between items of the batch, heads and keys. Features are contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Steps {
    /// The distance from one item of the batch to the next.
    pub batch: u64,
    /// The distance from one head to the next.
    pub head: u64,
    /// The distance from one key to the next; unused for the query and the result.
    pub key: u64,
}

/// The sizes of a launch. See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OneQuery {
    /// The number of items of the batch.
    pub batch: u64,
    /// The number of heads of the query and of the result.
    pub heads: u64,
    /// The number of heads of keys and values; a divisor of `heads`.
    pub kv_heads: u64,
    /// The number of keys per head.
    pub keys: u64,
    /// The number of features of a head: a multiple of 16 bytes, at most 128.
    pub features: u64,
    /// The bits of the factor of the scores.
    pub scale_bits: u32,
    /// The dtype of query, keys, values and result: float32, float16 or bfloat16.
    pub dtype: DType,
    /// The strides of the query.
    pub query: Steps,
    /// The strides of the keys.
    pub key: Steps,
    /// The strides of the values.
    pub value: Steps,
    /// The strides of the mask, by heads of the query: truth values that state which keys count. `None` if all keys count.
    pub mask: Option<Steps>,
    /// The strides of a new key and a new value for each head of the keys. They are first written to keys and values at a
    /// position; only keys up to the position count. A position out of range writes nothing.
    pub append: Option<[Steps; 2]>,
}

/// The number of 8-byte words that [`OneQuery::pack`] writes.
pub const ARGUMENT_WORDS: usize = 30;

/// The dtypes for which there are kernels.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// The most features of a head.
pub const MOST_FEATURES: u64 = 128;

/// The possible numbers of lanes that share a key in float32.
const TEAMS: [u64; 3] = [8, 16, 32];

/// The possible numbers of features of a head that tensor cores multiply; the last of them are zeros if there are fewer.
const HEADS: [u64; 2] = [64, 128];

/// The most heads of the query that tensor cores multiply by a key together.
pub const GROUP: u64 = 4;

/// The addresses of query, keys, values, mask and result, and of the new key, the new value and its position (int64). Addresses
/// of absent operands are ignored.
pub type Addresses = [DevicePointer; 8];

impl OneQuery {
    /// Returns the number of elements that a thread loads at once.
    const fn width(dtype: DType) -> u64 {
        16 / dtype.size_bytes() as u64
    }

    /// Returns whether there is a kernel for heads with this many features.
    #[must_use]
    pub fn takes(dtype: DType, features: u64) -> bool {
        DTYPES.contains(&dtype)
            && (1..=MOST_FEATURES).contains(&features)
            && features.is_multiple_of(Self::width(dtype))
    }

    /// Returns the kernel.
    fn form(&self) -> Form {
        let way = match self.dtype {
            DType::F32 => {
                Way::Lanes((self.features / Self::width(self.dtype)).next_power_of_two().max(TEAMS[0]))
            }
            _ => Way::TensorCores(self.features.next_power_of_two().max(HEADS[0])),
        };
        Form { dtype: self.dtype, way, split: self.split() }
    }

    /// Returns the number of blocks, or of clusters of blocks.
    fn blocks(&self) -> u64 {
        match self.dtype {
            DType::F32 => self.batch * self.heads,
            _ => self.batch * self.kv_heads * (self.heads / self.kv_heads.max(1)).div_ceil(GROUP),
        }
    }

    /// Returns the number of blocks that share the keys of a head: as many as a GPU's 100 or so multiprocessors have room for at a time,
    /// since a block takes some microseconds even for a few keys.
    fn split(&self) -> u64 {
        let fits = |split: &u64| self.blocks() * split <= BLOCKS && self.keys >= split * LEAST_SHARE;
        let splits = if self.keys < LEAST_SPLIT { &[][..] } else { &SPLITS };
        splits.iter().copied().find(fits).unwrap_or(1)
    }

    fn span(&self, steps: &Steps, heads: u64, rows: u64, row: u64) -> u64 {
        if self.batch == 0 || heads == 0 || rows == 0 {
            return 0;
        }
        (self.batch - 1) * steps.batch + (heads - 1) * steps.head + (rows - 1) * steps.key + row
    }

    /// Returns the numbers of elements that query, keys, values, mask and result span, counted from their first.
    #[must_use]
    pub fn spans(&self) -> [u64; 5] {
        let features = self.features;
        [
            self.span(&self.query, self.heads, 1, features),
            self.span(&self.key, self.kv_heads, self.keys, features),
            self.span(&self.value, self.kv_heads, self.keys, features),
            self.mask.map_or(0, |mask| self.span(&mask, self.heads, self.keys, 1)),
            self.batch * self.heads * features,
        ]
    }

    /// Returns the numbers of elements that the new key and the new value span, counted from their first.
    fn new_spans(&self) -> [u64; 2] {
        self.append
            .map_or([0; 2], |steps| steps.map(|steps| self.span(&steps, self.kv_heads, 1, self.features)))
    }

    /// Returns the arguments of a launch as words: the addresses of query, keys, values, mask and result; the sizes; the scale's
    /// bits; the strides of query, key, value and mask; the dtype's index in [`DType::ALL`], with bit 8 set if there is a mask,
    /// and bit 9 if a key is appended; the addresses of the new key, the new value and the position; and the strides of the new
    /// key and value.
    #[must_use]
    pub fn pack(&self, at: [u64; 8]) -> [u64; ARGUMENT_WORDS] {
        let [query, key, value, mask, result, new_key, new_value, position] = at;
        let flags = arguments::number_of(self.dtype)
            | u64::from(self.mask.is_some()) << 8
            | u64::from(self.append.is_some()) << 9;
        let steps = self.mask.unwrap_or_default();
        let [key_steps, value_steps] = self.append.unwrap_or_default();
        [
            query,
            key,
            value,
            mask,
            result,
            self.batch,
            self.heads,
            self.kv_heads,
            self.keys,
            self.features,
            u64::from(self.scale_bits),
            self.query.batch,
            self.query.head,
            self.key.batch,
            self.key.head,
            self.key.key,
            self.value.batch,
            self.value.head,
            self.value.key,
            steps.batch,
            steps.head,
            steps.key,
            flags,
            new_key,
            new_value,
            position,
            key_steps.batch,
            key_steps.head,
            value_steps.batch,
            value_steps.head,
        ]
    }

    /// Reads the words that [`OneQuery::pack`] wrote, and returns the addresses as well. Returns `None` if the bytes do not have
    /// this layout.
    #[must_use]
    pub fn unpack(bytes: &[u8]) -> Option<(Self, [u64; 8])> {
        let words: [u64; ARGUMENT_WORDS] = arguments::words(bytes)?;
        let [query, key, value, mask, result, batch, heads, kv_heads, keys, features, scale, others @ ..] =
            words;
        let [qb, qh, kb, kh, kk, vb, vh, vk, mb, mh, mk, flags, others @ ..] = others;
        let [new_key, new_value, position, nkb, nkh, nvb, nvh] = others;
        let new = |batch, head| Steps { batch, head, key: 0 };
        let sizes = Self {
            batch,
            heads,
            kv_heads,
            keys,
            features,
            scale_bits: u32::try_from(scale).ok()?,
            dtype: arguments::dtype_of(flags & 0xff)?,
            query: Steps { batch: qb, head: qh, key: 0 },
            key: Steps { batch: kb, head: kh, key: kk },
            value: Steps { batch: vb, head: vh, key: vk },
            mask: (flags >> 8 & 1 == 1).then_some(Steps { batch: mb, head: mh, key: mk }),
            append: (flags >> 9 & 1 == 1).then_some([new(nkb, nkh), new(nvb, nvh)]),
        };
        let at = [query, key, value, mask, result, new_key, new_value, position];
        (flags >> 8 < 4).then_some((sizes, at))
    }

    /// Writes the new key or value into a cache at the position.
    fn store<T: Element>(&self, cache: &mut [T], steps: &Steps, new: &[T], from: &Steps, position: i64) {
        let Some(place) = u64::try_from(position).ok().filter(|&place| place < self.keys) else { return };
        let features = self.features as usize;
        for (item, head) in (0..self.batch).flat_map(|item| (0..self.kv_heads).map(move |head| (item, head)))
        {
            let to = (item * steps.batch + head * steps.head + place * steps.key) as usize;
            let from = (item * from.batch + head * from.head) as usize;
            cache[to..][..features].copy_from_slice(&new[from..][..features]);
        }
    }

    /// Stores a new key and a new value into keys and values at the position, and [runs](Self::run) over the keys up to that
    /// position.
    pub(crate) fn run_appending<T: Element>(
        &self,
        query: &[T],
        new: [&[T]; 2],
        position: i64,
        [keys, values]: [&mut [T]; 2],
        mask: &[u8],
        result: &mut [T],
    ) {
        let [key_steps, value_steps] = self.append.unwrap_or_default();
        self.store(keys, &self.key, new[0], &key_steps, position);
        self.store(values, &self.value, new[1], &value_steps, position);
        let seen = Self { keys: self.keys_up_to(position), ..*self };
        seen.run(query, [keys, values], mask, result);
    }

    /// Returns the number of keys up to and including a position.
    fn keys_up_to(&self, position: i64) -> u64 {
        u64::try_from(position.saturating_add(1)).unwrap_or(0).min(self.keys)
    }

    /// Runs the kernel on the host, in f64, without appending: `keys` is the number of keys.
    ///
    /// # Panics
    /// If an operand is shorter than its span.
    pub fn run<T: Element>(&self, query: &[T], [key, value]: [&[T]; 2], mask: &[u8], result: &mut [T]) {
        let scale = f64::from(f32::from_bits(self.scale_bits));
        let features = self.features as usize;
        let row = |elements: &'_ [T], start: u64| elements[start as usize..][..features].to_vec();
        let heads = (0..self.batch).flat_map(|item| (0..self.heads).map(move |head| (item, head)));
        for ((item, head), result) in heads.zip(result.chunks_exact_mut(features)) {
            let shared = head / (self.heads / self.kv_heads);
            let query = row(query, item * self.query.batch + head * self.query.head);
            let counts = |place: u64| {
                let at = |mask: Steps| item * mask.batch + head * mask.head + place * mask.key;
                self.mask.is_none_or(|steps| mask[at(steps) as usize] != 0)
            };
            let of = |elements: &[T], steps: &Steps, place: u64| {
                row(elements, item * steps.batch + shared * steps.head + place * steps.key)
            };
            let scores: Vec<(u64, f64)> = (0..self.keys)
                .filter(|&place| counts(place))
                .map(|place| {
                    let key = of(key, &self.key, place);
                    let terms = query.iter().zip(&key).map(|(q, k)| q.to_f64() * k.to_f64());
                    (place, scale * terms.sum::<f64>())
                })
                .collect();
            let greatest = scores.iter().fold(f64::NEG_INFINITY, |greatest, &(_, score)| greatest.max(score));
            let (mut total, mut sums) = (0.0, vec![0.0; features]);
            for (place, score) in scores {
                let weight = (score - greatest).exp();
                total += weight;
                let value = of(value, &self.value, place);
                sums.iter_mut().zip(&value).for_each(|(sum, value)| *sum += weight * value.to_f64());
            }
            let each = result.iter_mut().zip(sums);
            each.for_each(|(to, sum)| *to = T::from_f64(if total == 0.0 { 0.0 } else { sum / total }));
        }
    }
}

/// The possible numbers of blocks that share the keys of a head, on GPUs with clusters of blocks.
const SPLITS: [u64; 3] = [8, 4, 2];

/// The most blocks, if several share a head.
const BLOCKS: u64 = 128;

/// The fewest keys that several blocks share.
const LEAST_SPLIT: u64 = 256;

/// The fewest keys for each of the blocks that share a head.
const LEAST_SHARE: u64 = 32;

/// A way to compute scores and sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// With so many lanes for a key.
    Lanes(u64),
    /// With tensor cores, for at most so many features.
    TensorCores(u64),
}

/// A kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Form {
    /// The dtype of the operands.
    dtype: DType,
    /// The way in which a block computes.
    way: Way,
    /// The number of blocks that share the keys of a head.
    split: u64,
}

/// The names of a kernel with a head's keys in one block, and of those in which 2, 4 and 8 share them.
macro_rules! names {
    ($kernel:literal) => {
        [
            concat!("one_query_", $kernel),
            concat!("one_query_", $kernel, "_by_2"),
            concat!("one_query_", $kernel, "_by_4"),
            concat!("one_query_", $kernel, "_by_8"),
        ]
    };
}

impl Form {
    /// Returns every kernel.
    fn all() -> impl Iterator<Item = Self> {
        let lanes = TEAMS.map(|team| (DType::F32, Way::Lanes(team)));
        let of = |dtype: DType| HEADS.map(|features| (dtype, Way::TensorCores(features)));
        let all = lanes.into_iter().chain(of(DType::F16)).chain(of(DType::Bf16));
        all.flat_map(|(dtype, way)| [1, 2, 4, 8].map(|split| Self { dtype, way, split }))
    }

    /// Returns the number of threads of a block: as many as there are registers for.
    const fn threads(self) -> u32 {
        match self.way {
            Way::TensorCores(128) => 384,
            _ => 512,
        }
    }

    /// Returns the name of the entry point.
    ///
    /// # Panics
    /// If there is no such kernel.
    fn name(self) -> &'static str {
        let names = match (self.dtype, self.way) {
            (DType::F32, Way::Lanes(8)) => names!("float32_8"),
            (DType::F32, Way::Lanes(16)) => names!("float32_16"),
            (DType::F32, Way::Lanes(32)) => names!("float32_32"),
            (DType::F16, Way::TensorCores(64)) => names!("float16_64"),
            (DType::F16, Way::TensorCores(128)) => names!("float16_128"),
            (DType::Bf16, Way::TensorCores(64)) => names!("bfloat16_64"),
            (DType::Bf16, Way::TensorCores(128)) => names!("bfloat16_128"),
            other => panic!("attention of one query: there is no kernel for {other:?}"),
        };
        names[self.split.ilog2() as usize]
    }

    /// Returns the translation unit, to be compiled with [`OPTIONS`](thalweg_ir::cuda::OPTIONS). Its entry point takes the words of
    /// [`OneQuery::pack`] as one structure by value.
    fn print(self) -> String {
        let source = Source::new(self.name()).elements(self.dtype);
        let source = source.define("THREADS", self.threads()).define("SPLIT", self.split);
        match self.way {
            Way::Lanes(team) => source.define("TEAM", team).print(include_str!("one_query/lanes.cu")),
            Way::TensorCores(features) => source
                .define("HEAD", features)
                .define("GROUP", GROUP)
                .print(include_str!("one_query/tensor_cores.cu")),
        }
    }
}

/// Returns name and source of every kernel.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    Form::all().map(|form| (form.name().to_owned(), form.print()))
}

/// Operands: the addresses of query, keys, values, mask and result (contiguous: batch, heads, features).
impl NativeKernel for Placed<OneQuery, Addresses> {
    native! {
        self: self.kernel.form().name(), self.kernel.form().print(), run_on_host
    }

    fn check(&self) -> Result<(), Fault> {
        let sizes = &self.kernel;
        let fault = |why: &str| Err(Fault::new(format!("attention of one query: {why}")));
        if !OneQuery::takes(sizes.dtype, sizes.features) {
            return fault(
                "it takes float32, float16 or bfloat16, and up to 128 features in a multiple of 16 bytes",
            );
        }
        if sizes.kv_heads == 0 || !sizes.heads.is_multiple_of(sizes.kv_heads) || sizes.keys >= 1 << 31 {
            return fault(
                "heads of keys and values divide those of queries, and there are fewer than 2³¹ keys",
            );
        }
        let is_whole = |steps: &Steps| {
            [steps.batch, steps.head, steps.key]
                .iter()
                .all(|step| step.is_multiple_of(OneQuery::width(sizes.dtype)))
        };
        let [query, key, value, _, _, new_key, new_value, _] = self.at;
        let steps = [&sizes.query, &sizes.key, &sizes.value];
        let mut at = vec![query, key, value];
        at.extend(sizes.append.is_some().then_some([new_key, new_value]).into_iter().flatten());
        let is_aligned = at.iter().all(|at| at.address().is_multiple_of(16));
        match is_aligned && steps.into_iter().chain(sizes.append.iter().flatten()).all(is_whole) {
            true => Ok(()),
            false => fault("query, keys and values lie on multiples of 16 bytes, row by row"),
        }
    }

    fn launch_shape(&self) -> Option<LaunchShape> {
        let blocks = self.kernel.blocks();
        (blocks > 0).then(|| LaunchShape {
            grid: [blocks.min((1 << 31) - 1) as u32, self.kernel.split() as u32, 1],
            block: [self.kernel.form().threads(), 1, 1],
        })
    }

    fn mode(&self) -> LaunchMode {
        LaunchMode::Programmatic
    }

    fn words(&self) -> Words {
        self.kernel.pack(self.at.map(DevicePointer::address)).into_iter().collect()
    }

    fn accesses(&self) -> Accesses {
        let Self { kernel: sizes, at: [query, key, value, mask, result, new_key, new_value, position] } =
            self;
        let (size, spans) = (sizes.dtype.size_bytes() as u64, sizes.spans());
        let touch = |steps: &Steps, heads: u64, keys: u64, row: u64, size: u64| {
            let dimensions = [(sizes.batch, steps.batch), (heads, steps.head), (keys, steps.key), (row, 1)];
            Touch::of(dimensions.into_iter(), size)
        };
        let of_cache = |at: DevicePointer, steps: &Steps, span: u64| {
            let access = if sizes.append.is_some() { Access::read_write } else { Access::read };
            access(at, span * size).touching(touch(steps, sizes.kv_heads, sizes.keys, sizes.features, size))
        };
        let mut accesses = Accesses::from_iter([
            Access::read(*query, spans[0] * size).touching(touch(
                &sizes.query,
                sizes.heads,
                1,
                sizes.features,
                size,
            )),
            of_cache(*key, &sizes.key, spans[1]),
            of_cache(*value, &sizes.value, spans[2]),
            Access::write(*result, spans[4] * size),
        ]);
        if let Some(steps) = &sizes.mask {
            let touch = touch(steps, sizes.heads, sizes.keys, 1, 1);
            accesses.push(Access::read(*mask, spans[3]).touching(touch));
        }
        if let Some(steps) = &sizes.append {
            for ((at, steps), span) in [new_key, new_value].into_iter().zip(steps).zip(sizes.new_spans()) {
                let touch = touch(steps, sizes.kv_heads, 1, sizes.features, size);
                accesses.push(Access::read(*at, span * size).touching(touch));
            }
            accesses.push(Access::read(*position, size_of::<i64>() as u64));
        }
        accesses
    }
}

fn run_on_host(launch: &HostLaunch<'_>) -> Result<(), HostFault> {
    let (sizes, at) = OneQuery::unpack(launch.arguments)
        .ok_or_else(|| HostFault("attention of one query: the arguments are not in its layout".to_owned()))?;
    match sizes.dtype {
        DType::F32 => run_typed::<f32>(launch, &sizes, at),
        DType::F16 => run_typed::<f16>(launch, &sizes, at),
        DType::Bf16 => run_typed::<bf16>(launch, &sizes, at),
        other => Err(HostFault(format!("attention of one query: there is none of {other}"))),
    }
}

fn run_typed<T: Element>(launch: &HostLaunch<'_>, sizes: &OneQuery, at: [u64; 8]) -> Result<(), HostFault> {
    let [query, key, value, mask, result, new_key, new_value, position] = at.map(DevicePointer::new);
    let spans = sizes.spans().map(|span| span as usize);
    let read = |at: DevicePointer, span: usize| -> Result<&[T], HostFault> {
        if span == 0 { Ok(&[]) } else { launch.read::<T>(at, span) }
    };
    let query = read(query, spans[0])?;
    let mask: &[u8] = if spans[3] == 0 { &[] } else { launch.read(mask, spans[3])? };
    let result = launch.write::<T>(result, spans[4])?;
    if sizes.append.is_none() {
        sizes.run(query, [read(key, spans[1])?, read(value, spans[2])?], mask, result);
        return Ok(());
    }
    if spans[1] == 0 {
        sizes.run(query, [&[], &[]], mask, result);
        return Ok(());
    }
    let [key_span, value_span] = sizes.new_spans().map(|span| span as usize);
    let (new_key, new_value) = (read(new_key, key_span)?, read(new_value, value_span)?);
    let position = launch.read::<i64>(position, 1)?[0];
    let (keys, values) = (launch.write::<T>(key, spans[1])?, launch.write::<T>(value, spans[2])?);
    sizes.run_appending(query, [new_key, new_value], position, [keys, values], mask, result);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> OneQuery {
        OneQuery {
            batch: 2,
            heads: 4,
            kv_heads: 2,
            keys: 5,
            features: 16,
            scale_bits: 0.25_f32.to_bits(),
            dtype: DType::F32,
            query: Steps { batch: 64, head: 16, key: 0 },
            key: Steps { batch: 160, head: 80, key: 16 },
            value: Steps { batch: 160, head: 16, key: 32 },
            mask: Some(Steps { batch: 0, head: 0, key: 1 }),
            append: None,
        }
    }

    #[test]
    fn arguments_are_read_back() {
        let append = Some([Steps { batch: 8, head: 4, key: 0 }, Steps { batch: 16, head: 2, key: 0 }]);
        for sizes in [sizes(), OneQuery { mask: None, append, dtype: DType::Bf16, ..sizes() }] {
            let bytes: Vec<u8> =
                sizes.pack([1, 2, 3, 4, 5, 6, 7, 8]).iter().flat_map(|w| w.to_le_bytes()).collect();
            assert_eq!(OneQuery::unpack(&bytes), Some((sizes, [1, 2, 3, 4, 5, 6, 7, 8])));
            assert_eq!(OneQuery::unpack(&bytes[8..]), None);
        }
    }

    #[test]
    fn equal_keys_give_the_mean_of_the_values_that_count() {
        let sizes = sizes();
        let [query, key, value, _, result] = sizes.spans().map(|span| span as usize);
        let values: Vec<f32> = (0..value).map(|i| (i * i % 23) as f32).collect();
        let mut found = vec![f32::NAN; result];
        sizes.run(&vec![1.0; query], [&vec![0.5; key], &values], &[1, 0, 1, 0, 0], &mut found);
        for (at, found) in found.iter().enumerate() {
            let (item, head, feature) = (at / 64, at / 16 % 4, at % 16);
            let of = |place: usize| values[item * 160 + head / 2 * 16 + place * 32 + feature];
            assert_eq!(*found, (of(0) + of(2)) / 2.0, "{item}, {head}, {feature}");
        }
        sizes.run(&vec![1.0; query], [&vec![0.5; key], &values], &[0; 5], &mut found);
        assert!(found.iter().all(|&value| value == 0.0), "no key counts");
    }

    #[test]
    fn what_cannot_be_carried_out_is_a_fault() {
        let fault = |change: &dyn Fn(&mut Placed<OneQuery, Addresses>)| {
            let mut placed = Placed { kernel: sizes(), at: [DevicePointer::new(4096); 8] };
            placed.check().unwrap();
            change(&mut placed);
            placed.check().unwrap_err().to_string()
        };
        assert!(fault(&|placed| placed.kernel.features = 18).contains("features"));
        assert!(fault(&|placed| placed.kernel.dtype = DType::F64).contains("float32"));
        assert!(fault(&|placed| placed.kernel.kv_heads = 3).contains("divide"));
        assert!(fault(&|placed| placed.kernel.key.key = 18).contains("16 bytes"));
        assert!(fault(&|placed| placed.at[2] = DevicePointer::new(4100)).contains("16 bytes"));
    }
}
