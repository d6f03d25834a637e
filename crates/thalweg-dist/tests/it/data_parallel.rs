//! Data parallel training against the same training by one rank with the whole batch.

use std::sync::Arc;

use thalweg_dist::{
    DataParallelOptions, DistributedDataParallel, ProcessGroup, bf16_compress_hook, run_ranks,
    simulated_devices,
};
use thalweg_ir::DType;
use thalweg_nn::module::{BatchNorm1d, BatchNormOptions, Forward, Linear, Module};
use thalweg_nn::optim::{Adam, AdamOptions};
use thalweg_runtime::{Device, Result, Stream};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{batch, bytes, checked, close, descend, loss, parameter_values as values};

/// Three layers, one of which a forward pass may skip.
#[derive(Module)]
struct Network {
    first: Linear,
    middle: Linear,
    last: Linear,
}

impl Network {
    fn new(seed: u64, device: &Device) -> Result<Self> {
        let mut generator = Generator::new(seed);
        Ok(Self {
            first: Linear::new(6, 8, &mut generator, device)?,
            middle: Linear::new(8, 8, &mut generator, device)?,
            last: Linear::new(8, 3, &mut generator, device)?,
        })
    }

    fn through(&self, input: &Tensor, with_middle: bool) -> Result<Tensor> {
        let hidden = self.first.forward(input)?.tanh()?;
        let hidden = if with_middle { self.middle.forward(&hidden)?.tanh()? } else { hidden };
        self.last.forward(&hidden)
    }
}

impl Forward for Network {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.through(input, true)
    }
}

/// Trains on one rank with the entire batch.
fn alone(steps: u64) -> Result<Vec<f32>> {
    let device = simulated_devices(1)?.remove(0);
    let network = Network::new(1, &device)?;
    for step in 0..steps {
        let (input, target) = batch(0, 1, step, &device)?;
        loss(&network.forward(&input)?, &target)?.backward()?;
        descend(&network.parameters())?;
    }
    values(&network.parameters())
}

fn options() -> DataParallelOptions {
    // Small buckets, so that there are several.
    DataParallelOptions { bucket_cap_bytes: 256, ..DataParallelOptions::default() }
}

/// Trains as one of several ranks. Each rank starts with parameters of its own, which rank 0's replace.
fn train(group: &ProcessGroup, steps: u64, options: DataParallelOptions) -> Result<Vec<f32>> {
    let network = Network::new(1 + u64::from(group.rank()), group.device())?;
    let network = DistributedDataParallel::new(network, group, options)?;
    for step in 0..steps {
        let (input, target) = batch(group.rank(), group.size(), step, group.device())?;
        loss(&network.forward(&input)?, &target)?.backward()?;
        descend(&network.parameters())?;
    }
    values(&network.parameters())
}

#[test]
fn ranks_train_as_one_with_the_whole_batch() {
    let wanted = alone(4).unwrap();
    for ranks in [1, 2, 3, 4] {
        let found =
            run_ranks(&simulated_devices(ranks).unwrap(), |group| train(&group, 4, options())).unwrap();
        for parameters in &found {
            assert_eq!(parameters, &found[0], "the ranks have the same bits");
            close(parameters, &wanted, 2e-6);
        }
    }
}

#[test]
fn buckets_are_rebuilt_in_the_order_in_which_gradients_come() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = DistributedDataParallel::new(Network::new(1, group.device())?, &group, options())?;
        let sizes = |weights: [usize; 3]| weights.map(|elements| 4 * elements);
        let [first, middle, last] = sizes([6 * 8 + 8, 8 * 8 + 8, 8 * 3 + 3]);
        assert_eq!(network.bucket_bytes(), [first + middle + last], "one before the order is known");
        for step in 0..2 {
            let (input, target) = batch(group.rank(), 2, step, group.device())?;
            loss(&network.forward(&input)?, &target)?.backward()?;
        }
        let buckets = network.bucket_bytes();
        assert_eq!(buckets.iter().sum::<usize>(), first + middle + last);
        assert!(buckets.len() >= 2, "{buckets:?}");
        // The last layer's gradients come first: they alone do not fill a bucket.
        assert!(buckets[0] >= 256 && buckets[0] > last, "{buckets:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn without_sync_gradients_accumulate_and_are_reduced_once() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = DistributedDataParallel::new(Network::new(1, group.device())?, &group, options())?;
        let pass = |network: &DistributedDataParallel<Network>, step: u64| -> Result<()> {
            let (input, target) = batch(group.rank(), 2, step, group.device())?;
            loss(&network.forward(&input)?, &target)?.backward()
        };
        network.no_sync(|network| pass(network, 0))?;
        let own = values(&[network.parameters()[0].grad().expect("a gradient")])?;
        let theirs = group.all_gather_object(bytes(&own))?;
        assert_ne!(theirs[0], theirs[1], "nothing was reduced yet");
        pass(&network, 1)?;
        let gradients: Vec<Tensor> =
            network.parameters().iter().map(|parameter| parameter.grad().expect("a gradient")).collect();
        let found = values(&gradients)?;

        let plain = Network::new(1, group.device())?;
        for step in 0..2 {
            let (input, target) = batch(0, 1, step, group.device())?;
            loss(&plain.forward(&input)?, &target)?.backward()?;
        }
        let wanted: Vec<Tensor> = plain.parameters().iter().filter_map(Tensor::grad).collect();
        close(&found, &values(&wanted)?, 2e-6);
        Ok(())
    })
    .unwrap();
}

#[test]
fn unused_parameters_are_found_or_named() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let rank = group.rank();
        let pass = |network: &DistributedDataParallel<Network>, step: u64, with_middle: bool| -> Result<()> {
            let (input, target) = batch(rank, 2, step, group.device())?;
            let output = network.run(|network| {
                let output = network.through(&input, with_middle)?;
                Ok((output.clone(), vec![output]))
            })?;
            loss(&output, &target)?.backward()
        };
        let finding = DataParallelOptions { find_unused_parameters: true, ..options() };
        let network = DistributedDataParallel::new(Network::new(1, group.device())?, &group, finding)?;
        // Rank 1 alone uses the middle layer: its gradient is half of rank 1's on both.
        pass(&network, 0, rank == 1)?;
        let middle = network.module().middle.parameters();
        let found = values(&[middle[0].grad().expect("one rank has used it")])?;
        let all = group.all_gather_object(bytes(&found))?;
        assert_eq!(all[0], all[1]);
        assert!(found.iter().any(|&value| value != 0.0));
        // No rank uses it: it gets no gradient.
        network.zero_grad();
        pass(&network, 1, false)?;
        assert!(middle[0].grad().is_none() && network.module().last.parameters()[0].grad().is_some());
        // All use it.
        pass(&network, 2, true)?;
        assert!(middle[0].grad().is_some());

        let steady = DataParallelOptions { static_graph: true, ..options() };
        let network = DistributedDataParallel::new(Network::new(1, group.device())?, &group, steady)?;
        for step in 0..3 {
            pass(&network, step, false)?;
            assert!(network.module().middle.parameters()[0].grad().is_none());
            descend(&network.parameters())?;
        }

        let network = DistributedDataParallel::new(Network::new(1, group.device())?, &group, options())?;
        pass(&network, 0, false)?;
        let error = pass(&network, 1, false).unwrap_err().to_string();
        assert!(error.contains("Expected to have finished reduction in the prior iteration"), "{error}");
        assert!(error.contains("find_unused_parameters") && error.contains("[2, 3]"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_hook_may_reduce_in_bfloat16() {
    let wanted = alone(2).unwrap();
    let found = run_ranks(&simulated_devices(2).unwrap(), |group| {
        train(&group, 2, DataParallelOptions { hook: Some(Arc::new(bf16_compress_hook)), ..options() })
    })
    .unwrap();
    assert_eq!(found[0], found[1]);
    close(&found[0], &wanted, 5e-3);
    assert!(
        found[0].iter().zip(&wanted).any(|(found, wanted)| (found - wanted).abs() > 1e-5),
        "nothing was rounded"
    );
}

#[derive(Module)]
struct Normed {
    norm: BatchNorm1d,
    linear: Linear,
}

impl Forward for Normed {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.linear.forward(&self.norm.forward(input)?)
    }
}

#[test]
fn buffers_are_rank_0s_and_modules_must_agree() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let mut generator = Generator::new(3);
        let (norm, linear) = (
            BatchNorm1d::new(6, BatchNormOptions::default(), group.device())?,
            Linear::new(6, 3, &mut generator, group.device())?,
        );
        let network = DistributedDataParallel::new(Normed { norm, linear }, &group, options())?;
        let mut running = Vec::new();
        for step in 0..2 {
            let (input, _) = batch(group.rank(), 2, step, group.device())?;
            network.forward(&input)?.square()?.mean(&[], false)?.backward()?;
            let (_, mean) = network.named_buffers().remove(0);
            running.push(mean.to_vec::<f32>()?);
        }
        let all = group.all_gather_object(bytes(&running[0]))?;
        assert_ne!(all[0], all[1], "each rank has seen its own batch since");
        let (input, _) = batch(group.rank(), 2, 9, group.device())?;
        drop(network.forward(&input)?);
        assert_eq!(network.state_dict().keys().next().unwrap(), "module.norm.weight");

        let wide = Linear::new(6, 3 + group.rank() as usize, &mut generator, group.device())?;
        let error =
            DistributedDataParallel::new(wide, &group, options()).err().expect("they differ").to_string();
        assert!(
            error.contains("DDP expects same model across all ranks") && error.contains("weight [4, 6]"),
            "{error}"
        );
        Ok(())
    })
    .unwrap();
}

/// Runs a step whose forward pass is on two streams, under the race checker.
fn streams(group: &ProcessGroup, seed: u64) -> Result<()> {
    let network = DistributedDataParallel::new(Network::new(1, group.device())?, group, options())?;
    let (current, side) = (group.device().current_stream(), Stream::new(group.device())?);
    for step in 0..2 {
        let (input, target) = batch(group.rank(), group.size(), step, group.device())?;
        let output = network.run(|network| {
            let hidden = network.first.forward(&input)?.tanh()?;
            side.wait_stream(&current)?;
            let hidden = {
                let _on_side = (seed.is_multiple_of(2)).then(|| side.make_current());
                let next = network.middle.forward(&hidden)?.tanh()?;
                hidden.record_stream(&side);
                next
            };
            current.wait_stream(&side)?;
            let output = network.last.forward(&hidden)?;
            hidden.record_stream(&current);
            Ok((output.clone(), vec![output]))
        })?;
        loss(&output, &target)?.backward()?;
        descend(&network.parameters())?;
    }
    let own = values(&network.parameters())?;
    let all = group.all_gather_object(bytes(&own))?;
    assert_eq!(all[0], all[1]);
    Ok(())
}

#[test]
fn steps_have_no_race_under_any_schedule() {
    checked(12, 2, streams);
}

fn plain_steps(group: &ProcessGroup, _: u64) -> Result<()> {
    drop(train(group, 3, options())?);
    let wide = Tensor::zeros(&[2], DType::F32, group.device())?;
    group.all_reduce(&wide, thalweg_dist::ReduceOp::Avg)?.wait()
}

#[test]
fn training_has_no_race_on_three_ranks() {
    checked(8, 3, plain_steps);
}

/// Trains with Adam, whose steps are the module's or the program's.
fn steps_of_adam(group: &ProcessGroup, is_fused: bool) -> Result<Vec<f32>> {
    let network = DistributedDataParallel::new(Network::new(1, group.device())?, group, options())?;
    let optimizer = Arc::new(Adam::new(network.parameters(), AdamOptions::default())?);
    if is_fused {
        network.register_fused_optim(&optimizer)?;
    }
    for step in 0..4 {
        let (input, target) = batch(group.rank(), group.size(), step, group.device())?;
        optimizer.zero_grad();
        // One pass more, whose gradients are reduced with those of the next.
        network.no_sync(|network| loss(&network.forward(&input)?, &target)?.backward())?;
        loss(&network.forward(&input)?, &target)?.backward()?;
        if !is_fused {
            optimizer.step()?;
        }
    }
    values(&network.parameters())
}

#[test]
fn an_optimizer_steps_each_bucket_when_it_has_been_reduced() {
    let steps =
        |is_fused| run_ranks(&simulated_devices(2).unwrap(), move |group| steps_of_adam(&group, is_fused));
    let (fused, plain) = (steps(true).unwrap(), steps(false).unwrap());
    assert_eq!(fused, plain, "the same bits");
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = DistributedDataParallel::new(Network::new(1, group.device())?, &group, options())?;
        let other = Network::new(2, group.device())?;
        let adam = |parameters| Adam::new(parameters, AdamOptions::default()).map(Arc::new);
        let error = network.register_fused_optim(&adam(other.parameters())?).unwrap_err();
        assert!(
            error.is_invalid_argument() && error.to_string().contains("nothing would step it"),
            "{error}"
        );
        network.register_fused_optim(&adam(network.parameters())?)?;
        let error = network.register_fused_optim(&adam(network.parameters())?).unwrap_err();
        assert!(error.to_string().contains("has such an optimizer already"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn steps_of_buckets_have_no_race_under_any_schedule() {
    checked(30, 2, |group, _| steps_of_adam(group, true).map(drop));
}
