//! [`GatheredRows`]: rows that a waiting loop is to gather, for a kernel that can read them where they are.

use std::sync::Arc;

use thalweg_ir::{DType, Layout};
use thalweg_ops::Placement;
use thalweg_ops::lower::LoopLaunch;
use thalweg_ops::structured::GATHER_REPORTED;
use thalweg_runtime::{Label, set_deferred};

use super::window::Place;
use super::{is_on, promised, queue, window};
use crate::tensor::Tensor;

/// A contiguous tensor (outer, extent, inner), and the list of indices (int64) at which its rows are gathered.
pub(crate) struct GatheredRows {
    pub table: Tensor,
    pub index: Tensor,
}

impl GatheredRows {
    /// Returns where the rows of a tensor (outer, count, inner) come from, if a waiting loop is to gather them. The loop waits on, and
    /// runs if anything reads the tensor itself.
    pub fn of(rows: &Tensor) -> Option<Self> {
        let shape = rows.shape();
        if !is_on() || !rows.storage().is_pending() || rows.layout() != &Layout::contiguous(shape) {
            return None;
        }
        let window = window();
        let is_gather = |launch: &LoopLaunch| {
            launch.name == GATHER_REPORTED.name && launch.rows.as_slice() == shape && stride(launch).is_some()
        };
        let table = match window.forgotten_table(rows.storage(), is_gather) {
            Some(bytes) => {
                let stream = rows.device().current_stream();
                Some(Arc::new(promised(&stream, bytes, Label::here("rows that are gathered")).ok()?))
            }
            None => None,
        };
        let gather = window.take_gather(rows.storage(), is_gather, table.clone())?;
        let over = |(storage, offset): &Place, shape: &[usize], strides: &[usize], dtype: DType| {
            let layout = Layout::new(shape, strides, *offset as usize / dtype.size_bytes()).ok()?;
            Some(Tensor::over(Arc::clone(storage), layout, dtype))
        };
        let launch = &gather.launch.launch;
        let (extent, inner) = (gather.numbers[0] as usize, gather.numbers[1] as usize);
        let strides = [extent * inner, inner, 1];
        let table = over(&gather.read[0], &[shape[0], extent, inner], &strides, rows.dtype());
        let index = over(&gather.read[1], &[shape[1]], stride(launch).as_slice(), DType::I64);
        // What computes them runs now, without the loop.
        let found = table.zip(index).map(|(table, index)| Self { table, index });
        if let Some(Self { table, index }) = &found {
            let _addresses = [table, index].map(Tensor::pointer);
        }
        window.add(gather);
        set_deferred(Some(queue));
        found
    }
}

/// Returns the stride of the indices of a loop that gathers, if all elements of a row have one.
fn stride(launch: &LoopLaunch) -> Option<usize> {
    let Placement::Strided { rows: strides, .. } = &launch.placements[1] else { return None };
    let is_list = [0, 2].into_iter().all(|other| launch.rows[other] == 1 || strides[other] == 0);
    is_list.then_some(strides[1] as usize)
}
