//! The arguments of a launch: unpacking returns the packed values.

use proptest::prelude::*;
use thalweg_ir::{
    Class, Dimensions, Geometry, InputKind, Kernel, LaunchArguments, OperandGeometry, OutputPlace,
};

use crate::random;

/// Returns the geometry of a contiguous launch of a body: rows first, row outputs over the rows.
fn contiguous(kernel: &Kernel, rows: u64, points: u64) -> Geometry {
    let class = kernel.class;
    let rank = |extent: u64, rank: u8| Dimensions::from_elem(extent, usize::from(rank));
    let line = if class.inner_rank == 1 { points } else { 1 };
    let strided = |at_points: bool| OperandGeometry::Strided {
        row_strides: rank(if at_points { line } else { 1 }, class.row_rank),
        inner_strides: rank(1, if at_points { class.inner_rank } else { 0 }),
    };
    let inputs = kernel.body.inputs.iter().map(|input| match input.kind {
        InputKind::Strided => strided(true),
        InputKind::Gathered => OperandGeometry::Gathered { elements: 11 },
    });
    let outputs = kernel.body.outputs.iter().map(|output| strided(output.place == OutputPlace::Point));
    Geometry {
        row_shape: rank(rows, class.row_rank),
        inner_shape: rank(points, class.inner_rank),
        operands: inputs.chain(outputs).collect(),
    }
}

fn round_trip(kernel: &Kernel, geometry: &Geometry, scalars: &[u64]) -> Result<(), TestCaseError> {
    let addresses = |count: usize, base: u64| (0..count as u64).map(|i| base + i * 256).collect::<Vec<_>>();
    let inputs = addresses(kernel.body.inputs.len(), 1 << 40);
    let outputs = addresses(kernel.body.outputs.len(), 7 << 20);
    let arguments = LaunchArguments::pack(kernel, geometry, &inputs, &outputs, scalars);
    let bytes = arguments.as_bytes();
    let unpacked = kernel.unpack(bytes);
    prop_assert!(unpacked.is_some(), "{geometry:?}");
    let unpacked = unpacked.expect("checked");
    prop_assert_eq!(&unpacked.geometry, geometry);
    prop_assert_eq!(&unpacked.inputs[..], &inputs[..]);
    prop_assert_eq!(&unpacked.outputs[..], &outputs[..]);
    prop_assert_eq!(&unpacked.scalars[..], scalars);
    for span in 0..geometry.operands.len() {
        prop_assert_eq!(unpacked.geometry.span(span), geometry.span(span));
    }
    // Other lengths are not this kernel's arguments.
    prop_assert!(kernel.unpack(&bytes[..bytes.len() - 8]).is_none());
    prop_assert!(kernel.unpack(&bytes[..bytes.len() - 1]).is_none());
    prop_assert!(kernel.unpack(&[bytes, &[0; 8]].concat()).is_none());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arguments_are_read_back(tape in random::tapes()) {
        let case = random::case(&tape);
        round_trip(&case.kernel, &case.geometry, &case.scalars)?;
    }

    #[test]
    fn contiguous_arguments_are_read_back(tape in random::tapes(), rows in 0u64..9, points in 0u64..9) {
        let mut case = random::case(&tape);
        let Class { row_rank, inner_rank, .. } = case.kernel.class;
        case.kernel.class = Class {
            contiguous: true,
            row_rank: row_rank.min(1),
            inner_rank: inner_rank.min(1),
            ..case.kernel.class
        };
        let geometry = contiguous(&case.kernel, rows, points);
        round_trip(&case.kernel, &geometry, &case.scalars)?;
    }
}
