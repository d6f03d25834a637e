//! Rank, world size and store, read from the environment variables that a launcher sets.

use std::sync::Arc;

use thalweg_runtime::{Device, Error, Result, invalid, refuse_if};

use crate::store::{DEFAULT_STORE_TIMEOUT, PrefixStore, Store, TcpStore, TorchStore};
use crate::{GroupOptions, ProcessGroup};

/// The place of this process among the processes of a program, read from the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchEnvironment {
    /// The number of this process among all, from 0: `RANK`, else SLURM's or MPI's variable.
    pub rank: u32,
    /// The number of all processes: `WORLD_SIZE`, else SLURM's or MPI's variable.
    pub world_size: u32,
    /// The number of this process among the processes of its machine: `LOCAL_RANK`, else SLURM's or MPI's variable. It is the
    /// index of the device to use.
    pub local_rank: u32,
    /// The machine of rank 0: `MASTER_ADDR`.
    pub master_address: String,
    /// The port of the store: `THALWEG_STORE_PORT`, else `MASTER_PORT`.
    pub store_port: u16,
    /// The prefix of each key in the store that torchrun serves at this port (`TORCHELASTIC_USE_AGENT_STORE=True`): its run
    /// (`TORCHELASTIC_RUN_ID`) and how often it has restarted the ranks (`TORCHELASTIC_RESTART_COUNT`), so that no rank reads
    /// values from before the restart. `None`: rank 0 serves the store; that is always so if `THALWEG_STORE_PORT` is set.
    pub agent_store_prefix: Option<String>,
}

/// The variables of launchers for the rank, the number of processes, and the local rank.
const LAUNCHERS: [[&str; 3]; 3] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
];

impl LaunchEnvironment {
    /// Reads the process's environment; `None` if the process was not started by a launcher.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a variable is missing or cannot be parsed.
    pub fn get() -> Result<Option<Self>> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Reads the variables from a lookup function.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(launcher) = LAUNCHERS.iter().find(|names| variable(names[0]).is_some()) else {
            return Ok(None);
        };
        let missing = |name: &str| {
            invalid!(
                "environment variable {name} expected, but not set: start the program with torchrun, or set RANK, WORLD_SIZE, \
                 LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
            )
        };
        let number = |name: &str| -> Result<u32> {
            let value = variable(name).ok_or_else(|| missing(name))?;
            value.parse().map_err(|_| invalid!("{name}={value} is not a number"))
        };
        let [rank, world_size, local_rank] = *launcher;
        let (rank, world_size) = (number(rank)?, number(world_size)?);
        // With one process per machine no local rank is needed.
        let local_rank = if variable(local_rank).is_some() { number(local_rank)? } else { 0 };
        refuse_if!(rank >= world_size, "rank {rank} is not in a world of {world_size} ranks");
        let master_address = variable("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
        let port = |name: &str| -> Result<Option<u16>> {
            let Some(value) = variable(name) else { return Ok(None) };
            value.parse().map(Some).map_err(|_| invalid!("{name}={value} is not a port"))
        };
        let own_port = port("THALWEG_STORE_PORT")?;
        let store_port = match own_port {
            Some(port) => port,
            None => port("MASTER_PORT")?.ok_or_else(|| missing("MASTER_PORT"))?,
        };
        let has_agent_store =
            variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let agent_store_prefix = (has_agent_store && own_port.is_none()).then(|| {
            let run = variable("TORCHELASTIC_RUN_ID").unwrap_or_else(|| "none".to_owned());
            let restarts = variable("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
            format!("thalweg/{run}/{restarts}")
        });
        Ok(Some(Self { rank, world_size, local_rank, master_address, store_port, agent_store_prefix }))
    }
}

/// The place of this process among the ranks, and the store that the ranks share.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    /// The number of this process among all.
    pub rank: u32,
    /// The number of all processes.
    pub world_size: u32,
    /// The number of this process among those on its machine.
    pub local_rank: u32,
    /// The store.
    pub store: Arc<dyn Store>,
}

impl Rendezvous {
    /// Connects to the store that the environment names (`init_method="env://"`): the one that torchrun serves; without torchrun,
    /// rank 0 serves one and the others connect. *Blocks* until the store answers. `None` if the process was not started by a
    /// launcher.
    ///
    /// # Errors
    /// [`Error::is_invalid_argument`] if a variable is missing or cannot be parsed; [`Error::is_distributed`] if the store does
    /// not answer in 5 minutes.
    pub fn from_environment() -> Result<Option<Self>> {
        LaunchEnvironment::get()?.map(|environment| Self::of(&environment)).transpose()
    }

    /// Connects to the store that an environment names.
    ///
    /// # Errors
    /// [`Error::is_distributed`] if the store does not answer in 5 minutes.
    pub fn of(environment: &LaunchEnvironment) -> Result<Self> {
        let LaunchEnvironment { master_address, store_port, .. } = environment;
        let address = format!("{master_address}:{store_port}");
        let store: Arc<dyn Store> = if let Some(prefix) = &environment.agent_store_prefix {
            let store = TorchStore::connect(&address, DEFAULT_STORE_TIMEOUT)?;
            Arc::new(PrefixStore::new(prefix, Arc::new(store)))
        } else if environment.rank == 0 {
            Arc::new(TcpStore::serve(("0.0.0.0", *store_port), DEFAULT_STORE_TIMEOUT)?)
        } else {
            Arc::new(TcpStore::connect(&address, DEFAULT_STORE_TIMEOUT)?)
        };
        let LaunchEnvironment { rank, world_size, local_rank, .. } = *environment;
        Ok(Self { rank, world_size, local_rank, store })
    }

    /// Makes a device this process's rank (`torch.distributed.init_process_group`). *Blocks* until all ranks have made this call.
    #[track_caller]
    pub fn init_process_group(&self, device: &Device, options: GroupOptions) -> Result<ProcessGroup> {
        ProcessGroup::new(self.store.clone(), self.rank, self.world_size, device, options)
    }
}
