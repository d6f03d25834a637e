//! The planner's decisions, on each of which a kernel's speed or correctness depends.

use std::collections::HashSet;
use std::ops::Range;

use smallvec::SmallVec;
use thalweg_ir::{Body, DType, Dimensions, InputKind, OutputPlace, cuda};

use super::{Iteration, LaunchPlan, Placement, kernel, plan};
use crate::definition::{LoopOp, Space};
use crate::{forward, structured, table};

fn body(operator: &LoopOp, dtypes: &[DType]) -> Body {
    let signature =
        operator.signature(dtypes, false, Some(DType::F32)).expect("the operator takes these dtypes");
    forward(operator, &signature).body.as_ref().clone()
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
        shared_memory_bytes: 227 << 10,
        has_clusters: false,
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
        shared_memory_bytes: 227 << 10,
        has_clusters: false,
    };
    plan(&body(&structured::SUM, &[DType::F32]), &iteration)
}

#[test]
fn contiguous_operands_are_one_dimension_with_wide_loads() {
    let contiguous: &[u64] = &[50_000, 10_000, 1];
    let found = elementwise(&[3, 5, 10_000], &[contiguous; 3], 256);
    assert!(found.class.contiguous);
    assert_eq!((found.class.row_rank, found.class.vector), (1, 4));
    assert_eq!(found.geometry.row_shape.as_slice(), [150_000]);
}

#[test]
fn loads_are_only_as_wide_as_the_alignment() {
    for (alignment, vector) in [(256, 4), (16, 4), (8, 2), (4, 1)] {
        assert_eq!(
            elementwise(&[1 << 20], &[&[1][..]; 3], alignment).class.vector,
            vector,
            "aligned to {alignment}"
        );
    }
}

#[test]
fn few_points_are_shared_by_many_threads() {
    for (points, vector) in [(1, 1), (4096, 1), (1 << 16, 2), ((1 << 17) - 1, 2), (1 << 17, 4), (1 << 20, 4)]
    {
        let found = elementwise(&[points], &[&[1][..]; 3], 256);
        assert_eq!(found.class.vector, vector, "of {points} points");
    }
}

#[test]
fn a_broadcast_operand_keeps_the_dimensions_apart_that_it_must() {
    let found = elementwise(&[6, 2, 5], &[&[10, 5, 1], &[0, 0, 1], &[10, 5, 1]], 256);
    assert!(!found.class.contiguous);
    assert_eq!(found.geometry.row_shape.as_slice(), [12, 5]);
    let transposed = elementwise(&[6, 5], &[&[1, 6], &[5, 1], &[5, 1]], 256);
    assert_eq!((transposed.class.row_rank, transposed.class.vector), (2, 1));
    assert_eq!(transposed.class.transposed, 0, "too small for tiles");
    // A bias for each row, or for each column: loads are wide where memory is contiguous.
    let bias = elementwise(&[6, 8], &[&[8, 1], &[1, 0], &[8, 1]], 256);
    assert_eq!((bias.class.vector, bias.class.repeated), (4, 0b10));
    let bias = elementwise(&[6, 8], &[&[8, 1], &[0, 1], &[8, 1]], 256);
    assert_eq!((bias.class.vector, bias.class.repeated), (4, 0));
    let odd = elementwise(&[6, 9], &[&[9, 1], &[0, 1], &[9, 1]], 256);
    assert_eq!(odd.class.vector, 1);
}

#[test]
fn points_are_walked_in_the_order_of_the_output() {
    // Operands of one layout are contiguous, whatever the order of their dimensions.
    let transposed: &[u64] = &[1, 100];
    let found = elementwise(&[100, 50], &[transposed; 3], 256);
    assert!(found.class.contiguous);
    assert_eq!(found.geometry.row_shape.as_slice(), [5000]);
}

#[test]
fn a_transposition_is_done_by_tiles() {
    let (plain, transposed): (&[u64], &[u64]) = (&[64, 1], &[1, 128]);
    let found = elementwise(&[128, 64], &[transposed, plain, plain], 256);
    assert_eq!((found.class.transposed, found.class.transposed_inputs, found.class.vector), (1, 1, 1));
    // With the roles exchanged: the output decides.
    let found = elementwise(&[128, 64], &[transposed, plain, transposed], 256);
    assert_eq!(found.geometry.row_shape.as_slice(), [64, 128]);
    assert_eq!((found.class.transposed, found.class.transposed_inputs), (1, 2));
    // 16-bit floats are loaded in pairs if all rows begin at a multiple of two.
    let copy = |extents: [u64; 3], alignment_bytes| {
        let [outer, rows, columns] = extents;
        let iteration = Iteration {
            rows: extents.as_slice().into(),
            inner: Dimensions::new(),
            operands: [[rows * columns, 1, rows], [rows * columns, columns, 1]]
                .iter()
                .map(|strides| self::rows(strides))
                .collect(),
            alignment_bytes,
            shared_memory_bytes: 227 << 10,
            has_clusters: false,
        };
        let _ = outer;
        let signature = structured::COPY.signature(&[DType::Bf16], false, Some(DType::Bf16)).expect("a copy");
        let class = plan(&forward(&structured::COPY, &signature).body, &iteration).class;
        (class.transposed, class.vector)
    };
    assert_eq!(copy([3, 100, 200], 256), (2, 2));
    assert_eq!(copy([3, 101, 200], 256), (2, 1));
    assert_eq!(copy([3, 100, 200], 2), (2, 1));
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
    let short = [1, 6, 8, 12, 16].map(|points| {
        let class = sum(&[100], &[points], &[points], &[1]).class;
        (class.lanes, class.vector, class.held)
    });
    // One thread, unless rows are two vectors or more.
    assert_eq!(short, [(1, 1, 0), (8, 2, 1), (8, 4, 1), (16, 4, 1), (16, 4, 1)]);
    assert_eq!(sum(&[100], &[16], &[17], &[1]).class.lanes, 1, "rows that are not aligned");
    // With gaps between elements, so that nothing is held.
    assert_eq!(sum(&[100], &[100], &[300], &[3]).class.lanes, 32);
    assert_eq!(sum(&[100], &[5000], &[15_000], &[3]).class.lanes, 256);
    // Many rows that are adjacent in memory: one thread per row reads complete sectors.
    assert_eq!(sum(&[(1 << 16) + 1], &[5000], &[1], &[(1 << 16) + 1]).class.lanes, 1);
    assert_eq!(sum(&[64], &[5000], &[1], &[64]).class.lanes, 128);
}

#[test]
fn a_lane_with_many_points_is_a_cascade() {
    let levels = |points: u64| sum(&[1], &[points], &[3 * points], &[3]).class.cascade;
    // 256 lanes of 64 and of 2,048 points.
    assert_eq!([levels(1 << 14), levels((1 << 14) + 1)], [1, 2]);
    assert_eq!([levels(1 << 19), levels((1 << 19) + 1)], [2, 3]);
    assert_eq!(sum(&[(1 << 16) + 1], &[5000], &[1], &[(1 << 16) + 1]).class.cascade, 3, "one lane a row");
    let maximum = Iteration {
        rows: Dimensions::new(),
        inner: [1 << 20].into_iter().collect(),
        operands: [
            Placement::Strided { rows: Dimensions::new(), inner: [3].into_iter().collect() },
            rows(&[]),
        ]
        .into_iter()
        .collect(),
        alignment_bytes: 256,
        shared_memory_bytes: 227 << 10,
        has_clusters: false,
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
    assert_eq!(shared(sum(&[512], &[512], &[1], &[512])), (128, 16));
    assert_eq!(shared(sum(&[512], &[17], &[1], &[512])), (4, 16));
    assert_eq!(shared(sum(&[128], &[512], &[1], &[128])), (128, 8), "as many blocks");
    assert_eq!(shared(sum(&[511], &[512], &[1], &[511])), (64, 8), "no vectors");
    assert_eq!(shared(sum(&[4096], &[512], &[1], &[4096])), (64, 8), "blocks enough");
    assert_eq!(shared(sum(&[1 << 13, 16], &[256], &[1 << 12, 1], &[16])), (64, 16), "few neighbours");
    // Rows that are contiguous themselves, too few neighbours, and nothing to share.
    assert_eq!(shared(sum(&[512], &[512], &[1024], &[2])), (32, 1));
    assert_eq!(shared(sum(&[100, 4], &[512], &[4096, 1], &[8])), (32, 1));
    assert_eq!(shared(sum(&[512], &[16], &[1], &[512])), (1, 1));
}

/// Returns the number of threads per row, the width of their loads, and the number of vectors that each holds.
fn held(plan: &LaunchPlan) -> (u32, u8, u8) {
    (plan.class.threads_of_a_row(), plan.class.vector, plan.class.held)
}

#[test]
fn many_columns_are_read_by_whole_lines() {
    let of = |rows: u64, points: u64| {
        let class = sum(&[rows], &[points], &[1], &[rows]).class;
        (class.rows_abreast, class.vector, class.lanes)
    };
    assert_eq!(of(1 << 16, 5000), (128, 4, 8));
    assert_eq!(of(1 << 14, 5000), (64, 4, 16), "fewer abreast, for as many blocks");
    assert_eq!(of(1 << 16, 20), (128, 4, 8));
    // A thread reduces short columns alone.
    assert_eq!(of(1 << 20, 2), (1024, 4, 1));
    assert_eq!(of(1 << 16, 16), (256, 4, 1));
    assert_eq!(of(1 << 12, 16), (1, 1, 1), "too few for vectors");
    // Parts of columns are rows too.
    let parts = sum(&[64, 1024], &[4096], &[4096 * 1024, 1], &[1024]).class;
    assert_eq!((parts.rows_abreast, parts.vector, parts.cascade), (128, 4, 2));
}

#[test]
fn rows_that_fit_into_registers_are_held() {
    let of = |points: u64, stride: u64| held(&sum(&[1000], &[points], &[stride], &[1]));
    assert_eq!(of(24, 24), (8, 4, 1));
    assert_eq!(of(1024, 1024), (32, 4, 8));
    assert_eq!(of(8192, 8192), (256, 4, 8));
    assert_eq!(of(16_384, 16_384), (256, 4, 16), "few threads, which wait for few others");
    assert_eq!(of(32_768, 32_768), (1024, 4, 8), "the most threads of a block, of which there is one");
    assert_eq!(of(32_772, 32_772), (1024, 4, 9), "vectors, which each pass loads again");
    assert_eq!(of(64 * 4096, 64 * 4096).2, 64);
    assert_eq!(of(64 * 4096 + 4, 64 * 4096 + 4).2, 0, "a cascade");
    assert_eq!(of(65_537, 65_537), (1024, 4, 17), "vectors that begin before the row");
    // Loads are as wide as the alignment of all rows.
    assert_eq!(of(1024, 1026), (32, 2, 16));
    assert_eq!(of(1023, 1023), (64, 4, 6), "5 vectors, and one that is skipped");
    assert_eq!(of(72, 72), (8, 4, 3), "18 vectors leave fewer of 8 threads idle than of 32");
    assert_eq!(sum(&[1000], &[1024], &[1024], &[1]).class.cascade, 1);
    // Few rows have a thread for each vector, as far as a row's values fit the registers of so many.
    let of_few = |rows: u64, points: u64| held(&sum(&[rows], &[points], &[points], &[1]));
    assert_eq!([of_few(63, 1024), of_few(64, 1024)], [(256, 4, 1), (32, 4, 8)]);
    assert_eq!([of_few(1, 96), of_few(1, 768), of_few(1, 8192)], [(8, 4, 3), (256, 4, 1), (256, 4, 8)]);
}

#[test]
fn few_classes_serve_rows_of_all_lengths() {
    let classes = |lengths: Range<u64>| {
        let of = |points: u64| {
            let class = sum(&[100], &[points], &[points], &[1]).class;
            (class.lanes, class.vector, class.held, class.shifted)
        };
        lengths.map(of).collect::<HashSet<_>>().len()
    };
    assert!(classes(17..1025) <= 32, "{}", classes(17..1025));
    assert!(classes(17..8193) <= 60, "{}", classes(17..8193));
}

#[test]
fn what_is_kept_between_passes_says_how_many_threads_a_row_has() {
    let row = |rows: &[u64], inner: &[u64]| Placement::Strided { rows: rows.into(), inner: inner.into() };
    let (points, once) = (|| row(&[2048], &[1]), || row(&[1], &[0]));
    let of = |operator: &LoopOp, dtypes: &[DType], operands: &[Placement]| {
        let iteration = Iteration {
            rows: [1000].into_iter().collect(),
            inner: [2048].into_iter().collect(),
            operands: operands.iter().cloned().collect(),
            alignment_bytes: 256,
            shared_memory_bytes: 227 << 10,
            has_clusters: false,
        };
        let signature = operator.signature(dtypes, false, Some(DType::Bf16)).expect("dtypes");
        plan(&forward(operator, &signature).body, &iteration)
    };
    // One value per point: the exponential.
    let softmax = of(&structured::SOFTMAX, &[DType::Bf16], &[points(), points()]);
    assert_eq!(held(&softmax), (64, 8, 4));
    // No values, since all follow from elements of three inputs by few operations. Mean and deviation are the same for the whole
    // row.
    let dtypes = [DType::Bf16, DType::Bf16, DType::F32, DType::F32, DType::Bf16];
    let operands = [points(), row(&[0], &[1]), once(), once(), points(), points()];
    let backward = of(&structured::LAYER_NORM_BACKWARD, &dtypes, &operands);
    assert_eq!((held(&backward), backward.class.repeated), ((128, 8, 2), 0b1100));
    // Longer rows: nothing is computed or loaded again while it fits; then two blocks share a multiprocessor.
    let longer = |points: u64| {
        let row = |inner: u64| Placement::Strided {
            rows: [points].as_slice().into(),
            inner: [inner].as_slice().into(),
        };
        let iteration = Iteration {
            rows: [1000].into_iter().collect(),
            inner: [points].into_iter().collect(),
            operands: [row(1), row(1)].into_iter().collect(),
            alignment_bytes: 256,
            shared_memory_bytes: 227 << 10,
            has_clusters: false,
        };
        let signature =
            structured::SOFTMAX.signature(&[DType::Bf16], false, Some(DType::Bf16)).expect("a dtype");
        held(&plan(&forward(&structured::SOFTMAX, &signature).body, &iteration))
    };
    assert_eq!(longer(8192), (256, 8, 4));
    assert_eq!(longer(1023), (64, 8, 3), "vectors that begin before the rows, and one more");
    assert_eq!(longer(16_384), (256, 8, 8));
    assert_eq!(longer(32_768), (512, 8, 8));
    assert_eq!(longer(65_536), (512, 8, 16), "half of them in shared memory");
    assert_eq!(longer(65_544), (1024, 8, 9), "vectors, which each pass loads again");
    // The class of each row.
    let operands = [points(), once(), row(&[1], &[]), row(&[1], &[])];
    let loss = of(&structured::CROSS_ENTROPY, &[DType::Bf16, DType::I64], &operands);
    assert!(loss.class.online, "a greatest value, and a sum of exponentials");
    assert_eq!((held(&loss), loss.class.repeated), ((64, 8, 0), 0b10));
    // Nothing is combined, and nothing is kept.
    let operands = [points(), once(), once(), once(), points()];
    let dtypes = [DType::Bf16, DType::I64, DType::F32, DType::Bf16];
    let backward = of(&structured::CROSS_ENTROPY_BACKWARD, &dtypes, &operands);
    assert_eq!((held(&backward), backward.class.repeated), ((64, 8, 4), 0b1110));
}

#[test]
fn rows_that_do_not_fit_into_a_multiprocessor_stream_through_a_cluster() {
    let row = |rows: u64, inner: u64| Placement::Strided {
        rows: [rows].as_slice().into(),
        inner: [inner].as_slice().into(),
    };
    let of =
        |operator: &'static LoopOp, dtypes: &[DType], points: u64, stride: u64, operands: &[Placement]| {
            let rows = |placement: &Placement| match placement {
                Placement::Strided { rows, inner } if rows[0] == points => {
                    Placement::Strided { rows: [stride].as_slice().into(), inner: inner.clone() }
                }
                other => other.clone(),
            };
            let iteration = Iteration {
                rows: [100].into_iter().collect(),
                inner: [points].into_iter().collect(),
                operands: operands.iter().map(rows).collect(),
                alignment_bytes: 256,
                shared_memory_bytes: 227 << 10,
                has_clusters: true,
            };
            let signature = operator.signature(dtypes, false, Some(dtypes[0])).expect("dtypes");
            let plan = plan(&forward(operator, &signature).body, &iteration);
            plan.class.streamed.map(|it| (it.cluster, it.groups, it.stages, it.columns))
        };
    let softmax = |dtype: DType, points: u64, stride: u64| {
        of(&structured::SOFTMAX, &[dtype], points, stride, &[row(points, 1), row(points, 1)])
    };
    assert_eq!(softmax(DType::F32, 32_768, 32_768), None, "registers and shared memory of one");
    assert_eq!(softmax(DType::F32, 65_536, 65_536), Some((8, 2, 3, 0)));
    assert_eq!(softmax(DType::F32, 131_072, 131_072), Some((8, 1, 3, 0)));
    assert_eq!(softmax(DType::F32, 1 << 20, 1 << 20), None, "nor does a cluster have memory for it");
    assert_eq!(softmax(DType::F32, 65_536, 65_538), None, "rows begin between the pieces that are copied");
    assert_eq!(softmax(DType::Bf16, 65_536, 65_536), None);
    assert_eq!(softmax(DType::Bf16, 131_072, 131_072), Some((8, 2, 3, 0)));
    // Scale and shift are the same for all rows.
    let layer_norm = |points: u64| {
        let operands = [row(points, 1), row(0, 1), row(0, 1), row(points, 1)];
        let outputs =
            [(); 2].map(|()| Placement::Strided { rows: [1].as_slice().into(), inner: SmallVec::new() });
        let all: Vec<_> = operands.into_iter().chain(outputs).collect();
        of(&structured::LAYER_NORM_AFFINE, &[DType::Bf16; 3], points, points, &all)
    };
    assert_eq!(layer_norm(32_768), None);
    assert_eq!(layer_norm(65_536), Some((4, 2, 2, 0b110)));
}

#[test]
fn a_plan_says_what_it_chose_and_why() {
    let of_sum = |plan: LaunchPlan| plan.explain(&body(&structured::SUM, &[DType::F32]));
    let says = |text: String, parts: &[&str]| {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    says(of_sum(sum(&[1000], &[1024], &[1024], &[1])), &["[1024]", "held by 32 threads, 8 vectors of 4"]);
    says(of_sum(sum(&[100], &[5000], &[15_000], &[3])), &["256 threads per row", "operand 0 have gaps"]);
    says(of_sum(sum(&[100], &[400_000], &[400_000], &[1])), &["does not fit into registers"]);
    says(of_sum(sum(&[1 << 16], &[5000], &[1], &[1 << 16])), &["whole lines of columns", "8 lanes"]);
    let of_add = |plan: LaunchPlan| plan.explain(&body(&table::add, &[DType::F32; 2]));
    says(of_add(elementwise(&[1 << 20], &[&[1][..]; 3], 256)), &["contiguous points, vectors of 4"]);
    says(of_add(elementwise(&[64], &[&[1][..]; 3], 256)), &["one element at a time", "they are few"]);
    let transposed = elementwise(&[128, 64], &[&[1, 128], &[64, 1], &[64, 1]], 256);
    says(of_add(transposed), &["tiles", "inputs 0", "dimension 0"]);
    let gaps = elementwise(&[6, 5], &[&[30, 3], &[5, 1], &[5, 1]], 256);
    says(of_add(gaps), &["strided points, one element", "operand 0 has gaps"]);
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

/// Random numbers (xorshift).
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns the strides of a dense tensor whose dimensions are in a random order; those with a bit in `repeated` are repeated.
    fn strides(&mut self, shape: &[u64], repeated: u64) -> Vec<u64> {
        let mut order: Vec<usize> = (0..shape.len()).collect();
        for place in 1..order.len() {
            order.swap(place, self.below(place as u64 + 1) as usize);
        }
        let (mut strides, mut next) = (vec![0; shape.len()], 1);
        for dimension in order.into_iter().filter(|dimension| repeated >> dimension & 1 == 0) {
            strides[dimension] = next;
            next *= shape[dimension];
        }
        strides
    }
}

#[test]
fn kernels_of_any_sizes_and_layouts_can_be_printed_and_launched() {
    // The extents that decide between forms, up to tensors that no test could hold.
    let extents = [1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 64, 100, 257, 1024, 4096, 50_257, 1 << 16, 1_000_000];
    let mut draw = Draw(0x1234_5678_9abc_def1);
    let (mut planned, mut abreast) = (0, 0);
    for operator in structured::structured().filter(|operator| matches!(operator.space, Space::Rows)) {
        for _ in 0..150 {
            let dtype = draw.pick(&[DType::F32, DType::F16, DType::Bf16, DType::F64]);
            let Ok(signature) = operator.signature(&vec![dtype; operator.input_count], false, None) else {
                continue;
            };
            let body = forward(operator, &signature).body.as_ref().clone();
            if body.inputs.iter().any(|input| input.kind == InputKind::Gathered)
                || body.outputs.iter().any(|output| output.scatter.is_some())
            {
                continue;
            }
            let (row_rank, inner_rank) = (1 + draw.below(2) as usize, 1 + draw.below(2) as usize);
            let shape: Vec<u64> = (0..row_rank + inner_rank).map(|_| draw.pick(&extents)).collect();
            if shape.iter().map(|&extent| u128::from(extent)).product::<u128>() > 1 << 36 {
                continue;
            }
            let places = body
                .inputs
                .iter()
                .map(|_| OutputPlace::Point)
                .chain(body.outputs.iter().map(|output| output.place));
            let operands = places.enumerate().map(|(number, place)| {
                let repeated =
                    if number > 0 && number < body.inputs.len() { draw.below(1 << shape.len()) } else { 0 };
                let (rows, inner) = match place {
                    OutputPlace::Row => (draw.strides(&shape[..row_rank], 0), Vec::new()),
                    OutputPlace::Point => {
                        let mut rows = draw.strides(&shape, repeated);
                        let inner = rows.split_off(row_rank);
                        (rows, inner)
                    }
                };
                Placement::Strided { rows: rows.into(), inner: inner.into() }
            });
            let operands = operands.collect();
            let iteration = Iteration {
                rows: shape[..row_rank].into(),
                inner: shape[row_rank..].into(),
                operands,
                alignment_bytes: draw.pick(&[256, 16, 8]),
                shared_memory_bytes: 227 << 10,
                has_clusters: draw.below(2) == 0,
            };
            let found = plan(&body, &iteration);
            abreast += usize::from(found.class.rows_abreast > 1 && found.class.lanes == 1);
            let kernel = kernel(operator.name, dtype, body, found.class);
            assert!(!cuda::print(&kernel).is_empty());
            let launch = cuda::launch_shape(&kernel, &found.geometry, 132);
            let threads: u32 = launch.block.iter().product();
            assert!(
                (1..=1024).contains(&threads) && launch.grid.iter().all(|&side| side > 0),
                "{}: {launch:?}",
                kernel.name
            );
            planned += 1;
        }
    }
    assert!(
        planned > 3000 && abreast > 10,
        "{planned} kernels, {abreast} with rows abreast that threads reduce alone"
    );
}
