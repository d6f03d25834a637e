//! [`ForeachKernel`]: one body over a list of tensors, in place and in one launch (PyTorch's `_foreach_` and fused optimizers).
//!
//! An optimizer has a hundred parameters, most of them small: a launch each costs more than the work. Here the addresses of up to
//! [`CAPACITY`] tensors travel in the arguments of one launch, and each block of threads finds the tensor that its part belongs
//! to.
//!
//! The body is elementwise, over rows alone. Some of its inputs are *shared*: one element, the same for all tensors (a step
//! number). The others are *listed*: every tensor of the list brings its own, all of one number of elements, contiguous. Each
//! output is written where a listed input was read.
//!
//! # Arguments
//! 8-byte words, in this order: the address of each shared input; each scalar; the number of tensors; the number of elements
//! of each tensor; the number of the first block of each; then, listed input by listed input, the address for each tensor.
//! The three tables have [`CAPACITY`] words each time, whatever the number of tensors.

use smallvec::SmallVec;

use crate::{Body, Class, Dimensions, Geometry, Kernel, OperandGeometry};

/// The most tensors of one launch: as many as fit, with four listed inputs and a dozen other words, into the 4 KiB that the
/// arguments of a CUDA kernel may always have.
pub const CAPACITY: usize = 80;

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// Elements that a block handles.
pub const CHUNK: u64 = 2048;

/// A body over a list of tensors. See the [module](self).
#[derive(Clone, PartialEq, Debug)]
pub struct ForeachKernel {
    /// The name of the entry point: letters, digits and underscores.
    pub name: String,
    /// What it computes for an element.
    pub body: Body,
    /// Which inputs are shared; the others are listed.
    pub shared: SmallVec<[bool; 8]>,
    /// For each output the listed input in whose place it is written.
    pub targets: SmallVec<[u16; 4]>,
}

/// One tensor of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeachItem {
    /// How many elements its operands have.
    pub elements: u64,
    /// The address of each listed input, in order.
    pub addresses: SmallVec<[u64; 4]>,
}

/// The arguments of one launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeachArguments {
    /// The address of each shared input, in order.
    pub shared: SmallVec<[u64; 4]>,
    /// The bits of each scalar.
    pub scalars: SmallVec<[u64; 8]>,
    /// The tensors: up to [`CAPACITY`].
    pub items: Vec<ForeachItem>,
}

impl ForeachKernel {
    /// The numbers of the listed inputs.
    pub fn listed(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.shared.len()).filter(|&input| !self.shared[input])
    }

    /// The place of an input among the shared or among the listed ones.
    pub fn place(&self, input: usize) -> usize {
        self.shared[..input].iter().filter(|&&shared| shared == self.shared[input]).count()
    }

    /// Whether an input's place is written.
    pub fn is_written(&self, input: usize) -> bool {
        self.targets.iter().any(|&target| usize::from(target) == input)
    }

    /// The words of a launch.
    ///
    /// # Panics
    /// If there are more tensors than [`CAPACITY`], or other operands than the kernel has.
    pub fn pack(&self, arguments: &ForeachArguments) -> Vec<u64> {
        let ForeachArguments { shared, scalars, items } = arguments;
        let listed = self.listed().count();
        assert!(items.len() <= CAPACITY, "{}: {} tensors in one launch", self.name, items.len());
        assert_eq!(shared.len() + listed, self.body.inputs.len(), "{}: one address an input", self.name);
        assert_eq!(scalars.len(), self.body.scalars.len(), "{}: one word a scalar", self.name);
        assert!(
            items.iter().all(|item| item.addresses.len() == listed),
            "{}: one address an input",
            self.name
        );
        let mut words: Vec<u64> = shared.iter().chain(scalars).copied().collect();
        words.push(items.len() as u64);
        let mut table = |values: &mut dyn Iterator<Item = u64>| {
            let end = words.len() + CAPACITY;
            words.extend(values);
            words.resize(end, 0);
        };
        table(&mut items.iter().map(|item| item.elements));
        table(&mut items.iter().scan(0, |next, item| {
            let first = *next;
            *next += item.elements.div_ceil(CHUNK);
            Some(first)
        }));
        for input in 0..listed {
            table(&mut items.iter().map(|item| item.addresses[input]));
        }
        words
    }

    /// Reads back what [`ForeachKernel::pack`] packed. `None` if the bytes are not of this kernel's layout.
    pub fn unpack(&self, bytes: &[u8]) -> Option<ForeachArguments> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (listed, scalars) = (self.listed().count(), self.body.scalars.len());
        let shared = self.shared.len() - listed;
        let header = shared + scalars + 1;
        if !rest.is_empty() || words.len() != header + CAPACITY * (2 + listed) {
            return None;
        }
        let count = usize::try_from(words[header - 1]).ok().filter(|&count| count <= CAPACITY)?;
        let table = |number: usize| &words[header + number * CAPACITY..][..count];
        let items = (0..count)
            .map(|item| ForeachItem {
                elements: table(0)[item],
                addresses: (0..listed).map(|input| table(2 + input)[item]).collect(),
            })
            .collect();
        Some(ForeachArguments {
            shared: words[..shared].into(),
            scalars: words[shared..shared + scalars].into(),
            items,
        })
    }

    /// The blocks of a launch: none where no tensor has elements.
    pub fn blocks(items: &[ForeachItem]) -> u64 {
        items.iter().map(|item| item.elements.div_ceil(CHUNK)).sum()
    }

    /// The body over one tensor, as a kernel of its own: what the host runs for each.
    pub fn single(&self) -> Kernel {
        let class = Class {
            row_rank: 1,
            inner_rank: 0,
            contiguous: false,
            narrow_index: false,
            lanes: 1,
            vector: 1,
            rows_abreast: 1,
            cascade: 1,
        };
        Kernel { name: self.name.clone(), body: self.body.clone(), class }
    }

    /// The geometry of [`ForeachKernel::single`] for a tensor of this many elements.
    pub fn geometry(&self, elements: u64) -> Geometry {
        let strided = |stride: u64| OperandGeometry::Strided {
            row_strides: Dimensions::from_slice(&[stride]),
            inner_strides: Dimensions::new(),
        };
        let inputs = self.shared.iter().map(|&shared| strided(u64::from(!shared)));
        Geometry {
            row_shape: Dimensions::from_slice(&[elements]),
            inner_shape: Dimensions::new(),
            operands: inputs.chain(self.targets.iter().map(|_| strided(1))).collect(),
        }
    }
}
