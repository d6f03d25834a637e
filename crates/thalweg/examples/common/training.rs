//! The loop that examples of training share.

use std::sync::Arc;

use thalweg::data::{DataLoader, DataLoaderOptions, Dataset};
use thalweg::progress::Progress;
use thalweg::summary::SummaryWriter;
use thalweg::tensor::autocast::autocast;
use thalweg::tensor::graph::{StepOptions, capture_step};
use thalweg::{DType, Device, Error, Result, Tensor};

use super::options::TrainingOptions;

/// Runs a function with products in the requested dtype.
pub fn in_dtype<T>(dtype: DType, function: impl FnOnce() -> Result<T>) -> Result<T> {
    if dtype == DType::F32 { function() } else { autocast(dtype, function) }
}

/// Copies batches of a dataset to the inputs of a step, which returns its loss, and runs it on each, eagerly or captured. The
/// first step continues the numbering of the earlier ones, and has the batch that it would have had without the interruption.
/// Returns the last loss, if there was a step. The losses that are shown are written to the folder of `--log-dir`.
pub fn train<'a, D: Dataset + 'static>(
    data: Arc<D>,
    inputs: &[Tensor],
    step: impl FnMut() -> Result<Tensor> + 'a,
    before: usize,
    options: &TrainingOptions,
    device: &Device,
) -> Result<Option<f32>> {
    let loading = DataLoaderOptions {
        batch_size: options.batch,
        shuffle: Some(options.seed),
        num_workers: 2,
        drop_last: true,
        ..DataLoaderOptions::default()
    };
    let mut loader = DataLoader::new(data, loading, device)?;
    if loader.is_empty() && options.steps > 0 {
        return Err(Error::invalid("there are fewer samples than a batch has; choose a smaller --batch"));
    }
    let mut run: Box<dyn FnMut() -> Result<Tensor> + 'a> = match options.graph {
        false => Box::new(step),
        true => {
            let mut captured = capture_step(device, StepOptions::default(), step);
            Box::new(move || captured.run().cloned())
        }
    };
    let mut progress = Progress::new(options.steps as u64);
    let mut log = options.log_dir.as_ref().map(SummaryWriter::new).transpose()?;
    let (mut done, mut last) = (0, None);
    let mut skipped = before.checked_rem(loader.len()).unwrap_or(0);
    loader.set_epoch(before.checked_div(loader.len()).unwrap_or(0) as u64);
    while done < options.steps {
        for batch in loader.epoch()?.skip(std::mem::take(&mut skipped)).take(options.steps - done) {
            inputs.iter().zip(&batch?).try_for_each(|(input, given)| input.copy_(given))?;
            let loss = run()?;
            done += 1;
            if progress.is_due(done as u64) {
                let loss = loss.item()?;
                progress.show(done as u64, &figures(loss, done * options.batch, progress.seconds()));
                if let Some(log) = &mut log {
                    log.add_scalar("loss", loss.into(), (before + done) as i64)?;
                }
                last = Some(loss);
            }
        }
    }
    log.as_mut().map_or(Ok(()), SummaryWriter::flush)?;
    Ok(last)
}

/// Returns the figures after the bar.
pub fn figures(loss: f32, samples: usize, seconds: f64) -> String {
    format!("loss {loss:.4} {:>6.0} samples/s", samples as f64 / seconds.max(1e-9))
}
