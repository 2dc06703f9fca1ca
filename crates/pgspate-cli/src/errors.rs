//! Formats errors for people: the message, its causes, its place, and the hint.

use std::fmt::Write as _;
use std::io::IsTerminal;

use pgspate::{Error, ErrorKind, InputPlace};
use serde::Serialize;

use crate::load;
use crate::output::write_stderr;

/// The escape codes that `TerminalStyle` writes.
const CODES: [&str; 5] = ["\x1b[1;31m", "\x1b[1;33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"];

/// Colours text if the output is a terminal and NO_COLOR is not set.
#[derive(Clone, Copy)]
pub(crate) struct TerminalStyle {
    colour: bool,
}

impl TerminalStyle {
    pub(crate) fn of_stderr() -> TerminalStyle {
        let is_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        TerminalStyle { colour: !is_disabled && std::io::stderr().is_terminal() }
    }

    pub(crate) fn of_stdout() -> TerminalStyle {
        let is_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        TerminalStyle { colour: !is_disabled && std::io::stdout().is_terminal() }
    }

    pub(crate) fn error(self, text: &str) -> String {
        self.wrap(text, "1;31")
    }

    pub(crate) fn warning(self, text: &str) -> String {
        self.wrap(text, "1;33")
    }

    pub(crate) fn strong(self, text: &str) -> String {
        self.wrap(text, "1")
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap(text, "2")
    }

    /// Returns the length of the escape code of [`CODES`] with which the text begins, if any.
    pub(crate) fn code_at(self, text: &str) -> Option<usize> {
        let code = CODES.iter().find(|code| text.starts_with(**code));
        code.filter(|_| self.colour).map(|code| code.len())
    }

    #[cfg(test)]
    pub(crate) fn with_colour(colour: bool) -> TerminalStyle {
        TerminalStyle { colour }
    }

    fn wrap(self, text: &str, code: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Prints an error on stderr.
pub(crate) fn print(error: &Error, style: TerminalStyle) {
    write_stderr(render(error, style));
}

/// An error as `--json` prints it on stdout, in place of the report.
#[derive(Serialize)]
struct ErrorOutput<'a> {
    error: ErrorDetails<'a>,
}

#[derive(Serialize)]
struct ErrorDetails<'a> {
    kind: &'static str,
    message: String,
    causes: Vec<String>,
    place: Option<PlaceOutput<'a>>,
    hint: Option<&'a str>,
    sqlstate: Option<&'a str>,
    is_retryable: bool,
    exit_status: u8,
}

#[derive(Serialize)]
struct PlaceOutput<'a> {
    source: Option<&'a str>,
    line: Option<u64>,
    row: Option<u64>,
    byte: Option<u64>,
    column: Option<&'a str>,
}

impl<'a> PlaceOutput<'a> {
    fn of(place: &'a InputPlace) -> PlaceOutput<'a> {
        let InputPlace { source, line, row, byte, column } = place;
        let (source, column) = (source.as_deref(), column.as_deref());
        PlaceOutput { source, line: *line, row: *row, byte: *byte, column }
    }
}

/// Prints the error as JSON on stdout.
pub(crate) fn print_json(error: &Error) {
    let mut messages = error.messages().into_iter();
    let output = ErrorOutput {
        error: ErrorDetails {
            kind: error.kind().name(),
            message: messages.next().unwrap_or_default(),
            causes: messages.collect(),
            place: error.place().map(PlaceOutput::of),
            hint: error.hint_text(),
            sqlstate: error.sqlstate().map(|code| code.code()),
            is_retryable: error.is_retryable(),
            exit_status: status(error),
        },
    };
    // Ignored: the exit status still tells that there is an error.
    let _ = load::print_json(&output);
}

/// Formats the error with its causes, its place and its hint.
pub(crate) fn render(error: &Error, style: TerminalStyle) -> String {
    // Further lines of a quoted message are indented, to tell them from pgspate's own lines.
    let indented = |message: &str| message.replace('\n', "\n    ");
    let mut text = format!("{} {}\n", style.error("error:"), indented(&error.to_string()));
    for cause in error.messages().iter().skip(1) {
        let _ = writeln!(text, "  caused by: {}", indented(cause));
    }
    if let Some(place) = error.place().map(ToString::to_string).filter(|place| !place.is_empty()) {
        let _ = writeln!(text, "  at: {}", indented(&place));
    }
    if let Some(hint) = error.hint_text() {
        let _ = writeln!(text, "\n{} {hint}", style.strong("hint:"));
    }
    text
}

/// Returns the exit status for an error: 130 if the run was interrupted, otherwise 2.
pub(crate) fn status(error: &Error) -> u8 {
    if error.kind() == ErrorKind::Cancelled { 130 } else { 2 }
}
