//! Examples of the operators that arrange, join and index elements. See [`examples`](super).

super::examples! { ($) shapes matrices
flatten r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.flatten(0, 1)?.to_string(), "tensor([1., 2., 3., 4.], device='sim:0')");"#

ravel r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.ravel()?.to_string(), "tensor([1., 2., 3., 4.], device='sim:0')");"#

unflatten r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.unflatten(0, &[2, 2])?.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

as_strided r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.as_strided(&[2, 2], &[1, 2], None)?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

broadcast_to r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.broadcast_to(&[2, 2])?.to_string(), "\
tensor([[1., 2.],
        [1., 2.]], device='sim:0')");"#

expand_as r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.expand_as(&y)?.to_string(), "\
tensor([[1., 2.],
        [1., 2.]], device='sim:0')");"#

reshape_as r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
let y = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.reshape_as(&y)?.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

view_as r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
let y = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.view_as(&y)?.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

view_dtype r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.view_dtype(DType::I32)?.to_string(), "tensor([1065353216, 1073741824], device='sim:0', dtype=torch.int32)");"#

slice r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.slice(0, Some(1), None, 2)?.to_string(), "tensor([2., 4.], device='sim:0')");"#

chunk r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let parts = x.chunk(2, 0)?;
assert_eq!(parts[0].to_string(), "tensor([1., 2.], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([3.], device='sim:0')");"#

split r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let parts = x.split(2, 0)?;
assert_eq!(parts[0].to_string(), "tensor([1., 2.], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([3.], device='sim:0')");"#

split_with_sizes r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let parts = x.split_with_sizes(&[1, 2], 0)?;
assert_eq!(parts[0].to_string(), "tensor([1.], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([2., 3.], device='sim:0')");"#

tensor_split r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let parts = x.tensor_split(2, 0)?;
assert_eq!(parts[0].to_string(), "tensor([1., 2.], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([3.], device='sim:0')");"#

tensor_split_indices r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let parts = x.tensor_split_indices(&[1], 0)?;
assert_eq!(parts[0].to_string(), "tensor([1.], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([2., 3.], device='sim:0')");"#

hsplit r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let parts = x.hsplit(2)?;
assert_eq!(parts[0].to_string(), "\
tensor([[1.],
        [3.]], device='sim:0')");
assert_eq!(parts[1].to_string(), "\
tensor([[2.],
        [4.]], device='sim:0')");"#

hsplit_array r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let parts = x.hsplit_array(&[1])?;
assert_eq!(parts[0].to_string(), "\
tensor([[1.],
        [3.]], device='sim:0')");
assert_eq!(parts[1].to_string(), "\
tensor([[2.],
        [4.]], device='sim:0')");"#

vsplit r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let parts = x.vsplit(2)?;
assert_eq!(parts[0].to_string(), "tensor([[1., 2.]], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([[3., 4.]], device='sim:0')");"#

vsplit_array r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let parts = x.vsplit_array(&[1])?;
assert_eq!(parts[0].to_string(), "tensor([[1., 2.]], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([[3., 4.]], device='sim:0')");"#

dsplit r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
let parts = x.dsplit(2)?;
assert_eq!(parts[0].to_string(), "tensor([[[1.]]], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([[[2.]]], device='sim:0')");"#

dsplit_array r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 1, 2], &device)?;
let parts = x.dsplit_array(&[1])?;
assert_eq!(parts[0].to_string(), "tensor([[[1.]]], device='sim:0')");
assert_eq!(parts[1].to_string(), "tensor([[[2.]]], device='sim:0')");"#

movedim r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.movedim(&[0], &[1])?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

swapaxes r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.swapaxes(0, 1)?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

swapdims r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.swapdims(0, 1)?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

t r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.t()?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

diagonal r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.diagonal(0, 0, 1)?.to_string(), "tensor([1., 4.], device='sim:0')");"#

diag r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.diag(0)?.to_string(), "\
tensor([[1., 0.],
        [0., 2.]], device='sim:0')");"#

diag_embed r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.diag_embed(0, 0, 1)?.to_string(), "\
tensor([[1., 0.],
        [0., 2.]], device='sim:0')");"#

diagflat r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.diagflat(0)?.to_string(), "\
tensor([[1., 0.],
        [0., 2.]], device='sim:0')");"#

unfold r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.unfold(0, 2, 1)?.to_string(), "\
tensor([[1., 2.],
        [2., 3.],
        [3., 4.]], device='sim:0')");"#

sum_to_size r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.sum_to_size(&[1, 2])?.to_string(), "tensor([[4., 6.]], device='sim:0')");"#

resize_ r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
assert_eq!(x.resize_(&[2, 2])?.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

resize_as_ r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0, 4.0], &device)?;
let y = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
assert_eq!(x.resize_as_(&y)?.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

as_strided_scatter r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let y = Tensor::from_values([7.0f32], &device)?;
assert_eq!(x.as_strided_scatter(&y, &[1], &[1], Some(1))?.to_string(), "tensor([0., 7., 0.], device='sim:0')");"#

select_scatter r#"let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.select_scatter(&y, 0, 1)?.to_string(), "\
tensor([[0., 0.],
        [1., 2.]], device='sim:0')");"#

slice_scatter r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
assert_eq!(x.slice_scatter(&y, 0, Some(1), None, 1)?.to_string(), "tensor([0., 7., 8.], device='sim:0')");"#

diagonal_scatter r#"let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0], &[2, 2], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.diagonal_scatter(&y, 0, 0, 1)?.to_string(), "\
tensor([[1., 0.],
        [0., 2.]], device='sim:0')");"#

block_diag r#"let x = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2], &device)?;
let y = Tensor::from_slice(&[3.0f32], &[1, 1], &device)?;
assert_eq!(Tensor::block_diag(&[x, y])?.to_string(), "\
tensor([[1., 2., 0.],
        [0., 0., 3.]], device='sim:0')");"#

broadcast_tensors r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_slice(&[3.0f32, 4.0], &[2, 1], &device)?;
let parts = Tensor::broadcast_tensors(&[x, y])?;
assert_eq!(parts[0].to_string(), "\
tensor([[1., 2.],
        [1., 2.]], device='sim:0')");
assert_eq!(parts[1].to_string(), "\
tensor([[3., 3.],
        [4., 4.]], device='sim:0')");"#

cartesian_prod r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(Tensor::cartesian_prod(&[x, y])?.to_string(), "\
tensor([[1., 3.],
        [1., 4.],
        [2., 3.],
        [2., 4.]], device='sim:0')");"#

column_stack r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(Tensor::column_stack(&[x, y])?.to_string(), "\
tensor([[1., 3.],
        [2., 4.]], device='sim:0')");"#

combinations r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.combinations(2, false)?.to_string(), "\
tensor([[1., 2.],
        [1., 3.],
        [2., 3.]], device='sim:0')");"#

dstack r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(Tensor::dstack(&[x, y])?.to_string(), "\
tensor([[[1., 3.],
         [2., 4.]]], device='sim:0')");"#

hstack r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(Tensor::hstack(&[x, y])?.to_string(), "tensor([1., 2., 3., 4.], device='sim:0')");"#

vstack r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
assert_eq!(Tensor::vstack(&[x, y])?.to_string(), "\
tensor([[1., 2.],
        [3., 4.]], device='sim:0')");"#

meshgrid r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
let parts = Tensor::meshgrid(&[x, y])?;
assert_eq!(parts[0].to_string(), "\
tensor([[1., 1.],
        [2., 2.]], device='sim:0')");
assert_eq!(parts[1].to_string(), "\
tensor([[3., 4.],
        [3., 4.]], device='sim:0')");"#

meshgrid_indexing r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([3.0f32, 4.0], &device)?;
let parts = Tensor::meshgrid_indexing(&[x, y], "xy")?;
assert_eq!(parts[0].to_string(), "\
tensor([[1., 2.],
        [1., 2.]], device='sim:0')");
assert_eq!(parts[1].to_string(), "\
tensor([[3., 3.],
        [4., 4.]], device='sim:0')");"#

atleast_1d_all r#"let x = Tensor::from_values([1.0f32], &device)?;
let parts = Tensor::atleast_1d_all(&[x])?;
assert_eq!(parts[0].to_string(), "tensor([1.], device='sim:0')");"#

atleast_2d_all r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let parts = Tensor::atleast_2d_all(&[x])?;
assert_eq!(parts[0].to_string(), "tensor([[1., 2.]], device='sim:0')");"#

atleast_3d_all r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let parts = Tensor::atleast_3d_all(&[x])?;
assert_eq!(parts[0].to_string(), "\
tensor([[[1.],
         [2.]]], device='sim:0')");"#

einsum r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let y = Tensor::from_values([1.0f32, 1.0], &device)?;
assert_eq!(Tensor::einsum("ij,j->i", &[x, y])?.to_string(), "tensor([3., 7.], device='sim:0')");"#

fill r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.fill(7)?.to_string(), "tensor([7., 7.], device='sim:0')");"#

fill_tensor r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let y = Tensor::from_values([7.0f32], &device)?;
assert_eq!(x.fill_tensor(&y.squeeze(0)?)?.to_string(), "tensor([7., 7.], device='sim:0')");"#

flip r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.flip(&[0])?.to_string(), "tensor([3., 2., 1.], device='sim:0')");"#

fliplr r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.fliplr()?.to_string(), "\
tensor([[2., 1.],
        [4., 3.]], device='sim:0')");"#

flipud r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.flipud()?.to_string(), "\
tensor([[3., 4.],
        [1., 2.]], device='sim:0')");"#

full_like r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.full_like(7)?.to_string(), "tensor([7., 7.], device='sim:0')");"#

ones_like r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.ones_like()?.to_string(), "tensor([1., 1.], device='sim:0')");"#

zeros_like r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.zeros_like()?.to_string(), "tensor([0., 0.], device='sim:0')");"#

empty_like r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.empty_like()?.shape(), [2]);"#

new_empty r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.new_empty(&[3])?.shape(), [3]);"#

new_empty_strided r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.new_empty_strided(&[2, 2], &[1, 2])?.shape(), [2, 2]);"#

new_full r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.new_full(&[3], 7)?.to_string(), "tensor([7., 7., 7.], device='sim:0')");"#

new_ones r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.new_ones(&[3])?.to_string(), "tensor([1., 1., 1.], device='sim:0')");"#

new_zeros r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.new_zeros(&[3])?.to_string(), "tensor([0., 0., 0.], device='sim:0')");"#

rand_like r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.rand_like()?.shape(), [2]);"#

randn_like r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.randn_like()?.shape(), [2]);"#

repeat r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.repeat(&[2])?.to_string(), "tensor([1., 2., 1., 2.], device='sim:0')");"#

repeat_interleave r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.repeat_interleave(2, None)?.to_string(), "tensor([1., 1., 2., 2.], device='sim:0')");"#

repeat_interleave_tensor r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let n = Tensor::from_values([1i64, 3], &device)?;
assert_eq!(x.repeat_interleave_tensor(&n, None)?.to_string(), "tensor([1., 2., 2., 2.], device='sim:0')");"#

roll r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
assert_eq!(x.roll(&[1], &[0])?.to_string(), "tensor([3., 1., 2.], device='sim:0')");"#

rot90 r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.rot90(1, &[0, 1])?.to_string(), "\
tensor([[2., 4.],
        [1., 3.]], device='sim:0')");"#

tile r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.tile(&[2])?.to_string(), "tensor([1., 2., 1., 2.], device='sim:0')");"#

tril r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.tril(0)?.to_string(), "\
tensor([[1., 0.],
        [3., 4.]], device='sim:0')");"#

triu r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
assert_eq!(x.triu(0)?.to_string(), "\
tensor([[1., 2.],
        [0., 4.]], device='sim:0')");"#

constant_pad_nd r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.constant_pad_nd(&[1, 1], 9)?.to_string(), "tensor([9., 1., 2., 9.], device='sim:0')");"#

pad r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.pad(&[1, 1], "constant", Some(9.0))?.to_string(), "tensor([9., 1., 2., 9.], device='sim:0')");"#

reflection_pad1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[1, 3], &device)?;
assert_eq!(x.reflection_pad1d(&[1, 1])?.to_string(), "tensor([[2., 1., 2., 3., 2.]], device='sim:0')");"#

replication_pad1d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[1, 3], &device)?;
assert_eq!(x.replication_pad1d(&[1, 1])?.to_string(), "tensor([[1., 1., 2., 3., 3.]], device='sim:0')");"#

reflection_pad2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2], &device)?;
assert_eq!(x.reflection_pad2d(&[1, 0, 0, 0])?.to_string(), "\
tensor([[[2., 1., 2.],
         [4., 3., 4.]]], device='sim:0')");"#

replication_pad2d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2], &device)?;
assert_eq!(x.replication_pad2d(&[1, 0, 0, 0])?.to_string(), "\
tensor([[[1., 1., 2.],
         [3., 3., 4.]]], device='sim:0')");"#

reflection_pad3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
assert_eq!(x.reflection_pad3d(&[1, 0, 0, 0, 0, 0])?.to_string(), "\
tensor([[[[2., 1., 2.],
          [4., 3., 4.]]]], device='sim:0')");"#

replication_pad3d r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2], &device)?;
assert_eq!(x.replication_pad3d(&[1, 0, 0, 0, 0, 0])?.to_string(), "\
tensor([[[[1., 1., 2.],
          [3., 3., 4.]]]], device='sim:0')");"#

fft_fftshift r#"let x = Tensor::from_values([0.0f32, 1.0, 2.0, 3.0], &device)?;
assert_eq!(x.fft_fftshift(None)?.to_string(), "tensor([2., 3., 0., 1.], device='sim:0')");"#

fft_ifftshift r#"let x = Tensor::from_values([0.0f32, 1.0, 2.0, 3.0], &device)?;
assert_eq!(x.fft_ifftshift(None)?.to_string(), "tensor([2., 3., 0., 1.], device='sim:0')");"#

gather r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let i = Tensor::from_slice(&[1i64, 0], &[2, 1], &device)?;
assert_eq!(x.gather(1, &i)?.to_string(), "\
tensor([[2.],
        [3.]], device='sim:0')");"#

index r#"let x = Tensor::from_values([10.0f32, 20.0, 30.0], &device)?;
let i = Tensor::from_values([2i64, 0], &device)?;
assert_eq!(x.index(&[Some(i)])?.to_string(), "tensor([30., 10.], device='sim:0')");"#

index_select r#"let x = Tensor::from_values([10.0f32, 20.0, 30.0], &device)?;
let i = Tensor::from_values([2i64, 0], &device)?;
assert_eq!(x.index_select(0, &i)?.to_string(), "tensor([30., 10.], device='sim:0')");"#

index_add r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.index_add(0, &i, &y)?.to_string(), "tensor([1., 0., 2.], device='sim:0')");"#

index_copy r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
let y = Tensor::from_values([1.0f32, 2.0], &device)?;
assert_eq!(x.index_copy(0, &i, &y)?.to_string(), "tensor([1., 0., 2.], device='sim:0')");"#

index_fill r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
assert_eq!(x.index_fill(0, &i, 9)?.to_string(), "tensor([9., 2., 9.], device='sim:0')");"#

index_fill_tensor r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
let y = Tensor::from_values([9.0f32], &device)?;
assert_eq!(x.index_fill_tensor(0, &i, &y.squeeze(0)?)?.to_string(), "tensor([9., 2., 9.], device='sim:0')");"#

index_put r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
assert_eq!(x.index_put(&[Some(i)], &y, false)?.to_string(), "tensor([7., 2., 8.], device='sim:0')");"#

index_put_ r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
x.index_put_(&[Some(i)], &y, false)?;
assert_eq!(x.to_string(), "tensor([7., 2., 8.], device='sim:0')");"#

index_reduce r#"let x = Tensor::from_values([1.0f32, 1.0, 1.0], &device)?;
let i = Tensor::from_values([0i64, 0], &device)?;
let y = Tensor::from_values([2.0f32, 3.0], &device)?;
assert_eq!(x.index_reduce(0, &i, &y, "prod", true)?.to_string(), "tensor([6., 1., 1.], device='sim:0')");"#

masked_fill r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let m = Tensor::from_values([true, false], &device)?;
assert_eq!(x.masked_fill(&m, 9)?.to_string(), "tensor([9., 2.], device='sim:0')");"#

masked_fill_tensor r#"let x = Tensor::from_values([1.0f32, 2.0], &device)?;
let m = Tensor::from_values([true, false], &device)?;
let y = Tensor::from_values([9.0f32], &device)?;
assert_eq!(x.masked_fill_tensor(&m, &y.squeeze(0)?)?.to_string(), "tensor([9., 2.], device='sim:0')");"#

masked_scatter r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let m = Tensor::from_values([true, false, true], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
assert_eq!(x.masked_scatter(&m, &y)?.to_string(), "tensor([7., 2., 8.], device='sim:0')");"#

masked_select r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let m = Tensor::from_values([true, false, true], &device)?;
assert_eq!(x.masked_select(&m)?.to_string(), "tensor([1., 3.], device='sim:0')");"#

one_hot r#"let x = Tensor::from_values([0i64, 2], &device)?;
assert_eq!(x.one_hot(3)?.to_string(), "\
tensor([[1, 0, 0],
        [0, 0, 1]], device='sim:0')");"#

put r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([0i64, 2], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
assert_eq!(x.put(&i, &y, false)?.to_string(), "tensor([7., 2., 8.], device='sim:0')");"#

take r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let i = Tensor::from_values([3i64, 0], &device)?;
assert_eq!(x.take(&i)?.to_string(), "tensor([4., 1.], device='sim:0')");"#

take_along_dim r#"let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device)?;
let i = Tensor::from_slice(&[1i64, 0], &[2, 1], &device)?;
assert_eq!(x.take_along_dim(&i, Some(1))?.to_string(), "\
tensor([[2.],
        [3.]], device='sim:0')");"#

scatter r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let i = Tensor::from_values([2i64, 0], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
assert_eq!(x.scatter(0, &i, &y)?.to_string(), "tensor([8., 0., 7.], device='sim:0')");"#

scatter_add r#"let x = Tensor::from_values([1.0f32, 1.0, 1.0], &device)?;
let i = Tensor::from_values([2i64, 2], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
assert_eq!(x.scatter_add(0, &i, &y)?.to_string(), "tensor([ 1.,  1., 16.], device='sim:0')");"#

scatter_reduce r#"let x = Tensor::from_values([1.0f32, 1.0, 1.0], &device)?;
let i = Tensor::from_values([2i64, 2], &device)?;
let y = Tensor::from_values([7.0f32, 8.0], &device)?;
assert_eq!(x.scatter_reduce(0, &i, &y, "amax", true)?.to_string(), "tensor([1., 1., 8.], device='sim:0')");"#

scatter_value r#"let x = Tensor::from_values([0.0f32, 0.0, 0.0], &device)?;
let i = Tensor::from_values([2i64, 0], &device)?;
assert_eq!(x.scatter_value(0, &i, 9)?.to_string(), "tensor([9., 0., 9.], device='sim:0')");"#

scatter_value_with r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([2i64, 0], &device)?;
assert_eq!(x.scatter_value_with(0, &i, 10, "multiply")?.to_string(), "tensor([10.,  2., 30.], device='sim:0')");"#

scatter_with r#"let x = Tensor::from_values([1.0f32, 2.0, 3.0], &device)?;
let i = Tensor::from_values([2i64, 0], &device)?;
let y = Tensor::from_values([10.0f32, 20.0], &device)?;
assert_eq!(x.scatter_with(0, &i, &y, "add")?.to_string(), "tensor([21.,  2., 13.], device='sim:0')");"#
}
