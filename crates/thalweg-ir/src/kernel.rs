//! [`Kernel`]: a body with the choices that make it code, and [`Geometry`]: the sizes and strides of one launch.
//!
//! A kernel is compiled once for a *class* of layouts ([`Class`]), never for a shape: sizes and strides are arguments. Two
//! readers make the same kernel value executable: [`cuda::print`](crate::cuda::print()) writes CUDA C, and [`host`](crate::host)
//! executes it on the CPU with the same order of every reduction.
//!
//! # The order of a reduction
//! A [`Class`] has a number of `lanes`. Lane *t* of a row combines the points *t*, *t* + lanes, *t* + 2·lanes … in this order,
//! starting from the operation's neutral value. Then lanes are combined as a tree, neighbours first: for `step` = 1, 2, 4 …
//! lanes/2, each lane *t* that is a multiple of 2·`step` becomes `op(lane t, lane t + step)`. With one lane the row is combined
//! front to back. The order is therefore data, and every executor computes the same bits for operations that are correctly
//! rounded. The number of threads that work on a row does not matter: a thread may take several neighbouring lanes
//! ([`Class::vector`]). In rows that are [shifted](Class::shifted), lanes are counted from before the row's first point.
//!
//! A lane with many points is a *cascade*, so that the error of a sum does not grow with their number. With a [`Class::cascade`]
//! of 2, its points are taken in runs of [`RUN`], each of which starts from the neutral value, and the results of the runs are
//! combined in order, also starting from the neutral value. With 3, these in turn are taken in runs of [`RUN`] runs.
//!
//! # Arguments
//! A launch's arguments are 8-byte words, in this order: the address of each input; the address of each output; each scalar
//! ([`Scalar::to_bits`](crate::Scalar::to_bits)); the number of rows; the number of points of a row; the extents of the row
//! dimensions, then of the inner ones; for each input, its row strides and inner strides (strided) or its number of elements
//! (gathered); for each output, its row strides and, if it is written at points, its inner strides, or its number of elements
//! (scattered). Strides count elements. A [`Class::contiguous`] kernel has the two numbers, but neither extents nor strides;
//! gathered inputs still have their number of elements.

use smallvec::SmallVec;

use crate::body::{Body, InputKind, OutputPlace};

/// The layout class and the schedule that a kernel is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Class {
    /// The number of separate row dimensions.
    pub row_rank: u8,
    /// The number of separate inner dimensions.
    pub inner_rank: u8,
    /// Whether every strided operand is contiguous over rows and inner dimensions together (row-major, rows first; row outputs
    /// over the rows), so that element *i* of each operand belongs to point *i*. Both ranks are then at most 1.
    pub contiguous: bool,
    /// Whether offsets, coordinates and the number of points of all rows together stay below 2³¹.
    pub narrow_index: bool,
    /// The number of lanes that combine a row: a power of two; 1 for bodies without reductions. At most 1,024 threads share a row.
    pub lanes: u16,
    /// The number of consecutive elements that a thread loads and stores at a time: 1, 2, 4 or 8. Addresses are then aligned to
    /// that many elements of each operand. In a body without reductions they are neighbours in the last dimension; in rows that
    /// are [`held`](Class::held) or [`online`](Class::online), neighbouring lanes; in rows abreast, neighbouring rows. Elsewhere
    /// it is 1.
    pub vector: u8,
    /// The number of rows that a block of threads handles at a time, with neighbouring rows in neighbouring threads. It is 1, or,
    /// for rows of several lanes whose elements are adjacent in memory, a power of two. Not part of a reduction's order.
    pub rows_abreast: u16,
    /// The number of levels of partial results that a lane keeps: 1, 2 or 3; 1 for bodies without reductions.
    pub cascade: u8,
    /// The number of vectors of a row that a thread holds from its first pass to its last; 0 if each pass reads the row again. A
    /// held row has at most lanes · held points, a multiple of [`vector`](Class::vector), in one inner dimension, and every
    /// operand's inner stride is 1, or 0 for the inputs of [`repeated`](Class::repeated). Not part of a reduction's order.
    pub held: u8,
    /// The number of held vectors (the last ones) that a thread keeps in shared memory because registers are full. They belong to the
    /// only input that is kept.
    pub shared: u8,
    /// The division of rows that are [`held`](Class::held) in the shared memory of a cluster of blocks rather than in registers;
    /// `None` elsewhere.
    pub streamed: Option<Streamed>,
    /// Whether a row is read once, front to back, while the sum of exponentials is kept relative to the greatest value so far
    /// ([`Online`](crate::online::Online)). The sum is rescaled whenever the greatest value grows. This order is not one of `lanes`,
    /// and its result differs from theirs by the rounding of exponentials. Rows are one inner dimension of vectors, like held rows.
    pub online: bool,
    /// Whether rows that are [`held`](Class::held) need not begin or end at a multiple of [`vector`](Class::vector): vectors begin
    /// at the last multiple at or before the row's first element, the *shift* of elements before it, and those outside of the row
    /// are neither combined nor stored. The shift is the same in all operands that are read or written point by point. Lane *t*
    /// combines the points *p* for which *p* plus the shift is *t* modulo the number of lanes.
    pub shifted: bool,
    /// The inputs that repeat one element, as bits: at all points of a row, for rows that are held or online; for neighbouring
    /// rows at a point, for rows abreast that are handled by vectors; along the last dimension, for strided points that are handled by
    /// vectors. 0 elsewhere.
    pub repeated: u32,
    /// One more than the row dimension in which neighbouring elements of [`transposed_inputs`](Class::transposed_inputs) are adjacent in
    /// memory, while those of outputs are adjacent in the last dimension; 0 if there is no such dimension. The kernel then
    /// handles two-dimensional tiles.
    pub transposed: u8,
    /// The inputs whose elements are adjacent in the turned dimension, as bits.
    pub transposed_inputs: u32,
}

/// The division of rows among the blocks of a cluster, through whose shared memory the rows stream: the copy engine brings rows
/// while others are computed, and each block's partial results of a row go to the shared memory of all blocks. GPUs of compute
/// capability 9.0 have clusters. A row has more than [`lanes`](Class::lanes) · ([`held`](Class::held) − 1) points.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Streamed {
    /// The number of blocks of a cluster: 2, 4 or 8.
    pub cluster: u8,
    /// The number of groups of threads in a block. Each group has its own rows, so that one computes while another waits for the
    /// other blocks.
    pub groups: u8,
    /// The number of rows for which a group has memory.
    pub stages: u8,
    /// The inputs that are the same for all rows, as bits: they are copied once.
    pub columns: u32,
}

impl Streamed {
    /// Returns whether an input is in [`columns`](Streamed::columns).
    #[must_use]
    pub const fn is_column(&self, input: usize) -> bool {
        input < 32 && self.columns >> input & 1 == 1
    }
}

impl Class {
    /// Returns the class of any launch with these ranks, with one lane per row.
    #[must_use]
    pub const fn new(row_rank: u8, inner_rank: u8) -> Self {
        Self {
            row_rank,
            inner_rank,
            contiguous: false,
            narrow_index: false,
            lanes: 1,
            vector: 1,
            rows_abreast: 1,
            cascade: 1,
            held: 0,
            shared: 0,
            streamed: None,
            online: false,
            shifted: false,
            repeated: 0,
            transposed: 0,
            transposed_inputs: 0,
        }
    }

    /// Returns the number of threads that share a row.
    #[must_use]
    pub const fn threads_of_a_row(&self) -> u32 {
        if self.held > 0 || self.online { self.lanes as u32 / self.vector as u32 } else { self.lanes as u32 }
    }

    /// Returns the number of threads of a block that share a streamed row.
    #[must_use]
    pub const fn threads_of_a_group(&self, streamed: Streamed) -> u32 {
        self.threads_of_a_row() / streamed.cluster as u32
    }

    /// Returns the number of threads of a block that handle neighbouring rows.
    #[must_use]
    pub const fn threads_abreast(&self) -> u32 {
        if self.held > 0 || self.online { 1 } else { self.rows_abreast as u32 / self.vector as u32 }
    }

    /// Returns whether an input is in [`repeated`](Class::repeated).
    #[must_use]
    pub const fn repeats(&self, input: usize) -> bool {
        input < 32 && self.repeated >> input & 1 == 1
    }
}

/// The number of points, or of results of runs, that a lane of a cascade combines before it passes the result to the next level.
pub const RUN: u64 = 32;

/// A kernel: a body, a class, and a name for both.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// The name of the entry point: letters, digits and underscores.
    pub name: String,
    /// The body that the kernel computes.
    pub body: Body,
    /// The class of launches that the kernel is compiled for.
    pub class: Class,
}

/// Strides or extents; most have few dimensions.
pub type Dimensions = SmallVec<[u64; 6]>;

/// The placement of one operand's elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperandGeometry {
    /// By strides, in elements. The inner strides are empty for row outputs.
    Strided {
        /// One stride per row dimension.
        row_strides: Dimensions,
        /// One stride per inner dimension.
        inner_strides: Dimensions,
    },
    /// Contiguous, with this number of elements, read or written at any place.
    Gathered {
        /// The number of elements.
        elements: u64,
    },
}

/// The sizes and strides of one launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The extents of the row dimensions.
    pub row_shape: Dimensions,
    /// The extents of the inner dimensions.
    pub inner_shape: Dimensions,
    /// The inputs, then the outputs.
    pub operands: Vec<OperandGeometry>,
}

impl Geometry {
    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.row_shape.iter().product()
    }

    /// Returns the number of points of a row.
    pub fn points(&self) -> u64 {
        self.inner_shape.iter().product()
    }

    /// Returns the number of elements, counted from its first, that an operand may touch; 0 where nothing is touched.
    pub fn span(&self, operand: usize) -> u64 {
        match &self.operands[operand] {
            OperandGeometry::Gathered { elements } => *elements,
            OperandGeometry::Strided { row_strides, inner_strides } => {
                if self.rows() == 0 || (!inner_strides.is_empty() && self.points() == 0) {
                    return 0;
                }
                let last = |shape: &[u64], strides: &[u64]| -> u64 {
                    shape.iter().zip(strides).map(|(&extent, &stride)| (extent - 1) * stride).sum()
                };
                1 + last(&self.row_shape, row_strides) + last(&self.inner_shape, inner_strides)
            }
        }
    }
}

/// The arguments of one launch, as words. See the [module](self#arguments).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchArguments {
    words: SmallVec<[u64; 32]>,
}

impl LaunchArguments {
    /// Packs the arguments of a launch. `inputs` and `outputs` are addresses, `scalars` are bits.
    pub fn pack(
        kernel: &Kernel,
        geometry: &Geometry,
        inputs: &[u64],
        outputs: &[u64],
        scalars: &[u64],
    ) -> Self {
        assert_eq!(inputs.len(), kernel.body.inputs.len(), "{}: one address per input", kernel.name);
        let addresses = inputs.iter().chain(outputs).copied();
        Self::from_sizes(kernel, addresses, scalars, &Self::sizes(kernel, geometry))
    }

    /// Returns the words that follow addresses and scalars. They are the same for every launch of this geometry.
    pub fn sizes(kernel: &Kernel, geometry: &Geometry) -> SmallVec<[u64; 16]> {
        let mut words = SmallVec::new();
        words.push(geometry.rows());
        words.push(geometry.points());
        if !kernel.class.contiguous {
            words.extend_from_slice(&geometry.row_shape);
            words.extend_from_slice(&geometry.inner_shape);
        }
        for operand in &geometry.operands {
            match operand {
                OperandGeometry::Gathered { elements } => words.push(*elements),
                OperandGeometry::Strided { row_strides, inner_strides } if !kernel.class.contiguous => {
                    words.extend_from_slice(row_strides);
                    words.extend_from_slice(inner_strides);
                }
                OperandGeometry::Strided { .. } => {}
            }
        }
        words
    }

    /// Creates the arguments of a launch from its [`sizes`](Self::sizes). `addresses` are those of the inputs, then of the
    /// outputs.
    #[inline]
    pub fn from_sizes(
        kernel: &Kernel,
        addresses: impl IntoIterator<Item = u64>,
        scalars: &[u64],
        sizes: &[u64],
    ) -> Self {
        let body = &kernel.body;
        let operands = body.inputs.len() + body.outputs.len();
        let mut arguments = Self { words: SmallVec::new() };
        let words = &mut arguments.words;
        addresses.into_iter().for_each(|address| words.push(address));
        assert_eq!(words.len(), operands, "{}: one address per operand", kernel.name);
        assert_eq!(scalars.len(), body.scalar_words(), "{}: one word per scalar", kernel.name);
        words.extend_from_slice(scalars);
        words.extend_from_slice(sizes);
        arguments
    }

    /// Returns the words as the bytes of a launch.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }
}

/// The arguments of a launch, unpacked: addresses of inputs and outputs, scalars, geometry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unpacked {
    /// The address of each input.
    pub inputs: SmallVec<[u64; 8]>,
    /// The address of each output.
    pub outputs: SmallVec<[u64; 4]>,
    /// The bits of each scalar.
    pub scalars: SmallVec<[u64; 8]>,
    /// Sizes and strides.
    pub geometry: Geometry,
}

impl Kernel {
    /// Reads the words that [`LaunchArguments::pack`] wrote. Returns `None` if the bytes do not have this kernel's layout.
    pub fn unpack(&self, bytes: &[u8]) -> Option<Unpacked> {
        let mut words =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        if !bytes.len().is_multiple_of(8) {
            return None;
        }
        let (body, class) = (&self.body, &self.class);
        let mut take = |count: usize| -> Option<Dimensions> {
            let taken: Dimensions = words.by_ref().take(count).collect();
            (taken.len() == count).then_some(taken)
        };
        let inputs = take(body.inputs.len())?;
        let outputs = take(body.outputs.len())?;
        let scalars = take(body.scalar_words())?;
        let counts = take(2)?;
        let (row_rank, inner_rank) = (usize::from(class.row_rank), usize::from(class.inner_rank));
        let (row_shape, inner_shape) = if class.contiguous {
            (Dimensions::from_slice(&counts[..row_rank]), Dimensions::from_slice(&counts[1..1 + inner_rank]))
        } else {
            (take(row_rank)?, take(inner_rank)?)
        };
        let mut operands = Vec::with_capacity(body.inputs.len() + body.outputs.len());
        let kinds = body.inputs.iter().map(|input| match input.kind {
            InputKind::Strided => Some(true),
            InputKind::Gathered => None,
        });
        let places = body.outputs.iter().map(|output| match output.scatter {
            Some(_) => None,
            None => Some(output.place == OutputPlace::Point),
        });
        for at_points in kinds.chain(places) {
            operands.push(match at_points {
                None => OperandGeometry::Gathered { elements: take(1)?[0] },
                Some(at_points) if class.contiguous => {
                    let points = if at_points && inner_rank == 1 { counts[1] } else { 1 };
                    OperandGeometry::Strided {
                        row_strides: std::iter::repeat_n(points, row_rank).collect(),
                        inner_strides: std::iter::repeat_n(1, if at_points { inner_rank } else { 0 })
                            .collect(),
                    }
                }
                Some(at_points) => OperandGeometry::Strided {
                    row_strides: take(row_rank)?,
                    inner_strides: take(if at_points { inner_rank } else { 0 })?,
                },
            });
        }
        let geometry = Geometry { row_shape, inner_shape, operands };
        take(1).is_none().then(|| Unpacked {
            inputs: inputs.into_iter().collect(),
            outputs: outputs.into_iter().collect(),
            scalars: scalars.into_iter().collect(),
            geometry,
        })
    }
}
