//! Collectives of bytes: PyTorch's object collectives without pickle. They *block*.

use thalweg_derive::at_line;
use thalweg_ir::DType;
use thalweg_runtime::{Error, Result, invalid, refuse, refuse_if};
use thalweg_tensor::Tensor;

use crate::checks::{is_member, is_other};
use crate::{Coalescing, ProcessGroup};

impl ProcessGroup {
    /// Returns the objects of all ranks, on every rank, by rank (`torch.distributed.all_gather_object`); lengths may differ.
    /// *Blocks*.
    #[at_line]
    pub fn all_gather_object(&self, object: &[u8]) -> Result<Vec<Vec<u8>>> {
        let ranks = self.size() as usize;
        let own = Tensor::from_slice(&[object.len() as i64], &[1], self.device())?;
        let all = Tensor::empty(&[ranks], DType::I64, self.device())?;
        self.all_gather_into_tensor(&all, &own)?.wait()?;
        let lengths = all.to_vec::<i64>()?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = object.to_vec();
        padded.resize(longest, 0);
        let own = Tensor::from_slice(&padded, &[longest], self.device())?;
        let all = Tensor::empty(&[ranks * longest], DType::U8, self.device())?;
        self.all_gather_into_tensor(&all, &own)?.wait()?;
        let bytes = all.to_vec::<u8>()?;
        let object = |(rank, length): (usize, &i64)| bytes[rank * longest..][..*length as usize].to_vec();
        Ok(lengths.iter().enumerate().map(object).collect())
    }

    /// Returns rank `src`'s object, on every rank (`torch.distributed.broadcast_object_list`). The other ranks' objects are
    /// ignored. *Blocks*.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such rank, and those of the underlying collectives.
    #[at_line]
    pub fn broadcast_object(&self, object: &[u8], src: u32) -> Result<Vec<u8>> {
        refuse_if!(src >= self.size(), "broadcast_object: rank {src} of {} ranks", self.size());
        let length = Tensor::from_slice(&[object.len() as i64], &[1], self.device())?;
        self.broadcast(&length, src)?.wait()?;
        let length = length.item::<i64>()? as usize;
        let mut bytes = if src == self.rank() { object.to_vec() } else { vec![0; length] };
        if length > 0 {
            let content = Tensor::from_slice(&bytes, &[length], self.device())?;
            self.broadcast(&content, src)?.wait()?;
            bytes = content.to_vec::<u8>()?;
        }
        Ok(bytes)
    }

    /// Returns the objects of all ranks, by rank, only on rank `dst` (`torch.distributed.gather_object`); lengths may differ. The
    /// other ranks get `None`. *Blocks*.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such rank, and those of the underlying collectives.
    #[at_line]
    pub fn gather_object(&self, object: &[u8], dst: u32) -> Result<Option<Vec<Vec<u8>>>> {
        is_member(self, "gather_object: destination", dst)?;
        let own = lengths_of(self, &[object])?;
        let is_destination = dst == self.rank();
        let count = if is_destination { self.size() as usize } else { 0 };
        let all: Vec<Tensor> = (0..count).map(|_| empty(self, DType::I64, 1)).collect::<Result<_>>()?;
        self.gather(&own, is_destination.then_some(&all[..]), dst)?.wait()?;
        let lengths = all.iter().map(Tensor::item::<i64>).collect::<Result<Vec<_>>>()?;
        let mut parts = self.coalescing();
        if !is_destination {
            return self.send_parts(parts, &[(dst, object)]).map(|()| None);
        }
        let mut theirs = Vec::new();
        for (rank, &length) in (0..).zip(&lengths) {
            let bytes = empty(self, DType::U8, length as usize)?;
            if rank != dst && length > 0 {
                parts.recv(&bytes, rank)?;
            }
            theirs.push(bytes);
        }
        submit(parts)?;
        let object = |(rank, bytes): (u32, &Tensor)| match rank == dst {
            true => Ok(object.to_vec()),
            false => bytes.to_vec::<u8>(),
        };
        (0..).zip(&theirs).map(object).collect::<Result<_>>().map(Some)
    }

    /// Returns this rank's object of the list that rank `src` passes, one per rank (`torch.distributed.scatter_object_list`);
    /// lengths may differ. The other ranks' lists are ignored. *Blocks*.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such rank, or rank `src` passes no objects, or not one per rank; and those
    /// of the underlying collectives.
    #[at_line]
    pub fn scatter_object_list(&self, objects: Option<&[&[u8]]>, src: u32) -> Result<Vec<u8>> {
        is_member(self, "scatter_object_list: source", src)?;
        let own = empty(self, DType::I64, 1)?;
        if src != self.rank() {
            self.scatter(&own, None, src)?.wait()?;
            return self.receive_parts(&[own.item::<i64>()?], src).map(|mut objects| objects.remove(0));
        }
        let Some(objects) = objects else {
            refuse!("Argument `scatter_object_input_list` must be specified on src rank.");
        };
        refuse_if!(
            objects.len() != self.size() as usize,
            "scatter_object_list: rank {src} gives {} objects to {} ranks: give one per rank",
            objects.len(),
            self.size()
        );
        let lengths = objects.iter().map(|object| lengths_of(self, &[object]));
        self.scatter(&own, Some(&lengths.collect::<Result<Vec<_>>>()?), src)?.wait()?;
        let others: Vec<(u32, &[u8])> = (0..)
            .zip(objects)
            .map(|(rank, object)| (rank, *object))
            .filter(|(rank, _)| *rank != src)
            .collect();
        self.send_parts(self.coalescing(), &others)?;
        Ok(objects[src as usize].to_vec())
    }

    /// Sends objects to rank `dst`, which must receive the same number with [`recv_object_list`](Self::recv_object_list)
    /// (`torch.distributed.send_object_list`). Does not wait for that rank.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such rank, it is this one, or there are no objects; and those of the
    /// underlying collectives.
    #[at_line]
    pub fn send_object_list(&self, objects: &[&[u8]], dst: u32) -> Result<()> {
        is_other(self, "destination", dst)?;
        some("send_object_list", objects.len())?;
        self.send(&lengths_of(self, objects)?, dst)?.wait()?;
        self.send_parts(self.coalescing(), &[(dst, &objects.concat())])
    }

    /// Returns `count` objects that rank `src` sends with [`send_object_list`](Self::send_object_list)
    /// (`torch.distributed.recv_object_list`). *Blocks*.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such rank, it is this one, or `count` is 0; and those of the underlying
    /// collectives.
    #[at_line]
    pub fn recv_object_list(&self, count: usize, src: u32) -> Result<Vec<Vec<u8>>> {
        is_other(self, "source", src)?;
        some("recv_object_list", count)?;
        let lengths = empty(self, DType::I64, count)?;
        self.recv(&lengths, src)?.wait()?;
        self.receive_parts(&lengths.to_vec::<i64>()?, src)
    }

    /// Sends bytes to each of these ranks, together with the parts collected so far.
    fn send_parts(&self, mut parts: Coalescing<'_>, objects: &[(u32, &[u8])]) -> Result<()> {
        for (rank, object) in objects.iter().filter(|(_, object)| !object.is_empty()) {
            parts.send(&Tensor::from_slice(object, &[object.len()], self.device())?, *rank)?;
        }
        submit(parts)
    }

    /// Receives objects of these lengths that a rank sends one after the other.
    fn receive_parts(&self, lengths: &[i64], src: u32) -> Result<Vec<Vec<u8>>> {
        let bytes = empty(self, DType::U8, lengths.iter().sum::<i64>() as usize)?;
        if bytes.elements() > 0 {
            self.recv(&bytes, src)?.wait()?;
        }
        let all = bytes.to_vec::<u8>()?;
        let mut rest = &all[..];
        let object = |&length: &i64| {
            let (object, after) = rest.split_at(length as usize);
            rest = after;
            object.to_vec()
        };
        Ok(lengths.iter().map(object).collect())
    }
}

/// Returns the lengths of objects as a tensor.
fn lengths_of(group: &ProcessGroup, objects: &[&[u8]]) -> Result<Tensor> {
    let lengths: Vec<i64> = objects.iter().map(|object| object.len() as i64).collect();
    Tensor::from_slice(&lengths, &[lengths.len()], group.device())
}

fn empty(group: &ProcessGroup, dtype: DType, count: usize) -> Result<Tensor> {
    Tensor::empty(&[count], dtype, group.device())
}

/// Submits the collected parts, if there are any.
fn submit(parts: Coalescing<'_>) -> Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    parts.submit()?.wait()
}

fn some(what: &str, count: usize) -> Result<()> {
    if count > 0 {
        return Ok(());
    }
    Err(invalid!("{what}: expected argument `object_list` to be a list of size at least 1"))
}
