//! Sharded checkpoints: each rank writes its rows, and any number of ranks can read them.
//!
//! A checkpoint is a folder with a `safetensors` file per rank, whose metadata has, per tensor, the full shape and the first row
//! of the part. It is written under its name with the suffix `.partial`, and renamed when all ranks have written: a folder with
//! the final name is complete.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use thalweg_nn::module::{Module, StateDict};
use thalweg_nn::optim::OptimizerState;
use thalweg_nn::serialize::{SafeTensorsFile, save_file};
use thalweg_runtime::{Error, Result, invalid, refuse};
use thalweg_tensor::caller::at_line;
use thalweg_tensor::{Tensor, no_grad};

use super::FullyShard;
use super::unit::Sharded;
use crate::ProcessGroup;

/// The metadata key of the number of files.
const RANKS: &str = "ranks";

/// A tensor of this rank, and its place in the full tensor.
struct Part<'m> {
    tensor: Tensor,
    /// The parameter and its padded rows, if the shard is in host memory: the tensor is then a view of these rows.
    offloaded: Option<(&'m Sharded, Tensor)>,
    shape: Vec<usize>,
    first: usize,
    /// Whether the other ranks have the rest of the tensor; otherwise all ranks have the full tensor.
    is_sharded: bool,
}

impl Part<'_> {
    fn note(&self) -> String {
        let extents: Vec<String> = self.shape.iter().map(ToString::to_string).collect();
        format!("{};{}", extents.join(","), self.first)
    }

    fn rows(&self) -> usize {
        self.tensor.shape().first().copied().unwrap_or(1)
    }
}

/// Parses the full shape and the first row from a metadata entry.
fn read_note(note: &str) -> Option<(Vec<usize>, usize)> {
    let (shape, first) = note.split_once(';')?;
    let shape: Option<Vec<usize>> =
        shape.split(',').filter(|extent| !extent.is_empty()).map(|extent| extent.parse().ok()).collect();
    Some((shape?, first.parse().ok()?))
}

fn file_name(rank: u32) -> String {
    format!("rank-{rank:05}.safetensors")
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

/// Exchanges the outcome of an operation on each rank: an error names the first rank on which it failed.
fn agree(group: &ProcessGroup, what: &str, own: Result<()>) -> Result<()> {
    let text = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let all = group.all_gather_object(text.as_bytes())?;
    match all.iter().position(|text| !text.is_empty()) {
        None => Ok(()),
        Some(rank) => Err(Error::distributed(format!(
            "rank {rank} could not {what}: {}",
            String::from_utf8_lossy(&all[rank])
        ))),
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| invalid!("{}: {error}", path.display())
}

impl<M: Module> FullyShard<M> {
    /// Writes this rank's rows of the parameters, with the buffers and the states of an optimizer over [`Module::parameters`], as
    /// a folder that all ranks see. The options of the optimizer are not written. All ranks call it; it *blocks*. Among replicas
    /// only the first writes. After any error the folder is either complete or absent.
    ///
    /// # Errors
    /// [`Error::is_distributed`] on every rank with the rank that could not write, and the reason; those of collectives.
    #[track_caller]
    pub fn save_sharded(&self, path: impl AsRef<Path>, optimizer: Option<&OptimizerState>) -> Result<()> {
        at_line(std::panic::Location::caller(), || {
            let Some(replicas) = self.replicas() else { return self.save(path.as_ref(), optimizer) };
            let saved = if replicas.rank() == 0 { self.save(path.as_ref(), optimizer) } else { Ok(()) };
            agree(replicas, "write a checkpoint for its replicas", saved)
        })
    }

    fn save(&self, path: &Path, optimizer: Option<&OptimizerState>) -> Result<()> {
        let (group, partial) = (self.group(), partial(path));
        let is_first = group.rank() == 0;
        let begun = match is_first {
            true if path.exists() => {
                Err(invalid!("{} is there already: give each a new name", path.display()))
            }
            true => fs::create_dir_all(&partial).map_err(failed(&partial)),
            false => Ok(()),
        };
        agree(group, "begin a checkpoint", begun)?;
        let written = self.write_part(&partial.join(file_name(group.rank())), optimizer);
        let all_written = agree(group, "write its part of a checkpoint", written);
        if all_written.is_err() && is_first {
            // The error is more useful than a failure to clean up.
            let _ = fs::remove_dir_all(&partial);
        }
        all_written?;
        let renamed = match is_first {
            true => fs::rename(&partial, path).map_err(failed(path)),
            false => Ok(()),
        };
        agree(group, "finish a checkpoint", renamed)
    }

    fn write_part(&self, path: &Path, optimizer: Option<&OptimizerState>) -> Result<()> {
        let parts = no_grad(|| self.checkpoint_parts(optimizer))?;
        let is_first = self.group().rank() == 0;
        let own: Vec<&(String, Part)> =
            parts.iter().filter(|(_, part)| part.is_sharded || is_first).collect();
        let tensors: StateDict =
            own.iter().map(|(name, part)| (name.clone(), part.tensor.detach())).collect();
        let mut notes: Vec<(&str, String)> =
            own.iter().map(|(name, part)| (name.as_str(), part.note())).collect();
        notes.push((RANKS, self.group().size().to_string()));
        let notes: Vec<(&str, &str)> = notes.iter().map(|(name, note)| (*name, note.as_str())).collect();
        save_file(&tensors, path, &notes)?;
        File::open(path).and_then(|file| file.sync_all()).map_err(failed(path))
    }

    /// Overwrites this rank's shards, the buffers and the states of an optimizer, in place, with a checkpoint that any number of ranks
    /// has written. All ranks call it; it *blocks*.
    ///
    /// # Errors
    /// [`Error::is_distributed`] on every rank with the rank that could not read, and the reason: a file or a tensor is missing,
    /// or a shape differs. If a tensor is missing or its shape differs, nothing has changed.
    #[track_caller]
    pub fn load_sharded(&self, path: impl AsRef<Path>, optimizer: Option<&OptimizerState>) -> Result<()> {
        let path = path.as_ref();
        at_line(std::panic::Location::caller(), || {
            let opened = no_grad(|| self.open_checkpoint(path, optimizer));
            let (files, failure) = match opened {
                Ok(files) => (files, Ok(())),
                Err(error) => (Vec::new(), Err(error)),
            };
            agree(self.group(), "read a checkpoint", failure)?;
            let read = no_grad(|| self.read_parts(files, optimizer));
            agree(self.group(), "read a checkpoint", read)
        })
    }

    /// Opens all files, and checks the names and shapes of their tensors.
    fn open_checkpoint(&self, path: &Path, optimizer: Option<&OptimizerState>) -> Result<Vec<Opened>> {
        let mut files = vec![Opened::new(&path.join(file_name(0)))?];
        let ranks = files[0].notes.get(RANKS).and_then(|count| count.parse::<u32>().ok());
        let Some(ranks) = ranks else {
            refuse!("{} is not a checkpoint of ranks", path.display());
        };
        for rank in 1..ranks {
            files.push(Opened::new(&path.join(file_name(rank)))?);
        }
        for (name, part) in &self.checkpoint_parts(optimizer)? {
            let found = files[0].notes.get(name).and_then(|note| read_note(note));
            match found {
                Some((shape, _)) if shape == part.shape => {}
                Some((shape, _)) => {
                    refuse!("{name} is {shape:?} in the checkpoint, and {:?} here", part.shape);
                }
                None => return Err(invalid!("{name} is not in the checkpoint")),
            }
        }
        Ok(files)
    }

    fn read_parts(&self, mut files: Vec<Opened>, optimizer: Option<&OptimizerState>) -> Result<()> {
        for (name, part) in &self.checkpoint_parts(optimizer)? {
            let target = part.tensor.detach();
            let end = part.first + part.rows();
            for opened in &mut files {
                let Some((_, first)) = opened.notes.get(name).and_then(|note| read_note(note)) else {
                    continue;
                };
                if !part.is_sharded {
                    target.copy_(&opened.file.tensor(name, self.group().device())?)?;
                    break;
                }
                let rows = opened.file.rows(name)?;
                let (from, to) = (part.first.max(first), end.min(first + rows));
                if from < to {
                    let piece =
                        opened.file.tensor_rows(name, from - first..to - first, self.group().device())?;
                    target.narrow(0, from - part.first, to - from)?.copy_(&piece)?;
                }
            }
            if let Some((sharded, padded)) = &part.offloaded {
                sharded.offload(padded)?;
            }
        }
        self.group().device().current_stream().synchronize()
    }

    /// Returns this rank's parts of a checkpoint, by name.
    fn checkpoint_parts(&self, optimizer: Option<&OptimizerState>) -> Result<Vec<(String, Part<'_>)>> {
        let whole = |tensor: &Tensor| Part {
            tensor: tensor.clone(),
            offloaded: None,
            shape: tensor.shape().to_vec(),
            first: 0,
            is_sharded: false,
        };
        let part = |parameter: &Tensor, tensor: &Tensor| match self.sharded(parameter) {
            Some(sharded) if tensor.shape() == parameter.shape() => Part {
                tensor: tensor.clone(),
                offloaded: None,
                shape: sharded.shape.clone(),
                first: sharded.first,
                is_sharded: true,
            },
            _ => whole(tensor),
        };
        let parameters = self.named_parameters();
        let own = |(name, parameter): &(String, Tensor)| {
            let mut part = part(parameter, parameter);
            if let Some(sharded) = self.sharded(parameter).filter(|sharded| sharded.is_in_host_memory()) {
                let [padded, rows] = sharded.present()?;
                (part.tensor, part.offloaded) = (rows, Some((sharded, padded)));
            }
            Ok((format!("model.{name}"), part))
        };
        let mut parts: Vec<(String, Part<'_>)> = parameters.iter().map(own).collect::<Result<_>>()?;
        parts.extend(
            self.named_buffers().iter().map(|(name, buffer)| (format!("model.{name}"), whole(buffer))),
        );
        for (number, states) in optimizer.iter().flat_map(|optimizer| &optimizer.state) {
            let Some((parameter_name, parameter)) = parameters.get(*number) else { continue };
            for (name, state) in states {
                parts.push((format!("optim.{parameter_name}.{name}"), part(parameter, state)));
            }
        }
        Ok(parts)
    }
}

/// A file of a checkpoint.
struct Opened {
    file: SafeTensorsFile,
    notes: HashMap<String, String>,
}

impl Opened {
    fn new(path: &Path) -> Result<Self> {
        let file = SafeTensorsFile::open(path)?;
        let notes = file.notes();
        Ok(Self { file, notes })
    }
}
