//! Results that a sample's values do not determine: numbers from PyTorch's CPU generator, the order of equal elements, and
//! differences between PyTorch on CUDA and on the CPU, on which the goldens are made.

use serde_json::{Value as Json, json};
use thalweg_tensor::Tensor;

use super::file::list;
use super::numbers::Numbers;

/// Operators that draw random numbers, by their names without overload.
const DRAWING: &[&str] = &[
    "alpha_dropout",
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "dropout",
    "exponential_",
    "feature_alpha_dropout",
    "feature_dropout",
    "geometric_",
    "log_normal_",
    "multinomial",
    "native_dropout",
    "normal",
    "normal_",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "rrelu",
    "uniform_",
];

/// Operators for which PyTorch leaves the order of equal elements unspecified.
const UNORDERED: &[&str] = &["argsort", "kthvalue", "median", "mode", "msort", "sort", "topk"];

/// Operators with statistics of 16-bit floats after their first result, which PyTorch keeps in float32 on CUDA.
const STATISTICS: &[&str] = &[
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "native_batch_norm",
    "native_layer_norm",
    "native_group_norm",
];

fn base(call: &Json) -> &str {
    let name = call[0].as_str().unwrap_or_default();
    name.split_once('.').map_or(name, |(base, _)| base)
}

/// Returns whether the sample's numbers are those of PyTorch's CPU generator, so that only dtypes and shapes can agree.
pub fn is_random(sample: &Json) -> bool {
    let draws = |call: &Json| {
        let is_off = ["train", "training"].iter().any(|flag| call[1][flag] == Json::Bool(false));
        DRAWING.contains(&base(call)) && !is_off || call[1]["dropout_p"].as_f64().is_some_and(|p| p > 0.0)
    };
    sample["random"] == Json::Bool(true) || list(&sample["calls"]).iter().any(draws)
}

/// Returns whether a result is a statistic that CUDA keeps in float32.
pub fn is_statistic(sample: &Json, output: usize) -> bool {
    output > 0 && list(&sample["calls"]).iter().any(|call| STATISTICS.contains(&base(call)))
}

/// Returns whether the sample is one call that returns only indices, without the values at them.
pub fn gives_places_alone(sample: &Json) -> bool {
    matches!(list(&sample["calls"]), [call] if base(call) == "argsort")
}

/// Returns the dimension along which equal elements may be in any order, if the sample is one call that leaves it unspecified.
pub fn unordered_dimension(sample: &Json, rank: usize) -> Option<usize> {
    let [call] = list(&sample["calls"]) else { return None };
    if !UNORDERED.contains(&base(call)) || call[1]["stable"] == Json::Bool(true) || rank == 0 {
        return None;
    }
    let dim = match base(call) {
        "msort" => 0,
        // Of all elements.
        "median" if call[1].get("dim").is_none() => return None,
        _ => call[1].get("dim").and_then(Json::as_i64).unwrap_or(-1),
    };
    Some(dim.rem_euclid(rank as i64) as usize)
}

/// Returns whether the sample's first result is eigenvalues, which PyTorch returns in no order; its other results have their
/// order along the last dimension.
pub fn has_eigenvalues(sample: &Json) -> bool {
    list(&sample["calls"]).first().is_some_and(|call| matches!(base(call), "linalg_eig" | "linalg_eigvals"))
}

/// Returns the indices along the last dimension of the found eigenvalues closest to the expected ones.
pub fn order_of_eigenvalues(found: &Tensor, expected: &Numbers) -> Result<Tensor, String> {
    let Numbers::Floats(expected) = expected else { return Err("eigenvalues are not floats".to_owned()) };
    let numbers = floats(Numbers::of_tensor(found)?);
    let n = found.shape().last().copied().unwrap_or(0).max(1);
    if numbers.len() != expected.len() {
        return Err(format!("{} parts of eigenvalues, PyTorch's {}", numbers.len(), expected.len()));
    }
    let mut places = Vec::new();
    for (line, wanted) in numbers.chunks(2 * n).zip(expected.chunks(2 * n)) {
        let mut left: Vec<usize> = (0..n).collect();
        for wanted in wanted.chunks(2) {
            let distance =
                |&place: &usize| (line[2 * place] - wanted[0]).hypot(line[2 * place + 1] - wanted[1]);
            let nearest = (0..left.len()).min_by(|&a, &b| distance(&left[a]).total_cmp(&distance(&left[b])));
            places.push(left.swap_remove(nearest.expect("there are as many eigenvalues")) as i64);
        }
    }
    Tensor::from_slice(&places, found.shape(), found.device()).map_err(|error| error.to_string())
}

/// Returns a result with its last dimension in an order of the eigenvalues.
pub fn in_order(result: &Tensor, order: &Tensor) -> Result<Tensor, String> {
    let order = if result.rank() > order.rank() {
        order.unsqueeze(-2).and_then(|order| order.expand(result.shape()))
    } else {
        Ok(order.clone())
    };
    order.and_then(|order| result.gather(-1, &order)).map_err(|error| error.to_string())
}

/// Returns elements of a tensor of this shape as the lines along a dimension.
fn lines<T: Copy>(elements: &[T], shape: &[usize], dimension: usize) -> Vec<Vec<T>> {
    let length = shape[dimension];
    let inner: usize = shape[dimension + 1..].iter().product();
    let outer: usize = shape[..dimension].iter().product();
    let line = |o: usize, i: usize| (0..length).map(|at| elements[(o * length + at) * inner + i]).collect();
    (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| line(o, i)).collect()
}

fn floats(numbers: Numbers) -> Vec<f64> {
    match numbers {
        Numbers::Floats(list) => list,
        Numbers::Integers(list) => list.into_iter().map(|number| number as f64).collect(),
    }
}

/// Checks indices along a dimension, which may be left out, by the values at them: each index occurs at most once per line.
pub fn places_agree(
    input: &Tensor,
    places: &Tensor,
    values: &Tensor,
    dimension: usize,
) -> Result<(), String> {
    if places.rank() < input.rank() {
        let kept = |tensor: &Tensor| tensor.unsqueeze(dimension as i64).map_err(|error| error.to_string());
        return places_agree(input, &kept(places)?, &kept(values)?, dimension);
    }
    let (input_lines, place_lines, value_lines) = (
        lines(&floats(Numbers::of_tensor(input)?), input.shape(), dimension),
        lines(&floats(Numbers::of_tensor(places)?), places.shape(), dimension),
        lines(&floats(Numbers::of_tensor(values)?), values.shape(), dimension),
    );
    for ((input, places), values) in input_lines.iter().zip(&place_lines).zip(&value_lines) {
        let mut seen = vec![false; input.len()];
        for (&place, &value) in places.iter().zip(values) {
            let place = place as usize;
            let agrees = input.get(place).is_some_and(|&at| at == value || at.is_nan() && value.is_nan());
            if !agrees || std::mem::replace(&mut seen[place], true) {
                return Err(format!("place {place} does not hold {value}, or is named twice"));
            }
        }
    }
    Ok(())
}

/// Returns gradients with those of equal elements of a line in order, so that their assignment does not matter.
pub fn among_equals(input: &Tensor, gradient: Numbers, dimension: usize) -> Result<Numbers, String> {
    let values = lines(&floats(Numbers::of_tensor(input)?), input.shape(), dimension);
    let gradients = lines(&floats(gradient), input.shape(), dimension);
    let sorted = values.into_iter().zip(gradients).flat_map(|(values, gradients)| {
        let mut pairs: Vec<(f64, f64)> = values.into_iter().zip(gradients).collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        pairs.into_iter().map(|(_, gradient)| gradient)
    });
    Ok(Numbers::Floats(sorted.collect()))
}

#[test]
fn eigenvalues_stand_in_the_order_that_is_expected() {
    let device = crate::support::device();
    let parts = Tensor::from_slice(&[3.0, 0.0, 1.0, -1.0, 1.0, 1.0], &[3, 2], &device).unwrap();
    let found = parts.view_as_complex().unwrap();
    let expected = vec![1.0, 1.0, 3.0, 0.0, 1.0, -1.0];
    let order = order_of_eigenvalues(&found, &Numbers::Floats(expected.clone())).unwrap();
    assert_eq!(order.to_vec::<i64>().unwrap(), [2, 0, 1]);
    let ordered = Numbers::of_tensor(&in_order(&found, &order).unwrap()).unwrap();
    assert_eq!(floats(ordered), expected);
}

#[test]
fn equal_elements_may_stand_in_any_order() {
    let device = crate::support::device();
    let tensor = |list: &[f32]| Tensor::from_slice(list, &[list.len()], &device).unwrap();
    let places = |list: &[i64]| Tensor::from_slice(list, &[list.len()], &device).unwrap();
    let (input, values) = (tensor(&[2.0, 1.0, 2.0]), tensor(&[1.0, 2.0, 2.0]));
    assert!(places_agree(&input, &places(&[1, 0, 2]), &values, 0).is_ok());
    assert!(places_agree(&input, &places(&[1, 2, 0]), &values, 0).is_ok());
    assert!(places_agree(&input, &places(&[1, 2, 2]), &values, 0).is_err());
    assert!(places_agree(&input, &places(&[0, 1, 2]), &values, 0).is_err());
    let sorted = |list: &[f64]| match among_equals(&input, Numbers::Floats(list.to_vec()), 0).unwrap() {
        Numbers::Floats(list) => list,
        Numbers::Integers(_) => unreachable!("gradients are floats"),
    };
    assert_eq!(sorted(&[3.0, 7.0, 5.0]), sorted(&[5.0, 7.0, 3.0]));
    assert_ne!(sorted(&[3.0, 7.0, 5.0]), sorted(&[3.0, 5.0, 7.0]));
    let sample = json!({"calls": [["sort", {"self": {"t": 0}, "dim": -1}, [1, 2]]]});
    assert_eq!(unordered_dimension(&sample, 2), Some(1));
    let stable = json!({"calls": [["sort.stable", {"self": {"t": 0}, "stable": true}, [1, 2]]]});
    assert_eq!(unordered_dimension(&stable, 2), None);
}
