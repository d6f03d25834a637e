//! Symmetric matrices that are not definite, eigenvalues of matrices that are not symmetric, exponentials, least squares,
//! transforms of frames and reductions of segments: compared with their definitions.

use thalweg_ir::{DType, c128};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Value, find_operator};

use crate::support::{assert_close, check_gradient, device, random, tensor, values};

fn call(name: &str, arguments: &[Value]) -> Vec<Tensor> {
    let results = find_operator(name).unwrap().call_boxed(arguments, Some(&device())).unwrap();
    results
        .into_iter()
        .map(|value| if let Value::Tensor(x) = value { x } else { panic!("{value:?}") })
        .collect()
}

fn transposed(x: &Tensor) -> Tensor {
    x.transpose(-2, -1).unwrap()
}

fn times(a: &Tensor, b: &Tensor) -> Tensor {
    a.matmul(b).unwrap()
}

#[test]
fn symmetric_matrices_are_solved_by_blocks_of_one_and_two() {
    for (n, seed) in [(1, 1), (2, 2), (5, 3), (9, 4), (33, 5)] {
        let x = random(&[3, n, n], seed);
        let mut a = x.add(&transposed(&x)).unwrap();
        if n == 9 {
            // Without a diagonal every block is one of two.
            a = a.tril(-1).unwrap().add(&a.triu(1).unwrap()).unwrap();
        }
        let b = random(&[3, n, 2], seed + 100);
        let [factors, pivots] = a.tril(0).unwrap().linalg_ldl_factor().unwrap();
        let solution = factors.linalg_ldl_solve(&pivots, &b).unwrap();
        assert_close(&values(&times(&a, &solution)), &values(&b), 1e-9);
        let has_pairs = values(&pivots).iter().any(|&pivot| pivot < 0.0);
        assert_eq!(has_pairs, n > 1, "{n}: {:?}", values(&pivots));
    }
    let zeros = tensor(&[0.0; 4], &[2, 2], DType::F64);
    assert!(zeros.linalg_ldl_factor().unwrap_err().is_invalid_argument());
    let info = call("linalg_ldl_factor_ex", &[Value::Tensor(zeros)]).remove(2);
    assert_eq!(info.to_vec::<i32>().unwrap(), [1]);
    // Rows that do not exist are not swapped.
    let pivots = Tensor::from_slice(&[i32::MIN, i32::MAX, 0, -9, -1], &[5], &device()).unwrap();
    random(&[5, 5], 7).linalg_ldl_solve(&pivots, &random(&[5, 1], 8)).unwrap().to_vec::<f64>().unwrap();
}

#[test]
fn eigenvectors_are_stretched_by_eigenvalues() {
    for (n, seed) in [(1, 1), (2, 2), (3, 3), (8, 4), (40, 5)] {
        let a = random(&[2, n, n], seed);
        let [values_of, vectors] = a.linalg_eig().unwrap();
        let wide = a.to_dtype(DType::C128).unwrap();
        let left = times(&wide, &vectors);
        let right = vectors.mul(&values_of.unsqueeze(1).unwrap()).unwrap();
        let difference = left.sub(&right).unwrap().abs().unwrap();
        assert!(values(&difference).iter().all(|&part| part < 1e-12 * n as f64), "{n}");
        let lengths = vectors.abs().unwrap().square().unwrap().sum(&[1], false).unwrap();
        assert_close(&values(&lengths), &vec![1.0; 2 * n], 1e-13);
        let trace = a.diagonal(0, 1, 2).unwrap().sum(&[-1], false).unwrap();
        let sum = values_of.sum(&[-1], false).unwrap();
        assert_close(&values(&sum.real().unwrap()), &values(&trace), 1e-12);
    }
    // A rotation by a right angle, a block of Jordan, elements whose squares overflow.
    let list = [0.0, -1.0, 1.0, 0.0, 2.0, 1.0, 0.0, 2.0, 1e200, 0.0, 1e200, -3e200];
    let found = tensor(&list, &[3, 2, 2], DType::F64).linalg_eigvals().unwrap().to_vec::<c128>().unwrap();
    let mut turn: Vec<f64> = found[..2].iter().map(|value| value.im).collect();
    turn.sort_by(f64::total_cmp);
    assert_close(&turn, &[-1.0, 1.0], 1e-14);
    assert!(found[2..4].iter().all(|value| (value.re - 2.0).abs() < 1e-7 && value.im.abs() < 1e-7));
    let mut large: Vec<f64> = found[4..].iter().map(|value| value.re / 1e200).collect();
    large.sort_by(f64::total_cmp);
    assert_close(&large, &[-3.0, 1.0], 1e-14);
    assert!(tensor(&[f64::NAN], &[1, 1], DType::F64).linalg_eigvals().unwrap_err().is_invalid_argument());
    // The sizes of eigenvalues and of the vectors' elements do not depend on a phase.
    check_gradient(&random(&[4, 4], 9), |x| {
        let [values_of, vectors] = x.linalg_eig().unwrap();
        let sizes = vectors.abs().unwrap().square().unwrap();
        values_of.abs().unwrap().add(&sizes.select(0, 0).unwrap()).unwrap()
    });
}

#[test]
fn exponentials_of_matrices_are_rotations_and_growth() {
    let angle = 3.0_f64;
    let list = [0.0, -angle, angle, 0.0, 1.0, 2.0, 0.0, -5.0];
    let found = tensor(&list, &[2, 2, 2], DType::F64).matrix_exp().unwrap();
    let growth = [1.0_f64.exp(), (1.0_f64.exp() - (-5.0_f64).exp()) / 3.0, 0.0, (-5.0_f64).exp()];
    let turn = [angle.cos(), -angle.sin(), angle.sin(), angle.cos()];
    assert_close(&values(&found), &[turn, growth].concat(), 1e-14);
    check_gradient(&random(&[3, 3], 4), |x| x.matrix_exp().unwrap());
    let turn = tensor(&[0.5], &[1, 1], DType::F64).complex(&tensor(&[2.0], &[1, 1], DType::F64)).unwrap();
    let found = turn.matrix_exp().unwrap().to_vec::<c128>().unwrap()[0];
    assert_close(
        &[found.re, found.im],
        &[0.5_f64.exp() * 2.0_f64.cos(), 0.5_f64.exp() * 2.0_f64.sin()],
        1e-14,
    );
}

#[test]
fn least_squares_leave_a_rest_that_is_orthogonal() {
    for (rows, columns) in [(6, 3), (3, 3), (3, 6)] {
        let (a, b) = (random(&[2, rows, columns], 1), random(&[2, rows, 2], 2));
        let results = call("linalg_lstsq", &[Value::Tensor(a.clone()), Value::Tensor(b.clone())]);
        let rest = times(&a, &results[0]).sub(&b).unwrap();
        assert_close(&values(&times(&transposed(&a), &rest)), &vec![0.0; 2 * columns * 2], 1e-12);
        let squares = rest.square().unwrap().sum(&[1], false).unwrap();
        let expected = if rows > columns { values(&squares) } else { Vec::new() };
        assert_close(&values(&results[1]), &expected, 1e-12);
        assert_eq!((results[2].elements(), results[3].elements()), (0, 0));
        let vector = b.select(2, 0).unwrap();
        let found = call("linalg_lstsq", &[Value::Tensor(a.clone()), Value::Tensor(vector)]);
        assert_close(&values(&found[0]), &values(&results[0].select(2, 0).unwrap()), 1e-12);
    }
    let twice = tensor(&[1.0, 2.0, 2.0, 4.0, 3.0, 6.0], &[3, 2], DType::F64);
    let right = tensor(&[1.0, 2.0, 3.0], &[3, 1], DType::F64);
    let driver = [Value::None, Value::Str("gelsd".into())];
    let results = call("linalg_lstsq", &[[Value::Tensor(twice), Value::Tensor(right)], driver].concat());
    assert_close(&values(&results[0]), &[0.2, 0.4], 1e-13);
    assert_eq!(results[2].to_vec::<i64>().unwrap(), [1]);
    assert_eq!(results[1].elements(), 0, "there are no residuals of a matrix without full rank");
}

#[test]
fn equations_of_complex_numbers_are_solved() {
    let part = |seed| random(&[2, 5, 5], seed);
    let a = part(1).complex(&part(2)).unwrap();
    let b = part(3).complex(&part(4)).unwrap();
    let solution = a.linalg_solve(&b).unwrap();
    let off = times(&a, &solution).sub(&b).unwrap().abs().unwrap();
    assert!(values(&off).iter().all(|&size| size < 1e-12));
    let off = times(&a, &a.linalg_inv().unwrap()).abs().unwrap();
    assert_close(&values(&off.sum(&[1], false).unwrap()), &[1.0; 10], 1e-11);
}

#[test]
fn signals_come_back_from_their_frames() {
    let signal = random(&[2, 60], 1);
    let window = Tensor::full(&[12], 0.75, DType::F64, &device()).unwrap();
    let options = [Value::Int(16), Value::Int(4), Value::Int(12), Value::Tensor(window)];
    let given =
        [Value::Bool(true), Value::Str("reflect".into()), Value::Bool(true), Value::None, Value::Bool(true)];
    let mut arguments = vec![Value::Tensor(signal.clone())];
    arguments.extend(options.iter().chain(&given).cloned());
    let frames = call("stft.center", &arguments).remove(0);
    assert_eq!((frames.shape(), frames.dtype()), ([2, 9, 16].as_slice(), DType::C128));
    let mut arguments = vec![Value::Tensor(frames.clone())];
    arguments.extend(options.iter().cloned().chain([Value::Bool(true), Value::Bool(true)]));
    let found = call("istft", &arguments).remove(0);
    assert_close(&values(&found), &values(&signal), 1e-13);
    arguments.extend([Value::None, Value::Int(64)]);
    let longer = call("istft", &arguments).remove(0);
    assert_eq!(longer.shape(), [2, 64]);
    // Frames that leave points without weight do not determine them.
    let apart = [Value::Tensor(frames), Value::Int(16), Value::Int(4), Value::Int(4)];
    let gaps = [Value::Tensor(Tensor::zeros(&[4], DType::F64, &device()).unwrap())];
    let error = find_operator("istft").unwrap().call_boxed(&[&apart[..], &gaps].concat(), None).unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
}

#[test]
fn segments_are_reduced_apart() {
    let x = tensor(&[3.0, 1.0, 4.0, 1.0, 5.0, 9.0], &[6], DType::F64);
    let by = |reduce: &str, name: &str, list: &[i64]| {
        let list = Value::Tensor(Tensor::from_slice(list, &[list.len()], &device()).unwrap());
        let [lengths, offsets] = if name == "lengths" { [list, Value::None] } else { [Value::None, list] };
        let arguments = [Value::Tensor(x.clone()), Value::Str(reduce.into()), lengths, Value::None, offsets];
        find_operator("segment_reduce").unwrap().call_boxed(&arguments, None).map(|results| {
            match &results[0] {
                Value::Tensor(result) => values(result),
                other => panic!("{other:?}"),
            }
        })
    };
    assert_eq!(by("sum", "lengths", &[2, 0, 3, 1]).unwrap(), [4.0, 0.0, 10.0, 9.0]);
    assert_eq!(by("prod", "lengths", &[2, 0, 3, 1]).unwrap(), [3.0, 1.0, 20.0, 9.0]);
    assert_eq!(by("max", "lengths", &[2, 0, 3, 1]).unwrap(), [3.0, f64::NEG_INFINITY, 5.0, 9.0]);
    // Elements before the first segment or after the last are in none.
    assert_eq!(by("mean", "offsets", &[1, 3, 5]).unwrap(), [2.5, 3.0]);
    assert_eq!(by("min", "offsets", &[2, 2, 4]).unwrap(), [f64::INFINITY, 1.0]);
    assert!(by("sum", "lengths", &[2, 2]).unwrap_err().is_invalid_argument());
    assert!(by("sum", "lengths", &[-1, 7]).unwrap_err().is_invalid_argument());
}
