//! The errors of a pipeline, in PyTorch's words.

use thalweg_dist::pipeline::{Pipeline, PipelineOptions, PipelineStage, Schedule};
use thalweg_dist::{ProcessGroup, run_ranks, simulated_devices};
use thalweg_ir::DType;
use thalweg_nn::module::{Linear, Module};
use thalweg_runtime::{Error, Result};
use thalweg_tensor::random::Generator;
use thalweg_tensor::{Tensor, no_grad};

use crate::support::{batch, loss};

fn layer(group: &ProcessGroup, inputs: usize, outputs: usize) -> Result<Linear> {
    Linear::new(inputs, outputs, &mut Generator::new(0), group.device())
}

/// Runs two ranks, and returns the error that they end with.
fn assert_refused(program: impl Fn(&ProcessGroup) -> Result<()> + Sync) -> Error {
    run_ranks(&simulated_devices(2).unwrap(), |group| program(&group)).unwrap_err()
}

#[track_caller]
fn says(error: &Error, wanted: &str) {
    assert!(error.to_string().contains(wanted), "{error}");
}

/// Makes a pipeline of two ranks with one layer each, and calls a function with it.
fn with_pipeline(
    group: &ProcessGroup,
    schedule: &Schedule,
    body: impl FnOnce(&mut Pipeline<'_>) -> Result<()>,
) -> Result<()> {
    let rank = group.rank() as usize;
    let layer = if rank == 0 { layer(group, 6, 4)? } else { layer(group, 4, 3)? };
    let stage = PipelineStage::new(&layer, rank, 2)?;
    body(&mut Pipeline::new(schedule, vec![stage], group, PipelineOptions::with_loss(loss))?)
}

#[test]
fn batches_that_do_not_fit_are_errors() {
    let schedule = Schedule::gpipe(2, 4).unwrap();
    let step = |rows: usize, width: usize, targets: usize| {
        assert_refused(|group| {
            with_pipeline(group, &schedule, |pipeline| {
                let input = Tensor::zeros(&[rows, width], DType::F32, group.device())?;
                let target = Tensor::zeros(&[targets, 3], DType::F32, group.device())?;
                pipeline.step(Some(&input), Some(&target)).map(drop)
            })
        })
    };
    says(&step(3, 6, 8), "Expecting 4 arg_mbs but got 3");
    says(&step(8, 6, 2), "Expecting 4 target_mbs but got 2");
    says(
        &step(11, 6, 12),
        "Stage 0 forward inputs: value 0 has a shape mismatch: expected [3, 6] actual [2, 6]",
    );
    says(&step(8, 5, 8), "pipeline action 0F0");
}

#[test]
fn later_batches_have_the_first_ones_shape() {
    let schedule = Schedule::one_f_one_b(2, 2).unwrap();
    let error = assert_refused(|group| {
        with_pipeline(group, &schedule, |pipeline| {
            let (input, target) = batch(0, 1, 0, group.device())?;
            pipeline.step(Some(&input), Some(&target))?;
            // The targets stay, so that one rank alone has a mistake.
            pipeline.step(Some(&input.narrow(0, 0, 6)?), Some(&target)).map(drop)
        })
    });
    says(&error, "Stage 0 forward inputs: value 0 has a shape mismatch: expected [6, 6] actual [3, 6]");
}

#[test]
fn a_stage_whose_result_changes_its_shape_is_an_error() {
    let schedule = Schedule::gpipe(2, 2).unwrap();
    let error = assert_refused(|group| {
        let (rank, layer) = (group.rank() as usize, layer(group, 6, 6)?);
        let calls = std::cell::Cell::new(0);
        let stage = PipelineStage::with(&layer, rank, 2, |input| {
            calls.set(calls.get() + 1);
            if rank == 0 && calls.get() == 2 { input.narrow(1, 0, 5) } else { Ok(input.clone()) }
        })?;
        let mut pipeline = Pipeline::new(&schedule, vec![stage], group, PipelineOptions::default())?;
        let input = Tensor::zeros(&[4, 6], DType::F32, group.device())?;
        pipeline.eval(Some(&input), None).map(drop)
    });
    says(&error, "Stage 0 forward outputs: value 0 has a shape mismatch: expected [2, 6] actual [2, 5]");
}

#[test]
fn a_step_needs_gradients_a_loss_and_backward_passes() {
    let without = |schedule: &Schedule, options: fn() -> PipelineOptions<'static>, grad: bool| {
        assert_refused(|group| {
            let (rank, layer) = (group.rank() as usize, layer(group, 6, 6)?);
            let stage = PipelineStage::new(&layer, rank, 2)?;
            let mut pipeline = Pipeline::new(schedule, vec![stage], group, options())?;
            let x = Tensor::zeros(&[4, 6], DType::F32, group.device())?;
            let mut step = || pipeline.step(Some(&x), Some(&x)).map(drop);
            if grad { step() } else { no_grad(step) }
        })
    };
    let gpipe = Schedule::gpipe(2, 2).unwrap();
    let with_loss: fn() -> PipelineOptions<'static> = || PipelineOptions::with_loss(loss);
    says(
        &without(&gpipe, with_loss, false),
        "step() requires gradients to be enabled for backward computation",
    );
    says(&without(&gpipe, PipelineOptions::default, true), "requires a loss function");
    let forward = Schedule::forward_only(2, 1, 2).unwrap();
    says(&without(&forward, with_loss, true), "Forward-only schedule does not support loss computation");
}

#[test]
fn stages_and_ranks_are_those_of_the_schedule() {
    let error = assert_refused(|group| with_pipeline(group, &Schedule::gpipe(3, 2)?, |_| Ok(())));
    says(&error, "Schedule has incorrect number of ranks - expected 2, actual 3");
    let error = assert_refused(|group| {
        let layer = layer(group, 6, 6)?;
        let stage = PipelineStage::new(&layer, 0, 2)?;
        Pipeline::new(&Schedule::gpipe(2, 2)?, vec![stage], group, PipelineOptions::default()).map(drop)
    });
    says(&error, "the schedule gives rank 1 the stages [1] of 2, and it was made with [0] of 2");
    let error = assert_refused(|group| {
        let layer = layer(group, 6, 6)?;
        PipelineStage::new(&layer, 2, 2).map(drop)
    });
    says(&error, "Stage index 2 is out of range of 2");
    let error = assert_refused(|group| {
        let schedule = Schedule::gpipe(2, 2 + group.rank() as usize)?;
        with_pipeline(group, &schedule, |_| Ok(()))
    });
    says(&error, "rank 1 has another schedule than rank 0");
}

#[test]
fn a_rank_that_fails_in_mid_step_ends_the_others() {
    let schedule = Schedule::one_f_one_b(2, 4).unwrap();
    let error = assert_refused(|group| {
        let (rank, layer) = (group.rank() as usize, layer(group, 6, 6)?);
        let calls = std::cell::Cell::new(0);
        let stage = PipelineStage::with(&layer, rank, 2, |input| {
            calls.set(calls.get() + 1);
            if rank == 1 && calls.get() == 3 {
                return Err(Error::invalid("the third microbatch is bad"));
            }
            input.mul(&layer.parameters()[1])
        })?;
        let mut pipeline = Pipeline::new(&schedule, vec![stage], group, PipelineOptions::with_loss(loss))?;
        let x = Tensor::zeros(&[8, 6], DType::F32, group.device())?;
        pipeline.step(Some(&x), Some(&x))?;
        group.device().synchronize()
    });
    says(&error, "the third microbatch is bad");
    says(&error, "rank 1");
    says(&error, "1F2");
}
