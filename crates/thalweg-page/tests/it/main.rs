//! Pages as a browser shows them, held against a plain model of what they should say.

mod browser;
mod self_test;
mod synthetic;
mod writing;
