//! The map of the parameters that the ranks use in a pass: one byte per parameter, reduced on the device.

use thalweg_ir::DType;
use thalweg_runtime::{Error, Event, Result, refuse_if};
use thalweg_tensor::{HostTensor, Tensor};

use crate::{ProcessGroup, ReduceOp};

/// A map of the parameters that a pass uses, which the ranks reduce during the pass.
pub(super) struct UsedMap {
    own: Vec<bool>,
    /// The map of all ranks in host memory, with an event after its copy. A rank that uses all parameters does not read it.
    reduced: Option<(HostTensor, Event)>,
}

impl UsedMap {
    /// Reduces the maps of all ranks. Asynchronous.
    pub(super) fn send(group: &ProcessGroup, own: Vec<bool>) -> Result<Self> {
        refuse_if!(
            group.device().current_stream().is_capturing()?,
            "DistributedDataParallel: a capture cannot say which parameters each of its replays uses. Set static_graph where all passes \
             use the same ones, and run one before the capture"
        );
        let bytes: Vec<u8> = own.iter().map(|&is_used| u8::from(is_used)).collect();
        let map = Tensor::from_slice(&bytes, &[bytes.len()], group.device())?;
        let work = group.all_reduce(&map, ReduceOp::Max)?;
        if !own.contains(&false) {
            return Ok(Self { own, reduced: None });
        }
        // On the group's stream, so that the host does not wait for later work of the pass.
        let stream = group.stream();
        let _on_group = stream.make_current();
        work.wait()?;
        let host = HostTensor::pinned(map.shape(), DType::U8, group.device())?;
        map.copy_to_pinned(&host)?;
        map.record_use(stream);
        let copied = Event::new();
        copied.record(stream)?;
        Ok(Self { own, reduced: Some((host, copied)) })
    }

    /// Returns the parameters that any rank uses. If this rank uses all parameters it knows the answer. Otherwise it *blocks*
    /// until the map has arrived on the host; its copy was queued before the pass's first bucket.
    pub(super) fn by_any_rank(&self, group: &ProcessGroup) -> Result<Vec<bool>> {
        let Some((host, copied)) = &self.reduced else { return Ok(self.own.clone()) };
        copied.synchronize().map_err(|error| group.explain(error))?;
        group.check()?;
        let mut bytes = vec![0u8; self.own.len()];
        host.read(0, &mut bytes)?;
        Ok(bytes.into_iter().map(|byte| byte > 0).collect())
    }
}
