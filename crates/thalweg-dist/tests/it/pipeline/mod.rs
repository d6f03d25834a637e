//! Pipelines: the tables against those of PyTorch, training by stages and streams against one device, what is refused, and timelines.

mod errors;
mod goldens;
mod streams;
mod timelines;
mod training;
