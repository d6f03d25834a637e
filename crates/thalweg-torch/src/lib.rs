//! Thalweg's caching allocator and kernels inside PyTorch.
//!
//! This crate is a *skin*: a C interface over the allocators of [`thalweg_memory`], with as little thought of its own as can be.
//! PyTorch reaches it through one of two C++ objects (`csrc/`), and its users through a Python package (`python/`):
//!
//! ```text
//!        import thalweg_torch; thalweg_torch.enable()              python/thalweg_torch
//!                 │ first tier                 │ second tier
//!     CUDAPluggableAllocator's hooks   a CUDAAllocator of ours      csrc/hooks.cpp, csrc/native.cpp
//!                 └────────────┬───────────────┘
//!                 include/thalweg_torch.h: the C interface          src/interface/
//!                              │
//!                  Allocator: devices, live blocks                  src/allocator.rs
//!                              │
//!            thalweg_runtime::Device, thalweg_memory::DeviceAllocator
//! ```
//!
//! Beside it stand [kernels] for PyTorch's operators, which need neither tier.
//!
//! # What is translated
//!
//! PyTorch names things by other words than we do, and this is where they are translated, each in a module of its own:
//!
//! - a *device* by its number; it is opened when it is first named, since that makes a context ([`allocator`](Allocator));
//! - a *stream* by its `cudaStream_t` (`streams`);
//! - a *pool* by a pair of numbers that PyTorch makes up (`pools`);
//! - a *block* by its address alone (`live`);
//! - an *error* by a status and the thread's last message (`status`);
//! - a *stack* by what its own recorder keeps, or by the Python frames of the thread (`stacks`, `python`);
//! - *work*, which is reported to the sanitizer by its operands (`sanitizer`).
//!
//! # Invariants
//!
//! - Nothing unwinds into C: each exported function catches what panics, reports it, and answers [`Status::Panic`]. A thread that is
//!   cancelled inside, which is an unwinding of C's own, ends the process: it is neither caught nor let through.
//! - The caller's current CUDA context is the same after a call as before.
//! - In a forked child nothing is touched: what would take a lock is refused, and what frees does nothing.
//! - No lock is held while Python is asked for anything.
//! - Kernels are the exception to the first: PyTorch's own exceptions pass through them.
//! - A pointer that the caller gives is only believed where the header says what it has to be.
//!
//! What is not here: policy (`thalweg_memory`), CUDA (`thalweg_driver`), C++ types (`csrc/`).

mod allocator;
pub mod interface;
pub mod kernels;
mod live;
mod observers;
mod open_device;
mod pools;
mod python;
mod sanitizer;
mod snapshot;
mod stacks;
mod statistics;
mod status;
mod streams;

pub use allocator::{Allocator, Source};
pub use pools::PoolName;
pub use sanitizer::Sanitizer;
pub use status::{Error, Result, Status};
