//! The names by which operators find groups.

use std::sync::{Arc, Weak};

use thalweg_lock::{Mutex, MutexGuard};
use thalweg_runtime::{Device, Error, Result, invalid};

use crate::ProcessGroup;
use crate::group::GroupState;

/// The groups of this process.
static GROUPS: Mutex<Vec<Weak<GroupState>>> = Mutex::new(Vec::new());

/// A group's name, unique on its device. No other group can get it until this is dropped.
pub(crate) struct Registered {
    pub(crate) name: String,
    groups: MutexGuard<'static, Vec<Weak<GroupState>>>,
}

fn groups() -> MutexGuard<'static, Vec<Weak<GroupState>>> {
    GROUPS.lock()
}

/// Registers a group's name on a device: its own name, or the name with a number appended if another group has it.
pub(crate) fn register(name: &str, device: &Device) -> Registered {
    let mut groups = groups();
    groups.retain(|group| group.strong_count() > 0);
    let taken: Vec<Arc<GroupState>> = groups.iter().filter_map(Weak::upgrade).collect();
    let is_taken =
        |name: &str| taken.iter().any(|group| group.registered_name == name && group.device == *device);
    let mut names = std::iter::once(name.to_owned()).chain((1..).map(|number| format!("{name}:{number}")));
    let name = names.find(|name| !is_taken(name)).expect("there is always another number");
    Registered { name, groups }
}

impl Registered {
    /// Makes the group available to calls by name.
    pub(crate) fn set(mut self, group: &Arc<GroupState>) {
        self.groups.push(Arc::downgrade(group));
    }
}

/// Returns the group of a name on a device.
pub(crate) fn resolve(name: &str, device: &Device) -> Result<ProcessGroup> {
    let found = groups()
        .iter()
        .filter_map(Weak::upgrade)
        .find(|group| group.registered_name == name && group.device == *device);
    found.map(ProcessGroup).ok_or_else(|| {
        invalid!(
            "Could not resolve the process group registered under the name {name}: {device} is not a rank of such a group"
        )
    })
}
