//! [`CapturedStep`]: an entire training step, or any other repeated piece of work, as one graph.

use thalweg_runtime::{CaptureOptions, Device, Graph, Result, options};

options! {
    /// The options with which a step is captured.
    #[derive(Clone, Debug)]
    pub struct StepOptions {
        /// The number of eager runs before the capture: they compile the kernels and make the persistent tensors (moments, caches).
        pub warm_up: usize = 3,
        /// The pool, mode and stream of the capture.
        pub capture: CaptureOptions = CaptureOptions::default(),
    }
}

/// A step that is captured after its warm-up, and replayed from then on.
///
/// Each [`run`](Self::run) is one step, eager or replayed: `N` runs leave every tensor, generator and optimizer as `N` calls of
/// the function would. The function must therefore do the same work at each call, on the same tensors: batches are copied into
/// the tensors that it reads, numbers that change are in device memory (the step of an optimizer, the state of
/// [`DeviceGenerator`](crate::random::DeviceGenerator)). Its host code runs only at the eager runs and at the capture.
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
    /// The result of the last run; once the step is captured, every replay writes it.
    result: Option<T>,
    graph: Option<Graph>,
}

/// Returns a step that is captured on `device` once it has warmed up. Runs nothing yet.
pub fn capture_step<T, F: FnMut() -> Result<T>>(
    device: &Device,
    options: StepOptions,
    step: F,
) -> CapturedStep<F, T> {
    CapturedStep { device: device.clone(), options, step, eager_runs: 0, result: None, graph: None }
}

impl<F: FnMut() -> Result<T>, T> CapturedStep<F, T> {
    /// Runs the step once on the current stream, and returns its result. Asynchronous, except for the run that captures, which
    /// waits for the device. Once the step is captured, the next run overwrites the result: clone tensors that must be kept.
    ///
    /// # Errors
    /// Those of the function, of [`Graph::capture`] and of [`Graph::replay`]. A capture that failed has run nothing: the next run
    /// tries again.
    #[track_caller]
    pub fn run(&mut self) -> Result<&T> {
        if let Some(graph) = &self.graph {
            graph.replay()?;
        } else if self.eager_runs < self.options.warm_up {
            // The autograd graph of the last run is dropped first: it would tie the next run to its stream.
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

    /// Returns the graph, once the step is captured.
    pub fn graph(&self) -> Option<&Graph> {
        self.graph.as_ref()
    }

    /// Drops the graph and its result: the next run captures again. Call it when the tensors or shapes of the step have changed.
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
