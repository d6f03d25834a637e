//! The requirements of a registry for the crates that are published: each can be packed separately, and its page there describes
//! it.
//!
//! It reads manifests by their lines, as this workspace writes them: one key per line, in `[package]` at the top.

use std::fs;
use std::path::Path;

use super::{Finding, LICENCES, Level, book};

/// The keys of `[package]` that every published crate has, with their purposes.
const KEYS: [(&str, &str); 6] = [
    ("description", "what the crate is"),
    ("keywords", "how it is found"),
    ("categories", "where it is listed"),
    ("documentation", "where its documentation is"),
    ("readme", "its page"),
    ("license", "how it may be used"),
];

/// Checks every crate below `crates`.
pub fn check(root: &Path, findings: &mut Vec<Finding>) {
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    for line in internal_without_version(&workspace) {
        add(
            findings,
            "Cargo.toml",
            line,
            "names a crate of ours without a version, which a registry asks for".into(),
        );
    }
    let mut crates: Vec<_> =
        fs::read_dir(root.join("crates")).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    crates.sort();
    for folder in crates {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let place = |file: &str| format!("crates/{name}/{file}");
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        for lack in missing_fields(&manifest) {
            add(findings, &place("Cargo.toml"), 0, lack);
        }
        for licence in LICENCES {
            let text = fs::read(folder.join(licence)).ok();
            if text.is_none() || text != fs::read(root.join(licence)).ok() {
                add(
                    findings,
                    &place(licence),
                    0,
                    "is not the text of the licence that lies at the root".into(),
                );
            }
        }
        match fs::read_to_string(folder.join("README.md")) {
            Ok(text) => {
                for (line, target) in book::links(&text).into_iter().filter(|(_, target)| is_relative(target))
                {
                    add(
                        findings,
                        &place("README.md"),
                        line,
                        format!("has a link that a registry's page breaks: {target}"),
                    );
                }
            }
            Err(_) => add(findings, &place("README.md"), 0, "is missing: it is the crate's page".into()),
        }
    }
}

fn add(findings: &mut Vec<Finding>, file: &str, line: usize, what: String) {
    findings.push(Finding { level: Level::Error, file: file.to_owned(), line, what });
}

/// Returns the tests in a library's file that do not run, because its manifest turns unit or documentation tests off. (A test binary
/// of a library compiles the complete library again, and a search for documentation tests reads all of it.)
///
/// Tests of a file that is a module of the integration tests, `in_integration`, run there.
pub fn unused_tests(manifest: &str, source: &str, in_integration: bool) -> Option<&'static str> {
    let library =
        manifest.split("\n[lib]\n").nth(1).map_or("", |rest| rest.split("\n[").next().unwrap_or_default());
    let is_off = |key: &str| library.lines().any(|line| line == format!("{key} = false"));
    // The fences of a file open and close blocks in turn.
    let fences = source.lines().filter_map(|line| {
        let text = line.trim_start();
        text.strip_prefix("///").or(text.strip_prefix("//!"))?.trim_start().strip_prefix("```")
    });
    let mut opening = fences.step_by(2);
    if is_off("test") && !in_integration && source.contains("#[test]") {
        return Some("has tests, and the manifest says `test = false`");
    }
    let has_example = is_off("doctest") && opening.any(|language| matches!(language, "" | "no_run"));
    has_example.then_some("has an example in its documentation, and the manifest says `doctest = false`")
}

/// Returns the lines of the workspace's dependencies that name a path and no version.
fn internal_without_version(manifest: &str) -> Vec<usize> {
    let lines = (1..).zip(manifest.lines());
    lines
        .filter(|(_, line)| line.contains(" path = ") && !line.contains("version = "))
        .map(|(n, _)| n)
        .collect()
}

/// Returns the fields that a manifest lacks.
fn missing_fields(manifest: &str) -> Vec<String> {
    let package = manifest.split("\n[").next().unwrap_or_default();
    let has = |key: &str| {
        package.lines().any(|line| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(" = ") || rest.starts_with(".workspace"))
        })
    };
    let mut lacks: Vec<String> = KEYS
        .into_iter()
        .filter(|(key, _)| !has(key))
        .map(|(key, what)| format!("has no `{key}` in [package]: {what}"))
        .collect();
    if !manifest.contains("\n[package.metadata.docs.rs]\n") {
        lacks.push("has no [package.metadata.docs.rs]: how its documentation is built".to_owned());
    }
    // Development dependencies may be circular: without a version they are not published to a registry.
    let shipped = manifest.split("\n[dev-dependencies]").next().unwrap_or_default();
    if shipped.lines().any(|line| line.contains("path = \"../")) {
        lacks.push("names a crate by its path: take it from the workspace, with its version".to_owned());
    }
    lacks
}

/// Returns whether the target of a link is neither an absolute address nor a heading of the same page.
fn is_relative(target: &str) -> bool {
    !target.starts_with("https://") && !target.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
[package]
name = \"x\"
description = \"X\"
license.workspace = true
keywords = [\"x\"]
categories = [\"science\"]
documentation = \"https://docs.rs/x\"
readme = \"README.md\"

[package.metadata.docs.rs]
targets = []

[dependencies]
y.workspace = true
";

    #[test]
    fn each_lack_of_a_manifest_is_seen() {
        assert!(missing_fields(GOOD).is_empty());
        for (key, _) in KEYS {
            let without: String =
                GOOD.lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
            let lacks = missing_fields(&without);
            assert!(lacks.len() == 1 && lacks[0].contains(key), "{key}: {lacks:?}");
        }
        assert_eq!(missing_fields(&GOOD.replace("docs.rs]", "docs]")).len(), 1);
        assert_eq!(missing_fields(&GOOD.replace("y.workspace = true", "y = { path = \"../y\" }")).len(), 1);
        let late = GOOD.replace("keywords = [\"x\"]\n", "") + "keywords = 1\n";
        assert_eq!(missing_fields(&late).len(), 1, "a key of another table is not a key of the package");
    }

    #[test]
    fn tests_that_are_turned_off_are_seen() {
        let manifest = "[package]\n\n[lib]\ntest = false\ndoctest = false\n\n[dependencies]\n";
        let test = "#[test]\nfn f() {}\n";
        assert_eq!(unused_tests(manifest, "/// Text.\n/// ```text\nfn f() {}\n", false), None);
        assert!(
            unused_tests(manifest, test, false).is_some() && unused_tests(manifest, test, true).is_none()
        );
        assert!(unused_tests(manifest, "    /// ```\n", true).is_some());
        assert_eq!(unused_tests("[package]\n\n[lib]\nbench = false\n", "#[test]\n/// ```\n", false), None);
    }

    #[test]
    fn crates_of_ours_need_versions() {
        let text = "[workspace.dependencies]\na = { path = \"a\" }\nb = { path = \"b\", version = \"1\" }\nc = \"1\"\n";
        assert_eq!(internal_without_version(text), [2]);
    }

    #[test]
    fn relative_links_are_found() {
        let text = "[a](https://x) [b](#b)\n![c](docs/c.png) and [d](../d.md)\n";
        let found: Vec<_> = book::links(text).into_iter().filter(|(_, target)| is_relative(target)).collect();
        assert_eq!(found, [(2, "docs/c.png".to_owned()), (2, "../d.md".to_owned())]);
    }
}
