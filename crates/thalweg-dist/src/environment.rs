//! Rank, world size and store, as a launcher says them by the environment.

use std::sync::Arc;

use thalweg_runtime::{Device, Error, Result};

use crate::store::{DEFAULT_STORE_TIMEOUT, Store, TcpStore};
use crate::{GroupOptions, ProcessGroup};

/// The place of this process among those of a program, as the environment says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchEnvironment {
    /// The number of this process among all, from 0 on: `RANK`, else SLURM's or MPI's.
    pub rank: u32,
    /// The number of all processes: `WORLD_SIZE`, else SLURM's or MPI's.
    pub world_size: u32,
    /// The number of this process among those of its machine: `LOCAL_RANK`, else SLURM's or MPI's. The device to take.
    pub local_rank: u32,
    /// The machine of rank 0: `MASTER_ADDR`.
    pub master_address: String,
    /// The port of the store: `THALWEG_STORE_PORT`, else `MASTER_PORT`, and that plus 1 where torchrun has a store of its own
    /// there (`TORCHELASTIC_USE_AGENT_STORE=True`).
    pub store_port: u16,
}

/// The variables of launchers that say rank, number of processes, and number on the machine.
const LAUNCHERS: [[&str; 3]; 3] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
];

impl LaunchEnvironment {
    /// Returns what the process's environment says, `None` if it was started alone.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a variable is missing, or not understood.
    pub fn get() -> Result<Option<Self>> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Returns what a lookup of variables says.
    ///
    /// # Errors
    /// Those of [`LaunchEnvironment::get`].
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(launcher) = LAUNCHERS.iter().find(|names| variable(names[0]).is_some()) else {
            return Ok(None);
        };
        let missing = |name: &str| {
            Error::invalid(format!(
                "environment variable {name} expected, but not set: start the program with torchrun, or set RANK, WORLD_SIZE, \
                 LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
            ))
        };
        let number = |name: &str| -> Result<u32> {
            let value = variable(name).ok_or_else(|| missing(name))?;
            value.parse().map_err(|_| Error::invalid(format!("{name}={value} is no number")))
        };
        let [rank, world_size, local_rank] = *launcher;
        let (rank, world_size) = (number(rank)?, number(world_size)?);
        // One process per machine needs none.
        let local_rank = if variable(local_rank).is_some() { number(local_rank)? } else { 0 };
        if rank >= world_size {
            return Err(Error::invalid(format!("rank {rank} is not in a world of {world_size} ranks")));
        }
        let master_address = variable("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
        let port = |name: &str| -> Result<Option<u16>> {
            let Some(value) = variable(name) else { return Ok(None) };
            value.parse().map(Some).map_err(|_| Error::invalid(format!("{name}={value} is no port")))
        };
        let has_agent_store =
            variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let store_port = match (port("THALWEG_STORE_PORT")?, port("MASTER_PORT")?) {
            (Some(port), _) => port,
            (None, Some(port)) if has_agent_store => port.checked_add(1).unwrap_or(port - 1),
            (None, Some(port)) => port,
            (None, None) => return Err(missing("MASTER_PORT")),
        };
        Ok(Some(Self { rank, world_size, local_rank, master_address, store_port }))
    }
}

/// Where this process stands among the others, and the store that it shares with them.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// The number of this process among all.
    pub rank: u32,
    /// The number of all processes.
    pub world_size: u32,
    /// The number of this process among those of its machine.
    pub local_rank: u32,
    /// The store.
    pub store: Arc<dyn Store>,
}

impl Rendezvous {
    /// Meets the other processes as the environment says (`init_method="env://"`): rank 0 serves the store, the others connect.
    /// *Blocks* until the store answers. `None` if the process was started alone.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a variable is missing or not understood; [`Error::is_distributed`] if the store does
    /// not answer in 5 minutes.
    pub fn from_environment() -> Result<Option<Self>> {
        LaunchEnvironment::get()?.map(|environment| Self::of(&environment)).transpose()
    }

    /// Meets the other processes as an environment says.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if the store does not answer in 5 minutes.
    pub fn of(environment: &LaunchEnvironment) -> Result<Self> {
        let LaunchEnvironment { rank, world_size, local_rank, master_address, store_port } = environment;
        let store = if *rank == 0 {
            TcpStore::serve(("0.0.0.0", *store_port), DEFAULT_STORE_TIMEOUT)?
        } else {
            TcpStore::connect(&format!("{master_address}:{store_port}"), DEFAULT_STORE_TIMEOUT)?
        };
        let (rank, world_size, local_rank) = (*rank, *world_size, *local_rank);
        Ok(Self { rank, world_size, local_rank, store: Arc::new(store) })
    }

    /// Makes a device this process's rank (`torch.distributed.init_process_group`). *Blocks* until all have come.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::new`].
    #[track_caller]
    pub fn init_process_group(&self, device: &Device, options: GroupOptions) -> Result<ProcessGroup> {
        ProcessGroup::new(self.store.clone(), self.rank, self.world_size, device, options)
    }
}
