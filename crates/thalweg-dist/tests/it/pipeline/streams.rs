//! Streaming inference, compared with the same stages on one device.

use thalweg_dist::pipeline::{Pipeline, PipelineOptions, PipelineStage, Schedule};
use thalweg_dist::{ProcessGroup, run_ranks, simulated_devices};
use thalweg_nn::module::Forward;
use thalweg_runtime::Result;
use thalweg_tensor::{Tensor, no_grad};

use super::training::Layers;
use crate::support::{batch, checked};

/// Lets microbatches stream through the stages of a schedule, and asserts that the results have the bits of one device.
fn streams(group: &ProcessGroup, schedule: &Schedule, microbatches: usize, ahead: usize) -> Result<()> {
    let (device, stages) = (group.device(), schedule.stages());
    let own = schedule.stages_of(group.rank() as usize)?;
    let layers: Vec<Layers> =
        own.iter().map(|&stage| Layers::new(stage, stages, device)).collect::<Result<_>>()?;
    let parts = own.iter().zip(&layers).map(|(&stage, layers)| PipelineStage::new(layers, stage, stages));
    let mut pipeline =
        Pipeline::new(schedule, parts.collect::<Result<_>>()?, group, PipelineOptions::default())?;
    let all: Vec<Layers> =
        (0..stages).map(|stage| Layers::new(stage, stages, device)).collect::<Result<_>>()?;
    let input = |number: usize| batch(0, 1, number as u64, device).map(|(input, _)| input);
    let mut results = Vec::new();
    pipeline.stream(microbatches, ahead, input, |number, result| {
        assert_eq!(number, results.len(), "in the order of the inputs");
        assert!(!result.requires_grad());
        results.push(result);
        Ok(())
    })?;
    assert_eq!(results.len(), if pipeline.has_last() { microbatches } else { 0 });
    for (number, result) in results.iter().enumerate() {
        let whole =
            no_grad(|| all.iter().try_fold(input(number)?, |hidden: Tensor, layer| layer.forward(&hidden)))?;
        assert_eq!(result.to_vec::<f32>()?, whole.to_vec::<f32>()?, "microbatch {number}");
    }
    Ok(())
}

#[test]
fn a_stream_has_the_bits_of_one_device_under_every_seed() {
    checked(8, 3, |group, _| streams(group, &Schedule::forward_only(3, 1, 1)?, 7, 2));
    checked(6, 2, |group, _| streams(group, &Schedule::zbv(2, 4)?, 5, 3));
}

#[test]
fn streams_of_all_lengths_and_places_of_stages_end() {
    for (schedule, ranks) in [
        (Schedule::one_f_one_b(1, 2), 1),
        (Schedule::gpipe(4, 2), 4),
        (Schedule::interleaved(2, 3, 2), 2),
        (Schedule::zbv(3, 6), 3),
    ] {
        let schedule = schedule.unwrap();
        for (microbatches, ahead) in [(0, 1), (1, 1), (2, 1), (11, 4)] {
            run_ranks(&simulated_devices(ranks).unwrap(), |group| {
                streams(&group, &schedule, microbatches, ahead)
            })
            .unwrap();
        }
    }
}
