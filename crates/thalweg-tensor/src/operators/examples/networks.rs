//! Examples of the operators of networks and images, and those in place. See [`examples`](super).

super::examples! { ($) networks missing
batch_norm r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 6.0], &[2, 2], &device)?;
assert_eq!(x.batch_norm(None, None, None, None, true, 0.1, 1e-5, true)?.to_string(), "\
tensor([[-1.0000, -1.0000],
        [ 1.0000,  1.0000]], device='sim:0')");"#

layer_norm r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[1, 3], &device)?;
assert_eq!(x.layer_norm(&[3], None, None, 1e-5)?.to_string(), "tensor([[-1.2247,  0.0000,  1.2247]], device='sim:0')");"#

group_norm r#"let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 6.0], &[1, 4], &device)?;
assert_eq!(x.group_norm(2, None, None, 1e-5)?.to_string(), "tensor([[-1.0000,  1.0000, -1.0000,  1.0000]], device='sim:0')");"#

instance_norm r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[1, 1, 3], &device)?;
assert_eq!(x.instance_norm(None, None, None, None, true, 0.1, 1e-5, true)?.to_string(), "tensor([[[-1.2247,  0.0000,  1.2247]]], device='sim:0')");"#

rms_norm r#"let x = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2], &device)?;
assert_eq!(x.rms_norm(&[2], None, Some(0.0))?.to_string(), "tensor([[0.8485, 1.1314]], device='sim:0')");"#

binary_cross_entropy r#"let x = Tensor::from_values([0.5f32, 0.9], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.binary_cross_entropy(&y)?.to_string(), "tensor(0.3993, device='sim:0')");"#

binary_cross_entropy_with_logits r#"let x = Tensor::from_values([0.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.binary_cross_entropy_with_logits(&y)?.to_string(), "tensor(0.4100, device='sim:0')");"#

mse_loss r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 4.0], &device)?;
assert_eq!(x.mse_loss(&y)?.to_string(), "tensor(2., device='sim:0')");"#

l1_loss r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 4.0], &device)?;
assert_eq!(x.l1_loss(&y)?.to_string(), "tensor(1., device='sim:0')");"#

smooth_l1_loss r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 4.0], &device)?;
assert_eq!(x.smooth_l1_loss(&y)?.to_string(), "tensor(0.7500, device='sim:0')");"#

huber_loss r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([1.0f32, 4.0], &device)?;
assert_eq!(x.huber_loss(&y)?.to_string(), "tensor(0.7500, device='sim:0')");"#

kl_div r#"let x = Tensor::from_values([-1.0f32, -2.0], &device)?;
let y = Tensor::from_values([0.5f32, 0.5], &device)?;
assert_eq!(x.kl_div(&y)?.to_string(), "tensor(0.4034, device='sim:0')");"#

soft_margin_loss r#"let x = Tensor::from_values([1.0f32, -1.0], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.soft_margin_loss(&y)?.to_string(), "tensor(0.8133, device='sim:0')");"#

margin_ranking_loss r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([2.0f32, 1.0], &device)?;
let t = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.margin_ranking_loss(&y, &t, 0.0, 1)?.to_string(), "tensor(0.5000, device='sim:0')");"#

hinge_embedding_loss r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let t = Tensor::from_values([1.0f32, -1.0], &device)?;
assert_eq!(x.hinge_embedding_loss(&t, 1.0, 1)?.to_string(), "tensor(0.5000, device='sim:0')");"#

cosine_embedding_loss r#"let x = Tensor::from_slice(&[1.0f32, 0.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[0.0f32, 1.0], &[1, 2], &device)?;
let t = Tensor::from_values([1.0f32], &device)?;
assert_eq!(x.cosine_embedding_loss(&y, &t, 0.0, 1)?.to_string(), "tensor(1., device='sim:0')");"#

triplet_margin_loss r#"let x = Tensor::from_slice(&[0.0f32, 0.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[0.0f32, 1.0], &[1, 2], &device)?;
let z = Tensor::from_slice(&[0.0f32, 3.0], &[1, 2], &device)?;
assert_eq!(x.triplet_margin_loss(&y, &z, 1.0, 2.0, 1e-6, false, 1)?.to_string(), "tensor(0., device='sim:0')");"#

multi_margin_loss r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let t = Tensor::from_values([0i64], &device)?;
assert_eq!(x.multi_margin_loss(&t, 1, 1, None, 1)?.to_string(), "tensor(1., device='sim:0')");"#

multilabel_margin_loss r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let t = Tensor::from_slice(&[0i64, -1], &[1, 2], &device)?;
assert_eq!(x.multilabel_margin_loss(&t, 1)?.to_string(), "tensor(1., device='sim:0')");"#

poisson_nll_loss r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
let t = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.poisson_nll_loss(&t, true, false, 1e-8, 1)?.to_string(), "tensor(0.8591, device='sim:0')");"#

glu r#"let x = Tensor::from_values([1.0f32, 2.0, 0.0, 0.0], &device)?;
assert_eq!(x.glu(0)?.to_string(), "tensor([0.5000, 1.0000], device='sim:0')");"#

adaptive_avg_pool1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4], &device)?;
assert_eq!(x.adaptive_avg_pool1d(&[2])?.to_string(), "tensor([[[1.5000, 3.5000]]], device='sim:0')");"#

adaptive_avg_pool2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
assert_eq!(x.adaptive_avg_pool2d(&[1, 1])?.to_string(), "tensor([[[[2.5000]]]], device='sim:0')");"#

adaptive_avg_pool3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 2], &device)?;
assert_eq!(x.adaptive_avg_pool3d(&[1, 1, 1])?.to_string(), "tensor([[[[[2.5000]]]]], device='sim:0')");"#

adaptive_max_pool1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4], &device)?;
let [values, indices] = x.adaptive_max_pool1d(&[2])?;
assert_eq!(values.to_string(), "tensor([[[2., 4.]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[1, 3]]], device='sim:0')");"#

adaptive_max_pool2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
let [values, indices] = x.adaptive_max_pool2d(&[1, 1])?;
assert_eq!(values.to_string(), "tensor([[[[4.]]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[[3]]]], device='sim:0')");"#

adaptive_max_pool3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 2], &device)?;
let [values, indices] = x.adaptive_max_pool3d(&[1, 1, 1])?;
assert_eq!(values.to_string(), "tensor([[[[[4.]]]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[[[3]]]]], device='sim:0')");"#

avg_pool1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4], &device)?;
assert_eq!(x.avg_pool1d(&[2], &[2], &[0], false, true)?.to_string(), "tensor([[[1.5000, 3.5000]]], device='sim:0')");"#

avg_pool2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
assert_eq!(x.avg_pool2d(&[2, 2], &[], &[0, 0])?.to_string(), "tensor([[[[2.5000]]]], device='sim:0')");"#

avg_pool3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 2], &device)?;
assert_eq!(x.avg_pool3d(&[1, 2, 2], &[], &[0, 0, 0], false, true, None)?.to_string(), "tensor([[[[[2.5000]]]]], device='sim:0')");"#

max_pool1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4], &device)?;
assert_eq!(x.max_pool1d(&[2], &[2], &[0], &[1], false)?.to_string(), "tensor([[[2., 4.]]], device='sim:0')");"#

max_pool1d_with_indices r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4], &device)?;
let [values, indices] = x.max_pool1d_with_indices(&[2], &[2], &[0], &[1], false)?;
assert_eq!(values.to_string(), "tensor([[[2., 4.]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[1, 3]]], device='sim:0')");"#

max_pool2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
assert_eq!(x.max_pool2d(&[2, 2], &[], &[0, 0], &[1, 1], false)?.to_string(), "tensor([[[[4.]]]], device='sim:0')");"#

max_pool2d_with_indices r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
let [values, indices] = x.max_pool2d_with_indices(&[2, 2], &[], &[0, 0])?;
assert_eq!(values.to_string(), "tensor([[[[4.]]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[[3]]]], device='sim:0')");"#

max_pool3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 2], &device)?;
assert_eq!(x.max_pool3d(&[1, 2, 2], &[], &[0, 0, 0], &[1, 1, 1], false)?.to_string(), "tensor([[[[[4.]]]]], device='sim:0')");"#

max_pool3d_with_indices r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 2], &device)?;
let [values, indices] = x.max_pool3d_with_indices(&[1, 2, 2], &[], &[0, 0, 0], &[1, 1, 1], false)?;
assert_eq!(values.to_string(), "tensor([[[[[4.]]]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[[[3]]]]], device='sim:0')");"#

max_unpool2d r#"let x = Tensor::from_slice(&[4.0f32], &[1, 1, 1, 1], &device)?;
let i = Tensor::from_slice(&[3i64], &[1, 1, 1, 1], &device)?;
assert_eq!(x.max_unpool2d(&i, &[2, 2])?.to_string(), "\
tensor([[[[0., 0.],
          [0., 4.]]]], device='sim:0')");"#

max_unpool3d r#"let x = Tensor::from_slice(&[4.0f32], &[1, 1, 1, 1, 1], &device)?;
let i = Tensor::from_slice(&[3i64], &[1, 1, 1, 1, 1], &device)?;
assert_eq!(x.max_unpool3d(&i, &[1, 2, 2], &[1, 2, 2], &[0, 0, 0])?.to_string(), "\
tensor([[[[[0., 0.],
           [0., 4.]]]]], device='sim:0')");"#

fractional_max_pool2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
let s = Tensor::from_slice(&[0.5f32, 0.5], &[1, 1, 2], &device)?;
let [values, indices] = x.fractional_max_pool2d(&[2, 2], &[1, 1], &s)?;
assert_eq!(values.to_string(), "tensor([[[[4.]]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[[3]]]], device='sim:0')");"#

fractional_max_pool3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &[1, 1, 2, 2, 2], &device)?;
let s = Tensor::from_slice(&[0.5f32, 0.5, 0.5], &[1, 1, 3], &device)?;
let [values, indices] = x.fractional_max_pool3d(&[2, 2, 2], &[1, 1, 1], &s)?;
assert_eq!(values.to_string(), "tensor([[[[[8.]]]]], device='sim:0')");
assert_eq!(indices.to_string(), "tensor([[[[[7]]]]], device='sim:0')");"#

im2col r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
assert_eq!(x.im2col(&[1, 2], &[1, 1], &[0, 0], &[1, 1])?.to_string(), "\
tensor([[[1., 3.],
         [2., 4.]]], device='sim:0')");"#

col2im r#"let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 4.0], &[1, 2, 2], &device)?;
assert_eq!(x.col2im(&[2, 2], &[1, 2], &[1, 1], &[0, 0], &[1, 1])?.to_string(), "\
tensor([[[[1., 2.],
          [3., 4.]]]], device='sim:0')");"#

channel_shuffle r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 4, 1], &device)?;
assert_eq!(x.channel_shuffle(2)?.to_string(), "\
tensor([[[1.],
         [3.],
         [2.],
         [4.]]], device='sim:0')");"#

pixel_shuffle r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4, 1, 1], &device)?;
assert_eq!(x.pixel_shuffle(2)?.to_string(), "\
tensor([[[1., 2.],
         [3., 4.]]], device='sim:0')");"#

pixel_unshuffle r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2], &device)?;
assert_eq!(x.pixel_unshuffle(2)?.to_string(), "\
tensor([[[1.]],

        [[2.]],

        [[3.]],

        [[4.]]], device='sim:0')");"#

upsample_nearest1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
assert_eq!(x.upsample_nearest1d(Some(&[4]), None)?.to_string(), "tensor([[[1., 1., 2., 2.]]], device='sim:0')");"#

upsample_nearest2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 1, 2], &device)?;
assert_eq!(x.upsample_nearest2d(Some(&[1, 4]), None)?.to_string(), "tensor([[[[1., 1., 2., 2.]]]], device='sim:0')");"#

upsample_nearest3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 1, 1, 2], &device)?;
assert_eq!(x.upsample_nearest3d(Some(&[1, 1, 4]), None)?.to_string(), "tensor([[[[[1., 1., 2., 2.]]]]], device='sim:0')");"#

upsample_linear1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
assert_eq!(x.upsample_linear1d(Some(&[3]), true, None)?.to_string(), "tensor([[[1.0000, 1.5000, 2.0000]]], device='sim:0')");"#

upsample_bilinear2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 1, 2], &device)?;
assert_eq!(x.upsample_bilinear2d(Some(&[1, 3]), true, None)?.to_string(), "tensor([[[[1.0000, 1.5000, 2.0000]]]], device='sim:0')");"#

upsample_bicubic2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 1, 2], &device)?;
assert_eq!(x.upsample_bicubic2d(Some(&[1, 3]), true, None)?.to_string(), "tensor([[[[1.0000, 1.5000, 2.0000]]]], device='sim:0')");"#

upsample_trilinear3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 1, 1, 2], &device)?;
assert_eq!(x.upsample_trilinear3d(Some(&[1, 1, 3]), true, None)?.to_string(), "tensor([[[[[1.0000, 1.5000, 2.0000]]]]], device='sim:0')");"#

grid_sampler r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
let g = Tensor::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2], &device)?;
assert_eq!(x.grid_sampler(&g, 0, 0, true)?.to_string(), "tensor([[[[2.5000]]]], device='sim:0')");"#

grid_sampler_2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
let g = Tensor::from_slice(&[0.0f32, 0.0], &[1, 1, 1, 2], &device)?;
assert_eq!(x.grid_sampler_2d(&g, 0, 0, true)?.to_string(), "tensor([[[[2.5000]]]], device='sim:0')");"#

grid_sampler_3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 2], &device)?;
let g = Tensor::from_slice(&[0.0f32, 0.0, 0.0], &[1, 1, 1, 1, 3], &device)?;
assert_eq!(x.grid_sampler_3d(&g, 0, 0, true)?.to_string(), "tensor([[[[[2.5000]]]]], device='sim:0')");"#

bernoulli r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
assert_eq!(x.bernoulli()?.to_string(), "tensor([0., 1.], device='sim:0')");"#

bernoulli_p r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.bernoulli_p(1.0)?.to_string(), "tensor([1., 1.], device='sim:0')");"#

alpha_dropout r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.alpha_dropout(0.5, false)?.to_string(), "tensor([1., 2.], device='sim:0')");"#

feature_alpha_dropout r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
assert_eq!(x.feature_alpha_dropout(0.5, false)?.to_string(), "tensor([[1., 2.]], device='sim:0')");"#

feature_dropout r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
assert_eq!(x.feature_dropout(0.5, false)?.to_string(), "tensor([[1., 2.]], device='sim:0')");"#

rrelu r#"let x = Tensor::from_values([-2.0f32, 2.0], &device)?;
assert_eq!(x.rrelu(0.25, 0.25, false)?.to_string(), "tensor([-0.5000,  2.0000], device='sim:0')");"#

multinomial r#"let x = Tensor::from_values([0.0f32, 1.0, 0.0], &device)?;
assert_eq!(x.multinomial(2, true)?.to_string(), "tensor([1, 1], device='sim:0')");"#

embedding_bag r#"let w = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let i = Tensor::from_values([0i64, 1], &device)?;
let o = Tensor::from_values([0i64], &device)?;
let [sums, bags, counts, rows] = w.embedding_bag(&i, &o, false, 0, false, None, false)?;
assert_eq!(sums.to_string(), "tensor([[4., 6.]], device='sim:0')");
assert_eq!(bags.to_string(), "tensor([0, 0], device='sim:0')");
assert_eq!(counts.to_string(), "tensor([2], device='sim:0')");
assert_eq!(rows.to_string(), "tensor([], device='sim:0', size=(0, 2), dtype=torch.int64)");"#

ctc_loss r#"let x = Tensor::from_slice(&[-0.5f32, -1.0, -0.5, -1.0], &[2, 1, 2], &device)?;
let t = Tensor::from_slice(&[1i64], &[1, 1], &device)?;
assert_eq!(x.ctc_loss(&t, &[2], &[1], 0, 1, false)?.to_string(), "tensor(0.5420, device='sim:0')");"#

ctc_loss_tensor r#"let x = Tensor::from_slice(&[-0.5f32, -1.0, -0.5, -1.0], &[2, 1, 2], &device)?;
let t = Tensor::from_slice(&[1i64], &[1, 1], &device)?;
let n = Tensor::from_values([2i64], &device)?;
let m = Tensor::from_values([1i64], &device)?;
assert_eq!(x.ctc_loss_tensor(&t, &n, &m, 0, 1, false)?.to_string(), "tensor(0.5420, device='sim:0')");"#

add_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
x.add_(&y)?;
assert_eq!(x.to_string(), "tensor([11., 22.], device='sim:0')");"#

add_scalar_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.add_scalar_(10)?;
assert_eq!(x.to_string(), "tensor([11., 12.], device='sim:0')");"#

sub_ r#"let x = Tensor::from_values([10.0f32, 20.0], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
x.sub_(&y)?;
assert_eq!(x.to_string(), "tensor([ 9., 18.], device='sim:0')");"#

sub_scalar_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.sub_scalar_(10)?;
assert_eq!(x.to_string(), "tensor([-9., -8.], device='sim:0')");"#

mul_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
x.mul_(&y)?;
assert_eq!(x.to_string(), "tensor([10., 40.], device='sim:0')");"#

mul_scalar_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.mul_scalar_(10)?;
assert_eq!(x.to_string(), "tensor([10., 20.], device='sim:0')");"#

div_ r#"let x = Tensor::from_values([10.0f32, 20.0], &device)?;
let y = Tensor::from_values([4.0f32, 5.0], &device)?;
x.div_(&y)?;
assert_eq!(x.to_string(), "tensor([2.5000, 4.0000], device='sim:0')");"#

div_scalar_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.div_scalar_(4)?;
assert_eq!(x.to_string(), "tensor([0.2500, 0.5000], device='sim:0')");"#

pow_scalar_ r#"let x = Tensor::from_values([2.0f32, 3.0], &device)?;
x.pow_scalar_(2)?;
assert_eq!(x.to_string(), "tensor([4., 9.], device='sim:0')");"#

clamp_ r#"let x = Tensor::from_values([-3.0f32, 0.5, 3.0], &device)?;
x.clamp_(-1, 1)?;
assert_eq!(x.to_string(), "tensor([-1.0000,  0.5000,  1.0000], device='sim:0')");"#

relu_ r#"let x = Tensor::from_values([-1.0f32, 2.0], &device)?;
x.relu_()?;
assert_eq!(x.to_string(), "tensor([0., 2.], device='sim:0')");"#

neg_ r#"let x = Tensor::from_values([1.0f32, -2.0], &device)?;
x.neg_()?;
assert_eq!(x.to_string(), "tensor([-1.,  2.], device='sim:0')");"#

exp_ r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
x.exp_()?;
assert_eq!(x.to_string(), "tensor([1.0000, 2.7183], device='sim:0')");"#

sqrt_ r#"let x = Tensor::from_values([1.0f32, 4.0], &device)?;
x.sqrt_()?;
assert_eq!(x.to_string(), "tensor([1., 2.], device='sim:0')");"#

sigmoid_ r#"let x = Tensor::from_values([-1.0f32, 0.0, 1.0], &device)?;
x.sigmoid_()?;
assert_eq!(x.to_string(), "tensor([0.2689, 0.5000, 0.7311], device='sim:0')");"#

tanh_ r#"let x = Tensor::from_values([0.0f32, 1.0], &device)?;
x.tanh_()?;
assert_eq!(x.to_string(), "tensor([0.0000, 0.7616], device='sim:0')");"#

lerp_ r#"let x = Tensor::from_values([0.0f32, 10.0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
x.lerp_(&y, 0.25)?;
assert_eq!(x.to_string(), "tensor([ 2.5000, 12.5000], device='sim:0')");"#

addcmul_ r#"let x = Tensor::from_values([1.0f32, 1.0], &device)?;
let y = Tensor::from_values([2.0f32, 3.0], &device)?;
let z = Tensor::from_values([4.0f32, 5.0], &device)?;
x.addcmul_(&y, &z, 0.5)?;
assert_eq!(x.to_string(), "tensor([5.0000, 8.5000], device='sim:0')");"#

addcdiv_ r#"let x = Tensor::from_values([1.0f32, 1.0], &device)?;
let y = Tensor::from_values([2.0f32, 3.0], &device)?;
let z = Tensor::from_values([4.0f32, 6.0], &device)?;
x.addcdiv_(&y, &z, 2)?;
assert_eq!(x.to_string(), "tensor([2., 2.], device='sim:0')");"#

masked_fill_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let m = Tensor::from_values([true, false], &device)?;
x.masked_fill_(&m, 9)?;
assert_eq!(x.to_string(), "tensor([9., 2.], device='sim:0')");"#

index_fill_ r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
x.index_fill_(0, &i, 9)?;
assert_eq!(x.to_string(), "tensor([9., 2., 9.], device='sim:0')");"#

index_add_ r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
x.index_add_(0, &i, &y)?;
assert_eq!(x.to_string(), "tensor([1., 0., 2.], device='sim:0')");"#

scatter_ r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let i = Tensor::from_values([2i64, 0], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
x.scatter_(0, &i, &y)?;
assert_eq!(x.to_string(), "tensor([8., 0., 7.], device='sim:0')");"#

scatter_add_ r#"let x = Tensor::from_values([1.0f32, 1.0, 1.0], &device)?;
let i = Tensor::from_values([2i64, 2], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
x.scatter_add_(0, &i, &y)?;
assert_eq!(x.to_string(), "tensor([ 1.,  1., 16.], device='sim:0')");"#

addmm_ r#"let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let b = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[2, 2], &device)?;
x.addmm_(&a, &b)?;
assert_eq!(x.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

cumsum_ r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
x.cumsum_(0)?;
assert_eq!(x.to_string(), "tensor([1., 3., 6.], device='sim:0')");"#

uniform_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.uniform_(0.0, 1.0)?;
assert_eq!(x.lt_scalar(1)?.to_string(), "tensor([True, True], device='sim:0')");"#

normal_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.normal_(0.0, 1.0)?;
assert_eq!(x.isfinite()?.to_string(), "tensor([True, True], device='sim:0')");"#

bernoulli_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.bernoulli_(0.0)?;
assert_eq!(x.to_string(), "tensor([0., 0.], device='sim:0')");"#

exponential_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.exponential_(1.0)?;
assert_eq!(x.ge_scalar(0)?.to_string(), "tensor([True, True], device='sim:0')");"#

random_ r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
x.random_(3, 4)?;
assert_eq!(x.to_string(), "tensor([3., 3.], device='sim:0')");"#

segment_reduce r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let lengths = Tensor::from_values([2i64, 1], &device)?;
assert_eq!(x.segment_reduce("sum", Some(&lengths))?.to_string(), "tensor([3., 3.], device='sim:0')");"#

convert_weight_to_int4pack r#"let weight = Tensor::zeros(&[16, 64], DType::U8, &device)?;
assert_eq!(weight.convert_weight_to_int4pack(4)?.shape(), [2, 2, 32, 2]);"#

weight_int4pack_mm r#"let weight = Tensor::zeros(&[16, 64], DType::U8, &device)?.convert_weight_to_int4pack(4)?;
let x = Tensor::ones(&[1, 128], DType::F32, &device)?;
let scales_and_zeros = Tensor::ones(&[4, 16, 2], DType::F32, &device)?;
let y = x.weight_int4pack_mm(&weight, 32, &scales_and_zeros)?;
assert_eq!(y.amax(&[], false)?.to_string(), "tensor(-896., device='sim:0')");"#
}
