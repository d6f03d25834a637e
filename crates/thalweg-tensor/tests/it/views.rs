//! Views and new tensors by their schemas: values compared with plain loops, gradients with finite differences, and refusals with
//! PyTorch's messages.

use thalweg_ir::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::dispatch::{Value, find_operator};

use crate::support::{check_gradient, device, random, values};

/// Calls an operator by its name, and returns its results.
fn try_call(name: &str, arguments: &[Value]) -> thalweg_runtime::Result<Vec<Tensor>> {
    let results = find_operator(name)?.call_boxed(arguments, Some(&device()))?;
    Ok((results.into_iter())
        .flat_map(|result| match result {
            Value::Tensors(list) => list,
            Value::Tensor(tensor) => vec![tensor],
            other => panic!("{name} gave {other:?}"),
        })
        .collect())
}

#[track_caller]
fn call(name: &str, arguments: &[Value]) -> Tensor {
    try_call(name, arguments).unwrap_or_else(|error| panic!("{name}: {error}")).swap_remove(0)
}

#[track_caller]
fn assert_refused(name: &str, arguments: &[Value], words: &str) {
    let error = try_call(name, arguments).unwrap_err();
    assert!(error.is_invalid_argument() && error.to_string().contains(words), "{name}: {error}");
}

fn of(tensor: &Tensor) -> Value {
    Value::Tensor(tensor.clone())
}

fn ints(list: &[i64]) -> Value {
    Value::Ints(list.to_vec())
}

fn ramp(shape: &[usize]) -> Tensor {
    let count = shape.iter().product();
    Tensor::arange(count, 0.0, 1.0, DType::F64, &device()).and_then(|x| x.reshape(shape)).unwrap()
}

#[test]
fn views_see_the_memory_of_their_base() {
    let x = ramp(&[2, 3, 4]);
    let one = |name: &str, mut rest: Vec<Value>| {
        rest.insert(0, of(&x));
        call(name, &rest)
    };
    let cases: [(Tensor, &[usize], &[f64]); 9] = [
        (
            one("select.int", vec![Value::Int(-1), Value::Int(-2)]),
            &[2, 3],
            &[2.0, 6.0, 10.0, 14.0, 18.0, 22.0],
        ),
        (
            one("slice.Tensor", vec![Value::Int(2), Value::Int(-3), Value::Int(i64::MAX), Value::Int(2)]),
            &[2, 3, 2],
            &[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0, 17.0, 19.0, 21.0, 23.0],
        ),
        (
            one("diagonal", vec![Value::Int(1), Value::Int(0), Value::Int(2)]),
            &[3, 2],
            &[1.0, 14.0, 5.0, 18.0, 9.0, 22.0],
        ),
        (
            one("diagonal", vec![Value::Int(-1), Value::Int(1), Value::Int(2)]),
            &[2, 2],
            &[4.0, 9.0, 16.0, 21.0],
        ),
        (one("diagonal", vec![Value::Int(i64::MIN)]), &[4, 0], &[]),
        (
            one("narrow", vec![Value::Int(1), Value::Int(-1), Value::Int(1)]),
            &[2, 1, 4],
            &[8.0, 9.0, 10.0, 11.0, 20.0, 21.0, 22.0, 23.0],
        ),
        (
            one("as_strided", vec![ints(&[2, 2]), ints(&[1, 1]), Value::Int(3)]),
            &[2, 2],
            &[3.0, 4.0, 4.0, 5.0],
        ),
        (
            one("movedim.int", vec![Value::Int(-1), Value::Int(0)]).select(0, 1).unwrap(),
            &[2, 3],
            &[1.0, 5.0, 9.0, 13.0, 17.0, 21.0],
        ),
        (one("view", vec![ints(&[-1, 12])]).narrow(1, 0, 1).unwrap(), &[2, 1], &[0.0, 12.0]),
    ];
    for (at, (view, shape, elements)) in cases.iter().enumerate() {
        assert!(view.shares_storage_with(&x), "view {at}");
        assert_eq!((view.shape(), values(view).as_slice()), (*shape, *elements), "view {at}");
    }
    let copy = one("clone", vec![]);
    one("diagonal", vec![]).copy_(&Tensor::zeros(&[], DType::F64, &device()).unwrap()).unwrap();
    assert_eq!(values(&x)[12 + 4], 0.0);
    assert_eq!(values(&copy)[12 + 4], 16.0);
}

#[test]
fn gradients_go_back_through_views() {
    let x = random(&[3, 4], 1);
    let weighted = |y: Tensor| {
        let weights = ramp(y.shape());
        y.mul(&weights).unwrap()
    };
    check_gradient(&x, |x| weighted(x.slice(1, Some(1), None, 2).unwrap()));
    check_gradient(&x, |x| weighted(x.diagonal(1, 0, 1).unwrap()));
    check_gradient(&x, |x| weighted(call("select.int", &[of(x), Value::Int(1), Value::Int(-1)])));
    // Elements that a view repeats receive the sum.
    check_gradient(&x, |x| weighted(x.as_strided(&[3, 4], &[2, 2], Some(1)).unwrap()));
    check_gradient(&x, |x| {
        let turned = x.transpose(0, 1).unwrap();
        weighted(turned.as_strided(&[4, 3], &[1, 4], None).unwrap())
    });
    check_gradient(&x, |x| weighted(x.split(3, 1).unwrap()[1].clone()));
    check_gradient(&x, |x| {
        let parts = x.chunk(3, 1).unwrap();
        weighted(parts[0].add(&parts[1]).unwrap())
    });
    check_gradient(&x, |x| weighted(call("squeeze", &[of(&x.unsqueeze(1).unwrap())])));
    check_gradient(&x, |x| weighted(x.flatten(0, -1).unwrap()));
    let leaf = x.detach().requires_grad_().unwrap();
    assert!(!call("detach", &[of(&leaf)]).requires_grad());
}

#[test]
fn parts_fill_a_dimension() {
    let x = ramp(&[7]);
    let lengths = |parts: Vec<Tensor>| parts.iter().map(Tensor::elements).collect::<Vec<_>>();
    assert_eq!(lengths(x.split(3, 0).unwrap()), [3, 3, 1]);
    assert_eq!(lengths(x.chunk(4, 0).unwrap()), [2, 2, 2, 1]);
    assert_eq!(lengths(x.chunk(6, 0).unwrap()), [2, 2, 2, 1]);
    assert_eq!(lengths(x.split_with_sizes(&[0, 5, 2], 0).unwrap()), [0, 5, 2]);
    assert_eq!(lengths(ramp(&[0]).chunk(3, 0).unwrap()), [0, 0, 0]);
    assert_eq!(lengths(ramp(&[0]).split(0, 0).unwrap()), [0]);
    assert_refused(
        "split.Tensor",
        &[of(&x), Value::Int(0)],
        "split_size can only be 0 if dimension size is 0",
    );
    assert_refused("split_with_sizes", &[of(&x), ints(&[3, 3])], "to sum exactly to 7");
}

#[test]
fn what_is_no_view_is_refused_in_pytorchs_words() {
    let x = ramp(&[2, 3]);
    let turned = x.transpose(0, 1).unwrap();
    assert_refused(
        "view",
        &[of(&turned), ints(&[6])],
        "view size is not compatible with input tensor's size and stride",
    );
    assert_refused("view", &[of(&x), ints(&[4, -1])], "shape '[4, -1]' is invalid for input of size 6");
    assert_refused("reshape", &[of(&x), ints(&[-1, -1])], "only one dimension can be inferred");
    assert_refused("reshape", &[of(&ramp(&[0])), ints(&[0, -1])], "is ambiguous");
    assert_refused(
        "select.int",
        &[of(&x), Value::Int(0), Value::Int(2)],
        "select(): index 2 out of range for tensor of size [2, 3]",
    );
    assert_refused(
        "select.int",
        &[of(&x), Value::Int(2), Value::Int(0)],
        "Dimension out of range (expected to be in range of [-2, 1], but got 2)",
    );
    assert_refused(
        "expand",
        &[of(&x), ints(&[2, 4])],
        "must match the existing size (3) at non-singleton dimension 1",
    );
    assert_refused("permute", &[of(&x), ints(&[0, 0])], "duplicate dims are not allowed");
    assert_refused("as_strided", &[of(&x), ints(&[7]), ints(&[1])], "out of bounds for storage of size 48");
    assert_refused("as_strided", &[of(&x), ints(&[2]), ints(&[i64::MAX])], "out of bounds for storage");
    assert_refused(
        "slice.Tensor",
        &[of(&x), Value::Int(0), Value::None, Value::None, Value::Int(0)],
        "slice step must be positive",
    );
    assert_refused("zeros", &[ints(&[2, -1])], "negative dimension -1");
    assert_refused("arange.start", &[Value::Int(3), Value::Int(1)], "inconsistent with step sign");
}

/// Returns four rows of six floats, 0 to 23.
fn floats() -> Tensor {
    ramp(&[4, 6]).to_dtype(DType::F32).unwrap()
}

/// A tensor and a dtype, and the shape, strides and offset of the view.
type Viewed<'a> = (Tensor, DType, &'a [usize], &'a [usize], usize);

/// Layouts are those of PyTorch for the same calls.
#[test]
fn memory_is_viewed_as_another_dtype() {
    let x = floats();
    let bytes: Vec<u8> = (0..24).flat_map(|number| (number as f32).to_ne_bytes()).collect();
    let doubles: Vec<f64> = bytes.as_chunks::<8>().0.iter().map(|eight| f64::from_ne_bytes(*eight)).collect();
    assert_eq!(x.view_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), bytes);
    assert_eq!(x.view_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), doubles);
    let bits: Vec<i32> = (0..24).map(|number| (number as f32).to_bits().cast_signed()).collect();
    assert_eq!(x.view_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), bits);
    let rows = x.narrow(0, 1, 2).unwrap();
    let first = Tensor::ones(&[1, 4], DType::F32, &device()).unwrap();
    let cases: [Viewed<'_>; 8] = [
        (x.clone(), DType::F64, &[4, 3], &[3, 1], 0),
        (x.clone(), DType::I8, &[4, 24], &[24, 1], 0),
        (x.transpose(0, 1).unwrap(), DType::I32, &[6, 4], &[1, 6], 0),
        (rows.narrow(1, 2, 2).unwrap(), DType::F64, &[2, 1], &[3, 1], 4),
        (rows.narrow(1, 3, 2).unwrap(), DType::Bf16, &[2, 4], &[12, 1], 18),
        (x.narrow(0, 0, 0).unwrap(), DType::C64, &[0, 3], &[3, 1], 0),
        (first.expand(&[3, 4]).unwrap(), DType::F64, &[3, 2], &[0, 1], 0),
        (x.select(0, 1).unwrap().select(0, 2).unwrap(), DType::I32, &[], &[], 8),
    ];
    for (place, (base, dtype, shape, strides, offset)) in cases.iter().enumerate() {
        let view = base.view_dtype(*dtype).unwrap();
        let layout = view.layout();
        assert_eq!((view.dtype(), layout.shape(), layout.strides()), (*dtype, *shape, *strides), "{place}");
        assert!(layout.offset() == *offset && view.shares_storage_with(base), "{place}");
    }
    // A float of one is 0x3f800000.
    x.view_dtype(DType::I32).unwrap().select(0, 1).unwrap().fill_(0x3f80_0000_i64).unwrap();
    assert_eq!(values(&x)[5..12], [5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    let copy = call("view_copy.dtype", &[of(&x), Value::DType(DType::I16)]);
    assert!(copy.shape() == [4, 12] && !copy.shares_storage_with(&x));
}

#[test]
fn a_view_of_another_dtype_is_outside_the_graph() {
    let x = floats().requires_grad_().unwrap();
    for dtype in [DType::F32, DType::F64, DType::I32] {
        assert!(!x.view_dtype(dtype).unwrap().requires_grad(), "{dtype}");
    }
    let y = x.mul_scalar(2.0).unwrap();
    y.view_dtype(DType::I32).unwrap().zero_().unwrap();
    assert!(y.requires_grad() && values(&y.detach()) == [0.0; 24]);
    let squared = y.square().unwrap();
    y.view_dtype(DType::I32).unwrap().zero_().unwrap();
    assert!(
        squared
            .sum(&[], false)
            .unwrap()
            .backward()
            .unwrap_err()
            .to_string()
            .contains("modified by an inplace operation")
    );
}

#[test]
fn views_of_another_dtype_that_do_not_fit_are_refused_in_pytorchs_words() {
    let x = floats();
    let refuse =
        |x: &Tensor, dtype, words: &str| assert_refused("view.dtype", &[of(x), Value::DType(dtype)], words);
    let of_double = "to view Float as Double (different element sizes), but got";
    let number = Tensor::ones(&[], DType::F32, &device()).unwrap();
    refuse(&number, DType::I8, "self.dim() cannot be 0 to view Float as Char (different element sizes)");
    let turned = x.transpose(0, 1).unwrap();
    refuse(&turned, DType::F64, &format!("self.stride(-1) must be 1 {of_double} 6"));
    let short = "self.stride(-1) must be 1 to view Float as Short (different element sizes), but got 6";
    refuse(&turned, DType::I16, short);
    let columns = |start, length| x.narrow(1, start, length).unwrap();
    refuse(&columns(0, 5), DType::F64, &format!("self.size(-1) must be divisible by 2 {of_double} 5"));
    refuse(
        &columns(1, 4),
        DType::F64,
        &format!("self.storage_offset() must be divisible by 2 {of_double} 1"),
    );
    let odd = ramp(&[5, 3]).to_dtype(DType::F32).unwrap().narrow(1, 0, 2).unwrap();
    refuse(&odd, DType::F64, &format!("self.stride(0) must be divisible by 2 {of_double} 3"));
    let wide = "self.size(-1) must be divisible by 8 to view BFloat16 as ComplexDouble (different element sizes), but got 4";
    refuse(&Tensor::ones(&[4], DType::Bf16, &device()).unwrap(), DType::C128, wide);
}

#[test]
fn counted_tensors_end_where_they_should() {
    let arange = |bounds: [f64; 3]| {
        let arguments: Vec<Value> = bounds.map(|bound| Value::Scalar(bound.into())).into();
        values(&call("arange.start_step", &arguments))
    };
    assert_eq!(arange([1.0, 2.0, 0.25]), [1.0, 1.25, 1.5, 1.75]);
    assert_eq!(arange([2.0, 0.0, -0.75]), [2.0, 1.25, 0.5]);
    assert!(arange([1.0, 1.0, 1.0]).is_empty());
    let whole = call("arange", &[Value::Int(3)]);
    assert_eq!((whole.dtype(), values(&whole)), (DType::I64, vec![0.0, 1.0, 2.0]));
    let linspace = |start: f64, end: f64, steps: i64| {
        values(&call(
            "linspace",
            &[Value::Scalar(start.into()), Value::Scalar(end.into()), Value::Int(steps)],
        ))
    };
    assert_eq!(linspace(-1.0, 1.0, 5), [-1.0, -0.5, 0.0, 0.5, 1.0]);
    assert_eq!(linspace(3.0, 7.0, 1), [3.0]);
    assert!(linspace(3.0, 7.0, 0).is_empty());
    assert_eq!(values(&call("eye.m", &[Value::Int(2), Value::Int(3)])), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let full = call("full", &[ints(&[2]), Value::Bool(true)]);
    assert_eq!((full.dtype(), values(&full)), (DType::Bool, vec![1.0, 1.0]));
}

#[test]
fn elements_are_padded_repeated_and_turned() {
    let x = ramp(&[2, 3]);
    let batch = ramp(&[1, 1, 3]);
    let cases: [(Tensor, &[f64]); 9] = [
        (x.constant_pad_nd(&[1, -1], 9.0).unwrap(), &[9.0, 0.0, 1.0, 9.0, 3.0, 4.0]),
        (batch.reflection_pad1d(&[2, 1]).unwrap(), &[2.0, 1.0, 0.0, 1.0, 2.0, 1.0]),
        (batch.replication_pad1d(&[2, -1]).unwrap(), &[0.0, 0.0, 0.0, 1.0]),
        (ramp(&[2]).repeat(&[2, 2]).unwrap(), &[0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]),
        (x.tile(&[2]).unwrap().narrow(0, 1, 1).unwrap(), &[3.0, 4.0, 5.0, 3.0, 4.0, 5.0]),
        (x.repeat_interleave(2, Some(0)).unwrap().narrow(1, 1, 1).unwrap(), &[1.0, 1.0, 4.0, 4.0]),
        (x.flip(&[0, -1]).unwrap(), &[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]),
        (x.roll(&[1, -1], &[0, 1]).unwrap(), &[4.0, 5.0, 3.0, 1.0, 2.0, 0.0]),
        (x.roll(&[8], &[]).unwrap(), &[4.0, 5.0, 0.0, 1.0, 2.0, 3.0]),
    ];
    for (at, (found, expected)) in cases.iter().enumerate() {
        assert_eq!(values(found), *expected, "case {at}");
    }
    let nan = Tensor::full(&[2, 2], f64::NAN, DType::F64, &device()).unwrap();
    let lower = values(&nan.tril(-1).unwrap());
    assert!(lower[2].is_nan() && lower[0] == 0.0 && lower[1] == 0.0 && lower[3] == 0.0, "{lower:?}");
    assert_eq!(values(&x.triu(1).unwrap()), [0.0, 1.0, 2.0, 0.0, 0.0, 5.0]);
    let x = random(&[2, 3], 2);
    check_gradient(&x, |x| x.constant_pad_nd(&[1, -1, 0, 2], 9.0).unwrap().square().unwrap());
    check_gradient(&x.reshape(&[1, 2, 3]).unwrap(), |x| {
        x.reflection_pad1d(&[2, 1]).unwrap().square().unwrap()
    });
    check_gradient(&x, |x| x.repeat(&[2, 1, 3]).unwrap().square().unwrap());
    check_gradient(&x, |x| x.roll(&[1], &[1]).unwrap().mul(&ramp(&[2, 3])).unwrap());
    check_gradient(&x, |x| x.flip(&[1]).unwrap().mul(&ramp(&[2, 3])).unwrap());
    check_gradient(&x, |x| x.tril(0).unwrap().square().unwrap());
}

#[test]
fn sizes_are_integers_of_any_type_and_tuples() {
    let x = ramp(&[2, 6]);
    let rows: usize = x.shape()[0];
    let shapes = [
        x.reshape(&[-1, 3]).unwrap(),
        x.reshape(&[2 * rows, 3]).unwrap(),
        x.reshape((2 * rows, -1)).unwrap(),
        x.reshape(&vec![4i64, 3]).unwrap(),
        x.view((-1, 3u32)).unwrap(),
        x.unflatten(1, (2, -1)).unwrap().flatten(0, 1).unwrap(),
    ];
    for found in &shapes {
        assert_eq!(found.shape(), [4, 3]);
        assert_eq!(values(found), values(&x));
    }
    assert_eq!(x.sum(&[], false).unwrap().reshape(()).unwrap().rank(), 0);
    assert_eq!(x.unsqueeze(0).unwrap().expand((3, -1, 6)).unwrap().shape(), [3, 2, 6]);
    assert_eq!(x.new_zeros(x.shape()).unwrap().shape(), [2, 6]);
    assert_eq!(x.repeat((rows, 1)).unwrap().shape(), [4, 6]);

    let assert_refused = |result: thalweg_runtime::Result<Tensor>, part: &str| {
        let error = result.unwrap_err();
        assert!(error.is_invalid_argument() && error.to_string().contains(part), "{error}");
    };
    assert_refused(x.reshape((-1, -1)), "only one dimension can be inferred");
    assert_refused(x.reshape((-1, 0)), "is invalid for input of size 12");
    assert_refused(x.reshape((-1, 5)), "shape '[-1, 5]' is invalid for input of size 12");
    assert_refused(x.reshape((usize::MAX, 2)), "is invalid for input of size 12");
    assert_refused(x.reshape((-2, 6)), "invalid shape dimension -2");
    assert_refused(x.new_zeros((-1, 2)), "negative");
    assert_refused(x.transpose(0, 1).unwrap().view(&[-1]), "view");
}

#[test]
fn conversions_and_clones_keep_the_order_of_dimensions() {
    // Shapes and strides, and the strides of the results of PyTorch 2.11.
    let cases: [(&[i64], &[i64], &[usize]); 24] = [
        (&[3, 2], &[4, 1], &[2, 1]),
        (&[4, 4], &[8, 1], &[4, 1]),
        (&[4, 2], &[1, 4], &[1, 4]),
        (&[3, 4, 4], &[4, 24, 1], &[4, 12, 1]),
        (&[4, 4, 4], &[4, 16, 1], &[4, 16, 1]),
        (&[2, 2, 4], &[16, 4, 1], &[8, 4, 1]),
        (&[2, 3, 2], &[2, 8, 1], &[2, 4, 1]),
        (&[2, 1, 2], &[6, 2, 1], &[2, 2, 1]),
        (&[1, 2, 3, 3], &[18, 1, 6, 2], &[18, 1, 6, 2]),
        (&[1, 4, 2, 4], &[1, 3, 48, 12], &[1, 1, 16, 4]),
        (&[1, 3, 1, 3], &[1, 6, 1, 2], &[1, 3, 1, 1]),
        (&[2, 1, 4, 4], &[32, 4, 1, 4], &[16, 4, 1, 4]),
        (&[1, 1, 2, 3], &[12, 12, 6, 1], &[6, 6, 3, 1]),
        (&[4, 3, 3, 1], &[1, 4, 12, 12], &[1, 4, 12, 12]),
        (&[4, 1, 2, 3], &[2, 8, 1, 8], &[2, 8, 1, 8]),
        (&[4, 4, 3, 3], &[144, 36, 12, 2], &[36, 9, 3, 1]),
        (&[2, 4, 3, 4], &[96, 24, 4, 1], &[48, 12, 4, 1]),
        (&[4, 2, 3, 1, 1], &[6, 1, 2, 2, 2], &[6, 1, 2, 2, 2]),
        (&[3, 4, 1, 3, 4], &[0, 12, 12, 4, 48], &[48, 3, 3, 1, 12]),
        (&[3, 2, 3, 2, 1], &[24, 12, 4, 2, 1], &[12, 6, 2, 1, 1]),
        (&[4, 1, 3, 1, 3], &[2, 8, 16, 2, 48], &[1, 4, 4, 1, 12]),
        (&[1, 2, 4, 3, 2], &[3, 48, 3, 1, 24], &[3, 24, 3, 1, 12]),
        (&[3, 3, 1, 1, 2], &[12, 1, 12, 36, 6], &[6, 1, 6, 18, 3]),
        (&[4, 3, 2, 4, 4], &[96, 1, 48, 12, 3], &[96, 1, 48, 12, 3]),
    ];
    let memory = ramp(&[2048]);
    for (shape, strides, expected) in cases {
        let x = call("as_strided", &[of(&memory), ints(shape), ints(strides), Value::None]);
        let strides_of = |y: &Tensor| -> Vec<usize> {
            let strides = y.layout().strides().iter().zip(y.shape());
            strides.map(|(&stride, &extent)| if extent > 1 { stride } else { 1 }).collect()
        };
        let expected: Vec<usize> = expected
            .iter()
            .zip(shape)
            .map(|(&stride, &extent)| if extent > 1 { stride } else { 1 })
            .collect();
        let narrow = x.to_dtype(DType::F32).unwrap();
        assert_eq!(strides_of(&narrow), expected, "{shape:?} {strides:?}");
        assert_eq!(values(&narrow), values(&x), "{shape:?} {strides:?}");
        assert_eq!(strides_of(&call("clone", &[of(&x), Value::None])), expected, "{shape:?} {strides:?}");
        let half = call(
            "to.dtype",
            &[of(&x), Value::DType(DType::F16), Value::Bool(false), Value::Bool(true), Value::None],
        );
        assert_eq!(strides_of(&half), expected, "{shape:?} {strides:?}");
    }
}
