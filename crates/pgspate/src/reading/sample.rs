//! The first bytes of the input, from which formats and columns are guessed.

use crate::Result;
use crate::format::delimited::ParsedRecord;
use crate::format::infer;
use crate::source::Input;

/// Decompressed bytes of an input that are looked at.
pub const BYTES: usize = 1 << 20;
/// Records of them that are looked at.
pub(super) const ROWS: usize = 10_000;

/// The columns that a table for these rows would have: name and type.
pub(super) fn columns(
    names: Option<&[String]>,
    rows: &[ParsedRecord],
    given: Option<&[String]>,
) -> Vec<(String, String)> {
    let fields = rows.first().map_or(0, Vec::len);
    let unnamed = || infer::column_names(vec![String::new(); fields]);
    let names = given.map(<[String]>::to_vec).or(names.map(<[String]>::to_vec));
    let columns = infer::columns_of_rows(&names.unwrap_or_else(unnamed), rows);
    columns.into_iter().map(|column| (column.name, column.ty.sql().to_owned())).collect()
}

/// The input that tells what all are, and its sample: the first that is not empty. Where that is
/// one line, which may be a header above no rows, the next one that begins with it says more.
pub(super) fn telling(inputs: &[Input]) -> Result<Option<(&Input, Vec<u8>)>> {
    let mut one_line = None;
    for input in inputs {
        let sample = input.peek(BYTES)?;
        let line = trim_line_end(&sample);
        match &one_line {
            _ if sample.is_empty() && inputs.len() > 1 => {}
            None if line.iter().any(|byte| matches!(byte, b'\n' | b'\r')) => {
                return Ok(Some((input, sample)));
            }
            None => one_line = Some((input, sample)),
            Some((_, first)) if line == trim_line_end(first) => {}
            Some((_, first)) => {
                let rest = sample.strip_prefix(trim_line_end(first));
                let goes_on = rest.is_some_and(|rest| matches!(rest.first(), Some(b'\n' | b'\r')));
                return Ok(if goes_on { Some((input, sample)) } else { one_line });
            }
        }
    }
    Ok(one_line)
}

fn trim_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
