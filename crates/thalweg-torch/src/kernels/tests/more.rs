//! Reductions, dimensions that are not the last, and copies.
use super::*;

fn reduced(x: &[f32], [before, columns, after]: [usize; 3], of: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let row = |row: usize| {
        let first = row / after * columns * after + row % after;
        (0..columns).map(|column| f64::from(x[first + column * after])).collect::<Vec<_>>()
    };
    (0..before * after).map(|place| of(&row(place))).collect()
}

#[test]
fn softmax_of_a_dimension_in_the_middle_is_computed() {
    let (kernels, x) = (kernels(), values(2 * 5 * 6));
    for dimension in [1_i64, -2] {
        let arguments = [tensor(&[2, 5, 6], &x), dimension as u64, 0];
        let (sizes, actual) = read(call(&kernels, Operator::Softmax, &arguments, 1)[0]);
        assert_eq!(sizes, [2, 5, 6]);
        let expected: Vec<f64> = (0..60)
            .map(|place| {
                let (first, after) = (place / 30 * 30 + place % 6, 6);
                let sum: f64 = (0..5).map(|row| f64::from(x[first + row * after]).exp()).sum();
                f64::from(x[place]).exp() / sum
            })
            .collect();
        assert_near(&actual, &expected);
    }
    assert_eq!((asked(), objects()), (vec![], 0));
}

/// Returns the greatest of numbers.
fn greatest(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn reductions_along_neighbouring_dimensions_are_computed() {
    let (kernels, x) = (kernels(), values(2 * 3 * 4 * 5));
    type Of = fn(&[f64]) -> f64;
    let cases: [(Operator, Of); 4] = [
        (Operator::Sum, |row| row.iter().sum()),
        (Operator::Mean, |row| row.iter().sum::<f64>() / row.len() as f64),
        (Operator::Amax, greatest),
        (Operator::LogSumExp, |row| row.iter().map(|x| x.exp()).sum::<f64>().ln()),
    ];
    for (operator, of) in cases {
        let with_dtype = matches!(operator, Operator::Sum | Operator::Mean);
        let (dims, shapes) = (
            [vec![3], vec![-2, -1], vec![0], vec![2, 1]],
            [
                ([24, 5, 1], vec![2, 3, 4], vec![2, 3, 4, 1]),
                ([6, 20, 1], vec![2, 3], vec![2, 3, 1, 1]),
                ([1, 2, 60], vec![3, 4, 5], vec![1, 3, 4, 5]),
                ([2, 12, 5], vec![2, 5], vec![2, 1, 1, 5]),
            ],
        );
        for (dims, (rows, dropped, kept)) in dims.iter().zip(shapes) {
            for keeps in [false, true] {
                let dims = list(&dims.iter().map(|&place: &i64| place as u64).collect::<Vec<_>>());
                let input = tensor(&[2, 3, 4, 5], &x);
                let mut arguments =
                    vec![input, if with_dtype { optional(dims) } else { dims }, u64::from(keeps)];
                arguments.extend(with_dtype.then_some(0));
                let (sizes, actual) = read(call(&kernels, operator, &arguments, 1)[0]);
                assert_eq!(&sizes, if keeps { &kept } else { &dropped }, "{operator:?}");
                assert_near(&actual, &reduced(&x, rows, of));
            }
        }
        assert_eq!(kernels.counts(operator).taken.load(Ordering::Relaxed), 8);
    }
    assert_eq!((asked(), objects()), (vec![], 0));
}

#[test]
fn reductions_that_are_not_taken_go_to_pytorchs_kernels_as_they_came() {
    let (kernels, x) = (kernels(), values(24));
    let input = || tensor(&[2, 3, 4], &x);
    let number = |number: i32| optional(number as u64);
    let cases = [
        (Operator::Sum, vec![input(), 0, 0, 0], "reduce [2, 3, 4] None false None"),
        (Operator::Sum, vec![input(), optional(list(&[])), 1, 0], "reduce [2, 3, 4] Some([]) true None"),
        (
            Operator::Mean,
            vec![input(), optional(list(&[1])), 0, number(F64)],
            "reduce [2, 3, 4] Some([1]) false Some(7)",
        ),
        (
            Operator::Sum,
            vec![input(), optional(list(&[0, 2])), 0, 0],
            "reduce [2, 3, 4] Some([0, 2]) false None",
        ),
        (Operator::Amax, vec![input(), list(&[1, 1]), 0], "reduce [2, 3, 4] [1, 1] false"),
        (Operator::LogSumExp, vec![input(), list(&[3]), 1], "reduce [2, 3, 4] [3] true"),
        (
            Operator::LogSumExp,
            vec![input(), list(&[i64::MIN as u64]), 1],
            "reduce [2, 3, 4] [-9223372036854775808] true",
        ),
    ];
    for (operator, arguments, text) in cases {
        let (sizes, _) = read(call(&kernels, operator, &arguments, 1)[0]);
        assert_eq!((sizes, asked()), (vec![7], vec![text.to_owned()]));
    }
    assert_eq!(objects(), 0);
}

/// Creates a view with strides of its own over these values.
pub(super) fn view(sizes: &[i64], strides: &[i64], values: &[f32]) -> u64 {
    let memory = tensor(&[values.len() as i64], values) as Handle;
    let address = implementation(memory).address;
    // SAFETY: a handle of the test's.
    unsafe { shim::delete_handle(memory) };
    let (sizes, strides) = (sizes.to_vec(), strides.to_vec());
    let view =
        Implementation { sizes, dtype: F32, address, is_contiguous: false, is_on_host: false, strides };
    world(|world| world.handle(Box::into_raw(Box::new(view)) as u64)) as u64
}

#[test]
fn transposing_copies_are_taken_and_others_are_not() {
    let (kernels, x) = (kernels(), values(2 * 16 * 24));
    let arguments = [view(&[2, 24, 16], &[384, 1, 24], &x), optional(0)];
    let (sizes, actual) = read(call(&kernels, Operator::Clone, &arguments, 1)[0]);
    assert_eq!(sizes, [2, 24, 16]);
    let at = |place: usize| f64::from(x[place / 384 * 384 + place % 16 * 24 + place % 384 / 16]);
    assert_near(&actual, &(0..768).map(at).collect::<Vec<_>>());
    assert_eq!(asked(), Vec::<String>::new());
    let others = [
        // Another layout, the layout as it is, one that is contiguous, a repeated dimension, and few points.
        (vec![view(&[24, 16], &[1, 24], &x), optional(2)], "clone [24, 16] Some(2)"),
        (vec![view(&[24, 16], &[1, 24], &x), 0], "clone [24, 16] None"),
        (vec![tensor(&[24, 16], &x[..384]), optional(0)], "clone [24, 16] Some(0)"),
        (vec![view(&[3, 24, 16], &[0, 1, 24], &x), optional(0)], "clone [3, 24, 16] Some(0)"),
        (vec![view(&[24, 4], &[1, 24], &x), optional(0)], "clone [24, 4] Some(0)"),
        (vec![view(&[], &[], &x), optional(0)], "clone [] Some(0)"),
    ];
    for (arguments, text) in others {
        let (sizes, _) = read(call(&kernels, Operator::Clone, &arguments, 1)[0]);
        assert_eq!((sizes, asked()), (vec![7], vec![text.to_owned()]));
    }
    assert_eq!(objects(), 0);
}
