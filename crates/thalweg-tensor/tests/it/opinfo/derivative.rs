//! The derivative of a function of tensors in one direction, by autograd and by finite differences.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::{BackwardOptions, gradients_with};

/// A function that computes tensors from tensors.
pub type Function<'f> = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>, String> + 'f;

/// A function that computes, from points and the weights of the results, the gradient of the weighted sum with respect to each
/// point.
type Gradient<'f> = dyn Fn(&[Tensor], &[Tensor]) -> Result<Vec<Option<Tensor>>, String> + 'f;

/// The distance by which points are moved.
const STEP: f64 = 1e-6;

/// The outcome of a comparison.
pub enum Derivative {
    /// The derivative agrees with differences.
    Agrees,
    /// Results are not finite, or differences to the two sides differ: there is no derivative.
    Missing,
    /// A reason.
    Differs(String),
}

/// Returns the text of an error.
pub fn text(error: thalweg_runtime::Error) -> String {
    error.to_string()
}

/// Returns the numbers of a tensor in f64, of complex ones the parts.
fn numbers(tensor: &Tensor) -> Result<Vec<f64>, String> {
    let tensor = tensor.detach();
    let real = if tensor.dtype().is_complex() { tensor.view_as_real().map_err(text)? } else { tensor };
    real.to_dtype(DType::F64).and_then(|wide| wide.to_vec()).map_err(text)
}

/// Returns numbers in [−1, 1) without a pattern, in the shape and dtype of a tensor.
fn direction(like: &Tensor, salt: usize) -> Result<Tensor, String> {
    let is_complex = like.dtype().is_complex();
    let count = like.elements() * if is_complex { 2 } else { 1 };
    // The places of multiples of irrational numbers on a circle.
    let turn =
        |place: usize| (place as f64 + 1.0) * 0.618_033_988_749_894_9 + salt as f64 * 0.414_213_562_373_095_1;
    let drawn: Vec<f64> = (0..count).map(|place| 2.0 * turn(place).fract() - 1.0).collect();
    let mut shape = like.shape().to_vec();
    shape.extend(is_complex.then_some(2));
    let flat = Tensor::from_slice(&drawn, &shape, like.device()).map_err(text)?;
    if is_complex { flat.view_as_complex() } else { flat.to_dtype(like.dtype()) }.map_err(text)
}

fn directions(tensors: &[Tensor], salt: usize) -> Result<Vec<Tensor>, String> {
    tensors.iter().enumerate().map(|(place, tensor)| direction(tensor, salt + place)).collect()
}

/// Returns the sum of products of two lists of tensors, and that of the products' absolute values. The parts of complex numbers are
/// numbers by themselves, which is how PyTorch defines gradients of complex numbers.
fn dot(a: &[Tensor], b: &[Tensor]) -> Result<[f64; 2], String> {
    let mut sums = [0.0; 2];
    for (a, b) in a.iter().zip(b) {
        for (a, b) in numbers(a)?.into_iter().zip(numbers(b)?) {
            sums[0] += a * b;
            sums[1] += (a * b).abs();
        }
    }
    Ok(sums)
}

fn moved(points: &[Tensor], directions: &[Tensor], step: f64) -> Result<Vec<Tensor>, String> {
    let pairs = points.iter().zip(directions);
    let moved = pairs.map(|(point, direction)| point.detach().add(&direction.mul_scalar(step)?));
    moved.collect::<Result<_, _>>().map_err(text)
}

/// Compares the derivative of a weighted sum of a function's results, with respect to all points at once, with differences.
fn compare(
    function: &Function<'_>,
    gradient: &Gradient<'_>,
    points: &[Tensor],
) -> Result<Derivative, String> {
    let base = function(points)?;
    let weights = directions(&base, 1)?;
    let ways = directions(points, 50)?;
    let at = |step: f64| dot(&function(&moved(points, &ways, step)?)?, &weights);
    let [middle, size] = dot(&base, &weights)?;
    let ([above, _], [below, _]) = (at(STEP)?, at(-STEP)?);
    let (right, left) = ((above - middle) / STEP, (middle - below) / STEP);
    let difference = (above - below) / (2.0 * STEP);
    let (mut slope, mut scale) = (0.0, difference.abs());
    for (gradient, way) in gradient(points, &weights)?.into_iter().zip(ways) {
        let Some(gradient) = gradient else { continue };
        let [sum, sizes] = dot(&[gradient], &[way])?;
        slope += sum;
        scale += sizes;
    }
    // The rounding error of differences, in addition to a relative and an absolute bound.
    let allowed = 1e-6 + 1e-5 * scale + 1e-14 * size / STEP;
    let bend = (right - left).abs();
    Ok(if !bend.is_finite() || bend > 0.1 * scale + 100.0 * allowed {
        Derivative::Missing
    } else if (slope - difference).abs() <= allowed {
        Derivative::Agrees
    } else if bend > 100.0 * allowed {
        Derivative::Missing
    } else {
        Derivative::Differs(format!("the derivative is {slope}, by differences {difference}"))
    })
}

fn leaves_of(points: &[Tensor]) -> Result<Vec<Tensor>, String> {
    points.iter().map(|point| point.detach().requires_grad_().map_err(text)).collect()
}

/// Returns the gradients of results with respect to leaves, with a graph of their own if requested.
fn gradients(
    outputs: &[Tensor],
    weights: &[Tensor],
    leaves: &[Tensor],
    create_graph: bool,
) -> Result<Vec<Option<Tensor>>, String> {
    let weights: Vec<Option<Tensor>> = weights.iter().cloned().map(Some).collect();
    let options = BackwardOptions { create_graph, ..BackwardOptions::default() };
    gradients_with(outputs, &weights, leaves, options).map_err(text)
}

/// Compares the gradients of a function's results with differences.
pub fn first_order(function: &Function<'_>, points: &[Tensor]) -> Result<Derivative, String> {
    let gradient = |points: &[Tensor], weights: &[Tensor]| {
        let leaves = leaves_of(points)?;
        gradients(&function(&leaves)?, weights, &leaves, false)
    };
    compare(function, &gradient, points)
}

/// Compares the gradients of the gradients, with respect to the points and to the weights of the results, with differences.
pub fn second_order(function: &Function<'_>, points: &[Tensor]) -> Result<Derivative, String> {
    let count = points.len();
    let weights = directions(&function(points)?, 20)?;
    let points = [points, &weights].concat();
    let first = |points: &[Tensor]| -> Result<Vec<Tensor>, String> {
        let leaves = leaves_of(&points[..count])?;
        let found = gradients(&function(&leaves)?, &points[count..], &leaves, false)?;
        let pairs = found.into_iter().zip(&leaves);
        pairs
            .map(|(gradient, leaf)| match gradient {
                Some(gradient) => Ok(gradient),
                None => leaf.detach().zeros_like().map_err(text),
            })
            .collect()
    };
    let gradient = |points: &[Tensor], weights: &[Tensor]| {
        let all = leaves_of(points)?;
        let (leaves, given) = all.split_at(count);
        let found = gradients(&function(leaves)?, given, leaves, true)?;
        let (mut roots, mut of_roots) = (Vec::new(), Vec::new());
        for (gradient, weight) in found.into_iter().zip(weights) {
            if let Some(gradient) = gradient.filter(Tensor::requires_grad) {
                roots.push(gradient);
                of_roots.push(weight.clone());
            }
        }
        gradients(&roots, &of_roots, &all, false)
    };
    compare(&first, &gradient, &points)
}

#[test]
fn a_wrong_gradient_differs_and_a_kink_has_none() {
    let point = |numbers: &[f64]| vec![crate::support::tensor(numbers, &[numbers.len()], DType::F64)];
    let of = |factor: f64| {
        move |leaves: &[Tensor]| {
            let x = leaves[0].mul_scalar(1.0).map_err(text)?;
            if x.requires_grad() {
                let hook = move |gradient: &Tensor| gradient.mul_scalar(factor).map(Some);
                x.register_hook(hook).map_err(text)?;
            }
            Ok(vec![x.square().map_err(text)?])
        }
    };
    let points = point(&[0.5, -1.5, 2.0]);
    assert!(matches!(first_order(&of(1.0), &points), Ok(Derivative::Agrees)));
    assert!(matches!(first_order(&of(1.001), &points), Ok(Derivative::Differs(_))));
    assert!(matches!(second_order(&of(1.0), &points), Ok(Derivative::Agrees)));
    assert!(matches!(second_order(&of(1.001), &points), Ok(Derivative::Differs(_))));
    let kink = |leaves: &[Tensor]| Ok(vec![leaves[0].relu().map_err(text)?]);
    assert!(matches!(first_order(&kink, &point(&[0.0])), Ok(Derivative::Missing)));
    assert!(matches!(first_order(&kink, &point(&[0.5])), Ok(Derivative::Agrees)));
    let jump = |leaves: &[Tensor]| Ok(vec![leaves[0].log().map_err(text)?]);
    assert!(matches!(first_order(&jump, &point(&[-1.0])), Ok(Derivative::Missing)));
}
