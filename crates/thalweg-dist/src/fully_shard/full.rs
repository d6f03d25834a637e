//! Full parameters: state dictionaries that do not depend on the number of ranks.

use thalweg_derive::at_line;
use thalweg_nn::module::{Module, StateDict};
use thalweg_runtime::{Error, Result, refuse};
use thalweg_tensor::{Tensor, no_grad};

use super::FullyShard;
use super::unit::Sharded;

impl<M: Module> FullyShard<M> {
    /// Returns the full parameters and the buffers by name, on every rank (`get_model_state_dict` with `full_state_dict`). All
    /// ranks call it. [`Module::state_dict`] has this rank's shards. Asynchronous.
    #[at_line]
    pub fn full_state_dict(&self) -> Result<StateDict> {
        let (shards, group) = (self.state_dict(), self.group());
        let mut whole = StateDict::new();
        for (name, tensor) in shards {
            let Some(sharded) = self.sharded(&tensor) else {
                whole.insert(name, tensor);
                continue;
            };
            let mut one = group.coalescing();
            let gathered = no_grad(|| sharded.gather(&mut one, group.size(), tensor.dtype()))?;
            one.submit()?.wait()?;
            whole.insert(name, gathered.narrow(0, 0, sharded.shape[0])?.detach());
        }
        Ok(whole)
    }

    /// Overwrites this rank's shards and the buffers from full tensors of the same names (`set_model_state_dict` with
    /// `full_state_dict`). Every rank passes the full dictionary. Asynchronous.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if names are missing or unknown, or shapes differ. Then nothing has changed.
    #[at_line]
    pub fn load_full_state_dict(&self, saved: &StateDict) -> Result<()> {
        let own = self.state_dict();
        let (mut parts, mut offloaded) = (StateDict::new(), Vec::new());
        for (name, tensor) in saved {
            let part = match own.get(name).and_then(|shard| self.sharded(shard)) {
                None => tensor.clone(),
                Some(sharded) if tensor.shape() != sharded.shape => {
                    refuse!(
                        "size mismatch for {name}: copying a param with shape torch.Size({:?}) from checkpoint, the shape in \
                             current model is torch.Size({:?}).",
                        tensor.shape(),
                        sharded.shape
                    );
                }
                Some(sharded) if sharded.is_in_host_memory() => {
                    offloaded.push((sharded, sharded.rows_of(tensor)?));
                    sharded.shard.detach()
                }
                Some(sharded) => sharded.rows_of(tensor)?,
            };
            parts.insert(name.clone(), part);
        }
        self.load_state_dict(&parts)?;
        no_grad(|| offloaded.iter().try_for_each(|(sharded, rows)| sharded.overwrite(rows)))
    }

    /// Returns the parameter whose shard's memory a tensor shares.
    pub(super) fn sharded(&self, tensor: &Tensor) -> Option<&Sharded> {
        let mut all = self.units().flat_map(|unit| unit.parameters());
        all.find(|sharded| sharded.shard.shares_storage_with(tensor))
    }
}

impl Sharded {
    /// Returns this rank's rows of a full parameter.
    pub(super) fn rows_of(&self, whole: &Tensor) -> Result<Tensor> {
        whole.narrow(0, self.first, self.shard.shape()[0])
    }

    /// Overwrites this rank's rows in host memory.
    fn overwrite(&self, values: &Tensor) -> Result<()> {
        let [padded, rows] = self.present()?;
        rows.copy_(values)?;
        self.offload(&padded)
    }
}
