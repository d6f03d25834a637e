//! Pipelines: the tables compared with PyTorch's, training by stages and streams compared with one device, errors, and timelines.

mod errors;
mod goldens;
mod streams;
mod timelines;
mod training;
