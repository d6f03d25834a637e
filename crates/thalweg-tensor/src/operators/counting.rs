//! Positions of values in sorted rows, counts of values, and distinct values.

use smallvec::SmallVec;
use thalweg_ir::{DType, HostElement, Scalar, Shape};
use thalweg_kernels::histogram::Histogram as CountBins;
use thalweg_kernels::search::Search;
use thalweg_ops::default_dtype;
use thalweg_runtime::graph::audit::ObstacleKind;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};

use super::Body::{Composite, Kernel};
use super::index::long;
use super::view::wrap;
use super::{call as call_operator, call_all, operators, single};
use crate::autograd::no_grad;
use crate::caller::label_at;
use crate::dispatch::{Argument, Arguments, Call, built_in};
use crate::dtype_name::unaliased_cpp_type as cpp_type;
use crate::kernels::compact::{Flags, Selection};
use crate::kernels::creation::converted;
use crate::tensor::{Tensor, Tensors};

operators! {
    /// Returns the positions at which values would be inserted into sorted rows (rows, length), as (rows, count); a single row
    /// serves all values. With `right`, or `side='right'`, positions are after equal elements. A `sorter` is the order of rows
    /// that are not sorted.
    "searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor"
        fn searchsorted(input: tensor)
        = Kernel(searchsorted), out: [OfResult];
    /// Returns the position at which a number would be inserted into a sorted vector.
    "searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor"
        fn searchsorted_scalar(input: scalar)
        = Composite(|call| {
            let [sequence, number] = as_one_dtype(call.tensor(0), call.scalar(1))?;
            refuse_if!(
                sequence.rank() != 1,
                "torch.searchsorted(): input value can be a scalar only when sorted_sequence has 1 dimension, but got {}",
                sequence.rank()
            );
            let mut arguments: SmallVec<[Argument<'_>; 8]> = call.arguments.into();
            (arguments[0], arguments[1]) = ((&sequence).into(), (&number).into());
            built_in!("searchsorted.Tensor")?.call(&arguments, None, call.label)
        }), out: [OfResult];
    /// Returns the position of a number among sorted boundaries.
    "bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"
        = Composite(|call| {
            let [boundaries, number] = as_one_dtype(call.tensor(1), call.scalar(0))?;
            let arguments = [(&number).into(), (&boundaries).into(), call.bool(2).into(), call.bool(3).into()];
            built_in!("bucketize.Tensor")?.call(&arguments, None, call.label)
        }), out: [OfResult];
    /// Returns the positions of values among sorted boundaries.
    "bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor"
        fn bucketize(boundaries: tensor)
        = Kernel(|call| {
            let (x, boundaries) = (call.tensor(0), call.tensor(1));
            if boundaries.rank() != 1 {
                refuse!("boundaries tensor must be 1 dimension, but got dim({})", boundaries.rank());
            }
            as_int32(&search(call, boundaries, x, call.bool(3))?, call.bool(2)).map(single)
        }), out: [OfResult];
    /// Returns how often each integer from 0 on occurs, or the sum of its weights, for at least `minlength` integers. The host
    /// reads the greatest one.
    "bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor"
        fn bincount(weights: optional_tensor, minlength: int)
        = Kernel(|call| bincount(call).map(single));
    /// Returns how many elements are in each of `bins` equal bins between two bounds, which are the least and the greatest
    /// element if both are equal.
    "histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor"
        fn histc(bins: int, min: scalar, max: scalar)
        = Kernel(|call| histc(call).map(single)), out: [OfResult];
    /// Returns how many elements are in each of `bin_ct` equal bins, or the sum of their weights, and the bins' edges.
    "histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)"
        fn histogram(bins: int) -> 2
        = Kernel(|call| {
            let x = call.tensor(0);
            let bins = bin_count(call.int(1))?;
            let range = match call.argument(2) {
                Argument::Floats(&[low, high]) => Some([low, high]),
                Argument::None => None,
                _ => return Err(invalid!("torch.histogram(): range should have 2 elements")),
            };
            let edges = edges(call, x, bins, range)?;
            histogram(call, &edges, call.optional_tensor(3), call.bool(4))
        }), out: [EachOfFirst];
    /// Returns how many elements are between each two edges, or the sum of their weights, and the edges.
    "histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)"
        fn histogram_bins(bins: tensor) -> 2
        = Kernel(|call| histogram(call, call.tensor(1), call.optional_tensor(2), call.bool(3))), out: [EachOfFirst];
    /// Returns the indices of a dimension, or all elements if there is no dimension, each repeated as often as a tensor
    /// specifies. The host reads the length of the result, unless it is passed.
    "repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor"
        fn repeat_interleave_tensor(repeats: tensor, dim: optional_int)
        = Composite(|call| repeat_interleave(call).map(single)), autocast: Parts;
    /// Returns the distinct elements, sorted, and, if requested, the position of each element among them and how often each
    /// occurs.
    "_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"
        fn unique(sorted: bool, return_inverse: bool, return_counts: bool) -> 3
        = Kernel(|call| {
            let x = call.tensor(0).detach();
            let flat = x.reshape(&[x.elements()])?;
            let [values, order] = flat.sort(0, false)?;
            let rows = values.unsqueeze(1)?;
            let [values, inverse, counts] = runs(call, &rows, Some(&order), [call.bool(2), call.bool(3)])?;
            let inverse = if call.bool(2) { inverse.reshape(x.shape())? } else { inverse };
            Ok(Tensors::from_iter([values.reshape(&[values.elements()])?, inverse, counts]))
        });
    /// Returns the distinct slices of a dimension, sorted, with the position of each slice among them and how often each occurs.
    "unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)"
        fn unique_dim(dim: int, sorted: bool, return_inverse: bool, return_counts: bool) -> 3
        = Kernel(|call| unique_dim(call, call.int(1), true, [call.bool(3), call.bool(4)]));
    /// Returns the elements, or slices of a dimension, without those that equal the previous one.
    "unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)"
        fn unique_consecutive(return_inverse: bool, return_counts: bool, dim: optional_int) -> 3
        = Kernel(|call| {
            let wanted = [call.bool(1), call.bool(2)];
            let Some(dim) = call.optional_int(3) else {
                let x = call.tensor(0).detach();
                let [values, inverse, counts] = runs(call, &x.reshape(&[x.elements(), 1])?, None, wanted)?;
                let inverse = if wanted[0] { inverse.reshape(x.shape())? } else { inverse };
                return Ok(Tensors::from_iter([values.reshape(&[values.elements()])?, inverse, counts]));
            };
            unique_dim(call, dim, false, wanted)
        });
    /// Returns the coordinates of the first `size` elements that are not 0, followed by rows of `fill_value` if there are fewer.
    /// The host reads nothing.
    "nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor"
        fn nonzero_static(size: int)
        = Kernel(|call| nonzero_static(call).map(single)), complex: Taken;
    /// Returns numbers from a start to an end as powers of a base.
    "logspace(Scalar start, Scalar end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| logspace(call).map(single)), out: [KeepsShape];
    /// Returns numbers from a start to an end as powers of a base; the host reads the bounds.
    "logspace.Tensor_Tensor(Tensor start, Tensor end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| with_bounds(call, built_in!("logspace")?));
    /// Returns numbers from a start to an end as powers of a base; the host reads the end.
    "logspace.Scalar_Tensor(Scalar start, Tensor end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| with_bounds(call, built_in!("logspace")?));
    /// Returns numbers from a start to an end as powers of a base; the host reads the start.
    "logspace.Tensor_Scalar(Tensor start, Scalar end, int steps, float base=10.0, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| with_bounds(call, built_in!("logspace")?));
    /// Returns `steps` equidistant numbers from a start to an end, both included; the host reads them.
    "linspace.Tensor_Tensor(Tensor start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| with_bounds(call, built_in!("linspace")?));
    /// Returns `steps` equidistant numbers from a start to an end, both included; the host reads the end.
    "linspace.Scalar_Tensor(Scalar start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| with_bounds(call, built_in!("linspace")?));
    /// Returns `steps` equidistant numbers from a start to an end, both included; the host reads the start.
    "linspace.Tensor_Scalar(Tensor start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
        = Composite(|call| with_bounds(call, built_in!("linspace")?));
}

fn as_int32(places: &Tensor, wanted: bool) -> Result<Tensor> {
    if wanted { places.to_dtype(DType::I32) } else { Ok(places.clone()) }
}

/// Searches sorted rows, or one row, for values of the values' own shape.
fn search(call: &Call<'_>, sorted: &Tensor, values: &Tensor, right: bool) -> Result<Tensor> {
    let dtype = sorted.dtype().promote(values.dtype()).map_err(|error| Error::invalid(error.to_string()))?;
    let dtype = if dtype.is_floating_point() { dtype } else { DType::I64 };
    let operand = |tensor: &Tensor| tensor.detach().contiguous_as(dtype);
    let (row, values) = (operand(sorted)?, operand(values)?);
    let length = row.shape().last().copied().unwrap_or(1);
    let rows = if row.rank() > 1 { row.shape()[..row.rank() - 1].iter().product() } else { 1usize };
    let places = call.new_result(values.shape(), DType::I64)?;
    if places.elements() > 0 {
        let count = (values.elements() / rows.max(1)) as u64;
        let kernel = Search { rows: rows as u64, length: length as u64, count, right, dtype };
        call.launch(kernel, [&row, &values, &places])?;
    }
    Ok(places)
}

fn searchsorted(call: &Call<'_>) -> Result<Tensors> {
    let (sorted, values, sorter) = (call.tensor(0), call.tensor(1), call.optional_tensor(5));
    let refused = |why: String| Err(invalid!("torch.searchsorted(): {why}"));
    let right = match (call.optional_str(4), call.bool(3)) {
        (Some("left"), true) => {
            return refused(
                "side and right can't be set to opposites, got side of left while right was True".into(),
            );
        }
        (Some("left"), false) => false,
        (Some("right"), _) => true,
        (None, right) => right,
        (Some(other), _) => return refused(format!("side can only be 'left' or 'right' but got {other}")),
    };
    if sorted.rank() == 0 {
        return refused("boundaries tensor should have positive dimension".into());
    }
    if sorted.rank() > 1 {
        let front = |tensor: &Tensor| -> Shape { tensor.shape()[..tensor.rank().saturating_sub(1)].into() };
        if sorted.rank() != values.rank() || front(sorted) != front(values) {
            return refused(format!(
                "boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and input value tensor must \
                 match, but we got boundaries tensor {:?} and input value tensor {:?}",
                sorted.shape(),
                values.shape()
            ));
        }
    }
    let sorted = match sorter {
        Some(sorter) if sorter.shape() != sorted.shape() || sorter.dtype() != DType::I64 => {
            return refused(format!(
                "boundary and sorter must have the same size, and the sorter int64, but got {:?} and {:?} {}",
                sorted.shape(),
                sorter.shape(),
                sorter.dtype()
            ));
        }
        Some(sorter) => sorted.detach().gather(-1, sorter)?,
        None => sorted.clone(),
    };
    as_int32(&search(call, &sorted, values, right)?, call.bool(2)).map(single)
}

fn bincount(call: &Call<'_>) -> Result<Tensor> {
    let (x, weights, least) = (call.tensor(0), call.optional_tensor(1), call.int(2));
    refuse_if!(least < 0, "minlength should be >= 0");
    let refused = || invalid!("bincount only supports 1-d non-negative integral inputs.");
    if x.dtype().is_floating_point() || x.dtype() == DType::Bool {
        return Err(Error::not_implemented(format!("\"bincount\" not implemented for '{}'", x.dtype())));
    }
    if x.rank() != 1 {
        return Err(refused());
    }
    if let Some(weights) = weights
        && weights.shape() != x.shape()
    {
        refuse!("weights should be 1-d and have the same length as input");
    }
    let x = match x.dtype() {
        DType::I32 | DType::I64 => x.detach(),
        dtype if dtype.size_bytes() < 4 => x.detach().to_dtype(DType::I32)?,
        _ => x.detach().to_dtype(DType::I64)?,
    };
    let mut bins = least as usize;
    if x.elements() > 0 {
        let [smallest, greatest] =
            both::<i64>(&x.min()?.to_dtype(DType::I64)?, &x.max()?.to_dtype(DType::I64)?)?;
        if smallest < 0 {
            return Err(refused());
        }
        bins = bins.max((greatest as usize).saturating_add(1));
    }
    let source = match weights {
        None => return counts(call, &x, bins, [0.0; 2]),
        Some(weights) if weights.dtype() == DType::F32 => weights.detach(),
        Some(weights) => weights.detach().to_dtype(DType::F64)?,
    };
    let index = x.to_dtype(DType::I64)?;
    Tensor::zeros(&[bins], source.dtype(), x.device())?.index_add(0, &index, &source)
}

/// Returns two elements, which the host reads at once.
fn both<T: HostElement>(first: &Tensor, second: &Tensor) -> Result<[T; 2]> {
    let both = Tensor::cat(&[first.reshape(&[1])?, second.reshape(&[1])?], 0)?;
    let label = label_at("item", std::panic::Location::caller());
    let numbers: Vec<T> = both.read(label, Some(ObstacleKind::DataDependentShape))?;
    Ok([numbers[0], numbers[1]])
}

/// Returns how many elements are in each bin: integers below the number of bins, or floats in bins of equal widths.
fn counts(call: &Call<'_>, x: &Tensor, bins: usize, bounds: [f64; 2]) -> Result<Tensor> {
    let x = x.contiguous()?;
    let counts = Tensor::zeros(&[bins], DType::I64, call.device)?;
    let kernel = CountBins { elements: x.elements() as u64, bins: bins as u64, bounds, dtype: x.dtype() };
    call.launch(kernel, [&x, &counts])?;
    Ok(counts)
}

fn bin_count(bins: i64) -> Result<usize> {
    usize::try_from(bins)
        .ok()
        .filter(|&bins| bins > 0 && bins < 1 << 40)
        .ok_or_else(|| invalid!("bins must be > 0, but got {bins}"))
}

/// Returns the bounds of bins: the given ones, or the least and greatest element, moved apart by a margin if they are equal.
/// Errors call them by `name`.
fn bounds(x: &Tensor, given: [f64; 2], margin: f64, name: &str) -> Result<[f64; 2]> {
    let [mut low, mut high] = given;
    if low == high && x.elements() > 0 {
        let x = x.detach();
        [low, high] = both(&x.min()?.to_dtype(DType::F64)?, &x.max()?.to_dtype(DType::F64)?)?;
    }
    if !low.is_finite() || !high.is_finite() {
        let range = format!("[{low}, {high}]").to_lowercase();
        refuse!("{name} {range} is not finite");
    }
    if low == high {
        [low, high] = [low - margin, high + margin];
    }
    refuse_if!(low > high, "max must be larger than min");
    Ok([low, high])
}

/// Returns a sorted vector and a number in the dtype in which they are compared.
fn as_one_dtype(sequence: &Tensor, number: Scalar) -> Result<[Tensor; 2]> {
    let dtype = match (sequence.dtype().is_floating_point(), number.is_floating_point()) {
        (true, _) => sequence.dtype(),
        (_, true) => default_dtype(),
        _ => DType::I64,
    };
    Ok([sequence.to_dtype(dtype)?, converted(number, dtype, sequence.device())?])
}

fn check_floats(x: &Tensor, name: &str) -> Result<()> {
    match x.dtype() {
        dtype if dtype.is_floating_point() && !dtype.is_float8() => Ok(()),
        dtype => Err(Error::not_implemented(format!("\"{name}\" not implemented for '{dtype}'"))),
    }
}

fn histc(call: &Call<'_>) -> Result<Tensor> {
    let given = call.tensor(0).detach();
    // PyTorch counts integers on GPUs only.
    let x = if given.dtype().is_integer() { given.to_dtype(DType::F64)? } else { given.clone() };
    check_floats(&x, "histogram_cpu")?;
    let bins = bin_count(call.int(1))?;
    let dtype = given.dtype();
    let given = [call.scalar(2).to_f64(), call.scalar(3).to_f64()];
    refuse_if!(given[0] > given[1], "torch.histc: max must be larger than min");
    let [low, high] = bounds(&x, given, 1.0, "range of")?;
    counts(call, &x, bins, [low, high])?.to_dtype(dtype)
}

fn edges(call: &Call<'_>, x: &Tensor, bins: usize, range: Option<[f64; 2]>) -> Result<Tensor> {
    check_floats(x, "histogram")?;
    let [low, high] = match range {
        Some([low, high]) if low > high => {
            refuse!("torch.histogramdd: min should not exceed max");
        }
        // A given range applies regardless of the elements.
        Some([low, high]) if low == high && low.is_finite() => [low - 0.5, high + 0.5],
        None if x.elements() == 0 => [0.0, 1.0],
        range => bounds(x, range.unwrap_or([0.0; 2]), 0.5, "torch.histogram(): range")?,
    };
    let dtype = Argument::DType(x.dtype());
    let [low, high] = [low, high].map(|bound| Argument::Scalar(bound.into()));
    let arguments = [low, high, Argument::Int(bins as i64 + 1), dtype];
    call_operator(built_in!("linspace")?, &arguments, Some(call.device), call.label.location)
}

fn histogram(call: &Call<'_>, edges: &Tensor, weight: Option<&Tensor>, density: bool) -> Result<Tensors> {
    let x = call.tensor(0).detach();
    check_floats(&x, "histogram")?;
    if edges.dtype() != x.dtype() {
        let [x, edges] = [x.dtype(), edges.dtype()].map(cpp_type);
        refuse!(
            "torch.histogram(): input tensor and bins tensors should have the same dtype, but got input with dtype {x} and bins with \
             dtype {edges}"
        );
    }
    refuse_if!(
        edges.rank() != 1,
        "torch.histogram(): bins tensor should have one dimension, but got {} dimensions in the bins tensor",
        edges.rank()
    );
    if edges.elements() == 0 {
        refuse!("torch.histogram(): bins tensor should have at least 1 element, but got 0");
    }
    let flat = x.reshape(&[x.elements()])?;
    let source = match weight {
        Some(weight) if weight.dtype() != x.dtype() => {
            let [x, weight] = [x.dtype(), weight.dtype()].map(cpp_type);
            refuse!(
                "torch.histogram(): if weight tensor is provided, input tensor and weight tensor should have the same dtype, but got \
                 input({x}), and weight({weight})"
            );
        }
        Some(weight) if weight.shape() != x.shape() => {
            refuse!(
                "torch.histogram(): if weight tensor is provided it should have the same shape as the input tensor excluding its \
                 innermost dimension, but got input with shape {:?} and weight with shape {:?}",
                x.shape(),
                weight.shape()
            );
        }
        Some(weight) => weight.detach().reshape(&[x.elements()])?,
        None => Tensor::ones(&[x.elements()], x.dtype(), x.device())?,
    };
    let bins = edges.elements() - 1;
    if bins == 0 {
        let none = Tensor::zeros(&[0], x.dtype(), x.device())?;
        return Ok(Tensors::from_iter([none, edges.detach().copied(call.label.location)?]));
    }
    let (first, last) = (edges.narrow(0, 0, 1)?, edges.narrow(0, bins, 1)?);
    // The last bin includes both of its edges.
    let counted = flat.ge(&first)?.logical_and(&flat.le(&last)?)?;
    let place = search(call, edges, &flat, true)?.sub_scalar(1)?.clamp(0, bins as i64 - 1)?;
    let zero = Tensor::zeros(&[], x.dtype(), x.device())?;
    let wide = x.dtype().compute();
    let source = counted.select_where(&source, &zero)?.to_dtype(wide)?;
    let mut sums = Tensor::zeros(&[bins], wide, x.device())?.index_add(0, &place, &source)?;
    if density {
        let widths = edges.narrow(0, 1, bins)?.sub(&edges.narrow(0, 0, bins)?)?.to_dtype(wide)?;
        sums = sums.div(&sums.sum(&[], false)?.mul(&widths)?)?;
    }
    Ok(Tensors::from_iter([sums.to_dtype(x.dtype())?, edges.detach().copied(call.label.location)?]))
}

fn repeat_interleave(call: &Call<'_>) -> Result<Tensor> {
    let (x, repeats, dim, total) =
        (call.tensor(0), call.tensor(1), call.optional_int(2), call.optional_int(3));
    if repeats.rank() > 1 || !matches!(repeats.dtype(), DType::I64 | DType::I32) {
        refuse!("repeats must be 0-dim or 1-dim tensor of Long or Int");
    }
    let (rows, dim) = match dim {
        Some(dim) => (x.clone(), wrap(dim, x.rank())? as i64),
        None => (x.reshape(&[x.elements()])?, 0),
    };
    let rows = if rows.rank() == 0 { rows.reshape(&[1])? } else { rows };
    let extent = rows.size(dim)?;
    let repeats = long(&repeats.detach(), "repeat_interleave")?.reshape(&[repeats.elements()])?;
    refuse_if!(
        repeats.elements() != 1 && repeats.elements() != extent,
        "repeats must have the same size as input along dim, but got repeats.size(0) = {} and input.size({dim}) = {extent}",
        repeats.elements()
    );
    let repeats = repeats.expand(&[extent])?;
    if extent == 0 {
        return Ok(rows);
    }
    let ends = repeats.cumsum(0)?;
    let total = match total {
        Some(total) => total,
        None => {
            let [least, last] = both::<i64>(&repeats.min()?, &ends.narrow(0, extent - 1, 1)?)?;
            refuse_if!(least < 0, "repeats can not be negative");
            last
        }
    };
    let Ok(total) = usize::try_from(total) else {
        refuse!("repeats add up to {total}");
    };
    let places = Tensor::arange(total, 0, 1, DType::I64, x.device())?;
    let index = no_grad(|| search(call, &ends, &places, true))?;
    rows.index_select(dim, &index)
}

/// Returns the rows that begin a run of equal ones, the run of each row in the former order, and the runs' lengths.
fn runs(call: &Call<'_>, rows: &Tensor, order: Option<&Tensor>, wanted: [bool; 2]) -> Result<[Tensor; 3]> {
    let (count, device) = (rows.shape()[0], call.device);
    let nothing = Tensor::empty(&[0], DType::I64, device)?;
    if count == 0 {
        return Ok([rows.clone(), nothing.clone(), nothing]);
    }
    let differs = rows.narrow(0, 1, count - 1)?.ne(&rows.narrow(0, 0, count - 1)?)?;
    let is_narrow = rows.shape()[1] == 1;
    let differs = if is_narrow { differs.reshape(&[count - 1])? } else { differs.any_dim(1, false)? };
    let begins = Tensor::cat(&[Tensor::ones(&[1], DType::Bool, device)?, differs], 0)?;
    let begins = Selection::new(&begins, call.label)?;
    let first = if is_narrow && !wanted[1] { None } else { Some(begins.places()?) };
    let values = match &first {
        Some(first) if !is_narrow => rows.index_select(0, first)?,
        _ => begins.values(rows)?.reshape(&[begins.count, 1])?,
    };
    let inverse = if wanted[0] { begins.ranks(order)? } else { nothing.clone() };
    let counts = match first.filter(|_| wanted[1]) {
        None => nothing,
        Some(first) => {
            let end = Tensor::full(&[1], count as i64, DType::I64, device)?;
            let ends = Tensor::cat(&[first.narrow(0, 1, first.elements() - 1)?, end], 0)?;
            ends.sub(&first)?
        }
    };
    Ok([values, inverse, counts])
}

fn unique_dim(call: &Call<'_>, dim: i64, sorts: bool, wanted: [bool; 2]) -> Result<Tensors> {
    let x = call.tensor(0).detach();
    if x.rank() == 0 {
        wrap(dim, 0)?;
        let [values, inverse, counts] = runs(call, &x.reshape(&[1, 1])?, None, wanted)?;
        return Ok(Tensors::from_iter([values.reshape(&[1])?, inverse, counts]));
    }
    let dim = wrap(dim, x.rank())?;
    let transposed = x.movedim(&[dim as i64], &[0])?;
    let (shape, count): (Shape, usize) = (transposed.shape().into(), transposed.shape()[0]);
    let width: usize = shape[1..].iter().product();
    if width == 0 {
        return Err(Error::invalid(match count {
            0 => "Number of zero sized dimensions is more than one, so unique cannot be applied",
            _ => "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied",
        }));
    }
    let mut rows = transposed.reshape(&[count, width])?;
    let mut order = None;
    if sorts {
        // Sorts by the last column first: later sorts keep the order of equal elements.
        let mut places = Tensor::arange(count, 0, 1, DType::I64, x.device())?;
        for column in (0..width).rev() {
            let keys = rows.select(1, column)?.index_select(0, &places)?;
            let arguments = [(&keys).into(), true.into(), 0i64.into(), false.into()];
            let sorted = call_all(built_in!("sort.stable")?, &arguments, None, call.label.location)?;
            places = places.index_select(0, &sorted[1])?;
        }
        rows = rows.index_select(0, &places)?;
        order = Some(places);
    }
    let [values, inverse, counts] = runs(call, &rows, order.as_ref(), wanted)?;
    let mut result = shape;
    result[0] = values.shape()[0];
    let values = values.reshape(&result)?.movedim(&[0], &[dim as i64])?;
    Ok(Tensors::from_iter([values, inverse, counts]))
}

fn nonzero_static(call: &Call<'_>) -> Result<Tensor> {
    let (x, size, fill) = (call.tensor(0).detach(), call.int(1), call.int(2));
    let Some(size) = usize::try_from(size).ok().filter(|&size| size < 1 << 40) else {
        refuse!("nonzero_static: 'size' must be an non-negative integer, but got {size}");
    };
    let (count, device) = (x.elements(), call.device);
    if x.rank() == 0 || size == 0 {
        return Tensor::empty(&[size, x.rank()], DType::I64, device);
    }
    if count == 0 {
        return Tensor::full(&[size, x.rank()], fill, DType::I64, device);
    }
    let result = call.new_result(&[size, x.rank()], DType::I64)?;
    Flags::new(&x, call.label)?.write_coordinates(x.shape(), fill, &result)?;
    Ok(result)
}

fn logspace(call: &Call<'_>) -> Result<Tensor> {
    let dtype = call.optional_dtype(4).unwrap_or_else(default_dtype);
    if dtype == DType::Bool {
        return Err(Error::not_implemented("\"logspace\" not implemented for 'Bool'"));
    }
    let [start, end] = [0, 1].map(|place| match dtype.is_floating_point() {
        true => call.argument(place),
        false => Argument::Scalar(call.scalar(place).to_i64().into()),
    });
    let mut arguments = [
        start,
        end,
        Argument::Int(call.int(2)),
        Argument::DType(DType::F64),
        Argument::None,
        Argument::None,
        Argument::None,
    ];
    arguments[4..].copy_from_slice(&call.arguments[5..8]);
    let exponents =
        call_operator(built_in!("linspace")?, &arguments, Some(call.device), call.label.location)?;
    let base = Argument::Scalar(call.float(3).into());
    let powers =
        call_operator(built_in!("pow.Scalar")?, &[base, (&exponents).into()], None, call.label.location)?;
    if dtype.is_floating_point() {
        return powers.to_dtype(dtype);
    }
    // A GPU's power may be the next number below an integer; PyTorch computes powers of integers in float32, which then rounds to
    // the integer.
    powers.to_dtype(DType::F32)?.to_dtype(dtype)
}

/// Calls an operator with bounds that tensors without dimensions hold.
fn with_bounds(call: &Call<'_>, operator: &'static crate::dispatch::Operator) -> Result<Tensors> {
    let mut arguments: Vec<Argument<'_>> = call.arguments.to_vec();
    for argument in &mut arguments[..2] {
        let Argument::Tensor(bound) = *argument else { continue };
        refuse_if!(
            bound.rank() != 0,
            "{} only supports 0-dimensional start and end tensors, but got one with {} dimension(s)",
            operator.base_name(),
            bound.rank()
        );
        let bound = bound.detach();
        *argument = Argument::Scalar(match bound.dtype().is_floating_point() {
            true => bound.to_dtype(DType::F64)?.item::<f64>()?.into(),
            false => bound.to_dtype(DType::I64)?.item::<i64>()?.into(),
        });
    }
    operator.call(&arguments, Some(call.device), call.label)
}
