//! [`CapturedStep`]: a whole training step, or any other piece of work that is done over and over, as one graph.

use thalweg_runtime::{CaptureOptions, Device, Graph, Result};

/// How a step is captured.
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// How many runs are eager before the capture: they compile the kernels and make what lives on (moments, caches).
    pub warm_up: usize,
    /// Pool, mode and stream of the capture.
    pub capture: CaptureOptions,
}

impl Default for StepOptions {
    /// Three eager runs, as PyTorch warms up, and a pool of its own.
    fn default() -> Self {
        Self { warm_up: 3, capture: CaptureOptions::default() }
    }
}

/// A step that is captured when it is warm, and replayed from then on.
///
/// Each [`run`](Self::run) is one step, whichever way it is done: `N` runs leave every tensor, generator and optimizer as `N`
/// calls of the function would. So the function must do the same work at each call, on the same tensors: batches are copied
/// into the tensors that it reads, numbers that change live in device memory (the step of an
/// optimizer, the state of [`DeviceGenerator`](crate::random::DeviceGenerator)). What it does on the host
/// happens at the eager runs and at the capture, and never again.
///
/// ```text
/// run  run  run │ run: capture, replay │ run: replay │ run: replay …
/// eager (warm-up)
/// ```
pub struct CapturedStep<F, T> {
    device: Device,
    options: StepOptions,
    step: F,
    eager_runs: usize,
    /// What the last run gave; of a captured step, what every replay writes.
    result: Option<T>,
    graph: Option<Graph>,
}

/// A step to be captured on a device, once it is warm.
pub fn capture_step<T, F: FnMut() -> Result<T>>(
    device: &Device,
    options: StepOptions,
    step: F,
) -> CapturedStep<F, T> {
    CapturedStep { device: device.clone(), options, step, eager_runs: 0, result: None, graph: None }
}

impl<F: FnMut() -> Result<T>, T> CapturedStep<F, T> {
    /// Does the step, on the current stream, and gives its result. Asynchronous, but for the run that captures, which waits
    /// for the device. The next run overwrites the result of a captured one: clone the values that are to stay.
    ///
    /// # Errors
    /// The function's own, and those of [`Graph::capture`] and [`Graph::replay`]. A capture that failed has run nothing: the
    /// next run tries again.
    #[track_caller]
    pub fn run(&mut self) -> Result<&T> {
        if let Some(graph) = &self.graph {
            graph.replay()?;
        } else if self.eager_runs < self.options.warm_up {
            // What the last run recorded for backward goes first: it would tie the next one to its stream.
            self.result = None;
            self.result = Some((self.step)()?);
            self.eager_runs += 1;
        } else {
            self.result = None;
            let (graph, result) = Graph::capture(&self.device, self.options.capture.clone(), &mut self.step)?;
            self.result = Some(result);
            self.graph.insert(graph).replay()?;
        }
        Ok(self.result.as_ref().expect("each branch leaves a result"))
    }

    /// The graph, once there is one.
    pub fn graph(&self) -> Option<&Graph> {
        self.graph.as_ref()
    }

    /// Forgets the graph and its result: the next run captures anew. For when the tensors or shapes of the step have changed.
    pub fn reset(&mut self) {
        self.graph = None;
        self.result = None;
    }
}

impl<F, T> std::fmt::Debug for CapturedStep<F, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedStep")
            .field("device", &self.device)
            .field("eager_runs", &self.eager_runs)
            .field("is_captured", &self.graph.is_some())
            .finish()
    }
}
