//! A line search for the strong Wolfe conditions (J. Nocedal and S. J. Wright, *Numerical Optimization*, 2006, algorithms 3.5 and 3.6),
//! with PyTorch's constants.

use thalweg_runtime::Result;
use thalweg_tensor::Tensor;

/// The Armijo constant: the loss must fall by at least this fraction of the slope times the step's length.
const DECREASE: f64 = 1e-4;
/// The curvature constant: the fraction of the initial slope that the slope at the result may have.
const CURVATURE: f64 = 0.9;
/// The change of parameters below which the search in an interval ends.
const SMALLEST: f64 = 1e-9;

/// A point along the line.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) length: f64,
    pub(super) loss: f64,
    pub(super) gradient: Tensor,
    /// The derivative of the loss along the line.
    pub(super) slope: f64,
}

/// Returns the least point between bounds of the cubic through two points with their slopes; the middle if there is none.
fn cubic_least(one: &Point, other: &Point, bounds: Option<(f64, f64)>) -> f64 {
    let (left, right) = if one.length <= other.length { (one, other) } else { (other, one) };
    let (low, high) = bounds.unwrap_or((left.length, right.length));
    let mean = left.slope + right.slope - 3.0 * (left.loss - right.loss) / (left.length - right.length);
    let square = mean * mean - left.slope * right.slope;
    if !super::optimizer::is_at_least(square, 0.0) {
        return (low + high) / 2.0;
    }
    let root = square.sqrt();
    let part = (right.slope + root - mean) / (right.slope - left.slope + 2.0 * root);
    let least = right.length - (right.length - left.length) * part;
    // As with PyTorch's comparisons, NaN results in the lower bound.
    if least > low { least.min(high) } else { low }
}

/// Finds a point that satisfies the conditions, or the best one within this many trials, and returns it with the number of
/// evaluations.
pub(super) fn strong_wolfe(
    start: Point,
    length: f64,
    extent: f64,
    budget: usize,
    evaluate: &mut dyn FnMut(f64) -> Result<Point>,
) -> Result<(Point, usize)> {
    let (loss, slope) = (start.loss, start.slope);
    let is_high = |point: &Point| point.loss > loss + DECREASE * point.length * slope;
    let is_flat = |point: &Point| point.slope.abs() <= -CURVATURE * slope;
    let (mut former, mut point) = (start.clone(), evaluate(length)?);
    let (mut evaluations, mut trials) = (1, 0);
    // Two points with a good one between them.
    let mut bracket = loop {
        if trials >= budget {
            break [start, point];
        }
        if is_high(&point) || (trials > 1 && point.loss >= former.loss) {
            break [former, point];
        }
        if is_flat(&point) {
            return Ok((point, evaluations));
        }
        if point.slope >= 0.0 {
            break [former, point];
        }
        let bounds = (point.length + 0.01 * (point.length - former.length), point.length * 10.0);
        let next = cubic_least(&former, &point, Some(bounds));
        former = std::mem::replace(&mut point, evaluate(next)?);
        evaluations += 1;
        trials += 1;
    };
    let mut was_close = false;
    let mut low = usize::from(bracket[0].loss > bracket[1].loss);
    while trials < budget && (bracket[1].length - bracket[0].length).abs() * extent >= SMALLEST {
        let mut next = cubic_least(&bracket[0], &bracket[1], None);
        let [from, to] = [f64::min, f64::max].map(|of| of(bracket[0].length, bracket[1].length));
        let margin = 0.1 * (to - from);
        // A point close to an end is tried once; after that, one at a tenth of the interval.
        let is_close = (to - next).min(next - from) < margin;
        let moves = is_close && (was_close || next >= to || next <= from);
        if moves {
            next = if (next - to).abs() < (next - from).abs() { to - margin } else { from + margin };
        }
        was_close = is_close && !moves;
        let point = evaluate(next)?;
        evaluations += 1;
        trials += 1;
        let high = 1 - low;
        if is_high(&point) || point.loss >= bracket[low].loss {
            bracket[high] = point;
            low = usize::from(bracket[0].loss > bracket[1].loss);
            continue;
        }
        let is_done = is_flat(&point);
        if !is_done && point.slope * (bracket[high].length - bracket[low].length) >= 0.0 {
            bracket[high] = bracket[low].clone();
        }
        bracket[low] = point;
        if is_done {
            break;
        }
    }
    let [first, second] = bracket;
    Ok((if low == 0 { first } else { second }, evaluations))
}
