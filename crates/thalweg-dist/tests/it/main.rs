//! Tests of process groups, stores and data parallel training, on simulated ranks.
#![allow(missing_docs)]

mod checkpoint;
mod collectives;
mod data_parallel;
mod environment;
mod exits;
mod failures;
mod flight;
mod fully_shard;
mod fully_shard_offload;
mod functional;
#[path = "../../../thalweg-runtime/tests/it/gate.rs"]
mod gate;
mod groups;
mod hybrid;
mod join;
mod links;
mod lockstep;
mod lockstep_cache;
mod mesh;
mod objects;
mod offload;
mod parallel_layers;
mod pipeline;
mod slurm;
mod stores;
mod support;
mod tensor_parallel;
mod torch_store;
mod unused_parameters;

// Parts of the library that need nothing else of it: their own tests run here, which spares a test binary of the whole library.
#[allow(unused)]
#[path = "../../src/data_parallel/buckets.rs"]
mod buckets;
#[allow(unused)]
#[path = "../../src/flight/call.rs"]
mod call;
#[allow(unused)]
#[path = "../../src/store/wire.rs"]
mod wire;
