//! [`LoopLaunch`]: a launch of a body, complete except for its addresses.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_ir::{Body, DType, Dimension, Kernel, Node, Shape};

use super::extents::widen;
use super::{LowerError, Result, Steps};
use crate::definition::DTypes;
use crate::plan::{Divided, Iteration, LEAST_DIVIDED, LaunchPlan, Placement, divided, kernel, plan_in_lanes};
use crate::stages::{Stages, stages};

/// The bits of a launch's scalars, in the forms in which the body reads them.
pub type LaunchNumbers = SmallVec<[u64; 12]>;

/// A launch of a body over rows and inner dimensions, complete except for its addresses.
#[derive(Clone, Debug)]
pub struct LoopLaunch {
    /// A number that distinguishes the body from every other one of these dtypes.
    pub id: u64,
    /// The name from which the kernel's name is derived.
    pub name: Cow<'static, str>,
    /// The body.
    pub body: Arc<Body>,
    /// The dtype in which the body computes.
    pub compute: DType,
    /// The extents of the rows.
    pub rows: Shape,
    /// The extents of the inner dimensions.
    pub inner: Shape,
    /// The placements of the inputs and then of the outputs.
    pub placements: SmallVec<[Placement; 8]>,
    /// The bits of the scalars.
    pub scalars: LaunchNumbers,
    /// The lanes of a row that sums of a composition keep, if the planner would choose others.
    pub lanes: Option<u16>,
}

impl LoopLaunch {
    /// Returns the dtypes of the inputs, of the outputs, and the one in which the body computes.
    pub fn dtypes(&self) -> DTypes {
        let inputs = self.body.inputs.iter().map(|input| input.dtype);
        let outputs = self.body.outputs.iter().map(|output| output.dtype);
        inputs.chain(outputs).chain([self.compute]).collect()
    }

    /// Returns the iteration on a device whose blocks have this much shared memory and may form clusters, for addresses of this
    /// alignment.
    pub fn iteration(&self, alignment_bytes: u64, shared_memory_bytes: u32, has_clusters: bool) -> Iteration {
        Iteration {
            rows: widen(&self.rows),
            inner: widen(&self.inner),
            operands: self.placements.clone(),
            alignment_bytes,
            shared_memory_bytes,
            has_clusters,
        }
    }

    /// Returns the number of points of a row.
    fn points(&self) -> usize {
        self.inner.iter().product()
    }

    /// Returns the stages of the body and the parts of its rows, if they are few and long.
    fn division(&self) -> Option<(Arc<Stages>, Divided)> {
        if self.body.reductions.is_empty() || self.body.has_places() || self.points() < LEAST_DIVIDED {
            return None;
        }
        let stages = stages(self.id, &self.body)?;
        let divided = divided(&self.body, &stages, &self.iteration(1, 0, false))?;
        Some((stages, divided))
    }

    /// Returns whether it is executed as several launches.
    pub fn is_staged(&self) -> bool {
        self.division().is_some()
    }

    /// Returns the launches as which it is executed, if its rows are few and long; `None` if it is a single launch.
    ///
    /// # Errors
    /// Returns an error if a size overflows.
    pub fn steps(&self) -> Result<Option<Steps>> {
        match self.division() {
            Some((stages, divided)) => Steps::new(self, &stages, &divided).map(Some),
            None => Ok(None),
        }
    }

    /// Returns numbers that determine the plan for addresses of this alignment: the key of prepared launches.
    pub fn key(&self, alignment_bytes: u64) -> SmallVec<[u64; 40]> {
        let mut key = SmallVec::new();
        key.push(self.id);
        key.push(alignment_bytes << 32 | (self.rows.len() as u64) << 16 | self.inner.len() as u64);
        key.extend(self.lanes.map(|lanes| 1 << 63 | u64::from(lanes)));
        // Eight dtypes per word; their number follows from the body.
        let mut packed = 0;
        for (index, dtype) in self.dtypes().into_iter().enumerate() {
            packed = packed << 8 | dtype as u64;
            if index % 8 == 7 {
                key.push(packed);
            }
        }
        key.push(packed);
        key.extend(self.rows.iter().chain(&self.inner).map(|&extent| extent as u64));
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

    /// Decides the class and the geometry of the launch.
    ///
    /// # Errors
    /// Returns an error if the body reads coordinates of dimensions that the iteration does not have.
    pub fn plan(
        &self,
        alignment_bytes: u64,
        shared_memory_bytes: u32,
        has_clusters: bool,
    ) -> Result<LaunchPlan> {
        self.check_rank()?;
        let iteration = self.iteration(alignment_bytes, shared_memory_bytes, has_clusters);
        Ok(plan_in_lanes(&self.body, &iteration, self.lanes))
    }

    /// Returns the kernel of a plan.
    pub fn kernel(&self, plan: &LaunchPlan) -> Kernel {
        kernel(&self.name, self.compute, self.body.as_ref().clone(), plan.class)
    }

    /// Refuses an iteration without the dimensions whose coordinates the body reads.
    fn check_rank(&self) -> Result<()> {
        let is_missing = self.body.nodes.iter().any(|node| match node {
            Node::Index(Dimension::Row(dimension)) => usize::from(*dimension) >= self.rows.len(),
            Node::Index(Dimension::Inner(dimension)) => usize::from(*dimension) >= self.inner.len(),
            _ => false,
        });
        match is_missing {
            false => Ok(()),
            true => Err(LowerError::Operands(format!(
                "the operator takes more dimensions than rows {:?} of points {:?}",
                self.rows, self.inner
            ))),
        }
    }
}
