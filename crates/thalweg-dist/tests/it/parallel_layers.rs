//! Single layers, losses and redistributions, compared with undivided ones, and errors.

use thalweg_dist::tensor_parallel::{
    ColwiseParallel, Parallel, ParallelAttention, ParallelStyle, Parallelize, Placement, PrepareModuleInput,
    PrepareModuleOutput, RowwiseParallel, SequenceParallel, cross_entropy, parallelize_module, redistribute,
};
use thalweg_dist::{DeviceMesh, ProcessGroup, run_ranks, simulated_devices};
use thalweg_ir::DType;
use thalweg_nn::functional::{self, ClassLossOptions, Reduction};
use thalweg_nn::models::gpt2::Conv1D;
use thalweg_nn::module::{
    Embedding, Forward, LayerNorm, Linear, Module, MultiheadAttention, MultiheadAttentionOptions, StateDict,
};
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{Random, checked};

const WHOLE: Placement = Placement::Replicate;

fn mesh_of(group: &ProcessGroup) -> Result<DeviceMesh> {
    DeviceMesh::new(group, &[group.size() as usize], &["tp"])
}

/// Returns numbers of f64, which the seed decides.
fn numbers(seed: u64, shape: &[usize], device: &Device) -> Result<Tensor> {
    let mut random = Random::new(seed + 1);
    let values: Vec<f64> =
        (0..shape.iter().product()).map(|_| random.below(2001) as f64 / 1000.0 - 1.0).collect();
    Tensor::from_slice(&values, shape, device)
}

/// Returns this rank's part of a tensor that every rank has in full.
fn held(whole: &Tensor, placement: Placement, group: &ProcessGroup) -> Result<Tensor> {
    redistribute(&whole.detach(), group, WHOLE, placement, placement)
}

/// Returns the full tensor from the ranks' parts.
fn gathered(part: &Tensor, placement: Placement, group: &ProcessGroup) -> Result<Vec<f64>> {
    redistribute(&part.detach(), group, placement, WHOLE, WHOLE)?.to_vec()
}

#[track_caller]
fn close(found: &[f64], wanted: &[f64], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(wanted) {
        let fits = (found - wanted).abs() <= 1e-12 || (found.is_nan() && wanted.is_nan());
        assert!(fits, "{what}: {found}, not {wanted}");
    }
}

/// A layer inside another module, so that a plan can name it.
#[derive(Module)]
struct Net<M: Parallelize> {
    layer: Parallel<M>,
}

/// Compares a divided layer with the full one: results, and gradients of the input and the parameters. `held_as` has the placements
/// of input and output.
fn layer_holds<M: Parallelize>(
    group: &ProcessGroup,
    [whole, divided]: [M; 2],
    style: ParallelStyle,
    input: &Tensor,
    held_as: [Placement; 2],
) -> Result<()> {
    let name = format!("{style:?}");
    let [mut whole, mut divided] = [whole, divided].map(|layer| Net { layer: layer.into() });
    whole.to_dtype(DType::F64)?;
    divided.to_dtype(DType::F64)?;
    let parallel = parallelize_module(&mut divided, &mesh_of(group)?, &[("layer", style)])?;
    assert_eq!(divided.layer.style(), Some(&style));
    let is_differentiable = input.dtype().is_floating_point();
    let own = held(input, held_as[0], group)?.set_requires_grad_to(is_differentiable)?;
    let input = input.detach().set_requires_grad_to(is_differentiable)?;
    let (wanted, found) = (whole.layer.forward(&input)?, divided.layer.forward(&own)?);
    close(&gathered(&found, held_as[1], group)?, &wanted.to_vec::<f64>()?, &name);
    let weights = numbers(5, wanted.shape(), group.device())?;
    wanted.mul(&weights)?.sum(&[], false)?.backward()?;
    // Every rank computes the gradient of one loss: it has the result's as it has the result.
    found.backward_with(&held(&weights, held_as[1], group)?)?;
    if is_differentiable {
        let gradient = own.grad().expect("the input has a gradient");
        let wanted = input.grad().expect("the input has a gradient").to_vec::<f64>()?;
        close(&gathered(&gradient, held_as[0], group)?, &wanted, &name);
    }
    let gradients = |module: &Net<M>| -> StateDict {
        let named = module.named_parameters().into_iter();
        named.map(|(name, tensor)| (name, tensor.grad().expect("a gradient"))).collect()
    };
    let found = parallel.full_state_dict(&gradients(&divided))?;
    for (parameter, wanted) in gradients(&whole) {
        let found = found[&parameter].to_vec::<f64>()?;
        close(&found, &wanted.to_vec::<f64>()?, &format!("{name}: {parameter}"));
    }
    Ok(())
}

/// A leaf that collects a gradient or not.
trait Leaf: Sized {
    fn set_requires_grad_to(self, requires_grad: bool) -> Result<Self>;
}

impl Leaf for Tensor {
    fn set_requires_grad_to(self, requires_grad: bool) -> Result<Self> {
        let leaf = self.detach();
        leaf.set_requires_grad(requires_grad)?;
        Ok(leaf)
    }
}

#[test]
fn linear_layers_are_divided_by_columns_and_rows() {
    let (last, part) = (Placement::Shard(-1), Placement::Shard(1));
    let columns = ColwiseParallel::default();
    for ranks in [2, 4] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            let device = group.device();
            let input = numbers(3, &[2, 8, 4], device)?;
            let pair = |seed: u64, bias: bool| -> Result<[Linear; 2]> {
                let layer = |g: &mut Generator| match bias {
                    true => Linear::new(4, 8, g, device),
                    false => Linear::without_bias(4, 8, g, device),
                };
                // The first rank's values count.
                Ok([
                    layer(&mut Generator::new(seed))?,
                    layer(&mut Generator::new(seed + u64::from(group.rank())))?,
                ])
            };
            for input_layouts in [WHOLE, part, last] {
                for output_layouts in [last, WHOLE, part] {
                    let style = ColwiseParallel { input_layouts, output_layouts, ..columns };
                    layer_holds(
                        &group,
                        pair(1, true)?,
                        style.into(),
                        &input,
                        [input_layouts, output_layouts],
                    )?;
                    let style = RowwiseParallel { input_layouts, output_layouts };
                    layer_holds(
                        &group,
                        pair(2, true)?,
                        style.into(),
                        &input,
                        [input_layouts, output_layouts],
                    )?;
                    layer_holds(
                        &group,
                        pair(2, false)?,
                        style.into(),
                        &input,
                        [input_layouts, output_layouts],
                    )?;
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn transposed_layers_are_divided_too() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let input = numbers(3, &[3, 4], group.device())?;
        let layer = || -> Result<Conv1D> {
            let weight = numbers(7, &[4, 6], group.device())?.requires_grad_()?;
            Ok(Conv1D { weight, bias: numbers(8, &[6], group.device())?.requires_grad_()? })
        };
        let layers = || -> Result<[Conv1D; 2]> { Ok([layer()?, layer()?]) };
        let last = Placement::Shard(-1);
        layer_holds(&group, layers()?, ColwiseParallel::default().into(), &input, [WHOLE, last])?;
        layer_holds(&group, layers()?, RowwiseParallel::default().into(), &input, [last, WHOLE])
    })
    .unwrap();
}

#[test]
fn embeddings_are_divided_by_features_and_by_vocabulary() {
    for ranks in [2, 3] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            let device = group.device();
            let indices = Tensor::from_slice(&[0i64, 11, 5, 6, 3, 5, 8, 7, 2, 10, 4, 1], &[2, 6], device)?;
            for padding in [None, Some(5), Some(-1)] {
                let table = || -> Result<Embedding> {
                    let table = Embedding::new(12, 6, &mut Generator::new(3), device)?;
                    Ok(Embedding { padding_idx: padding, ..table })
                };
                for output_layouts in [WHOLE, Placement::Shard(1), Placement::Shard(-1)] {
                    let style = ColwiseParallel { output_layouts, ..ColwiseParallel::default() };
                    let held_as = [WHOLE, output_layouts];
                    layer_holds(&group, [table()?, table()?], style.into(), &indices, held_as)?;
                    for input_layouts in [WHOLE, Placement::Shard(1)] {
                        let style = RowwiseParallel { input_layouts, output_layouts };
                        let held_as = [input_layouts, output_layouts];
                        layer_holds(&group, [table()?, table()?], style.into(), &indices, held_as)?;
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn norms_of_a_part_of_the_sequence() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let input = numbers(3, &[4, 3, 6], group.device())?;
        for sequence_dim in [0, -3] {
            let norm = || -> Result<LayerNorm> {
                let norm = LayerNorm::new(6, group.device())?;
                let (weight, bias) = (numbers(1, &[6], group.device())?, numbers(2, &[6], group.device())?);
                let (weight, bias) = (Some(weight.requires_grad_()?), Some(bias.requires_grad_()?));
                Ok(LayerNorm { weight, bias, ..norm })
            };
            let held_as = [Placement::Shard(sequence_dim); 2];
            let style = SequenceParallel { sequence_dim };
            layer_holds(&group, [norm()?, norm()?], style.into(), &input, held_as)?;
        }
        Ok(())
    })
    .unwrap();
}

/// Three layers with the same input, as the projections of queries, keys and values are.
#[derive(Module)]
struct Three {
    q: Parallel<Linear>,
    k: Parallel<Linear>,
    v: Parallel<Linear>,
    o: Parallel<Linear>,
}

impl Three {
    fn new(device: &Device) -> Result<Self> {
        let g = &mut Generator::new(4);
        let mut layer = || -> Result<Parallel<Linear>> { Ok(Linear::new(8, 8, g, device)?.into()) };
        Ok(Self { q: layer()?, k: layer()?, v: layer()?, o: layer()? })
    }
}

impl Forward for Three {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.q.forward(x)?.mul(&self.k.forward(x)?.tanh()?)?.add(&self.v.forward(x)?)?;
        self.o.forward(&hidden)
    }
}

impl Parallelize for Three {}

#[derive(Module)]
struct Outer {
    attention: Parallel<Three>,
}

#[test]
fn an_input_is_prepared_once_for_several_layers() {
    run_ranks(&simulated_devices(4).unwrap(), |group| {
        let device = group.device();
        let whole = Outer { attention: Three::new(device)?.into() };
        let calls = |group: &ProcessGroup| -> u64 {
            let record = group.flight_record();
            let number = record.lines().last().expect("a call").split_whitespace();
            number.filter_map(|word| word.parse().ok()).next().expect("its number")
        };
        let (mesh, mut counts) = (mesh_of(&group)?, Vec::new());
        for reduce_gradient in [false, true] {
            let mut net = Outer { attention: Three::new(device)?.into() };
            let part = Placement::Shard(0);
            let prepared =
                PrepareModuleInput { input_layouts: part, desired_input_layouts: WHOLE, reduce_gradient };
            // Here once for all three, or in each of them.
            let columns = ColwiseParallel { reduce_gradient: !reduce_gradient, ..ColwiseParallel::default() };
            let rows = RowwiseParallel { output_layouts: part, ..RowwiseParallel::default() };
            let plan = [
                ("attention", prepared.into()),
                ("attention.[qkv]", columns.into()),
                ("attention.o", rows.into()),
            ];
            let unknown = parallelize_module(&mut net, &mesh, &plan).unwrap_err().to_string();
            assert!(unknown.contains("no submodule matching token '[qkv]' in `attention`"), "{unknown}");
            let plan = [
                ("attention", prepared.into()),
                ("attention.q", columns.into()),
                ("attention.k", columns.into()),
                ("attention.v", columns.into()),
                ("attention.o", rows.into()),
            ];
            parallelize_module(&mut net, &mesh, &plan)?;
            let x = Tensor::from_slice(&[0.25f32; 64], &[8, 8], device)?;
            let own = held(&x, part, &group)?.set_requires_grad_to(true)?;
            let x = x.set_requires_grad_to(true)?;
            let before = calls(mesh.group("tp")?);
            net.attention.forward(&own)?.square()?.sum(&[], false)?.backward()?;
            counts.push(calls(mesh.group("tp")?) - before);
            whole.attention.forward(&x)?.square()?.sum(&[], false)?.backward()?;
            let found =
                redistribute(&own.grad().expect("one"), &group, part, WHOLE, WHOLE)?.to_vec::<f32>()?;
            let wanted = x.grad().expect("one").to_vec::<f32>()?;
            crate::support::close(&found, &wanted, 1e-5);
        }
        // A gather and a reduction; backward a gather, a bias, and three reductions or one.
        assert_eq!(counts, [7, 5]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_output_is_prepared() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let input = numbers(3, &[4, 8], group.device())?;
        let part = Placement::Shard(0);
        let style = PrepareModuleOutput { output_layouts: WHOLE, desired_output_layouts: part };
        let layer = || Three::new(group.device());
        layer_holds(&group, [layer()?, layer()?], style.into(), &input, [WHOLE, part])
    })
    .unwrap();
}

#[test]
fn tied_weights_stay_tied() {
    #[derive(Module)]
    struct Tied {
        tokens: Parallel<Embedding>,
        head: Parallel<Linear>,
    }
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let tied = || -> Result<Tied> {
            let tokens = Embedding::new(6, 4, &mut Generator::new(3), group.device())?;
            let head = Linear { weight: tokens.weight.clone(), bias: None };
            Ok(Tied { tokens: tokens.into(), head: head.into() })
        };
        let pass = |net: &Tied| -> Result<Tensor> {
            let indices = Tensor::from_slice(&[5i64, 1, 2], &[3], group.device())?;
            net.head.forward(&net.tokens.forward(&indices)?)
        };
        let (whole, mut net) = (tied()?, tied()?);
        let tokens = RowwiseParallel { input_layouts: WHOLE, ..RowwiseParallel::default() };
        let plan = [("tokens", tokens.into()), ("head", ColwiseParallel::default().into())];
        let parallel = parallelize_module(&mut net, &mesh_of(&group)?, &plan)?;
        assert_eq!(net.parameters().len(), 1);
        let target = Tensor::from_slice(&[0i64, 3, 4], &[3], group.device())?;
        let found = cross_entropy(&pass(&net)?, &target, ClassLossOptions::default(), &group)?;
        found.backward()?;
        functional::cross_entropy(&pass(&whole)?, &target)?.backward()?;
        let gradient = |net: &Tied| net.parameters()[0].grad().expect("a gradient");
        let found = StateDict::from_iter([("tokens.weight".to_owned(), gradient(&net))]);
        let found = parallel.full_state_dict(&found)?["tokens.weight"].to_vec::<f32>()?;
        crate::support::close(&found, &gradient(&whole).to_vec::<f32>()?, 1e-6);
        Ok(())
    })
    .unwrap();
}

#[test]
fn losses_of_divided_classes_have_the_options_of_whole_ones() {
    for ranks in [1, 2, 4] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            let device = group.device();
            for (shape, target) in [
                (&[8][..], vec![6i64]),
                (&[4, 8], vec![7, 0, 3, -100]),
                (&[2, 8, 3], vec![1, -100, 5, 2, 2, 7]),
            ] {
                let mut rows = shape.to_vec();
                let class_dim = usize::from(shape.len() > 1);
                rows.remove(class_dim);
                for (reduction, ignore_index) in [
                    (Reduction::Mean, -100),
                    (Reduction::Sum, 2),
                    (Reduction::None, -100),
                    (Reduction::Mean, 7),
                ] {
                    let options = ClassLossOptions { reduction, ignore_index, ..ClassLossOptions::default() };
                    let ignored = |class: &i64| if *class == -100 { ignore_index } else { *class };
                    let target: Vec<i64> = target.iter().map(ignored).collect();
                    let target = Tensor::from_slice(&target, &rows, device)?;
                    // Far beyond where exponentials end.
                    let scores = numbers(4, shape, device)?.mul_scalar(2000.0)?;
                    let own = held(&scores, Placement::Shard(class_dim as i64), &group)?
                        .set_requires_grad_to(true)?;
                    let scores = scores.set_requires_grad_to(true)?;
                    let found = cross_entropy(&own, &target, options, &group)?;
                    let wanted = functional::cross_entropy_with(&scores, &target, options)?;
                    let what = format!("{shape:?} {options:?}");
                    let (found_values, wanted_values) = (found.to_vec::<f64>()?, wanted.to_vec::<f64>()?);
                    close(&found_values, &wanted_values, &what);
                    found.sum(&[], false)?.backward()?;
                    wanted.sum(&[], false)?.backward()?;
                    let found =
                        gathered(&own.grad().expect("one"), Placement::Shard(class_dim as i64), &group)?;
                    close(&found, &scores.grad().expect("one").to_vec::<f64>()?, &what);
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn losses_refuse_what_they_cannot() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let scores = numbers(4, &[3, 4], group.device())?;
        let rows = |values: &[i64]| Tensor::from_slice(values, &[values.len()], group.device());
        let all = rows(&[0, 8, -1])?;
        let options = ClassLossOptions { reduction: Reduction::None, ..ClassLossOptions::default() };
        let found = cross_entropy(&scores, &all, options, &group)?.to_vec::<f64>()?;
        assert!(found[0].is_finite() && found[1].is_nan() && found[2].is_nan(), "{found:?}");
        let error = cross_entropy(&scores, &rows(&[0, 1])?, options, &group).unwrap_err().to_string();
        assert!(error.contains("the target is int64 [2], not int64 [3]"), "{error}");
        let smoothed = ClassLossOptions { label_smoothing: 0.1, ..options };
        let error = cross_entropy(&scores, &all, smoothed, &group).unwrap_err().to_string();
        assert!(error.contains("label_smoothing"), "{error}");
        Ok(())
    })
    .unwrap();
}

/// Converts a tensor from every placement to every other one and back, and compares values and gradients with the full tensor's.
fn around(group: &ProcessGroup, seed: u64) -> Result<()> {
    let all = [WHOLE, Placement::Shard(0), Placement::Shard(-1), Placement::Partial];
    let whole = numbers(seed, &[4, 8], group.device())?;
    let weights = numbers(seed + 50, &[4, 8], group.device())?;
    for from in all {
        for to in all {
            if matches!((from, to), (Placement::Shard(_), Placement::Partial)) {
                continue;
            }
            let own = held(&whole, from, group)?.set_requires_grad_to(true)?;
            // The gradient of a sum is replicated.
            let gradient = if to == Placement::Partial { WHOLE } else { to };
            let result = redistribute(&own, group, from, to, gradient)?;
            let what = format!("{from} to {to}");
            close(&gathered(&result, to, group)?, &whole.to_vec::<f64>()?, &what);
            result.backward_with(&held(&weights, gradient, group)?)?;
            let back = if from == Placement::Partial { WHOLE } else { from };
            let found = gathered(&own.grad().expect("one"), back, group)?;
            close(&found, &weights.to_vec::<f64>()?, &what);
        }
    }
    // Each rank has used the whole for a part of the work.
    for from in [WHOLE, Placement::Shard(0)] {
        let own = held(&whole, from, group)?.set_requires_grad_to(true)?;
        let result = redistribute(&own, group, from, WHOLE, Placement::Partial)?;
        result.backward_with(&held(&weights, Placement::Partial, group)?)?;
        close(&gathered(&own.grad().expect("one"), from, group)?, &weights.to_vec::<f64>()?, "parts");
    }
    Ok(())
}

#[test]
fn tensors_go_from_every_placement_to_others() {
    for ranks in [1, 2, 4] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| around(&group, 0)).unwrap();
    }
    checked(6, 2, around);
    checked(2, 4, around);
}

#[derive(Module)]
struct Mixed {
    up: Parallel<Linear>,
    down: Parallel<Linear>,
    plain: Linear,
    norm: Parallel<LayerNorm>,
}

fn mixed(device: &Device) -> Result<Mixed> {
    let g = &mut Generator::new(1);
    Ok(Mixed {
        up: Linear::new(6, 9, g, device)?.into(),
        down: Linear::new(9, 8, g, device)?.into(),
        plain: Linear::new(3, 3, g, device)?,
        norm: LayerNorm::new(6, device)?.into(),
    })
}

#[test]
fn plans_that_do_not_fit_change_nothing() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let device = group.device();
        let mesh = mesh_of(&group)?;
        let mut net = mixed(device)?;
        let (columns, rows) = (ColwiseParallel::default(), RowwiseParallel::default());
        let sequence = SequenceParallel::default();
        let bad = ColwiseParallel { input_layouts: Placement::Shard(1), reduce_gradient: false, ..columns };
        let refused: [(&[(&str, ParallelStyle)], &str); 9] = [
            (
                &[("up", columns.into()), ("down", columns.into())],
                "dimension 0 of `down.weight`, of shape [8, 9], must be divisible by the mesh size 3",
            ),
            (
                &[("up", ColwiseParallel { packed: 2, ..columns }.into())],
                "each of the 2 parts of dimension 0 of `up.weight`, of shape [9, 6]",
            ),
            (
                &[("up", columns.into()), ("plain", rows.into())],
                "`plain` is a Linear, and RowwiseParallel needs a Parallel<Linear>",
            ),
            (&[("up", columns.into()), ("u*", rows.into())], "`up` has a style already"),
            (
                &[("up", columns.into()), ("middle", rows.into())],
                "no submodule matching token 'middle' in Mixed",
            ),
            (
                &[("norm", columns.into())],
                "ColwiseParallel currently only support nn.Linear and nn.Embedding!",
            ),
            (
                &[("up", sequence.into())],
                "SequenceParallel currently only support nn.LayerNorm and nn.RMSNorm!",
            ),
            (&[("up", bad.into())], "with reduce_gradient=false the input is whole, not Shard(dim=1)"),
            (&[("up.weight", columns.into())], "no submodule matching token 'weight' in `up`"),
        ];
        for (plan, wanted) in refused {
            let error = parallelize_module(&mut net, &mesh, plan).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
            assert_eq!(net.up.module().weight.shape(), [9, 6]);
            assert!(net.up.style().is_none());
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn plans_are_carried_out_once() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let (device, mesh) = (group.device(), mesh_of(&group)?);
        let (columns, sequence) = (ColwiseParallel::default(), SequenceParallel::default());
        let mut net = mixed(device)?;
        let flat = DeviceMesh::new(&group, &[1, 3], &["dp", "tp"])?;
        let error = parallelize_module(&mut net, &flat, &[]).unwrap_err().to_string();
        assert!(error.contains("takes a one-dimensional DeviceMesh, not one of [\"dp\", \"tp\"]"), "{error}");
        let parallel =
            parallelize_module(&mut net, &mesh, &[("up", columns.into()), ("norm", sequence.into())])?;
        assert_eq!(net.up.module().weight.shape(), [3, 6]);
        assert!(parallel.split("up.bias").is_some() && parallel.split("norm.weight").is_none());
        let again = parallelize_module(&mut net, &mesh, &[("up", columns.into())]).unwrap_err().to_string();
        assert!(again.contains("`up` has a style already"), "{again}");
        let error = net.norm.forward(&numbers(1, &[3, 6], device)?).unwrap_err().to_string();
        assert!(
            error.contains("sequence_dim 1 of an input of shape [3, 6] is one that is normalized"),
            "{error}"
        );
        let x = numbers(1, &[4, 4], device)?;
        let error = redistribute(&x, &group, WHOLE, Placement::Shard(0), Placement::Shard(0));
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("the size 4 of dimension 0 must be divisible by the mesh's 3 ranks"),
            "{error}"
        );
        let error = redistribute(&x, &group, Placement::Shard(0), Placement::Partial, WHOLE);
        assert!(error.unwrap_err().to_string().contains("cannot go from Shard(dim=0) to Partial(sum)"));
        Ok(())
    })
    .unwrap();
}

#[test]
fn heads_are_not_cut() {
    run_ranks(&simulated_devices(4).unwrap(), |group| {
        let options = MultiheadAttentionOptions::default();
        let attention = MultiheadAttention::new(8, 2, options, &mut Generator::new(1), group.device())?;
        let mut attention = ParallelAttention::new(attention, true)?;
        let (in_proj, out_proj) = ParallelAttention::styles();
        let plan = [("in_proj", in_proj.into()), ("out_proj", out_proj.into())];
        parallelize_module(&mut attention, &mesh_of(&group)?, &plan)?;
        let x = Tensor::ones(&[1, 4, 8], DType::F32, group.device())?;
        let error = attention.forward(&x).unwrap_err().to_string();
        assert!(error.contains("num_heads must be divisible by the mesh size"), "{error}");
        let options = MultiheadAttentionOptions { kdim: Some(4), ..MultiheadAttentionOptions::default() };
        let other = MultiheadAttention::new(8, 2, options, &mut Generator::new(1), group.device())?;
        assert!(ParallelAttention::new(other, true).err().expect("an error").to_string().contains("kdim"));
        Ok(())
    })
    .unwrap();
}

#[test]
fn tokens_beyond_the_vocabulary_are_errors_as_on_one_gpu() {
    for wrong in [-1i64, 12, i64::MIN, i64::MAX] {
        let error = run_ranks(&simulated_devices(3).unwrap(), |group| {
            let table = Embedding::new(12, 2, &mut Generator::new(1), group.device())?;
            let mut net = Net { layer: table.into() };
            let style = RowwiseParallel { input_layouts: WHOLE, ..RowwiseParallel::default() };
            parallelize_module(&mut net, &mesh_of(&group)?, &[("layer", style.into())])?;
            let indices = Tensor::from_slice(&[3, wrong, 11], &[3], group.device())?;
            net.layer.forward(&indices)?.to_vec::<f32>()
        });
        let error = error.unwrap_err();
        assert!(error.is_out_of_range(), "{wrong}: {error}");
        assert!(error.to_string().contains("embedding: index"), "{wrong}: {error}");
    }
}
