//! The loop that examples of training share.

use std::sync::Arc;

use thalweg::data::{DataLoader, DataLoaderOptions, Dataset};
use thalweg::summary::SummaryWriter;
use thalweg::tensor::autocast::autocast;
use thalweg::tensor::graph::{StepOptions, capture_step};
use thalweg::{DType, Device, Error, Result, Tensor};

use super::options::TrainingOptions;
use super::progress::Progress;

/// Runs a function with products in the dtype that was asked for.
pub fn in_dtype<T>(dtype: DType, function: impl FnOnce() -> Result<T>) -> Result<T> {
    if dtype == DType::F32 { function() } else { autocast(dtype, function) }
}

/// Copies batches of a dataset to the inputs of a step, which returns its loss, and runs it on each, eagerly or captured. Returns the
/// last loss, if there was a step. The losses that are shown are written to the folder of `--log-dir`.
pub fn train<'a, D: Dataset + 'static>(
    data: Arc<D>,
    inputs: &[Tensor],
    step: impl FnMut() -> Result<Tensor> + 'a,
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
    let mut progress = Progress::new(options.steps);
    let mut log = options.log_dir.as_ref().map(SummaryWriter::new).transpose()?;
    let (mut done, mut last) = (0, None);
    while done < options.steps {
        for batch in loader.epoch()?.take(options.steps - done) {
            inputs.iter().zip(&batch?).try_for_each(|(input, given)| input.copy_(given))?;
            let loss = run()?;
            done += 1;
            if progress.is_due(done) {
                let loss = loss.item()?;
                progress.draw(done, loss, done * options.batch);
                if let Some(log) = &mut log {
                    log.add_scalar("loss", loss.into(), done as i64)?;
                }
                last = Some(loss);
            }
        }
    }
    log.as_mut().map_or(Ok(()), SummaryWriter::flush)?;
    Ok(last)
}
