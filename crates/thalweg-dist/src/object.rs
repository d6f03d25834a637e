//! Collectives of bytes: PyTorch's object forms without pickle. They *block*.

use std::panic::Location;

use thalweg_ir::DType;
use thalweg_runtime::{Error, Result};
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::at_line;

use crate::ProcessGroup;

impl ProcessGroup {
    /// Returns what each rank gives, on every rank, by rank (`torch.distributed.all_gather_object`); lengths may differ. *Blocks*.
    ///
    /// # Errors
    /// Those of the collectives that it is made of.
    #[track_caller]
    pub fn all_gather_object(&self, object: &[u8]) -> Result<Vec<Vec<u8>>> {
        at_line(Location::caller(), || {
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
        })
    }

    /// Returns what rank `src` gives, on every rank (`torch.distributed.broadcast_object_list`). What the others give is not looked
    /// at. *Blocks*.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if there is no such rank, and those of the collectives that it is made of.
    #[track_caller]
    pub fn broadcast_object(&self, object: &[u8], src: u32) -> Result<Vec<u8>> {
        at_line(Location::caller(), || {
            if src >= self.size() {
                return Err(Error::invalid(format!("broadcast_object: rank {src} of {} ranks", self.size())));
            }
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
        })
    }
}
