//! The book: its summary has every page, and every link leads to a file and to a heading that exist.
//!
//! - Each Markdown file of `docs` has a line in `docs/SUMMARY.md`. For decisions and the record a missing line is only a warning.
//! - A link from a page of the book to another file of the repository is an address on GitHub ([`SOURCES`]), since the book has only
//!   pages. The file of such an address exists.
//! - Relative links exist, with their headings.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::{Finding, Level};

/// The list of the book's pages.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The addresses of this repository's files, each followed by a path.
const SOURCES: [&str; 2] =
    ["https://github.com/thalweg-rs/thalweg/blob/main/", "https://github.com/thalweg-rs/thalweg/tree/main/"];

/// Checks the Markdown files among files, whose texts are given by their paths.
pub fn check(root: &Path, texts: &BTreeMap<String, String>, findings: &mut Vec<Finding>) {
    let mut add = |level, file: &str, line, what: String| {
        findings.push(Finding { level, file: file.to_owned(), line, what });
    };
    let listed = texts.get(SUMMARY).map(|text| links(text)).unwrap_or_default();
    for page in texts.keys().filter_map(|file| file.strip_prefix("docs/")) {
        let is_listed = listed.iter().any(|(_, target)| target == page);
        let is_internal = ["decisions/", "record/"].iter().any(|folder| page.starts_with(folder));
        let level = if is_internal { Level::Warning } else { Level::Error };
        if page != "SUMMARY.md" && !is_listed {
            add(level, SUMMARY, 0, format!("has no line for the page {page}"));
        }
    }
    for (file, text) in texts {
        for (line, target) in links(text) {
            if let Some(what) = broken(root, texts, file, &target) {
                add(Level::Error, file, line, format!("has a link that {what}: {target}"));
            }
        }
    }
}

/// Returns the fault of a link in a file, if it has one.
fn broken(root: &Path, texts: &BTreeMap<String, String>, file: &str, target: &str) -> Option<&'static str> {
    let (path, heading) = target.split_once('#').map_or((target, None), |(path, name)| (path, Some(name)));
    if let Some(path) = SOURCES.iter().find_map(|address| path.strip_prefix(address)) {
        return (!root.join(path).exists()).then_some("leads to no file");
    }
    if path.contains("://") || path.starts_with("mailto:") {
        return None;
    }
    let linked = if path.is_empty() { file.to_owned() } else { resolved(file, path) };
    if !texts.contains_key(&linked) && !root.join(&linked).exists() {
        return Some("leads to no file");
    }
    if file.starts_with("docs/") && !linked.starts_with("docs/") {
        return Some("leads out of the book: write its address on GitHub");
    }
    let text = texts.get(&linked)?;
    heading
        .is_some_and(|name| !headings(text).iter().any(|heading| heading == name))
        .then_some("leads to no heading")
}

/// Returns a relative path of a file's link as a path from the root.
fn resolved(file: &str, path: &str) -> String {
    let mut whole = PathBuf::new();
    for part in Path::new(file).parent().unwrap_or(Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => {
                whole.pop();
            }
            Component::CurDir => {}
            other => whole.push(other),
        }
    }
    whole.to_string_lossy().into_owned()
}

/// Returns the lines of a text outside of blocks of code, with their numbers from 1 on.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    })
}

/// Returns the targets of Markdown links, pictures and definitions of links, with lines.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for (place, _) in line.match_indices("](") {
            let target = line[place + 2..].split(')').next().unwrap_or_default();
            found.push((number, target.to_owned()));
        }
        let definition = line.strip_prefix('[').and_then(|line| line.split_once("]: "));
        found.extend(definition.map(|(_, target)| (number, target.trim().to_owned())));
    }
    found
}

/// Returns the names by which links find the headings of a text: GitHub's, which number headings of the same text.
fn headings(text: &str) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let titles = prose(text).filter_map(|(_, line)| {
        let (marks, title) = line.split_once("# ")?;
        marks.chars().all(|mark| mark == '#').then_some(title)
    });
    let named = titles.map(|title| {
        let lower = title.trim().to_lowercase();
        let kept = lower.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let name: String = kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](https://x) [b](#b)\n```\n[c](c.md)\n```\n![d](docs/d.png)\n[e]: ../e.md\n";
        let targets: Vec<_> =
            links(text).into_iter().map(|(line, target)| format!("{line} {target}")).collect();
        assert_eq!(targets, ["1 https://x", "1 #b", "5 docs/d.png", "6 ../e.md"]);
    }

    #[test]
    fn headings_have_githubs_names() {
        let text = "# A `b`, and: C\n## Same\n## Same\n```\n# no\n```\ntext # no\n";
        assert_eq!(headings(text), ["a-b-and-c", "same", "same-1"]);
    }

    #[test]
    fn pages_and_links_are_checked() {
        let root = crate::root();
        let texts: BTreeMap<String, String> = [
            ("docs/SUMMARY.md", "- [a](a.md)\n"),
            ("docs/a.md", "# A\n[b](#a) [c](#z) [d](../README.md) [e](missing.md)\n"),
            ("docs/b.md", "[x](https://github.com/thalweg-rs/thalweg/blob/main/missing.rs)\n"),
        ]
        .map(|(file, text)| (file.to_owned(), text.to_owned()))
        .into();
        let mut findings = Vec::new();
        check(&root, &texts, &mut findings);
        let found: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(
            found,
            [
                "has no line for the page b.md",
                "has a link that leads to no heading: #z",
                "has a link that leads out of the book: write its address on GitHub: ../README.md",
                "has a link that leads to no file: missing.md",
                "has a link that leads to no file: https://github.com/thalweg-rs/thalweg/blob/main/missing.rs",
            ]
        );
    }
}
