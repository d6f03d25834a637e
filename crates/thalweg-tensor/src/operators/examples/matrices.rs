//! Examples of the operators of matrices, complex numbers and signals. See [`examples`](super).

super::examples! { ($) matrices networks
dot r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.dot(&y)?.to_string(), "tensor(11., device='sim:0')");"#

vdot r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.vdot(&y)?.to_string(), "tensor(11., device='sim:0')");"#

inner r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.inner(&y)?.to_string(), "tensor(11., device='sim:0')");"#

outer r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.outer(&y)?.to_string(), "\
tensor([[3., 4.],
        [6., 8.]], device='sim:0')");"#

mv r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.mv(&y)?.to_string(), "tensor([3., 7.], device='sim:0')");"#

mm r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let y = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 2.0], &[2, 2], &device)?;
assert_eq!(x.mm(&y)?.to_string(), "\
tensor([[1., 4.],
        [3., 8.]], device='sim:0')");"#

bmm r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2], &device)?;
let y = Tensor::from_slice(&[1.0f32, 1.0], &[1, 2, 1], &device)?;
assert_eq!(x.bmm(&y)?.to_string(), "\
tensor([[[3.],
         [7.]]], device='sim:0')");"#

matmul r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.matmul(&y)?.to_string(), "tensor([3., 7.], device='sim:0')");"#

linear r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let w = Tensor::from_slice(&[3.0f32, 4.0, 5.0, 6.0], &[2, 2], &device)?;
let b = Tensor::from_values([0.0f32, 100.0], &device)?;
assert_eq!(x.linear(&w, Some(&b))?.to_string(), "tensor([[ 11., 117.]], device='sim:0')");"#

addmm r#"let x = Tensor::from_values([1.0f32, 1.0], &device)?;
let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let b = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[2, 2], &device)?;
assert_eq!(x.addmm(&a, &b)?.to_string(), "\
tensor([[2., 3.],
        [4., 5.]], device='sim:0')");"#

addmv r#"let x = Tensor::from_values([1.0f32, 1.0], &device)?;
let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let b = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(x.addmv(&a, &b)?.to_string(), "tensor([4., 8.], device='sim:0')");"#

addr r#"let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
let a = Tensor::from_values([1.0f32, 2.0], &device)?;
let b = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.addr(&a, &b)?.to_string(), "\
tensor([[3., 4.],
        [6., 8.]], device='sim:0')");"#

addbmm r#"let x = Tensor::from_slice(&[1.0f32], &[1, 1], &device)?;
let a = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
let b = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2, 1], &device)?;
assert_eq!(x.addbmm(&a, &b)?.to_string(), "tensor([[12.]], device='sim:0')");"#

baddbmm r#"let x = Tensor::from_slice(&[1.0f32], &[1, 1, 1], &device)?;
let a = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
let b = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2, 1], &device)?;
assert_eq!(x.baddbmm(&a, &b)?.to_string(), "tensor([[[12.]]], device='sim:0')");"#

bilinear r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2], &device)?;
let w = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[1, 2, 2], &device)?;
assert_eq!(x.bilinear(&y, &w, None)?.to_string(), "tensor([[11.]], device='sim:0')");"#

cross r#"let x = Tensor::from_values([1.0f32, 0.0, 0.0], &device)?;
let y = Tensor::from_values([0.0f32, 1.0, 0.0], &device)?;
assert_eq!(x.cross(&y, None)?.to_string(), "tensor([0., 0., 1.], device='sim:0')");"#

linalg_cross r#"let x = Tensor::from_values([1.0f32, 0.0, 0.0], &device)?;
let y = Tensor::from_values([0.0f32, 1.0, 0.0], &device)?;
assert_eq!(x.linalg_cross(&y)?.to_string(), "tensor([0., 0., 1.], device='sim:0')");"#

linalg_vecdot r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.linalg_vecdot(&y)?.to_string(), "tensor(11., device='sim:0')");"#

linalg_diagonal r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_diagonal()?.to_string(), "tensor([1., 4.], device='sim:0')");"#

linalg_multi_dot r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[3.0f32, 4.0], &[2, 1], &device)?;
assert_eq!(Tensor::linalg_multi_dot(&[x, y])?.to_string(), "tensor([[11.]], device='sim:0')");"#

linalg_vander r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.linalg_vander()?.to_string(), "\
tensor([[1., 1., 1.],
        [1., 2., 4.],
        [1., 3., 9.]], device='sim:0')");"#

tensordot r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let y = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[2, 2], &device)?;
assert_eq!(x.tensordot(&y, &[0, 1], &[0, 1])?.to_string(), "tensor(5., device='sim:0')");"#

cholesky r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
assert_eq!(x.cholesky(false)?.to_string(), "\
tensor([[2.0000, 0.0000],
        [1.0000, 1.4142]], device='sim:0')");"#

cholesky_inverse r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 1.0, 2.0], &[2, 2], &device)?;
assert_eq!(x.cholesky_inverse(false)?.to_string(), "\
tensor([[ 0.3125, -0.1250],
        [-0.1250,  0.2500]], device='sim:0')");"#

cholesky_solve r#"let b = Tensor::from_slice(&[4.0f32, 8.0], &[2, 1], &device)?;
let l = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 2.0], &[2, 2], &device)?;
assert_eq!(b.cholesky_solve(&l, false)?.to_string(), "\
tensor([[1.],
        [2.]], device='sim:0')");"#

linalg_cholesky r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
assert_eq!(x.linalg_cholesky()?.to_string(), "\
tensor([[2.0000, 0.0000],
        [1.0000, 1.4142]], device='sim:0')");"#

linalg_cholesky_ex r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
let [l, info] = x.linalg_cholesky_ex()?;
assert_eq!(l.to_string(), "\
tensor([[2.0000, 0.0000],
        [1.0000, 1.4142]], device='sim:0')");
assert_eq!(info.to_string(), "tensor(0, device='sim:0', dtype=torch.int32)");"#

linalg_cond r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0], &[2, 2], &device)?;
assert_eq!(x.linalg_cond(None)?.to_string(), "tensor(2., device='sim:0')");"#

linalg_cond_p_str r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0], &[2, 2], &device)?;
assert_eq!(x.linalg_cond_p_str("fro")?.to_string(), "tensor(2.5000, device='sim:0')");"#

linalg_eig r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 3.0], &[2, 2], &device)?;
let [values, vectors] = x.linalg_eig()?;
assert_eq!(values.to_string(), "tensor([2.+0.j, 3.+0.j], device='sim:0')");
assert_eq!(vectors.to_string(), "\
tensor([[1.+0.j, 0.+0.j],
        [0.+0.j, 1.+0.j]], device='sim:0')");"#

linalg_eigh r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 3.0], &[2, 2], &device)?;
let [values, vectors] = x.linalg_eigh()?;
assert_eq!(values.to_string(), "tensor([2., 3.], device='sim:0')");
assert_eq!(vectors.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");"#

linalg_eigvals r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 3.0], &[2, 2], &device)?;
assert_eq!(x.linalg_eigvals()?.to_string(), "tensor([2.+0.j, 3.+0.j], device='sim:0')");"#

linalg_eigvalsh r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 3.0], &[2, 2], &device)?;
assert_eq!(x.linalg_eigvalsh()?.to_string(), "tensor([2., 3.], device='sim:0')");"#

linalg_inv_ex r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let [inverse, info] = x.linalg_inv_ex()?;
assert_eq!(inverse.to_string(), "\
tensor([[0.5000, 0.0000],
        [0.0000, 0.2500]], device='sim:0')");
assert_eq!(info.to_string(), "tensor(0, device='sim:0', dtype=torch.int32)");"#

linalg_lu r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
let [p, l, u] = x.linalg_lu()?;
assert_eq!(p.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");
assert_eq!(l.to_string(), "\
tensor([[1.0000, 0.0000],
        [0.5000, 1.0000]], device='sim:0')");
assert_eq!(u.to_string(), "\
tensor([[4., 2.],
        [0., 2.]], device='sim:0')");"#

linalg_lu_factor r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
let [lu, pivots] = x.linalg_lu_factor()?;
assert_eq!(lu.to_string(), "\
tensor([[4.0000, 2.0000],
        [0.5000, 2.0000]], device='sim:0')");
assert_eq!(pivots.to_string(), "tensor([1, 2], device='sim:0', dtype=torch.int32)");"#

linalg_lu_factor_ex r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
let [lu, pivots, info] = x.linalg_lu_factor_ex()?;
assert_eq!(lu.to_string(), "\
tensor([[4.0000, 2.0000],
        [0.5000, 2.0000]], device='sim:0')");
assert_eq!(pivots.to_string(), "tensor([1, 2], device='sim:0', dtype=torch.int32)");
assert_eq!(info.to_string(), "tensor(0, device='sim:0', dtype=torch.int32)");"#

linalg_lu_solve r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let p = Tensor::from_values([1i32, 2], &device)?;
let b = Tensor::from_slice(&[2.0f32, 4.0], &[2, 1], &device)?;
assert_eq!(x.linalg_lu_solve(&p, &b)?.to_string(), "\
tensor([[1.],
        [1.]], device='sim:0')");"#

lu_unpack r#"let x = Tensor::from_slice(&[2.0f32, 1.0, 0.5, 4.0], &[2, 2], &device)?;
let p = Tensor::from_values([1i32, 2], &device)?;
let [p, l, u] = x.lu_unpack(&p, true, true)?;
assert_eq!(p.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");
assert_eq!(l.to_string(), "\
tensor([[1.0000, 0.0000],
        [0.5000, 1.0000]], device='sim:0')");
assert_eq!(u.to_string(), "\
tensor([[2., 1.],
        [0., 4.]], device='sim:0')");"#

linalg_ldl_factor r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
let [ld, pivots] = x.linalg_ldl_factor()?;
assert_eq!(ld.to_string(), "\
tensor([[4.0000, 0.0000],
        [0.5000, 2.0000]], device='sim:0')");
assert_eq!(pivots.to_string(), "tensor([1, 2], device='sim:0', dtype=torch.int32)");"#

linalg_ldl_factor_ex r#"let x = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
let [ld, pivots, info] = x.linalg_ldl_factor_ex()?;
assert_eq!(ld.to_string(), "\
tensor([[4.0000, 0.0000],
        [0.5000, 2.0000]], device='sim:0')");
assert_eq!(pivots.to_string(), "tensor([1, 2], device='sim:0', dtype=torch.int32)");
assert_eq!(info.to_string(), "tensor(0, device='sim:0', dtype=torch.int32)");"#

linalg_ldl_solve r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let p = Tensor::from_values([1i32, 2], &device)?;
let b = Tensor::from_slice(&[2.0f32, 4.0], &[2, 1], &device)?;
assert_eq!(x.linalg_ldl_solve(&p, &b)?.to_string(), "\
tensor([[1.],
        [1.]], device='sim:0')");"#

linalg_lstsq r#"let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 2.0], &[2, 2], &device)?;
let b = Tensor::from_slice(&[1.0f32, 4.0], &[2, 1], &device)?;
let [solution, residuals, rank, singular_values] = x.linalg_lstsq(&b, None)?;
assert_eq!(solution.to_string(), "\
tensor([[1.],
        [2.]], device='sim:0')");
assert_eq!(residuals.to_string(), "tensor([], device='sim:0')");
assert_eq!(rank.to_string(), "tensor([], device='sim:0', dtype=torch.int64)");
assert_eq!(singular_values.to_string(), "tensor([], device='sim:0')");"#

linalg_matrix_exp r#"let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.linalg_matrix_exp()?.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");"#

matrix_exp r#"let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.matrix_exp()?.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");"#

matrix_power r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 3.0], &[2, 2], &device)?;
assert_eq!(x.matrix_power(2)?.to_string(), "\
tensor([[4., 0.],
        [0., 9.]], device='sim:0')");"#

linalg_matrix_norm r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_matrix_norm(1, &[-2, -1], false)?.to_string(), "tensor(6., device='sim:0')");"#

linalg_matrix_norm_str_ord r#"let x = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_matrix_norm_str_ord("fro", &[-2, -1], false)?.to_string(), "tensor(5., device='sim:0')");"#

linalg_matrix_rank r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 2.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_matrix_rank()?.to_string(), "tensor(1, device='sim:0')");"#

linalg_norm r#"let x = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.linalg_norm()?.to_string(), "tensor(5., device='sim:0')");"#

linalg_norm_ord_str r#"let x = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_norm_ord_str("fro", None, false)?.to_string(), "tensor(5., device='sim:0')");"#

linalg_pinv r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_pinv()?.to_string(), "\
tensor([[0.5000, 0.0000],
        [0.0000, 0.2500]], device='sim:0')");"#

pinverse r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.pinverse(1e-15)?.to_string(), "\
tensor([[0.5000, 0.0000],
        [0.0000, 0.2500]], device='sim:0')");"#

linalg_qr r#"let x = Tensor::from_slice(&[3.0f32, 1.0, 4.0, 2.0], &[2, 2], &device)?;
let [q, r] = x.linalg_qr("reduced")?;
assert_eq!(q.to_string(), "\
tensor([[-0.6000, -0.8000],
        [-0.8000,  0.6000]], device='sim:0')");
assert_eq!(r.to_string(), "\
tensor([[-5.0000, -2.2000],
        [ 0.0000,  0.4000]], device='sim:0')");"#

linalg_slogdet r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let [sign, log] = x.linalg_slogdet()?;
assert_eq!(sign.to_string(), "tensor(1., device='sim:0')");
assert_eq!(log.to_string(), "tensor(2.0794, device='sim:0')");"#

slogdet r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let [sign, log] = x.slogdet()?;
assert_eq!(sign.to_string(), "tensor(1., device='sim:0')");
assert_eq!(log.to_string(), "tensor(2.0794, device='sim:0')");"#

linalg_solve r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let b = Tensor::from_values([2.0f32, 4.0], &device)?;
assert_eq!(x.linalg_solve(&b)?.to_string(), "tensor([1., 1.], device='sim:0')");"#

linalg_solve_ex r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let b = Tensor::from_values([2.0f32, 4.0], &device)?;
let [solution, info] = x.linalg_solve_ex(&b)?;
assert_eq!(solution.to_string(), "tensor([1., 1.], device='sim:0')");
assert_eq!(info.to_string(), "tensor(0, device='sim:0', dtype=torch.int32)");"#

linalg_solve_triangular r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 1.0, 4.0], &[2, 2], &device)?;
let b = Tensor::from_slice(&[2.0f32, 5.0], &[2, 1], &device)?;
assert_eq!(x.linalg_solve_triangular(&b, false)?.to_string(), "\
tensor([[1.],
        [1.]], device='sim:0')");"#

linalg_svd r#"let x = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 2.0], &[2, 2], &device)?;
let [u, s, vh] = x.linalg_svd(true)?;
assert_eq!(u.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");
assert_eq!(s.to_string(), "tensor([3., 2.], device='sim:0')");
assert_eq!(vh.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");"#

svd r#"let x = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 2.0], &[2, 2], &device)?;
let [u, s, v] = x.svd(true)?;
assert_eq!(u.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");
assert_eq!(s.to_string(), "tensor([3., 2.], device='sim:0')");
assert_eq!(v.to_string(), "\
tensor([[1., 0.],
        [0., 1.]], device='sim:0')");"#

linalg_svdvals r#"let x = Tensor::from_slice(&[3.0f32, 0.0, 0.0, 2.0], &[2, 2], &device)?;
assert_eq!(x.linalg_svdvals()?.to_string(), "tensor([3., 2.], device='sim:0')");"#

linalg_tensorinv r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.linalg_tensorinv(1)?.to_string(), "\
tensor([[0.5000, 0.0000],
        [0.0000, 0.2500]], device='sim:0')");"#

linalg_tensorsolve r#"let x = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 4.0], &[2, 2], &device)?;
let b = Tensor::from_values([2.0f32, 4.0], &device)?;
assert_eq!(x.linalg_tensorsolve(&b, None)?.to_string(), "tensor([1., 1.], device='sim:0')");"#

linalg_householder_product r#"let x = Tensor::from_slice(&[1.0f32, 0.0], &[2, 1], &device)?;
let t = Tensor::from_values([0.0f32], &device)?;
assert_eq!(x.linalg_householder_product(&t)?.to_string(), "\
tensor([[1.],
        [0.]], device='sim:0')");"#

ormqr r#"let x = Tensor::from_slice(&[1.0f32, 0.0], &[2, 1], &device)?;
let t = Tensor::from_values([0.0f32], &device)?;
let y = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.ormqr(&t, &y, true, false)?.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

cdist r#"let x = Tensor::from_slice(&[0.0f32, 0.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[3.0f32, 4.0, 6.0, 8.0], &[2, 2], &device)?;
assert_eq!(x.cdist(&y, 2.0, None)?.to_string(), "tensor([[ 5., 10.]], device='sim:0')");"#

pdist r#"let x = Tensor::from_slice(&[0.0f32, 0.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.pdist(2.0)?.to_string(), "tensor([5.], device='sim:0')");"#

dist r#"let x = Tensor::from_values([0.0f32, 0.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.dist(&y, 2)?.to_string(), "tensor(5., device='sim:0')");"#

euclidean_dist r#"let x = Tensor::from_slice(&[0.0f32, 0.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2], &device)?;
assert_eq!(x.euclidean_dist(&y)?.to_string(), "tensor([[5.]], device='sim:0')");"#

pairwise_distance r#"let x = Tensor::from_slice(&[0.0f32, 0.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2], &device)?;
assert_eq!(x.pairwise_distance(&y, 2.0, 0.0, false)?.to_string(), "tensor([5.], device='sim:0')");"#

cosine_similarity r#"let x = Tensor::from_slice(&[1.0f32, 0.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[1.0f32, 1.0], &[1, 2], &device)?;
assert_eq!(x.cosine_similarity(&y, 1, 1e-8)?.to_string(), "tensor([0.7071], device='sim:0')");"#

renorm r#"let x = Tensor::from_slice(&[3.0f32, 4.0, 0.0, 1.0], &[2, 2], &device)?;
assert_eq!(x.renorm(2, 0, 1)?.to_string(), "\
tensor([[0.6000, 0.8000],
        [0.0000, 1.0000]], device='sim:0')");"#

complex r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.complex(&y)?.to_string(), "tensor([1.+3.j, 2.+4.j], device='sim:0')");"#

polar r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([0.0f32, 0.0], &device)?;
assert_eq!(x.polar(&y)?.to_string(), "tensor([1.+0.j, 2.+0.j], device='sim:0')");"#

conj_physical r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.complex(&y)?.conj_physical()?.to_string(), "tensor([1.-3.j, 2.-4.j], device='sim:0')");"#

resolve_conj r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.complex(&y)?.resolve_conj()?.to_string(), "tensor([1.+3.j, 2.+4.j], device='sim:0')");"#

view_as_real r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(x.complex(&y)?.view_as_real()?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

view_as_complex r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.view_as_complex()?.to_string(), "tensor([1.+2.j, 3.+4.j], device='sim:0')");"#

fft_fft r#"let x = Tensor::from_values([1.0f32, 0.0, 0.0, 0.0], &device)?;
assert_eq!(x.fft_fft(None, -1, None)?.to_string(), "tensor([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], device='sim:0')");"#

fft_rfft r#"let x = Tensor::from_values([1.0f32, 0.0, 0.0, 0.0], &device)?;
assert_eq!(x.fft_rfft(None, -1, None)?.to_string(), "tensor([1.+0.j, 1.+0.j, 1.+0.j], device='sim:0')");"#

fft_ihfft r#"let x = Tensor::from_values([4.0f32, 0.0, 0.0, 0.0], &device)?;
assert_eq!(x.fft_ihfft(None, -1, None)?.to_string(), "tensor([1.-0.j, 1.-0.j, 1.-0.j], device='sim:0')");"#

fft_ifft r#"let x = Tensor::from_values([4.0f32, 0.0, 0.0, 0.0], &device)?;
assert_eq!(x.fft_ifft(None, -1, None)?.to_string(), "tensor([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], device='sim:0')");"#

fft_irfft r#"let x = Tensor::from_values([4.0f32, 0.0, 0.0], &device)?;
assert_eq!(x.fft_irfft(None, -1, None)?.to_string(), "tensor([1., 1., 1., 1.], device='sim:0')");"#

fft_hfft r#"let x = Tensor::from_values([4.0f32, 0.0, 0.0], &device)?;
assert_eq!(x.fft_hfft(None, -1, None)?.to_string(), "tensor([4., 4., 4., 4.], device='sim:0')");"#

fft_fft2 r#"let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_fft2()?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

fft_ifft2 r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_ifft2()?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

fft_rfft2 r#"let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_rfft2()?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

fft_irfft2 r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_irfft2()?.to_string(), "\
tensor([[1., 1.],
        [1., 1.]], device='sim:0')");"#

fft_hfft2 r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_hfft2()?.to_string(), "\
tensor([[4., 4.],
        [4., 4.]], device='sim:0')");"#

fft_ihfft2 r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_ihfft2()?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

fft_fftn r#"let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_fftn(None, None, None)?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

fft_ifftn r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_ifftn(None, None, None)?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

fft_rfftn r#"let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_rfftn(None, None, None)?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

fft_irfftn r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_irfftn(None, None, None)?.to_string(), "\
tensor([[1., 1.],
        [1., 1.]], device='sim:0')");"#

fft_hfftn r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_hfftn(None, None, None)?.to_string(), "\
tensor([[4., 4.],
        [4., 4.]], device='sim:0')");"#

fft_ihfftn r#"let x = Tensor::from_slice(&[4.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.fft_ihfftn(None, None, None)?.to_string(), "\
tensor([[1.+0.j, 1.+0.j],
        [1.+0.j, 1.+0.j]], device='sim:0')");"#

stft r#"let x = Tensor::from_values([1.0f32, 0.0, 0.0, 0.0], &device)?;
assert_eq!(x.stft(4, Some(4), None, None, false, None, Some(true), None)?.to_string(), "\
tensor([[1.+0.j],
        [1.+0.j],
        [1.+0.j]], device='sim:0')");"#

istft r#"let x = Tensor::from_slice(&[1.0f32, 1.0], &[2, 1], &device)?;
let y = Tensor::from_slice(&[0.0f32, 0.0], &[2, 1], &device)?;
assert_eq!(x.complex(&y)?.istft(2, Some(2), None, None, false, false, None, None, false)?.to_string(), "tensor([1., 0.], device='sim:0')");"#

weight_int8pack_mm r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let w = Tensor::from_slice(&[3i8, 4], &[1, 2], &device)?;
let s = Tensor::from_values([0.5f32], &device)?;
assert_eq!(x.weight_int8pack_mm(&w, &s)?.to_string(), "tensor([[5.5000]], device='sim:0')");"#
}
