//! Indented text.

/// Lines of text with the current depth.
#[derive(Default)]
pub(super) struct Writer {
    text: String,
    depth: usize,
}

impl Writer {
    /// Adds one line.
    pub fn line(&mut self, line: &str) {
        self.text.extend(std::iter::repeat_n("    ", self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds an empty line.
    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    /// Adds a line that opens a block.
    pub fn open(&mut self, head: &str) {
        self.line(format!("{head} {{").trim_start());
        self.depth += 1;
    }

    /// Closes the block; `tail` follows the brace.
    pub fn close(&mut self, tail: &str) {
        self.depth -= 1;
        self.line(&format!("}}{tail}"));
    }

    /// Returns the text; every block must be closed.
    pub fn finish(self) -> String {
        assert_eq!(self.depth, 0, "every block is closed");
        self.text
    }
}
