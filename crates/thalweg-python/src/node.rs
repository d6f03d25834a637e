//! Nodes of the graph that autograd records, and hooks of Python: of tensors and of nodes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyWeakrefMethods, PyWeakrefReference};
use smallvec::SmallVec;
use thalweg::Tensor;
use thalweg::autograd::{Gradients, HookHandle, Node};

use crate::failure::{call_python, exception, type_error};
use crate::handle::{Held, PyTensor};

/// A recorded operator that a tensor is the result of (`torch.autograd.graph.Node`).
#[pyclass(name = "Node", module = "thalweg.autograd.graph", frozen)]
pub struct PyNode(pub Arc<Node>);

#[pymethods]
impl PyNode {
    /// Returns the name: that of the operator, as PyTorch writes it.
    fn name(&self) -> String {
        let title = self.0.title();
        if self.0.is_accumulator() { format!("torch::autograd::{title}") } else { title.to_owned() }
    }

    /// The nodes that the gradients of the inputs go to, each with the place among that node's results.
    #[getter]
    fn next_functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let edges = self.0.next_functions().into_iter().map(|edge| match edge {
            Some((node, place)) => (Some(Self(node)), place).into_pyobject(py),
            None => (None::<Self>, 0_usize).into_pyobject(py),
        });
        PyTuple::new(py, edges.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the number of the node: later ones have greater numbers.
    fn _sequence_nr(&self) -> u64 {
        self.0.sequence_number()
    }

    /// Registers a hook that backward passes call behind the node, with the gradients of its inputs and those of its results; it may
    /// return other gradients of the inputs.
    #[pyo3(name = "register_hook")]
    fn add_hook(&self, py: Python<'_>, r#fn: Py<PyAny>) -> PyResult<_HookHandle> {
        check_callable(py, &r#fn)?;
        let handle = self.0.register_hook(move |inputs, results| {
            call_python(|py| {
                let given =
                    r#fn.call1(py, (gradient_objects(py, inputs)?, gradient_objects(py, results)?))?;
                replaced(given.bind(py), inputs.len())
            })
        });
        Ok(_HookHandle(handle))
    }

    /// Registers a hook that backward passes call before the node, with the gradients of its results; it may return others.
    #[pyo3(name = "register_prehook")]
    fn add_prehook(&self, py: Python<'_>, r#fn: Py<PyAny>) -> PyResult<_HookHandle> {
        check_callable(py, &r#fn)?;
        let handle = self.0.register_prehook(move |results| {
            call_python(|py| {
                let given = r#fn.call1(py, (gradient_objects(py, results)?,))?;
                replaced(given.bind(py), results.len())
            })
        });
        Ok(_HookHandle(handle))
    }

    fn __repr__(&self) -> String {
        format!("<{} object at {:#x}>", self.0.title(), Arc::as_ptr(&self.0).addr())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| Arc::ptr_eq(&self.0, &other.get().0))
    }

    fn __hash__(&self) -> u64 {
        self.0.sequence_number()
    }
}

fn check_callable(py: Python<'_>, hook: &Py<PyAny>) -> PyResult<()> {
    if hook.bind(py).is_callable() {
        return Ok(());
    }
    Err(type_error(format!("a hook is a function, not {}", hook.bind(py).get_type().name()?)))
}

/// Returns gradients as a tuple of objects.
pub fn gradient_objects<'py>(py: Python<'py>, gradients: &[Option<Tensor>]) -> PyResult<Bound<'py, PyTuple>> {
    let objects = gradients
        .iter()
        .map(|gradient| gradient.as_ref().map(|gradient| PyTensor::object(py, gradient.clone())).transpose());
    PyTuple::new(py, objects.collect::<PyResult<Vec<_>>>()?)
}

/// Reads what a hook of a node has returned: nothing, or as many gradients as it was given; one stands for a tuple of one.
fn replaced(given: &Bound<'_, PyAny>, count: usize) -> PyResult<Option<Gradients>> {
    if given.is_none() {
        return Ok(None);
    }
    let read = |value: &Bound<'_, PyAny>| -> PyResult<Option<Tensor>> {
        if value.is_none() {
            return Ok(None);
        }
        let tensor = value.cast::<PyTensor>().map_err(|_| {
            type_error(format!(
                "a hook of a node returns gradients, None or a tuple of them, not {}",
                value.get_type()
            ))
        })?;
        Ok(Some(tensor.tensor()))
    };
    match given.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|value| read(&value)).collect::<PyResult<Gradients>>().map(Some),
        Err(_) if count == 1 => Ok(Some(SmallVec::from_elem(read(given)?, 1))),
        Err(_) => {
            Err(type_error(format!("a hook of a node returns None or a tuple, not {}", given.get_type())))
        }
    }
}

/// A registered hook; `remove` takes it back.
#[pyclass(frozen)]
pub struct _HookHandle(HookHandle);

#[pymethods]
impl _HookHandle {
    /// Takes the hook back.
    fn remove(&self) {
        self.0.remove();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _value: &Bound<'_, PyAny>, _trace: &Bound<'_, PyAny>) {
        self.0.remove();
    }
}

#[pymethods]
impl PyTensor {
    /// The recorded operator that it is the result of.
    #[getter]
    fn grad_fn(slf: &Bound<'_, Self>) -> Option<PyNode> {
        slf.tensor().grad_fn().map(PyNode)
    }

    /// Registers a hook that backward passes call with the gradient of this tensor; it may return another.
    #[pyo3(name = "register_hook")]
    fn add_gradient_hook(slf: &Bound<'_, Self>, hook: Py<PyAny>) -> PyResult<_HookHandle> {
        check_callable(slf.py(), &hook)?;
        let called = move |gradient: &Tensor| {
            call_python(|py| {
                let given = hook.call1(py, (PyTensor::object(py, gradient.clone())?,))?;
                let given = given.bind(py);
                if given.is_none() {
                    return Ok(None);
                }
                match given.cast::<PyTensor>() {
                    Ok(tensor) => Ok(Some(tensor.tensor())),
                    Err(_) => Err(type_error(format!(
                        "a hook of a tensor returns a gradient or None, not {}",
                        given.get_type()
                    ))),
                }
            })
        };
        slf.tensor().register_hook(called).map(_HookHandle).map_err(|error| exception(&error))
    }

    /// Registers a hook that backward passes call with this leaf once its gradient is accumulated.
    #[pyo3(name = "register_post_accumulate_grad_hook")]
    fn add_accumulated_hook(slf: &Bound<'_, Self>, hook: Py<PyAny>) -> PyResult<_HookHandle> {
        check_callable(slf.py(), &hook)?;
        // The hook gets the program's own object where that is still there.
        let object = PyWeakrefReference::new(slf)?.unbind();
        let called = move |leaf: &Tensor| {
            call_python(|py| {
                let own = object.bind(py).upgrade();
                let leaf = match own {
                    Some(own) => own,
                    None => PyTensor::object(py, leaf.clone())?.into_any(),
                };
                let given = hook.call1(py, (leaf,))?;
                match given.is_none(py) {
                    true => Ok(()),
                    false => {
                        Err(crate::failure::runtime("Tensor post accumulate grad hooks should return None."))
                    }
                }
            })
        };
        let registered = slf.tensor().register_post_accumulate_grad_hook(called);
        registered.map(_HookHandle).map_err(|error| exception(&error))
    }

    /// Lets backward passes keep the gradient of this result of an operator in `grad`.
    #[pyo3(name = "retain_grad")]
    fn keep_gradient(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.tensor().retain_grad().map_err(|error| exception(&error))
    }

    /// Whether backward passes keep the gradient of this result of an operator.
    #[getter]
    fn retains_grad(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().retains_grad()
    }

    /// Returns whether its memory was allocated in inference mode.
    #[pyo3(name = "is_inference")]
    fn is_of_inference(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().is_inference()
    }
}

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("_Node", module.py().get_type::<PyNode>())?;
    module.add_class::<_HookHandle>()
}
