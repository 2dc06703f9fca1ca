//! stdout and stderr, which may be pipes whose readers have gone away.
//!
//! What could not be said never changes what was done: nothing here panics. Names and values of the
//! input reach the terminal as text: it would obey control characters.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal, Write};

use pgspate::{Error, Kind, Result};

use crate::errors::Style;

/// Writes data to stdout. A reader that has enough, such as `head`, is no error. What is piped on
/// stays as it is, to the byte.
pub(crate) fn data(bytes: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let bytes = match std::str::from_utf8(bytes.as_ref()) {
        Ok(text) if stdout.is_terminal() => {
            Cow::Owned(spelled(text, Style::of_stdout()).into_owned().into_bytes())
        }
        _ => Cow::Borrowed(bytes.as_ref()),
    };
    match stdout.write_all(&bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::new(Kind::Usage, "could not write to stdout").because(error))
        }
        _ => Ok(()),
    }
}

/// Says something to the user.
pub(crate) fn say(text: impl AsRef<str>) {
    let text = spelled(text.as_ref(), Style::of_stderr());
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Draws a line of progress over the one before.
pub(crate) fn draw_line(line: &str) {
    let line = line.replace('\n', " ");
    let line = spelled(&line, Style::of_stderr());
    // A terminal that has gone away is not worth a word.
    let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
}

/// Says a line.
pub(crate) fn say_line(text: impl AsRef<str>) {
    say(format!("{}\n", text.as_ref()));
}

/// The text with its control characters spelled, as `\u001b`. Tabs and newlines stay, and the
/// colours of `style`.
fn spelled(text: &str, style: Style) -> Cow<'_, str> {
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
    fn control_characters_are_spelled() {
        let plain = Style::with_colour(false);
        for (text, expected) in [
            ("as it is\n\tünï", "as it is\n\tünï"),
            ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
            ("a\rb\x7f\u{9b}31m", "a\\u000db\\u007f\\u009b31m"),
            ("\x1b[1;31mred\x1b[0m", "\\u001b[1;31mred\\u001b[0m"),
        ] {
            assert_eq!(spelled(text, plain), expected);
        }
        let coloured = Style::with_colour(true);
        let ours = coloured.error("error:") + &coloured.dim("x");
        assert_eq!(spelled(&ours, coloured), ours);
        assert_eq!(spelled("\x1b[2J\x1b[2m\x1b", coloured), "\\u001b[2J\x1b[2m\\u001b");
    }
}
