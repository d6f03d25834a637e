//! Compiled functions as graphs, for `torch.compile(mode="reduce-overhead")`: Python functions of lists of tensors in graph trees.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thalweg::tensor::compile::compiled;
use thalweg::tensor::graph::tree::{DecisionKind, FunctionId, FunctionOptions, Steps};
use thalweg::tensor::graph::{GraphTreeManager, GraphTreeOptions, LiveOutputs};
use thalweg::{Device, Error, Stream, Tensor};
use thalweg_lock::Mutex;

use crate::device::or_current;
use crate::failure::{call_python, run};
use crate::handle::{Held, PyTensor};
use crate::recordings::{_Recording, Recording};

/// The manager of a device.
type Manager = Rc<RefCell<GraphTreeManager>>;

thread_local! {
    /// The managers of this thread.
    static MANAGERS: RefCell<Vec<(Device, Manager)>> = const { RefCell::new(Vec::new()) };
    /// The number of times that the managers were dropped.
    static DROPS: Cell<u64> = const { Cell::new(0) };
    /// The functions that were dropped, perhaps during a call, whose graphs are to be dropped.
    static UNUSED: RefCell<Vec<(Device, FunctionId)>> = const { RefCell::new(Vec::new()) };
    /// The calls of this step whose backward passes may follow. While there are any, the step does not end.
    static PENDING: RefCell<Vec<Weak<()>>> = const { RefCell::new(Vec::new()) };
    /// The number of calls since the step began.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// The number of calls after which a step ends although backward passes may follow. The tensors that these need are then moved out of
/// the pools.
const MOST_CALLS: usize = 8;

/// Returns this thread's manager of a device.
fn manager(device: &Device) -> thalweg::Result<Manager> {
    let known = MANAGERS
        .with_borrow(|all| all.iter().find(|(of, _)| of == device).map(|(_, found)| Rc::clone(found)));
    if let Some(known) = known {
        return Ok(known);
    }
    let options = GraphTreeOptions {
        // Programs hold results as long as they like, as those of other functions.
        live_outputs: LiveOutputs::Clone,
        steps: Steps::Explicit,
        ..GraphTreeOptions::default()
    };
    let made = Rc::new(RefCell::new(GraphTreeManager::new(device, options)?));
    MANAGERS.with_borrow_mut(|all| all.push((device.clone(), Rc::clone(&made))));
    Ok(made)
}

/// Drops the graphs of this thread. Their results stay valid.
pub fn forget() {
    UNUSED.take();
    DROPS.set(DROPS.get() + 1);
    let dropped = MANAGERS.take();
    drop(dropped);
}

/// Drops the graphs of functions that were dropped, unless a function is being called.
fn drop_unused() {
    for (device, function) in UNUSED.take() {
        let known = manager(&device);
        match known.as_ref().map(|manager| manager.try_borrow_mut()) {
            Ok(Ok(mut manager)) => manager.unregister(function),
            _ => UNUSED.with_borrow_mut(|unused| unused.push((device, function))),
        }
    }
}

/// Ends the step of a manager, unless backward passes of its calls may follow.
fn begin_step(manager: &mut GraphTreeManager) {
    PENDING.with_borrow_mut(|pending| {
        pending.retain(|call| call.strong_count() > 0);
        if pending.is_empty() || CALLS.get() >= MOST_CALLS {
            manager.begin_step();
            pending.clear();
            CALLS.set(0);
        }
    });
    CALLS.set(CALLS.get() + 1);
}

/// Returns a value that is to be held as long as a backward pass of a call of this step can follow.
pub fn pending() -> Arc<()> {
    let pending = Arc::new(());
    PENDING.with_borrow_mut(|all| all.push(Arc::downgrade(&pending)));
    pending
}

/// Returns how often the managers of this thread were dropped.
pub fn drops() -> u64 {
    DROPS.get()
}

/// Returns whether no function of this thread's manager is running.
pub fn is_free(device: &Device) -> bool {
    manager(device).is_ok_and(|manager| manager.try_borrow_mut().is_ok())
}

/// Returns whether a stream is the one on which this thread's manager records graphs.
pub fn records_on(device: &Device, stream: &Stream) -> bool {
    manager(device)
        .is_ok_and(|manager| manager.try_borrow().is_ok_and(|manager| manager.capture_stream() == stream))
}

/// Registers a function with this thread's manager.
pub fn register_function(
    device: &Device,
    name: &str,
    options: FunctionOptions,
    body: impl Fn(&[Tensor]) -> thalweg::Result<Vec<Tensor>> + Send + Sync + 'static,
) -> thalweg::Result<FunctionId> {
    let manager = manager(device)?;
    let mut manager = manager.try_borrow_mut().map_err(|_| Error::invalid(NESTED))?;
    manager.register(name, options, body)
}

/// Calls a function of this thread's manager as a part of the present step.
pub fn call_function(
    device: &Device,
    function: FunctionId,
    inputs: Vec<Tensor>,
) -> thalweg::Result<Vec<Tensor>> {
    let manager = manager(device)?;
    let mut manager = manager.try_borrow_mut().map_err(|_| Error::invalid(NESTED))?;
    manager.call(function, inputs)
}

/// Notes that a function is not called any more, if its manager belongs to this thread. Otherwise does nothing: the graphs are
/// dropped at the end of their thread.
pub fn unregister_later(device: &Device, function: FunctionId, owner: (ThreadId, u64)) {
    if DROPS.try_with(|drops| (thread::current().id(), drops.get()) == owner) == Ok(true) {
        let _ = UNUSED.try_with(|unused| {
            if let Ok(mut unused) = unused.try_borrow_mut() {
                unused.push((device.clone(), function));
            }
        });
    }
}

/// Calls a Python function of a list of tensors.
fn called(function: &Py<PyAny>, inputs: &[Tensor]) -> thalweg::Result<Vec<Tensor>> {
    call_python(|py| {
        let objects = inputs.iter().map(|input| PyTensor::object(py, input.clone()));
        let inputs = PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?)?;
        let results = function.call1(py, (inputs,))?;
        (results.bind(py).try_iter()?).map(|tensor| Ok(tensor?.cast::<PyTensor>()?.tensor())).collect()
    })
}

const NESTED: &str =
    "a captured function calls a captured function: the inner one is a part of the outer one";

/// A function of a list of tensors whose calls are graphs.
#[pyclass(frozen)]
struct _Captured {
    device: Device,
    function: FunctionId,
    /// The recording of the present call, if it records gradients.
    recording: Arc<Mutex<Option<Arc<Recording>>>>,
    /// The thread whose manager has the function, and the number of times that its managers had been dropped.
    owner: (ThreadId, u64),
}

impl Drop for _Captured {
    fn drop(&mut self) {
        unregister_later(&self.device, self.function, self.owner);
    }
}

#[pymethods]
impl _Captured {
    /// Registers a function that takes a list of tensors and returns one. It belongs to this thread.
    #[new]
    fn new(
        py: Python<'_>,
        name: &str,
        function: Py<PyAny>,
        static_inputs: Vec<usize>,
        sample: Option<&Bound<'_, PyTensor>>,
    ) -> PyResult<Self> {
        let device = match sample {
            Some(tensor) => tensor.tensor().device().clone(),
            None => or_current(py, None)?,
        };
        let recording = Arc::new(Mutex::new(None::<Arc<Recording>>));
        let current = recording.clone();
        let body = move |inputs: &[Tensor]| {
            let recording = current.lock().clone();
            // The function itself runs compiled: what is captured are fused kernels.
            match recording {
                Some(recording) => recording.run(inputs, |inputs| called(&function, inputs)),
                None => compiled(|| called(&function, inputs)),
            }
        };
        let options = FunctionOptions { static_inputs, ..FunctionOptions::default() };
        let function = run(py, || {
            drop_unused();
            let manager = manager(&device)?;
            let mut manager = manager.try_borrow_mut().map_err(|_| Error::invalid(NESTED))?;
            manager.register(name, options, body)
        })?;
        Ok(Self { device, function, recording, owner: (thread::current().id(), DROPS.get()) })
    }

    /// Returns the results for inputs, and the reason why no graph was replayed, if none was. With a recording, the call records
    /// gradients.
    fn call<'py>(
        &self,
        py: Python<'py>,
        inputs: Vec<Bound<'py, PyTensor>>,
        recording: Option<&Bound<'py, _Recording>>,
    ) -> PyResult<(Vec<Bound<'py, PyTensor>>, Option<String>)> {
        let given: Vec<Tensor> = inputs.iter().map(|tensor| tensor.tensor()).collect();
        let recording = recording.map(|recording| recording.get().0.clone());
        let (results, reason) = run(py, || {
            drop_unused();
            *self.recording.lock() = recording.clone();
            let called = self.called(&given);
            *self.recording.lock() = None;
            let (results, reason) = called?;
            let results = match recording {
                Some(recording) => recording.attach(&given, results)?,
                None => results,
            };
            Ok((results, reason))
        })?;
        let results = results.into_iter().map(|result| PyTensor::object(py, result));
        Ok((results.collect::<PyResult<Vec<_>>>()?, reason))
    }
}

impl _Captured {
    /// Calls the function of the manager, and returns its results with the reason why no graph was replayed, if none was.
    fn called(&self, given: &[Tensor]) -> thalweg::Result<(Vec<Tensor>, Option<String>)> {
        let manager = manager(&self.device)?;
        let mut manager = manager.try_borrow_mut().map_err(|_| Error::invalid(NESTED))?;
        begin_step(&mut manager);
        let before = manager.counters().eager;
        let results = manager.call(self.function, given.to_vec())?;
        if manager.counters().eager == before {
            return Ok((results, None));
        }
        let last = manager.decisions().filter(|decision| decision.kind == DecisionKind::Eager).last();
        let decided = last.map(|decision| decision.reason.clone());
        let reason = manager.eager_reason(self.function).map(str::to_owned).or(decided);
        Ok((results, reason))
    }
}

/// Returns counts of the calls of this thread's captured functions.
#[pyfunction]
fn _capture_counters(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let totals = PyDict::new(py);
    let mut sums = [0u64; 7];
    MANAGERS.with_borrow(|all| {
        for (_, manager) in all {
            let manager = manager.borrow();
            let counters = manager.counters();
            let values = [
                counters.recordings,
                counters.replays,
                counters.eager,
                counters.copied_inputs,
                counters.written_back,
                manager.graphs() as u64,
                manager.pool_bytes(),
            ];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    });
    let names = ["recordings", "replays", "eager", "copied_inputs", "written_back", "graphs", "pool_bytes"];
    names.iter().zip(sums).try_for_each(|(name, value)| totals.set_item(name, value))?;
    Ok(totals)
}

/// Returns a number that changes with a tensor's memory, its layout, and whether it requires a gradient.
fn place(tensor: &Tensor) -> u64 {
    let layout = tensor.layout();
    let numbers = layout.shape().iter().chain(layout.strides());
    let hash = numbers.fold(tensor.dtype() as u64, |hash, &number| {
        (hash.rotate_left(5) ^ number as u64).wrapping_mul(0x517c_c1b7_2722_0a95)
    });
    // The address alone would do; nothing but this thread's own deferred loops may be without one.
    let hash = hash ^ tensor.pointer().address();
    // Gradients flow to the tensor itself, which its `data` may have replaced by another one over the same memory.
    if tensor.requires_grad() { hash.wrapping_add(tensor.identity() as u64) } else { hash }
}

/// Returns for each tensor a number that changes with its memory, its layout, and whether it requires a gradient.
#[pyfunction]
fn _places(tensors: Vec<Bound<'_, PyTensor>>) -> Vec<u64> {
    tensors.iter().map(|tensor| place(&tensor.tensor())).collect()
}

/// Returns for each tensor a number that changes with the memory of its gradient.
#[pyfunction]
fn _gradient_places(tensors: Vec<Bound<'_, PyTensor>>) -> Vec<u64> {
    tensors.iter().map(|tensor| tensor.tensor().grad().map_or(0, |gradient| place(&gradient))).collect()
}

/// Returns whether two tensors are views of the same memory.
#[pyfunction]
fn _share_memory(one: &Bound<'_, PyTensor>, other: &Bound<'_, PyTensor>) -> bool {
    one.tensor().shares_storage_with(&other.tensor())
}

/// Adds the class and the functions.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_Captured>()?;
    functions![module; _capture_counters, _places, _gradient_places, _share_memory];
    Ok(())
}
