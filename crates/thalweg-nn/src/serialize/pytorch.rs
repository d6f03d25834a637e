//! PyTorch's zip files: a pickle and the bytes of each storage. Weights only: no code from the file is run.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use thalweg_derive::at_line;
use thalweg_ir::{DType, Exchange};
use thalweg_runtime::{Device, Error, Result, invalid, refuse, refuse_if};
use thalweg_tensor::{Tensor, no_grad};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::Object;
use super::kind;
use super::pickle::{DICTIONARY, Node, ValueIndex, Values, Writer, run};
use super::stream::{Upload, download, file_error};

/// The maximum nesting depth of containers.
const MOST_NESTED: usize = 64;

/// Refuses containers that are nested too deeply.
fn check_depth(depth: usize) -> Result<()> {
    refuse_if!(depth > MOST_NESTED, "more than {MOST_NESTED} containers are nested in each other");
    Ok(())
}

/// Reads a file that `torch.save` wrote (`torch.load` with `weights_only=True`): tensors, and containers and plain values around
/// them. Tensors of one storage share memory again. The last copies are asynchronous on the current stream.
///
/// # Errors
/// [`Error::is_invalid_argument`] if the file cannot be read, has the format before PyTorch 1.6, or contains anything other than
/// plain values and tensors.
#[at_line]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Object> {
    let what = path.as_ref().display().to_string();
    let file = File::open(path.as_ref()).map_err(|error| file_error(&what, error))?;
    let archive = ZipArchive::new(BufReader::new(file)).map_err(|error| {
        let zip = kind::sentence(path.as_ref()).filter(|kind| !kind.contains("zip file"));
        let reason = zip.map_or_else(|| format!("{error}; it is cut short, or damaged"), str::to_owned);
        file_error(&what, format!("it is not a file of `torch.save`: {reason}"))
    })?;
    let mut reader = Reader::new(archive, device).map_err(|error| error.context(what.clone()))?;
    let pickle = reader.record("data.pkl")?;
    let (values, root) = run(&pickle).map_err(|error| error.context(what))?;
    no_grad(|| reader.object(&values, root, 0))
}

struct Reader<R> {
    archive: ZipArchive<R>,
    /// The folder that contains all records.
    root: String,
    upload: Upload,
    /// The storages that were read, by key.
    storages: HashMap<String, Tensor>,
}

/// The parts of a storage's id.
struct Storage {
    class: String,
    key: String,
    elements: usize,
}

impl<R: Read + Seek> Reader<R> {
    fn new(archive: ZipArchive<R>, device: &Device) -> Result<Self> {
        let mut names = archive.file_names().flatten();
        let root = names.find_map(|name| name.strip_suffix("data.pkl").map(str::to_owned));
        drop(names);
        let root = root.ok_or_else(|| invalid!("the zip file has no data.pkl: PyTorch did not write it"))?;
        let mut reader = Self { archive, root, upload: Upload::new(device), storages: HashMap::new() };
        refuse_if!(
            reader.archive.index_for_name(&format!("{}byteorder", reader.root)).is_some()
                && reader.record("byteorder")? != b"little",
            "the bytes of its numbers are in another order than this machine's"
        );
        Ok(reader)
    }

    fn record(&mut self, name: &str) -> Result<Vec<u8>> {
        let name = format!("{}{name}", self.root);
        let mut record = self.archive.by_name(&name).map_err(|error| file_error(&name, error))?;
        let mut bytes = Vec::new();
        record.read_to_end(&mut bytes).map_err(|error| file_error(&name, error))?;
        Ok(bytes)
    }

    fn object(&mut self, values: &Values, place: ValueIndex, depth: usize) -> Result<Object> {
        check_depth(depth)?;
        let mut list = |places: &[ValueIndex]| -> Result<Vec<Object>> {
            places.iter().map(|&place| self.object(values, place, depth + 1)).collect()
        };
        Ok(match values.at(place) {
            Node::None => Object::None,
            Node::Bool(truth) => Object::Bool(*truth),
            Node::Int(number) => Object::Int(*number),
            Node::Float(number) => Object::Float(*number),
            Node::Str(text) => Object::Str(text.clone()),
            Node::List(places) => Object::List(list(places)?),
            Node::Tuple(places) => Object::Tuple(list(places)?),
            Node::Dict(pairs) => {
                let pair = |&(key, value): &(ValueIndex, ValueIndex)| {
                    Ok((self.object(values, key, depth + 1)?, self.object(values, value, depth + 1)?))
                };
                Object::Dict(pairs.iter().map(pair).collect::<Result<_>>()?)
            }
            Node::Global(name) => Object::Str(name.replace(' ', ".")),
            Node::Called(function, arguments) => self.called(values, *function, *arguments, depth)?,
            Node::Persistent(_) => return Err(invalid!("a storage without a tensor is not read")),
        })
    }

    fn called(
        &mut self,
        values: &Values,
        function: ValueIndex,
        arguments: ValueIndex,
        depth: usize,
    ) -> Result<Object> {
        let (Node::Global(name), Node::Tuple(arguments)) = (values.at(function), values.at(arguments)) else {
            refuse!("something else than a name is called");
        };
        match (name.as_str(), arguments.as_slice()) {
            ("torch._utils _rebuild_tensor_v2", [storage, offset, size, stride, ..]) => {
                self.tensor(values, [*storage, *offset, *size, *stride], None).map(Object::Tensor)
            }
            ("torch._utils _rebuild_tensor_v3", [storage, offset, size, stride, _, _, dtype, ..]) => {
                let Node::Global(name) = values.at(*dtype) else {
                    refuse!("a tensor's dtype is not a name");
                };
                self.tensor(values, [*storage, *offset, *size, *stride], Some(name)).map(Object::Tensor)
            }
            ("torch._utils _rebuild_parameter" | "torch Size", [first, ..]) => {
                self.object(values, *first, depth + 1)
            }
            (DICTIONARY, [pairs]) => match self.object(values, *pairs, depth + 1)? {
                Object::List(pairs) => {
                    let pair = |object| match object {
                        Object::List(pair) | Object::Tuple(pair) => <[Object; 2]>::try_from(pair).ok(),
                        _ => None,
                    };
                    let pairs: Option<Vec<_>> =
                        pairs.into_iter().map(|object| pair(object).map(Into::into)).collect();
                    Ok(Object::Dict(pairs.ok_or_else(|| invalid!("a dictionary is not made of pairs"))?))
                }
                _ => Err(invalid!("a dictionary is not made of pairs")),
            },
            (name, _) => Err(invalid!("{name} is called with arguments that it does not take")),
        }
    }

    /// Returns a tensor of a storage, from the storage's id, an offset, extents and strides.
    fn tensor(&mut self, values: &Values, parts: [ValueIndex; 4], dtype: Option<&String>) -> Result<Tensor> {
        let [storage, offset, size, stride] = parts;
        let broken = || invalid!("a tensor is not described as PyTorch does");
        let number = |place: ValueIndex| match values.at(place) {
            Node::Int(number) => Ok(*number),
            _ => Err(broken()),
        };
        let numbers = |place: ValueIndex| match values.at(place) {
            Node::Tuple(list) => list.iter().map(|&place| number(place)).collect::<Result<Vec<_>>>(),
            _ => Err(broken()),
        };
        let storage = storage_of(values, storage).ok_or_else(broken)?;
        let (dtype, elements) = match dtype {
            Some(name) => {
                let dtype: DType =
                    name.strip_prefix("torch ").and_then(|name| name.parse().ok()).ok_or_else(broken)?;
                (dtype, storage.elements / dtype.size_bytes())
            }
            None => {
                let class = storage.class.rsplit(' ').next();
                let found = DType::ALL
                    .into_iter()
                    .find(|&dtype| class.is_some() && class == storage_class(dtype).as_deref());
                let unknown = || invalid!("{} is not the storage of a dtype here", storage.class);
                (found.ok_or_else(unknown)?, storage.elements)
            }
        };
        let base = match self.storages.get(&storage.key) {
            Some(base) => base.clone(),
            None => {
                let name = format!("{}data/{}", self.root, storage.key);
                let mut record = self.archive.by_name(&name).map_err(|error| file_error(&name, error))?;
                if record.size() != (elements as u64).saturating_mul(dtype.size_bytes() as u64) {
                    refuse!("{name} has not the bytes of {elements} {dtype}");
                }
                let base = self.upload.tensor(&[elements], dtype, &mut record)?;
                self.storages.insert(storage.key, base.clone());
                base
            }
        };
        refuse_if!(base.dtype() != dtype, "a storage is of two dtypes");
        base.as_strided(&numbers(size)?, &numbers(stride)?, Some(number(offset)?))
    }
}

/// Returns the id of a storage: ('storage', class, key, location, elements).
fn storage_of(values: &Values, place: ValueIndex) -> Option<Storage> {
    let Node::Persistent(id) = values.at(place) else { return None };
    let Node::Tuple(parts) = values.at(*id) else { return None };
    let parts: Vec<&Node> = parts.iter().map(|&part| values.at(part)).collect();
    match parts.as_slice() {
        [Node::Str(kind), Node::Global(class), Node::Str(key), _, Node::Int(elements), ..]
            if kind == "storage" =>
        {
            let elements = usize::try_from(*elements).ok()?;
            Some(Storage { class: class.clone(), key: key.clone(), elements })
        }
        _ => None,
    }
}

/// Writes a value as `torch.save` does, so that `torch.load` reads it. Tensors with the same elements in memory, such as tied
/// weights, share one storage; every other tensor has a separate storage. *Blocks.*
///
/// # Errors
/// [`Error::is_invalid_argument`] if the file cannot be written, or if the value is one that Python cannot read: a dictionary whose
/// key is a container of lists or dictionaries, or more than 64 containers in each other. Then no file is written.
#[at_line]
pub fn save(object: &Object, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let what = path.display().to_string();
    let failed = |error: &dyn std::fmt::Display| file_error(&what, error);
    let (mut pickle, mut tensors) = (Writer::new(), Vec::new());
    write(object, &mut pickle, &mut tensors, 0)?;
    let file = BufWriter::new(File::create(path).map_err(|error| failed(&error))?);
    let mut archive = ZipWriter::new(file);
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .with_alignment(64)
        .large_file(true);
    let records: [(&str, &[u8]); 3] =
        [("data.pkl", &pickle.finish()), ("byteorder", b"little"), ("version", b"3\n")];
    for (name, bytes) in records {
        archive.start_file(format!("archive/{name}"), options).map_err(|error| failed(&error))?;
        archive.write_all(bytes).map_err(|error| failed(&error))?;
    }
    for (key, tensor) in tensors.iter().enumerate() {
        archive.start_file(format!("archive/data/{key}"), options).map_err(|error| failed(&error))?;
        download(tensor, &mut archive)?;
    }
    let mut file = archive.finish().map_err(|error| failed(&error))?;
    file.flush().map_err(|error| failed(&error))
}

/// Writes a value, and collects its tensors.
fn write<'a>(
    object: &'a Object,
    pickle: &mut Writer,
    tensors: &mut Vec<&'a Tensor>,
    depth: usize,
) -> Result<()> {
    check_depth(depth)?;
    let mut part = |part: &'a Object, pickle: &mut Writer| write(part, pickle, tensors, depth + 1);
    match object {
        Object::None => pickle.code(b'N'),
        Object::Bool(truth) => pickle.bool(*truth),
        Object::Int(number) => pickle.int(*number),
        Object::Float(number) => pickle.float(*number),
        Object::Str(text) => pickle.text(text)?,
        Object::Tensor(tensor) => {
            let key = tensors.iter().position(|known| is_same_memory(known, tensor)).unwrap_or_else(|| {
                tensors.push(tensor);
                tensors.len() - 1
            });
            write_tensor(tensor, key, pickle)?;
        }
        Object::List(list) => {
            pickle.code(b']');
            pickle.code(b'(');
            list.iter().try_for_each(|item| part(item, pickle))?;
            pickle.code(b'e');
        }
        Object::Tuple(list) => {
            pickle.code(b'(');
            list.iter().try_for_each(|item| part(item, pickle))?;
            pickle.code(b't');
        }
        Object::Dict(pairs) => {
            pickle.global(DICTIONARY);
            pickle.code(b')');
            pickle.code(b'R');
            pickle.code(b'(');
            for (key, value) in pairs {
                part(key, pickle)?;
                refuse_if!(!is_hashable(key), "a dictionary has the key {key:?}, which Python cannot hash");
                part(value, pickle)?;
            }
            pickle.code(b'u');
        }
    }
    Ok(())
}

/// Returns whether Python accepts a value as the key of a dictionary.
fn is_hashable(key: &Object) -> bool {
    match key {
        Object::List(_) | Object::Dict(_) => false,
        Object::Tuple(parts) => parts.iter().all(is_hashable),
        _ => true,
    }
}

/// Returns whether two tensors are the same elements of one storage, in one layout.
fn is_same_memory(a: &Tensor, b: &Tensor) -> bool {
    a.shares_storage_with(b) && a.dtype() == b.dtype() && a.layout() == b.layout()
}

/// Returns the name of PyTorch's class of storages of a dtype. Tensors of a dtype without a class are saved with the dtype's name.
fn storage_class(dtype: DType) -> Option<String> {
    let Exchange { scalar_type, has_classes, .. } = dtype.exchange();
    has_classes.then(|| format!("{scalar_type}Storage"))
}

/// Writes the call that rebuilds a tensor of the storage with this key.
fn write_tensor(tensor: &Tensor, key: usize, pickle: &mut Writer) -> Result<()> {
    let (dtype, elements) = (tensor.dtype(), tensor.elements() as i64);
    let class = storage_class(dtype);
    pickle.global(match class {
        Some(_) => "torch._utils _rebuild_tensor_v2",
        None => "torch._utils _rebuild_tensor_v3",
    });
    pickle.code(b'(');
    pickle.code(b'(');
    pickle.text("storage")?;
    match &class {
        Some(class) => pickle.global(&format!("torch {class}")),
        None => pickle.global("torch.storage UntypedStorage"),
    }
    pickle.text(&key.to_string())?;
    pickle.text("cpu")?;
    pickle.int(if class.is_some() { elements } else { elements * dtype.size_bytes() as i64 });
    pickle.code(b't');
    pickle.code(b'Q');
    pickle.int(0);
    for numbers in [tensor.shape().to_vec(), thalweg_ir::contiguous_strides(tensor.shape()).to_vec()] {
        pickle.code(b'(');
        numbers.iter().for_each(|&number| pickle.int(number as i64));
        pickle.code(b't');
    }
    pickle.bool(false);
    pickle.global(DICTIONARY);
    pickle.code(b')');
    pickle.code(b'R');
    if class.is_none() {
        pickle.global(&format!("torch {dtype}"));
    }
    pickle.code(b't');
    pickle.code(b'R');
    Ok(())
}
