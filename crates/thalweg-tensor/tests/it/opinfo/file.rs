//! The goldens of one operator, as `tests/opinfo/dump.py` wrote them: a header in JSON followed by raw bytes.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::Value as Json;
use thalweg_ir::{DType, Element, c128, with_dtype};
use thalweg_tensor::{Tensor, no_grad};

use super::numbers::{Numbers, Tolerance, compare, elements};
use crate::support::device;

/// The unpacked file.
pub struct File {
    /// The header; `dump.py` documents its contents.
    pub header: Json,
    bytes: Vec<u8>,
}

/// A row of the table of tensors.
pub struct Row<'a> {
    /// The name of the dtype, which may not exist here.
    pub dtype: &'a str,
    /// The extents.
    pub shape: Vec<usize>,
    /// The strides, in elements.
    pub strides: Vec<usize>,
    /// The first element's index in the storage.
    pub offset: usize,
    /// The storage, if values are defined.
    pub storage: Option<usize>,
}

/// Returns the numbers of a JSON list.
pub fn sizes(list: &Json) -> Vec<usize> {
    list.as_array().into_iter().flatten().map(|size| size.as_u64().expect("a size") as usize).collect()
}

/// Returns the elements of a JSON list; an empty list if it is missing.
pub fn list(json: &Json) -> &[Json] {
    json.as_array().map_or(&[], Vec::as_slice)
}

impl File {
    /// Unpacks a file.
    pub fn read(path: &Path) -> Self {
        let packed = std::fs::read(path).expect("a file of goldens is read");
        let mut bytes = Vec::new();
        GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).expect("a file of goldens is unpacked");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + length]).expect("the header is JSON");
        Self { header, bytes: bytes.split_off(8 + length) }
    }

    /// Returns the raw bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the text of a field of the header.
    pub fn text(&self, field: &str) -> &str {
        self.header[field].as_str().unwrap_or_default()
    }

    /// Returns a row of the table of tensors.
    pub fn row(&self, index: &Json) -> Row<'_> {
        let row = &self.header["tensors"][index.as_u64().expect("a tensor's number") as usize];
        Row {
            dtype: row[0].as_str().expect("a dtype's name"),
            shape: sizes(&row[1]),
            strides: sizes(&row[2]),
            offset: row[3].as_u64().expect("an offset") as usize,
            storage: row[4].as_u64().map(|storage| storage as usize),
        }
    }

    /// Returns the bytes of a storage.
    pub fn storage(&self, index: usize) -> &[u8] {
        let place = sizes(&self.header["storages"][index]);
        &self.bytes[place[0]..place[0] + place[1]]
    }
}

/// The inputs of one sample: inputs of one storage share it here as well.
pub struct Inputs<'a> {
    file: &'a File,
    is_strided: bool,
    is_wide: bool,
    bases: HashMap<usize, Tensor>,
}

impl<'a> Inputs<'a> {
    /// Starts a sample. With `is_strided` each input gets gaps between its elements instead of the layout that it is stored with.
    pub fn new(file: &'a File, is_strided: bool) -> Self {
        Self { file, is_strided, is_wide: false, bases: HashMap::new() }
    }

    /// Starts a sample whose inputs of float32 are of float64, and those of complex64 of complex128, in the layouts that they are stored with.
    pub fn wide(file: &'a File) -> Self {
        Self { is_wide: true, ..Self::new(file, false) }
    }

    /// Makes an input; `Err` names the dtype that does not exist here.
    pub fn make(&mut self, index: &Json) -> Result<Tensor, String> {
        let row = self.file.row(index);
        let dtype: DType = row.dtype.parse().map_err(|_| format!("dtype {} does not exist", row.dtype))?;
        let storage = row.storage.expect("inputs have values");
        no_grad(|| {
            if self.is_strided && row.shape.iter().product::<usize>() > 1 {
                return Ok(spread(self.file.storage(storage), &row, dtype));
            }
            let needed = row.offset + padded(&row);
            let made = if self.is_wide { widest(dtype) } else { dtype };
            let base = match self.bases.get(&storage) {
                Some(base) if base.dtype() == made && base.elements() >= needed => base.clone(),
                _ => {
                    let base = flat(self.file.storage(storage), needed, dtype);
                    let base = base.to_dtype(made).expect("numbers fit a wider dtype").detach();
                    self.bases.insert(storage, base.clone());
                    base
                }
            };
            Ok(view(&base, &row).detach())
        })
    }
}

/// Returns the dtype of twice the bits of a float of 32, or of a complex number of such parts; other dtypes as they are.
fn widest(dtype: DType) -> DType {
    match dtype {
        DType::F32 => DType::F64,
        DType::C64 => DType::C128,
        other => other,
    }
}

/// Returns a one-dimensional tensor of the bytes, followed by zeros up to a number of elements.
fn flat(bytes: &[u8], needed: usize, dtype: DType) -> Tensor {
    fn make<T: Element>(bytes: &[u8], needed: usize) -> Tensor {
        let mut elements = elements::<T>(bytes);
        elements.resize(elements.len().max(needed), T::from_f64(0.0));
        Tensor::from_slice(&elements, &[elements.len()], &device()).expect("a golden tensor is made")
    }
    with_dtype!(dtype,
        bool => make::<u8>(bytes, needed).to_dtype(DType::Bool).expect("bytes convert to bool"),
        integer T => make::<T>(bytes, needed),
        reduced T => make::<T>(bytes, needed),
        float T => make::<T>(bytes, needed),
        complex T => make::<T>(bytes, needed),
    )
}

/// Returns the dimensions of more than one element that do not repeat, the largest stride first.
fn nested(row: &Row<'_>) -> Vec<usize> {
    let mut order: Vec<usize> =
        (0..row.shape.len()).filter(|&d| row.shape[d] > 1 && row.strides[d] > 0).collect();
    order.sort_by_key(|&d| (std::cmp::Reverse(row.strides[d]), row.shape[d]));
    order
}

/// Returns whether each stride is a multiple of the next and leaves room for its elements.
fn is_nested(row: &Row<'_>, order: &[usize]) -> bool {
    order.windows(2).all(|pair| {
        row.strides[pair[0]].is_multiple_of(row.strides[pair[1]])
            && row.strides[pair[1]] * row.shape[pair[1]] <= row.strides[pair[0]]
    })
}

/// Returns the number of elements [`view`] takes of the storage.
fn padded(row: &Row<'_>) -> usize {
    let order = nested(row);
    let whole = order.first().map_or(1, |&outer| row.shape[outer] * row.strides[outer]);
    if row.shape.contains(&0) { 0 } else { whole }
}

/// Returns the view of a flat tensor with the row's strides and offset. Overlapping dimensions (a diagonal, a window) become a contiguous
/// copy.
fn view(base: &Tensor, row: &Row<'_>) -> Tensor {
    let order = nested(row);
    let whole = padded(row);
    let start =
        base.narrow(0, row.offset.min(base.elements() - whole), whole).expect("the storage is long enough");
    if whole == 0 {
        return start.reshape(&row.shape).expect("no elements are in any shape");
    }
    if !is_nested(row, &order) {
        return gather(base, row);
    }
    let mut sizes: Vec<usize> = order.first().map(|&outer| row.shape[outer]).into_iter().collect();
    sizes.extend(order.windows(2).map(|pair| row.strides[pair[0]] / row.strides[pair[1]]));
    sizes.extend(order.last().map(|&inner| row.strides[inner]));
    let mut found = start.reshape(&sizes).expect("the sizes divide the storage");
    for (place, &dimension) in order.iter().enumerate() {
        found = found.narrow(place as i64, 0, row.shape[dimension]).expect("the strides leave room");
    }
    if !order.is_empty() {
        found = found.select(order.len() as i64, 0).expect("there is an element");
    }
    let mut places: Vec<usize> = (0..order.len()).collect();
    places.sort_by_key(|&place| order[place]);
    found = found.permute(&places).expect("every dimension stands once");
    for dimension in (0..row.shape.len()).filter(|dimension| !order.contains(dimension)) {
        found = found.unsqueeze(dimension as i64).expect("the dimension has a place");
    }
    found.expand(&row.shape).expect("only single elements are repeated")
}

/// Returns a contiguous tensor with the elements of the row.
fn gather(base: &Tensor, row: &Row<'_>) -> Tensor {
    let numbers: Vec<c128> =
        base.to_dtype(DType::C128).and_then(|base| base.to_vec()).expect("the storage is read");
    let elements: Vec<c128> =
        places(&row.shape, &row.strides).map(|place| numbers[row.offset + place]).collect();
    Tensor::from_slice(&elements, &row.shape, &device())
        .and_then(|tensor| tensor.to_dtype(base.dtype()))
        .expect("the tensor is made")
}

/// Returns the offsets of the elements, row-major.
fn places(shape: &[usize], strides: &[usize]) -> impl Iterator<Item = usize> {
    (0..shape.iter().product::<usize>()).map(move |index| {
        let mut rest = index;
        let mut place = 0;
        for dimension in (0..shape.len()).rev() {
            place += rest % shape[dimension] * strides[dimension];
            rest /= shape[dimension];
        }
        place
    })
}

/// Returns the row's elements with a gap after each.
fn spread(bytes: &[u8], row: &Row<'_>, dtype: DType) -> Tensor {
    let size = dtype.size_bytes();
    let mut spaced = Vec::with_capacity(2 * bytes.len());
    for place in places(&row.shape, &row.strides) {
        let start = (row.offset + place) * size;
        // The gap holds the element's bytes reversed: reading it results in another number.
        spaced.extend(bytes[start..start + size].iter().rev());
        spaced.extend(&bytes[start..start + size]);
    }
    let count = spaced.len() / size;
    let mut shape = row.shape.clone();
    shape.push(2);
    let pairs = flat(&spaced, count, dtype).reshape(&shape).expect("two elements per element");
    pairs.select(row.shape.len() as i64, 1).expect("the second of each pair").detach()
}

#[test]
fn inputs_are_made_as_they_are_stored() {
    let mut layouts = 0;
    for name in ["T", "add", "as_strided", "cat", "matmul", "nn.functional.conv2d", "sum", "where"] {
        let file = File::read(&super::table::folder().join(format!("goldens/{name}.gz")));
        for sample in list(&file.header["samples"]) {
            for is_strided in [false, true] {
                let mut inputs = Inputs::new(&file, is_strided);
                for index in list(&sample["inputs"]) {
                    let row = file.row(index);
                    let made = inputs.make(index).expect("these have dtypes that exist");
                    assert_eq!(
                        (made.shape(), made.dtype().name()),
                        (row.shape.as_slice(), row.dtype),
                        "{name}"
                    );
                    let size = made.dtype().size_bytes();
                    let bytes: Vec<u8> = places(&row.shape, &row.strides)
                        .flat_map(|place| {
                            let start = (row.offset + place) * size;
                            file.storage(row.storage.expect("inputs have values"))[start..start + size]
                                .to_vec()
                        })
                        .collect();
                    let expected = Numbers::of_bytes(&bytes, made.dtype());
                    let found = Numbers::of_tensor(&made).expect("the tensor is read");
                    let exact = Tolerance { relative: 0.0, absolute: 0.0 };
                    compare(&found, &expected, None, exact)
                        .unwrap_or_else(|reason| panic!("{name}: {reason}"));
                    layouts += usize::from(!made.is_contiguous());
                }
            }
        }
    }
    assert!(layouts > 100, "{layouts} inputs are not contiguous");
}
