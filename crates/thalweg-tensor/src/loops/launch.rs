//! [`LoopLaunch`]: a body with its operands, and its plan.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{Body, DType, Dimension, Dimensions, Node as Expression};
use thalweg_ops::stages::{Stages, stages as stages_of};
use thalweg_ops::{DTypes, Divided, Iteration, LEAST_DIVIDED, Placement, divided, kernel, plan};
use thalweg_runtime::{
    Device, DevicePointer, Environment, Error, KernelKey, Label, LaunchKey, PreparedLaunch, Result,
};

use crate::tensor::Tensor;

/// A body with everything that a launch of it needs.
pub(crate) struct LoopLaunch<'a> {
    /// A number that tells the body from every other one of these dtypes.
    pub id: u64,
    /// The name from which the kernel's is made.
    pub name: &'a str,
    /// The body.
    pub body: &'a Body,
    /// The dtype that the body computes in.
    pub compute: DType,
    /// The extents of rows and inner dimensions.
    pub rows: &'a [usize],
    /// The extents of the inner dimensions.
    pub inner: &'a [usize],
    /// The places where each input and then each output lies.
    pub placements: SmallVec<[Placement; 8]>,
    /// The bits of the scalars.
    pub scalars: &'a [u64],
    /// The operator and the line that asked for it.
    pub label: Label,
}

impl LoopLaunch<'_> {
    /// Returns the stages of the launch and the parts of its rows, where they are few and long.
    pub(super) fn in_stages(&self) -> Option<(Arc<Stages>, Divided)> {
        let points: usize = self.inner.iter().product();
        if self.body.reductions.is_empty() || points < LEAST_DIVIDED {
            return None;
        }
        let stages = stages_of(self.id, self.body)?;
        let divided = divided(self.body, &stages, &self.iteration(1, 0, false))?;
        Some((stages, divided))
    }

    pub(super) fn iteration(
        &self,
        alignment_bytes: u64,
        shared_memory_bytes: u32,
        has_clusters: bool,
    ) -> Iteration {
        Iteration {
            rows: widen(self.rows),
            inner: widen(self.inner),
            operands: self.placements.clone(),
            alignment_bytes,
            shared_memory_bytes,
            has_clusters,
        }
    }

    /// Returns the launch without addresses and numbers, planned and loaded once.
    pub(super) fn prepared(&self, device: &Device, alignment_bytes: u64) -> Result<Arc<PreparedLaunch>> {
        device.prepared_launch(&self.key(alignment_bytes), || self.prepare(device, alignment_bytes))
    }

    /// Refuses tensors of another dtype than the body reads: it would read beyond them.
    pub(super) fn check_inputs(&self, tensors: &[&Tensor]) -> Result<()> {
        let wanted = self.body.inputs.iter().map(|input| input.dtype);
        tensors.iter().zip(wanted).try_for_each(|(tensor, dtype)| check_dtype(tensor, dtype))
    }

    /// Refuses tensors of another dtype than the body writes.
    pub(super) fn check_outputs(&self, tensors: &[Tensor]) -> Result<()> {
        let wanted = self.body.outputs.iter().map(|output| output.dtype);
        tensors.iter().zip(wanted).try_for_each(|(tensor, dtype)| check_dtype(tensor, dtype))
    }

    /// Refuses an iteration space that has not the dimensions whose coordinates the body reads.
    fn check_rank(&self) -> Result<()> {
        let missing = self.body.nodes.iter().any(|node| match node {
            Expression::Index(Dimension::Row(dimension)) => usize::from(*dimension) >= self.rows.len(),
            Expression::Index(Dimension::Inner(dimension)) => usize::from(*dimension) >= self.inner.len(),
            _ => false,
        });
        if !missing {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the operator takes more dimensions than rows {:?} of points {:?}",
            self.rows, self.inner
        )))
    }

    /// Returns the key of a prepared launch: everything that the plan depends on.
    fn key(&self, alignment_bytes: u64) -> LaunchKey {
        let body = self.body;
        let inputs = body.inputs.iter().map(|input| input.dtype);
        let dtypes = inputs.chain(body.outputs.iter().map(|output| output.dtype)).chain([self.compute]);
        let mut key = LaunchKey::new();
        key.push(self.id);
        key.push(alignment_bytes << 32 | (self.rows.len() as u64) << 16 | self.inner.len() as u64);
        // Eight dtypes a word. How many there are follows from the body.
        let mut packed = 0;
        for (index, dtype) in dtypes.enumerate() {
            packed = packed << 8 | dtype as u64;
            if index % 8 == 7 {
                key.push(packed);
            }
        }
        key.push(packed);
        key.extend(self.rows.iter().chain(self.inner).map(|&extent| extent as u64));
        for placement in &self.placements {
            match placement {
                // A placement has strides for all inner dimensions, or for none.
                Placement::Strided { rows, inner } => {
                    key.push(u64::from(inner.is_empty()));
                    key.extend_from_slice(rows);
                    key.extend_from_slice(inner);
                }
                Placement::Gathered(elements) => key.extend_from_slice(&[2, *elements]),
            }
        }
        key
    }

    fn prepare(&self, device: &Device, alignment_bytes: u64) -> Result<PreparedLaunch> {
        self.check_rank()?;
        device.with_clusters(|has_clusters| self.prepare_with(device, alignment_bytes, has_clusters))
    }

    fn prepare_with(
        &self,
        device: &Device,
        alignment_bytes: u64,
        has_clusters: bool,
    ) -> Result<PreparedLaunch> {
        let body = self.body;
        let shared_memory_bytes = device.properties().shared_memory_per_block_optin_bytes;
        let plan = plan(body, &self.iteration(alignment_bytes, shared_memory_bytes, has_clusters));
        if Environment::get().explain {
            eprintln!("{}: {}", self.name, plan.explain(body));
        }
        let mut dtypes: DTypes = body.inputs.iter().map(|input| input.dtype).collect();
        dtypes.extend(body.outputs.iter().map(|output| output.dtype));
        dtypes.push(self.compute);
        let key = KernelKey { body: self.id, dtypes, class: plan.class };
        let loaded = device.kernel(&key, || kernel(self.name, self.compute, body.clone(), plan.class))?;
        PreparedLaunch::new(device, loaded, &plan.geometry)
    }
}

fn check_dtype(tensor: &Tensor, dtype: DType) -> Result<()> {
    if tensor.dtype() == dtype {
        return Ok(());
    }
    Err(Error::invalid(format!("a tensor {:?} must be {dtype}, not {}", tensor.shape(), tensor.dtype())))
}

pub(crate) fn widen(sizes: &[usize]) -> Dimensions {
    sizes.iter().map(|&size| size as u64).collect()
}

/// Returns the alignment that all of these addresses have, up to 256 bytes.
pub(super) fn alignment_of(pointers: impl IntoIterator<Item = DevicePointer>) -> u64 {
    let addresses = pointers.into_iter().fold(0, |all, pointer| all | pointer.address());
    1 << addresses.trailing_zeros().min(8)
}
