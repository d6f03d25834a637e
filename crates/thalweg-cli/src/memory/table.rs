//! Aligned tables, on narrow terminals too.
//!
//! One column is text and takes the width that the others leave; longer text continues on the next line, in the same column. The
//! others are figures, aligned to the right.

/// The minimum width of the text column; with less space the table is wider than the terminal.
const LEAST_TEXT: usize = 8;

/// A table with a line of names.
pub struct Table {
    names: Vec<&'static str>,
    /// The column that is text.
    text: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(names: &[&'static str], text: usize) -> Self {
        Self { names: names.to_vec(), text, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.names.len(), "a row has a cell a column");
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lines, at most `width` wide if possible, each after `indent` spaces.
    pub fn render(&self, width: usize, indent: usize) -> String {
        let widest = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.names[column].chars().count()]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.names.len()).map(widest).collect();
        let figures: usize =
            widths.iter().enumerate().filter(|(at, _)| *at != self.text).map(|(_, w)| w + 2).sum();
        let room = width.saturating_sub(indent + figures).max(LEAST_TEXT);
        widths[self.text] = widths[self.text].min(room);
        let names: Vec<String> = self.names.iter().map(|name| name.to_string()).collect();
        let mut out = String::new();
        for row in std::iter::once(&names).chain(&self.rows) {
            self.render_row(row, &widths, indent, &mut out);
        }
        out
    }

    fn render_row(&self, row: &[String], widths: &[usize], indent: usize, out: &mut String) {
        let pieces = pieces(&row[self.text], widths[self.text]);
        for (line, piece) in pieces.iter().enumerate() {
            let mut text = " ".repeat(indent);
            for (column, &width) in widths.iter().enumerate() {
                let cell = if column == self.text {
                    piece.as_str()
                } else if line == 0 {
                    &row[column]
                } else {
                    ""
                };
                let gap = if column == 0 { 0 } else { 2 };
                let padding = " ".repeat(width - cell.chars().count());
                text.push_str(&" ".repeat(gap));
                if column == self.text {
                    text.push_str(&format!("{cell}{padding}"));
                } else {
                    text.push_str(&format!("{padding}{cell}"));
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
}

/// Returns a text in pieces of at most `width` characters, cut after a separator if there is one.
fn pieces(text: &str, width: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    while rest.len() > width {
        let separates = |character: &char| matches!(character, ' ' | ',' | ':' | '/' | '_');
        let cut = rest[..width].iter().rposition(separates).map_or(width, |at| at + 1);
        let cut = if cut > width / 3 { cut } else { width };
        pieces.push(rest[..cut].iter().collect());
        rest.drain(..cut);
    }
    pieces.push(rest.into_iter().collect());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_at_any_width() {
        let mut table = Table::new(&["settings", "reserved"], 0);
        table.row(vec!["max_split_size_mb:128,expandable_segments:True".into(), "8.76 GiB".into()]);
        table.row(vec!["default".into(), "9 B".into()]);
        let wide = "  settings                                        reserved\n  \
                    max_split_size_mb:128,expandable_segments:True  8.76 GiB\n  \
                    default                                              9 B\n";
        assert_eq!(table.render(80, 2), wide);
        let narrow = "settings                reserved\n\
                      max_split_size_mb:128,  8.76 GiB\n\
                      expandable_segments:\n\
                      True\n\
                      default                      9 B\n";
        assert_eq!(table.render(32, 0), narrow);
        assert_eq!(pieces("abcdefgh", 3), ["abc", "def", "gh"]);
    }
}
