//! The memory that results are to be written into: that of the tensors of an `out=` form, and of the first tensor of an in-place
//! form.
//!
//! The code that has memory for a result [offers](offered) it while the operator runs (`dispatch::offers` decides whether it
//! may). A kernel that is about to allocate a result takes an offer instead where dtype and layout fit ([`for_loop`],
//! [`Tensor::result_on`]), and each offer serves once. A result that took no offer is computed in memory of its own and copied,
//! so an offer changes no bit of a result, only where it is written.
//!
//! Memory that the operator also reads can only be taken by the code that reads it: a loop that reads and writes point by point,
//! or a kernel that changes a copy ([`Tensor::owned`]) or may write where it read ([`for_kernel_over`]).

use smallvec::SmallVec;
use thalweg_ir::{DType, Layout, Shape};
use thalweg_runtime::{Device, Label, Result, Stream};

use crate::caller::CallLocation;
use crate::scoped::{Scoped, put, scoped};
use crate::tensor::{Tensor, Tensors};

/// The minimum alignment in bytes of every allocation of the caching allocator; kernels other than loops may rely on it.
const ALIGNMENT: u64 = 256;

/// The way in which an operator treats the first tensor of its in-place form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    /// The tensor is read throughout, so it may not be overwritten before the result is complete.
    Read,
    /// The kernels that read the tensor may overwrite it: nothing reads it afterwards.
    Consumed,
    /// The tensor's shape is read, but not its elements.
    Ignored,
    /// Like `Ignored`, and all elements are set to one value, so that several of them may share memory.
    Filled,
}

/// Memory for a result.
pub(crate) struct Offer {
    target: Tensor,
    /// Whether the operator reads it.
    is_read: bool,
    /// Whether the operator is one loop, to which strides do not matter: other operators rely on the layouts of the memory that
    /// they allocate.
    is_of_loop: bool,
    /// Whether autograd records the call. The version is then counted as the offer is taken, so that the call's node saves the
    /// result as it is after the write.
    is_recorded: bool,
    is_taken: bool,
}

impl Offer {
    /// Offers the memory of a tensor.
    pub(crate) fn new(target: &Tensor, is_read: bool, is_of_loop: bool) -> Self {
        Self { target: target.detach(), is_read, is_of_loop, is_recorded: false, is_taken: false }
    }

    /// Offers the memory of a tensor to a loop that autograd records, and that reads each element before it writes over it.
    pub(crate) fn recorded(target: &Tensor) -> Self {
        Self { is_recorded: true, ..Self::new(target, true, true) }
    }

    /// Returns whether autograd records the call that the memory is offered to.
    pub(crate) fn is_recorded(&self) -> bool {
        self.is_recorded
    }
}

/// The offers to one call.
pub(crate) type Offers = Vec<Offer>;

thread_local! {
    /// The offers to the operator that runs.
    static OFFERS: Scoped<Offers> = const { scoped(Offers::new()) };
}

/// Restores the previous offers when dropped.
struct End(Offers);

impl Drop for End {
    fn drop(&mut self) {
        put(&OFFERS, std::mem::take(&mut self.0));
    }
}

/// Runs a function whose kernels may take these offers, and none that were made before. Returns the function's result, and whether each
/// was taken.
pub(crate) fn offered<R>(offers: Offers, run: impl FnOnce() -> R) -> (R, SmallVec<[bool; 2]>) {
    let end = End(put(&OFFERS, offers));
    let result = run();
    let taken = OFFERS.with_borrow(|offers| offers.iter().map(|offer| offer.is_taken).collect());
    drop(end);
    (result, taken)
}

/// A guard that withdraws an offer which was made in addition to others.
struct TakenBack;

impl Drop for TakenBack {
    fn drop(&mut self) {
        OFFERS.with_borrow_mut(|offers| drop(offers.pop()));
    }
}

/// Runs a function whose kernels may take one more offer than those that were made before.
pub(crate) fn also_offered<R>(offer: Offer, run: impl FnOnce() -> R) -> R {
    OFFERS.with_borrow_mut(|offers| offers.push(offer));
    let _taken_back = TakenBack;
    run()
}

/// Runs a function whose real results are the parts of complex ones, side by side: where memory is offered for those, it may take that.
pub(crate) fn by_parts<R>(run: impl FnOnce() -> R) -> R {
    let parts = |offer: &Offer| {
        let (target, layout) = (&offer.target, offer.target.layout());
        let is_whole = !offer.is_taken && !offer.is_read && target.dtype().is_complex();
        let shape: Shape = layout.shape().iter().copied().chain([2]).collect();
        let strides: Shape = layout.strides().iter().map(|stride| 2 * stride).chain([1]).collect();
        let layout = is_whole.then(|| Layout::new(&shape, &strides, 2 * layout.offset()).ok())??;
        let target = target.view_of_dtype(layout, target.dtype().real());
        Some(Offer { target, is_taken: false, ..*offer })
    };
    let views: SmallVec<[Option<Offer>; 1]> = OFFERS.with_borrow(|offers| offers.iter().map(parts).collect());
    let places: SmallVec<[usize; 1]> = (0..views.len()).filter(|&place| views[place].is_some()).collect();
    if places.is_empty() {
        return run();
    }
    let (result, taken) = offered(views.into_iter().flatten().collect(), run);
    OFFERS.with_borrow_mut(|offers| {
        places.into_iter().zip(taken).for_each(|(place, taken)| offers[place].is_taken |= taken);
    });
    result
}

/// Runs a function that may take no offer, because its tensors may be used in unknown ways.
pub(crate) fn without_offers<R>(run: impl FnOnce() -> R) -> R {
    if OFFERS.with_borrow(|offers| offers.is_empty()) {
        return run();
    }
    offered(Offers::new(), run).0
}

/// Returns whether two tensors share no element.
pub(crate) fn are_disjoint(one: &Tensor, other: &Tensor) -> bool {
    let range = |tensor: &Tensor| {
        let (layout, size) = (tensor.layout(), tensor.dtype().size_bytes());
        layout.offset() * size..(layout.offset() + layout.span()) * size
    };
    let (one_range, other_range) = (range(one), range(other));
    !one.shares_storage_with(other)
        || one_range.is_empty()
        || other_range.is_empty()
        || one_range.end <= other_range.start
        || other_range.end <= one_range.start
}

/// Returns whether both tensors are the same elements in the same order.
pub(crate) fn are_same(one: &Tensor, other: &Tensor) -> bool {
    one.shares_storage_with(other) && one.dtype() == other.dtype() && one.layout() == other.layout()
}

/// Takes the first offer on a device, of a dtype, that fits. The result of a loop may be converted as it is written, where there is no
/// other result and the dtype is not of a lower category.
fn take(device: &Device, dtype: DType, fits: impl Fn(&Offer) -> Option<Tensor>) -> Option<Tensor> {
    OFFERS.with_borrow_mut(|offers| {
        let is_one = offers.len() == 1;
        let is_open = |offer: &&mut Offer| {
            let given = offer.target.dtype();
            let is_converted =
                offer.is_of_loop && is_one && !offer.is_recorded && given.category() >= dtype.category();
            !offer.is_taken && (given == dtype || is_converted) && offer.target.device() == device
        };
        let open = offers.iter_mut().filter(is_open);
        let (offer, target) =
            open.map(|offer| (fits(offer), offer)).find_map(|(fit, offer)| Some((offer, fit?)))?;
        offer.is_taken = true;
        if offer.is_recorded {
            target.bump_version();
        }
        Some(target)
    })
}

/// Returns a tensor seen as a result of this layout: the tensor itself where it has the shape, or its elements in order where both are
/// contiguous.
fn seen_as(target: &Tensor, layout: &Layout) -> Option<Tensor> {
    if target.shape() == layout.shape() {
        return Some(target.clone());
    }
    let is_flat = target.is_contiguous() && layout.is_contiguous() && target.elements() == layout.elements();
    let placed = || Layout::new(layout.shape(), layout.strides(), target.layout().offset()).ok();
    if is_flat { Some(target.with_layout(placed()?)) } else { None }
}

/// Returns whether a tensor's elements are arranged in memory as a layout of its shape specifies.
fn is_laid_out(target: &Tensor, layout: &Layout) -> bool {
    let strides = target.layout().strides().iter().zip(layout.strides());
    let are_alike =
        layout.shape().iter().zip(strides).all(|(&extent, (one, other))| extent <= 1 || one == other);
    are_alike || target.is_contiguous() && layout.is_contiguous()
}

/// Returns memory for the result of a loop that would be allocated with this layout. It may have other strides, and another dtype.
/// `is_pointwise` says that the loop reads each point before it writes it.
pub(crate) fn for_loop(
    (layout, device): (&Layout, &Device),
    dtype: DType,
    inputs: &[&Tensor],
    is_pointwise: bool,
) -> Option<Tensor> {
    take(device, dtype, |offer| {
        let target = seen_as(&offer.target, layout)?;
        let reads = |input: &&&Tensor| is_pointwise && are_same(input, &target);
        let is_apart = |input: &&Tensor| are_disjoint(input, &target);
        let is_safe = inputs.iter().all(|input| is_apart(input) || reads(&input));
        // Memory that the operator reads is taken by the loop that reads it, and by none before.
        let is_due = !offer.is_read || inputs.iter().any(|input| reads(&input));
        let is_laid_out = offer.is_of_loop || is_laid_out(&target, layout);
        (is_safe && is_due && is_laid_out).then_some(target)
    })
}

/// Returns memory for the result of a kernel that relies on alignment, with this layout.
fn for_kernel(layout: &Layout, device: &Device, dtype: DType) -> Option<Tensor> {
    take(device, dtype, |offer| {
        let target = seen_as(&offer.target, layout)?;
        let is_aligned = target.pointer().address().is_multiple_of(ALIGNMENT);
        (!offer.is_read && is_aligned && is_laid_out(&target, layout)).then_some(target)
    })
}

/// Takes the offer whose memory a contiguous tensor is, if the kernel may overwrite the elements that it reads. The tensor may have
/// a different shape than the offer.
fn consumed(x: &Tensor) -> Option<Tensor> {
    if !x.is_contiguous() {
        return None;
    }
    OFFERS.with_borrow_mut(|offers| {
        let is_x = |offer: &&mut Offer| {
            let target = &offer.target;
            offer.is_read
                && target.shares_storage_with(x)
                && target.dtype() == x.dtype()
                && target.is_contiguous()
                && target.elements() == x.elements()
                && target.layout().offset() == x.layout().offset()
        };
        let offer = offers.iter_mut().find(is_x)?;
        offer.is_taken = true;
        Some(x.detach())
    })
}

/// Returns a tensor itself, if it is contiguous, as the memory for the result of a kernel that reads each point before it writes it.
pub(crate) fn for_kernel_over(x: &Tensor) -> Option<Tensor> {
    consumed(x).filter(|x| x.pointer().address().is_multiple_of(ALIGNMENT))
}

impl Tensor {
    /// Allocates the result of a kernel as [`empty_on`](Self::empty_on) does, or takes offered memory.
    pub(crate) fn result_on(shape: &[usize], dtype: DType, stream: &Stream, label: Label) -> Result<Self> {
        match for_kernel(&Layout::contiguous(shape), stream.device(), dtype) {
            Some(target) => Ok(target),
            None => Self::empty_on(shape, dtype, stream, label),
        }
    }

    /// Returns offered memory for the result of a kernel that is laid out like this, if there is any.
    pub(crate) fn offered(layout: &Layout, dtype: DType, stream: &Stream) -> Option<Self> {
        for_kernel(layout, stream.device(), dtype)
    }

    /// Returns the elements in writable, contiguous memory: the tensor's own if its operator may overwrite it, else a copy.
    pub(crate) fn owned(&self, location: CallLocation) -> Result<Self> {
        consumed(self).map_or_else(|| self.copied(location), Ok)
    }
}

/// Copies results elsewhere that were written into the memory of another result's target.
pub(crate) fn separate_overlapping(
    results: &mut Tensors,
    targets: &[Tensor],
    location: CallLocation,
) -> Result<()> {
    for place in 0..results.len() {
        let result = &results[place];
        let is_elsewhere = |(at, target): (usize, &Tensor)| at != place && !are_disjoint(result, target);
        if targets.iter().enumerate().any(is_elsewhere) {
            results[place] = result.detach().copied(location)?;
        }
    }
    Ok(())
}
