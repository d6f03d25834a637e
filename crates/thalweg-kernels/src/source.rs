//! [`Source`]: the translation unit of a kernel, from its `.cu` file.
//!
//! A kernel's file is CUDA C++ that an editor and a compiler read as it is. It names what differs between the kernels that are made
//! from it, and a unit defines these names before the text of the file: `NAME`, the entry point; for a dtype the types `Element` and
//! `Sum`, the functions `LOAD` and `STORE` between them, and `ELEMENT_NAME`, the dtype in instructions; the file's own constants.
//!
//! A file begins with definitions for a compiler that reads it alone, if `NAME` is not defined: those of `defaults.cuh`, and its own.
//! Files that several kernels include are those of [`INCLUDED`]; a unit contains their text in place of the line.

use std::fmt::{Display, Write as _};

use thalweg_ir::DType;
use thalweg_ir::cuda::{FloatNames, with_prelude};

macro_rules! files {
    ($($path:literal)*) => { &[$(($path, include_str!($path))),*] };
}

/// The files that others include, with their texts. The last part of a path names the file.
const INCLUDED: &[(&str, &str)] = files! {
    "attention/draws.cuh"
    "attention/forward.cuh"
    "attention/tiles.cuh"
    "decoder_layers/layers.cuh"
    "decompose/jacobi.cuh"
    "decompose/matrices.cuh"
    "depthwise/sizes.cuh"
    "matmul/few_rows/arguments.cuh"
    "matmul/few_rows/finish.cuh"
    "matmul/few_rows/normalize.cuh"
    "matmul/quantized/operands.cuh"
    "matmul/quantized/steps.cuh"
    "one_query/parts.cuh"
    "scatter/combinations.cuh"
    "shared/barriers.cuh"
    "shared/combine.cuh"
    "shared/elements.cuh"
    "shared/multiply_eight.cuh"
    "shared/over_block.cuh"
    "shared/over_threads.cuh"
    "shared/pieces.cuh"
    "shared/planes.cuh"
    "shared/ranked.cuh"
    "shared/tagged.cuh"
    "shared/warp_groups.cuh"
    "sort/keys.cuh"
};

/// The first line of a file that is included once.
const ONCE: &str = "#pragma once";

/// Returns the last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A translation unit: definitions, then the text of a file.
pub(crate) struct Source {
    text: String,
}

impl Source {
    /// Begins the unit of the kernel with this entry point.
    pub(crate) fn new(name: &str) -> Self {
        Self { text: String::new() }.define("NAME", name)
    }

    /// Defines a name.
    pub(crate) fn define(mut self, name: &str, value: impl Display) -> Self {
        let _ = writeln!(self.text, "#define {name} {value}");
        self
    }

    /// Defines a name as 1 or 0.
    pub(crate) fn flag(self, name: &str, value: bool) -> Self {
        self.define(name, u8::from(value))
    }

    /// Defines the names of a dtype: a floating-point type, or an integer that is summed in its own type.
    pub(crate) fn elements(self, dtype: DType) -> Self {
        let element = dtype.short_name();
        match dtype.is_floating_point() {
            true => {
                let FloatNames { element, sum, load, store } = FloatNames::of(dtype);
                self.names(element, sum, &load, &store)
            }
            false => self.names(element, element, "", ""),
        }
    }

    /// Defines the names of elements, of the type in which they are summed, and of the functions between these.
    pub(crate) fn names(mut self, element: &str, sum: &str, load: &str, store: &str) -> Self {
        let _ = writeln!(self.text, "typedef {element} Element;\ntypedef {sum} Sum;");
        self.define("LOAD", load).define("STORE", store).define("ELEMENT_NAME", format_args!("\"{element}\""))
    }

    /// Appends code that is printed.
    pub(crate) fn text(mut self, code: &str) -> Self {
        self.text.push_str(code);
        self
    }

    /// Returns the unit with the text of a file.
    pub(crate) fn print(mut self, file: &str) -> String {
        self.include(file, &mut Vec::new());
        // Some of the functions that are defined or included may not be called.
        "#pragma nv_diag_suppress 177\n".to_owned() + &with_prelude(&self.text)
    }

    /// Appends the text of a file and of those that it includes, except files that are to be included once and are in the unit.
    fn include(&mut self, file: &str, included: &mut Vec<&str>) {
        for line in file.lines() {
            let path = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
            let found =
                path.and_then(|path| INCLUDED.iter().find(|(known, _)| file_name(known) == file_name(path)));
            match found {
                Some(&(known, text)) if !included.contains(&known) => {
                    if text.starts_with(ONCE) {
                        included.push(known);
                    }
                    self.include(text, included);
                }
                Some(_) => {}
                None if line == ONCE => {}
                None => {
                    self.text.push_str(line);
                    self.text.push('\n');
                }
            }
        }
    }
}
