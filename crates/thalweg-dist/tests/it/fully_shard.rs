//! Training with sharded parameters against the same training by one rank with all of them.

use thalweg_dist::{
    DataParallelOptions, DistributedDataParallel, FullyShard, FullyShardOptions, MixedPrecision,
    ProcessGroup, fully_shard, run_ranks, simulated_devices,
};
use thalweg_ir::DType;
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_nn::optim::clip_grad_norm_;
use thalweg_runtime::{Device, Result, Stream};
use thalweg_tensor::autograd::checkpoint;
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{batch, bytes, checked, close, descend, loss, parameter_values};

const WIDTH: usize = 10;

/// A layer with a residual connection.
#[derive(Module)]
pub struct Block {
    up: Linear,
    down: Linear,
}

impl Forward for Block {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.add(&self.down.forward(&self.up.forward(input)?.tanh()?)?)
    }
}

#[derive(Module)]
pub struct Network<B: Module> {
    pub first: Linear,
    pub blocks: Vec<B>,
    pub last: Linear,
}

impl<B: Forward> Forward for Network<B> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut hidden = self.first.forward(input)?;
        for block in &self.blocks {
            hidden = block.forward(&hidden)?;
        }
        self.last.forward(&hidden)
    }
}

pub type Sharded = FullyShard<Network<FullyShard<Block>>>;

fn blocks(generator: &mut Generator, count: usize, width: usize, device: &Device) -> Result<Vec<Block>> {
    (0..count)
        .map(|_| {
            Ok(Block {
                up: Linear::new(width, width + 3, generator, device)?,
                down: Linear::new(width + 3, width, generator, device)?,
            })
        })
        .collect()
}

pub fn plain(seed: u64, device: &Device) -> Result<Network<Block>> {
    let mut generator = Generator::new(seed);
    Ok(Network {
        first: Linear::new(6, WIDTH, &mut generator, device)?,
        blocks: blocks(&mut generator, 3, WIDTH, device)?,
        last: Linear::new(WIDTH, 3, &mut generator, device)?,
    })
}

/// Shards each block, and then the rest of the model. The initial values are those of rank 0.
pub fn sharded(group: &ProcessGroup, options: FullyShardOptions) -> Result<Sharded> {
    let Network { first, blocks, last } = plain(1 + u64::from(group.rank()), group.device())?;
    // What goes from block to block stays in the dtype of the computation.
    let mixed_precision = MixedPrecision { output_dtype: None, ..options.mixed_precision };
    let inner = FullyShardOptions { mixed_precision, ..options };
    let blocks: Result<Vec<_>> = blocks.into_iter().map(|block| fully_shard(block, group, inner)).collect();
    fully_shard(Network { first, blocks: blocks?, last }, group, options)
}

/// Returns the full parameters, in the order of their names.
pub fn whole(network: &Sharded) -> Result<Vec<f32>> {
    let all: Result<Vec<Vec<f32>>> = network.full_state_dict()?.values().map(Tensor::to_vec).collect();
    Ok(all?.concat())
}

pub fn step(
    network: &(impl Forward + ?Sized),
    rank: u32,
    ranks: u32,
    step: u64,
    device: &Device,
) -> Result<f32> {
    let (input, target) = batch(rank, ranks, step, device)?;
    let loss = loss(&network.forward(&input)?, &target)?;
    loss.backward()?;
    loss.item::<f32>()
}

/// Trains alone with the whole batch: losses and parameters.
pub fn alone(steps: u64) -> (Vec<f32>, Vec<f32>) {
    let device = simulated_devices(1).unwrap().remove(0);
    let network = plain(1, &device).unwrap();
    let losses = (0..steps).map(|number| {
        let loss = step(&network, 0, 1, number, &device).unwrap();
        descend(&network.parameters()).unwrap();
        loss
    });
    let losses = losses.collect();
    let all: Vec<Vec<f32>> = network.state_dict().values().map(|tensor| tensor.to_vec().unwrap()).collect();
    (losses, all.concat())
}

fn train(group: &ProcessGroup, steps: u64, options: FullyShardOptions) -> Result<(Vec<f32>, Vec<f32>)> {
    let network = sharded(group, options)?;
    let mut losses = Vec::new();
    for number in 0..steps {
        losses.push(step(&network, group.rank(), group.size(), number, group.device())?);
        descend(&network.parameters())?;
    }
    Ok((losses, whole(&network)?))
}

#[test]
fn sharded_ranks_train_as_one_with_the_whole_batch() {
    let (wanted_losses, wanted) = alone(4);
    for ranks in [1, 2, 3, 4] {
        for prefetch in [0, 1, 2] {
            let options = FullyShardOptions { prefetch, ..FullyShardOptions::default() };
            let found =
                run_ranks(&simulated_devices(ranks).unwrap(), |group| train(&group, 4, options)).unwrap();
            for (_, parameters) in &found {
                assert_eq!(parameters, &found[0].1, "the ranks have the same bits");
                close(parameters, &wanted, 2e-6);
            }
            if ranks == 1 {
                assert_eq!(
                    (&found[0].0, &found[0].1),
                    (&wanted_losses, &wanted),
                    "one rank sums in the same order"
                );
            }
        }
    }
}

#[test]
fn ranks_with_the_same_batch_have_the_bits_of_one() {
    let (wanted_losses, wanted) = alone(3);
    for ranks in [2, 4] {
        let found = run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            let network = sharded(&group, FullyShardOptions::default())?;
            let mut losses = Vec::new();
            for number in 0..3 {
                losses.push(step(&network, 0, 1, number, group.device())?);
                descend(&network.parameters())?;
            }
            Ok((losses, whole(&network)?))
        })
        .unwrap();
        // The mean of 2 or 4 equal numbers is exact.
        for (losses, parameters) in found {
            assert_eq!((losses, parameters), (wanted_losses.clone(), wanted.clone()));
        }
    }
}

#[test]
fn sharded_and_data_parallel_training_have_the_same_bits() {
    let found = run_ranks(&simulated_devices(4).unwrap(), |group| {
        let (losses, parameters) = train(&group, 3, FullyShardOptions::default())?;
        let network =
            DistributedDataParallel::new(plain(1, group.device())?, &group, DataParallelOptions::default())?;
        let mut wanted = Vec::new();
        for number in 0..3 {
            wanted.push(step(&network, group.rank(), 4, number, group.device())?);
            descend(&network.parameters())?;
        }
        assert_eq!(losses, wanted);
        let all: Result<Vec<Vec<f32>>> = network.module().state_dict().values().map(Tensor::to_vec).collect();
        assert_eq!(parameters, all?.concat());
        Ok(())
    });
    found.unwrap();
}

#[test]
fn whole_parameters_take_the_memory_of_two_units() {
    const BLOCKS: usize = 8;
    const SIDE: usize = 512;
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let device = group.device();
        let mut generator = Generator::new(1);
        let all = blocks(&mut generator, BLOCKS, SIDE, device)?;
        let unit: u64 = 4 * all[0].parameters().iter().map(|tensor| tensor.elements() as u64).sum::<u64>();
        let all: Result<Vec<_>> =
            all.into_iter().map(|block| fully_shard(block, &group, FullyShardOptions::default())).collect();
        let ends =
            [Linear::new(8, SIDE, &mut generator, device)?, Linear::new(SIDE, 8, &mut generator, device)?];
        let [first, last] = ends;
        let network =
            fully_shard(Network { first, blocks: all?, last }, &group, FullyShardOptions::default())?;
        let input = Tensor::ones(&[2, 8], DType::F32, device)?;
        let pass = || -> Result<()> { network.forward(&input)?.square()?.mean(&[], false)?.backward() };
        pass()?;
        network.zero_grad();
        device.synchronize()?;
        let resting = device.memory_allocated();
        // A share of each parameter, and nothing whole.
        assert!(resting < unit * BLOCKS as u64 * 6 / 10, "{resting} bytes at rest, {unit} per unit");
        device.allocator().reset_peak_memory_stats();
        no_grad(|| network.forward(&input))?;
        let forward = device.max_memory_allocated() - resting;
        assert!(forward < unit * 23 / 10, "{forward} bytes above those at rest, {unit} per unit");
        assert!(forward > unit * 19 / 10, "the next unit is gathered while one computes: {forward}");
        device.allocator().reset_peak_memory_stats();
        pass()?;
        // The gradients of the shards are there in the end, those of one unit whole, and two units.
        let shares = unit * BLOCKS as u64 / 2;
        let backward = device.max_memory_allocated() - resting;
        assert!(backward < shares + unit * 38 / 10, "{backward} bytes above those at rest, {unit} per unit");
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_add_up_and_are_reduced_once() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = sharded(&group, FullyShardOptions::default())?;
        network.set_requires_gradient_sync(false);
        step(&network, group.rank(), 2, 0, group.device())?;
        assert!(network.parameters().iter().all(|shard| shard.grad().is_none()), "nothing was reduced");
        network.set_requires_gradient_sync(true);
        step(&network, group.rank(), 2, 1, group.device())?;

        let other = plain(1, group.device())?;
        for number in 0..2 {
            step(&other, 0, 1, number, group.device())?;
        }
        let wanted: Vec<Tensor> = other.parameters().iter().filter_map(Tensor::grad).collect();
        let mut place = 0;
        for (shard, wanted) in network.parameters().iter().zip(&wanted) {
            let rows = wanted.shape()[0].div_ceil(2);
            let first = rows * group.rank() as usize;
            let own = wanted.narrow(0, first, shard.shape()[0])?;
            close(&shard.grad().expect("a gradient").to_vec::<f32>()?, &own.to_vec::<f32>()?, 2e-6);
            place += 1;
        }
        assert_eq!(place, wanted.len());
        // Two passes that are reduced each add up as well.
        network.zero_grad();
        step(&network, group.rank(), 2, 0, group.device())?;
        step(&network, group.rank(), 2, 1, group.device())?;
        let last = network.parameters().pop().expect("a parameter").grad().expect("a gradient");
        let rows = wanted[wanted.len() - 1].shape()[0].div_ceil(2);
        let wanted = wanted[wanted.len() - 1].narrow(0, rows * group.rank() as usize, last.shape()[0])?;
        close(&last.to_vec::<f32>()?, &wanted.to_vec::<f32>()?, 2e-6);
        Ok(())
    })
    .unwrap();
}

#[test]
fn computation_and_reduction_may_be_in_bfloat16() {
    let (_, wanted) = alone(3);
    let mixed_precision = MixedPrecision {
        param_dtype: Some(DType::Bf16),
        output_dtype: Some(DType::F32),
        ..MixedPrecision::default()
    };
    let options = FullyShardOptions { mixed_precision, ..FullyShardOptions::default() };
    let wide = MixedPrecision { reduce_dtype: Some(DType::F32), ..mixed_precision };
    let wide = FullyShardOptions { mixed_precision: wide, ..options };
    let run = |options| run_ranks(&simulated_devices(2).unwrap(), |group| train(&group, 3, options)).unwrap();
    let (narrow, wide) = (run(options), run(wide));
    for found in [&narrow, &wide] {
        assert_eq!(found[0].1, found[1].1);
        close(&found[0].1, &wanted, 2e-2);
        let is_rounded = found[0].1.iter().zip(&wanted).any(|(found, wanted)| (found - wanted).abs() > 1e-5);
        assert!(is_rounded, "nothing was rounded");
    }
    assert_ne!(narrow[0].1, wide[0].1, "gradients were reduced in the same dtype");
    // The shards are not: sixteen bits would lose most of their bits.
    let is_wide = |value: &f32| value.to_bits().trailing_zeros() < 16;
    assert!(narrow[0].1.iter().any(is_wide));
}

#[test]
fn norms_are_clipped_over_all_shards() {
    for (norm_type, bound) in [(2.0, 0.01), (1.0, 0.05), (f64::INFINITY, 0.003)] {
        run_ranks(&simulated_devices(4).unwrap(), |group| {
            let network = sharded(&group, FullyShardOptions::default())?;
            step(&network, 0, 1, 0, group.device())?;
            let norm = network.clip_grad_norm_(bound, norm_type)?.item::<f32>()?;
            let other = plain(1, group.device())?;
            step(&other, 0, 1, 0, group.device())?;
            let wanted = clip_grad_norm_(&other.parameters(), bound, norm_type)?.item::<f32>()?;
            assert!((norm - wanted).abs() <= 1e-5 * wanted, "{norm}, not {wanted}");
            descend(&network.parameters())?;
            descend(&other.parameters())?;
            close(&whole(&network)?, &parameter_values(&other.parameters())?, 1e-6);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn whole_states_go_to_other_numbers_of_ranks() {
    let saved = run_ranks(&simulated_devices(3).unwrap(), |group| {
        let network = sharded(&group, FullyShardOptions::default())?;
        step(&network, group.rank(), 3, 0, group.device())?;
        descend(&network.parameters())?;
        let names: Vec<String> = network.state_dict().into_keys().collect();
        assert_eq!(names, plain(1, group.device())?.state_dict().into_keys().collect::<Vec<_>>());
        // 3 rows are one per rank; 10 are 4, 4 and 2.
        let rows = network.state_dict()["blocks.0.down.bias"].shape()[0];
        assert_eq!(rows, [4, 4, 2][group.rank() as usize]);
        network
            .full_state_dict()?
            .into_iter()
            .map(|(name, tensor)| Ok((name, tensor.shape().to_vec(), tensor.to_vec::<f32>()?)))
            .collect::<Result<Vec<_>>>()
    })
    .unwrap();
    assert_eq!(saved[0], saved[2]);
    for ranks in [1, 4] {
        run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            let network = sharded(&group, FullyShardOptions::default())?;
            let state = saved[0]
                .iter()
                .map(|(name, shape, values)| {
                    Ok((name.clone(), Tensor::from_slice(values, shape, group.device())?))
                })
                .collect::<Result<_>>()?;
            network.load_full_state_dict(&state)?;
            let wanted: Vec<f32> = saved[0].iter().flat_map(|(_, _, values)| values.clone()).collect();
            assert_eq!(whole(&network)?, wanted);
            let mut short = state.clone();
            short.shift_remove("last.bias");
            assert!(network.load_full_state_dict(&short).unwrap_err().to_string().contains("Missing key(s)"));
            short.insert("last.bias".to_owned(), Tensor::zeros(&[4], DType::F32, group.device())?);
            let error = network.load_full_state_dict(&short).unwrap_err().to_string();
            assert!(error.contains("size mismatch for last.bias"), "{error}");
            Ok(())
        })
        .unwrap();
    }
}

/// A block that is checkpointed: its saved tensors are computed again in the backward pass.
struct Checkpointed(std::sync::Arc<FullyShard<Block>>);

impl Module for Checkpointed {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, thalweg_nn::module::Entry<'a>)) {
        self.0.visit(visitor);
    }

    fn visit_mut<'a>(&'a mut self, _: &mut dyn FnMut(&str, thalweg_nn::module::EntryMut<'a>)) {}
}

impl Forward for Checkpointed {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let block = self.0.clone();
        checkpoint(move |inputs| block.forward(&inputs[0]), std::slice::from_ref(input))
    }
}

#[test]
fn checkpointed_units_and_frozen_parameters_train_as_others() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let build = |seed: u64| -> Result<Network<Block>> {
            let network = plain(seed, group.device())?;
            network.blocks[1].set_requires_grad(false)?;
            network.blocks[2].up.weight.set_requires_grad(false)?;
            Ok(network)
        };
        let Network { first, blocks, last } = build(1)?;
        let options = FullyShardOptions::default();
        let blocks: Result<Vec<_>> = blocks
            .into_iter()
            .map(|block| Ok(Checkpointed(std::sync::Arc::new(fully_shard(block, &group, options)?))))
            .collect();
        let network = fully_shard(Network { first, blocks: blocks?, last }, &group, options)?;
        let other = build(1)?;
        for number in 0..3 {
            step(&network, 0, 1, number, group.device())?;
            step(&other, 0, 1, number, group.device())?;
            for ((name, shard), wanted) in network.named_parameters().iter().zip(other.parameters()) {
                let rows = wanted.shape()[0].div_ceil(2);
                let own = |tensor: Tensor| {
                    tensor.narrow(0, rows * group.rank() as usize, shard.shape()[0])?.to_vec::<f32>()
                };
                let (found, wanted) = (shard.grad(), wanted.grad());
                let found = found.map(|gradient| gradient.to_vec::<f32>()).transpose()?;
                assert_eq!(found, wanted.map(own).transpose()?, "{name}");
            }
            descend(&network.parameters())?;
            descend(&other.parameters())?;
            // Without gradients, in between.
            let (input, _) = batch(0, 1, number, group.device())?;
            let found = no_grad(|| network.forward(&input))?.to_vec::<f32>()?;
            assert_eq!(found, no_grad(|| other.forward(&input))?.to_vec::<f32>()?);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn mistakes_are_told() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        #[derive(Module)]
        struct Scaled {
            #[module(parameter)]
            scale: Tensor,
        }
        let scale = Tensor::full(&[], 1.0, DType::F32, group.device())?.requires_grad_()?;
        let error =
            fully_shard(Scaled { scale }, &group, FullyShardOptions::default()).err().expect("a scalar");
        assert!(error.to_string().contains("`scale` is a scalar"), "{error}");

        let mut network = sharded(&group, FullyShardOptions::default())?;
        let (input, _) = batch(0, 2, 0, group.device())?;
        let error = network.run(|_| network.forward(&input)).unwrap_err().to_string();
        assert!(error.contains("in a forward pass already"), "{error}");
        // The last block takes part in the forward pass alone.
        let hidden = Tensor::ones(&[2, WIDTH], DType::F32, group.device())?;
        let (kept, used) = network
            .run(|network| Ok((network.blocks[2].forward(&hidden)?, network.blocks[0].forward(&hidden)?)))?;
        used.square()?.mean(&[], false)?.backward()?;
        network.finish_backward()?;
        drop(kept);
        assert!(network.parameters()[2].grad().is_some(), "the first block's");
        step(&network, 0, 2, 0, group.device())?;

        network.to_dtype(DType::F64)?;
        let error = network.run(|_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("were replaced"), "{error}");
        Ok(())
    })
    .unwrap();
}

/// Steps with accumulation and a block on another stream, under the race checker.
fn under_schedules(group: &ProcessGroup, seed: u64) -> Result<()> {
    let options = FullyShardOptions { prefetch: (seed % 3) as usize, ..FullyShardOptions::default() };
    let network = sharded(group, options)?;
    let (current, side) = (group.device().current_stream(), Stream::new(group.device())?);
    for number in 0..2 {
        network.set_requires_gradient_sync(number > 0);
        let (input, target) = batch(group.rank(), group.size(), number, group.device())?;
        let output = network.run(|network| {
            let hidden = network.first.forward(&input)?;
            side.wait_stream(&current)?;
            let hidden = {
                let _on_side = seed.is_multiple_of(2).then(|| side.make_current());
                hidden.record_stream(&side);
                network.blocks[1].forward(&network.blocks[0].forward(&hidden)?)?
            };
            current.wait_stream(&side)?;
            let output = network.last.forward(&network.blocks[2].forward(&hidden)?)?;
            hidden.record_stream(&current);
            Ok(output)
        })?;
        loss(&output, &target)?.backward()?;
    }
    network.clip_grad_norm_(0.1, 2.0)?;
    descend(&network.parameters())?;
    let own = whole(&network)?;
    let all = group.all_gather_object(bytes(&own))?;
    assert!(all.iter().all(|other| *other == all[0]));
    Ok(())
}

#[test]
fn sharded_steps_have_no_race_under_any_schedule() {
    checked(4, 1, under_schedules);
    checked(8, 2, under_schedules);
    checked(4, 4, under_schedules);
}

fn plain_steps(group: &ProcessGroup, seed: u64) -> Result<()> {
    let options = FullyShardOptions { prefetch: (seed % 3) as usize, ..FullyShardOptions::default() };
    train(group, 3, options).map(drop)
}

#[test]
fn plain_sharded_steps_have_no_race() {
    checked(6, 2, plain_steps);
    checked(3, 4, plain_steps);
}
