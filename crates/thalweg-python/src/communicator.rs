//! Groups of ranks over NCCL, or between simulated GPUs of one process, for `thalweg.distributed`.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use thalweg::Tensor;
use thalweg::distributed::store::{PrefixStore, Store};
use thalweg::distributed::{Coalescing, GroupOptions, ProcessGroup, ReduceOp, Work};

use crate::device::or_current;
use crate::failure::{call_python, run, value_error};
use crate::handle::{Held, PyTensor};

/// A store that is an object of Python, with the methods of `torch.distributed.Store`.
#[derive(Debug)]
struct PythonStore {
    store: Py<PyAny>,
    timeout: Duration,
}

impl PythonStore {
    /// Calls a method of the store.
    fn call<T>(&self, call: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<T>) -> thalweg::Result<T> {
        call_python(|py| call(self.store.bind(py)))
    }
}

impl Store for PythonStore {
    fn set(&self, key: &str, value: &[u8]) -> thalweg::Result<()> {
        self.call(|store| store.call_method1("set", (key, PyBytes::new(store.py(), value))).map(drop))
    }

    fn find(&self, key: &str) -> thalweg::Result<Option<Vec<u8>>> {
        self.call(|store| match store.call_method1("check", ([key],))?.is_truthy()? {
            true => store.call_method1("get", (key,))?.extract().map(Some),
            false => Ok(None),
        })
    }

    fn add(&self, key: &str, amount: i64) -> thalweg::Result<i64> {
        self.call(|store| store.call_method1("add", (key, amount))?.extract())
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> thalweg::Result<Vec<u8>> {
        self.call(|store| {
            let [expected, desired] = [expected, desired].map(|value| PyBytes::new(store.py(), value));
            store.call_method1("compare_set", (key, expected, desired))?.extract()
        })
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> thalweg::Result<()> {
        self.call(|store| store.call_method1("wait", (keys.to_vec(), timeout.as_secs_f64())).map(drop))
    }

    fn delete_key(&self, key: &str) -> thalweg::Result<bool> {
        self.call(|store| store.call_method1("delete_key", (key,))?.extract())
    }

    fn num_keys(&self) -> thalweg::Result<usize> {
        self.call(|store| store.call_method0("num_keys")?.extract())
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }
}

/// The name of an operation in Python's `ReduceOp`, and the factor of a sum of products.
type Operation = (String, Option<f64>);

fn inner(tensors: &[Bound<'_, PyTensor>]) -> Vec<Tensor> {
    tensors.iter().map(Held::tensor).collect()
}

fn operation((name, factor): &Operation) -> PyResult<ReduceOp> {
    Ok(match (name.as_str(), *factor) {
        (_, Some(factor)) => ReduceOp::premul_sum(factor),
        ("SUM", _) => ReduceOp::Sum,
        ("AVG", _) => ReduceOp::Avg,
        ("PRODUCT", _) => ReduceOp::Product,
        ("MIN", _) => ReduceOp::Min,
        ("MAX", _) => ReduceOp::Max,
        _ => return Err(value_error(format!("there is no reduction {name} between GPUs"))),
    })
}

/// A rank of a group whose members exchange tensors of their devices.
#[pyclass(frozen)]
struct _Communicator(ProcessGroup);

/// A collective that was submitted.
#[pyclass(frozen)]
struct _Work(Work);

#[pymethods]
impl _Work {
    /// Makes later work of the current stream wait for the collective.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.wait())
    }

    /// Waits until the collective is done.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.synchronize())
    }

    /// Returns whether the collective is done.
    fn is_completed(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.is_completed())
    }
}

impl _Communicator {
    /// Submits a collective.
    fn submit(
        &self,
        py: Python<'_>,
        collective: impl FnOnce(&ProcessGroup) -> thalweg::Result<Work> + Send,
    ) -> PyResult<_Work> {
        run(py, || collective(&self.0)).map(_Work)
    }

    /// Submits collectives as one.
    fn submit_together(
        &self,
        py: Python<'_>,
        collect: impl FnOnce(&mut Coalescing<'_>) -> thalweg::Result<()> + Send,
    ) -> PyResult<_Work> {
        self.submit(py, |group| {
            let mut all = group.coalescing();
            collect(&mut all)?;
            all.submit()
        })
    }
}

#[pymethods]
impl _Communicator {
    /// Makes a device the rank of a group. All its ranks make this call.
    #[new]
    fn new(
        py: Python<'_>,
        store: Py<PyAny>,
        name: &str,
        rank: u32,
        size: u32,
        device: &Bound<'_, PyAny>,
        timeout: f64,
    ) -> PyResult<Self> {
        let device = or_current(py, Some(device))?;
        let timeout = Duration::try_from_secs_f64(timeout).map_err(|error| value_error(error.to_string()))?;
        let store = PrefixStore::new(name, Arc::new(PythonStore { store, timeout }));
        let options = GroupOptions { timeout, ..GroupOptions::default() };
        run(py, || ProcessGroup::new(Arc::new(store), rank, size, &device, options)).map(Self)
    }

    fn all_reduce(&self, py: Python<'_>, tensor: &Bound<'_, PyTensor>, op: Operation) -> PyResult<_Work> {
        let (tensor, op) = (tensor.tensor(), operation(&op)?);
        self.submit(py, |group| group.all_reduce(&tensor, op))
    }

    fn reduce(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyTensor>,
        dst: u32,
        op: Operation,
    ) -> PyResult<_Work> {
        let (tensor, op) = (tensor.tensor(), operation(&op)?);
        self.submit(py, |group| group.reduce(&tensor, dst, op))
    }

    fn broadcast(&self, py: Python<'_>, tensor: &Bound<'_, PyTensor>, src: u32) -> PyResult<_Work> {
        let tensor = tensor.tensor();
        self.submit(py, |group| group.broadcast(&tensor, src))
    }

    fn all_gather(
        &self,
        py: Python<'_>,
        outputs: Vec<Bound<'_, PyTensor>>,
        input: &Bound<'_, PyTensor>,
    ) -> PyResult<_Work> {
        let (outputs, input) = (inner(&outputs), input.tensor());
        self.submit(py, |group| group.all_gather(&outputs, &input))
    }

    fn all_gather_into_tensor(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyTensor>,
        input: &Bound<'_, PyTensor>,
    ) -> PyResult<_Work> {
        let (output, input) = (output.tensor(), input.tensor());
        self.submit(py, |group| group.all_gather_into_tensor(&output, &input))
    }

    fn reduce_scatter(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyTensor>,
        inputs: Vec<Bound<'_, PyTensor>>,
        op: Operation,
    ) -> PyResult<_Work> {
        let (output, inputs, op) = (output.tensor(), inner(&inputs), operation(&op)?);
        self.submit(py, |group| group.reduce_scatter(&output, &inputs, op))
    }

    fn reduce_scatter_tensor(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyTensor>,
        input: &Bound<'_, PyTensor>,
        op: Operation,
    ) -> PyResult<_Work> {
        let (output, input, op) = (output.tensor(), input.tensor(), operation(&op)?);
        self.submit(py, |group| group.reduce_scatter_tensor(&output, &input, op))
    }

    fn all_to_all(
        &self,
        py: Python<'_>,
        outputs: Vec<Bound<'_, PyTensor>>,
        inputs: Vec<Bound<'_, PyTensor>>,
    ) -> PyResult<_Work> {
        let (outputs, inputs) = (inner(&outputs), inner(&inputs));
        self.submit(py, |group| group.all_to_all(&outputs, &inputs))
    }

    fn gather(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyTensor>,
        list: Option<Vec<Bound<'_, PyTensor>>>,
        dst: u32,
    ) -> PyResult<_Work> {
        let (tensor, list) = (tensor.tensor(), list.as_deref().map(inner));
        self.submit(py, |group| group.gather(&tensor, list.as_deref(), dst))
    }

    fn scatter(
        &self,
        py: Python<'_>,
        tensor: &Bound<'_, PyTensor>,
        list: Option<Vec<Bound<'_, PyTensor>>>,
        src: u32,
    ) -> PyResult<_Work> {
        let (tensor, list) = (tensor.tensor(), list.as_deref().map(inner));
        self.submit(py, |group| group.scatter(&tensor, list.as_deref(), src))
    }

    fn all_to_all_single(
        &self,
        py: Python<'_>,
        output: &Bound<'_, PyTensor>,
        input: &Bound<'_, PyTensor>,
        output_splits: Option<Vec<usize>>,
        input_splits: Option<Vec<usize>>,
    ) -> PyResult<_Work> {
        let (output, input) = (output.tensor(), input.tensor());
        self.submit(py, |group| {
            group.all_to_all_single(&output, &input, output_splits.as_deref(), input_splits.as_deref())
        })
    }

    /// Submits a gather for each pair of an output and an input, all as one.
    fn all_gather_coalesced(
        &self,
        py: Python<'_>,
        outputs: Vec<Bound<'_, PyTensor>>,
        inputs: Vec<Bound<'_, PyTensor>>,
    ) -> PyResult<_Work> {
        let (outputs, inputs) = (inner(&outputs), inner(&inputs));
        self.submit_together(py, |all| {
            let mut pairs = outputs.iter().zip(&inputs);
            pairs.try_for_each(|(output, input)| all.all_gather_into_tensor(output, input))
        })
    }

    /// Submits a reduction whose parts are scattered for each pair of an output and an input, all as one.
    fn reduce_scatter_coalesced(
        &self,
        py: Python<'_>,
        outputs: Vec<Bound<'_, PyTensor>>,
        inputs: Vec<Bound<'_, PyTensor>>,
        op: Operation,
    ) -> PyResult<_Work> {
        let (outputs, inputs, op) = (inner(&outputs), inner(&inputs), operation(&op)?);
        self.submit_together(py, |all| {
            let mut pairs = outputs.iter().zip(&inputs);
            pairs.try_for_each(|(output, input)| all.reduce_scatter_tensor(output, input, op))
        })
    }

    /// Submits a reduction of each tensor, all as one.
    fn all_reduce_coalesced(
        &self,
        py: Python<'_>,
        tensors: Vec<Bound<'_, PyTensor>>,
        op: Operation,
    ) -> PyResult<_Work> {
        let (tensors, op) = (inner(&tensors), operation(&op)?);
        self.submit_together(py, |all| tensors.iter().try_for_each(|tensor| all.all_reduce(tensor, op)))
    }

    /// Submits copies of each tensor of one rank to all, as one.
    fn broadcast_coalesced(
        &self,
        py: Python<'_>,
        tensors: Vec<Bound<'_, PyTensor>>,
        src: u32,
    ) -> PyResult<_Work> {
        let tensors = inner(&tensors);
        self.submit_together(py, |all| tensors.iter().try_for_each(|tensor| all.broadcast(tensor, src)))
    }

    /// Submits sends (`true`) and receives, each with the other rank, as one.
    fn exchange(&self, py: Python<'_>, list: Vec<(bool, Bound<'_, PyTensor>, u32)>) -> PyResult<_Work> {
        let list: Vec<_> =
            list.iter().map(|(is_sent, tensor, peer)| (*is_sent, tensor.tensor(), *peer)).collect();
        self.submit_together(py, |all| {
            list.iter().try_for_each(|(is_sent, tensor, peer)| match is_sent {
                true => all.send(tensor, *peer),
                false => all.recv(tensor, *peer),
            })
        })
    }

    /// Ends the group: collectives in progress end, and those of the other ranks get an error with the reason.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        run(py, || self.0.abort(reason))
    }
}

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<_Communicator>()?;
    module.add_class::<_Work>()
}
