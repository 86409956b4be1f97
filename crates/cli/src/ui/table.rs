//! Tables that fit a terminal: columns as wide as their content, the widest shortened if the line is too long.

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table with headings.
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

const GAP: usize = 2;
const NARROWEST: usize = 6;

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, without control characters.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<_> = cells.into_iter().map(|cell| printable(&cell)).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// The table as lines of at most `width` characters; `None` for no limit.
    pub(crate) fn render(&self, width: Option<usize>) -> String {
        let widths = self.fit(width);
        let headings: Vec<_> = self.columns.iter().map(|(heading, _)| (*heading).to_owned()).collect();
        std::iter::once(&headings).chain(&self.rows).map(|row| self.line(row, &widths)).collect()
    }

    fn fit(&self, width: Option<usize>) -> Vec<usize> {
        let longest = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(self.columns[column].0.len())
        };
        let mut widths: Vec<_> = (0..self.columns.len()).map(longest).collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        while width.is_some_and(|width| widths.iter().sum::<usize>() + gaps > width) {
            let widest = widths.iter_mut().max().expect("a table has columns");
            if *widest <= NARROWEST {
                break;
            }
            *widest -= 1;
        }
        widths
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, &width), (_, align)) in row.iter().zip(widths).zip(&self.columns) {
            let cell = shorten(cell, width);
            let padding = " ".repeat(width - cell.chars().count());
            match align {
                Align::Left => line.extend([cell.as_str(), &padding]),
                Align::Right => line.extend([padding.as_str(), &cell]),
            }
            line.push_str(&" ".repeat(GAP));
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

/// Replaces control characters in `text`, which could otherwise control the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// [`printable`] for a text of several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[("IMAGE", Align::Left), ("SIZE", Align::Right), ("TAGS", Align::Left)]);
        table.row(["classroom".into(), "3.4 GiB".into(), "stable".into()]);
        table.row(["web\x1b[2J".into(), "512 B".into(), String::new()]);
        table
    }

    #[test]
    fn columns_line_up() {
        let text = table().render(None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["IMAGE         SIZE  TAGS", "classroom  3.4 GiB  stable"]);
        assert_eq!(lines.len(), 3);
        assert!(!text.contains('\x1b'), "no control characters: {text:?}");
    }

    #[test]
    fn a_line_fits_the_terminal() {
        for width in 22..40 {
            let text = table().render(Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        }
        assert!(table().render(Some(24)).contains('…'));
        assert!(table().render(Some(1)).lines().count() == 3, "too narrow for anything is no reason to fail");
    }
}
