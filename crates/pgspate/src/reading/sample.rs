//! The first bytes of an input, from which its format and columns are detected.

use crate::Result;
use crate::format::delimited::ParsedRecord;
use crate::format::infer;
use crate::source::Input;

/// The decompressed bytes of a sample.
pub const SAMPLE_BYTES: usize = 1 << 20;
/// The most records of a sample to look at.
pub(super) const SAMPLE_ROWS_MAX: usize = 10_000;

/// Infers the columns of a table for these rows: names and types.
pub(super) fn infer_columns(
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

/// Chooses the input from which the format is detected, and returns its sample. Takes the first
/// input that is not empty. If that input has one line, the line may be a header without rows. Then
/// the next input is taken if it begins with the same line and has more.
pub(super) fn choose_sample(inputs: &[Input]) -> Result<Option<(&Input, Vec<u8>)>> {
    let mut one_line = None;
    for input in inputs {
        let sample = input.peek(SAMPLE_BYTES)?;
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
