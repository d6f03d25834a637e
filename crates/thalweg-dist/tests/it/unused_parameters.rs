//! Data parallel training whose passes skip parameters, compared with one rank that computes the parts of all ranks.

use thalweg_dist::{
    DataParallelOptions, DistributedDataParallel, JoinOptions, LockstepGraph, ProcessGroup, run_ranks,
    simulated_devices,
};
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_runtime::{CaptureOptions, Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{batch, bytes, checked, close, descend, loss, parameter_values};

/// Layers of which a pass uses some: bit `i` of a choice is set if the layer `i` is used.
#[derive(Module)]
struct Branches {
    branches: Vec<Linear>,
    last: Linear,
}

const BRANCHES: usize = 4;

impl Branches {
    fn new(device: &Device) -> Result<Self> {
        let mut generator = Generator::new(5);
        let branches = (0..BRANCHES).map(|_| Linear::new(6, 6, &mut generator, device));
        Ok(Self {
            branches: branches.collect::<Result<_>>()?,
            last: Linear::new(6, 3, &mut generator, device)?,
        })
    }

    fn through(&self, input: &Tensor, choice: u32) -> Result<Tensor> {
        let mut sum = input.clone();
        for branch in (0..BRANCHES).filter(|branch| choice >> branch & 1 == 1) {
            sum = sum.add(&self.branches[branch].forward(input)?.tanh()?)?;
        }
        self.last.forward(&sum)
    }
}

/// Returns the layers that a rank uses in a step. All combinations occur, also one in which no rank uses any layer.
fn choice(rank: u32, step: u64) -> u32 {
    [[0b0000, 0b1000, 0b0001], [0b0110, 0b0010, 0b0000], [0b1111, 0b1111, 0b1111], [0b0001, 0b0001, 0b0001]]
        [step as usize % 4][rank as usize % 3]
}

fn options() -> DataParallelOptions {
    DataParallelOptions { bucket_cap_bytes: 200, ..DataParallelOptions::default() }
}

fn finding() -> DataParallelOptions {
    DataParallelOptions { find_unused_parameters: true, ..options() }
}

fn steady() -> DataParallelOptions {
    DataParallelOptions { static_graph: true, ..options() }
}

fn wrapped(group: &ProcessGroup, options: DataParallelOptions) -> Result<DistributedDataParallel<Branches>> {
    DistributedDataParallel::new(Branches::new(group.device())?, group, options)
}

/// Computes a rank's gradients of a step.
fn pass(network: &DistributedDataParallel<Branches>, step: u64, choice: u32) -> Result<()> {
    let group = network.group();
    pass_with(network, &batch(group.rank(), group.size(), step, group.device())?, choice)
}

fn pass_with(
    network: &DistributedDataParallel<Branches>,
    (input, target): &(Tensor, Tensor),
    choice: u32,
) -> Result<()> {
    let output = network.run(|network| {
        let output = network.through(input, choice)?;
        Ok((output.clone(), vec![output]))
    })?;
    loss(&output, target)?.backward()
}

/// Returns the gradients of parameters, `None` if there is no gradient.
fn gradients(module: &impl Module) -> Result<Vec<Option<Vec<f32>>>> {
    module
        .parameters()
        .iter()
        .map(|parameter| parameter.grad().map(|grad| grad.to_vec()).transpose())
        .collect()
}

/// Trains alone with the parts of all ranks, and returns the gradients of each step.
fn alone(ranks: u32, steps: u64, choice: fn(u32, u64) -> u32) -> Vec<Vec<Option<Vec<f32>>>> {
    let device = simulated_devices(1).unwrap().remove(0);
    let network = Branches::new(&device).unwrap();
    let step = |step: u64| {
        for rank in 0..ranks {
            let (input, target) = batch(rank, ranks, step, &device)?;
            let loss = loss(&network.through(&input, choice(rank, step))?, &target)?;
            loss.div_scalar(f64::from(ranks))?.backward()?;
        }
        let found = gradients(&network)?;
        descend(&network.parameters())?;
        Ok(found)
    };
    (0..steps).map(step).collect::<Result<_>>().unwrap()
}

#[track_caller]
fn all_close(found: &[Option<Vec<f32>>], wanted: &[Option<Vec<f32>>]) {
    assert_eq!(found.len(), wanted.len());
    for (number, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        match (found, wanted) {
            (Some(found), Some(wanted)) => close(found, wanted, 2e-6),
            (found, wanted) => {
                assert_eq!(found.is_some(), wanted.is_some(), "parameter {number}");
            }
        }
    }
}

/// Trains as one of several ranks, and returns the gradients of each step.
fn trained(
    group: &ProcessGroup,
    steps: u64,
    options: DataParallelOptions,
    choice: fn(u32, u64) -> u32,
) -> Result<Vec<Vec<Option<Vec<f32>>>>> {
    let network = wrapped(group, options)?;
    let step = |step: u64| {
        pass(&network, step, choice(group.rank(), step))?;
        let found = gradients(network.module())?;
        descend(&network.parameters())?;
        Ok(found)
    };
    (0..steps).map(step).collect()
}

fn compared(options: &DataParallelOptions, choice: fn(u32, u64) -> u32) {
    for ranks in [1, 2, 3] {
        let wanted = alone(ranks, 6, choice);
        let found = run_ranks(&simulated_devices(ranks).unwrap(), |group| {
            trained(&group, 6, options.clone(), choice)
        });
        for found in found.unwrap() {
            found.iter().zip(&wanted).for_each(|(found, wanted)| all_close(found, wanted));
        }
    }
}

#[test]
fn gradients_are_those_of_one_rank_whatever_each_rank_uses() {
    compared(&finding(), choice);
}

#[test]
fn ranks_of_a_static_graph_may_use_different_parameters() {
    compared(&steady(), |rank, _| [0b0001, 0b1001, 0b0000][rank as usize]);
    // Beside it, finding has no effect.
    let both = DataParallelOptions { find_unused_parameters: true, ..steady() };
    compared(&both, |rank, _| [0b0111, 0b0110, 0b0111][rank as usize]);
}

#[test]
fn buckets_are_small_where_parameters_are_unused() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let (branch, last) = (4 * (36 + 6), 4 * (18 + 3));
        // From the last parameter to the first, each until it has 200 bytes.
        let found = wrapped(&group, finding())?;
        let buckets = found.bucket_bytes();
        assert_eq!(buckets, [last + branch, 2 * branch, branch]);
        pass(&found, 0, 0b0001)?;
        pass(&found, 1, 0b0001)?;
        assert_eq!(found.bucket_bytes(), buckets, "they stay");

        // In the order of the first pass, followed by the parameters that rank 0 does not use.
        let network = wrapped(&group, steady())?;
        assert_eq!(network.bucket_bytes(), [last + BRANCHES * branch]);
        pass(&network, 0, 0b1000)?;
        pass(&network, 1, 0b1000)?;
        let first_two = branch + 4 * 36;
        assert_eq!(network.bucket_bytes(), [last + branch, first_two, 3 * branch - first_two]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_no_rank_uses_stays_as_it_is() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        for options in [finding(), steady()] {
            let network = wrapped(&group, options)?;
            let kept = network.module().branches[2].parameters();
            for step in 0..3 {
                let own = Tensor::full(
                    kept[0].shape(),
                    group.rank() as f32 + 3.0,
                    kept[0].dtype(),
                    group.device(),
                )?;
                kept[0].set_grad(Some(own.clone()))?;
                pass(&network, step, 0b0001)?;
                assert_eq!(kept[0].grad().expect("it had one").to_vec::<f32>()?, own.to_vec::<f32>()?);
                assert!(kept[1].grad().is_none());
                descend(&network.parameters())?;
            }
        }
        Ok(())
    })
    .unwrap();
}

/// A parameter that was used without a reduction alone is reduced by the next pass.
#[test]
fn a_use_without_sync_counts() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = wrapped(&group, finding())?;
        let choice = |rank: u32, step: u64| if rank == 1 && step == 0 { 0b0100 } else { 0b0000 };
        network.no_sync(|network| pass(network, 0, choice(group.rank(), 0)))?;
        pass(&network, 1, choice(group.rank(), 1))?;
        let plain = Branches::new(group.device())?;
        for (rank, step) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let (input, target) = batch(rank, 2, step, group.device())?;
            let loss = loss(&plain.through(&input, choice(rank, step))?, &target)?;
            loss.div_scalar(2.0)?.backward()?;
        }
        let found = gradients(network.module())?;
        assert!(found[4].is_some());
        all_close(&found, &gradients(&plain)?);
        // It does not count again.
        descend(&network.parameters())?;
        pass(&network, 2, 0)?;
        assert!(gradients(network.module())?[4].is_none());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_static_graph_is_captured_with_the_bits_of_eager_steps() {
    let train = |is_captured: bool| {
        run_ranks(&simulated_devices(3).unwrap(), |group| {
            let network = wrapped(&group, steady())?;
            let choice = [0b0011, 0b0010, 0b0000][group.rank() as usize];
            let batch = batch(group.rank(), 3, 0, group.device())?;
            let step = || {
                pass_with(&network, &batch, choice)?;
                descend(&network.parameters())
            };
            (0..2).try_for_each(|_| step())?;
            if is_captured {
                let (graph, ()) = LockstepGraph::capture(&group, CaptureOptions::default(), step)?;
                (0..3).try_for_each(|_| graph.replay())?;
                graph.verify()?;
            } else {
                (0..3).try_for_each(|_| step())?;
            }
            parameter_values(&network.parameters())
        })
        .unwrap()
    };
    assert_eq!(train(true), train(false));
}

#[test]
fn changed_graphs_and_captures_that_cannot_be_are_named() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = wrapped(&group, steady())?;
        pass(&network, 0, 0b0001)?;
        let error = pass(&network, 1, 0b0011).unwrap_err().to_string();
        assert!(error.contains("Your training graph has changed in this iteration"), "{error}");
        assert!(error.contains("index 2") || error.contains("index 3"), "{error}");

        let network = wrapped(&group, steady())?;
        pass(&network, 0, 0b0011)?;
        pass(&network, 1, 0b0001)?;
        let error = pass(&network, 2, 0b0001).unwrap_err().to_string();
        assert!(error.contains("parameters of the first pass were not used in this one"), "{error}");
        assert!(error.contains("[2, 3]"), "{error}");

        let network = wrapped(&group, finding())?;
        let (input, target) = batch(group.rank(), 2, 0, group.device())?;
        let output = network.run(|network| Ok((network.through(&input, 0b0001)?, Vec::new())))?;
        let error = loss(&output, &target)?.backward().unwrap_err().to_string();
        assert!(error.contains("return all tensors that the loss is computed from"), "{error}");

        let network = wrapped(&group, finding())?;
        (0..2).try_for_each(|step| pass(&network, step, 0b0001))?;
        let batch = (input, target);
        let captured =
            LockstepGraph::capture(&group, CaptureOptions::default(), || pass_with(&network, &batch, 0b0001));
        let error = captured.map(drop).unwrap_err().to_string();
        assert!(error.contains("Set static_graph"), "{error}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_that_are_through_take_part_in_the_map() {
    for options in [finding(), steady()] {
        let found = run_ranks(&simulated_devices(3).unwrap(), |group| {
            let network = wrapped(&group, options.clone())?;
            let steps = [0, 3, 1][group.rank() as usize];
            network.join(JoinOptions::default(), |network| {
                (0..steps).try_for_each(|step| {
                    pass(network, step, 0b0100)?;
                    assert!(gradients(network.module())?[0].is_none());
                    descend(&network.parameters())
                })
            })?;
            for step in 4..6 {
                pass(&network, step, 0b0100)?;
                descend(&network.parameters())?;
            }
            parameter_values(&network.parameters())
        })
        .unwrap();
        assert_eq!(found[0], found[1]);
        assert_eq!(found[0], found[2]);
    }
}

fn steps(group: &ProcessGroup, seed: u64) -> Result<()> {
    let options = if seed.is_multiple_of(2) { finding() } else { steady() };
    let found = match seed.is_multiple_of(2) {
        true => trained(group, 3, options, choice)?,
        false => trained(group, 3, options, |rank, _| 1 << rank)?,
    };
    let own: Vec<f32> = found.into_iter().flatten().flatten().flatten().collect();
    let all = group.all_gather_object(bytes(&own))?;
    assert_eq!(all[0], all[1]);
    Ok(())
}

#[test]
fn passes_with_unused_parameters_have_no_race() {
    checked(12, 2, steps);
}
