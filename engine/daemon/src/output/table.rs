//! Plain tables: a heading, aligned columns, no frames; the widest text column gives way when the terminal is narrow.
//!
//! A cell is one line of text: control characters in it, line breaks among them, are escaped.

use super::text::{cut, one_line, width, wrap};
use super::{Look, styles};
use anstyle::Style;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text that may be cut.
    Left,
    /// Text that is continued on the next line.
    Wrap,
    /// Text that is never cut: what is typed again.
    Whole,
    /// Numbers.
    Right,
}

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<Cell>>,
}

/// One cell.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        text.as_str().into()
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::styled(text, Style::new())
    }
}

impl Cell {
    /// Text in a style.
    pub fn styled(text: impl AsRef<str>, style: Style) -> Cell {
        Cell { text: one_line(text.as_ref()), style }
    }
}

const GAP: usize = 2;
/// A column that gives way keeps this many columns.
const LEAST: usize = 8;

impl Table {
    /// A table with these headings; empty headings give a table without a heading line.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        Table {
            columns: columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, without trailing spaces.
    pub fn lines(&self, look: &Look) -> Vec<String> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(name, _)| width(name)).collect();
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                widths[column] = widths[column].max(width(&cell.text));
            }
        }
        self.shrink(&mut widths, look.width);
        let mut lines = Vec::new();
        if self.columns.iter().any(|(name, _)| !name.is_empty()) {
            let heading: Vec<Cell> =
                self.columns.iter().map(|(name, _)| Cell::styled(name.as_str(), styles::FAINT)).collect();
            lines.extend(self.row_lines(&heading, &widths, look));
        }
        lines.extend(self.rows.iter().flat_map(|row| self.row_lines(row, &widths, look)));
        lines
    }

    /// Takes from the widest text column until the table fits.
    fn shrink(&self, widths: &mut [usize], most: usize) {
        loop {
            let total: usize = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
            let widest = (0..widths.len())
                .filter(|column| self.gives_way(*column) && widths[*column] > LEAST)
                .max_by_key(|column| widths[*column]);
            match widest {
                Some(column) if total > most => {
                    widths[column] = widths[column].saturating_sub(total - most).max(LEAST);
                }
                _ => return,
            }
        }
    }

    fn gives_way(&self, column: usize) -> bool {
        matches!(self.columns[column].1, Align::Left | Align::Wrap)
    }

    /// One line, or as many as the longest of its wrapped cells has.
    fn row_lines(&self, cells: &[Cell], widths: &[usize], look: &Look) -> Vec<String> {
        let texts: Vec<Vec<String>> = cells
            .iter()
            .enumerate()
            .map(|(column, cell)| match self.columns[column].1 {
                Align::Wrap if width(&cell.text) > widths[column] => wrap(&cell.text, widths[column]),
                _ => vec![cut(&cell.text, widths[column])],
            })
            .collect();
        let height = texts.iter().map(Vec::len).max().unwrap_or(1);
        let text = |column: usize, line: usize| texts[column].get(line).map_or("", String::as_str);
        (0..height)
            .map(|line| {
                let texts = cells.iter().enumerate().map(|(column, cell)| (text(column, line), cell.style));
                self.line(texts, widths, look)
            })
            .collect()
    }

    fn line<'a>(
        &self,
        texts: impl Iterator<Item = (&'a str, Style)>,
        widths: &[usize],
        look: &Look,
    ) -> String {
        let mut line = String::new();
        let mut pending = 0;
        for (column, (text, style)) in texts.enumerate() {
            let pad = widths[column].saturating_sub(width(text));
            let before = if self.columns[column].1 == Align::Right { pad } else { 0 };
            if !text.is_empty() {
                line.extend(std::iter::repeat_n(' ', pending + before));
                line.push_str(&look.paint(style, text));
                pending = pad - before + GAP;
            } else {
                pending += widths[column] + GAP;
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_text_gives_way_and_numbers_never() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right), ("", Align::Left)]);
        table.row(vec!["a long name that does not fit".into(), "1,000".into(), "x".into()]);
        table.row(vec!["b".into(), "7".into(), "".into()]);
        let look = Look { colour: false, width: 40, terminal: true };
        assert_eq!(
            table.lines(&Look { width: 24, ..look }),
            ["name                n", "a long name t\u{2026}  1,000  x", "b                   7"]
        );
        assert!(table.lines(&look)[1].starts_with("a long name that does not fit"));
    }

    #[test]
    fn wrapped_text_is_continued_below_itself() {
        let mut table = Table::new(&[("name", Align::Whole), ("", Align::Wrap), ("n", Align::Right)]);
        table.row(vec!["one".into(), "what it is in many words".into(), "1".into()]);
        table.row(vec!["two".into(), "short".into(), "22".into()]);
        let look = Look { colour: false, width: 24, terminal: true };
        assert_eq!(
            table.lines(&look),
            [
                "name                   n",
                "one   what it is in    1",
                "      many words",
                "two   short           22"
            ]
        );
    }

    #[test]
    fn a_cell_is_one_line_that_steers_nothing() {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Wrap)]);
        table.row(vec!["a\u{1b}[2Jb".into(), "c\nd\te".into()]);
        let look = Look { colour: false, width: 80, terminal: true };
        assert_eq!(table.lines(&look), ["a\\u{1b}[2Jb  c\\nd    e"]);
    }

    #[test]
    fn in_a_pipe_nothing_is_cut() {
        let mut table = Table::new(&[("task", Align::Left), ("", Align::Left)]);
        let why = "environment guess failed in reset: invalid: private.secret is not an integer; ".repeat(9)
            + "end";
        table.row(vec!["t".into(), why.as_str().into()]);
        let lines = table.lines(&Look::of(false, None));
        assert!(lines[1].ends_with(&why), "{lines:?}");
    }
}
