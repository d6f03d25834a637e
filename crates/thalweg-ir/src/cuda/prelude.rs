//! The functions that generated code may call: types, casts, and the combination of lanes.
//!
//! `prelude.cuh` has them, each after a line with its name. A unit gets those whose names it mentions, and those that these mention:
//! there is no list of uses to maintain.

use std::sync::LazyLock;

/// A definition, and the name whose mention requires it.
struct Fragment {
    name: &'static str,
    text: &'static str,
}

/// The name of the fragment that every unit has: the names of the types.
const TYPES: &str = "types";

/// All fragments, each after those that it uses.
static FRAGMENTS: LazyLock<Vec<Fragment>> = LazyLock::new(|| {
    let parts = include_str!("prelude.cuh").split("//: ").skip(1);
    let fragments =
        parts.filter_map(|part| part.split_once('\n')).map(|(name, text)| Fragment { name, text });
    fragments.chain([Fragment { name: "streamed_rows", text: include_str!("streamed.cu") }]).collect()
});

/// Returns a translation unit: the parts of the prelude (types, conversions, sums of a warp and a block) that the code mentions,
/// then the code.
pub fn with_prelude(code: &str) -> String {
    needed_by(code) + "\n" + code
}

/// Returns the prelude of a unit with this code.
pub(crate) fn needed_by(code: &str) -> String {
    let mut needed: Vec<&'static str> = Vec::new();
    for &Fragment { name, text } in FRAGMENTS.iter().rev() {
        if name == TYPES || mentions(code, name) || needed.iter().any(|text| mentions(text, name)) {
            needed.push(text);
        }
    }
    needed.reverse();
    needed.concat()
}

/// Returns whether the text contains this word.
fn mentions(text: &str, word: &str) -> bool {
    let inside_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    text.match_indices(word).any(|(start, _)| {
        let bytes = text.as_bytes();
        !inside_word(start.checked_sub(1).and_then(|before| bytes.get(before)))
            && !inside_word(bytes.get(start + word.len()))
    })
}
