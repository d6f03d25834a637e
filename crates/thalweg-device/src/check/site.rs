//! Sites: the places in a program that work comes from, each kept once and named by a number.

use rustc_hash::FxHashMap;

use super::finding::Site;
use crate::Label;

/// The number of a site; 0 is none.
pub(super) type SiteId = u32;

/// The sites that have been seen. Their number is bounded by the program's text.
#[derive(Default)]
pub(super) struct Sites {
    known: FxHashMap<(usize, usize, u32), SiteId>,
    list: Vec<Site>,
}

impl Sites {
    /// The number of a label's site.
    pub(super) fn of(&mut self, label: Label) -> SiteId {
        let key = (label.operator.as_ptr() as usize, std::ptr::from_ref(label.location) as usize, 0);
        self.number(key, label.into())
    }

    /// The number of a site that a program told of.
    pub(super) fn told(&mut self, site: Site) -> SiteId {
        let Some(line) = site.location else { return self.call(site.operator) };
        self.number((site.operator.as_ptr() as usize, line.file.as_ptr() as usize, line.line), site)
    }

    /// The number of a call that nobody has labelled.
    pub(super) fn call(&mut self, operator: &'static str) -> SiteId {
        self.number((operator.as_ptr() as usize, 0, 0), Site { operator, location: None })
    }

    /// The number of a label's site, or of the call where there is no label.
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

    /// The site of a number; `None` for 0.
    pub(super) fn get(&self, id: SiteId) -> Option<Site> {
        self.list.get((id as usize).checked_sub(1)?).copied()
    }
}
