//! Modules compared with PyTorch's: `tests/modules/samples.jsonl.gz` (written by `make.py` next to it) has its samples of modules
//! with results, gradients and buffers, in f64.

mod transformers;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::sync::Arc;

use flate2::read::GzDecoder;
use serde_json::{Map, Value};
use thalweg_ir::{DType, Element};
use thalweg_nn::functional::{ConvOptions, Reduction};
use thalweg_nn::module::*;
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::autograd::gradients;
use thalweg_tensor::random::{DeviceGenerator, Generator};

use crate::support::{close, device, values};

/// Runs a module on the inputs and named inputs of a sample.
type Run = fn(&Any, &Inputs<'_>) -> Result<Vec<Tensor>>;

/// A module of any type, and how it is called.
struct Built {
    module: Any,
    run: Run,
}

type Any = Box<dyn AnyModule>;

trait AnyModule: Module {
    fn as_any(&self) -> &dyn std::any::Any;
    fn as_any_mut(&mut self) -> &mut dyn Module;
}

impl<M: Module + 'static> AnyModule for M {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Module {
        self
    }
}

fn of<M: 'static>(module: &Any) -> &M {
    (**module).as_any().downcast_ref().expect("it was built as this type")
}

/// The tensors of a sample that are passed to `forward`.
struct Inputs<'a> {
    list: Vec<Vec<Tensor>>,
    named: BTreeMap<&'a str, Tensor>,
}

impl Inputs<'_> {
    fn at(&self, place: usize) -> &Tensor {
        match self.list.get(place) {
            Some(tensors) => &tensors[0],
            None => self.named.values().next().expect("an input"),
        }
    }

    fn states(&self) -> Option<&[Tensor]> {
        self.list.get(1).map(Vec::as_slice)
    }

    /// Every tensor, in the order of the file.
    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.list.iter().flatten().chain(self.named.values())
    }
}

fn forward<M: Forward + 'static>(module: M) -> Built {
    Built { module: Box::new(module), run: |module, inputs| Ok(vec![of::<M>(module).forward(inputs.at(0))?]) }
}

/// The arguments of a constructor by PyTorch's names.
struct Arguments<'a>(&'a Map<String, Value>);

impl Arguments<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn float(&self, name: &str, default: f64) -> f64 {
        self.get(name).map_or(default, |value| value.as_f64().expect("a number"))
    }

    fn int(&self, name: &str, default: i64) -> i64 {
        self.get(name).map_or(default, |value| value.as_i64().expect("an integer"))
    }

    fn size(&self, name: &str) -> usize {
        self.int(name, 1) as usize
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.get(name).map_or(default, |value| value.as_bool().expect("a truth value"))
    }

    fn list(&self, name: &str) -> Option<Vec<i64>> {
        Some(match self.get(name)? {
            Value::Array(list) => list.iter().map(|value| value.as_i64().expect("an integer")).collect(),
            value => vec![value.as_i64().expect("an integer")],
        })
    }

    /// Sizes per axis; a single number applies to every axis.
    fn axes<const AXES: usize>(&self, name: &str) -> Option<[usize; AXES]> {
        let list = self.list(name)?;
        Some(std::array::from_fn(|axis| list[axis % list.len()] as usize))
    }

    fn reduction(&self) -> Reduction {
        match self.get("reduction").map_or("mean", |value| value.as_str().expect("a name")) {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            _ => Reduction::Mean,
        }
    }

    fn tensor(&self, name: &str) -> Option<Tensor> {
        self.get(name).map(read)
    }
}

/// Returns a tensor of the file.
fn read(value: &Value) -> Tensor {
    fn numbers<T: Element>(value: &Value, number: impl Fn(&Value) -> T) -> Tensor {
        let shape: Vec<usize> = value["shape"]
            .as_array()
            .unwrap()
            .iter()
            .map(|extent| extent.as_u64().unwrap() as usize)
            .collect();
        let list: Vec<T> = value["values"].as_array().unwrap().iter().map(number).collect();
        Tensor::from_slice(&list, &shape, &device()).unwrap()
    }
    match value["dtype"].as_str().unwrap() {
        "bool" => numbers(value, |value| u8::from(value.as_bool().unwrap())).to_dtype(DType::Bool).unwrap(),
        "int64" => numbers(value, |value| value.as_i64().unwrap()),
        "int32" => numbers(value, |value| value.as_i64().unwrap() as i32),
        "uint8" => numbers(value, |value| value.as_i64().unwrap() as u8),
        "float64" => numbers(value, number),
        other => panic!("a tensor of {other}"),
    }
}

/// Returns a number of the file, which writes NaN and infinities as strings.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().expect("a number").parse().expect("a number"))
}

fn conv_options<const AXES: usize>(a: &Arguments<'_>) -> ConvOptions<AXES> {
    let (stride, dilation) = (a.axes("stride").unwrap_or([1; AXES]), a.axes("dilation").unwrap_or([1; AXES]));
    let padding = match a.get("padding").and_then(Value::as_str) {
        // Of an uneven kernel.
        Some("same") => a.axes::<AXES>("kernel_size").unwrap().map(|extent| extent / 2),
        _ => a.axes("padding").unwrap_or([0; AXES]),
    };
    ConvOptions { stride, padding, dilation, groups: a.size("groups") }
}

fn conv<const AXES: usize>(
    a: &Arguments<'_>,
    g: &mut Generator,
    d: &Device,
    transposed: bool,
) -> Result<Built> {
    let (inputs, outputs) = (a.size("in_channels"), a.size("out_channels"));
    let (kernel, options) = (a.axes("kernel_size").unwrap(), conv_options::<AXES>(a));
    let bias = a.flag("bias", true);
    if transposed {
        let mut layer = ConvTranspose::new(inputs, outputs, kernel, options, g, d)?;
        layer.bias = layer.bias.filter(|_| bias);
        return Ok(forward(layer));
    }
    let mut layer = Conv::new(inputs, outputs, kernel, options, g, d)?;
    layer.bias = layer.bias.filter(|_| bias);
    Ok(forward(layer))
}

fn pool<const AXES: usize>(a: &Arguments<'_>, name: &str) -> Built {
    let output_size = || {
        let list = a.0["output_size"].as_array().cloned().unwrap_or_else(|| vec![a.0["output_size"].clone()]);
        std::array::from_fn(|axis| list[axis % list.len()].as_u64().map(|size| size as usize))
    };
    let kernel = a.axes::<AXES>("kernel_size").unwrap_or([1; AXES]);
    let (stride, padding) = (a.axes("stride"), a.axes("padding").unwrap_or([0; AXES]));
    let ceil_mode = a.flag("ceil_mode", false);
    match name {
        "AdaptiveAvgPool" => forward(AdaptiveAvgPool::<AXES> { output_size: output_size() }),
        "AdaptiveMaxPool" => forward(AdaptiveMaxPool::<AXES> { output_size: output_size() }),
        "MaxPool" => {
            let dilation = a.axes("dilation").unwrap_or([1; AXES]);
            let pool = MaxPool { kernel_size: kernel, stride, padding, dilation, ceil_mode };
            if a.flag("return_indices", false) {
                return Built {
                    module: Box::new(pool),
                    run: |module, inputs| {
                        Ok(of::<MaxPool<AXES>>(module).forward_with_indices(inputs.at(0))?.into())
                    },
                };
            }
            forward(pool)
        }
        "AvgPool" => forward(AvgPool {
            stride,
            padding,
            ceil_mode,
            count_include_pad: a.flag("count_include_pad", true),
            divisor_override: a.get("divisor_override").and_then(Value::as_i64),
            ..AvgPool::new(kernel)
        }),
        _ => forward(LPPool { norm_type: a.float("norm_type", 2.0), kernel_size: kernel, stride, ceil_mode }),
    }
}

/// Returns a pool whose windows are placed by the file's samples.
fn fractional<const AXES: usize>(a: &Arguments<'_>, d: &Device) -> Result<Built> {
    let output_size = match a.axes::<AXES>("output_size") {
        Some(sizes) => FractionalSize::Size(sizes),
        None => FractionalSize::Ratio([a.float("output_ratio", 0.0); AXES]),
    };
    let kernel_size = a.axes("kernel_size").unwrap();
    let generator = Arc::new(DeviceGenerator::new(0, d)?);
    let pool = Placed {
        pool: FractionalMaxPool::<AXES> { kernel_size, output_size, generator },
        samples: a.tensor("_random_samples").unwrap(),
        indices: a.flag("return_indices", false),
    };
    Ok(three(pool, |module, inputs| {
        let Placed { pool, samples, indices } = of::<Placed<AXES>>(module);
        let drawn = pool.forward(inputs.at(0))?;
        let found = pool.forward_with_samples(inputs.at(0), samples)?;
        assert_eq!(drawn.shape(), found[0].shape(), "drawn places give as many windows");
        Ok(found.into_iter().take(1 + usize::from(*indices)).collect())
    }))
}

#[derive(Module)]
struct Placed<const AXES: usize> {
    pool: FractionalMaxPool<AXES>,
    #[module(skip)]
    samples: Tensor,
    #[module(skip)]
    indices: bool,
}

/// Returns the widths of a pad over this many axes.
fn widths(a: &Arguments<'_>, axes: usize) -> Vec<i64> {
    let list = a.list("padding").unwrap();
    if list.len() == 1 { list.repeat(2 * axes) } else { list }
}

fn pad(a: &Arguments<'_>, name: &str, axes: usize) -> Built {
    let padding = widths(a, axes);
    match name {
        "ZeroPad" => forward(ZeroPad { padding }),
        "ReflectionPad" => forward(ReflectionPad { padding }),
        "ReplicationPad" => forward(ReplicationPad { padding }),
        "CircularPad" => forward(CircularPad { padding }),
        _ => forward(ConstantPad { padding, value: a.float("value", 0.0) }),
    }
}

fn norm(a: &Arguments<'_>, name: &str, axes: usize, d: &Device) -> Result<Built> {
    let usual = if name == "BatchNorm" { BatchNormOptions::default() } else { BatchNormOptions::instance() };
    let options = BatchNormOptions {
        eps: a.float("eps", 1e-5),
        momentum: if a.0.contains_key("momentum") {
            a.get("momentum").and_then(Value::as_f64)
        } else {
            Some(0.1)
        },
        affine: a.flag("affine", usual.affine),
        track_running_stats: a.flag("track_running_stats", usual.track_running_stats),
    };
    let features = a.size("num_features");
    Ok(match (name, axes) {
        ("BatchNorm", _) => forward(BatchNorm::new(features, options, d)?),
        (_, 1) => forward(InstanceNorm1d::new(features, options, d)?),
        (_, 2) => forward(InstanceNorm2d::new(features, options, d)?),
        _ => forward(InstanceNorm3d::new(features, options, d)?),
    })
}

/// A loss of two tensors.
macro_rules! loss {
    ($type:ident { $($rest:tt)* }) => {
        Built {
            module: Box::new($type { $($rest)* }),
            run: |module, inputs| Ok(vec![of::<$type>(module).forward(inputs.at(0), inputs.at(1))?]),
        }
    };
}

fn losses(name: &str, a: &Arguments<'_>) -> Option<Built> {
    let (reduction, weight) = (a.reduction(), a.tensor("weight"));
    let ignore_index = a.int("ignore_index", -100);
    let margin = |default| a.float("margin", default);
    Some(match name {
        "L1Loss" => loss!(L1Loss { reduction }),
        "MSELoss" => loss!(MSELoss { reduction }),
        "SmoothL1Loss" => loss!(SmoothL1Loss { reduction, beta: a.float("beta", 1.0) }),
        "HuberLoss" => loss!(HuberLoss { reduction, delta: a.float("delta", 1.0) }),
        "SoftMarginLoss" => loss!(SoftMarginLoss { reduction }),
        "HingeEmbeddingLoss" => loss!(HingeEmbeddingLoss { reduction, margin: margin(1.0) }),
        "PoissonNLLLoss" => loss!(PoissonNLLLoss {
            reduction,
            log_input: a.flag("log_input", true),
            full: a.flag("full", false),
            eps: a.float("eps", 1e-8),
        }),
        "KLDivLoss" => {
            let batch_mean = a.get("reduction").and_then(Value::as_str) == Some("batchmean");
            loss!(KLDivLoss { reduction, batch_mean, log_target: a.flag("log_target", false) })
        }
        "CrossEntropyLoss" => {
            let label_smoothing = a.float("label_smoothing", 0.0);
            loss!(CrossEntropyLoss { weight, ignore_index, label_smoothing, reduction })
        }
        "MultiLabelMarginLoss" => loss!(MultiLabelMarginLoss { reduction }),
        "MultiLabelSoftMarginLoss" => loss!(MultiLabelSoftMarginLoss { weight, reduction }),
        "MultiMarginLoss" => {
            loss!(MultiMarginLoss { p: a.int("p", 1), margin: margin(1.0), weight, reduction })
        }
        "CTCLoss" => {
            let (blank, zero_infinity) = (a.int("blank", 0), a.flag("zero_infinity", false));
            three(CTCLoss { blank, reduction, zero_infinity }, |module, inputs| {
                let [times, counts] = [2, 3].map(|place| inputs.at(place).to_vec::<i64>().unwrap());
                let (x, target) = (inputs.at(0), inputs.at(1));
                Ok(vec![of::<CTCLoss>(module).forward(x, target, &times, &counts)?])
            })
        }
        "NLLLoss" => loss!(NLLLoss { weight, ignore_index, reduction }),
        "BCELoss" => loss!(BCELoss { weight, reduction }),
        "BCEWithLogitsLoss" => {
            loss!(BCEWithLogitsLoss { weight, pos_weight: a.tensor("pos_weight"), reduction })
        }
        "MarginRankingLoss" => {
            three(MarginRankingLoss { margin: margin(0.0), reduction }, |module, inputs| {
                let [x1, x2, target] = [0, 1, 2].map(|place| inputs.at(place));
                Ok(vec![of::<MarginRankingLoss>(module).forward(x1, x2, target)?])
            })
        }
        "CosineEmbeddingLoss" => {
            three(CosineEmbeddingLoss { margin: margin(0.0), reduction }, |module, inputs| {
                let [x1, x2, target] = [0, 1, 2].map(|place| inputs.at(place));
                Ok(vec![of::<CosineEmbeddingLoss>(module).forward(x1, x2, target)?])
            })
        }
        "GaussianNLLLoss" => {
            let (full, eps) = (a.flag("full", false), a.float("eps", 1e-6));
            three(GaussianNLLLoss { full, eps, reduction }, |module, inputs| {
                let [x, target, variance] = [0, 1, 2].map(|place| inputs.at(place));
                Ok(vec![of::<GaussianNLLLoss>(module).forward(x, target, variance)?])
            })
        }
        _ => return None,
    })
}

fn three<M: Module + 'static>(module: M, run: Run) -> Built {
    Built { module: Box::new(module), run }
}

fn activation(name: &str, a: &Arguments<'_>, d: &Device) -> Option<Built> {
    let dim = a.int("dim", -1);
    Some(match name {
        "ReLU" => forward(ReLU {}),
        "ReLU6" => forward(ReLU6 {}),
        "LeakyReLU" => forward(LeakyReLU { negative_slope: a.float("negative_slope", 0.01) }),
        "ELU" => forward(ELU { alpha: a.float("alpha", 1.0) }),
        "CELU" => forward(CELU { alpha: a.float("alpha", 1.0) }),
        "SELU" => forward(SELU {}),
        "GELU" => forward(GELU { tanh: a.get("approximate").and_then(Value::as_str) == Some("tanh") }),
        "GLU" => forward(GLU { dim }),
        "SiLU" => forward(SiLU {}),
        "Mish" => forward(Mish {}),
        "Sigmoid" => forward(Sigmoid {}),
        "LogSigmoid" => forward(LogSigmoid {}),
        "Tanh" => forward(Tanh {}),
        "Tanhshrink" => forward(Tanhshrink {}),
        "Softsign" => forward(Softsign {}),
        "Softplus" => forward(Softplus { beta: a.float("beta", 1.0), threshold: a.float("threshold", 20.0) }),
        "Softshrink" => forward(Softshrink { lambd: a.float("lambd", 0.5) }),
        "Hardshrink" => forward(Hardshrink { lambd: a.float("lambd", 0.5) }),
        "Hardswish" => forward(Hardswish {}),
        "Hardtanh" => {
            forward(Hardtanh { min_val: a.float("min_val", -1.0), max_val: a.float("max_val", 1.0) })
        }
        "Threshold" => {
            forward(Threshold { threshold: a.float("threshold", 0.0), value: a.float("value", 0.0) })
        }
        "Softmax" => forward(Softmax { dim }),
        "Softmin" => forward(Softmin { dim }),
        "LogSoftmax" => forward(LogSoftmax { dim }),
        "Softmax2d" => forward(Softmax2d {}),
        "PReLU" => forward(PReLU::new(a.size("num_parameters"), a.float("init", 0.25), d).unwrap()),
        _ => return None,
    })
}

fn recurrent<K: RecurrentStep + 'static>(
    kind: K,
    a: &Arguments<'_>,
    g: &mut Generator,
    d: &Device,
) -> Result<Built> {
    let options = RecurrentOptions {
        num_layers: a.size("num_layers"),
        bias: a.flag("bias", true),
        batch_first: a.flag("batch_first", false),
        dropout: None,
        bidirectional: a.flag("bidirectional", false),
        proj_size: a.int("proj_size", 0) as usize,
    };
    let network = Recurrent::with_kind(kind, a.size("input_size"), a.size("hidden_size"), options, g, d)?;
    Ok(three(network, |module, inputs| {
        let (result, states) = of::<Recurrent<K>>(module).forward(inputs.at(0), inputs.states())?;
        Ok([result].into_iter().chain(states).collect())
    }))
}

fn cell<K: RecurrentStep + 'static>(
    kind: K,
    a: &Arguments<'_>,
    g: &mut Generator,
    d: &Device,
) -> Result<Built> {
    let sizes = [a.size("input_size"), a.size("hidden_size")];
    let cell = RecurrentCell::with_kind(kind, sizes[0], sizes[1], a.flag("bias", true), g, d)?;
    Ok(three(cell, |module, inputs| of::<RecurrentCell<K>>(module).forward(inputs.at(0), inputs.states())))
}

fn attention(a: &Arguments<'_>, g: &mut Generator, d: &Device) -> Result<Built> {
    let features = |name: &str| a.get(name).map(|_| a.size(name));
    let options = MultiheadAttentionOptions {
        dropout: None,
        bias: a.flag("bias", true),
        add_bias_kv: a.flag("add_bias_kv", false),
        add_zero_attn: a.flag("add_zero_attn", false),
        kdim: features("kdim"),
        vdim: features("vdim"),
        batch_first: a.flag("batch_first", false),
    };
    let layer = MultiheadAttention::new(a.size("embed_dim"), a.size("num_heads"), options, g, d)?;
    Ok(three(layer, |module, inputs| {
        let [query, key, value] = [0, 1, 2].map(|place| inputs.at(place));
        let (key_padding_mask, attn_mask) =
            (inputs.named.get("key_padding_mask"), inputs.named.get("attn_mask"));
        let masks = AttentionMasks { key_padding_mask, attn_mask };
        let layer = of::<MultiheadAttention>(module);
        let attended = layer.forward(query, key, value, masks)?;
        // The same without weights, if every query has keys.
        let output = layer.attend(query, key, value, masks)?;
        for (&found, &expected) in values(&output).iter().zip(&values(&attended.output)) {
            assert!(
                expected.is_nan() || close(found, expected, 1e-9),
                "attend gives {found}, not {expected}"
            );
        }
        let heads = if query.rank() == 2 { 0 } else { 1 };
        Ok(vec![attended.output, attended.weights.mean(&[heads], false)?])
    }))
}

/// Returns the module of a sample.
fn build(name: &str, a: &Arguments<'_>, d: &Device) -> Result<Built> {
    let g = &mut Generator::new(1);
    if let Some(built) = activation(name, a, d).or_else(|| losses(name, a)) {
        return Ok(built);
    }
    let bias = a.flag("bias", true);
    if let Some((family, axes)) =
        name.strip_suffix('d').and_then(|name| name.split_at_checked(name.len() - 1))
    {
        let axes: usize = axes.parse().expect("a number of axes");
        return Ok(match (family, axes) {
            ("Conv" | "ConvTranspose", 1) => conv::<1>(a, g, d, family == "ConvTranspose")?,
            ("Conv" | "ConvTranspose", 2) => conv::<2>(a, g, d, family == "ConvTranspose")?,
            ("Conv" | "ConvTranspose", _) => conv::<3>(a, g, d, family == "ConvTranspose")?,
            ("BatchNorm" | "InstanceNorm", _) => norm(a, family, axes, d)?,
            ("FractionalMaxPool", 2) => fractional::<2>(a, d)?,
            ("FractionalMaxPool", _) => fractional::<3>(a, d)?,
            (_, _) if family.ends_with("Pad") => pad(a, family, axes),
            (_, 1) => pool::<1>(a, family),
            (_, 2) => pool::<2>(a, family),
            (_, _) => pool::<3>(a, family),
        });
    }
    let extents = || a.list("normalized_shape").unwrap().iter().map(|&n| n as usize).collect::<Vec<_>>();
    let affine = a.flag("elementwise_affine", true);
    let relu = a.get("nonlinearity").and_then(Value::as_str) == Some("relu");
    Ok(match name {
        "Linear" if bias => forward(Linear::new(a.size("in_features"), a.size("out_features"), g, d)?),
        "Linear" => forward(Linear::without_bias(a.size("in_features"), a.size("out_features"), g, d)?),
        "Bilinear" => {
            let inputs = [a.size("in1_features"), a.size("in2_features")];
            three(Bilinear::new(inputs, a.size("out_features"), bias, g, d)?, |module, inputs| {
                Ok(vec![of::<Bilinear>(module).forward(inputs.at(0), inputs.at(1))?])
            })
        }
        "Embedding" => forward(Embedding::new(a.size("num_embeddings"), a.size("embedding_dim"), g, d)?),
        "GroupNorm" => {
            let layer = GroupNorm::new(a.size("num_groups"), a.size("num_channels"), d)?;
            let affine = a.flag("affine", true);
            let (weight, bias) = (layer.weight.filter(|_| affine), layer.bias.filter(|_| affine));
            forward(GroupNorm { weight, bias, eps: a.float("eps", 1e-5), num_groups: layer.num_groups })
        }
        "LayerNorm" => {
            let mut layer = LayerNorm::over(&extents(), d)?;
            layer.weight = layer.weight.filter(|_| affine);
            layer.bias = layer.bias.filter(|_| affine && bias);
            forward(LayerNorm { eps: a.float("eps", 1e-5), ..layer })
        }
        "RMSNorm" => {
            let mut layer = RMSNorm::new(&extents(), d)?;
            layer.weight = layer.weight.filter(|_| affine);
            forward(RMSNorm { eps: a.get("eps").and_then(Value::as_f64), ..layer })
        }
        "LocalResponseNorm" => forward(LocalResponseNorm {
            size: a.size("size"),
            alpha: a.float("alpha", 1e-4),
            beta: a.float("beta", 0.75),
            k: a.float("k", 1.0),
        }),
        "RNN" => recurrent(Elman { relu }, a, g, d)?,
        "GRU" => recurrent(Gated, a, g, d)?,
        "LSTM" => recurrent(LongShortTerm, a, g, d)?,
        "RNNCell" => cell(Elman { relu }, a, g, d)?,
        "GRUCell" => cell(Gated, a, g, d)?,
        "LSTMCell" => cell(LongShortTerm, a, g, d)?,
        "MultiheadAttention" => attention(a, g, d)?,
        name if name.starts_with("Transformer") => transformers::build(name, a, g, d)?,
        other => panic!("no module {other}"),
    })
}

/// Returns the first difference between a tensor and that of the file.
fn difference(what: &str, found: &Tensor, expected: &Value) -> Option<String> {
    let expected = read(expected);
    if found.shape() != expected.shape() {
        return Some(format!("{what}: shape {:?}, not {:?}", found.shape(), expected.shape()));
    }
    let pairs = values(found).into_iter().zip(values(&expected));
    let wrong = pairs.enumerate().find(|(_, (found, expected))| !close(*found, *expected, 1e-6));
    wrong.map(|(place, (found, expected))| format!("{what}[{place}]: {found}, not {expected}"))
}

/// Returns the gradients' cotangent that the file was written with.
fn cotangent(result: &Tensor) -> Tensor {
    let list: Vec<f64> = (0..result.elements()).map(|place| (place % 7) as f64 / 4.0 - 0.75).collect();
    Tensor::from_slice(&list, result.shape(), result.device()).unwrap()
}

fn inputs_of(sample: &Value) -> Inputs<'_> {
    let mut wants = sample["wants"].as_array().unwrap().iter().map(|wants| wants.as_bool().unwrap());
    let mut leaf = |value: &Value| {
        let tensor = read(value);
        if wants.next().unwrap() { tensor.requires_grad_().unwrap() } else { tensor }
    };
    let list = sample["inputs"].as_array().unwrap().iter().map(|value| match value {
        Value::Array(list) if list.iter().all(Value::is_i64) => {
            let list: Vec<i64> = list.iter().map(|value| value.as_i64().unwrap()).collect();
            vec![Tensor::from_slice(&list, &[list.len()], &device()).unwrap()]
        }
        Value::Array(list) => list.iter().map(&mut leaf).collect(),
        value => vec![leaf(value)],
    });
    let list = list.collect();
    let named = sample["named"].as_object().unwrap().iter();
    let named =
        named.filter(|(_, value)| value.is_object()).map(|(name, value)| (name.as_str(), leaf(value)));
    Inputs { list, named: named.collect() }
}

/// Everything in which a module differs from a sample.
fn differences(sample: &Value) -> Result<Vec<String>> {
    let name = sample["module"].as_str().unwrap();
    let mut built = build(name, &Arguments(sample["arguments"].as_object().unwrap()), &device())?;
    built.module.as_any_mut().to_dtype(DType::F64)?;
    built.module.as_any_mut().train(sample["training"].as_bool().unwrap());
    let pairs = sample["state"].as_array().unwrap().iter();
    let state: StateDict = pairs.map(|pair| (pair[0].as_str().unwrap().to_owned(), read(&pair[1]))).collect();
    let own: Vec<String> = built.module.state_dict().into_keys().collect();
    // The weights of losses are saved only if they are passed to the constructor, on both sides.
    assert!(own.iter().eq(state.keys()), "{name} has {own:?}, and PyTorch's {:?}", state.keys());
    built.module.load_state_dict(&state)?;
    let inputs = inputs_of(sample);
    let results = (built.run)(&built.module, &inputs)?;
    let mut found = Vec::new();
    for (place, expected) in sample["results"].as_array().unwrap().iter().enumerate() {
        found.extend(difference(&format!("result {place}"), &results[place], expected));
    }
    let through: Vec<Tensor> = results.iter().filter(|result| result.requires_grad()).cloned().collect();
    let from: Vec<_> = through.iter().map(|result| Some(cotangent(result))).collect();
    let of_inputs: Vec<Tensor> = inputs.all().cloned().collect();
    let named = built.module.named_parameters();
    let targets: Vec<Tensor> =
        of_inputs.iter().chain(named.iter().map(|(_, tensor)| tensor)).cloned().collect();
    let gradients = gradients(&through, &from, &targets)?;
    let of_inputs = sample["input_gradients"].as_array().unwrap().iter().enumerate();
    let expected = of_inputs.map(|(place, value)| (format!("gradient of input {place}"), value));
    let of_named = named.iter().map(|(name, _)| (format!("gradient of {name}"), &sample["gradients"][name]));
    for (gradient, (what, expected)) in gradients.iter().zip(expected.chain(of_named)) {
        match (gradient, expected.is_null()) {
            (Some(gradient), false) => found.extend(difference(&what, gradient, expected)),
            (None, false) => found.push(format!("{what}: there is none")),
            _ => {}
        }
    }
    let buffers = built.module.state_dict();
    for pair in sample["buffers"].as_array().unwrap() {
        let name = pair[0].as_str().unwrap();
        found.extend(difference(name, &buffers[name], &pair[1]));
    }
    Ok(found)
}

/// The score of a module: its samples, and how many of them were taken in evaluation, have gradients, and agree.
#[derive(Default)]
struct Score {
    samples: usize,
    evaluations: usize,
    gradients: usize,
    agreeing: usize,
}

/// Returns the page of the documentation.
fn page(scores: &BTreeMap<String, Score>) -> String {
    let (all, agree) = (scores.len(), scores.values().filter(|s| s.agreeing == s.samples).count());
    let mut text = format!(
        "# Modules, compared with PyTorch's samples\n\n\
         ModuleInfo is PyTorch's own database of modules: options, inputs, and how they are called. The test `modules` of `thalweg-nn` \n\
         builds each module with a sample's options, loads the state that PyTorch's had by its names, and compares results, the gradients of \n\
         inputs and parameters, and buffers, in f64, to one part in a million. `THALWEG_MODULES_WRITE=1 cargo test -p thalweg-nn --test it \n\
         modules` writes this page.\n\n\
         **{agree} of {all} modules agree in every sample.** PyTorch's database has 8 more: the lazy convolutions, which \n\
         learn their number of channels from the first input. Here a constructor takes that number. `torch.nn.Transformer` is called \n\
         `EncoderDecoder`.\n\n\
         | module | samples | in evaluation | with gradients | agree |\n|---|---|---|---|---|\n"
    );
    text = text.replace(" \n", "\n");
    for (name, score) in scores {
        let Score { samples, evaluations, gradients, agreeing } = score;
        writeln!(text, "| `{name}` | {samples} | {evaluations} | {gradients} | {agreeing} |").unwrap();
    }
    text
}

#[test]
fn modules_agree_with_pytorchs_samples() {
    let mut text = String::new();
    let packed: &[u8] = include_bytes!("../modules/samples.jsonl.gz");
    GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    let (mut failures, mut scores) = (Vec::new(), BTreeMap::<String, Score>::new());
    for (number, line) in text.lines().enumerate() {
        let sample: Value = serde_json::from_str(line).unwrap();
        let name = sample["module"].as_str().unwrap().to_owned();
        let found = differences(&sample).unwrap_or_else(|error| vec![error.to_string()]);
        let score = scores.entry(name.clone()).or_default();
        score.samples += 1;
        score.evaluations += usize::from(sample["training"] == false);
        score.gradients += usize::from(sample["wants"].as_array().unwrap().contains(&Value::Bool(true)));
        score.agreeing += usize::from(found.is_empty());
        if !found.is_empty() {
            failures.push(format!("{number} {name} {}: {}", sample["arguments"], found.join("; ")));
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/modules.md");
    if std::env::var_os("THALWEG_MODULES_WRITE").is_some() {
        std::fs::write(path, page(&scores)).expect("the page is written");
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), text.lines().count(), failures.join("\n"));
    assert_eq!(scores.len(), 106, "modules of the database that are not lazy");
    let written = std::fs::read_to_string(path).expect("the page is in the repository");
    assert!(
        written == page(&scores),
        "docs/modules.md says something else; write it with THALWEG_MODULES_WRITE=1"
    );
}
