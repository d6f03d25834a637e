//! The `safetensors` format: a header with names, dtypes, shapes and offsets as JSON, followed by the bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};
use thalweg_derive::at_line;
use thalweg_ir::{DType, byte_count};
use thalweg_runtime::{Device, Error, Result, invalid, refuse};
use thalweg_tensor::Tensor;

use super::kind;
use super::stream::{Upload, download, file_error};
use crate::module::StateDict;

/// The maximum number of bytes of a header: the format's own limit.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// Returns the format's word for a dtype, if it has one.
fn word_of(dtype: DType) -> Option<Dtype> {
    serde_json::from_value(dtype.exchange().safetensors?.into()).ok()
}

/// An open file, whose tensors are read one by one.
#[derive(Debug)]
pub struct SafeTensorsFile {
    file: File,
    metadata: Metadata,
    /// The offset of the first byte after the header.
    data: u64,
}

impl SafeTensorsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if the file cannot be read, or is not in this format.
    #[at_line]
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let what = path.display().to_string();
        let mut file = File::open(path).map_err(|error| file_error(&what, error))?;
        let length = file.metadata().map_err(|error| file_error(&what, error))?.len();
        let mut count = [0; 8];
        let other = |reason: String| {
            let kind = kind::sentence(path).filter(|kind| !kind.contains("safetensors file"));
            file_error(&what, format!("it is not a safetensors file: {}", kind.unwrap_or(&reason)))
        };
        file.read_exact(&mut count).map_err(|error| other(error.to_string()))?;
        let count = u64::from_le_bytes(count);
        if count > MOST_HEADER_BYTES || count > length - 8 {
            return Err(other("its header is too long, or the file is cut short".to_owned()));
        }
        let mut header = vec![0; count as usize];
        file.read_exact(&mut header).map_err(|error| file_error(&what, error))?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| other(error.to_string()))?;
        if metadata.data_len() as u64 != length - 8 - count {
            return Err(file_error(&what, "it has another length than its header says; copy it again"));
        }
        Ok(Self { file, metadata, data: 8 + count })
    }

    /// Returns the names, in the order of the bytes.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Returns the metadata of the header (`__metadata__`).
    pub fn notes(&self) -> HashMap<String, String> {
        self.metadata.metadata().clone().unwrap_or_default()
    }

    /// Returns the extent of a tensor's first dimension, 1 for a scalar, without reading the tensor.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no tensor of this name.
    pub fn rows(&self, name: &str) -> Result<usize> {
        let info = self
            .metadata
            .info(name)
            .ok_or_else(|| invalid!("there is no tensor {name} in the file; `names` lists those that are"))?;
        Ok(info.shape.first().copied().unwrap_or(1))
    }

    /// Returns a tensor by its name. The last copies are asynchronous on the current stream.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no tensor of this name, or its dtype is not supported.
    #[at_line]
    pub fn tensor(&mut self, name: &str, device: &Device) -> Result<Tensor> {
        self.read(name, None, &mut Upload::new(device))
    }

    /// Returns some rows of a tensor, without reading the others: for a rank's part of a weight. The last copies are asynchronous
    /// on the current stream.
    ///
    /// # Errors
    /// Those of [`tensor`](Self::tensor); [`Error::is_invalid_argument`] if the tensor does not have these rows.
    #[at_line]
    pub fn tensor_rows(&mut self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor> {
        self.read(name, Some(rows), &mut Upload::new(device))
    }

    fn read(&mut self, name: &str, rows: Option<Range<usize>>, upload: &mut Upload) -> Result<Tensor> {
        let info = self
            .metadata
            .info(name)
            .ok_or_else(|| invalid!("there is no tensor {name} in the file; `names` lists those that are"))?;
        let (mut shape, mut start) = (info.shape.clone(), info.data_offsets.0 as u64);
        let word = info.dtype.to_string();
        let mut dtypes = DType::ALL.into_iter();
        let Some(dtype) = dtypes.find(|dtype| dtype.exchange().safetensors == Some(&word)) else {
            refuse!("{name} is of {:?}, which is not a dtype here", info.dtype);
        };
        if byte_count(&shape, dtype)? != info.data_offsets.1 - info.data_offsets.0 {
            refuse!("{name} has not as many bytes as its shape {shape:?} says");
        }
        if let Some(rows) = rows {
            let Some(extent) =
                shape.first_mut().filter(|extent| rows.start <= rows.end && rows.end <= **extent)
            else {
                refuse!("{name} of shape {shape:?} has no rows {rows:?}");
            };
            *extent = rows.len();
            start += (rows.start * byte_count(&shape[1..], dtype)?) as u64;
        }
        self.file
            .seek(SeekFrom::Start(self.data + start))
            .map_err(|error| file_error("the file cannot be read", error))?;
        upload.tensor(&shape, dtype, &mut self.file)
    }
}

/// Reads all tensors of a file (`safetensors.torch.load_file`), in the order of the bytes. The last copies are asynchronous on the
/// current stream.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the file cannot be read, or is not in this format.
#[at_line]
pub fn load_file(path: impl AsRef<Path>, device: &Device) -> Result<StateDict> {
    let (mut file, mut upload) = (SafeTensorsFile::open(path)?, Upload::new(device));
    file.names()
        .into_iter()
        .map(|name| {
            let tensor = file.read(&name, None, &mut upload)?;
            Ok((name, tensor))
        })
        .collect()
}

/// Writes tensors by name (`safetensors.torch.save_file`), with metadata. *Blocks.*
///
/// # Errors
/// [`Error::is_invalid_argument`] if the file cannot be written.
#[at_line]
pub fn save_file(tensors: &StateDict, path: impl AsRef<Path>, notes: &[(&str, &str)]) -> Result<()> {
    let path = path.as_ref();
    let failed = |error: &dyn std::fmt::Display| file_error(&path.display().to_string(), error);
    // The widest dtypes first, as the format requires, so that each tensor is at a multiple of its width.
    let mut order: Vec<(&String, &Tensor)> = tensors.iter().collect();
    order.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.dtype().size_bytes()), *name));
    let mut end = 0;
    let mut infos = Vec::new();
    for (name, tensor) in &order {
        let Some(dtype) = word_of(tensor.dtype()) else {
            return Err(failed(&format!("{name} is of {}, which the format does not have", tensor.dtype())));
        };
        let start = end;
        end += tensor.elements() * tensor.dtype().size_bytes();
        let info = TensorInfo { dtype, shape: tensor.shape().to_vec(), data_offsets: (start, end) };
        infos.push(((*name).clone(), info));
    }
    let notes: HashMap<String, String> =
        notes.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let metadata = Metadata::new((!notes.is_empty()).then_some(notes), infos).map_err(|e| failed(&e))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| failed(&error))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::new(File::create(path).map_err(|error| failed(&error))?);
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(|error| failed(&error))?;
    file.write_all(&header).map_err(|error| failed(&error))?;
    order.iter().try_for_each(|(_, tensor)| download(tensor, &mut file))?;
    file.flush().map_err(|error| failed(&error))
}
