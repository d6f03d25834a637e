//! The ranges that a launch of a loop kernel touches, derived from its geometry.

use smallvec::SmallVec;
use thalweg_driver::{Access, AccessMode, DevicePointer, Touch};
use thalweg_ir::{Geometry, Kernel, OperandGeometry};
use thalweg_kernels::Accesses;

/// The bytes that an operand touches, from its first element on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) bytes: u64,
    touch: Touch,
}

/// Returns the extent of each operand: the inputs, then the outputs. With `gaps`, each extent also describes which of its bytes
/// are touched.
pub(crate) fn extents(kernel: &Kernel, geometry: &Geometry, gaps: bool) -> SmallVec<[Extent; 8]> {
    let inputs = kernel.body.inputs.iter().map(|input| input.dtype);
    let dtypes = inputs.chain(kernel.body.outputs.iter().map(|output| output.dtype));
    dtypes
        .enumerate()
        .map(|(operand, dtype)| {
            let element_bytes = dtype.size_bytes() as u64;
            let touch = if gaps { touch_of_operand(geometry, operand, element_bytes) } else { Touch::All };
            Extent { bytes: geometry.span(operand) * element_bytes, touch }
        })
        .collect()
}

/// Lists the ranges that a launch touches. An input that overlaps an output is merged with it into one range that is read and
/// written. The list is filled in place: it is large, and each launch has one.
pub(crate) fn accesses(
    list: &mut Accesses,
    extents: &[Extent],
    inputs: &[DevicePointer],
    outputs: &[DevicePointer],
) {
    let (reads, writes) = extents.split_at(inputs.len());
    for (extent, pointer) in writes.iter().zip(outputs) {
        list.push(Access::write(*pointer, extent.bytes).touching(extent.touch));
    }
    for (extent, pointer) in reads.iter().zip(inputs) {
        let mut access = Access::read(*pointer, extent.bytes);
        access.touch = extent.touch;
        if access.bytes == 0 || list.contains(&access) {
            continue;
        }
        while let Some(position) = list.iter().position(|other| other.conflicts(&access)) {
            access = union(&list.swap_remove(position), &access);
        }
        list.push(access);
    }
}

/// Returns the pairs of an input and an output of which each point reads and writes the elements at the same places, and of the same size,
/// where the output may be written over the input.
pub(crate) fn aligned(kernel: &Kernel, geometry: &Geometry) -> SmallVec<[(u8, u8); 2]> {
    let (body, operands) = (&kernel.body, &geometry.operands);
    let outputs = body.outputs.iter().enumerate().filter(|(_, output)| output.scatter.is_none());
    let pairs = outputs.flat_map(|(output, written)| {
        let inputs = body.inputs.iter().enumerate().filter(move |&(input, read)| {
            let is_strided = matches!(operands[input], OperandGeometry::Strided { .. });
            is_strided
                && read.dtype.size_bytes() == written.dtype.size_bytes()
                && operands[input] == operands[body.inputs.len() + output]
                && !body.uses_offsets(input)
                && body.may_overwrite(input, output)
        });
        inputs.map(move |(input, _)| (input as u8, output as u8))
    });
    pairs.collect()
}

fn union(a: &Access, b: &Access) -> Access {
    let start = a.start.min(b.start);
    let end = (a.start + a.bytes).max(b.start + b.bytes);
    let is_one = (a.start, a.bytes, a.touch) == (b.start, b.bytes, b.touch);
    let touch = if is_one { a.touch } else { Touch::Some { most_bytes: end - start } };
    Access::new(start, end - start, AccessMode::ReadWrite).touching(touch)
}

/// Returns the bytes that an operand touches within its span.
fn touch_of_operand(geometry: &Geometry, operand: usize, element_bytes: u64) -> Touch {
    match &geometry.operands[operand] {
        OperandGeometry::Gathered { .. } => {
            let points = geometry.rows().saturating_mul(geometry.points());
            Touch::chosen(points.saturating_mul(element_bytes))
        }
        OperandGeometry::Strided { row_strides, inner_strides } => {
            let rows = geometry.row_shape.iter().zip(row_strides);
            let inner = geometry.inner_shape.iter().zip(inner_strides);
            Touch::of(rows.chain(inner).map(|(&extent, &stride)| (extent, stride)), element_bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;
    use thalweg_ir::{BodyBuilder, Class, DType, OperandGeometry, OutputPlace};

    use super::*;

    /// Returns the accesses of a kernel over four floats per operand: inputs and output at these addresses.
    fn of(inputs: &[u64], output: u64) -> Vec<(u64, u64, AccessMode)> {
        let builder = BodyBuilder::new();
        let sum =
            inputs.iter().fold(builder.constant(0.0, DType::F32), |sum, _| sum + builder.input(DType::F32));
        builder.output(sum, DType::F32, OutputPlace::Point);
        let class = Class { contiguous: true, narrow_index: true, ..Class::new(1, 0) };
        let kernel = Kernel { name: "sum".to_owned(), body: builder.finish(), class };
        let operand = OperandGeometry::Strided { row_strides: smallvec![1], inner_strides: smallvec![] };
        let geometry = Geometry {
            row_shape: smallvec![4],
            inner_shape: smallvec![],
            operands: vec![operand; inputs.len() + 1],
        };
        let inputs: Vec<_> = inputs.iter().copied().map(DevicePointer::new).collect();
        let mut ranges = Accesses::new();
        accesses(&mut ranges, &extents(&kernel, &geometry, true), &inputs, &[DevicePointer::new(output)]);
        let mut found: Vec<_> =
            ranges.iter().map(|access| (access.start, access.bytes, access.mode)).collect();
        found.sort_by_key(|access| access.0);
        found
    }

    #[test]
    fn operands_apart_are_ranges_of_their_own() {
        use AccessMode::{Read, Write};
        assert_eq!(of(&[100, 200], 300), [(100, 16, Read), (200, 16, Read), (300, 16, Write)]);
        assert_eq!(of(&[100, 100], 300), [(100, 16, Read), (300, 16, Write)], "the same input twice");
        assert_eq!(of(&[100, 108], 300), [(100, 16, Read), (108, 16, Read), (300, 16, Write)]);
        assert_eq!(of(&[100], 116), [(100, 16, Read), (116, 16, Write)], "neighbours do not meet");
    }

    #[test]
    fn inputs_that_meet_the_output_are_one_range_with_it() {
        use AccessMode::{Read, ReadWrite};
        assert_eq!(of(&[100], 100), [(100, 16, ReadWrite)]);
        assert_eq!(of(&[100, 100, 200], 100), [(100, 16, ReadWrite), (200, 16, Read)]);
        assert_eq!(of(&[92, 108], 100), [(92, 32, ReadWrite)]);
        // In any order, inputs are merged that overlap only an input which overlaps the output.
        assert_eq!(of(&[112, 104], 92), [(92, 36, ReadWrite)]);
        assert_eq!(of(&[104, 112], 92), [(92, 36, ReadWrite)]);
        assert_eq!(of(&[124, 112, 104], 92), [(92, 48, ReadWrite)]);
    }
}
