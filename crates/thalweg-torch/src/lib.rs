//! Thalweg's caching allocator and kernels inside PyTorch.
//!
//! This crate is a *skin*: a C interface over the allocators of [`thalweg_memory`], with as little logic of its own as possible.
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
//! The crate also has [kernels] for PyTorch's operators, which need neither tier.
//!
//! # What is translated
//!
//! PyTorch identifies objects differently than Thalweg does. Each translation is in its own module:
//!
//! - a *device* by its number; it is opened when it is first named, since that makes a context ([`allocator`](Allocator));
//! - a *stream* by its `cudaStream_t` (`streams`);
//! - a *pool* by a pair of numbers that PyTorch chooses (`pools`);
//! - a *block* only by its address (`live`);
//! - an *error* by a status and the thread's last message (`status`);
//! - a *stack* by a number of its own recorder, or by the Python frames of the thread (`stacks`, `python`);
//! - *work*, which is reported to the sanitizer by its operands (`sanitizer`).
//!
//! # Invariants
//!
//! - Nothing unwinds into C: each exported function catches panics, reports them, and returns [`Status::Panic`]. Cancelling a
//!   thread inside, which C implements by unwinding, ends the process: it is neither caught nor passed on.
//! - The caller's current CUDA context is the same after a call as before.
//! - In a forked child nothing is touched: functions that would take a lock return an error, and functions that free do nothing.
//! - No lock is held while Python is called.
//! - Kernels are the exception to the first invariant: PyTorch's own exceptions pass through them.
//! - A caller's pointer is only trusted as far as the header specifies its requirements.
//!
//! Not in this crate: policy (`thalweg_memory`), CUDA (`thalweg_driver`), C++ types (`csrc/`).

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
