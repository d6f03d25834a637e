//! The nodes of views: how the gradient of a view becomes that of its base.

use std::panic::Location;

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Shape, element_count};
use thalweg_kernels::scatter::Combine;
use thalweg_ops::structured;
use thalweg_runtime::Result;

use super::indexing::call_scatter;
use crate::autograd::{Backward, Gradients, is_grad_enabled, record};
use crate::caller::label_at;
use crate::loops::{LoopArguments, run_into};
use crate::tensor::Tensor;

/// The way in which the gradient of a view becomes that of its base.
pub(crate) enum ViewBackward {
    /// Dimensions in another order; this order reverses it.
    Permute(Shape),
    /// Another shape; this is the base's shape.
    Reshape(Shape),
    /// Repeated dimensions; this is the base's shape.
    Expand(Shape),
    /// A subset of the elements, each once.
    Part {
        /// The view.
        name: &'static str,
        /// The base's shape.
        shape: Shape,
        /// The layout of the view's elements in a contiguous tensor of that shape.
        part: Layout,
    },
    /// The parts of complex numbers as a last dimension.
    Parts,
    /// The last dimension as the parts of complex numbers.
    Numbers,
    /// Windows of a dimension.
    Windows {
        /// The base's shape.
        shape: Shape,
        /// The dimension.
        dimension: usize,
        /// The number of elements of a window.
        size: usize,
        /// The number of elements from one window to the next.
        step: usize,
    },
    /// Any strides over the memory.
    Strided {
        /// The base's layout.
        base: Layout,
        /// The view's layout.
        view: Layout,
    },
}

impl Backward for ViewBackward {
    fn name(&self) -> &'static str {
        match self {
            Self::Permute(_) => "permute",
            Self::Reshape(_) => "reshape",
            Self::Expand(_) => "expand",
            Self::Part { name, .. } => name,
            Self::Parts => "view_as_real",
            Self::Numbers => "view_as_complex",
            Self::Windows { .. } => "unfold",
            Self::Strided { .. } => "as_strided",
        }
    }

    fn is_of_loops(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let Some(gradient) = &gradients[0] else { return Ok(Gradients::from_elem(None, 1)) };
        let result = match self {
            Self::Permute(order) => gradient.permute(order)?,
            Self::Reshape(shape) => gradient.reshape(shape)?,
            Self::Expand(shape) => gradient.sum_to_shape(shape)?,
            // The part is the entire base.
            Self::Part { shape, part, .. } if *part == Layout::contiguous(shape) => gradient.clone(),
            Self::Part { shape, part, .. } => {
                let whole = Tensor::zeros(shape, gradient.dtype(), gradient.device())?;
                whole.viewed(part.clone()).copy_(gradient)?;
                whole
            }
            Self::Parts => gradient.contiguous()?.view_as_complex()?,
            Self::Numbers => gradient.view_as_real()?,
            Self::Windows { shape, dimension, size, step } => {
                windows_gradient(gradient, shape, *dimension, [*size, *step])?
            }
            Self::Strided { base, view } => strided_gradient(gradient, base, view)?,
        };
        Ok(Gradients::from_elem(Some(result), 1))
    }
}

/// Sums the gradients of windows of a dimension at the elements of the base. Parts of windows that are as long as the step do not
/// overlap, so each such part is one addition.
pub(crate) fn windows_gradient(
    gradient: &Tensor,
    shape: &[usize],
    dimension: usize,
    [size, step]: [usize; 2],
) -> Result<Tensor> {
    let whole = Tensor::zeros(shape, gradient.dtype(), gradient.device())?;
    let count = gradient.shape()[dimension];
    for start in (0..size).step_by(step) {
        let width = step.min(size - start);
        let part = whole.narrow(dimension as i64, start, (count - 1) * step + width)?;
        let windows = part.unfold(dimension as i64, width as i64, step as i64)?;
        windows.add_(&gradient.narrow(-1, start, width)?)?;
    }
    Ok(whole)
}

/// Sums the gradient of a view with any strides in its base's memory, since elements may occur several times.
fn strided_gradient(gradient: &Tensor, base: &Layout, view: &Layout) -> Result<Tensor> {
    let start = base.offset().min(view.offset());
    let reach = |layout: &Layout| layout.offset() - start + layout.span();
    let memory = reach(base).max(reach(view));
    let device = gradient.device();
    let places = Tensor::arange(memory, 0i64, 1i64, DType::I64, device)?;
    let within = |layout: &Layout| Layout::new(layout.shape(), layout.strides(), layout.offset() - start);
    let index = places.with_layout(within(view)?).reshape(&[1, gradient.elements(), 1])?;
    let sums = Tensor::zeros(&[1, memory, 1], gradient.dtype(), device)?;
    let source = gradient.reshape(&[1, gradient.elements(), 1])?;
    let mut sums = call_scatter(&sums, &index, &source, Combine::Sum)?;
    let base = within(base)?;
    if base.may_overlap() {
        // Elements of the base that share memory divide the sum equally.
        let shared = places.with_layout(base.clone()).reshape(&[1, element_count(base.shape())?, 1])?;
        let ones = Tensor::ones(shared.shape(), sums.dtype(), device)?;
        let counts = call_scatter(&sums.zeros_like()?, &shared, &ones, Combine::Sum)?;
        sums = sums.div(&counts.clamp_min(1)?)?;
    }
    let [size, stride] = [base.shape(), base.strides()]
        .map(|list| list.iter().map(|&number| number as i64).collect::<SmallVec<[i64; 6]>>());
    sums.as_strided(&size, &stride, Some(base.offset() as i64))?.contiguous()
}

/// Records a view.
pub(crate) fn record_view(base: &Tensor, view: Tensor, backward: impl FnOnce() -> ViewBackward) -> Tensor {
    if !base.requires_grad() || !is_grad_enabled() || base.is_inference() {
        return view;
    }
    let mut results = [view];
    record(Box::new(backward()), &[base], &mut results, base.device().current_stream());
    let [view] = results;
    view
}

/// Returns the tensor of a shape of which these gradients already are the parts, in the layouts that `part` computes; `None` if
/// they are not, or must be recorded.
fn whole_of(
    gradients: &[Option<Tensor>],
    shape: &[usize],
    mut part: impl FnMut(&Layout, usize) -> Option<Layout>,
) -> Option<Tensor> {
    let first = gradients.first()?.as_ref()?;
    if is_grad_enabled() {
        return None;
    }
    let base = Layout::contiguous(shape);
    for (place, gradient) in gradients.iter().enumerate() {
        let (gradient, part) = (gradient.as_ref()?, part(&base, place)?);
        let (found, start) = (gradient.layout(), first.layout().offset() + part.offset());
        let is_the_part = gradient.shares_storage_with(first)
            && gradient.dtype() == first.dtype()
            && (found.shape(), found.strides(), found.offset()) == (part.shape(), part.strides(), start);
        if !is_the_part {
            return None;
        }
    }
    Some(first.with_layout(Layout::new(shape, base.strides(), first.layout().offset()).ok()?))
}

/// Returns the gradient of a tensor of a shape from those of its parts: the tensor whose parts they already are, or a new one into
/// which they are copied.
fn joined(
    gradients: &[Option<Tensor>],
    shape: &[usize],
    layout: impl FnMut(&Layout, usize) -> Option<Layout>,
    part: impl Fn(&Tensor, usize) -> Result<Tensor>,
) -> Result<Gradients> {
    let Some(some) = gradients.iter().flatten().next() else { return Ok(Gradients::from_elem(None, 1)) };
    let packed = whole_of(gradients, shape, layout);
    if packed.is_some() {
        return Ok(Gradients::from_elem(packed, 1));
    }
    let whole = Tensor::empty(shape, some.dtype(), some.device())?;
    for (place, gradient) in gradients.iter().enumerate() {
        let part = part(&whole, place)?;
        match gradient {
            Some(gradient) => part.copy_(gradient)?,
            None => part.copy_(&Tensor::zeros(&[], whole.dtype(), whole.device())?)?,
        }
    }
    Ok(Gradients::from_elem(Some(whole), 1))
}

/// The node of the consecutive parts of a dimension: it joins their gradients.
struct SplitBackward {
    /// The base's shape.
    shape: Shape,
    dimension: usize,
    lengths: Vec<usize>,
}

impl Backward for SplitBackward {
    fn name(&self) -> &'static str {
        "split"
    }

    fn is_of_loops(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let start = |place: usize| self.lengths[..place].iter().sum::<usize>();
        joined(
            gradients,
            &self.shape,
            |base, place| base.narrow(self.dimension, start(place), self.lengths[place]).ok(),
            |whole, place| whole.narrow(self.dimension as i64, start(place), self.lengths[place]),
        )
    }
}

/// Records the parts of a dimension, of these lengths, as views.
pub(crate) fn record_split(
    base: &Tensor,
    mut parts: Vec<Tensor>,
    dimension: usize,
    lengths: Vec<usize>,
) -> Vec<Tensor> {
    if base.requires_grad() && is_grad_enabled() && !parts.is_empty() {
        let node = SplitBackward { shape: base.shape().into(), dimension, lengths };
        record(Box::new(node), &[base], &mut parts, base.device().current_stream());
    }
    parts
}

/// The node of the slices of a dimension: it joins their gradients.
struct UnbindBackward {
    /// The base's shape.
    shape: Shape,
    dimension: usize,
}

impl Backward for UnbindBackward {
    fn name(&self) -> &'static str {
        "unbind"
    }

    fn is_of_loops(&self) -> bool {
        true
    }

    fn backward(&self, gradients: &[Option<Tensor>]) -> Result<Gradients> {
        let layout = |base: &Layout, place| base.select(self.dimension, place).ok();
        if let ([Some(first), Some(second), Some(third)], false) = (gradients, is_grad_enabled()) {
            // For queries, keys and values one kernel joins them, which does not record.
            let packed = whole_of(gradients, &self.shape, layout);
            if packed.is_some() {
                return Ok(Gradients::from_elem(packed, 1));
            }
            let whole = Tensor::empty(&self.shape, first.dtype(), first.device())?;
            let order: Shape = [self.dimension]
                .into_iter()
                .chain((0..self.shape.len()).filter(|&dimension| dimension != self.dimension))
                .collect();
            let target = whole.permute(&order)?;
            let label = label_at("unbind_backward", Location::caller());
            run_into(
                &structured::STACK3,
                &[first, second, third],
                &LoopArguments::default(),
                &[target],
                label,
            )?;
            return Ok(Gradients::from_elem(Some(whole), 1));
        }
        joined(gradients, &self.shape, layout, |whole, place| whole.select(self.dimension as i64, place))
    }
}

/// Records the slices of a dimension as views.
pub(crate) fn record_unbind(base: &Tensor, mut places: Vec<Tensor>, dimension: usize) -> Vec<Tensor> {
    if base.requires_grad() && is_grad_enabled() && !places.is_empty() {
        let node = UnbindBackward { shape: base.shape().into(), dimension };
        record(Box::new(node), &[base], &mut places, base.device().current_stream());
    }
    places
}
