//! The `out=` forms of operators, compared with PyTorch's schemas, and their results.

use thalweg_ir::DType;
use thalweg_ops::schema::Schema;
use thalweg_runtime::{Label, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Argument, find_operator};

use crate::support::{assert_close, device, random, tensor, values};

/// Schemas of PyTorch 2.11, of forms whose names differ from their operators', or that lack some of their parameters.
const SCHEMAS: &str = "\
_native_batch_norm_legit.no_stats_out(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps, *, Tensor(a!) out, Tensor(b!) save_mean, Tensor(c!) save_invstd) -> (Tensor(a!), Tensor(b!), Tensor(c!))
_native_batch_norm_legit_no_training.out(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))
_to_copy.out(Tensor self, *, bool non_blocking=False, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)
add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)
all.all_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
all.out(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)
any.all_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
any.out(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)
arange.out(Scalar end, *, Tensor(a!) out) -> Tensor(a!)
arange.start_out(Scalar start, Scalar end, Scalar step=1, *, Tensor(a!) out) -> Tensor(a!)
avg_pool2d_backward.grad_input(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override, *, Tensor(a!) grad_input) -> Tensor(a!)
cat.out(Tensor[] tensors, int dim=0, *, Tensor(a!) out) -> Tensor(a!)
div.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)
div.out_mode(Tensor self, Tensor other, *, str? rounding_mode, Tensor(a!) out) -> Tensor(a!)
empty.out(SymInt[] size, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)
eye.m_out(SymInt n, SymInt m, *, Tensor(a!) out) -> Tensor(a!)
full.out(SymInt[] size, Scalar fill_value, *, Tensor(a!) out) -> Tensor(a!)
max.dim_max(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) max, Tensor(b!) max_values) -> (Tensor(a!) values, Tensor(b!) indices)
max.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)
max.unary_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
max_pool2d_with_indices.out(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False, *, Tensor(a!) out, Tensor(b!) indices) -> (Tensor(a!), Tensor(b!))
max_pool2d_with_indices_backward.grad_input(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices, *, Tensor(a!) grad_input) -> Tensor(a!)
max_pool3d_with_indices.out(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False, *, Tensor(a!) out, Tensor(b!) indices) -> (Tensor(a!), Tensor(b!))
mean.dtype_out(Tensor self, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)
mean.out(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)
min.dim_min(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) min, Tensor(b!) min_indices) -> (Tensor(a!) values, Tensor(b!) indices)
min.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)
min.unary_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)
mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)
native_dropout.out(Tensor input, float p, bool? train, *, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))
native_group_norm.out(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))
native_group_norm_backward.out(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))
native_layer_norm.out(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))
native_layer_norm_backward.out(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))
prod.int_out(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)
randn.out(SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)
sort.values(Tensor self, int dim=-1, bool descending=False, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)
sort.values_stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)
std.out(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)
sub.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)
sum.IntList_out(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)
var.out(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)
zeros.out(SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)
";

#[test]
fn forms_have_pytorchs_names_and_parameters() {
    for line in SCHEMAS.lines() {
        let theirs = Schema::parse(line).unwrap();
        let own = find_operator(&theirs.name).unwrap().schema();
        let parameters = |schema: &Schema| -> Vec<(String, bool, bool)> {
            let list = schema.parameters.iter();
            list.map(|parameter| {
                let writes = parameter.ty.alias.as_ref().is_some_and(|alias| alias.writes);
                (parameter.name.to_string(), writes, parameter.default.is_some())
            })
            .collect()
        };
        assert_eq!(parameters(own), parameters(&theirs), "{line}");
        assert_eq!(own.returns.len(), theirs.returns.len(), "{line}");
    }
}

fn call(name: &str, arguments: &[Argument<'_>]) -> Result<()> {
    find_operator(name)?.call(arguments, None, Label::here("out")).map(drop)
}

fn empty(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::empty(shape, dtype, &device()).unwrap()
}

#[test]
fn forms_write_what_their_operators_give() {
    let (x, y) = (random(&[3, 4], 1), random(&[3, 4], 2));
    let out = empty(&[3, 4], DType::F64);
    call("add.out", &[(&x).into(), (&y).into(), Argument::Scalar(3i64.into()), (&out).into()]).unwrap();
    assert_close(&values(&out), &values(&x.add(&y.mul_scalar(3.0).unwrap()).unwrap()), 1e-15);
    call("div.out_mode", &[(&x).into(), (&y).into(), "floor".into(), (&out).into()]).unwrap();
    assert_eq!(values(&out), values(&x.div(&y).unwrap().floor().unwrap()));
    let row = empty(&[3], DType::F64);
    let rows: [i64; 1] = [1];
    call("mean.out", &[(&x).into(), Argument::Ints(&rows), false.into(), Argument::None, (&row).into()])
        .unwrap();
    assert_close(&values(&row), &values(&x.mean(&[1], false).unwrap()), 1e-15);
    let narrow = empty(&[3], DType::F32);
    let arguments = [(&x).into(), Argument::Ints(&rows), false.into(), Argument::None, (&narrow).into()];
    call("sum.IntList_out", &arguments).unwrap();
    assert_close(&values(&narrow), &values(&x.sum(&[1], false).unwrap()), 1e-6);
    let (greatest, places) = (empty(&[4], DType::F64), empty(&[4], DType::I64));
    call("max.dim_max", &[(&x).into(), 0i64.into(), false.into(), (&greatest).into(), (&places).into()])
        .unwrap();
    let columns = values(&x);
    for column in 0..4 {
        let own: Vec<f64> = (0..3).map(|row| columns[row * 4 + column]).collect();
        let place = (0..3).max_by(|&a, &b| own[a].total_cmp(&own[b])).unwrap();
        assert_eq!((values(&greatest)[column], values(&places)[column]), (own[place], place as f64));
    }
    let any = empty(&[], DType::Bool);
    call("any.all_out", &[(&x).into(), (&any).into()]).unwrap();
    assert!(any.item::<bool>().unwrap());
    let (normed, mean, rstd) =
        (empty(&[3, 4], DType::F64), empty(&[3, 1], DType::F64), empty(&[3, 1], DType::F64));
    let sizes: [i64; 1] = [4];
    let [normed_to, mean_to, rstd_to] = [&normed, &mean, &rstd].map(Argument::Tensor);
    let none = Argument::None;
    call(
        "native_layer_norm.out",
        &[(&x).into(), Argument::Ints(&sizes), none, none, 0.0.into(), normed_to, mean_to, rstd_to],
    )
    .unwrap();
    assert_close(&values(&mean), &values(&row), 1e-14);
    assert_close(&values(&normed.mul(&normed).unwrap().mean(&[1], false).unwrap()), &[1.0; 3], 1e-12);
}

#[test]
fn new_tensors_are_written_in_the_dtype_that_is_given() {
    let out = empty(&[2, 2], DType::I64);
    let sizes: [i64; 2] = [2, 2];
    call("full.out", &[Argument::Ints(&sizes), Argument::Scalar(7.0.into()), (&out).into()]).unwrap();
    assert_eq!(out.to_vec::<i64>().unwrap(), [7; 4]);
    let range = empty(&[3], DType::F32);
    let bounds = [1i64, 7, 2].map(|number| Argument::Scalar(number.into()));
    call("arange.start_out", &[bounds[0], bounds[1], bounds[2], (&range).into()]).unwrap();
    assert_eq!(values(&range), [1.0, 3.0, 5.0]);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let x = tensor(&[1.0, 2.0], &[2], DType::F32);
    let refused = |name: &str, arguments: &[Argument<'_>], words: &str| {
        let error = call(name, arguments).unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(words), "{error}");
    };
    let one = Argument::Scalar(1i64.into());
    let whole = empty(&[2], DType::I64);
    refused(
        "add.out",
        &[(&x).into(), (&x).into(), one, (&whole).into()],
        "result type Float can't be cast to the desired output type Long",
    );
    let row = empty(&[1], DType::F32).expand(&[2]).unwrap();
    refused(
        "add.out",
        &[(&x).into(), (&x).into(), one, (&row).into()],
        "more than one element of the written-to tensor refers to a single memory location",
    );
    let memory = tensor(&[1.0, 2.0, 3.0], &[3], DType::F32);
    let [head, tail] = [0, 1].map(|start| memory.narrow(0, start, 2).unwrap());
    refused(
        "add.out",
        &[(&head).into(), (&x).into(), one, (&tail).into()],
        "some elements of the input tensor and the written-to tensor refer to a single memory location",
    );
    call("add.out", &[(&head).into(), (&x).into(), one, (&head).into()]).unwrap();
    assert_eq!(values(&memory), [2.0, 4.0, 3.0]);
    let wide = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::F32);
    refused(
        "add.out",
        &[(&x).into(), (&wide).into(), one, (&x).into()],
        "output with shape [2] doesn't match the broadcast shape [2, 2]",
    );
    let leaf = empty(&[0], DType::F32).requires_grad_().unwrap();
    let error = thalweg_tensor::no_grad(|| call("add.out", &[(&x).into(), (&x).into(), one, (&leaf).into()]));
    assert!(error.unwrap_err().to_string().contains("cannot resize variables that require grad"));
    for name in ["view_", "permute_", "expand_"] {
        assert!(find_operator(name).unwrap_err().to_string().contains("there is no operator"), "{name}");
    }
}

/// As PyTorch 2.11 does it: a tensor that is large enough keeps its memory, views of a storage that grows see it grow, and strides are those of
/// the result.
#[test]
fn tensors_of_another_shape_get_that_of_the_result() {
    let x = random(&[2, 3, 4, 5], 1);
    let expected = values(&x.add(&x).unwrap());
    let one = Argument::Scalar(1i64.into());
    let add = |x: &Tensor, out: &Tensor| call("add.out", &[x.into(), x.into(), one, out.into()]).unwrap();
    let out = empty(&[0], DType::F64);
    let clone = out.clone();
    add(&x, &out);
    assert_eq!((out.shape(), clone.shape()), (x.shape(), x.shape()));
    assert_eq!(values(&clone), expected);
    // A smaller result uses the beginning of the memory.
    let front = out.pointer();
    add(&x.select(0, 0).unwrap(), &out);
    assert_eq!((out.shape(), out.pointer()), (&[3, 4, 5][..], front));
    assert_eq!(values(&out), expected[..60]);
    // A larger one is moved to other memory, which a view of the former sees, too.
    let small = tensor(&[7.0, 8.0], &[2], DType::F64);
    let view = small.narrow(0, 1, 1).unwrap();
    add(&x, &small);
    assert_eq!(values(&view), expected[1..2]);
    assert!(view.shares_storage_with(&small));
    // Channels last, like the result.
    let last = x.contiguous_in(thalweg_tensor::MemoryFormat::ChannelsLast).unwrap();
    let out = empty(&[0], DType::F64);
    add(&last, &out);
    assert_eq!(out.layout().strides(), last.layout().strides());
    assert_eq!(values(&out), expected);
    let (values_to, places) = (empty(&[0], DType::F64), empty(&[0], DType::I64));
    call("sort.values", &[(&x).into(), 1i64.into(), false.into(), (&values_to).into(), (&places).into()])
        .unwrap();
    assert_eq!((values_to.shape(), places.shape()), (x.shape(), x.shape()));
}

#[test]
fn memory_grows_in_place() {
    let x = tensor(&[1.0, 2.0, 3.0], &[3], DType::F32);
    let same = call_one("resize_", &[(&x).into(), Argument::Ints(&[2, 3])]);
    assert!(same.is_same(&x));
    assert_eq!((x.shape(), &values(&x)[..3]), (&[2, 3][..], &[1.0, 2.0, 3.0][..]));
    call_one("resize_", &[(&x).into(), Argument::Ints(&[2])]);
    assert_eq!(values(&x), [1.0, 2.0]);
    // In a view, after its offset.
    let view = x.narrow(0, 1, 1).unwrap();
    call_one("resize_", &[(&view).into(), Argument::Ints(&[2])]);
    assert_eq!(values(&view), [2.0, 3.0]);
    // A saved tensor must not have changed.
    let leaf = random(&[2, 3], 1).requires_grad_().unwrap();
    let factor = random(&[2, 3], 2);
    let product = leaf.mul(&factor).unwrap();
    call_one("t_", &[(&factor).into()]);
    let error = product.sum(&[], false).unwrap().backward().unwrap_err().to_string();
    assert!(error.contains("modified by an inplace operation"), "{error}");
    let huge = [i64::MAX / 8, 4];
    let error = call("resize_", &[(&x).into(), Argument::Ints(&huge)]).unwrap_err();
    assert!(error.is_invalid_argument(), "{error}");
    assert_eq!(values(&x), [1.0, 2.0]);
}

fn call_one(name: &str, arguments: &[Argument<'_>]) -> Tensor {
    find_operator(name).unwrap().call(arguments, None, Label::here("one")).unwrap().swap_remove(0)
}

#[test]
fn a_refused_call_has_written_nothing() {
    let memory = tensor(&[1.0, 2.0], &[2], DType::F32);
    let column = memory.view((2, 1)).unwrap();
    for (name, arguments) in [
        (
            "add.out",
            vec![(&memory).into(), (&memory).into(), Argument::Scalar(1i64.into()), (&column).into()],
        ),
        ("exp.out", vec![(&memory).into(), (&column).into()]),
        ("eq.Scalar_out", vec![(&memory).into(), Argument::Scalar(1i64.into()), (&column).into()]),
    ] {
        let error = call(name, &arguments).unwrap_err();
        assert!(error.is_invalid_argument(), "{name}: {error}");
        assert_eq!(values(&memory), [1.0, 2.0], "{name}");
    }
}

#[test]
fn sums_are_computed_in_the_dtype_that_they_are_written_in() {
    let x = tensor(&[1.5, 1.5, 1.5], &[3], DType::F32);
    let third = tensor(&[1.0 / 3.0; 3], &[3], DType::F32);
    let rounded = f64::from(1.0f32 / 3.0);
    let (none, dims) = (Argument::None, Argument::Ints(&[0]));
    for (name, arguments, whole, exact) in [
        ("sum.IntList_out", vec![dims, false.into(), none], vec![3.0], vec![3.0 * rounded]),
        ("nansum.out", vec![dims, false.into(), none], vec![3.0], vec![3.0 * rounded]),
        ("prod.int_out", vec![0i64.into(), false.into(), none], vec![1.0], vec![rounded.powi(3)]),
        (
            "cumsum.out",
            vec![0i64.into(), none],
            vec![1.0, 2.0, 3.0],
            vec![rounded, 2.0 * rounded, 3.0 * rounded],
        ),
        (
            "cumprod.out",
            vec![0i64.into(), none],
            vec![1.0; 3],
            vec![rounded, rounded.powi(2), rounded.powi(3)],
        ),
    ] {
        for (input, dtype, expected) in [(&x, DType::I64, &whole), (&third, DType::F64, &exact)] {
            let out = empty(&[0], dtype);
            let arguments: Vec<_> =
                [input.into()].into_iter().chain(arguments.iter().copied()).chain([(&out).into()]).collect();
            call(name, &arguments).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_close(&values(&out), expected, 1e-15);
        }
        let out = empty(&[0], DType::F64);
        let mut arguments: Vec<_> =
            [(&x).into()].into_iter().chain(arguments).chain([(&out).into()]).collect();
        let place = arguments.len() - 2;
        arguments[place] = DType::F32.into();
        let error = call(name, &arguments).unwrap_err();
        assert!(
            error.to_string().contains("Expected out tensor to have dtype float, but got double"),
            "{error}"
        );
    }
}
