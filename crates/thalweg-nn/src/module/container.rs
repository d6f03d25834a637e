//! Modules of modules.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::Location;

use indexmap::IndexMap;
use thalweg_runtime::Result;
use thalweg_tensor::Tensor;
use thalweg_tensor::caller::enter_indirect;

use super::{Entry, EntryMut, Forward, Module};

/// Makes modules of containers, whose parts have the names that `$named` pairs them with.
macro_rules! containers {
    ($($(#[$doc:meta])* [$($generics:tt)*] $container:ty: |$parts:ident| $named:expr;)*) => {$(
        $(#[$doc])*
        impl<$($generics)*> Module for $container {
            fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
                let $parts = self.iter();
                $named.for_each(|(name, module)| visitor(&name.to_string(), Entry::Child(module)));
            }

            fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
                let $parts = self.iter_mut();
                $named.for_each(|(name, module)| visitor(&name.to_string(), EntryMut::Child(module)));
            }
        }
    )*};
}

containers! {
    /// Names the modules of a list by their numbers (`torch.nn.ModuleList`).
    [M: Module] Vec<M>: |parts| parts.enumerate();
    /// Names the modules of an array by their numbers (`torch.nn.ModuleList`).
    [M: Module, const N: usize] [M; N]: |parts| parts.enumerate();
    /// Names modules by their keys (`torch.nn.ModuleDict`), in the order of the keys.
    [M: Module] BTreeMap<String, M>: |parts| parts;
    /// Names modules by their keys (`torch.nn.ModuleDict`), in the order of insertion.
    [M: Module] IndexMap<String, M>: |parts| parts;
}

impl<M: Module> Module for Option<M> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
        if let Some(module) = self {
            module.visit(visitor);
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
        if let Some(module) = self {
            module.visit_mut(visitor);
        }
    }

    fn any_mut(&mut self) -> Option<&mut dyn Any> {
        self.as_mut()?.any_mut()
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit<'a>(&'a self, visitor: &mut dyn FnMut(&str, Entry<'a>)) {
        (**self).visit(visitor);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut dyn FnMut(&str, EntryMut<'a>)) {
        (**self).visit_mut(visitor);
    }

    fn any_mut(&mut self) -> Option<&mut dyn Any> {
        (**self).any_mut()
    }

    fn type_name(&self) -> &'static str {
        (**self).type_name()
    }
}

impl<M: Forward + ?Sized> Forward for Box<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _indirect = enter_indirect(Location::caller(), sources());
        (**self).forward(input)
    }
}

/// Returns the path prefix of this crate's sources.
fn sources() -> &'static str {
    file!().strip_suffix("module/container.rs").unwrap_or(file!())
}

/// Modules that are applied in sequence, named by their numbers (`torch.nn.Sequential`).
#[derive(Module, Default)]
pub struct Sequential {
    #[module(flatten)]
    modules: Vec<Box<dyn Forward + Send + Sync>>,
}

impl std::fmt::Debug for Sequential {
    /// Writes the types of the modules.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.modules.iter().map(|module| module.type_name());
        f.write_str("Sequential")?;
        f.debug_list().entries(names).finish()
    }
}

impl Sequential {
    /// Makes an empty sequence, which returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module at the end.
    #[must_use]
    pub fn then(mut self, module: impl Forward + Send + Sync + 'static) -> Self {
        self.modules.push(Box::new(module));
        self
    }

    /// Returns the number of modules.
    pub fn len(&self) -> usize {
        self.modules.len()
    }

    /// Returns whether there are no modules.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }
}

impl Forward for Sequential {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _indirect = enter_indirect(Location::caller(), sources());
        let mut x = input.clone();
        for (number, module) in self.modules.iter().enumerate() {
            let result = (**module).forward(&x);
            x = result
                .map_err(|error| error.context(format!("in layer {number} ({})", module.type_name())))?;
        }
        Ok(x)
    }
}
