//! Operators whose backward pass is a kernel of its own take every layout that their forward pass takes: the gradient of an
//! operand in any layout is that of the contiguous one. Forms in place write into every layout what the operator returns.

use thalweg_ir::DType;
use thalweg_runtime::{Label, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::gradients;
use thalweg_tensor::dispatch::{Argument, find_operator};
use thalweg_tensor::sdp::{SdpBackend, sdp_kernel};

use crate::support::{assert_close, device, random, values};

/// A layout: the shape of the memory for an operand of a shape, and the view of it that is the operand.
struct Layout {
    name: &'static str,
    memory: fn(&[usize]) -> Vec<usize>,
    view: fn(&Tensor, &[usize]) -> Result<Tensor>,
}

/// Layouts of operands of at least one dimension.
const LAYOUTS: &[Layout] = &[
    Layout {
        name: "dimensions reversed",
        memory: |shape| shape.iter().rev().copied().collect(),
        view: |memory, shape| memory.permute(&(0..shape.len()).rev().collect::<Vec<_>>()),
    },
    Layout {
        name: "the last two dimensions swapped",
        memory: |shape| swapped(shape.to_vec()),
        view: |memory, shape| memory.permute(&swapped((0..shape.len()).collect())),
    },
    Layout {
        name: "the second dimension last, as channels",
        memory: |shape| {
            shape.iter().take(1).chain(shape.iter().skip(2)).chain(shape.get(1)).copied().collect()
        },
        view: |memory, shape| {
            let last = shape.len() - 1;
            memory.permute(
                &(0..shape.len())
                    .map(|d| if d == 1 { last } else { d - usize::from(d > 1) })
                    .collect::<Vec<_>>(),
            )
        },
    },
    Layout {
        name: "from the second element of each row on",
        memory: |shape| widened(shape, 1),
        view: |memory, shape| memory.narrow(-1, 1, shape[shape.len() - 1]),
    },
    Layout {
        name: "every third element",
        memory: |shape| [&shape[..shape.len() - 1], &[3 * shape[shape.len() - 1]]].concat(),
        view: |memory, shape| memory.slice(shape.len() as i64 - 1, Some(2), None, 3),
    },
    Layout {
        name: "expanded along the first dimension",
        memory: |shape| [&[1], &shape[1..]].concat(),
        view: |memory, shape| memory.expand(shape),
    },
    Layout {
        name: "expanded along the last dimension",
        memory: |shape| [&shape[..shape.len() - 1], &[1]].concat(),
        view: |memory, shape| memory.expand(shape),
    },
    Layout { name: "one number, expanded", memory: |_| vec![1], view: |memory, shape| memory.expand(shape) },
];

fn swapped<T>(mut list: Vec<T>) -> Vec<T> {
    if let [.., a, b] = list.as_mut_slice() {
        std::mem::swap(a, b);
    }
    list
}

fn widened(shape: &[usize], more: usize) -> Vec<usize> {
    [&shape[..shape.len() - 1], &[shape[shape.len() - 1] + more]].concat()
}

/// A function of tensors with gradients, of these shapes.
struct Function {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    of: fn(&[Tensor]) -> Result<Tensor>,
}

fn call(name: &str, arguments: &[Argument<'_>]) -> Result<Tensor> {
    Ok(find_operator(name)?.call(arguments, Some(&device()), Label::here("drawn_layouts"))?.swap_remove(0))
}

fn classes() -> Tensor {
    Tensor::from_slice(&[1i64, 0, 4, 2, 3, 1], &[6], &device()).unwrap()
}

/// Returns a loss of two tensors, with its mean.
fn loss(name: &str, t: &[Tensor]) -> Result<Tensor> {
    call(name, &[(&t[0]).into(), (&t[1]).into()])
}

/// Operators whose gradients are kernels or formulas of their own.
const FUNCTIONS: &[Function] = &[
    Function { name: "softmax", shapes: &[&[4, 6, 5]], of: |t| t[0].softmax(1) },
    Function { name: "log_softmax", shapes: &[&[4, 6, 5]], of: |t| t[0].log_softmax(-1) },
    Function {
        name: "layer_norm",
        shapes: &[&[4, 6, 8], &[8], &[8]],
        of: |t| {
            call("layer_norm", &[(&t[0]).into(), [8i64].as_slice().into(), (&t[1]).into(), (&t[2]).into()])
        },
    },
    Function {
        name: "rms_norm",
        shapes: &[&[4, 6, 8], &[8]],
        of: |t| call("rms_norm", &[(&t[0]).into(), [8i64].as_slice().into(), (&t[1]).into()]),
    },
    Function {
        name: "group_norm",
        shapes: &[&[3, 4, 5, 2], &[4], &[4]],
        of: |t| call("group_norm", &[(&t[0]).into(), 2i64.into(), (&t[1]).into(), (&t[2]).into()]),
    },
    Function {
        name: "batch_norm",
        shapes: &[&[3, 4, 5, 2], &[4], &[4]],
        of: |t| {
            let none = Argument::None;
            let numbers = [Argument::Bool(true), 0.1.into(), 1e-5.into(), Argument::Bool(false)];
            let tensors = [(&t[0]).into(), (&t[1]).into(), (&t[2]).into(), none, none];
            call("batch_norm", &[&tensors[..], &numbers[..]].concat())
        },
    },
    Function {
        name: "cross_entropy",
        shapes: &[&[6, 5]],
        of: |t| call("cross_entropy_loss", &[(&t[0]).into(), (&classes()).into()]),
    },
    Function {
        name: "cross_entropy with a part of each target spread",
        shapes: &[&[6, 5]],
        of: |t| {
            let numbers = [Argument::None, 1i64.into(), (-100i64).into(), 0.2.into()];
            call("cross_entropy_loss", &[&[(&t[0]).into(), (&classes()).into()], &numbers[..]].concat())
        },
    },
    Function {
        name: "nll_loss",
        shapes: &[&[6, 5]],
        of: |t| call("nll_loss", &[(&t[0]).into(), (&classes()).into()]),
    },
    Function { name: "mse_loss", shapes: &[&[4, 6], &[4, 6]], of: |t| loss("mse_loss", t) },
    Function { name: "smooth_l1_loss", shapes: &[&[4, 6], &[4, 6]], of: |t| loss("smooth_l1_loss", t) },
    Function {
        name: "kl_div",
        shapes: &[&[4, 6], &[4, 6]],
        of: |t| loss("kl_div", &[t[0].clone(), t[1].exp()?]),
    },
    Function {
        name: "binary_cross_entropy_with_logits",
        shapes: &[&[4, 6], &[4, 6]],
        of: |t| loss("binary_cross_entropy_with_logits", t),
    },
    Function {
        name: "conv2d",
        shapes: &[&[2, 4, 6, 5], &[8, 4, 3, 3], &[8]],
        of: |t| call("conv2d", &[(&t[0]).into(), (&t[1]).into(), (&t[2]).into()]),
    },
    Function {
        name: "conv_transpose2d",
        shapes: &[&[2, 4, 6, 5], &[4, 8, 3, 3], &[8]],
        of: |t| call("conv_transpose2d.input", &[(&t[0]).into(), (&t[1]).into(), (&t[2]).into()]),
    },
    Function {
        name: "linear",
        shapes: &[&[3, 6, 8], &[5, 8], &[5]],
        of: |t| call("linear", &[(&t[0]).into(), (&t[1]).into(), (&t[2]).into()]),
    },
    Function { name: "matmul", shapes: &[&[2, 3, 4], &[2, 4, 5]], of: |t| t[0].matmul(&t[1]) },
    Function { name: "mv", shapes: &[&[3, 4], &[4]], of: |t| t[0].mv(&t[1]) },
    Function {
        name: "embedding",
        shapes: &[&[5, 3]],
        of: |t| call("embedding", &[(&t[0]).into(), (&classes()).into()]),
    },
    Function { name: "gelu", shapes: &[&[4, 6]], of: |t| call("gelu", &[(&t[0]).into()]) },
    Function {
        name: "max_pool2d",
        shapes: &[&[2, 3, 6, 4]],
        of: |t| call("max_pool2d", &[(&t[0]).into(), [2i64, 2].as_slice().into()]),
    },
    Function {
        name: "avg_pool2d",
        shapes: &[&[2, 3, 6, 4]],
        of: |t| call("avg_pool2d", &[(&t[0]).into(), [2i64, 2].as_slice().into()]),
    },
    Function {
        name: "the squares of avg_pool3d without a batch",
        shapes: &[&[2, 4, 3, 6]],
        of: |t| call("avg_pool3d", &[(&t[0]).into(), [2i64, 2, 2].as_slice().into()])?.square(),
    },
    Function { name: "cumsum", shapes: &[&[4, 6]], of: |t| t[0].cumsum(1) },
    Function { name: "cumprod", shapes: &[&[4, 6]], of: |t| t[0].cumprod(0) },
    Function { name: "logsumexp", shapes: &[&[4, 6]], of: |t| t[0].logsumexp(&[1], false) },
    Function { name: "var", shapes: &[&[4, 6]], of: |t| t[0].var(&[1], 1, false) },
    Function { name: "vector_norm", shapes: &[&[4, 6]], of: |t| t[0].vector_norm(2, &[1], false) },
    Function { name: "prod", shapes: &[&[4, 6]], of: |t| t[0].prod_dim(1, false) },
    Function { name: "cat", shapes: &[&[4, 6], &[4, 6]], of: |t| Tensor::cat(t, 1) },
    Function {
        name: "prelu",
        shapes: &[&[4, 6], &[6]],
        of: |t| call("prelu", &[(&t[0]).into(), (&t[1]).into()]),
    },
    Function {
        name: "interpolate",
        shapes: &[&[1, 2, 4, 3]],
        of: |t| {
            let numbers = [[8i64, 6].as_slice().into(), Argument::Bool(false), Argument::None];
            call("upsample_bilinear2d.vec", &[&[(&t[0]).into()], &numbers[..]].concat())
        },
    },
    Function {
        name: "grid_sampler",
        shapes: &[&[1, 2, 4, 3], &[1, 3, 3, 2]],
        of: |t| {
            call(
                "grid_sampler",
                &[(&t[0]).into(), (&t[1]).into(), 0i64.into(), 0i64.into(), Argument::Bool(false)],
            )
        },
    },
    Function {
        name: "cdist",
        shapes: &[&[4, 3], &[5, 3]],
        of: |t| call("cdist", &[(&t[0]).into(), (&t[1]).into(), 2.0.into()]),
    },
    Function { name: "unfold", shapes: &[&[4, 6]], of: |t| t[0].unfold(1, 3, 2) },
    Function {
        name: "scaled_dot_product_attention",
        shapes: &[&[2, 3, 5, 16], &[2, 3, 5, 16], &[2, 3, 5, 16]],
        of: attention,
    },
];

fn attention(t: &[Tensor]) -> Result<Tensor> {
    call("scaled_dot_product_attention", &[(&t[0]).into(), (&t[1]).into(), (&t[2]).into()])
}

/// Returns the gradients of Σ wᵢ · resultᵢ in the memory of the operands, as they are viewed and with copies of the views.
fn both(function: &Function, operands: &[(Tensor, Tensor)], salt: u64) -> Result<[Vec<Vec<f64>>; 2]> {
    let leaves: Vec<Tensor> = operands.iter().map(|(memory, _)| memory.clone()).collect();
    let views: Vec<Tensor> = operands.iter().map(|(_, view)| view.clone()).collect();
    let copies = views.iter().map(|view| view.clone().contiguous()).collect::<Result<Vec<_>>>()?;
    let of = |inputs: &[Tensor]| -> Result<Vec<Vec<f64>>> {
        let result = (function.of)(inputs)?;
        // The gradient arrives in a layout of its own, too.
        let weights = random(&result.shape().iter().rev().copied().collect::<Vec<_>>(), salt)
            .to_dtype(result.dtype())?;
        let weights = weights.permute(&(0..result.rank()).rev().collect::<Vec<_>>())?;
        let found = gradients(&[result], &[Some(weights)], &leaves)?;
        Ok(found.iter().map(|gradient| gradient.as_ref().map_or_else(Vec::new, values)).collect())
    };
    Ok([of(&views)?, of(&copies)?])
}

/// Checks a function with the operand at a position in one layout, and the others in the layouts that follow.
fn hold(function: &Function, place: usize, first: usize, dtype: DType, tolerance: f64) {
    let operands: Vec<(Tensor, Tensor)> = (function.shapes.iter().enumerate())
        .map(|(at, shape)| {
            let layout = &LAYOUTS[(first + if at == place { 0 } else { 3 * at }) % LAYOUTS.len()];
            let memory = random(&(layout.memory)(shape), 7 + at as u64).to_dtype(dtype).unwrap();
            let memory = memory.detach().requires_grad_().unwrap();
            let view = (layout.view)(&memory, shape).unwrap();
            assert_eq!(view.shape(), *shape, "{}", layout.name);
            (memory, view)
        })
        .collect();
    let context = || format!("{} with operand {place} {} in {dtype}", function.name, LAYOUTS[first].name);
    let [found, expected] =
        both(function, &operands, 3).unwrap_or_else(|error| panic!("{}: {error}", context()));
    for (found, expected) in found.iter().zip(&expected) {
        let is_close = std::panic::catch_unwind(|| assert_close(found, expected, tolerance)).is_ok();
        assert!(is_close, "{}: {found:?} is not {expected:?}", context());
    }
}

#[test]
fn gradients_of_operands_in_any_layout_are_those_of_contiguous_ones() {
    for function in FUNCTIONS {
        for place in 0..function.shapes.len() {
            for layout in 0..LAYOUTS.len() {
                hold(function, place, layout, DType::F64, 1e-9);
            }
        }
    }
}

#[test]
fn fused_attention_takes_any_layout_in_both_directions() {
    let function = Function {
        name: "attention",
        shapes: &[&[2, 3, 16, 16], &[2, 3, 16, 16], &[2, 3, 16, 16]],
        of: attention,
    };
    for backend in [SdpBackend::Flash, SdpBackend::Cudnn] {
        if backend == SdpBackend::Cudnn && !device().properties().libraries.attention {
            continue;
        }
        for layout in 0..LAYOUTS.len() {
            for place in 0..3 {
                sdp_kernel(&[backend], || {
                    hold(&function, place, layout, DType::Bf16, 0.02);
                    Ok(())
                })
                .unwrap();
            }
        }
    }
}

/// In a U-Net, queries, keys and values are views of one tensor (batch, 3 · heads · features, tokens): their features are not
/// contiguous.
#[test]
fn attention_over_channels_has_gradients() {
    let channels = random(&[2, 3 * 2 * 16, 9], 1).to_dtype(DType::F16).unwrap().requires_grad_().unwrap();
    let of = |is_copied: bool| {
        channels.zero_grad();
        let parts =
            channels.reshape(&[2, 3, 2, 16, 9]).unwrap().transpose(-1, -2).unwrap().unbind(1).unwrap();
        let parts: Vec<Tensor> = parts
            .iter()
            .map(|part| if is_copied { part.contiguous().unwrap() } else { part.clone() })
            .collect();
        let result = sdp_kernel(&[SdpBackend::Flash], || attention(&parts)).unwrap();
        result.backward_with(&random(result.shape(), 2).to_dtype(DType::F16).unwrap()).unwrap();
        values(&channels.grad().unwrap())
    };
    assert_close(&of(false), &of(true), 2e-3);
}

/// An operator that returns its first tensor changed, and its form in place, whose name ends in `_`.
struct Writer {
    name: &'static str,
    of: fn(&Tensor, &str) -> Result<Tensor>,
}

/// Returns the last place of the second dimension.
fn last(x: &Tensor) -> Tensor {
    Tensor::from_slice(&[x.shape()[1] as i64 - 1], &[1], &device()).unwrap()
}

/// Returns random numbers for one place of the second dimension.
fn slice_like(x: &Tensor) -> Tensor {
    random(&[&x.shape()[..1], &[1], &x.shape()[2..]].concat(), 21)
}

/// Calls an operator with indices in the second dimension and a source.
fn with_source(name: &str, x: &Tensor, indices: &Tensor) -> Result<Tensor> {
    let source = slice_like(x);
    call(name, &[x.into(), 1i64.into(), indices.into(), (&source).into()])
}

const WRITERS: &[Writer] = &[
    Writer {
        name: "index_put",
        of: |x, form| {
            let indices = [None, Some(last(x))];
            let (indices, source) = (Argument::OptionalTensors(&indices), slice_like(x));
            call(&format!("index_put{form}"), &[x.into(), indices, (&source).into()])
        },
    },
    Writer {
        name: "index_put that adds",
        of: |x, form| {
            let (first, source) = (last(x).zeros_like()?, random(&x.shape()[2..], 23));
            let indices = [Some(first), Some(last(x))];
            let arguments = [x.into(), Argument::OptionalTensors(&indices), (&source).into(), true.into()];
            call(&format!("index_put{form}"), &arguments)
        },
    },
    Writer { name: "index_add", of: |x, form| with_source(&format!("index_add{form}"), x, &last(x)) },
    Writer { name: "index_copy", of: |x, form| with_source(&format!("index_copy{form}"), x, &last(x)) },
    Writer {
        name: "index_fill",
        of: |x, form| {
            let last = last(x);
            call(
                &format!("index_fill{form}.int_Scalar"),
                &[x.into(), 1i64.into(), (&last).into(), 5.0.into()],
            )
        },
    },
    Writer {
        name: "scatter_add",
        of: |x, form| {
            let indices = last(x).reshape(&[1, 1, 1])?.expand(slice_like(x).shape())?;
            with_source(&format!("scatter_add{form}"), x, &indices)
        },
    },
    Writer {
        name: "masked_scatter",
        of: |x, form| {
            let (mask, source) = (random(x.shape(), 22).gt_scalar(0.0)?, random(x.shape(), 24));
            call(&format!("masked_scatter{form}"), &[x.into(), (&mask).into(), (&source).into()])
        },
    },
    Writer { name: "cumsum", of: |x, form| call(&format!("cumsum{form}"), &[x.into(), 1i64.into()]) },
    Writer { name: "tril", of: |x, form| call(&format!("tril{form}"), &[x.into()]) },
];

#[test]
fn forms_in_place_write_into_any_layout_what_the_operator_returns() {
    let layouts = || LAYOUTS.iter().filter(|layout| !layout.name.contains("expanded"));
    for writer in WRITERS {
        for (shape, layout) in [[1, 3, 4], [2, 3, 4], [1, 3, 1], [3, 1, 4]]
            .iter()
            .flat_map(|shape| layouts().map(move |layout| (shape, layout)))
        {
            let context = format!("{} of {shape:?} {}", writer.name, layout.name);
            let memory = random(&(layout.memory)(shape), 20);
            let expected = memory.add_scalar(0.0).unwrap();
            let view = (layout.view)(&memory, shape).unwrap();
            let result = (writer.of)(&view, "").unwrap_or_else(|error| panic!("{context}: {error}"));
            (layout.view)(&expected, shape).unwrap().copy_(&result).unwrap();
            (writer.of)(&view, "_").unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(values(&memory), values(&expected), "{context}");
        }
    }
}
