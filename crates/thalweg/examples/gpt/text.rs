//! The text: its characters as numbers, and pieces of it as samples.

use thalweg::data::{Dataset, Field, SampleField};
use thalweg::{DType, Error, Result};

const SONNETS: &str = include_str!("../../data/sonnets.txt");

/// The characters that occur, in order; a token is an index in this list.
pub struct Text {
    characters: Vec<char>,
    tokens: Vec<i64>,
    context: usize,
}

impl Text {
    /// Returns the sonnets, in pieces of `context` characters.
    pub fn sonnets(context: usize) -> Self {
        let mut characters: Vec<char> = SONNETS.chars().collect();
        characters.sort_unstable();
        characters.dedup();
        let mut text = Self { characters, tokens: Vec::new(), context };
        text.tokens = text.encode(SONNETS).expect("the characters are those of the text");
        text
    }

    pub fn vocabulary(&self) -> usize {
        self.characters.len()
    }

    pub fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let token = |character| {
            self.characters.binary_search(&character).map(|place| place as i64).map_err(|_| {
                Error::invalid(format!("the text has no '{character}', so the model does not know it"))
            })
        };
        text.chars().map(token).collect()
    }

    pub fn decode(&self, tokens: &[i64]) -> String {
        tokens.iter().map(|&token| self.characters[token as usize]).collect()
    }
}

impl Dataset for Text {
    fn len(&self) -> usize {
        self.tokens.len() - self.context
    }

    /// Returns a piece, and the same piece shifted by one character.
    fn fields(&self) -> Vec<Field> {
        vec![Field { shape: vec![self.context], dtype: DType::I64 }; 2]
    }

    fn read(&self, index: usize, fields: &mut [SampleField<'_>]) -> Result<()> {
        fields[0].put(&self.tokens[index..index + self.context])?;
        fields[1].put(&self.tokens[index + 1..index + 1 + self.context])
    }
}
