//! WordPiece, the tokens of BERT without capitals.

use std::collections::HashMap;

/// The maximum length of a word that is divided into pieces, in characters.
const LONGEST: usize = 100;

/// Tokens by their text; a piece inside a word begins with `##`.
pub struct Vocabulary {
    numbers: HashMap<String, i64>,
    unknown: i64,
    first: i64,
    last: i64,
}

impl Vocabulary {
    /// Reads the lines of a `vocab.txt`: a token's number is that of its line.
    pub fn read(text: &str) -> Result<Self, String> {
        let numbers: HashMap<String, i64> =
            text.lines().zip(0..).map(|(token, number)| (token.trim_end().to_owned(), number)).collect();
        let number = |token: &str| {
            numbers
                .get(token)
                .copied()
                .ok_or_else(|| format!("the vocabulary has no {token}, as that of BERT has"))
        };
        let (unknown, first, last) = (number("[UNK]")?, number("[CLS]")?, number("[SEP]")?);
        Ok(Self { numbers, unknown, first, last })
    }

    /// Makes a vocabulary of the words of sentences.
    pub fn of(sentences: &[String]) -> Self {
        let mut text: Vec<String> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(str::to_owned).to_vec();
        let mut words: Vec<String> = sentences.iter().flat_map(|sentence| words(sentence)).collect();
        words.sort();
        words.dedup();
        text.extend(words);
        Self::read(&text.join("\n")).expect("the four tokens that it needs stand at its head")
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the tokens of a sentence between those for its beginning and its end.
    pub fn encode(&self, sentence: &str) -> Vec<i64> {
        let mut tokens = vec![self.first];
        words(sentence).iter().for_each(|word| self.pieces(word, &mut tokens));
        tokens.push(self.last);
        tokens
    }

    /// Adds the pieces of a word, each as long as possible; a word without pieces is unknown.
    fn pieces(&self, word: &str, tokens: &mut Vec<i64>) {
        let letters: Vec<char> = word.chars().collect();
        let (kept, mut start) = (tokens.len(), 0);
        while start < letters.len() && letters.len() <= LONGEST {
            let prefix = if start > 0 { "##" } else { "" };
            let piece = |end: usize| [prefix, &letters[start..end].iter().collect::<String>()].concat();
            let found = (start + 1..=letters.len())
                .rev()
                .find_map(|end| self.numbers.get(&piece(end)).map(|&number| (number, end)));
            let Some((number, end)) = found else { break };
            tokens.push(number);
            start = end;
        }
        if start < letters.len() {
            tokens.truncate(kept);
            tokens.push(self.unknown);
        }
    }
}

/// Returns the words of a sentence in lower case; each character that is neither a letter nor a digit is a separate word.
fn words(sentence: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for letter in sentence.to_lowercase().chars() {
        if letter.is_alphanumeric() {
            words.last_mut().expect("there is a word").push(letter);
        } else {
            words.push(if letter.is_whitespace() { String::new() } else { letter.to_string() });
            words.push(String::new());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
