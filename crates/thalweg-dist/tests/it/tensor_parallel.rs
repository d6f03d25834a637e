//! A small GPT whose layers are divided among ranks against the same one on a single rank: losses, gradients, parameters.

use thalweg_dist::tensor_parallel::{
    ColwiseParallel, Parallel, ParallelAttention, ParallelStyle, Placement, PrepareModuleOutput,
    RowwiseParallel, SequenceParallel, TensorParallel, cross_entropy, parallelize_module,
};
use thalweg_dist::{
    DataParallelOptions, DeviceMesh, DistributedDataParallel, FullyShardOptions, ProcessGroup, fully_shard,
    run_ranks, simulated_devices,
};
use thalweg_ir::DType;
use thalweg_nn::functional::{self, ClassLossOptions};
use thalweg_nn::module::{
    Embedding, Forward, LayerNorm, Linear, Module, MultiheadAttention, MultiheadAttentionOptions, RMSNorm,
    StateDict,
};
use thalweg_nn::optim::clip_grad_norm_;
use thalweg_runtime::{CaptureMode, CaptureOptions, Device, Graph, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{Random, checked};

const VOCABULARY: usize = 24;
const FEATURES: usize = 16;
const HEADS: usize = 4;
const TOKENS: usize = 8;

#[derive(Module)]
struct Block {
    ln_1: Parallel<LayerNorm>,
    attn: ParallelAttention,
    ln_2: Parallel<RMSNorm>,
    up: Parallel<Linear>,
    down: Parallel<Linear>,
}

impl Forward for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attn.forward(&self.ln_1.forward(x)?)?)?;
        let hidden = self.up.forward(&self.ln_2.forward(&x)?)?.gelu()?;
        x.add(&self.down.forward(&hidden)?)
    }
}

#[derive(Module)]
struct Gpt<B: Forward> {
    tokens: Parallel<Embedding>,
    positions: Parallel<Embedding>,
    blocks: Vec<B>,
    norm: Parallel<LayerNorm>,
    head: Parallel<Linear>,
}

impl<B: Forward> Forward for Gpt<B> {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(tokens.size(-1)?, 0, 1, DType::I64, tokens.device())?.unsqueeze(0)?;
        let mut x = self.tokens.forward(tokens)?.add(&self.positions.forward(&positions)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

/// How a test divides the network.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// Every rank has full activations between blocks, and full scores.
    Whole,
    /// Activations are full, and scores stay divided.
    Loss,
    /// Norms and residual connections get a part of the sequence; scores stay divided.
    Sequence,
}

fn plan(way: Way) -> Vec<(&'static str, ParallelStyle)> {
    let (columns, rows) = (ColwiseParallel::default(), RowwiseParallel::default());
    let (in_proj, out_proj) = ParallelAttention::styles();
    let tokens = RowwiseParallel { input_layouts: Placement::Replicate, ..rows };
    if way != Way::Sequence {
        let output_layouts = if way == Way::Whole { Placement::Replicate } else { Placement::Shard(-1) };
        return vec![
            ("tokens", tokens.into()),
            ("blocks.*.attn.in_proj", in_proj.into()),
            ("blocks.*.attn.out_proj", out_proj.into()),
            ("blocks.*.up", columns.into()),
            ("blocks.*.down", rows.into()),
            ("head", ColwiseParallel { output_layouts, ..columns }.into()),
        ];
    }
    let part = Placement::Shard(1);
    let positions =
        PrepareModuleOutput { output_layouts: Placement::Replicate, desired_output_layouts: part };
    let norm = ParallelStyle::from(SequenceParallel::default());
    vec![
        ("tokens", RowwiseParallel { output_layouts: part, ..tokens }.into()),
        ("positions", positions.into()),
        ("blocks.*.ln_?", norm),
        ("blocks.*.attn.in_proj", ColwiseParallel { input_layouts: part, ..in_proj }.into()),
        ("blocks.*.attn.out_proj", RowwiseParallel { output_layouts: part, ..out_proj }.into()),
        ("blocks.*.up", ColwiseParallel { input_layouts: part, ..columns }.into()),
        ("blocks.*.down", RowwiseParallel { output_layouts: part, ..rows }.into()),
        ("norm", norm),
        ("head", ColwiseParallel { input_layouts: part, ..columns }.into()),
    ]
}

fn block(g: &mut Generator, d: &Device) -> Result<Block> {
    let options = MultiheadAttentionOptions { batch_first: true, ..MultiheadAttentionOptions::default() };
    let attention = MultiheadAttention::new(FEATURES, HEADS, options, g, d)?;
    Ok(Block {
        ln_1: LayerNorm::new(FEATURES, d)?.into(),
        attn: ParallelAttention::new(attention, true)?,
        ln_2: RMSNorm::new(&[FEATURES], d)?.into(),
        up: Linear::new(FEATURES, 4 * FEATURES, g, d)?.into(),
        down: Linear::new(4 * FEATURES, FEATURES, g, d)?.into(),
    })
}

/// Makes a network in f64, in which results differ only by the order of sums.
fn network(seed: u64, blocks: usize, d: &Device) -> Result<Gpt<Block>> {
    let g = &mut Generator::new(seed);
    let mut gpt = Gpt {
        tokens: Embedding::new(VOCABULARY, FEATURES, g, d)?.into(),
        positions: Embedding::new(TOKENS, FEATURES, g, d)?.into(),
        blocks: (0..blocks).map(|_| block(g, d)).collect::<Result<_>>()?,
        norm: LayerNorm::new(FEATURES, d)?.into(),
        head: Linear::new(FEATURES, VOCABULARY, g, d)?.into(),
    };
    gpt.to_dtype(DType::F64)?;
    Ok(gpt)
}

/// Returns some of the four sequences of a step: their tokens, and the tokens that follow each of them.
fn batch(step: u64, sequences: std::ops::Range<usize>, d: &Device) -> Result<[Tensor; 2]> {
    let mut random = Random::new(step + 11);
    let all: Vec<i64> = (0..4 * (TOKENS + 1)).map(|_| random.below(VOCABULARY as u64) as i64).collect();
    let shifted = |by: usize| {
        let rows = sequences.clone().flat_map(|at| all[at * (TOKENS + 1) + by..][..TOKENS].to_vec());
        Tensor::from_slice(&rows.collect::<Vec<i64>>(), &[sequences.len(), TOKENS], d)
    };
    Ok([shifted(0)?, shifted(1)?])
}

fn loss(scores: &Tensor, target: &Tensor, group: Option<&ProcessGroup>) -> Result<Tensor> {
    let (scores, target) = (scores.flatten(0, 1)?, target.flatten(0, 1)?);
    match group {
        Some(group) => cross_entropy(&scores, &target, ClassLossOptions::default(), group),
        None => functional::cross_entropy(&scores, &target),
    }
}

fn gradients(module: &impl Module) -> StateDict {
    let named = module.named_parameters().into_iter();
    named.map(|(name, tensor)| (name, tensor.grad().expect("every parameter has a gradient"))).collect()
}

fn descend(parameters: &[Tensor]) -> Result<()> {
    for parameter in parameters {
        let gradient = parameter.grad().expect("every parameter has a gradient");
        parameter.detach().sub_(&gradient.mul_scalar(0.1)?)?;
        parameter.zero_grad();
    }
    Ok(())
}

#[track_caller]
fn close(found: &StateDict, wanted: &StateDict) {
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (name, wanted) in wanted {
        let found = &found[name];
        assert_eq!(found.shape(), wanted.shape(), "{name}");
        let [found, wanted] = [found, wanted].map(|tensor| tensor.to_vec::<f64>().unwrap());
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= 1e-11, "{name}: {found}, not {wanted}");
        }
    }
}

#[track_caller]
fn near(found: &Tensor, wanted: &Tensor) {
    let [found, wanted] = [found, wanted].map(|tensor| tensor.item::<f64>().unwrap());
    assert!((found - wanted).abs() <= 1e-11, "{found}, not {wanted}");
}

fn mesh_of(group: &ProcessGroup) -> Result<DeviceMesh> {
    DeviceMesh::new(group, &[group.size() as usize], &["tp"])
}

/// Returns a network whose layers are divided, with its plan. Each rank draws different parameters; rank 0's replace the others.
fn divided(
    group: &ProcessGroup,
    mesh: &DeviceMesh,
    blocks: usize,
    way: Way,
) -> Result<(Gpt<Block>, TensorParallel)> {
    let mut gpt = network(1 + u64::from(group.rank()), blocks, group.device())?;
    let parallel = parallelize_module(&mut gpt, mesh, &plan(way))?;
    Ok((gpt, parallel))
}

/// Trains with divided layers and without, and compares.
fn train(group: &ProcessGroup, blocks: usize, steps: u64, way: Way) -> Result<()> {
    let alone = network(1, blocks, group.device())?;
    let (gpt, parallel) = divided(group, &mesh_of(group)?, blocks, way)?;
    for step in 0..steps {
        let [tokens, target] = batch(step, 0..4, group.device())?;
        let wanted = loss(&alone.forward(&tokens)?, &target, None)?;
        let scores = gpt.forward(&tokens)?;
        let part = if way == Way::Whole { VOCABULARY } else { VOCABULARY / group.size() as usize };
        assert_eq!(scores.shape(), [4, TOKENS, part]);
        let found = loss(&scores, &target, (way != Way::Whole).then_some(group))?;
        near(&found, &wanted);
        wanted.backward()?;
        found.backward()?;
        close(&parallel.full_state_dict(&gradients(&gpt))?, &gradients(&alone));
        descend(&alone.parameters())?;
        descend(&gpt.parameters())?;
        close(&parallel.full_state_dict(&gpt.state_dict())?, &alone.state_dict());
    }
    Ok(())
}

#[test]
fn divided_networks_train_as_whole_ones() {
    for ranks in [1, 2, 4] {
        for way in [Way::Whole, Way::Loss, Way::Sequence] {
            run_ranks(&simulated_devices(ranks).unwrap(), |group| train(&group, 2, 2, way)).unwrap();
        }
    }
}

/// A step of divided layers and one without, with sequence parallel or not as the seed says.
fn under_schedules(group: &ProcessGroup, seed: u64) -> Result<()> {
    train(group, 1, 1, [Way::Sequence, Way::Loss, Way::Whole][(seed % 3) as usize])
}

#[test]
fn divided_steps_have_no_race_under_any_schedule() {
    checked(6, 2, under_schedules);
    checked(3, 4, under_schedules);
}

/// Trains on a mesh of two by two: samples divided along one dimension and layers along the other.
fn on_a_mesh(world: &ProcessGroup, way: Way, options: FullyShardOptions) -> Result<()> {
    let mesh = DeviceMesh::new(world, &[2, world.size() as usize / 2], &["dp", "tp"])?;
    let (dp, tp) = (mesh.group("dp")?, mesh.group("tp")?);
    let (gpt, parallel) = divided(world, &mesh.submesh(&["tp"])?, 2, way)?;
    let Gpt { tokens, positions, blocks, norm, head } = gpt;
    let blocks = blocks.into_iter().map(|block| fully_shard(block, dp, options)).collect::<Result<_>>()?;
    let gpt = fully_shard(Gpt { tokens, positions, blocks, norm, head }, dp, options)?;
    let alone = network(1, 2, world.device())?;
    let group = (way != Way::Whole).then_some(tp);
    let own = dp.rank() as usize * 2;
    for step in 0..2 {
        let [tokens, target] = batch(step, own..own + 2, world.device())?;
        let found = loss(&gpt.forward(&tokens)?, &target, group)?;
        found.backward()?;
        let mean = dp.all_gather_object(&found.item::<f64>()?.to_le_bytes())?;
        let mean: f64 = mean.iter().map(|loss| f64::from_le_bytes(loss[..].try_into().unwrap())).sum();
        let [tokens, target] = batch(step, 0..4, world.device())?;
        let wanted = loss(&alone.forward(&tokens)?, &target, None)?;
        wanted.backward()?;
        assert!((mean / 2.0 - wanted.item::<f64>()?).abs() < 1e-11);
        let norm_type = [2.0, f64::INFINITY][step as usize];
        let norm = parallel.clip_grad_norm_(&gpt, 0.05, norm_type, Some(dp))?;
        near(&norm, &clip_grad_norm_(&alone.parameters(), 0.05, norm_type)?);
        descend(&gpt.parameters())?;
        descend(&alone.parameters())?;
        close(&parallel.full_state_dict(&gpt.full_state_dict()?)?, &alone.state_dict());
    }
    // Whole parameters come back in.
    let saved = network(9, 2, world.device())?.state_dict();
    gpt.load_full_state_dict(&parallel.local_state_dict(&saved)?)?;
    close(&parallel.full_state_dict(&gpt.full_state_dict()?)?, &saved);
    Ok(())
}

#[test]
fn layers_and_samples_are_divided_together() {
    for way in [Way::Whole, Way::Sequence] {
        for ranks in [4, 8] {
            let options = FullyShardOptions::default();
            run_ranks(&simulated_devices(ranks).unwrap(), |world| on_a_mesh(&world, way, options)).unwrap();
        }
    }
}

fn mesh_under_schedules(world: &ProcessGroup, seed: u64) -> Result<()> {
    let options = FullyShardOptions { prefetch: (seed % 2) as usize, ..FullyShardOptions::default() };
    on_a_mesh(world, [Way::Sequence, Way::Loss][(seed % 2) as usize], options)
}

#[test]
fn steps_on_a_mesh_have_no_race() {
    checked(2, 4, mesh_under_schedules);
}

#[test]
fn data_parallel_goes_with_divided_layers() {
    run_ranks(&simulated_devices(4).unwrap(), |world| {
        let mesh = DeviceMesh::new(&world, &[2, 2], &["dp", "tp"])?;
        let (gpt, parallel) = divided(&world, &mesh.submesh(&["tp"])?, 1, Way::Sequence)?;
        let (dp, tp) = (mesh.group("dp")?, mesh.group("tp")?);
        let gpt = DistributedDataParallel::new(gpt, dp, DataParallelOptions::default())?;
        let alone = network(1, 1, world.device())?;
        for step in 0..3 {
            let own = dp.rank() as usize * 2;
            let [tokens, target] = batch(step, own..own + 2, world.device())?;
            loss(&gpt.forward(&tokens)?, &target, Some(tp))?.backward()?;
            let [tokens, target] = batch(step, 0..4, world.device())?;
            loss(&alone.forward(&tokens)?, &target, None)?.backward()?;
            close(&parallel.full_state_dict(&gradients(gpt.module()))?, &gradients(&alone));
            descend(&gpt.parameters())?;
            descend(&alone.parameters())?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_captured_step_repeats() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let (gpt, parallel) = divided(&group, &mesh_of(&group)?, 1, Way::Sequence)?;
        let alone = network(1, 1, group.device())?;
        let [tokens, target] = batch(0, 0..4, group.device())?;
        let step = || -> Result<()> {
            loss(&gpt.forward(&tokens)?, &target, Some(&group))?.backward()?;
            descend(&gpt.parameters())
        };
        let options = CaptureOptions { mode: CaptureMode::ThreadLocal, ..CaptureOptions::default() };
        let (graph, ()) = Graph::capture(group.device(), options, step)?;
        for _ in 0..3 {
            graph.replay()?;
            loss(&alone.forward(&tokens)?, &target, None)?.backward()?;
            descend(&alone.parameters())?;
        }
        close(&parallel.full_state_dict(&gpt.state_dict())?, &alone.state_dict());
        Ok(())
    })
    .unwrap();
}
