//! Data parallel training in which ranks have different numbers of batches, compared with the same training on one rank.

use std::sync::Arc;

use thalweg_dist::{
    DataParallelOptions, DistributedDataParallel, JoinOptions, ProcessGroup, ReduceOp, bf16_compress_hook,
    run_ranks, simulated_devices,
};
use thalweg_nn::module::{BatchNorm1d, BatchNormOptions, Forward, Linear, Module};
use thalweg_runtime::{Device, Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{batch, bytes, checked, close, descend, loss, parameter_values as values};

#[derive(Module)]
struct Network {
    first: Linear,
    norm: Option<BatchNorm1d>,
    last: Linear,
}

impl Network {
    fn new(device: &Device, with_buffers: bool) -> Result<Self> {
        let mut generator = Generator::new(1);
        let norm =
            with_buffers.then(|| BatchNorm1d::new(8, BatchNormOptions::default(), device)).transpose()?;
        Ok(Self {
            first: Linear::new(6, 8, &mut generator, device)?,
            norm,
            last: Linear::new(8, 3, &mut generator, device)?,
        })
    }
}

impl Forward for Network {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let hidden = self.first.forward(input)?.tanh()?;
        self.last.forward(&self.norm.as_ref().map_or(Ok(hidden.clone()), |norm| norm.forward(&hidden))?)
    }
}

/// How a rank trains: its number of steps and the options.
struct Training {
    steps: [u64; 3],
    join: JoinOptions,
    options: DataParallelOptions,
    with_buffers: bool,
}

impl Default for Training {
    fn default() -> Self {
        let options = DataParallelOptions { bucket_cap_bytes: 200, ..DataParallelOptions::default() };
        Self { steps: [4, 2, 0], join: JoinOptions::default(), options, with_buffers: false }
    }
}

const ACTIVE: JoinOptions =
    JoinOptions { divide_by_initial_world_size: false, throw_on_early_termination: false };

/// Trains as a rank, then for two steps more on all ranks, and returns the parameters and buffers after each part.
fn trained(group: &ProcessGroup, training: &Training) -> Result<[Vec<f32>; 2]> {
    let network = Network::new(group.device(), training.with_buffers)?;
    let network = DistributedDataParallel::new(network, group, training.options.clone())?;
    let step = |step: u64| {
        let (input, target) = batch(group.rank(), 3, step, group.device())?;
        loss(&network.forward(&input)?, &target)?.backward()?;
        descend(&network.parameters())
    };
    let all = || -> Result<Vec<f32>> {
        let mut all = values(&network.parameters())?;
        for (_, buffer) in network.named_buffers() {
            all.extend(buffer.to_dtype(thalweg_ir::DType::F32)?.to_vec::<f32>()?);
        }
        Ok(all)
    };
    let own = training.steps[group.rank() as usize];
    let done = network.join(training.join, |_| (0..own).try_for_each(step).map(|()| own))?;
    assert_eq!(done, own);
    let joined = all()?;
    for number in 8..10 {
        step(number)?;
    }
    Ok([joined, all()?])
}

/// Trains on one device, with the inputs of the ranks that still have some.
fn alone(training: &Training) -> [Vec<f32>; 2] {
    let device = simulated_devices(1).unwrap().remove(0);
    let network = Network::new(&device, false).unwrap();
    let step = |number: u64, active: &[u32]| {
        let divisor = if training.join.divide_by_initial_world_size { 3 } else { active.len() };
        let parts = active.iter().map(|&rank| {
            let (input, target) = batch(rank, 3, number, &device)?;
            loss(&network.forward(&input)?, &target)?.div_scalar(divisor as f64)
        });
        parts.reduce(|sum, part| sum?.add(&part?)).unwrap()?.backward()?;
        descend(&network.parameters())
    };
    for number in 0.. {
        let active: Vec<u32> = (0..3).filter(|&rank| number < training.steps[rank as usize]).collect();
        if active.is_empty() {
            break;
        }
        step(number, &active).unwrap();
    }
    let joined = values(&network.parameters()).unwrap();
    for number in 8..10 {
        step(number, &[0, 1, 2]).unwrap();
    }
    [joined, values(&network.parameters()).unwrap()]
}

#[test]
fn uneven_inputs_give_the_gradients_of_all_samples() {
    for steps in [[4, 2, 0], [0, 2, 4], [1, 0, 1], [0, 0, 3], [1, 2, 2], [3, 3, 3], [0, 0, 0]] {
        for join in [JoinOptions::default(), ACTIVE] {
            let training = Training { steps, join, ..Training::default() };
            let wanted = alone(&training);
            for found in
                run_ranks(&simulated_devices(3).unwrap(), |group| trained(&group, &training)).unwrap()
            {
                close(&found[0], &wanted[0], 2e-6);
                close(&found[1], &wanted[1], 4e-6);
            }
        }
    }
}

#[test]
fn even_inputs_have_the_bits_of_training_without_a_join() {
    for join in [JoinOptions::default(), ACTIVE] {
        let training = Training { steps: [3; 3], join, with_buffers: true, ..Training::default() };
        let joined = run_ranks(&simulated_devices(3).unwrap(), |group| trained(&group, &training)).unwrap();
        let plain = run_ranks(&simulated_devices(3).unwrap(), |group| {
            let network = Network::new(group.device(), true)?;
            let network = DistributedDataParallel::new(network, &group, training.options.clone())?;
            for step in [0, 1, 2, 8, 9] {
                let (input, target) = batch(group.rank(), 3, step, group.device())?;
                loss(&network.forward(&input)?, &target)?.backward()?;
                descend(&network.parameters())?;
            }
            values(&network.parameters())
        });
        for (joined, plain) in joined.iter().zip(plain.unwrap()) {
            assert_eq!(joined[1][..plain.len()], plain);
        }
    }
}

#[test]
fn buffers_hooks_and_unused_parameters_are_joined_as_well() {
    let plain = || Training::default().options;
    let hook = DataParallelOptions { hook: Some(Arc::new(bf16_compress_hook)), ..plain() };
    let unused = DataParallelOptions { find_unused_parameters: true, ..plain() };
    let fixed = DataParallelOptions { static_graph: true, ..plain() };
    for options in [plain(), hook, unused, fixed] {
        for steps in [[4, 2, 0], [1, 0, 3], [2, 2, 1]] {
            let training =
                Training { steps, options: options.clone(), with_buffers: true, ..Training::default() };
            let found =
                run_ranks(&simulated_devices(3).unwrap(), |group| trained(&group, &training)).unwrap();
            assert_eq!(found[0][0], found[1][0], "all ranks have the last one's parameters and buffers");
            assert_eq!(found[0][0], found[2][0], "all ranks have the last one's parameters and buffers");
            let parameters = 6 * 8 + 8 + 8 + 8 + 8 * 3 + 3;
            assert_eq!(found[0][1][..parameters], found[1][1][..parameters]);
            assert_eq!(found[0][1][..parameters], found[2][1][..parameters]);
        }
    }
}

#[test]
fn all_ranks_end_early_where_that_is_asked() {
    let join = JoinOptions { throw_on_early_termination: true, ..JoinOptions::default() };
    let outcomes = run_ranks(&simulated_devices(3).unwrap(), |group| {
        let early = trained(&group, &Training { steps: [3, 1, 3], join, ..Training::default() }).err();
        // With equal numbers of inputs there is no error.
        trained(&group, &Training { steps: [2; 3], join, ..Training::default() })?;
        Ok(early.map(|error| error.to_string()))
    });
    for outcome in outcomes.unwrap() {
        let text = outcome.expect("an error on each rank");
        assert!(text.contains("Detected at least one rank that exhausted inputs"), "{text}");
        assert!(text.contains("the ranks [1]"), "{text}");
    }
}

#[test]
fn an_error_of_a_loop_is_the_programs() {
    let outcome = run_ranks(&simulated_devices(2).unwrap(), |group| {
        let network = DistributedDataParallel::new(
            Network::new(group.device(), false)?,
            &group,
            DataParallelOptions::default(),
        )?;
        network.join(JoinOptions::default(), |network| {
            let nested = network.join(JoinOptions::default(), |_| Ok(())).unwrap_err().to_string();
            assert!(nested.contains("in a join already"), "{nested}");
            if group.rank() == 1 { Err(Error::invalid("the file ends here")) } else { Ok(()) }
        })
    });
    let text = outcome.unwrap_err().to_string();
    assert!(text.contains("rank 1") && text.contains("the file ends here"), "{text}");
}

fn uneven(group: &ProcessGroup, seed: u64) -> Result<()> {
    let join = if seed.is_multiple_of(2) { ACTIVE } else { JoinOptions::default() };
    let steps = [1 + seed % 3, seed / 3 % 3, 1];
    let own = trained(group, &Training { steps, join, with_buffers: true, ..Training::default() })?;
    let all = group.all_gather_object(bytes(&own[0]))?;
    assert_eq!(all[0], all[2]);
    group.all_reduce(&Tensor::from_slice(&[1.0f32], &[1], group.device())?, ReduceOp::Sum)?.wait()
}

#[test]
fn a_join_has_no_race_under_any_schedule() {
    checked(9, 3, uneven);
}
