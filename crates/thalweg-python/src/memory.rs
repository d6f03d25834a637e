//! Memory management beyond tensors, for `thalweg.cuda.memory`: pools, limits, snapshots, statistics of pinned memory.

use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use thalweg::GraphPool;
use thalweg::memory::{PoolOptions, SnapshotOptions};
use thalweg::runtime::MemPool;
use thalweg::runtime::graph::OverwritePolicy;

use crate::device::or_current;
use crate::failure::{exception, run};
use crate::regions::{Current, Owner, enter};

/// A memory pool for a part of the program (`torch.cuda.MemPool`).
#[pyclass(module = "thalweg.cuda", frozen)]
pub struct _MemPool(MemPool, OnceLock<GraphPool>);

#[pymethods]
impl _MemPool {
    #[new]
    fn new(
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        use_on_oom: bool,
        no_split: bool,
    ) -> PyResult<Self> {
        let device = or_current(py, device)?;
        let options = PoolOptions { use_on_oom, no_split, ..PoolOptions::default() };
        run(py, || Ok(MemPool::new(&device, options))).map(|pool| Self(pool, OnceLock::new()))
    }

    /// Returns the allocator's number of the pool.
    fn id(&self) -> u64 {
        self.0.id().raw()
    }

    /// Returns the number of references to the pool: that of its object, and one for each region that uses it.
    fn use_count(&self) -> usize {
        self.0.use_count()
    }

    /// Makes this thread allocate from the pool, until `_exit` is called for the same owner.
    fn enter(&self, owner: &Bound<'_, PyAny>) -> PyResult<()> {
        // The scope belongs to this thread, so the interpreter lock is kept.
        let scope = self.0.enter().map_err(|error| exception(&error))?;
        enter(Owner::object(owner), Current::Pool(scope));
        Ok(())
    }
}

impl _MemPool {
    /// Returns the pool as a graph pool: the same one each time.
    pub fn for_graphs(&self, py: Python<'_>) -> PyResult<GraphPool> {
        if let Some(pool) = self.1.get() {
            return Ok(pool.clone());
        }
        let made = run(py, || self.0.for_graphs(OverwritePolicy::Unchecked))?;
        Ok(self.1.get_or_init(|| made).clone())
    }
}

/// Returns the free bytes and the total bytes of a device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn mem_get_info(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<(u64, u64)> {
    let device = or_current(py, device)?;
    let info = run(py, || Ok(device.driver().memory_info(device.index())?))?;
    Ok((info.free_bytes, info.total_bytes))
}

/// Limits the allocator to a fraction of a device's memory.
#[pyfunction]
#[pyo3(signature = (fraction, device=None))]
fn set_per_process_memory_fraction(
    py: Python<'_>,
    fraction: f64,
    device: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let device = or_current(py, device)?;
    run(py, || {
        let set = device.allocator().set_memory_fraction(fraction);
        set.map_err(|error| thalweg::Error::invalid(error.to_string()))
    })
}

/// Returns the fraction of a device's memory that the allocator may take.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn get_per_process_memory_fraction(py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<f64> {
    let device = or_current(py, device)?;
    run(py, || Ok(device.allocator().memory_fraction()))
}

/// Returns a snapshot of a device's memory, or of one of its pools, with or without the history, as a pickle in PyTorch's format.
#[pyfunction]
fn _memory_snapshot<'py>(
    py: Python<'py>,
    device: Option<&Bound<'py, PyAny>>,
    pool: Option<&Bound<'py, _MemPool>>,
    include_traces: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let device = or_current(py, device)?;
    let mut options = SnapshotOptions::default().with_traces(include_traces);
    if let Some(pool) = pool {
        options = options.with_pool(pool.get().0.id());
    }
    let pickle = run(py, || Ok(device.allocator().memory_snapshot_with(&options).to_pickle()))?;
    Ok(PyBytes::new(py, &pickle))
}

/// Returns the statistics of pinned memory, by PyTorch's names.
#[pyfunction]
fn host_memory_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let device = or_current(py, None)?;
    let stats = PyDict::new(py);
    for (name, value) in run(py, || Ok(device.host_allocator().memory_stats()))? {
        stats.set_item(name, value)?;
    }
    Ok(stats)
}

/// Resets the peaks of the statistics of pinned memory to the current values.
#[pyfunction]
fn reset_peak_host_memory_stats(py: Python<'_>) -> PyResult<()> {
    let device = or_current(py, None)?;
    run(py, || {
        device.host_allocator().reset_peak_memory_stats();
        Ok(())
    })
}

/// Resets the accumulated statistics of pinned memory to 0.
#[pyfunction]
fn reset_accumulated_host_memory_stats(py: Python<'_>) -> PyResult<()> {
    let device = or_current(py, None)?;
    run(py, || {
        device.host_allocator().reset_accumulated_memory_stats();
        Ok(())
    })
}

/// Returns whether kernels of a device can access the memory of another device of its kind.
#[pyfunction]
fn can_device_access_peer(
    py: Python<'_>,
    device: &Bound<'_, PyAny>,
    peer_device: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let (device, peer) = (or_current(py, Some(device))?, or_current(py, Some(peer_device))?);
    if device == peer {
        return Ok(false);
    }
    run(py, || Ok(device.driver().can_access_peer(device.index(), peer.index())?))
}

/// Adds the class and the functions to the module of streams and graphs.
pub fn register(own: &Bound<'_, PyModule>) -> PyResult<()> {
    own.add_class::<_MemPool>()?;
    functions![own;
        mem_get_info, set_per_process_memory_fraction, get_per_process_memory_fraction, _memory_snapshot,
        host_memory_stats, reset_peak_host_memory_stats, reset_accumulated_host_memory_stats,
        can_device_access_peer
    ];
    Ok(())
}
