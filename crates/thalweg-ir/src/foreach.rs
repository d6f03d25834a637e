//! [`ForeachKernel`]: one body over a list of tensors, in place and in one launch (PyTorch's `_foreach_` and fused optimizers).
//!
//! An optimizer has a hundred parameters, most of them small: one launch per parameter costs more than the work. Here the
//! addresses of up to [`capacity`](ForeachKernel::capacity) tensors are passed in the arguments of one launch, and each block of
//! threads finds the tensor that its part belongs to.
//!
//! The body is elementwise, with row dimensions only. A [`ForeachOperand`] states for each input whether every tensor of the list
//! has its own elements, has one element of its own, or shares one element with all others. Each output is written in place of an
//! input of elements.
//!
//! # Arguments
//! 8-byte words, in this order: the address of each shared input; each scalar; the number of tensors; the number of elements of
//! each tensor; the number of the first block of each; then, for each input that is not shared, its address for each tensor. Each
//! table has as many words as the kernel has capacity, whatever the number of tensors.

use smallvec::SmallVec;

use crate::{Body, Class, Dimensions, Geometry, Kernel, OperandGeometry};

/// Words of a launch's arguments: the 4 KiB that every CUDA kernel may have.
const WORDS: usize = 512;

/// Threads of a block.
pub const BLOCK: u32 = 256;

/// Elements that a block handles.
pub const CHUNK: u64 = 2048;

/// The part of an input that a tensor of a list takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ForeachOperand {
    /// The elements of the tensor: as many as the tensor has, contiguous, separate for each tensor.
    Elements,
    /// One element per tensor (such as its number of steps).
    PerTensor,
    /// One element for all tensors (such as a learning rate).
    Shared,
}

/// A body over a list of tensors. See the [module](self).
#[derive(Clone, PartialEq, Debug)]
pub struct ForeachKernel {
    /// The name of the entry point: letters, digits and underscores.
    pub name: String,
    /// The body that is computed for each element.
    pub body: Body,
    /// The kind of each input.
    pub operands: SmallVec<[ForeachOperand; 8]>,
    /// For each output, the input of elements that it overwrites.
    pub targets: SmallVec<[u16; 4]>,
}

/// One tensor of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeachItem {
    /// The number of elements of the tensor.
    pub elements: u64,
    /// The address of each input that is not shared, in order.
    pub addresses: SmallVec<[u64; 8]>,
}

/// The arguments of a call, or of one launch of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForeachArguments {
    /// The address of each shared input, in order.
    pub shared: SmallVec<[u64; 4]>,
    /// The bits of each scalar.
    pub scalars: SmallVec<[u64; 8]>,
    /// The tensors; a launch takes up to [`ForeachKernel::capacity`] of them.
    pub items: Vec<ForeachItem>,
}

impl ForeachKernel {
    /// Returns the number of tensors that a launch takes: as many as fit into its arguments.
    pub fn capacity(&self) -> usize {
        let listed = self.listed().count();
        (WORDS - self.header()) / (2 + listed)
    }

    /// Returns the number of words before the tables.
    fn header(&self) -> usize {
        self.operands.len() - self.listed().count() + self.body.scalars.len() + 1
    }

    /// Returns whether all tensors share an input's one element.
    pub fn is_shared(&self, input: usize) -> bool {
        self.operands[input] == ForeachOperand::Shared
    }

    /// Returns the indices of the inputs that are separate for each tensor.
    pub fn listed(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.operands.len()).filter(|&input| !self.is_shared(input))
    }

    /// Returns the index of an input among the shared inputs, or among the others.
    pub fn place(&self, input: usize) -> usize {
        (0..input).filter(|&other| self.is_shared(other) == self.is_shared(input)).count()
    }

    /// Returns the number of elements of an input for a tensor of `of_tensor` elements.
    pub fn elements(&self, input: usize, of_tensor: u64) -> u64 {
        if self.operands[input] == ForeachOperand::Elements { of_tensor } else { 1 }
    }

    /// Returns whether an output overwrites this input.
    pub fn is_written(&self, input: usize) -> bool {
        self.targets.iter().any(|&target| usize::from(target) == input)
    }

    /// Returns the words of a launch over these tensors of a call.
    ///
    /// # Panics
    /// If there are more tensors than the [`capacity`](Self::capacity), or operands that do not match the kernel's.
    pub fn pack(&self, arguments: &ForeachArguments, items: &[ForeachItem]) -> Vec<u64> {
        let ForeachArguments { shared, scalars, .. } = arguments;
        let (listed, capacity) = (self.listed().count(), self.capacity());
        assert!(items.len() <= capacity, "{}: {} tensors in one launch", self.name, items.len());
        assert_eq!(shared.len() + listed, self.body.inputs.len(), "{}: one address an input", self.name);
        assert_eq!(scalars.len(), self.body.scalars.len(), "{}: one word per scalar", self.name);
        assert!(
            items.iter().all(|item| item.addresses.len() == listed),
            "{}: one address an input",
            self.name
        );
        let mut words = Vec::with_capacity(self.header() + capacity * (2 + listed));
        words.extend(shared.iter().chain(scalars));
        words.push(items.len() as u64);
        let mut table = |values: &mut dyn Iterator<Item = u64>| {
            let end = words.len() + capacity;
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

    /// Reads the words that [`ForeachKernel::pack`] wrote. Returns `None` if the bytes do not have this kernel's layout.
    pub fn unpack(&self, bytes: &[u8]) -> Option<ForeachArguments> {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (listed, header, capacity) = (self.listed().count(), self.header(), self.capacity());
        let shared = self.operands.len() - listed;
        if !rest.is_empty() || words.len() != header + capacity * (2 + listed) {
            return None;
        }
        let count = usize::try_from(words[header - 1]).ok().filter(|&count| count <= capacity)?;
        let table = |number: usize| &words[header + number * capacity..][..count];
        let items = (0..count)
            .map(|item| ForeachItem {
                elements: table(0)[item],
                addresses: (0..listed).map(|input| table(2 + input)[item]).collect(),
            })
            .collect();
        Some(ForeachArguments {
            shared: words[..shared].into(),
            scalars: words[shared..header - 1].into(),
            items,
        })
    }

    /// Returns the number of blocks of a launch: 0 if no tensor has elements.
    pub fn blocks(items: &[ForeachItem]) -> u64 {
        items.iter().map(|item| item.elements.div_ceil(CHUNK)).sum()
    }

    /// Returns the body over one tensor as a kernel of its own, which the host runs for each tensor.
    pub fn single(&self) -> Kernel {
        let class = Class::new(1, 0);
        Kernel { name: self.name.clone(), body: self.body.clone(), class }
    }

    /// Returns the geometry of [`ForeachKernel::single`] for a tensor of this many elements.
    pub fn geometry(&self, elements: u64) -> Geometry {
        let strided = |stride: u64| OperandGeometry::Strided {
            row_strides: Dimensions::from_slice(&[stride]),
            inner_strides: Dimensions::new(),
        };
        let inputs =
            self.operands.iter().map(|&operand| strided(u64::from(operand == ForeachOperand::Elements)));
        Geometry {
            row_shape: Dimensions::from_slice(&[elements]),
            inner_shape: Dimensions::new(),
            operands: inputs.chain(self.targets.iter().map(|_| strided(1))).collect(),
        }
    }
}
