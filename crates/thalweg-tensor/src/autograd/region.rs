//! Regions: the part of a tensor's memory that a view sees, and the node by which a view belongs to the history of its base.

use thalweg_ir::{Layout, Shape};
use thalweg_runtime::Result;

use super::{Backward, Edge, Gradients, Node};
use crate::tensor::Tensor;

/// A part of a tensor: the layouts of both, relative to the tensor's first element.
pub(crate) struct Region {
    whole: Layout,
    part: Layout,
}

impl Region {
    pub(crate) fn new(view: &Tensor, base: &Tensor) -> Result<Self> {
        let start = base.layout().offset();
        let from_start =
            |layout: &Layout| Layout::new(layout.shape(), layout.strides(), layout.offset() - start);
        Ok(Self { whole: from_start(base.layout())?, part: from_start(view.layout())? })
    }

    /// Returns a tensor of zeros with the layout of the base, and the part of it.
    pub(crate) fn zeros(&self, like: &Tensor) -> Result<[Tensor; 2]> {
        let memory = Tensor::zeros(&[self.whole.span()], like.dtype(), like.device())?;
        // Elements that an expanded view repeats occur once.
        let once: Shape = (self.part.shape().iter().zip(self.part.strides()))
            .map(|(&extent, &stride)| if stride == 0 { extent.min(1) } else { extent })
            .collect();
        let part = Layout::new(&once, self.part.strides(), self.part.offset())?;
        Ok([memory.viewed(self.whole.clone()), memory.viewed(part)])
    }
}

/// Returns the edge of a view whose base has a new history: that of a part of the base.
pub(super) fn region_edge(view: &Tensor, base: &Tensor, edge: Edge) -> Edge {
    let region = Region::new(view, base).expect("both have layouts");
    let edges = [Some(edge)].into_iter().collect();
    let node = Node::new(Box::new(RegionBackward(region)), edges, 1, base.device().current_stream(), None);
    Edge { node, input: 0 }
}

/// The backward function of taking a part of a tensor (`AsStridedBackward` of PyTorch).
struct RegionBackward(Region);

impl Backward for RegionBackward {
    fn name(&self) -> &'static str {
        "as_strided"
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let Some(gradient) = &gradients[0] else { return Ok(Gradients::from_elem(None, 1)) };
        let [whole, part] = self.0.zeros(gradient)?;
        part.copy_(&gradient.sum_to_shape(part.shape())?)?;
        Ok(Gradients::from_elem(Some(whole), 1))
    }
}
