//! The planner's decisions, each of which a kernel's speed or meaning rests on.

use smallvec::SmallVec;
use thalweg_ir::{Body, DType, Dimensions};

use super::{Iteration, LaunchPlan, Placement, plan};
use crate::definition::LoopOp;
use crate::{forward, structured, table};

fn body(operator: &LoopOp, dtypes: &[DType]) -> Body {
    let signature =
        operator.signature(dtypes, false, Some(DType::F32)).expect("the operator takes these dtypes");
    forward(operator, &signature).body.clone()
}

fn rows(strides: &[u64]) -> Placement {
    Placement::Strided { rows: strides.into(), inner: Dimensions::new() }
}

fn elementwise(shape: &[u64], operands: &[&[u64]], alignment_bytes: u64) -> LaunchPlan {
    let iteration = Iteration {
        rows: shape.into(),
        inner: Dimensions::new(),
        operands: operands.iter().map(|strides| rows(strides)).collect(),
        alignment_bytes,
    };
    plan(&body(&table::add, &[DType::F32; 2]), &iteration)
}

fn sum(rows: &[u64], inner: &[u64], row_strides: &[u64], inner_strides: &[u64]) -> LaunchPlan {
    let mut result: Dimensions = SmallVec::from_elem(1, rows.len());
    for dimension in (1..rows.len()).rev() {
        result[dimension - 1] = result[dimension] * rows[dimension];
    }
    let input = Placement::Strided { rows: row_strides.into(), inner: inner_strides.into() };
    let iteration = Iteration {
        rows: rows.into(),
        inner: inner.into(),
        operands: [input, Placement::Strided { rows: result, inner: Dimensions::new() }]
            .into_iter()
            .collect(),
        alignment_bytes: 256,
    };
    plan(&body(&structured::SUM, &[DType::F32]), &iteration)
}

#[test]
fn contiguous_operands_are_one_dimension_with_wide_loads() {
    let contiguous: &[u64] = &[20, 5, 1];
    let found = elementwise(&[3, 4, 5], &[contiguous; 3], 256);
    assert!(found.class.contiguous);
    assert_eq!((found.class.row_rank, found.class.vector), (1, 4));
    assert_eq!(found.geometry.row_shape.as_slice(), [60]);
}

#[test]
fn loads_are_only_as_wide_as_the_alignment() {
    for (alignment, vector) in [(256, 4), (16, 4), (8, 2), (4, 1)] {
        assert_eq!(
            elementwise(&[64], &[&[1][..]; 3], alignment).class.vector,
            vector,
            "aligned to {alignment}"
        );
    }
    assert_eq!(elementwise(&[3], &[&[1][..]; 3], 256).class.vector, 2, "no wider than there are elements");
}

#[test]
fn a_broadcast_operand_keeps_the_dimensions_apart_that_it_must() {
    let found = elementwise(&[6, 2, 5], &[&[10, 5, 1], &[0, 0, 1], &[10, 5, 1]], 256);
    assert!(!found.class.contiguous);
    assert_eq!(found.geometry.row_shape.as_slice(), [12, 5]);
    let transposed = elementwise(&[6, 5], &[&[1, 6], &[5, 1], &[5, 1]], 256);
    assert_eq!((transposed.class.row_rank, transposed.class.vector), (2, 1));
}

#[test]
fn dimensions_of_one_element_do_not_matter() {
    let found =
        elementwise(&[1, 7, 1, 3, 1], &[&[99, 3, 42, 1, 0], &[0, 3, 3, 1, 7], &[21, 3, 3, 1, 1]], 256);
    assert!(found.class.contiguous);
    assert_eq!(found.geometry.row_shape.as_slice(), [21]);
    let scalar = elementwise(&[], &[&[], &[], &[]], 256);
    assert_eq!((scalar.geometry.rows(), scalar.class.row_rank), (1, 0));
}

#[test]
fn the_lanes_of_a_row_follow_its_length() {
    assert_eq!(sum(&[100], &[8], &[8], &[1]).class.lanes, 1);
    assert_eq!(sum(&[100], &[100], &[100], &[1]).class.lanes, 32);
    assert_eq!(sum(&[100], &[5000], &[5000], &[1]).class.lanes, 256);
    // Many rows that lie side by side: a thread each reads whole sectors.
    assert_eq!(sum(&[1 << 16], &[5000], &[1], &[1 << 16]).class.lanes, 1);
    assert_eq!(sum(&[64], &[5000], &[1], &[64]).class.lanes, 128);
}

#[test]
fn a_lane_with_many_points_is_a_cascade() {
    let levels = |points: u64| sum(&[1], &[points], &[points], &[1]).class.cascade;
    // 256 lanes of 64 and of 2,048 points.
    assert_eq!([levels(1 << 14), levels((1 << 14) + 1)], [1, 2]);
    assert_eq!([levels(1 << 19), levels((1 << 19) + 1)], [2, 3]);
    assert_eq!(sum(&[1 << 16], &[5000], &[1], &[1 << 16]).class.cascade, 3, "one lane a row");
    let maximum = Iteration {
        rows: Dimensions::new(),
        inner: [1 << 20].into_iter().collect(),
        operands: [
            Placement::Strided { rows: Dimensions::new(), inner: [1].into_iter().collect() },
            rows(&[]),
        ]
        .into_iter()
        .collect(),
        alignment_bytes: 256,
    };
    assert_eq!(
        plan(&body(&structured::AMAX, &[DType::F32]), &maximum).class.cascade,
        1,
        "an extremum is exact"
    );
}

#[test]
fn rows_that_lie_side_by_side_share_blocks() {
    let shared = |plan: LaunchPlan| (plan.class.lanes, plan.class.rows_abreast);
    // The gradient of a bias: one of 512 features over 512 samples.
    assert_eq!(shared(sum(&[512], &[512], &[1], &[512])), (64, 8));
    assert_eq!(shared(sum(&[512], &[17], &[1], &[512])), (2, 8));
    // Rows that are contiguous themselves, too few neighbours, and nothing to share.
    assert_eq!(shared(sum(&[512], &[512], &[512], &[1])), (32, 1));
    assert_eq!(shared(sum(&[100, 4], &[512], &[4096, 1], &[8])), (32, 1));
    assert_eq!(shared(sum(&[512], &[16], &[1], &[512])), (1, 1));
}

#[test]
fn a_row_that_is_contiguous_needs_no_strides() {
    assert!(sum(&[10, 10], &[4, 25], &[1000, 100], &[25, 1]).class.contiguous);
    assert!(!sum(&[10], &[100], &[1], &[10]).class.contiguous);
}

#[test]
fn large_spaces_have_wide_indices() {
    assert!(elementwise(&[1 << 29], &[&[1][..]; 3], 256).class.narrow_index);
    assert!(!elementwise(&[1 << 31], &[&[1][..]; 3], 256).class.narrow_index);
    assert!(!elementwise(&[4, 4], &[&[1 << 31, 1], &[4, 1], &[4, 1]], 256).class.narrow_index);
}
