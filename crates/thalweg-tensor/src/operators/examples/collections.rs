//! Examples of the operators that reduce, scan, sort and compare. See [`examples`](super).

super::examples! { ($) collections shapes
all r#"let x = Tensor::from_values([true, false], &device)?;
assert_eq!(x.all()?.to_string(), "tensor(False, device='sim:0')");"#

all_dim r#"let x = Tensor::from_slice(&[true, false, true, true], &[2, 2], &device)?;
assert_eq!(x.all_dim(1, false)?.to_string(), "tensor([False,  True], device='sim:0')");"#

all_dims r#"let x = Tensor::from_slice(&[true, false, true, true], &[2, 2], &device)?;
assert_eq!(x.all_dims(Some(&[0, 1]), false)?.to_string(), "tensor(False, device='sim:0')");"#

any r#"let x = Tensor::from_values([true, false], &device)?;
assert_eq!(x.any()?.to_string(), "tensor(True, device='sim:0')");"#

any_dim r#"let x = Tensor::from_slice(&[true, false, false, false], &[2, 2], &device)?;
assert_eq!(x.any_dim(1, false)?.to_string(), "tensor([ True, False], device='sim:0')");"#

any_dims r#"let x = Tensor::from_slice(&[true, false, false, false], &[2, 2], &device)?;
assert_eq!(x.any_dims(Some(&[0, 1]), false)?.to_string(), "tensor(True, device='sim:0')");"#

amax r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.amax(&[1], false)?.to_string(), "tensor([2., 4.], device='sim:0')");"#

amin r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.amin(&[1], false)?.to_string(), "tensor([1., 3.], device='sim:0')");"#

aminmax r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
let [low, high] = x.aminmax()?;
assert_eq!(low.to_string(), "tensor(1., device='sim:0')");
assert_eq!(high.to_string(), "tensor(3., device='sim:0')");"#

argmax r#"let x = Tensor::from_slice(&[1.0f32, 5.0, 7.0, 2.0], &[2, 2], &device)?;
assert_eq!(x.argmax(1)?.to_string(), "tensor([1, 0], device='sim:0')");"#

argmin r#"let x = Tensor::from_slice(&[1.0f32, 5.0, 7.0, 2.0], &[2, 2], &device)?;
assert_eq!(x.argmin(1)?.to_string(), "tensor([0, 1], device='sim:0')");"#

sum r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.sum(&[1], false)?.to_string(), "tensor([3., 7.], device='sim:0')");"#

nansum r#"let x = Tensor::from_values([1.0f32, f32::NAN, 2.0], &device)?;
assert_eq!(x.nansum(&[0], false)?.to_string(), "tensor(3., device='sim:0')");"#

mean r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.mean(&[0], true)?.to_string(), "tensor([[2., 3.]], device='sim:0')");"#

nanmean r#"let x = Tensor::from_values([1.0f32, f32::NAN, 2.0], &device)?;
assert_eq!(x.nanmean(&[0], false)?.to_string(), "tensor(1.5000, device='sim:0')");"#

prod r#"let x = Tensor::from_values([2.0f32, 3.0, 4.0], &device)?;
assert_eq!(x.prod()?.to_string(), "tensor(24., device='sim:0')");"#

prod_dim r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.prod_dim(1, false)?.to_string(), "tensor([ 2., 12.], device='sim:0')");"#

max r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
assert_eq!(x.max()?.to_string(), "tensor(3., device='sim:0')");"#

min r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
assert_eq!(x.min()?.to_string(), "tensor(1., device='sim:0')");"#

max_dim r#"let x = Tensor::from_slice(&[1.0f32, 5.0, 7.0, 2.0], &[2, 2], &device)?;
let [values, indices] = x.max_dim(1, false)?;
assert_eq!(values.to_string(), "tensor([5., 7.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([1, 0], device='sim:0')");"#

min_dim r#"let x = Tensor::from_slice(&[1.0f32, 5.0, 7.0, 2.0], &[2, 2], &device)?;
let [values, indices] = x.min_dim(1, false)?;
assert_eq!(values.to_string(), "tensor([1., 2.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([0, 1], device='sim:0')");"#

std r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.std(&[0], 1, false)?.to_string(), "tensor(1.2910, device='sim:0')");"#

var r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.var(&[0], 1, false)?.to_string(), "tensor(1.6667, device='sim:0')");"#

std_mean r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
let [std, mean] = x.std_mean(None)?;
assert_eq!(std.to_string(), "tensor(1.2910, device='sim:0')");
assert_eq!(mean.to_string(), "tensor(2.5000, device='sim:0')");"#

var_mean r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
let [var, mean] = x.var_mean(&[0], 1, false)?;
assert_eq!(var.to_string(), "tensor(1.6667, device='sim:0')");
assert_eq!(mean.to_string(), "tensor(2.5000, device='sim:0')");"#

logsumexp r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.logsumexp(&[0], false)?.to_string(), "tensor(3.4076, device='sim:0')");"#

softmax r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.softmax(-1)?.to_string(), "tensor([0.0900, 0.2447, 0.6652], device='sim:0')");"#

log_softmax r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.log_softmax(-1)?.to_string(), "tensor([-2.4076, -1.4076, -0.4076], device='sim:0')");"#

count_nonzero r#"let x = Tensor::from_slice(&[0.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.count_nonzero(&[1])?.to_string(), "tensor([1, 2], device='sim:0')");"#

norm r#"let x = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.norm(2)?.to_string(), "tensor(5., device='sim:0')");"#

vector_norm r#"let x = Tensor::from_slice(&[3.0f32, 4.0, 5.0, 12.0], &[2, 2], &device)?;
assert_eq!(x.vector_norm(2, &[1], false)?.to_string(), "tensor([ 5., 13.], device='sim:0')");"#

median r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
assert_eq!(x.median()?.to_string(), "tensor(2., device='sim:0')");"#

median_dim r#"let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0], &[1, 3], &device)?;
let [values, indices] = x.median_dim(1, false)?;
assert_eq!(values.to_string(), "tensor([2.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([2], device='sim:0')");"#

nanmedian_dim r#"let x = Tensor::from_slice(&[3.0f32, f32::NAN, 2.0], &[1, 3], &device)?;
let [values, indices] = x.nanmedian_dim(1, false)?;
assert_eq!(values.to_string(), "tensor([2.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([2], device='sim:0')");"#

mode r#"let x = Tensor::from_values([1.0f32, 2.0, 2.0, 3.0], &device)?;
let [values, indices] = x.mode(0, false)?;
assert_eq!(values.to_string(), "tensor(2., device='sim:0')");
assert_eq!(indices.to_string(), "tensor(2, device='sim:0')");"#

quantile r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
let q = Tensor::from_values([0.25f32, 0.5], &device)?;
assert_eq!(x.quantile(&q, None, false)?.to_string(), "tensor([1.7500, 2.5000], device='sim:0')");"#

quantile_scalar r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.quantile_scalar(0.5, None, false)?.to_string(), "tensor(2.5000, device='sim:0')");"#

nanquantile r#"let x = Tensor::from_values([1.0f32, f32::NAN, 3.0], &device)?;
let q = Tensor::from_values([0.5f32], &device)?;
assert_eq!(x.nanquantile(&q, None, false)?.to_string(), "tensor([2.], device='sim:0')");"#

nanquantile_scalar r#"let x = Tensor::from_values([1.0f32, f32::NAN, 3.0], &device)?;
assert_eq!(x.nanquantile_scalar(0.5, None, false)?.to_string(), "tensor(2., device='sim:0')");"#

cov r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 3.0, 2.0, 1.0], &[2, 3], &device)?;
assert_eq!(x.cov()?.to_string(), "\
tensor([[ 1., -1.],
        [-1.,  1.]], device='sim:0')");"#

histc r#"let x = Tensor::from_values([1.0f32, 2.0, 2.0, 3.0], &device)?;
assert_eq!(x.histc(3, 1, 3)?.to_string(), "tensor([1., 2., 1.], device='sim:0')");"#

histogram r#"let x = Tensor::from_values([1.0f32, 2.0, 2.0, 3.0], &device)?;
let [counts, edges] = x.histogram(2)?;
assert_eq!(counts.to_string(), "tensor([1., 3.], device='sim:0')");
assert_eq!(edges.to_string(), "tensor([1., 2., 3.], device='sim:0')");"#

histogram_bins r#"let x = Tensor::from_values([1.0f32, 2.0, 2.0, 3.0], &device)?;
let e = Tensor::from_values([0.0f32, 2.0, 4.0], &device)?;
let [counts, edges] = x.histogram_bins(&e)?;
assert_eq!(counts.to_string(), "tensor([1., 3.], device='sim:0')");
assert_eq!(edges.to_string(), "tensor([0., 2., 4.], device='sim:0')");"#

bincount r#"let x = Tensor::from_values([0i64, 2, 2], &device)?;
assert_eq!(x.bincount(None, 0)?.to_string(), "tensor([1, 0, 2], device='sim:0')");"#

cumsum r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.cumsum(0)?.to_string(), "tensor([1., 3., 6.], device='sim:0')");"#

cumprod r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.cumprod(0)?.to_string(), "tensor([1., 2., 6.], device='sim:0')");"#

cummax r#"let x = Tensor::from_values([1.0f32, 3.0, 2.0], &device)?;
let [values, indices] = x.cummax(0)?;
assert_eq!(values.to_string(), "tensor([1., 3., 3.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([0, 1, 1], device='sim:0')");"#

cummin r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
let [values, indices] = x.cummin(0)?;
assert_eq!(values.to_string(), "tensor([3., 1., 1.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([0, 1, 1], device='sim:0')");"#

logcumsumexp r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
assert_eq!(x.logcumsumexp(0)?.to_string(), "tensor([0.0000, 0.6931, 1.0986], device='sim:0')");"#

linear_recurrence r#"let x = Tensor::from_values([1.0f32, 1.0, 1.0], &device)?;
let f = Tensor::from_values([0.5f32, 0.5, 0.5], &device)?;
assert_eq!(x.linear_recurrence(&f, 0)?.to_string(), "tensor([1.0000, 1.5000, 1.7500], device='sim:0')");"#

cumulative_trapezoid r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.cumulative_trapezoid()?.to_string(), "tensor([1.5000, 4.0000], device='sim:0')");"#

cumulative_trapezoid_x r#"let y = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let x = Tensor::from_values([0.0f32, 2.0, 4.0], &device)?;
assert_eq!(y.cumulative_trapezoid_x(&x)?.to_string(), "tensor([3., 8.], device='sim:0')");"#

trapezoid r#"let y = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(y.trapezoid()?.to_string(), "tensor(4., device='sim:0')");"#

trapezoid_x r#"let y = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let x = Tensor::from_values([0.0f32, 2.0, 4.0], &device)?;
assert_eq!(y.trapezoid_x(&x)?.to_string(), "tensor(8., device='sim:0')");"#

diff r#"let x = Tensor::from_values([1.0f32, 4.0, 9.0], &device)?;
assert_eq!(x.diff(1, 0)?.to_string(), "tensor([3., 5.], device='sim:0')");"#

gradient_scalarint r#"let x = Tensor::from_values([1.0f32, 4.0, 9.0], &device)?;
let parts = x.gradient_scalarint()?;
assert_eq!(parts[0].to_string(), "tensor([3., 4., 5.], device='sim:0')");"#

sort r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
let [values, indices] = x.sort(0, false)?;
assert_eq!(values.to_string(), "tensor([1., 2., 3.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([1, 2, 0], device='sim:0')");"#

sort_stable r#"let x = Tensor::from_values([3.0f32, 1.0, 1.0], &device)?;
let [values, indices] = x.sort_stable(Some(true))?;
assert_eq!(values.to_string(), "tensor([1., 1., 3.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([1, 2, 0], device='sim:0')");"#

argsort r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
assert_eq!(x.argsort(0, false)?.to_string(), "tensor([1, 2, 0], device='sim:0')");"#

argsort_stable r#"let x = Tensor::from_values([3.0f32, 1.0, 1.0], &device)?;
assert_eq!(x.argsort_stable(true)?.to_string(), "tensor([1, 2, 0], device='sim:0')");"#

msort r#"let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.msort()?.to_string(), "\
tensor([[2., 1.],
        [3., 4.]], device='sim:0')");"#

topk r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
let [values, indices] = x.topk(2, 0, true, true)?;
assert_eq!(values.to_string(), "tensor([3., 2.], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([0, 2], device='sim:0')");"#

kthvalue r#"let x = Tensor::from_values([3.0f32, 1.0, 2.0], &device)?;
let [value, index] = x.kthvalue(2, 0, false)?;
assert_eq!(value.to_string(), "tensor(2., device='sim:0')");
assert_eq!(index.to_string(), "tensor(2, device='sim:0')");"#

searchsorted r#"let x = Tensor::from_values([1.0f32, 3.0, 5.0], &device)?;
let y = Tensor::from_values([2.0f32, 5.0], &device)?;
assert_eq!(x.searchsorted(&y)?.to_string(), "tensor([1, 2], device='sim:0')");"#

searchsorted_scalar r#"let x = Tensor::from_values([1.0f32, 3.0, 5.0], &device)?;
assert_eq!(x.searchsorted_scalar(4)?.to_string(), "tensor(2, device='sim:0')");"#

bucketize r#"let x = Tensor::from_values([2.0f32, 5.0], &device)?;
let b = Tensor::from_values([1.0f32, 3.0, 5.0], &device)?;
assert_eq!(x.bucketize(&b)?.to_string(), "tensor([1, 2], device='sim:0')");"#

unique r#"let x = Tensor::from_values([2i64, 1, 2], &device)?;
let [values, inverse, counts] = x.unique(true, true, true)?;
assert_eq!(values.to_string(), "tensor([1, 2], device='sim:0')");
assert_eq!(inverse.to_string(), "tensor([1, 0, 1], device='sim:0')");
assert_eq!(counts.to_string(), "tensor([1, 2], device='sim:0')");"#

unique_consecutive r#"let x = Tensor::from_values([1i64, 1, 2, 1], &device)?;
let [values, inverse, counts] = x.unique_consecutive(true, true, None)?;
assert_eq!(values.to_string(), "tensor([1, 2, 1], device='sim:0')");
assert_eq!(inverse.to_string(), "tensor([0, 0, 1, 2], device='sim:0')");
assert_eq!(counts.to_string(), "tensor([2, 1, 1], device='sim:0')");"#

unique_dim r#"let x = Tensor::from_slice(&[1i64, 2, 1, 2], &[2, 2], &device)?;
let [rows, inverse, counts] = x.unique_dim(0, true, true, true)?;
assert_eq!(rows.to_string(), "tensor([[1, 2]], device='sim:0')");
assert_eq!(inverse.to_string(), "tensor([0, 0], device='sim:0')");
assert_eq!(counts.to_string(), "tensor([2], device='sim:0')");"#

isin r#"let x = Tensor::from_values([1i64, 2, 3], &device)?;
let y = Tensor::from_values([1i64, 3], &device)?;
assert_eq!(x.isin(&y)?.to_string(), "tensor([ True, False,  True], device='sim:0')");"#

isin_scalar r#"let x = Tensor::from_values([1i64, 2, 3], &device)?;
assert_eq!(x.isin_scalar(2)?.to_string(), "tensor([False,  True, False], device='sim:0')");"#

nonzero_static r#"let x = Tensor::from_values([0i64, 5, 0], &device)?;
assert_eq!(x.nonzero_static(2)?.to_string(), "\
tensor([[ 1],
        [-1]], device='sim:0')");"#

allclose r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 2.0001], &device)?;
assert!(x.allclose(&y, 1e-3, 0.0, false)?);"#

equal r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert!(x.equal(&y)?);"#

isclose r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 2.1], &device)?;
assert_eq!(x.isclose(&y, 1e-3, 0.0, false)?.to_string(), "tensor([ True, False], device='sim:0')");"#

is_nonzero r#"let x = Tensor::from_values([2.0f32], &device)?;
assert!(x.is_nonzero()?);"#

isreal r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.isreal()?.to_string(), "tensor([True, True], device='sim:0')");"#

argwhere r#"let x = Tensor::from_values([0.0f32, 5.0, 6.0], &device)?;
assert_eq!(x.argwhere()?.to_string(), "\
tensor([[1],
        [2]], device='sim:0')");"#

atleast_1d r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.atleast_1d()?.to_string(), "tensor([1., 2.], device='sim:0')");"#

atleast_2d r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.atleast_2d()?.to_string(), "tensor([[1., 2.]], device='sim:0')");"#

atleast_3d r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.atleast_3d()?.to_string(), "\
tensor([[[1.],
         [2.]]], device='sim:0')");"#

conj r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.complex(&y)?.conj()?.to_string(), "tensor([1.-3.j, 2.-4.j], device='sim:0')");"#

corrcoef r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 3.0, 2.0, 1.0], &[2, 3], &device)?;
assert_eq!(x.corrcoef()?.to_string(), "\
tensor([[ 1., -1.],
        [-1.,  1.]], device='sim:0')");"#

det r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.det()?.to_string(), "tensor(8., device='sim:0')");"#

gcd r#"let x = Tensor::from_values([12i64, 7], &device)?;
let y = Tensor::from_values([8i64, 7], &device)?;
assert_eq!(x.gcd(&y)?.to_string(), "tensor([4, 7], device='sim:0')");"#

geqrf r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let [a, tau] = x.geqrf()?;
assert_eq!(a.to_string(), "\
tensor([[2., 0.],
        [0., 4.]], device='sim:0')");
assert_eq!(tau.to_string(), "tensor([0., 0.], device='sim:0')");"#

imag r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.complex(&y)?.imag()?.to_string(), "tensor([3., 4.], device='sim:0')");"#

real r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.complex(&y)?.real()?.to_string(), "tensor([1., 2.], device='sim:0')");"#

inverse r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.inverse()?.to_string(), "\
tensor([[0.5000, 0.0000],
        [0.0000, 0.2500]], device='sim:0')");"#

isneginf r#"let x = Tensor::from_values([1.0f32, f32::INFINITY], &device)?;
assert_eq!(x.isneginf()?.to_string(), "tensor([False, False], device='sim:0')");"#

isposinf r#"let x = Tensor::from_values([1.0f32, f32::INFINITY], &device)?;
assert_eq!(x.isposinf()?.to_string(), "tensor([False,  True], device='sim:0')");"#

kron r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[1.0f32, 1.0], &[1, 2], &device)?;
assert_eq!(x.kron(&y)?.to_string(), "tensor([[1., 1., 2., 2.]], device='sim:0')");"#

lcm r#"let x = Tensor::from_values([4i64, 6], &device)?;
let y = Tensor::from_values([6i64, 4], &device)?;
assert_eq!(x.lcm(&y)?.to_string(), "tensor([12, 12], device='sim:0')");"#

ldexp r#"let x = Tensor::from_values([1.0f32, 3.0], &device)?;
let y = Tensor::from_values([2i64, 1], &device)?;
assert_eq!(x.ldexp(&y)?.to_string(), "tensor([4., 6.], device='sim:0')");"#

linalg_det r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_det()?.to_string(), "tensor(8., device='sim:0')");"#

linalg_inv r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_inv()?.to_string(), "\
tensor([[0.5000, 0.0000],
        [0.0000, 0.2500]], device='sim:0')");"#

logdet r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.logdet()?.to_string(), "tensor(2.0794, device='sim:0')");"#

m_t r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.m_t()?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

mvlgamma r#"let x = Tensor::from_values([2.0f32, 3.0], &device)?;
assert_eq!(x.mvlgamma(2)?.to_string(), "tensor([0.4516, 1.5502], device='sim:0')");"#

nanmedian r#"let x = Tensor::from_values([1.0f32, f32::NAN, 3.0], &device)?;
assert_eq!(x.nanmedian()?.to_string(), "tensor(1., device='sim:0')");"#

nonzero r#"let x = Tensor::from_values([0.0f32, 5.0, 6.0], &device)?;
assert_eq!(x.nonzero()?.to_string(), "\
tensor([[1],
        [2]], device='sim:0')");"#

nonzero_numpy r#"let x = Tensor::from_values([0.0f32, 5.0, 6.0], &device)?;
let parts = x.nonzero_numpy()?;
assert_eq!(parts[0].to_string(), "tensor([1, 2], device='sim:0')");"#

positive r#"let x = Tensor::from_values([1.0f32, -2.0], &device)?;
assert_eq!(x.positive()?.to_string(), "tensor([ 1., -2.], device='sim:0')");"#

sgn r#"let x = Tensor::from_values([-2.0f32, 0.0, 3.0], &device)?;
assert_eq!(x.sgn()?.to_string(), "tensor([-1.,  0.,  1.], device='sim:0')");"#

signbit r#"let x = Tensor::from_values([-2.0f32, 3.0], &device)?;
assert_eq!(x.signbit()?.to_string(), "tensor([ True, False], device='sim:0')");"#

trace r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.trace()?.to_string(), "tensor(5., device='sim:0')");"#
}
