//! Modules that depend on each other in a circle, or on a room above their own.
//!
//! A circle of modules can only be understood together, so it is kept small: at most a hub with spokes. A use is a name in a
//! `use`, or a path from `crate`, `super` or a child, outside of tests and documentation. A name that another module re-exports
//! (`pub use`) counts as a use of the module that defines it. A parent that only re-exports the names of its children does not use
//! them.

use std::collections::{BTreeMap, BTreeSet};

use super::scan;

/// The maximum number of files that may use each other.
pub const MOST: usize = 6;

/// A module by its names from the root of the crate: `[]` is the root.
type Name = Vec<String>;

/// Rooms that Rust's rules keep in one crate (an inherent method is in the crate of its type), from the lowest. A module uses its
/// own room and lower ones. Modules that are not listed may use all rooms.
const ROOMS: [(&str, &[&[&str]]); 1] = [(
    "thalweg-tensor",
    &[
        &[
            "argument",
            "autograd",
            "caller",
            "destination",
            "dispatch",
            "layouts",
            "loops",
            "storage",
            "tensor",
        ],
        &["kernels"],
        &["operators"],
        &["fused", "graph"],
    ],
)];

/// Returns each use of a module in a higher room of a crate: the module, and the one that it uses.
pub fn upward(package: &str, sources: &[(String, String)]) -> Vec<(String, String)> {
    let Some((_, rooms)) = ROOMS.iter().find(|(name, _)| *name == package) else { return Vec::new() };
    let level = |module: &Name| {
        let room = module.first()?;
        rooms.iter().position(|modules| modules.contains(&room.as_str()))
    };
    let uses = uses_of(sources);
    let edges = edges(&uses);
    let all = edges.iter().flat_map(|(name, targets)| targets.iter().map(move |target| (*name, target)));
    all.filter(|(name, target)| matches!((level(name), level(target)), (Some(own), Some(used)) if used > own))
        .map(|(name, target)| (name.join("::"), target.join("::")))
        .collect()
}

/// Returns the paths that each module uses.
fn uses_of(sources: &[(String, String)]) -> BTreeMap<Name, Vec<Use>> {
    let product = sources.iter().filter(|(file, _)| !file.trim_end_matches(".rs").ends_with("tests"));
    product.map(|(file, text)| (name_of(file), uses(&name_of(file), text))).collect()
}

/// Returns the modules that each module uses.
fn edges(uses: &BTreeMap<Name, Vec<Use>>) -> BTreeMap<&Name, BTreeSet<Name>> {
    let targets = |(name, list): (_, &Vec<Use>)| {
        let used = list.iter().filter(|one| !(one.handed_on && is_below(&one.path, name)));
        (name, used.map(|one| target(uses, &one.path, 0)).filter(|target| target != name).collect())
    };
    uses.iter().map(targets).collect()
}

/// Returns the largest circle of a crate's modules, if it is larger than [`MOST`].
pub fn too_large(sources: &[(String, String)]) -> Option<Vec<String>> {
    let uses = uses_of(sources);
    let edges = edges(&uses);
    let reaches = |from: &Name| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(name) = left.pop() {
            let next = edges.get(&name).into_iter().flatten();
            left.extend(next.filter(|next| seen.insert((*next).clone())).cloned());
        }
        seen
    };
    let reached: BTreeMap<&Name, BTreeSet<Name>> = uses.keys().map(|name| (name, reaches(name))).collect();
    let circle = |name: &Name| -> Vec<String> {
        let both =
            reached[name].iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(name)));
        both.map(|other| other.join("::")).collect()
    };
    let largest = uses.keys().map(circle).max_by_key(Vec::len)?;
    (largest.len() > MOST).then_some(largest)
}

/// Returns whether a path leads into a child of a module.
fn is_below(path: &Name, module: &Name) -> bool {
    path.len() > module.len() && path.starts_with(module)
}

fn name_of(file: &str) -> Name {
    let mut name: Name = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if name.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        name.pop();
    }
    name
}

/// A path that a module uses, from the root of the crate.
struct Use {
    path: Name,
    /// The name that this module gives to the path.
    called: String,
    handed_on: bool,
}

fn uses(module: &Name, text: &str) -> Vec<Use> {
    let code = String::from_utf8_lossy(&scan::blank(text)).into_owned();
    let tests = code.find("\nmod tests {").or_else(|| code.find("\nmod loom_tests {")).unwrap_or(code.len());
    let code = &code[..tests];
    let mut found = Vec::new();
    // The code without its `use` items.
    let mut rest = String::new();
    let mut end = 0;
    for (place, _) in code.match_indices("use ") {
        let line = code[..place].rsplit('\n').next().unwrap_or_default().trim();
        if !line.is_empty() && !line.starts_with("pub") {
            continue;
        }
        let tree = code[place + 4..].split(';').next().unwrap_or_default();
        rest += &code[end..place];
        end = place + 4 + tree.len();
        for leaf in leaves(tree) {
            let (path, called) =
                leaf.split_once(" as ").unwrap_or((&leaf, leaf.rsplit("::").next().unwrap_or_default()));
            let path = path.trim().trim_end_matches("::self");
            let called = called.trim().to_owned();
            found.push(Use { path: absolute(module, path), called, handed_on: line.starts_with("pub") });
        }
    }
    rest += &code[end..];
    let declared =
        |line: &str| line.split_once("mod ").and_then(|(_, name)| name.strip_suffix(';')).map(str::to_owned);
    let children: Vec<String> = code.lines().filter_map(declared).collect();
    let is_path = |character: char| character.is_alphanumeric() || "_:".contains(character);
    for path in rest.split(|character| !is_path(character)) {
        let first = path.split("::").next().unwrap_or_default();
        let is_used =
            ["crate", "super", "self"].contains(&first) || children.iter().any(|child| child == first);
        if is_used && path.contains("::") && !path.ends_with(':') {
            found.push(Use { path: absolute(module, path), called: String::new(), handed_on: false });
        }
    }
    found
}

/// Returns the paths of `a::{b, c::{d, e}}`.
fn leaves(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let inside = rest.rsplit_once('}').map_or(rest, |(inside, _)| inside);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for character in inside.chars() {
        match character {
            ',' if depth == 0 => parts.push(String::new()),
            other => {
                depth += i32::from(other == '{') - i32::from(other == '}');
                parts.last_mut().expect("there is one").push(other);
            }
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| leaves(part)).map(|leaf| format!("{}{leaf}", prefix.trim())).collect()
}

/// Returns a path from the root of the crate; a path into another crate becomes a path into the module itself.
fn absolute(module: &Name, path: &str) -> Name {
    let mut names = path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let mut base = match names[0].as_str() {
        "crate" => Vec::new(),
        _ => module.clone(),
    };
    if ["crate", "self"].contains(&names[0].as_str()) {
        names.remove(0);
    }
    while names.first().is_some_and(|name| name == "super") {
        names.remove(0);
        base.pop();
    }
    [base, names].concat()
}

/// Returns the module that a path leads to.
fn target(uses: &BTreeMap<Name, Vec<Use>>, path: &[String], depth: usize) -> Name {
    let (module, rest) = (0..=path.len())
        .rev()
        .map(|end| path.split_at(end))
        .find(|(module, _)| uses.contains_key(*module))
        .unwrap_or((&[], path));
    let handed = rest.first().and_then(|name| uses.get(module)?.iter().find(|one| one.called == *name));
    match handed {
        Some(one) if depth < 8 => target(uses, &[&one.path, &rest[1..]].concat(), depth + 1),
        _ => module.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_through_what_is_handed_on() {
        let mut sources: Vec<(String, String)> = (0..7)
            .map(|number| {
                (format!("part/m{number}.rs"), format!("use super::{{m{}::X, other}};", (number + 1) % 7))
            })
            .collect();
        sources.push(("part.rs".into(), String::new()));
        sources.push(("lib.rs".into(), "pub use part::m0::X;\nuse crate::part::m1;".into()));
        let circle = too_large(&sources).expect("seven use each other");
        assert_eq!((circle.len(), circle[0].as_str()), (7, "part::m0"));
        sources[6].1 = "//! [`m0`](super::m0)\nuse std::fmt; // use super::m0;\n#[cfg(test)]\nmod tests { use super::super::m0; }".into();
        assert_eq!(too_large(&sources), None);
        // The tests of a module may be a file of their own.
        sources[6].1 = "#[cfg(test)]\nmod tests;\n".into();
        sources.push(("part/m6/tests.rs".into(), "use super::super::m0::X;".into()));
        assert_eq!(too_large(&sources), None);
        sources[6].1 = "#[cfg(test)]\nmod tests;\nuse crate::X;".into();
        assert!(too_large(&sources).is_some());
    }

    #[test]
    fn a_use_of_a_higher_room_is_found() {
        let sources = |user: &str, text: &str| {
            let empty = ["operators.rs", "operators/view.rs", "dispatch.rs"].map(|file| (file, ""));
            let files = empty.into_iter().filter(|(file, _)| *file != user).chain([(user, text)]);
            files.map(|(file, text)| (file.to_owned(), text.to_owned())).collect::<Vec<_>>()
        };
        let found = |user, text| upward("thalweg-tensor", &sources(user, text));
        let up = |from: &str, to: &str| vec![(from.to_owned(), to.to_owned())];
        assert_eq!(found("dispatch.rs", "use crate::operators::view::f;"), up("dispatch", "operators::view"));
        assert_eq!(found("kernels/a.rs", "fn f() { crate::operators::g() }"), up("kernels::a", "operators"));
        assert_eq!(found("operators/view.rs", "use crate::dispatch::f;"), []);
        assert_eq!(found("views.rs", "use crate::operators::view::f;"), [], "a client of all rooms");
        assert_eq!(upward("thalweg-nn", &sources("dispatch.rs", "use crate::operators::view::f;")), []);
    }

    #[test]
    fn a_parent_counts_unless_it_only_hands_on() {
        let mut sources: Vec<(String, String)> =
            (0..6).map(|number| (format!("m{number}.rs"), "use crate::Shared;".to_owned())).collect();
        let children: String = (0..6).map(|number| format!("pub mod m{number};\n")).collect();
        let calls: String = (0..6).map(|number| format!("m{number}::run();")).collect();
        let handed_on: String =
            (0..6).map(|number| format!("pub use m{number}::run as run{number};\n")).collect();
        let lib =
            |body: &str| ("lib.rs".to_owned(), format!("{children}{handed_on}pub struct Shared;\n{body}"));
        sources.push(lib(""));
        assert_eq!(too_large(&sources), None);
        sources[6] = lib(&format!("pub fn all() {{ {calls} }}"));
        assert_eq!(too_large(&sources).map(|circle| circle.len()), Some(7));
    }
}
