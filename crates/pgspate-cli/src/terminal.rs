//! The terminal: its width, lines that fit into it, and passwords typed without an echo.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;

use pgspate::{Error, ErrorKind, Result};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcgetwinsize, tcsetattr,
};
use textwrap::core::display_width;
use textwrap::{WordSeparator, WordSplitter};

/// The width of a terminal that does not tell its width.
const COLUMNS_DEFAULT: usize = 80;

/// The width of the texts in reports, also of those that go into a file.
const REPORT_COLUMNS: usize = 80;

/// Returns the number of columns that a line on `terminal` may fill. The last column stays free:
/// some terminals begin a new line after it.
pub(crate) fn line_columns(terminal: impl AsFd) -> usize {
    let size = tcgetwinsize(terminal).map(|size| usize::from(size.ws_col));
    let columns = size.ok().filter(|columns| *columns > 0).unwrap_or(COLUMNS_DEFAULT);
    columns.saturating_sub(1).max(1)
}

/// A part of a progress line. Parts of a lower rank are more important.
pub(crate) struct LinePart {
    rank: u8,
    text: String,
    /// A shorter text for a narrow terminal, or an empty text.
    short: String,
}

impl LinePart {
    pub(crate) fn new(rank: u8, text: impl Into<String>) -> LinePart {
        LinePart { rank, text: text.into(), short: String::new() }
    }

    pub(crate) fn or(self, short: impl Into<String>) -> LinePart {
        LinePart { short: short.into(), ..self }
    }
}

/// Joins the parts in their order, with two spaces between them. Leaves out the least important
/// parts that do not fit into `columns`, and cuts the line if the most important part is too long.
pub(crate) fn fit_line(parts: &[LinePart], columns: usize) -> String {
    let mut by_rank: Vec<usize> = (0..parts.len()).collect();
    by_rank.sort_by_key(|at| parts[*at].rank);
    let mut chosen = vec![""; parts.len()];
    let mut used = 0;
    for at in by_rank {
        let LinePart { text, short, .. } = &parts[at];
        let needed = |text: &str| display_width(text) + if used == 0 { 0 } else { 2 };
        let fitting = [text, short].into_iter().find(|it| used + needed(it) <= columns);
        if let Some(text) = fitting.filter(|it| !it.is_empty()) {
            used += needed(text);
            chosen[at] = text;
        } else if used == 0 {
            return cut_line(text, columns);
        }
    }
    chosen.retain(|text| !text.is_empty());
    chosen.join("  ")
}

/// Cuts a line after `columns`; a cut line ends with an ellipsis.
pub(crate) fn cut_line(line: &str, columns: usize) -> String {
    if display_width(line) <= columns {
        return line.to_owned();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += display_width(c.encode_utf8(&mut [0; 4]));
        used < columns
    };
    line.chars().take_while(fits).chain(['…']).collect()
}

/// Breaks lines of a report at spaces. Each line begins with `indent`.
pub(crate) fn break_report_lines(text: &str, indent: &str) -> String {
    let options = break_options(REPORT_COLUMNS).initial_indent(indent).subsequent_indent(indent);
    textwrap::fill(text, options)
}

/// Breaks lines that are wider than `columns` at spaces. The rest of a line begins `hanging`
/// columns right of the line's begin.
pub(crate) fn break_hanging_lines(text: &str, columns: usize, hanging: usize) -> String {
    let fill = |line: &str| {
        let text = line.trim_start_matches(' ');
        let begin = line.len() - text.len();
        let hanging = " ".repeat(begin + hanging);
        let options = break_options(columns).initial_indent(&line[..begin]);
        textwrap::fill(text, options.subsequent_indent(&hanging))
    };
    text.split_inclusive('\n').map(fill).collect()
}

fn break_options<'a>(columns: usize) -> textwrap::Options<'a> {
    textwrap::Options::new(columns)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false)
}

/// Returns whether a person can be asked: stdin and stderr are a terminal.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks for a password on the terminal. The typed characters are not shown. Ctrl-C ends the
/// process with status 130, after the terminal is put back.
///
/// # Errors
/// [`ErrorKind::Usage`] if the terminal cannot be read.
pub(crate) fn ask_password(prompt: &str) -> Result<String> {
    let failed = |error| {
        Error::new(ErrorKind::Usage, "could not read a password from the terminal").because(error)
    };
    let stdin = std::io::stdin();
    let before = tcgetattr(&stdin).map_err(|error| failed(error.into()))?;
    let mut silent = before.clone();
    silent.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    silent.input_modes |= InputModes::ICRNL;
    silent.special_codes[SpecialCodeIndex::VMIN] = 1;
    silent.special_codes[SpecialCodeIndex::VTIME] = 0;
    let set = |modes| tcsetattr(&stdin, OptionalActions::Flush, modes);
    set(&silent).map_err(|error| failed(error.into()))?;
    let _ = write!(std::io::stderr(), "{prompt}");
    let typed = read_typed_line(stdin.lock());
    let _ = set(&before);
    let _ = writeln!(std::io::stderr());
    match typed.map_err(failed)? {
        Some(line) => Ok(line),
        None => std::process::exit(130),
    }
}

// Keys that end or change the line.
const CTRL_C: u8 = 3;
const CTRL_D: u8 = 4;
const BACKSPACE: u8 = 8;
const CTRL_U: u8 = 21;
const DELETE: u8 = 127;

/// Reads what a person types, up to the end of the line. Returns `None` after Ctrl-C.
fn read_typed_line(mut keys: impl Read) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let mut key = [0];
    while keys.read(&mut key)? > 0 {
        match key[0] {
            CTRL_C => return Ok(None),
            b'\n' | b'\r' | CTRL_D => break,
            BACKSPACE | DELETE => {
                // A character of UTF-8 may have several bytes.
                while line.pop().is_some_and(|byte: u8| byte & 0xc0 == 0x80) {}
            }
            CTRL_U => line.clear(),
            byte => line.push(byte),
        }
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_important_parts_are_left_out_of_a_narrow_line() {
        let parts = [
            LinePart::new(0, "loading orders"),
            LinePart::new(2, "12.4M rows"),
            LinePart::new(3, "waiting on: server (WALWrite)").or("server (WALWrite)"),
            LinePart::new(1, "00:38 left"),
        ];
        let line = |columns| fit_line(&parts, columns);
        let whole = "loading orders  12.4M rows  waiting on: server (WALWrite)  00:38 left";
        assert_eq!(line(79), whole);
        assert_eq!(line(60), "loading orders  12.4M rows  server (WALWrite)  00:38 left");
        assert_eq!(line(40), "loading orders  12.4M rows  00:38 left");
        assert_eq!(line(27), "loading orders  00:38 left");
        assert_eq!(line(14), "loading orders");
        assert_eq!(line(9), "loading …");
        for columns in 1..90 {
            assert!(display_width(&line(columns)) <= columns, "{columns}");
        }
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(display_width("表a"), 3);
        assert_eq!(cut_line("表表表", 5), "表表…");
        assert_eq!(cut_line("表表表", 6), "表表表");
    }

    #[test]
    fn lines_of_a_report_are_broken_and_indented() {
        assert_eq!(break_report_lines("a b", "  "), "  a b");
        let long = break_report_lines(&"word ".repeat(40), "    ");
        let fits = |line: &str| line.len() <= REPORT_COLUMNS && line.starts_with("    word");
        assert!(long.lines().all(fits));
        assert_eq!(long.lines().count(), 3);
    }

    #[test]
    fn the_rest_of_a_line_hangs_right_of_its_begin() {
        let text = "lanes  one two three\n  a bcd efgh ij klmn\n\n";
        let broken = "lanes  one two\n       three\n  a bcd efgh ij\n         klmn\n\n";
        assert_eq!(break_hanging_lines(text, 17, 7), broken);
        assert_eq!(break_hanging_lines("  too-wide-a-word\n", 10, 2), "  too-wide-a-word\n");
    }

    #[test]
    fn a_typed_line_can_be_corrected() {
        let typed = |keys: &[u8]| read_typed_line(keys).unwrap();
        assert_eq!(typed(b"secret\nrest"), Some("secret".to_owned()));
        assert_eq!(typed("é\u{7f}ab\u{8}c\r".as_bytes()), Some("ac".to_owned()));
        assert_eq!(typed(b"wrong\x15right\x04"), Some("right".to_owned()));
        assert_eq!(typed(b"ab\x03"), None);
    }
}
