//! Writes to stdout and stderr, which may be pipes that their readers have closed.
//!
//! A failed write to stderr is ignored, and nothing here panics. Control characters in names and
//! values of the input are escaped, because a terminal would obey them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use pgspate::{Error, ErrorKind, Result};

use crate::errors::TerminalStyle;
use crate::terminal::{LinePart, break_hanging_lines, cut_line, fit_line, line_columns};

/// Writes data to stdout. A reader that closes the pipe early, such as `head`, is no error. Data
/// for a pipe is written byte for byte.
///
/// # Errors
/// [`ErrorKind::Usage`] if stdout cannot be written for another reason.
pub(crate) fn write_stdout(bytes: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let bytes = match std::str::from_utf8(bytes.as_ref()) {
        Ok(text) if stdout.is_terminal() => Cow::Owned(
            escape_control_characters(text, TerminalStyle::of_stdout()).into_owned().into_bytes(),
        ),
        _ => Cow::Borrowed(bytes.as_ref()),
    };
    match stdout.write_all(&bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Usage, "could not write to stdout").because(error))
        }
        _ => Ok(()),
    }
}

/// Writes lines for people to stdout. Lines fit into the terminal, if stdout is one. The rest of a
/// line that is too wide begins `hanging` columns right of the line's begin.
///
/// # Errors
/// The errors of [`write_stdout`].
pub(crate) fn write_stdout_lines(lines: &str, hanging: usize) -> Result<()> {
    let stdout = std::io::stdout();
    match stdout.is_terminal() {
        true => write_stdout(break_hanging_lines(lines, line_columns(&stdout), hanging)),
        false => write_stdout(lines),
    }
}

/// Writes a text to stderr. Lines fit into the terminal, if stderr is one.
pub(crate) fn write_stderr(text: impl AsRef<str>) {
    let stderr = std::io::stderr();
    match stderr.is_terminal() {
        true => write_unbroken(&break_hanging_lines(text.as_ref(), line_columns(&stderr), 2)),
        false => write_unbroken(text.as_ref()),
    }
}

/// Writes a line to stderr that has a command to copy, which a line break would spoil.
pub(crate) fn write_command_line(text: &str) {
    write_unbroken(&format!("{text}\n"));
}

fn write_unbroken(text: &str) {
    let text = escape_control_characters(text, TerminalStyle::of_stderr());
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Draws a progress line of these parts over the previous one, within the terminal's width.
pub(crate) fn draw_line(parts: &[LinePart]) {
    let columns = line_columns(std::io::stderr());
    let line = fit_line(parts, columns).replace(['\n', '\t'], " ");
    let line = escape_control_characters(&line, TerminalStyle::of_stderr());
    // Ignored: the terminal may be closed.
    let _ = write!(std::io::stderr(), "\r{}\x1b[K", cut_line(&line, columns));
}

/// Writes a line to stderr.
pub(crate) fn write_stderr_line(text: impl AsRef<str>) {
    write_stderr(format!("{}\n", text.as_ref()));
}

/// Escapes the control characters of a text, as `\u001b`. Tabs, newlines and the colours of `style`
/// stay.
fn escape_control_characters(text: &str, style: TerminalStyle) -> Cow<'_, str> {
    let is_control = |char: char| char.is_control() && !matches!(char, '\t' | '\n');
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(at) = rest.find(is_control) {
        let (before, found) = rest.split_at(at);
        out.push_str(before);
        if let Some(code) = style.code_at(found) {
            out.push_str(&found[..code]);
            rest = &found[code..];
            continue;
        }
        let mut chars = found.chars();
        let _ = write!(out, "\\u{:04x}", chars.next().map_or(0, u32::from));
        rest = chars.as_str();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let plain = TerminalStyle::with_colour(false);
        for (text, expected) in [
            ("as it is\n\tünï", "as it is\n\tünï"),
            ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
            ("a\rb\x7f\u{9b}31m", "a\\u000db\\u007f\\u009b31m"),
            ("\x1b[1;31mred\x1b[0m", "\\u001b[1;31mred\\u001b[0m"),
        ] {
            assert_eq!(escape_control_characters(text, plain), expected);
        }
        let coloured = TerminalStyle::with_colour(true);
        let ours = coloured.error("error:") + &coloured.dim("x");
        assert_eq!(escape_control_characters(&ours, coloured), ours);
        assert_eq!(
            escape_control_characters("\x1b[2J\x1b[2m\x1b", coloured),
            "\\u001b[2J\x1b[2m\\u001b"
        );
    }
}
