//! What people and programs read: text that fits the terminal, colours where they are wanted, JSON where it is asked for.
//!
//! Standard output carries results alone; progress, messages and logs go to standard error. A reader that closes the
//! pipe ends the output quietly.

pub(crate) mod calls_view;
pub mod causes_view;
pub mod compare_view;
pub mod delivery_view;
pub mod pace;
pub mod problem;
pub mod progress_line;
pub mod rollout_page;
pub mod rollout_view;
pub mod run_view;
pub mod settings_view;
pub mod summary;
pub mod table;
pub mod text;
pub mod tokens_view;
pub mod versions;
pub mod weights_view;
pub mod whole_file;

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// Columns assumed of a terminal that does not say.
const WIDTH_DEFAULT: usize = 80;
/// Fewest columns that layouts count with.
const WIDTH_LEAST: usize = 40;

/// How standard output is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether styles are written.
    pub colour: bool,
    /// Columns to fill at most; without a terminal as many as there are words for.
    pub width: usize,
    /// Whether a person watches.
    pub terminal: bool,
}

impl Look {
    /// For standard output: colours on a terminal, unless `NO_COLOR` is set or `TERM=dumb`; `CLICOLOR_FORCE` asks for
    /// them in a pipe.
    pub fn of_stdout() -> Look {
        Look::of(io::stdout().is_terminal(), rustix::termios::tcgetwinsize(io::stdout()).ok())
    }

    /// For standard error.
    pub fn of_stderr() -> Look {
        Look::of(io::stderr().is_terminal(), rustix::termios::tcgetwinsize(io::stderr()).ok())
    }

    fn of(terminal: bool, size: Option<rustix::termios::Winsize>) -> Look {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let forced = std::env::var("CLICOLOR_FORCE").is_ok_and(|value| !value.is_empty() && value != "0");
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = size
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 0)
            .or(columns)
            .unwrap_or(WIDTH_DEFAULT)
            .max(WIDTH_LEAST);
        // In a pipe nothing is cut: whoever reads it looks for words, and has no columns.
        let width = if terminal { width } else { usize::MAX };
        Look { colour: !set("NO_COLOR") && (forced || terminal && !dumb), width, terminal }
    }

    /// Text in a style, where colours are wanted.
    pub fn paint(&self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("{}{text}{}", style.render(), style.render_reset())
        } else {
            text.to_owned()
        }
    }
}

/// The styles in use; each has one meaning.
pub mod styles {
    use super::{AnsiColor, Style};

    /// Headings and names that matter.
    pub const STRONG: Style = Style::new().bold();
    /// What may be skipped.
    pub const FAINT: Style = Style::new().dimmed();
    /// Good ends.
    pub const GOOD: Style = AnsiColor::Green.on_default();
    /// What deserves a look.
    pub const WARN: Style = AnsiColor::Yellow.on_default();
    /// Bad ends.
    pub const BAD: Style = AnsiColor::Red.on_default();
    /// The word `error:`.
    pub const ERROR: Style = AnsiColor::Red.on_default().bold();
    /// The word `hint:`.
    pub const HINT: Style = AnsiColor::Cyan.on_default().bold();
}

/// Standard output of one command.
pub struct Out {
    writer: Box<dyn Write + Send>,
    /// How to write.
    pub look: Look,
}

impl Out {
    /// Buffered standard output.
    pub fn stdout() -> Out {
        Out { writer: Box::new(io::BufWriter::new(io::stdout())), look: Look::of_stdout() }
    }

    /// Another writer, for tests and files.
    pub fn to(writer: Box<dyn Write + Send>, look: Look) -> Out {
        Out { writer, look }
    }

    /// One line.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(text.as_bytes())?;
        self.writer.write_all(b"\n")
    }

    /// One JSON value, indented.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut self.writer, value)?;
        self.writer.write_all(b"\n")
    }

    /// The writer itself, for bytes.
    pub fn writer(&mut self) -> &mut (dyn Write + Send) {
        &mut *self.writer
    }

    /// Writes what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
