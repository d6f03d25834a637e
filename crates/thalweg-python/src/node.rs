//! Nodes of the graph that autograd records, and Python hooks of tensors and nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use pyo3::exceptions::{PyAttributeError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType, PyWeakrefMethods, PyWeakrefReference};
use smallvec::SmallVec;
use thalweg::Tensor;
use thalweg::autograd::{Gradients, HookHandle, Node};
use thalweg_lock::Mutex;

use crate::external::gradient_of;
use crate::failure::{call_python, exception, run, runtime, type_error};
use crate::handle::{Held, PyTensor};
use crate::record::saved_hooks;

/// A recorded operator, whose results are tensors (`torch.autograd.graph.Node`).
#[pyclass(name = "Node", module = "thalweg.autograd.graph", frozen, subclass, weakref)]
pub struct PyNode(pub Arc<Node>);

/// A node that is passed to the constructor of its object. Programs cannot create one.
#[pyclass(frozen)]
struct _NodeToken(Arc<Node>);

/// The Python data that is attached to a node.
#[derive(Default)]
struct AttachedData {
    /// A weak reference to the object of the node.
    object: Mutex<Option<Py<PyWeakrefReference>>>,
    /// For a Python function, its node class and its context.
    function: Option<(Py<PyType>, Py<PyAny>)>,
    /// The program's own dictionary.
    metadata: OnceLock<Py<PyDict>>,
}

fn attached_data(node: &Node) -> PyResult<&AttachedData> {
    node.attachment(AttachedData::default)
        .ok_or_else(|| runtime("another library has put something beside this node"))
}

/// Attaches the node class and the context of a Python function to its node.
pub fn put_function(node: &Node, class: Py<PyType>, context: Py<PyAny>) -> PyResult<()> {
    let beside = AttachedData { function: Some((class, context)), ..AttachedData::default() };
    node.attachment(|| beside).map(drop).ok_or_else(|| runtime("something is beside this node already"))
}

/// Returns the node class with this name.
fn class_of(py: Python<'_>, title: &str) -> PyResult<Py<PyType>> {
    static CLASSES: Mutex<BTreeMap<String, Py<PyType>>> = Mutex::new(BTreeMap::new());
    let known = CLASSES.lock().get(title).map(|class| class.clone_ref(py));
    if let Some(known) = known {
        return Ok(known);
    }
    let names = PyDict::new(py);
    names.set_item("__module__", "thalweg.autograd.graph")?;
    let class = py.get_type::<PyType>().call1((title, (py.get_type::<PyNode>(),), names))?;
    let class = class.cast_into::<PyType>()?.unbind();
    let mut classes = CLASSES.lock();
    Ok(classes.entry(title.to_owned()).or_insert(class).clone_ref(py))
}

/// Returns the object of a node: the same one as long as the program holds it.
pub fn object_of(py: Python<'_>, node: Arc<Node>) -> PyResult<Bound<'_, PyNode>> {
    let kept = attached_data(&node)?;
    let known = kept.object.lock().as_ref().map(|known| known.clone_ref(py));
    if let Some(known) = known.and_then(|known| known.bind(py).upgrade()) {
        return Ok(known.cast_into::<PyNode>()?);
    }
    let class = match &kept.function {
        Some((class, _)) => class.clone_ref(py),
        None => class_of(py, node.title())?,
    };
    let token = Bound::new(py, _NodeToken(node.clone()))?;
    let object = class.bind(py).call1((token,))?.cast_into::<PyNode>()?;
    let reference = PyWeakrefReference::new(&object)?.unbind();
    let _former = kept.object.lock().replace(reference);
    Ok(object)
}

/// A weak reference to a node, by which a context refers to its node.
#[pyclass(frozen)]
pub struct _NodeReference(pub Weak<Node>);

#[pymethods]
impl _NodeReference {
    /// Returns the node, or None.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyNode>>> {
        self.0.upgrade().map(|node| object_of(py, node)).transpose()
    }
}

/// A tensor that a node has saved (`torch._C._autograd.SavedTensor`).
#[pyclass(frozen)]
struct SavedTensor {
    node: Arc<Node>,
    name: String,
}

#[pymethods]
impl SavedTensor {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Err(runtime("Trying to create a SavedTensor object from Python is forbidden."))
    }

    /// Packs the tensor by a pair of hooks.
    #[pyo3(signature = (*hooks))]
    fn register_hooks(&self, py: Python<'_>, hooks: &Bound<'_, PyTuple>) -> PyResult<()> {
        let (pack, unpack) = pair_of_hooks(hooks)?;
        let (pack, unpack) = saved_hooks(pack, unpack);
        run(py, || {
            let registered = self.node.with_saved(&self.name, |saved| saved.register_hooks(pack, unpack));
            let none = "Calling register_hooks on a saved tensor with value None is forbidden";
            registered.unwrap_or_else(|| Err(thalweg::Error::invalid(none)))
        })
    }
}

/// Returns the handle of a tensor that a node has saved.
#[pyfunction]
fn _saved_tensor(node: &Bound<'_, PyNode>, name: String) -> SavedTensor {
    SavedTensor { node: node.get().0.clone(), name }
}

/// Reads the pair of functions that pack and unpack a saved tensor.
pub fn pair_of_hooks(hooks: &Bound<'_, PyTuple>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    if hooks.len() != 2 || hooks.iter().any(|hook| !hook.is_callable()) {
        return Err(type_error(
            "register_hooks(): incompatible function arguments: it takes two functions, which pack and unpack a saved tensor",
        ));
    }
    Ok((hooks.get_item(0)?.unbind(), hooks.get_item(1)?.unbind()))
}

#[pymethods]
impl PyNode {
    #[new]
    fn new(token: &Bound<'_, _NodeToken>) -> Self {
        Self(token.get().0.clone())
    }

    /// The context of a Python function; None for other operators.
    #[getter]
    fn _context(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(attached_data(&self.0)?.function.as_ref().map(|(_, context)| context.clone_ref(py)))
    }

    /// Returns the leaf whose gradient the node accumulates; None for other nodes, or if no handle of the leaf exists.
    fn _leaf<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTensor>>> {
        self.0.leaf().map(|leaf| PyTensor::object(py, leaf)).transpose()
    }

    /// The dictionary in which the program keeps its own data for the node.
    #[getter]
    fn metadata(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        Ok(attached_data(&self.0)?.metadata.get_or_init(|| PyDict::new(py).unbind()).clone_ref(py))
    }

    /// Returns a value that the node has saved: `_saved_self` is a tensor, and `_raw_saved_self` the handle of the saved tensor.
    fn __getattr__<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let (py, node) = (slf.py(), slf.get().0.clone());
        if let Some(name) = name.strip_prefix("_raw_saved_").filter(|&name| has_saved(&node, name)) {
            return Ok(Bound::new(py, SavedTensor { node, name: name.to_owned() })?.into_any());
        }
        if let Some(saved) = name.strip_prefix("_saved_") {
            let found =
                run(py, || node.with_saved(saved, thalweg::autograd::Saved::get_recorded).transpose())?;
            if let Some(tensor) = found {
                return Ok(PyTensor::object(py, tensor)?.into_any());
            }
        }
        if name == "variable" && node.is_accumulator() {
            let find = py.import("thalweg.nn.parameter")?.getattr("_of_node")?;
            return find.call1((slf,));
        }
        let class = slf.get_type().name()?;
        Err(PyAttributeError::new_err(format!("'{class}' object has no attribute '{name}'")))
    }

    /// Returns the names of attributes, including those of the saved values.
    fn __dir__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let names = slf.py().get_type::<PyAny>().call_method1("__dir__", (slf,))?;
        let names = names.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let names = PyList::new(slf.py(), names)?;
        for name in slf.get().0.saved_names().into_iter().filter(|name| !name.contains('.')) {
            names.append(format!("_saved_{name}"))?;
            names.append(format!("_raw_saved_{name}"))?;
        }
        Ok(names)
    }

    /// Calls only this node's backward function, with a gradient for each of its results.
    #[pyo3(signature = (*gradients))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        gradients: Vec<Option<Bound<'py, PyTensor>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, node) = (slf.py(), slf.get().0.clone());
        if gradients.len() != node.output_count() {
            return Err(type_error(format!(
                "{} expected {} arguments, got {} instead",
                node.title(),
                node.output_count(),
                gradients.len()
            )));
        }
        let gradients: Vec<Option<Tensor>> = gradients
            .iter()
            .map(|gradient| gradient.as_ref().map(gradient_of).transpose())
            .collect::<PyResult<_>>()?;
        let found = match gradients.iter().all(Option::is_none) {
            true => SmallVec::from_elem(None, node.next_functions().len()),
            false => run(py, || node.call(&gradients))?,
        };
        let found = gradient_objects(py, &found)?;
        if found.len() == 1 { found.get_item(0) } else { Ok(found.into_any()) }
    }

    /// Returns the name of the operator, as PyTorch writes it.
    fn name(&self) -> String {
        let title = self.0.title();
        if self.0.is_accumulator() { format!("torch::autograd::{title}") } else { title.to_owned() }
    }

    /// The nodes that receive the gradients of the inputs, each with the position among that node's results.
    #[getter]
    fn next_functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let edges = self.0.next_functions().into_iter().map(|edge| match edge {
            Some((node, place)) => (object_of(py, node)?, place).into_pyobject(py),
            None => (py.None(), 0_usize).into_pyobject(py),
        });
        PyTuple::new(py, edges.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the sequence number of the node: later nodes have greater numbers.
    fn _sequence_nr(&self) -> u64 {
        self.0.sequence_number()
    }

    /// Registers a hook that backward passes call after the node, with the gradients of its inputs and those of its results. The
    /// hook may return other gradients for the inputs.
    #[pyo3(name = "register_hook")]
    fn add_hook(&self, r#fn: Py<PyAny>) -> _HookHandle {
        let handle = self.0.register_hook(move |inputs, results| {
            call_python(|py| {
                let given =
                    r#fn.call1(py, (gradient_objects(py, inputs)?, gradient_objects(py, results)?))?;
                replaced(given.bind(py), inputs.len())
            })
        });
        _HookHandle(handle)
    }

    /// Registers a hook that backward passes call before the node, with the gradients of its results. The hook may return other
    /// gradients.
    #[pyo3(name = "register_prehook")]
    fn add_prehook(&self, r#fn: Py<PyAny>) -> _HookHandle {
        let handle = self.0.register_prehook(move |results| {
            call_python(|py| {
                let given = r#fn.call1(py, (gradient_objects(py, results)?,))?;
                replaced(given.bind(py), results.len())
            })
        });
        _HookHandle(handle)
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

/// Warns if a program reads a gradient that no pass keeps.
pub fn warn_of_missing_gradient(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    if tensor.is_leaf() || tensor.retains_grad() {
        return Ok(());
    }
    let text = c"The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be populated during \
                 autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf Tensor, use .retain_grad() on the \
                 non-leaf Tensor. If you access the non-leaf Tensor by mistake, make sure you access the leaf Tensor instead.";
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1)
}

fn has_saved(node: &Node, name: &str) -> bool {
    node.saved_names().iter().any(|known| known == name)
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

/// Reads the return value of a node's hook: nothing, or as many gradients as it received; a single gradient stands for a tuple of
/// one.
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
        gradient_of(tensor).map(Some)
    };
    match given.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().map(|value| read(&value)).collect::<PyResult<Gradients>>().map(Some),
        Err(_) if count == 1 => Ok(Some(SmallVec::from_elem(read(given)?, 1))),
        Err(_) => {
            Err(type_error(format!("a hook of a node returns None or a tuple, not {}", given.get_type())))
        }
    }
}

/// A registered hook. `remove` unregisters it.
#[pyclass(frozen)]
pub struct _HookHandle(HookHandle);

#[pymethods]
impl _HookHandle {
    /// Unregisters the hook.
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
    /// The recorded operator that produced this tensor.
    #[getter]
    fn grad_fn<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyNode>>> {
        slf.tensor().grad_fn().map(|node| object_of(slf.py(), node)).transpose()
    }

    /// The position of this tensor among the results of `grad_fn`.
    #[getter]
    fn output_nr(slf: &Bound<'_, Self>) -> usize {
        slf.tensor().gradient_edge().map_or(0, |edge| edge.place())
    }

    /// Returns the node that receives this tensor's gradient (for a leaf its accumulator) and the position among that node's
    /// results. Returns None if there is no such node.
    fn _gradient_edge<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<(Bound<'py, PyNode>, usize)>> {
        let edge = slf.tensor().gradient_edge();
        edge.map(|edge| Ok((object_of(slf.py(), edge.node().clone())?, edge.place()))).transpose()
    }

    /// Returns the tensor as the result of the program's own function over the memory of an input. The new view is not recorded.
    fn _of_function<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::object(slf.py(), slf.tensor().detached_view())
    }

    /// Returns whether the tensor is a view, whose base has the history.
    fn _is_part(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().is_view()
    }

    /// Makes the tensor a result of the node that produced `result`, and that has written this tensor in place.
    fn _take_history(slf: &Bound<'_, Self>, result: &Bound<'_, Self>) {
        if let Some(edge) = result.tensor().gradient_edge() {
            slf.tensor().set_history(edge);
        }
    }

    /// Sets the count of in-place writes.
    fn _set_version(slf: &Bound<'_, Self>, version: u32) {
        slf.tensor().set_version(version);
    }

    /// Counts an in-place write of the memory by the program itself.
    fn _bump_version(slf: &Bound<'_, Self>) {
        slf.tensor().bump_version();
    }

    /// Registers a hook that backward passes call with the gradient of this tensor. The hook may return another gradient.
    #[pyo3(name = "register_hook")]
    fn add_gradient_hook(slf: &Bound<'_, Self>, hook: Py<PyAny>) -> PyResult<_HookHandle> {
        let called = move |gradient: Option<&Tensor>| {
            call_python(|py| {
                let gradient = gradient.map(|gradient| PyTensor::object(py, gradient.clone())).transpose()?;
                let given = hook.call1(py, (gradient,))?;
                let given = given.bind(py);
                if given.is_none() {
                    return Ok(None);
                }
                match given.cast::<PyTensor>() {
                    Ok(tensor) => gradient_of(tensor).map(Some),
                    Err(_) => Err(type_error(format!(
                        "expected Variable, but hook returned '{}': a hook of a tensor returns a gradient or None",
                        given.get_type().name()?
                    ))),
                }
            })
        };
        slf.tensor().register_hook_of_any(called).map(_HookHandle).map_err(|error| exception(&error))
    }

    /// Registers a hook that backward passes call with this leaf after its gradient has been accumulated.
    #[pyo3(name = "register_post_accumulate_grad_hook")]
    fn add_accumulated_hook(slf: &Bound<'_, Self>, hook: Py<PyAny>) -> PyResult<_HookHandle> {
        check_callable(slf.py(), &hook)?;
        // The hook receives the program's own object if it still exists.
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
                    false => Err(runtime("Tensor post accumulate grad hooks should return None.")),
                }
            })
        };
        let registered = slf.tensor().register_post_accumulate_grad_hook(called);
        registered.map(_HookHandle).map_err(|error| exception(&error))
    }

    /// Makes backward passes keep the gradient of this result of an operator in `grad`.
    #[pyo3(name = "retain_grad")]
    fn keep_gradient(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.tensor().retain_grad().map_err(|error| exception(&error))
    }

    /// Whether backward passes keep the gradient of this result of an operator.
    #[getter]
    fn retains_grad(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().retains_grad()
    }

    /// Returns whether the memory was allocated in inference mode.
    #[pyo3(name = "is_inference")]
    fn is_of_inference(slf: &Bound<'_, Self>) -> bool {
        slf.tensor().is_inference()
    }
}

/// Adds the classes.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("_Node", module.py().get_type::<PyNode>())?;
    module.add("_NodeReference", module.py().get_type::<_NodeReference>())?;
    module.add("_SavedTensor", module.py().get_type::<SavedTensor>())?;
    module.add_function(wrap_pyfunction!(_saved_tensor, module)?)?;
    module.add_class::<_HookHandle>()
}
