//! Sites: the places in a program that submit work, each stored once and identified by a number.

use std::backtrace::Backtrace;
use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};
use thalweg_driver::{Label, SourceLine, instrument::current_call, program_line};

use super::finding::Site;

/// The number of a site; 0 is none.
pub(super) type SiteId = u32;

/// The sites that have been seen. Their number is bounded by the program's text.
#[derive(Default)]
pub(super) struct Sites {
    known: FxHashMap<(usize, usize, u32), SiteId>,
    list: Vec<Site>,
    /// The names of files that were found in stacks.
    files: FxHashSet<&'static str>,
}

impl Sites {
    /// Returns the number of a label's site.
    pub(super) fn of(&mut self, label: Label) -> SiteId {
        let (operator, line) = label.key();
        self.number((operator, line, 0), label.into())
    }

    /// Returns the number of a site that a program reported.
    pub(super) fn reported(&mut self, site: Site) -> SiteId {
        let Some(line) = site.location else { return self.call(site.operator) };
        self.number((site.operator.as_ptr() as usize, line.file.as_ptr() as usize, line.line), site)
    }

    /// Returns the number of the call that this thread's work is part of; 0 for none.
    pub(super) fn within(&mut self) -> SiteId {
        current_call().map_or(0, |label| self.of(label))
    }

    /// Returns the number of a call without a label, with the line of the program that made it, if the stack shows it. Takes
    /// milliseconds.
    pub(super) fn traced(&mut self, operator: &'static str) -> SiteId {
        let Some((file, line)) = line_of_program() else { return self.call(operator) };
        let file = match self.files.get(file.as_str()) {
            Some(known) => known,
            None => {
                // The name is never freed: there are only as many as the program has files.
                let file: &'static str = Box::leak(file.into_boxed_str());
                self.files.insert(file);
                file
            }
        };
        self.reported(Site { operator, location: Some(SourceLine { file, line }) })
    }

    /// Returns the number of a call without a label.
    pub(super) fn call(&mut self, operator: &'static str) -> SiteId {
        match program_line() {
            Some(line) => self.reported(Site { operator, location: Some(*line) }),
            None => self.number((operator.as_ptr() as usize, 0, 0), Site { operator, location: None }),
        }
    }

    /// Returns the number of a label's site, or of the call if there is no label.
    pub(super) fn labelled(&mut self, label: Option<Label>, operator: &'static str) -> SiteId {
        match label {
            Some(label) => self.of(label),
            None => self.call(operator),
        }
    }

    fn number(&mut self, key: (usize, usize, u32), site: Site) -> SiteId {
        *self.known.entry(key).or_insert_with(|| {
            self.list.push(site);
            self.list.len() as SiteId
        })
    }

    /// Returns the site of a number; `None` for 0.
    pub(super) fn get(&self, id: SiteId) -> Option<Site> {
        self.list.get((id as usize).checked_sub(1)?).copied()
    }
}

/// Returns the innermost line of the calling thread's stack that belongs to the program, and not to these crates or the standard
/// library.
fn line_of_program() -> Option<(String, u32)> {
    let here = std::env::current_dir().unwrap_or_default();
    let stack = Backtrace::force_capture().to_string();
    stack.lines().find_map(|line| {
        let place = line.trim_start().strip_prefix("at ")?;
        let mut parts = place.rsplitn(3, ':');
        let (_column, line, file) = (parts.next()?, parts.next()?, parts.next()?);
        let line = line.parse().ok()?;
        is_of_program(&here.join(file)).then(|| (file.trim_start_matches("./").to_owned(), line))
    })
}

fn is_of_program(file: &Path) -> bool {
    let names: Vec<&str> = file.iter().filter_map(|name| name.to_str()).filter(|name| *name != ".").collect();
    let is_of_library = file.starts_with("/rustc") || names.windows(2).any(|pair| pair == ["rustlib", "src"]);
    let is_ours = names.windows(2).any(|pair| pair[0].starts_with("thalweg-") && pair[1] == "src");
    !is_of_library && !is_ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_what_is_neither_ours_nor_the_standard_librarys() {
        let of = |file| is_of_program(Path::new(file));
        assert!(of("/programs/train/./src/main.rs") && of("/a/crates/thalweg-runtime/tests/it/main.rs"));
        assert!(!of("/a/crates/thalweg-runtime/./src/memory/mod.rs"));
        assert!(!of("/programs/.cargo/registry/src/index/thalweg-tensor-0.1.0/src/tensor.rs"));
        assert!(!of("/rustc/0123/library/core/src/ops/function.rs"));
    }
}
