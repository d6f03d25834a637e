//! Examples of the operators of numbers, element by element. See [`examples`](super).

super::examples! { ($) elementwise collections
neg r#"let x = Tensor::from_values([1.0f32, -2.0], &device)?;
assert_eq!(x.neg()?.to_string(), "tensor([-1.,  2.], device='sim:0')");"#

abs r#"let x = Tensor::from_values([-2.0f32, 0.5], &device)?;
assert_eq!(x.abs()?.to_string(), "tensor([2.0000, 0.5000], device='sim:0')");"#

sign r#"let x = Tensor::from_values([-2.0f32, 0.0, 3.0], &device)?;
assert_eq!(x.sign()?.to_string(), "tensor([-1.,  0.,  1.], device='sim:0')");"#

reciprocal r#"let x = Tensor::from_values([2.0f32, 4.0], &device)?;
assert_eq!(x.reciprocal()?.to_string(), "tensor([0.5000, 0.2500], device='sim:0')");"#

sqrt r#"let x = Tensor::from_values([1.0f32, 4.0], &device)?;
assert_eq!(x.sqrt()?.to_string(), "tensor([1., 2.], device='sim:0')");"#

rsqrt r#"let x = Tensor::from_values([1.0f32, 4.0], &device)?;
assert_eq!(x.rsqrt()?.to_string(), "tensor([1.0000, 0.5000], device='sim:0')");"#

acosh r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.acosh()?.to_string(), "tensor([0.0000, 1.3170], device='sim:0')");"#

log r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.log()?.to_string(), "tensor([0.0000, 0.6931], device='sim:0')");"#

log2 r#"let x = Tensor::from_values([1.0f32, 8.0], &device)?;
assert_eq!(x.log2()?.to_string(), "tensor([0., 3.], device='sim:0')");"#

log10 r#"let x = Tensor::from_values([1.0f32, 1000.0], &device)?;
assert_eq!(x.log10()?.to_string(), "tensor([0., 3.], device='sim:0')");"#

ceil r#"let x = Tensor::from_values([-1.5f32, 1.5], &device)?;
assert_eq!(x.ceil()?.to_string(), "tensor([-1.,  2.], device='sim:0')");"#

floor r#"let x = Tensor::from_values([-1.5f32, 1.5], &device)?;
assert_eq!(x.floor()?.to_string(), "tensor([-2.,  1.], device='sim:0')");"#

trunc r#"let x = Tensor::from_values([-1.5f32, 1.5], &device)?;
assert_eq!(x.trunc()?.to_string(), "tensor([-1.,  1.], device='sim:0')");"#

round r#"let x = Tensor::from_values([0.5f32, 1.5, 2.6], &device)?;
assert_eq!(x.round()?.to_string(), "tensor([0., 2., 3.], device='sim:0')");"#

frac r#"let x = Tensor::from_values([-1.25f32, 2.5], &device)?;
assert_eq!(x.frac()?.to_string(), "tensor([-0.2500,  0.5000], device='sim:0')");"#

deg2rad r#"let x = Tensor::from_values([0.0f32, 180.0], &device)?;
assert_eq!(x.deg2rad()?.to_string(), "tensor([0.0000, 3.1416], device='sim:0')");"#

rad2deg r#"let x = Tensor::from_values([0.0f32, 3.1415927], &device)?;
assert_eq!(x.rad2deg()?.to_string(), "tensor([  0., 180.], device='sim:0')");"#

isnan r#"let x = Tensor::from_values([1.0f32, f32::NAN], &device)?;
assert_eq!(x.isnan()?.to_string(), "tensor([False,  True], device='sim:0')");"#

isinf r#"let x = Tensor::from_values([1.0f32, f32::INFINITY], &device)?;
assert_eq!(x.isinf()?.to_string(), "tensor([False,  True], device='sim:0')");"#

isfinite r#"let x = Tensor::from_values([1.0f32, f32::INFINITY], &device)?;
assert_eq!(x.isfinite()?.to_string(), "tensor([ True, False], device='sim:0')");"#

logical_not r#"let x = Tensor::from_values([true, false], &device)?;
assert_eq!(x.logical_not()?.to_string(), "tensor([False,  True], device='sim:0')");"#

bitwise_not r#"let x = Tensor::from_values([0i64, 5], &device)?;
assert_eq!(x.bitwise_not()?.to_string(), "tensor([-1, -6], device='sim:0')");"#

relu r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.relu()?.to_string(), "tensor([0., 2.], device='sim:0')");"#

relu6 r#"let x = Tensor::from_values([-1.0f32, 2.0, 8.0], &device)?;
assert_eq!(x.relu6()?.to_string(), "tensor([0., 2., 6.], device='sim:0')");"#

hardsigmoid r#"let x = Tensor::from_values([-4.0f32, 0.0, 4.0], &device)?;
assert_eq!(x.hardsigmoid()?.to_string(), "tensor([0.0000, 0.5000, 1.0000], device='sim:0')");"#

hardswish r#"let x = Tensor::from_values([-4.0f32, 0.0, 4.0], &device)?;
assert_eq!(x.hardswish()?.to_string(), "tensor([-0., 0., 4.], device='sim:0')");"#

hardshrink r#"let x = Tensor::from_values([-1.0f32, 0.25, 1.0], &device)?;
assert_eq!(x.hardshrink(0.5)?.to_string(), "tensor([-1.,  0.,  1.], device='sim:0')");"#

leaky_relu r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.leaky_relu(0.1)?.to_string(), "tensor([-0.1000,  2.0000], device='sim:0')");"#

celu r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.celu(1.0)?.to_string(), "tensor([-0.6321,  2.0000], device='sim:0')");"#

elu r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.elu(1.0, 1.0, 1.0)?.to_string(), "tensor([-0.6321,  2.0000], device='sim:0')");"#

selu r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.selu()?.to_string(), "tensor([-1.1113,  2.1014], device='sim:0')");"#

silu r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.silu()?.to_string(), "tensor([-0.2689,  1.7616], device='sim:0')");"#

mish r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.mish()?.to_string(), "tensor([-0.3034,  1.9440], device='sim:0')");"#

sigmoid r#"let x = Tensor::from_values([-1.0f32, 0.0, 1.0], &device)?;
assert_eq!(x.sigmoid()?.to_string(), "tensor([0.2689, 0.5000, 0.7311], device='sim:0')");"#

softsign r#"let x = Tensor::from_values([-1.0f32, 0.0, 3.0], &device)?;
assert_eq!(x.softsign()?.to_string(), "tensor([-0.5000,  0.0000,  0.7500], device='sim:0')");"#

log_sigmoid r#"let x = Tensor::from_values([-1.0f32, 0.0, 1.0], &device)?;
assert_eq!(x.log_sigmoid()?.to_string(), "tensor([-1.3133, -0.6931, -0.3133], device='sim:0')");"#

prelu r#"let x = Tensor::from_values([-2.0f32, 3.0], &device)?;
let y = Tensor::from_values([0.1f32], &device)?;
assert_eq!(x.prelu(&y)?.to_string(), "tensor([-0.2000,  3.0000], device='sim:0')");"#

angle r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.angle()?.to_string(), "tensor([3.1416, 0.0000], device='sim:0')");"#

erfinv r#"let x = Tensor::from_values([0.0f32, 0.5], &device)?;
assert_eq!(x.erfinv()?.to_string(), "tensor([0.0000, 0.4769], device='sim:0')");"#

entr r#"let x = Tensor::from_values([0.5f32, 1.0], &device)?;
assert_eq!(x.entr()?.to_string(), "tensor([0.3466, -0.0000], device='sim:0')");"#

ndtr r#"let x = Tensor::from_values([-1.0f32, 0.0, 1.0], &device)?;
assert_eq!(x.ndtr()?.to_string(), "tensor([0.1587, 0.5000, 0.8413], device='sim:0')");"#

ndtri r#"let x = Tensor::from_values([0.25f32, 0.5], &device)?;
assert_eq!(x.ndtri()?.to_string(), "tensor([-0.6745,  0.0000], device='sim:0')");"#

log_ndtr r#"let x = Tensor::from_values([-1.0f32, 0.0], &device)?;
assert_eq!(x.log_ndtr()?.to_string(), "tensor([-1.8410, -0.6931], device='sim:0')");"#

add r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
assert_eq!(x.add(&y)?.to_string(), "tensor([11., 22.], device='sim:0')");"#

sub r#"let x = Tensor::from_values([10.0f32, 20.0], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.sub(&y)?.to_string(), "tensor([ 9., 18.], device='sim:0')");"#

mul r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
assert_eq!(x.mul(&y)?.to_string(), "tensor([10., 40.], device='sim:0')");"#

div r#"let x = Tensor::from_values([10.0f32, 20.0], &device)?;
let y = Tensor::from_values([4.0f32, 5.0], &device)?;
assert_eq!(x.div(&y)?.to_string(), "tensor([2.5000, 4.0000], device='sim:0')");"#

add_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.add_scalar(10)?.to_string(), "tensor([11., 12.], device='sim:0')");"#

sub_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.sub_scalar(10)?.to_string(), "tensor([-9., -8.], device='sim:0')");"#

mul_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.mul_scalar(10)?.to_string(), "tensor([10., 20.], device='sim:0')");"#

div_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.div_scalar(4)?.to_string(), "tensor([0.2500, 0.5000], device='sim:0')");"#

rsub_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.rsub_scalar(10)?.to_string(), "tensor([9., 8.], device='sim:0')");"#

atan2 r#"let x = Tensor::from_values([1.0f32, -1.0], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.atan2(&y)?.to_string(), "tensor([ 0.7854, -0.7854], device='sim:0')");"#

hypot r#"let x = Tensor::from_values([3.0f32, 5.0], &device)?;
let y = Tensor::from_values([4.0f32, 12.0], &device)?;
assert_eq!(x.hypot(&y)?.to_string(), "tensor([ 5., 13.], device='sim:0')");"#

fmod r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
let y = Tensor::from_values([3.0f32, 3.0], &device)?;
assert_eq!(x.fmod(&y)?.to_string(), "tensor([-2.,  2.], device='sim:0')");"#

fmod_scalar r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
assert_eq!(x.fmod_scalar(3)?.to_string(), "tensor([-2.,  2.], device='sim:0')");"#

remainder r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
let y = Tensor::from_values([3.0f32, 3.0], &device)?;
assert_eq!(x.remainder(&y)?.to_string(), "tensor([1., 2.], device='sim:0')");"#

remainder_scalar r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
assert_eq!(x.remainder_scalar(3)?.to_string(), "tensor([1., 2.], device='sim:0')");"#

maximum r#"let x = Tensor::from_values([1.0f32, 5.0], &device)?;
let y = Tensor::from_values([3.0f32, 3.0], &device)?;
assert_eq!(x.maximum(&y)?.to_string(), "tensor([3., 5.], device='sim:0')");"#

minimum r#"let x = Tensor::from_values([1.0f32, 5.0], &device)?;
let y = Tensor::from_values([3.0f32, 3.0], &device)?;
assert_eq!(x.minimum(&y)?.to_string(), "tensor([1., 3.], device='sim:0')");"#

fmax r#"let x = Tensor::from_values([1.0f32, f32::NAN], &device)?;
let y = Tensor::from_values([3.0f32, 3.0], &device)?;
assert_eq!(x.fmax(&y)?.to_string(), "tensor([3., 3.], device='sim:0')");"#

fmin r#"let x = Tensor::from_values([1.0f32, f32::NAN], &device)?;
let y = Tensor::from_values([3.0f32, 3.0], &device)?;
assert_eq!(x.fmin(&y)?.to_string(), "tensor([1., 3.], device='sim:0')");"#

eq r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 3.0], &device)?;
assert_eq!(x.eq(&y)?.to_string(), "tensor([ True, False], device='sim:0')");"#

ne r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 3.0], &device)?;
assert_eq!(x.ne(&y)?.to_string(), "tensor([False,  True], device='sim:0')");"#

lt r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 3.0], &device)?;
assert_eq!(x.lt(&y)?.to_string(), "tensor([False,  True], device='sim:0')");"#

le r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 3.0], &device)?;
assert_eq!(x.le(&y)?.to_string(), "tensor([True, True], device='sim:0')");"#

gt r#"let x = Tensor::from_values([1.0f32, 4.0], &device)?;
let y = Tensor::from_values([1.0f32, 3.0], &device)?;
assert_eq!(x.gt(&y)?.to_string(), "tensor([False,  True], device='sim:0')");"#

ge r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 3.0], &device)?;
assert_eq!(x.ge(&y)?.to_string(), "tensor([ True, False], device='sim:0')");"#

eq_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.eq_scalar(2)?.to_string(), "tensor([False,  True], device='sim:0')");"#

ne_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.ne_scalar(2)?.to_string(), "tensor([ True, False], device='sim:0')");"#

lt_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.lt_scalar(2)?.to_string(), "tensor([ True, False], device='sim:0')");"#

le_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.le_scalar(2)?.to_string(), "tensor([True, True], device='sim:0')");"#

gt_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.gt_scalar(1)?.to_string(), "tensor([False,  True], device='sim:0')");"#

ge_scalar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.ge_scalar(2)?.to_string(), "tensor([False,  True], device='sim:0')");"#

logical_and r#"let x = Tensor::from_values([true, true], &device)?;
let y = Tensor::from_values([true, false], &device)?;
assert_eq!(x.logical_and(&y)?.to_string(), "tensor([ True, False], device='sim:0')");"#

logical_or r#"let x = Tensor::from_values([false, true], &device)?;
let y = Tensor::from_values([false, false], &device)?;
assert_eq!(x.logical_or(&y)?.to_string(), "tensor([False,  True], device='sim:0')");"#

logical_xor r#"let x = Tensor::from_values([true, true], &device)?;
let y = Tensor::from_values([true, false], &device)?;
assert_eq!(x.logical_xor(&y)?.to_string(), "tensor([False,  True], device='sim:0')");"#

bitwise_and r#"let x = Tensor::from_values([6i64, 5], &device)?;
let y = Tensor::from_values([3i64, 4], &device)?;
assert_eq!(x.bitwise_and(&y)?.to_string(), "tensor([2, 4], device='sim:0')");"#

bitwise_or r#"let x = Tensor::from_values([6i64, 5], &device)?;
let y = Tensor::from_values([3i64, 4], &device)?;
assert_eq!(x.bitwise_or(&y)?.to_string(), "tensor([7, 5], device='sim:0')");"#

bitwise_xor r#"let x = Tensor::from_values([6i64, 5], &device)?;
let y = Tensor::from_values([3i64, 4], &device)?;
assert_eq!(x.bitwise_xor(&y)?.to_string(), "tensor([5, 1], device='sim:0')");"#

bitwise_and_scalar r#"let x = Tensor::from_values([6i64, 5], &device)?;
assert_eq!(x.bitwise_and_scalar(3)?.to_string(), "tensor([2, 1], device='sim:0')");"#

bitwise_or_scalar r#"let x = Tensor::from_values([6i64, 5], &device)?;
assert_eq!(x.bitwise_or_scalar(3)?.to_string(), "tensor([7, 7], device='sim:0')");"#

bitwise_xor_scalar r#"let x = Tensor::from_values([6i64, 5], &device)?;
assert_eq!(x.bitwise_xor_scalar(3)?.to_string(), "tensor([5, 6], device='sim:0')");"#

bitwise_left_shift r#"let x = Tensor::from_values([1i64, 3], &device)?;
let y = Tensor::from_values([2i64, 1], &device)?;
assert_eq!(x.bitwise_left_shift(&y)?.to_string(), "tensor([4, 6], device='sim:0')");"#

bitwise_right_shift r#"let x = Tensor::from_values([8i64, 3], &device)?;
let y = Tensor::from_values([2i64, 1], &device)?;
assert_eq!(x.bitwise_right_shift(&y)?.to_string(), "tensor([2, 1], device='sim:0')");"#

bitwise_left_shift_scalar r#"let x = Tensor::from_values([1i64, 3], &device)?;
assert_eq!(x.bitwise_left_shift_scalar(2)?.to_string(), "tensor([ 4, 12], device='sim:0')");"#

bitwise_right_shift_scalar r#"let x = Tensor::from_values([8i64, 3], &device)?;
assert_eq!(x.bitwise_right_shift_scalar(1)?.to_string(), "tensor([4, 1], device='sim:0')");"#

select_where r#"let c = Tensor::from_values([true, false], &device)?;
let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
assert_eq!(c.select_where(&x, &y)?.to_string(), "tensor([ 1., 20.], device='sim:0')");"#

xlogy r#"let x = Tensor::from_values([0.0f32, 2.0], &device)?;
let y = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.xlogy(&y)?.to_string(), "tensor([0., 0.], device='sim:0')");"#

xlog1py r#"let x = Tensor::from_values([0.0f32, 2.0], &device)?;
let y = Tensor::from_values([-1.0f32, 1.0], &device)?;
assert_eq!(x.xlog1py(&y)?.to_string(), "tensor([0.0000, 1.3863], device='sim:0')");"#

logaddexp r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
let y = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.logaddexp(&y)?.to_string(), "tensor([0.6931, 1.6931], device='sim:0')");"#

logaddexp2 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
let y = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.logaddexp2(&y)?.to_string(), "tensor([1., 2.], device='sim:0')");"#

square r#"let x = Tensor::from_values([-2.0f32, 3.0], &device)?;
assert_eq!(x.square()?.to_string(), "tensor([4., 9.], device='sim:0')");"#

clamp r#"let x = Tensor::from_values([-3.0f32, 0.5, 3.0], &device)?;
assert_eq!(x.clamp(-1, 1)?.to_string(), "tensor([-1.0000,  0.5000,  1.0000], device='sim:0')");"#

clamp_min r#"let x = Tensor::from_values([-3.0f32, 3.0], &device)?;
assert_eq!(x.clamp_min(0)?.to_string(), "tensor([0., 3.], device='sim:0')");"#

clamp_max r#"let x = Tensor::from_values([-3.0f32, 3.0], &device)?;
assert_eq!(x.clamp_max(0)?.to_string(), "tensor([-3.,  0.], device='sim:0')");"#

clamp_min_tensor r#"let x = Tensor::from_values([-3.0f32, 3.0], &device)?;
let y = Tensor::from_values([-1.0f32, 5.0], &device)?;
assert_eq!(x.clamp_min_tensor(&y)?.to_string(), "tensor([-1.,  5.], device='sim:0')");"#

clamp_max_tensor r#"let x = Tensor::from_values([-3.0f32, 3.0], &device)?;
let y = Tensor::from_values([-1.0f32, 5.0], &device)?;
assert_eq!(x.clamp_max_tensor(&y)?.to_string(), "tensor([-3.,  3.], device='sim:0')");"#

clamp_tensor r#"let x = Tensor::from_values([-3.0f32, 3.0], &device)?;
let y = Tensor::from_values([-1.0f32, -1.0], &device)?;
assert_eq!(x.clamp_tensor(Some(&y), None)?.to_string(), "tensor([-1.,  3.], device='sim:0')");"#

addcmul r#"let x = Tensor::from_values([1.0f32, 1.0], &device)?;
let y = Tensor::from_values([2.0f32, 3.0], &device)?;
let z = Tensor::from_values([4.0f32, 5.0], &device)?;
assert_eq!(x.addcmul(&y, &z, 0.5)?.to_string(), "tensor([5.0000, 8.5000], device='sim:0')");"#

addcdiv r#"let x = Tensor::from_values([1.0f32, 1.0], &device)?;
let y = Tensor::from_values([2.0f32, 3.0], &device)?;
let z = Tensor::from_values([4.0f32, 6.0], &device)?;
assert_eq!(x.addcdiv(&y, &z, 2)?.to_string(), "tensor([2., 2.], device='sim:0')");"#

copysign r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([-1.0f32, 1.0], &device)?;
assert_eq!(x.copysign(&y)?.to_string(), "tensor([-1.,  2.], device='sim:0')");"#

div_mode r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
let y = Tensor::from_values([2.0f32, 2.0], &device)?;
assert_eq!(x.div_mode(&y, Some("floor"))?.to_string(), "tensor([-3.,  2.], device='sim:0')");"#

div_scalar_mode r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
assert_eq!(x.div_scalar_mode(2, Some("trunc"))?.to_string(), "tensor([-2.,  2.], device='sim:0')");"#

floor_divide r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
let y = Tensor::from_values([2.0f32, 2.0], &device)?;
assert_eq!(x.floor_divide(&y)?.to_string(), "tensor([-3.,  2.], device='sim:0')");"#

floor_divide_scalar r#"let x = Tensor::from_values([-5.0f32, 5.0], &device)?;
assert_eq!(x.floor_divide_scalar(2)?.to_string(), "tensor([-3.,  2.], device='sim:0')");"#

frexp r#"let x = Tensor::from_values([3.0f32, 8.0], &device)?;
let [mantissa, exponent] = x.frexp()?;
assert_eq!(mantissa.to_string(), "tensor([0.7500, 0.5000], device='sim:0')");
assert_eq!(exponent.to_string(), "tensor([2, 4], device='sim:0', dtype=torch.int32)");"#

gelu r#"let x = Tensor::from_values([-1.0f32, 0.0, 1.0], &device)?;
assert_eq!(x.gelu()?.to_string(), "tensor([-0.1587,  0.0000,  0.8413], device='sim:0')");"#

hardtanh r#"let x = Tensor::from_values([-3.0f32, 0.5, 3.0], &device)?;
assert_eq!(x.hardtanh(-1, 1)?.to_string(), "tensor([-1.0000,  0.5000,  1.0000], device='sim:0')");"#

heaviside r#"let x = Tensor::from_values([-1.0f32, 0.0, 2.0], &device)?;
let y = Tensor::from_values([0.5f32], &device)?;
assert_eq!(x.heaviside(&y)?.to_string(), "tensor([0.0000, 0.5000, 1.0000], device='sim:0')");"#

lerp r#"let x = Tensor::from_values([0.0f32, 10.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
assert_eq!(x.lerp(&y, 0.25)?.to_string(), "tensor([ 2.5000, 12.5000], device='sim:0')");"#

lerp_tensor r#"let x = Tensor::from_values([0.0f32, 10.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
let z = Tensor::from_values([0.5f32, 0.1], &device)?;
assert_eq!(x.lerp_tensor(&y, &z)?.to_string(), "tensor([ 5., 11.], device='sim:0')");"#

logit r#"let x = Tensor::from_values([0.25f32, 0.5], &device)?;
assert_eq!(x.logit(None)?.to_string(), "tensor([-1.0986,  0.0000], device='sim:0')");"#

nan_to_num r#"let x = Tensor::from_values([1.0f32, f32::NAN], &device)?;
assert_eq!(x.nan_to_num()?.to_string(), "tensor([1., 0.], device='sim:0')");"#

pow r#"let x = Tensor::from_values([2.0f32, 3.0], &device)?;
let y = Tensor::from_values([3.0f32, 2.0], &device)?;
assert_eq!(x.pow(&y)?.to_string(), "tensor([8., 9.], device='sim:0')");"#

pow_scalar r#"let x = Tensor::from_values([2.0f32, 3.0], &device)?;
assert_eq!(x.pow_scalar(2)?.to_string(), "tensor([4., 9.], device='sim:0')");"#

round_decimals r#"let x = Tensor::from_values([1.2345f32, 6.789], &device)?;
assert_eq!(x.round_decimals(2)?.to_string(), "tensor([1.2300, 6.7900], device='sim:0')");"#

softplus r#"let x = Tensor::from_values([-1.0f32, 0.0, 1.0], &device)?;
assert_eq!(x.softplus()?.to_string(), "tensor([0.3133, 0.6931, 1.3133], device='sim:0')");"#

softshrink r#"let x = Tensor::from_values([-1.0f32, 0.25, 1.0], &device)?;
assert_eq!(x.softshrink(0.5)?.to_string(), "tensor([-0.5000,  0.0000,  0.5000], device='sim:0')");"#

threshold r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
assert_eq!(x.threshold(0, 9)?.to_string(), "tensor([9., 2.], device='sim:0')");"#

float_power r#"let x = Tensor::from_values([2i64, 3], &device)?;
let y = Tensor::from_values([2i64, 2], &device)?;
assert_eq!(x.float_power(&y)?.to_string(), "tensor([4., 9.], device='sim:0', dtype=torch.float64)");"#

igamma r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.igamma(&y)?.to_string(), "tensor([0.6321, 0.5940], device='sim:0')");"#

igammac r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.igammac(&y)?.to_string(), "tensor([0.3679, 0.4060], device='sim:0')");"#

polygamma r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(Tensor::polygamma(1, &x)?.to_string(), "tensor([1.6449, 0.6449], device='sim:0')");"#

zeta r#"let x = Tensor::from_values([2.0f32, 4.0], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.zeta(&y)?.to_string(), "tensor([1.6449, 1.0823], device='sim:0')");"#

nextafter r#"let x = Tensor::from_values([1.0f32], &device)?;
let y = Tensor::from_values([2.0f32], &device)?;
assert_eq!(x.nextafter(&y)?.to_string(), "tensor([1.0000], device='sim:0')");"#

acos r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.acos()?.to_string(), "tensor([1.5708, 0.0000], device='sim:0')");"#

asin r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.asin()?.to_string(), "tensor([0.0000, 1.5708], device='sim:0')");"#

asinh r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.asinh()?.to_string(), "tensor([0.0000, 0.8814], device='sim:0')");"#

atan r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.atan()?.to_string(), "tensor([0.0000, 0.7854], device='sim:0')");"#

atanh r#"let x = Tensor::from_values([0.0f32, 0.5], &device)?;
assert_eq!(x.atanh()?.to_string(), "tensor([0.0000, 0.5493], device='sim:0')");"#

cos r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.cos()?.to_string(), "tensor([1.0000, 0.5403], device='sim:0')");"#

cosh r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.cosh()?.to_string(), "tensor([1.0000, 1.5431], device='sim:0')");"#

sin r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.sin()?.to_string(), "tensor([0.0000, 0.8415], device='sim:0')");"#

sinh r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.sinh()?.to_string(), "tensor([0.0000, 1.1752], device='sim:0')");"#

tan r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.tan()?.to_string(), "tensor([0.0000, 1.5574], device='sim:0')");"#

tanh r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.tanh()?.to_string(), "tensor([0.0000, 0.7616], device='sim:0')");"#

sinc r#"let x = Tensor::from_values([0.0f32, 0.5], &device)?;
assert_eq!(x.sinc()?.to_string(), "tensor([1.0000, 0.6366], device='sim:0')");"#

exp r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.exp()?.to_string(), "tensor([1.0000, 2.7183], device='sim:0')");"#

exp2 r#"let x = Tensor::from_values([0.0f32, 3.0], &device)?;
assert_eq!(x.exp2()?.to_string(), "tensor([1., 8.], device='sim:0')");"#

expm1 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.expm1()?.to_string(), "tensor([0.0000, 1.7183], device='sim:0')");"#

log1p r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.log1p()?.to_string(), "tensor([0.0000, 0.6931], device='sim:0')");"#

erf r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.erf()?.to_string(), "tensor([0.0000, 0.8427], device='sim:0')");"#

erfc r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.erfc()?.to_string(), "tensor([1.0000, 0.1573], device='sim:0')");"#

erfcx r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.erfcx()?.to_string(), "tensor([1.0000, 0.4276], device='sim:0')");"#

lgamma r#"let x = Tensor::from_values([1.0f32, 5.0], &device)?;
assert_eq!(x.lgamma()?.to_string(), "tensor([0.0000, 3.1781], device='sim:0')");"#

digamma r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.digamma()?.to_string(), "tensor([-0.5772,  0.4228], device='sim:0')");"#

i0 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.i0()?.to_string(), "tensor([1.0000, 1.2661], device='sim:0')");"#

i0e r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.i0e()?.to_string(), "tensor([1.0000, 0.4658], device='sim:0')");"#

i1 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.i1()?.to_string(), "tensor([0.0000, 0.5652], device='sim:0')");"#

i1e r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.i1e()?.to_string(), "tensor([0.0000, 0.2079], device='sim:0')");"#

airy_ai r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.airy_ai()?.to_string(), "tensor([0.3550, 0.1353], device='sim:0')");"#

bessel_j0 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.bessel_j0()?.to_string(), "tensor([1.0000, 0.7652], device='sim:0')");"#

bessel_j1 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.bessel_j1()?.to_string(), "tensor([0.0000, 0.4401], device='sim:0')");"#

bessel_y0 r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.bessel_y0()?.to_string(), "tensor([0.0883, 0.5104], device='sim:0')");"#

bessel_y1 r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.bessel_y1()?.to_string(), "tensor([-0.7812, -0.1070], device='sim:0')");"#

modified_bessel_i0 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.modified_bessel_i0()?.to_string(), "tensor([1.0000, 1.2661], device='sim:0')");"#

modified_bessel_i1 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.modified_bessel_i1()?.to_string(), "tensor([0.0000, 0.5652], device='sim:0')");"#

modified_bessel_k0 r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.modified_bessel_k0()?.to_string(), "tensor([0.4210, 0.1139], device='sim:0')");"#

modified_bessel_k1 r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.modified_bessel_k1()?.to_string(), "tensor([0.6019, 0.1399], device='sim:0')");"#

scaled_modified_bessel_k0 r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.scaled_modified_bessel_k0()?.to_string(), "tensor([1.1445, 0.8416], device='sim:0')");"#

scaled_modified_bessel_k1 r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.scaled_modified_bessel_k1()?.to_string(), "tensor([1.6362, 1.0335], device='sim:0')");"#

spherical_bessel_j0 r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.spherical_bessel_j0()?.to_string(), "tensor([1.0000, 0.8415], device='sim:0')");"#

special_chebyshev_polynomial_t r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_chebyshev_polynomial_t(&n)?.to_string(), "tensor([ 0.5000, -0.8750], device='sim:0')");"#

special_chebyshev_polynomial_u r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_chebyshev_polynomial_u(&n)?.to_string(), "tensor([ 1.0000, -0.7500], device='sim:0')");"#

special_chebyshev_polynomial_v r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_chebyshev_polynomial_v(&n)?.to_string(), "tensor([ 0.0000, -1.2500], device='sim:0')");"#

special_chebyshev_polynomial_w r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_chebyshev_polynomial_w(&n)?.to_string(), "tensor([ 2.0000, -0.2500], device='sim:0')");"#

special_hermite_polynomial_h r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_hermite_polynomial_h(&n)?.to_string(), "tensor([ 1.0000, -1.7500], device='sim:0')");"#

special_hermite_polynomial_he r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_hermite_polynomial_he(&n)?.to_string(), "tensor([ 0.5000, -0.9375], device='sim:0')");"#

special_laguerre_polynomial_l r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_laguerre_polynomial_l(&n)?.to_string(), "tensor([0.5000, 0.5312], device='sim:0')");"#

special_legendre_polynomial_p r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_legendre_polynomial_p(&n)?.to_string(), "tensor([ 0.5000, -0.4062], device='sim:0')");"#

special_shifted_chebyshev_polynomial_t r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_shifted_chebyshev_polynomial_t(&n)?.to_string(), "tensor([ 0.0000, -0.5000], device='sim:0')");"#

special_shifted_chebyshev_polynomial_u r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_shifted_chebyshev_polynomial_u(&n)?.to_string(), "tensor([0., 0.], device='sim:0')");"#

special_shifted_chebyshev_polynomial_v r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_shifted_chebyshev_polynomial_v(&n)?.to_string(), "tensor([-1.,  1.], device='sim:0')");"#

special_shifted_chebyshev_polynomial_w r#"let x = Tensor::from_values([0.5f32, 0.25], &device)?;
let n = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.special_shifted_chebyshev_polynomial_w(&n)?.to_string(), "tensor([ 1., -1.], device='sim:0')");"#
}
