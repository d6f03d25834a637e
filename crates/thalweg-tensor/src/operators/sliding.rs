//! Sliding blocks of images as columns, and images as the sums of such blocks.

use thalweg_runtime::{Error, Result, refuse_if};

use super::Body::Composite;
use super::complex::{of_parts, parts};
use super::window::{check_positive, extents_of, folded, in_batch, out_of_batch, per_axis, unfolded};
use super::{operators, single};
use crate::dispatch::{Arguments, Call, Ints};
use crate::kernels::geometry::PerAxis;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the windows of images as columns.
    "im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor"
        fn im2col(kernel_size: ints, dilation: ints, padding: ints, stride: ints)
        = Composite(im2col), complex: Parts(|call| {
            let [kernel, dilation, padding, stride] = [1, 2, 3, 4].map(|place| call.ints(place));
            let columns = |part: &Tensor| part.im2col(&kernel, &dilation, &padding, &stride);
            let [re, im] = parts(call.tensor(0))?;
            of_parts(&columns(&re)?, &columns(&im)?).map(single)
        });
    /// Returns the sum of all window entries at each point of images.
    "col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor"
        fn col2im(output_size: sizes, kernel_size: ints, dilation: ints, padding: ints, stride: ints)
        = Composite(col2im);
}

/// The parameters of sliding blocks over images, per axis.
struct Blocks {
    /// The parameters as passed by the call: kernel, dilation, padding and stride.
    given: [Ints; 4],
    numbers: [PerAxis; 4],
}

impl Blocks {
    /// Returns the blocks of a call whose parameters begin at a position.
    fn of(call: &Call<'_>, place: usize) -> Result<Self> {
        let given = [0, 1, 2, 3].map(|number| call.ints(place + number));
        let axes = |name: &str, number: usize, rest| per_axis(name, &given[number], 2, rest);
        let [kernel, dilation] = [axes("kernel_size", 0, 1)?, axes("dilation", 1, 1)?];
        let [padding, stride] = [axes("padding", 2, 0)?, axes("stride", 3, 1)?];
        check_positive([kernel, stride, dilation])?;
        Ok(Self { numbers: [kernel, stride, padding, dilation], given })
    }

    /// Returns how many fit along both axes of images of these extents, in i128, so that no number is too large.
    fn counts(&self, extents: PerAxis) -> [i128; 2] {
        let [kernel, stride, padding, dilation] = self.numbers;
        [1, 2].map(|axis| {
            let [kernel, stride, padding, dilation, extent] =
                [kernel, stride, padding, dilation, extents].map(|list| list[axis] as i128);
            (extent + 2 * padding - dilation * (kernel - 1) - 1).div_euclid(stride) + 1
        })
    }

    /// Returns the parameters as text for a message.
    fn words(&self) -> String {
        let [kernel, stride, padding, dilation] = self.numbers.map(pair);
        format!("kernel_size={kernel}, dilation={dilation}, padding={padding}, stride={stride}")
    }
}

/// Returns the numbers of both axes of images as text for a message.
fn pair([_, height, width]: PerAxis) -> String {
    format!("({height}, {width})")
}

fn im2col(call: &Call<'_>) -> Result<Tensors> {
    let shape = call.tensor(0).shape();
    refuse_if!(
        !(3..=4).contains(&shape.len()) || shape[shape.len() - 3..].contains(&0),
        "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: {shape:?}"
    );
    let (blocks, extents) = (Blocks::of(call, 1)?, extents_of(shape, 2));
    let [rows, columns] = blocks.counts(extents);
    refuse_if!(
        rows < 1 || columns < 1,
        "Given input with spatial size {}, {}, calculated shape of the array of sliding blocks as ({rows}, {columns}), but its \
         components must be at least one.",
        pair(extents),
        blocks.words()
    );
    let (x, made) = in_batch(call.tensor(0), 4)?;
    out_of_batch(unfolded(&x, blocks.given.each_ref())?, made)
}

fn col2im(call: &Call<'_>) -> Result<Tensors> {
    let shape = call.tensor(0).shape();
    let refused = |why: String| Err(Error::invalid(why));
    if !(2..=3).contains(&shape.len()) || shape[shape.len() - 2..].contains(&0) {
        return refused(format!(
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for input, but got: \
             {shape:?}"
        ));
    }
    let (blocks, extents) = (Blocks::of(call, 2)?, per_axis("output_size", &call.ints(1), 2, 1)?);
    let ([rows, columns], kernel) = (blocks.counts(extents), blocks.numbers[0]);
    let (dim, places) = (shape.len() - 2, kernel[1] as u128 * kernel[2] as u128);
    if !(shape[dim] as u128).is_multiple_of(places) {
        return refused(format!(
            "Expected size of input's dimension {dim} to be divisible by the product of kernel_size, but got input.size({dim})={} and \
             kernel_size={}.",
            shape[dim],
            pair(kernel)
        ));
    }
    let given = || format!("Given output_size={}, {}", pair(extents), blocks.words());
    if rows < 1 || columns < 1 {
        return refused(format!(
            "{}, calculated shape of the array of sliding blocks as ({rows}, {columns}), which is too small (non-positive)",
            given()
        ));
    }
    if shape[dim + 1] as i128 != rows * columns {
        return refused(format!(
            "{}, expected size of input's dimension {} to match the calculated number of sliding blocks {rows} * {columns} = {}, but got \
             input.size({})={}.",
            given(),
            dim + 1,
            rows * columns,
            dim + 1,
            shape[dim + 1]
        ));
    }
    let windows: Ints = [rows, columns].map(|count| count as i64).into_iter().collect();
    let output: Ints = extents[1..].iter().map(|&extent| extent as i64).collect();
    let (x, made) = in_batch(call.tensor(0), 3)?;
    let [kernel, dilation, padding, stride] = &blocks.given;
    out_of_batch(folded(&x, [&output, kernel, dilation, padding, stride, &windows])?, made)
}
