//! The words of the project, as far as a machine can check them: one word per concept, explained in `docs/glossary.md`.
//!
//! - No comment of Rust contains a phrase of [`TRANSLATED`].
//! - No line contains a word of [`BANNED`]. Case is ignored, `_` ends a word, and plurals count.
//! - Nothing "is no" something, but "is not a" something, where only a noun can follow ([`is_no`]).
//! - No documentation comment and no docstring begins as [`OPENINGS`] do: it must be understandable without its context.
//!   [`openings`](super::openings) checks the first words of functions' and types' comments.

use super::{Finding, Level};

/// Words that are banned, each with its replacement.
const BANNED: [(&str, &str); 33] = [
    ("referee", "sanitizer"),
    ("rehearsal", "dry run"),
    ("rehearse", "make a dry run of"),
    ("vigil", "liveness watch"),
    ("climb", "the slow path"),
    ("rung", "stage of the slow path"),
    ("grove", "the trees of a pool"),
    ("card", "GPU"),
    ("turnstile", "contention limiter"),
    ("wishes", "defaults"),
    ("crew", "worker threads"),
    ("gain", "savings"),
    ("pace", "rate"),
    ("surroundings", "event context"),
    ("slab", "unsplit block"),
    ("legal", "allowed"),
    ("fitted", "a word for what was adapted, and to what"),
    ("loan", "output handle, or borrowed block"),
    ("lent", "an output of a graph, transient, or borrowed"),
    ("foreign", "external"),
    ("somebody", "the thread, stream, caller or program"),
    ("nobody", "nothing, or no thread, stream, caller or program"),
    ("anybody", "anything, or any thread, stream, caller or program"),
    ("whoever", "the code that"),
    ("everybody", "every thread, stream, caller or program"),
    ("himself", "itself"),
    ("whom", "which thread, stream, caller or program"),
    ("adopted", "external"),
    ("ladder", "slow path"),
    ("stays in the hand", "stays in the last-freed slot"),
    ("some day", "what is the case today"),
    ("want of", "lack of"),
    ("is told", "learns"),
];

/// Phrases of translated sentences, which comments of Rust do not have, each with the standard one.
const TRANSLATED: [(&str, &str); 8] = [
    ("held against", "compared with, or tested against"),
    ("came so", "was added this way"),
    ("goes without", "works without"),
    ("what there is", "the thing by its name"),
    ("lies behind", "follows"),
    ("stands behind", "follows"),
    ("stands beside", "is listed with"),
    ("told apart", "distinguished"),
];

/// The beginnings that documentation comments must not have.
const OPENINGS: [&str; 3] = ["The same", "What ", "More."];

/// Words that may follow "is no": comparisons, for which "is not a" would be wrong.
const AFTER_IS_NO: [&str; 11] = [
    "longer",
    "more",
    "less",
    "fewer",
    "further",
    "better",
    "worse",
    "larger",
    "smaller",
    "greater",
    "different",
];

/// Files whose text is not ours to choose: the record keeps what was printed, and PyTorch's initial values have a `gain`.
const OTHERS: [&str; 5] = [
    "docs/record/",
    "xtask/src/tidy/words.rs",
    "docs/glossary.md",
    "docs/contributing.md",
    "crates/thalweg-python/python/thalweg/nn/init.py",
];

/// The extensions of files that are checked.
const KINDS: [&str; 10] = [".rs", ".md", ".py", ".h", ".hpp", ".cpp", ".cu", ".cuh", ".js", ".toml"];

/// Finds banned words and openings in a file.
pub fn check(file: &str, text: &str, findings: &mut Vec<Finding>) {
    let is_skipped = OTHERS.iter().any(|folder| file.starts_with(folder));
    if is_skipped || !KINDS.iter().any(|kind| file.ends_with(kind)) {
        return;
    }
    let mut add = |line, what| {
        findings.push(Finding { level: Level::Error, file: file.to_owned(), line, what });
    };
    let mut is_inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        let lower = line.to_lowercase();
        for (word, better) in BANNED.iter().filter(|(word, _)| has_word(&lower, word)) {
            add(number, format!("says `{word}`: say {better}"));
        }
        let is_comment = file.ends_with(".rs") && lower.trim_start().starts_with("//");
        for (phrase, better) in TRANSLATED.iter().filter(|(phrase, _)| is_comment && lower.contains(phrase)) {
            add(number, format!("says `{phrase}`: say {better}"));
        }
        if is_no(&lower) {
            add(number, "says `is no` or `are no`: say `is not a`".to_owned());
        }
        let comment = ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        let comment =
            comment.or_else(|| line.trim_start().strip_prefix("\"\"\"").filter(|_| file.ends_with(".py")));
        if let (Some(comment), false) = (comment, is_inside)
            && let Some(opening) = OPENINGS.iter().find(|opening| comment.trim_start().starts_with(*opening))
        {
            add(number, format!("begins with `{}`: say what it is by itself", opening.trim_end()));
        }
        is_inside = comment.is_some();
    }
}

/// Returns whether a line in lower case says that something "is no" something. "There is no" does not count, and neither does a
/// comparison.
fn is_no(line: &str) -> bool {
    [" is no ", " are no ", " was no ", " were no "].iter().any(|verb| {
        line.match_indices(verb).any(|(place, _)| {
            let after = line[place + verb.len()..].split(|next: char| !next.is_alphanumeric()).next();
            !line[..place].contains("there") && !after.is_some_and(|word| AFTER_IS_NO.contains(&word))
        })
    })
}

/// Returns whether a line in lower case has a word, or its plural.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(place, _)| {
        let rest = &line[place + word.len()..];
        let rest = rest.strip_prefix('s').unwrap_or(rest);
        let ends = |character: Option<char>| character.is_none_or(|character| !character.is_alphanumeric());
        ends(line[..place].chars().next_back()) && ends(rest.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        check(file, text, &mut findings);
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn words_are_found_whole() {
        assert_eq!(found("a.rs", "let the_referee = 1;\nA Card.\ntwo cards\n"), [1, 2, 3]);
        assert_eq!(found("a.md", "discard cardinal again, space and illegal; for some days\n"), [1]);
        assert!(found("a.md", "discard cardinal again, space and illegal\n").is_empty());
        for file in ["docs/record/x.md", "docs/glossary.md", "a.css"] {
            assert!(found(file, "a card").is_empty(), "{file}");
        }
    }

    #[test]
    fn nothing_is_no_thing() {
        assert_eq!(found("a.rs", "a list is no segment\nThey are no numbers\n"), [1, 2]);
        assert!(
            found("a.rs", "there is no list, and it is no longer than ours; none is no worse\n").is_empty()
        );
    }

    #[test]
    fn translated_phrases_are_found_in_comments() {
        assert_eq!(found("a.rs", "// It is held against a model.\nlet text = \"held against\";\n"), [1]);
        assert!(found("a.md", "held against\n").is_empty());
    }

    #[test]
    fn comments_stand_by_themselves() {
        assert_eq!(found("a.rs", "//! What it is.\n\n/// The same, twice.\nfn f() {}\n"), [1, 3]);
        assert_eq!(found("a.py", "\"\"\"What it is.\"\"\"\n"), [1]);
        assert!(found("a.rs", "/// Returns a number.\n/// What it is.\n// What follows.\n").is_empty());
    }
}
