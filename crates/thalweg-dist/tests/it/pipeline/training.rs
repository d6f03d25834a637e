//! Training by pipeline stages, compared with all stages on one device with the same microbatches.

use thalweg_dist::pipeline::{Pipeline, PipelineOptions, PipelineStage, Schedule};
use thalweg_dist::{ProcessGroup, run_ranks, simulated_devices};
use thalweg_nn::module::{Forward, Linear, Module};
use thalweg_runtime::{Device, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::random::Generator;

use crate::support::{batch, checked, close, descend, loss, parameter_values as values};

/// The layers of a stage: 6 features in the first, 8 between stages, 3 after the last.
#[derive(Module)]
pub struct Layers {
    first: Linear,
    last: Linear,
}

impl Layers {
    pub fn new(stage: usize, stages: usize, device: &Device) -> Result<Self> {
        let mut generator = Generator::new(stage as u64);
        let inputs = if stage == 0 { 6 } else { 8 };
        let outputs = if stage + 1 == stages { 3 } else { 8 };
        Ok(Self {
            first: Linear::new(inputs, 5, &mut generator, device)?,
            last: Linear::new(5, outputs, &mut generator, device)?,
        })
    }
}

impl Forward for Layers {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.last.forward(&self.first.forward(input)?.tanh()?)
    }
}

/// The results of training: the losses, and the parameters by stage, none of stages that are elsewhere.
pub struct Trained {
    pub losses: Vec<f32>,
    pub parameters: Vec<Vec<f32>>,
}

/// Trains on one device, microbatch by microbatch, in the order in which most schedules run the backward passes.
fn alone(device: &Device, stages: usize, microbatches: usize, steps: u64) -> Result<Trained> {
    let layers: Vec<Layers> =
        (0..stages).map(|stage| Layers::new(stage, stages, device)).collect::<Result<_>>()?;
    let parameters: Vec<Tensor> = layers.iter().flat_map(Module::parameters).collect();
    let mut losses = Vec::new();
    for step in 0..steps {
        let (input, target) = batch(0, 1, step, device)?;
        let rows = 12 / microbatches;
        for microbatch in 0..microbatches {
            let input = input.narrow(0, microbatch * rows, rows)?;
            let output = layers.iter().try_fold(input, |hidden: Tensor, layer| layer.forward(&hidden))?;
            let loss = loss(&output, &target.narrow(0, microbatch * rows, rows)?)?;
            loss.backward()?;
            losses.push(loss.detach().item()?);
        }
        for parameter in &parameters {
            let gradient = parameter.grad().expect("every parameter is used");
            parameter.set_grad(Some(gradient.div_scalar(microbatches as f64)?))?;
        }
        descend(&parameters)?;
    }
    let parameters = layers.iter().map(|layers| values(&layers.parameters())).collect::<Result<_>>()?;
    Ok(Trained { losses, parameters })
}

/// Trains as one rank.
fn as_rank(group: &ProcessGroup, schedule: &Schedule, steps: u64) -> Result<Trained> {
    let (device, stages) = (group.device(), schedule.stages());
    let own = schedule.stages_of(group.rank() as usize)?;
    let layers: Vec<Layers> =
        own.iter().map(|&stage| Layers::new(stage, stages, device)).collect::<Result<_>>()?;
    let parts = own.iter().zip(&layers).map(|(&stage, layers)| PipelineStage::new(layers, stage, stages));
    let mut pipeline =
        Pipeline::new(schedule, parts.collect::<Result<_>>()?, group, PipelineOptions::with_loss(loss))?;
    let mut losses = Vec::new();
    for step in 0..steps {
        let (input, target) = batch(0, 1, step, device)?;
        let output = pipeline.step(Some(&input), Some(&target))?;
        for layers in &layers {
            descend(&layers.parameters())?;
        }
        for loss in output.losses() {
            losses.push(loss.item()?);
        }
    }
    let mut parameters = vec![Vec::new(); stages];
    for (stage, layers) in own.into_iter().zip(&layers) {
        parameters[stage] = values(&layers.parameters())?;
    }
    Ok(Trained { losses, parameters })
}

/// Asserts that a rank's losses and parameters have the bits of the run on one device.
fn same_as_alone(group: &ProcessGroup, schedule: &Schedule, steps: u64) -> Result<()> {
    let Trained { losses, parameters } = as_rank(group, schedule, steps)?;
    let wanted = alone(group.device(), schedule.stages(), schedule.microbatches(), steps)?;
    if schedule.check()?.last() == Some(&(group.rank() as usize)) {
        assert_eq!(losses, wanted.losses);
    } else {
        assert!(losses.is_empty());
    }
    for (stage, &rank) in schedule.check()?.iter().enumerate() {
        if rank == group.rank() as usize {
            assert_eq!(parameters[stage], wanted.parameters[stage], "stage {stage}");
        }
    }
    Ok(())
}

#[test]
fn gpipe_has_the_bits_of_one_device_under_every_seed() {
    checked(12, 3, |group, _| same_as_alone(group, &Schedule::gpipe(3, 4)?, 2));
}

#[test]
fn one_f_one_b_has_the_bits_of_one_device_under_every_seed() {
    checked(12, 3, |group, _| same_as_alone(group, &Schedule::one_f_one_b(3, 6)?, 2));
}

#[test]
fn interleaved_stages_have_the_bits_of_one_device_under_every_seed() {
    checked(8, 2, |group, _| same_as_alone(group, &Schedule::interleaved(2, 2, 4)?, 2));
    checked(6, 3, |group, _| same_as_alone(group, &Schedule::interleaved(3, 2, 6)?, 2));
}

#[test]
fn zero_bubble_schedules_have_the_bits_of_one_device_under_every_seed() {
    checked(8, 3, |group, _| same_as_alone(group, &Schedule::zero_bubble(3, 1, 4)?, 2));
    checked(6, 2, |group, _| same_as_alone(group, &Schedule::zero_bubble(2, 2, 4)?, 2));
    checked(6, 2, |group, _| same_as_alone(group, &Schedule::zbv(2, 4)?, 2));
}

#[test]
fn all_numbers_of_ranks_and_microbatches_train_alike() {
    for (ranks, microbatches) in [(1, 3), (2, 1), (2, 6), (4, 4), (4, 12), (5, 2)] {
        run_ranks(&simulated_devices(ranks as u32).unwrap(), |group| {
            same_as_alone(&group, &Schedule::one_f_one_b(ranks, microbatches)?, 3)?;
            same_as_alone(&group, &Schedule::gpipe(ranks, microbatches)?, 3)
        })
        .unwrap();
    }
}

#[test]
fn microbatches_that_come_back_in_another_order_are_the_same_batch() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let schedule = Schedule::looped_bfs(2, 2, 4)?;
        let found = as_rank(&group, &schedule, 3)?.parameters;
        let wanted = alone(group.device(), 4, 4, 3)?.parameters;
        for stage in [group.rank() as usize, 2 + group.rank() as usize] {
            close(&found[stage], &wanted[stage], 1e-6);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_weight_that_the_first_and_the_last_stage_share_gets_the_gradients_of_both() {
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let (rank, device) = (group.rank() as usize, group.device());
        let layer = |seed: u64| Linear::new(6, 6, &mut Generator::new(seed), device);
        // Rank 0 has the stages 0 and 3 of the V, rank 1 those in the middle.
        let (tied, middle) = (layer(1)?, layer(2)?);
        let module = if rank == 0 { &tied } else { &middle };
        let stage =
            |index: usize| PipelineStage::with(module, index, 4, |input| module.forward(input)?.tanh());
        let stages = vec![stage(rank)?, stage(3 - rank)?];
        let options = PipelineOptions::with_loss(loss);
        let mut pipeline = Pipeline::new(&Schedule::zbv(2, 4)?, stages, &group, options)?;
        let input = batch(0, 1, 0, device)?.0;
        pipeline.step(Some(&input), Some(&input))?;
        let (one, two) = (layer(1)?, layer(2)?);
        let whole = [&one, &two, &two, &one]
            .into_iter()
            .try_fold(input.clone(), |hidden: Tensor, layer| layer.forward(&hidden)?.tanh())?;
        loss(&whole, &input)?.backward()?;
        let wanted = if rank == 0 { &one } else { &two };
        for (found, wanted) in module.parameters().iter().zip(wanted.parameters()) {
            let gradient = |tensor: &Tensor| tensor.grad().expect("a gradient").to_vec::<f32>();
            close(&gradient(found)?, &gradient(&wanted)?, 1e-6);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn an_evaluation_runs_forward_only_and_leaves_no_gradients() {
    run_ranks(&simulated_devices(3).unwrap(), |group| {
        let (rank, device) = (group.rank() as usize, group.device());
        let layers = Layers::new(rank, 3, device)?;
        let stage = PipelineStage::new(&layers, rank, 3)?;
        let schedule = Schedule::one_f_one_b(3, 4)?;
        let mut pipeline = Pipeline::new(&schedule, vec![stage], &group, PipelineOptions::with_loss(loss))?;
        let (input, target) = batch(0, 1, 0, device)?;
        let output = pipeline.eval(Some(&input), Some(&target))?;
        assert!(layers.parameters().iter().all(|parameter| parameter.grad().is_none()));
        let mean = output.mean_loss()?.map(|loss| loss.item::<f32>()).transpose()?;
        let merged = output.merged()?;
        assert_eq!((mean.is_some(), merged.is_some()), (rank == 2, rank == 2));
        if let (Some(mean), Some(merged)) = (mean, merged) {
            let all = (0..3).map(|stage| Layers::new(stage, 3, device)).collect::<Result<Vec<_>>>()?;
            let whole = all.iter().try_fold(input.clone(), |hidden, layers| layers.forward(&hidden))?;
            close(&merged.to_vec::<f32>()?, &whole.detach().to_vec::<f32>()?, 1e-6);
            close(&[mean], &[loss(&whole, &target)?.item()?], 1e-6);
        }
        // Without a target there is no loss, and with the next step there are gradients.
        assert!(pipeline.eval(Some(&input), None)?.losses().is_empty());
        pipeline.step(Some(&input), Some(&target))?;
        assert!(layers.parameters().iter().all(|parameter| parameter.grad().is_some()));
        Ok(())
    })
    .unwrap();
}

/// Returns the peaks of the bytes that a rank's program has allocated and that its allocator has reserved.
fn peaks(schedule: &Schedule) -> Vec<[u64; 2]> {
    const WIDTH: usize = 512;
    run_ranks(&simulated_devices(2).unwrap(), |group| {
        let (rank, device) = (group.rank() as usize, group.device());
        let layer = Linear::new(WIDTH, WIDTH, &mut Generator::new(0), device)?;
        let stage = PipelineStage::with(&layer, rank, schedule.stages(), |input| {
            input.add(&layer.parameters()[1])?.tanh()
        })?;
        let options = PipelineOptions { return_outputs: false, ..PipelineOptions::with_loss(loss) };
        let mut pipeline = Pipeline::new(schedule, vec![stage], &group, options)?;
        let batch = Tensor::ones(&[WIDTH * schedule.microbatches(), WIDTH], thalweg_ir::DType::F32, device)?;
        for _ in 0..2 {
            assert!(pipeline.step(Some(&batch), Some(&batch))?.outputs().is_empty());
            device.synchronize()?;
        }
        Ok([device.max_memory_allocated(), device.max_memory_reserved()])
    })
    .unwrap()
}

#[test]
fn one_f_one_b_keeps_the_activations_of_few_microbatches() {
    // A microbatch's activation is 1 MiB. Rank 0 has those of 16 in GPipe and of 2 in 1F1B, rank 1 those of 16 and of 1.
    let (gpipe, one) =
        (peaks(&Schedule::gpipe(2, 16).unwrap()), peaks(&Schedule::one_f_one_b(2, 16).unwrap()));
    for (rank, (gpipe, one)) in gpipe.iter().zip(&one).enumerate() {
        for (what, gpipe, one) in [("allocated", gpipe[0], one[0]), ("reserved", gpipe[1], one[1])] {
            assert!(one + (12 << 20) <= gpipe, "rank {rank}: {one} bytes {what}, {gpipe} in GPipe");
        }
    }
}
